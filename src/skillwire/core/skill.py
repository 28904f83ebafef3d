"""`Skill`: a skill as a source holds it, and the way to build one in code."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from skillwire.core.entry import SkillEntry, entry_findings
from skillwire.core.errors import FrontmatterError, InvalidSkillError, InvalidUriError, LimitError
from skillwire.core.fields import published_findings
from skillwire.core.finding import SKILL_FILE, Finding
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.manifest import MAX_FILES, Manifest, ManifestFile
from skillwire.core.media import media_type_of
from skillwire.core.uri import DEFAULT_SCHEME, SkillUri
from skillwire.core.yaml12 import Frontmatter, JsonValue

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


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Words that are not strings in YAML 1.2, or in YAML 1.1, which many readers still use.
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
# Characters that need no escape in a JSON string, but do in YAML.
_UNPRINTABLE = "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A supporting file: its path inside the skill, its bytes, and its media type."""

    path: str
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True, init=False)
class Skill:
    """A complete skill held in memory. Values are immutable: each `with_…` returns a new one.

        Skill("refunds", path="acme/billing/refunds", description="… Use when …", body=STEPS)
            .with_reference("references/policy.md", policy)

    `body` is either a whole `SKILL.md` with frontmatter, which is then kept
    to the byte, or only the instructions; in that case the frontmatter is
    written from `name`, `description` and `frontmatter`.
    """

    uri: SkillUri
    skill_md: bytes
    document: SkillDocument
    files: tuple[SkillFile, ...]

    def __init__(
        self,
        name: str,
        *,
        body: str | bytes,
        description: str | None = None,
        path: str | None = None,
        frontmatter: Mapping[str, JsonValue] | None = None,
        scheme: str = DEFAULT_SCHEME,
    ) -> None:
        """Build a skill.

        Raises:
            InvalidSkillError: A rule of the format is broken, `path` does not
                end in `name`, or `name` differs from the frontmatter's.
        """
        content = _encoded(body)
        if description is not None or frontmatter is not None or not _has_frontmatter(content):
            content = _synthesised(name, description, frontmatter, content)
        document = parse_skill_md(content)
        if document.frontmatter.name != name:
            raise InvalidSkillError(
                f"the skill is named {name!r} but its frontmatter says {document.frontmatter.name!r}"
            )
        errors = [finding for finding in published_findings(document.frontmatter) if finding.is_error]
        if errors:
            raise InvalidSkillError("; ".join(finding.message for finding in errors), fix=errors[0].fix)
        uri = SkillUri.build(name if path is None else path, scheme=scheme)
        if uri.name != name:
            raise InvalidSkillError(
                f"the path {path!r} must end in the skill's name {name!r}",
                fix=f"use the path '{path}/{name}'",
            )
        self._fill(uri, content, document, ())

    @property
    def name(self) -> str:
        return self.document.frontmatter.name

    @property
    def frontmatter(self) -> Frontmatter:
        return self.document.frontmatter

    def with_reference(self, path: str, content: str | bytes, *, media_type: str | None = None) -> "Skill":
        """Return this skill with one more supporting file.

        Raises:
            InvalidSkillError: The path is empty, absolute, leaves the skill,
                has a scheme, or is taken.
        """
        outcome = self.try_with_reference(path, content, media_type=media_type)
        if isinstance(outcome, Finding):
            raise InvalidSkillError(outcome.message, fix=outcome.fix)
        return outcome

    def try_with_reference(
        self, path: str, content: str | bytes, *, media_type: str | None = None
    ) -> "Skill | Finding":
        """Return this skill with one more supporting file, or a finding if that is not possible."""
        problem = self._path_problem(path)
        if problem:
            return Finding(
                "unusable-path", f"the path {path!r} {problem}", file=path, fix="choose another path"
            )
        try:
            data = _encoded(content)
        except InvalidSkillError as error:
            return Finding("not-utf8", str(error), file=path, fix=error.fix)
        added = SkillFile(path, data, media_type or media_type_of(path))
        extended = object.__new__(Skill)
        extended._fill(self.uri, self.skill_md, self.document, (*self.files, added))
        return extended

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path` inside the skill.

        Raises:
            KeyError: There is no such file.
        """
        if path == SKILL_FILE:
            return self.skill_md
        for file in self.files:
            if file.path == path:
                return file.content
        raise KeyError(path)

    def prompt_text(self) -> str:
        """Return the whole skill as one text: exactly what a server serves as its prompt.

        It is `SKILL.md`, then each file under a line with its path, in the
        order in which they were added; a note at the end names files that are
        not text. Reading the same resources one by one and joining them by the
        same rule gives the same bytes.

        Raises:
            LimitError: It is longer than a prompt may be, which is 1 MiB.
        """
        builder = PromptBuilder(self.skill_md)
        for file in self.files:
            builder.add(file.path, file.content)
        return builder.finish().text

    def entry(self) -> SkillEntry:
        """Return what is published about this skill."""
        files = [ManifestFile.of(self.uri.text, self.skill_md)]
        files += [ManifestFile.of(self.uri.join(file.path), file.content) for file in self.files]
        return SkillEntry(self.uri, self.frontmatter, Manifest.of(files))

    def findings(self) -> list[Finding]:
        """Check what would be published."""
        return entry_findings(self.entry())

    def _fill(
        self, uri: SkillUri, skill_md: bytes, document: SkillDocument, files: tuple[SkillFile, ...]
    ) -> None:
        object.__setattr__(self, "uri", uri)
        object.__setattr__(self, "skill_md", skill_md)
        object.__setattr__(self, "document", document)
        object.__setattr__(self, "files", files)

    def _path_problem(self, path: str) -> str:
        if not path:
            return "is empty"
        if path.startswith("/"):
            return "is absolute"
        if "://" in path:
            return "has a scheme"
        try:
            self.uri.join(path)
        except InvalidUriError:
            return "leaves the skill or cannot be part of a URI"
        taken = [SKILL_FILE, *(file.path for file in self.files)]
        if path in taken:
            return "is already taken"
        if any(f"{path}/".startswith(f"{other}/") or other.startswith(f"{path}/") for other in taken):
            return "would be both a file and a folder"
        return ""


def _encoded(text: str | bytes) -> bytes:
    try:
        return text.encode("utf-8") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise InvalidSkillError(
            "the text contains a lone surrogate", fix="pass the bytes of the file instead"
        ) from error


def _has_frontmatter(content: bytes) -> bool:
    return re.match(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n", content) is not None


def _synthesised(
    name: str, description: str | None, extra: Mapping[str, JsonValue] | None, body: bytes
) -> bytes:
    """Write a SKILL.md for instructions that came without frontmatter."""
    if _has_frontmatter(body):
        raise InvalidSkillError(
            f"the body of {name!r} already has frontmatter",
            fix="leave out description and frontmatter, or pass only the instructions",
        )
    fields: dict[str, JsonValue] = {"name": name, "description": description, **(extra or {})}
    if description is None and "description" not in (extra or {}):
        raise InvalidSkillError(
            f"the skill {name!r} has neither frontmatter nor a description", fix="pass description=…"
        )
    if description is not None and fields["description"] != description:
        raise InvalidSkillError(f"the skill {name!r} has two descriptions", fix="pass one of them")
    return b"---\n" + write_frontmatter(fields).encode("utf-8") + b"---\n\n" + body


def write_frontmatter(fields: Mapping[str, JsonValue]) -> str:
    """Write fields as YAML that every reader interprets the same way.

    Values are spelled as JSON, which is YAML too, because PyYAML's own writer
    quotes by the rules of YAML 1.1 and would leave `1e3` or `0o17` bare.
    """
    lines: list[str] = []
    for key, value in fields.items():
        if key == "name" and isinstance(value, str):
            lines.append(f"name: {_plain(value)}")
        elif key == "metadata" and isinstance(value, dict) and value:
            lines.append("metadata:")
            lines += [f"  {_plain(inner)}: {_json(item)}" for inner, item in value.items()]
        else:
            lines.append(f"{_plain(key)}: {_json(value)}")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Write a key or a name, in quotes only where some reader would not read it as a string."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else _json(text)


def _json(value: JsonValue) -> str:
    # Imported here because few programs build skills, and the import would slow down all others.
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidSkillError("a number has no JSON form", fix="write it as a string") from None
    return re.sub(_UNPRINTABLE, lambda found: f"\\u{ord(found.group()):04x}", text)
