"""A whole skill as one text, as the `prompt` dialect serves it, and the reverse.

The text is `SKILL.md`, then each supporting file under a line with its path:

    …the bytes of SKILL.md…

    --- references/policy.md ---
    …the bytes of references/policy.md…

Every part ends in a newline, which is added where the file has none; nothing
else is changed. Files that are not UTF-8 text, which `resources/read` returns
as blobs, are left out; a note after the last part names them, under a line
that no file path can produce.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from skillwire.core.errors import FrontmatterError, InvalidUriError, LimitError
from skillwire.core.finding import SKILL_FILE
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_FILES
from skillwire.core.uri import SkillUri

MAX_PROMPT_BYTES: Final = 1024 * 1024
"""The maximum size of a prompt's text, in bytes of UTF-8: a model reads all of it at once."""

# A path has no empty segment, so no file can have this name.
_NOTE_LABEL: Final = "/ not included, because they are not text: /"
_NOTE_HEAD: Final = f"\n--- {_NOTE_LABEL} ---\n"
_NOTE_LINE: Final = "- "

_SEPARATOR = re.compile(r"\n--- ([^\n]+) ---\n")
# A placeholder for the skill's own URI, to validate paths with.
_HERE = SkillUri.build("skill")


@dataclass(frozen=True, slots=True)
class PromptText:
    """The text of a skill's prompt.

    `omitted` are the paths of files that are not text. `ambiguous` are the
    paths of files that contain a line like a separator, so that splitting the
    text yields more files than there are.
    """

    text: str
    omitted: tuple[str, ...]
    ambiguous: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptParts:
    """The parts of a prompt's text.

    With `is_whole`, `skill_md` is the entire text, because it could not be
    split into files.
    """

    skill_md: str
    references: tuple[tuple[str, str], ...] = ()
    omitted: tuple[str, ...] = ()
    is_whole: bool = False


class PromptBuilder:
    """Builds the text of a prompt: `SKILL.md` first, then one file after the other."""

    def __init__(self, skill_md: bytes) -> None:
        """Start with a whole `SKILL.md`.

        Raises:
            FrontmatterError: It is not UTF-8 text, or has no frontmatter.
            LimitError: It is too long already.
        """
        self._pieces: list[bytes] = []
        self._size = 0
        self._omitted: list[str] = []
        self._ambiguous: list[str] = []
        content = _ended(skill_md)
        body = parse_skill_md(content).body
        self._append(content)
        text = content.decode("utf-8")
        self._note_lookalikes(SKILL_FILE, text, len(text) - len(body))

    def add(self, path: str, content: bytes) -> None:
        """Add the file at `path` inside the skill, or record it as omitted if it is not text.

        Raises:
            LimitError: The text becomes too long.
        """
        try:
            body = content.decode("utf-8")
        except UnicodeDecodeError:
            self._omitted.append(path)
            return
        self._append(_labelled(path, content))
        self._note_lookalikes(path, body if body.endswith("\n") else body + "\n")

    def finish(self) -> PromptText:
        """Return the text, with a note about omitted files if there are any.

        Raises:
            LimitError: The note makes it too long.
        """
        if self._omitted:
            lines = "".join(f"{_NOTE_LINE}{path}\n" for path in self._omitted)
            self._append(f"{_NOTE_HEAD}{lines}".encode())
        text = b"".join(self._pieces).decode("utf-8")
        return PromptText(text, tuple(self._omitted), tuple(self._ambiguous))

    def _append(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_PROMPT_BYTES:
            raise LimitError(
                f"the skill has more than {MAX_PROMPT_BYTES} bytes of text, too many for a prompt",
                fix="read its files as resources",
            )
        self._pieces.append(piece)

    def _note_lookalikes(self, path: str, text: str, position: int = 0) -> None:
        if any(_separators(text, position)) or f"\n{_NOTE_HEAD}" in text:
            self._ambiguous.append(path)


def join_prompt(skill_md: bytes, references: Iterable[tuple[str, bytes]]) -> bytes:
    """Join a skill's files by the rule of the dialect (DUAL-02), whatever bytes they contain."""
    return b"".join([_ended(skill_md), *(_labelled(path, content) for path, content in references)])


def split_prompt(text: str) -> PromptParts:
    """Split a prompt's text: the inverse of joining, as far as there is one.

    Joining the parts again gives the same text to the byte, and for files
    without a line that looks like a separator the parts are those files, with
    the newline that joining added. A separator cannot be distinguished from a
    line in a file that looks like one, so a label is as untrusted as the text
    below it. Where labels contradict each other the text is kept whole.

    Raises:
        FrontmatterError: The text does not start like a `SKILL.md`, so it is not a skill.
    """
    try:
        body = parse_skill_md(text.encode("utf-8")).body
    except UnicodeEncodeError:
        message = "the text contains a lone surrogate"
        raise FrontmatterError(message, reason="not-utf8") from None
    content, omitted = _without_note(text, len(text) - len(body))
    references: list[tuple[str, str]] = []
    label, start = "", 0
    first = len(content)
    for found in _separators(content, len(text) - len(body)):
        if found.end() == len(content):
            break  # No part is empty, so this line belongs to the previous part.
        if label:
            references.append((label, content[start : found.start()]))
        else:
            first = found.start()
        label, start = found[1], found.end()
    if label:
        references.append((label, content[start:]))
    if not content.endswith("\n") or not _could_be_one_skill([*(path for path, _ in references), *omitted]):
        return PromptParts(text, is_whole=True)
    return PromptParts(content[:first], tuple(references), omitted)


def _ended(content: bytes) -> bytes:
    return content if content.endswith(b"\n") else content + b"\n"


def _labelled(path: str, content: bytes) -> bytes:
    return b"\n--- %s ---\n%s" % (path.encode(), _ended(content))


def _separators(text: str, position: int) -> Iterator[re.Match[str]]:
    """Yield the separators from `position` on, and lines that look like one.

    Before each there is a part, which ends in a newline and so is not empty.
    """
    start = 0
    while found := _SEPARATOR.search(text, position):
        before = text[found.start() - 1 : found.start()]
        if found.start() > start and before == "\n" and _is_path(found[1]):
            yield found
            start = position = found.end()
        else:
            position = found.start() + 1


def _without_note(text: str, body: int) -> tuple[str, tuple[str, ...]]:
    """Return the text without the note at its end, and the paths that the note lists."""
    head = text.rfind(_NOTE_HEAD, body)
    if head <= 0 or text[head - 1] != "\n":
        return text, ()
    lines = text[head + len(_NOTE_HEAD) :].split("\n")
    if lines.pop() or not lines or not all(line.startswith(_NOTE_LINE) for line in lines):
        return text, ()
    paths = tuple(line.removeprefix(_NOTE_LINE) for line in lines)
    return (text[:head], paths) if all(map(_is_path, paths)) else (text, ())


def _could_be_one_skill(paths: list[str]) -> bool:
    """Return whether one skill could have files at all these paths."""
    known = set(paths)
    return (
        len(known) == len(paths) < MAX_FILES
        and SKILL_FILE not in known
        and not any(path.rpartition("/")[0] in known for path in _with_parents(known))
    )


def _with_parents(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        while "/" in path:
            yield path
            path = path.rpartition("/")[0]


def _is_path(label: str) -> bool:
    if "://" in label:
        return False
    try:
        _HERE.join(label)
    except InvalidUriError:
        return False
    return True
