"""The `prompt` dialect: a whole skill as the text of one prompt, and back.

The text is `SKILL.md`, then each supporting file under a line with its path:

    …the bytes of SKILL.md…

    --- references/policy.md ---
    …the bytes of references/policy.md…

Every part ends in a newline, which is added where the file has none, and
changes nothing else. Files that are not UTF-8 text, which `resources/read`
answers as blobs, are left out; a note after the last part names them, under a
line that no file could have.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_FILES
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import FrontmatterError, InvalidUriError, LimitError
from skillwire.wire.core import JsonDict

LIST_PROMPTS: Final = "prompts/list"
GET_PROMPT: Final = "prompts/get"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"

MAX_PROMPT_BYTES: Final = 1024 * 1024
"""The longest text of a prompt, in bytes of UTF-8: a model must read all of it at once."""

MAX_PROMPT_NAME: Final = 128

# A path has no empty segment, so no file is called like this.
_NOTE_LABEL: Final = "/ not included, because they are not text: /"
_NOTE_HEAD: Final = f"\n--- {_NOTE_LABEL} ---\n"
_NOTE_LINE: Final = "- "

_SEPARATOR = re.compile(r"\n--- ([^\n]+) ---\n")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
# A stand-in for the skill's own URI, to try paths on.
_HERE = SkillUri.build("skill")


@dataclass(frozen=True, slots=True)
class PromptText:
    """The text of a skill's prompt, and what became of the skill's files.

    `omitted` are the paths of files that are no text. `ambiguous` are the
    paths of those that hold a line like the ones between files, so that a
    reader who takes the text apart sees more files than there are.
    """

    text: str
    omitted: tuple[str, ...]
    ambiguous: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What a prompt's text can be taken apart into.

    With `is_whole`, `skill_md` is all of the text: it could not be told what
    belongs to which file.
    """

    skill_md: str
    references: tuple[tuple[str, str], ...] = ()
    omitted: tuple[str, ...] = ()
    is_whole: bool = False


class Stitching:
    """The text of a prompt in the making: `SKILL.md` first, then one file after the other."""

    def __init__(self, skill_md: bytes) -> None:
        """Begin with a whole `SKILL.md`.

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
        """Add the file at `path` inside the skill, or note that it is no text.

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
        """Return the text with its note, if it needs one.

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


def stitched(skill_md: bytes, references: Iterable[tuple[str, bytes]]) -> bytes:
    """Put a skill's files together by the rule of the dialect (DUAL-02), whatever bytes they hold."""
    return b"".join([_ended(skill_md), *(_labelled(path, content) for path, content in references)])


def unstitched(text: str) -> PromptParts:
    """Take a prompt's text apart: the inverse of stitching, as far as there is one.

    Stitching the parts again gives the text to the byte, and for files without
    a line that looks like a separator the parts are those files, with the
    newline that stitching added. Nothing in a text tells a separator from a
    line in a file that looks like one, so a label is a claim of whoever wrote
    any of the files, and is worth no more than the text below it. Where labels
    contradict each other the text is kept whole.

    Raises:
        FrontmatterError: The text does not start like a `SKILL.md`, so it is no skill's.
    """
    try:
        body = parse_skill_md(text.encode("utf-8")).body
    except UnicodeEncodeError:
        message = "the text holds half of a surrogate pair"
        raise FrontmatterError(message, reason="not-utf8") from None
    content, omitted = _without_note(text, len(text) - len(body))
    references: list[tuple[str, str]] = []
    label, start = "", 0
    first = len(content)
    for found in _separators(content, len(text) - len(body)):
        if found.end() == len(content):
            break  # No part is empty, so this is a line of the part before.
        if label:
            references.append((label, content[start : found.start()]))
        else:
            first = found.start()
        label, start = found[1], found.end()
    if label:
        references.append((label, content[start:]))
    if not content.endswith("\n") or not _is_possible([*(path for path, _ in references), *omitted]):
        return PromptParts(text, is_whole=True)
    return PromptParts(content[:first], tuple(references), omitted)


def prompt_item(name: str, entry: SkillEntry) -> JsonDict:
    """Describe a skill's prompt as `prompts/list` carries it."""
    return {"name": name, "description": entry.frontmatter.description}


def prompt_result(entry: SkillEntry, text: str) -> JsonDict:
    """Make the result of `prompts/get`: all of the text in one message of the user (DUAL-05)."""
    return {
        "description": entry.frontmatter.description,
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }


def is_prompt_name(name: str) -> bool:
    """Tell whether a prompt of ours may have a name: one that needs no quoting anywhere."""
    return len(name) <= MAX_PROMPT_NAME and _NAME.fullmatch(name) is not None


def _ended(content: bytes) -> bytes:
    return content if content.endswith(b"\n") else content + b"\n"


def _labelled(path: str, content: bytes) -> bytes:
    return b"\n--- %s ---\n%s" % (path.encode(), _ended(content))


def _separators(text: str, position: int) -> Iterator[re.Match[str]]:
    """Find the lines from `position` on that stand between files, or look like it.

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
    """Cut off the note at the end, if there is one, and return the paths of the files it names."""
    head = text.rfind(_NOTE_HEAD, body)
    if head <= 0 or text[head - 1] != "\n":
        return text, ()
    lines = text[head + len(_NOTE_HEAD) :].split("\n")
    if lines.pop() or not lines or not all(line.startswith(_NOTE_LINE) for line in lines):
        return text, ()
    paths = tuple(line.removeprefix(_NOTE_LINE) for line in lines)
    return (text[:head], paths) if all(map(_is_path, paths)) else (text, ())


def _is_possible(paths: list[str]) -> bool:
    """Tell whether one skill could have files at all these paths."""
    known = set(paths)
    return (
        len(known) == len(paths) < MAX_FILES
        and SKILL_FILE not in known
        and not any(path.rpartition("/")[0] in known for path in _upwards(known))
    )


def _upwards(paths: Iterable[str]) -> Iterator[str]:
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
