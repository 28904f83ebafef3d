"""What an author declares for dialects that know skills by name, read from the frontmatter.

The format has no fields for these things, and `metadata` maps strings to
strings, so what needs more than one word is written in lines:

    metadata:
      version: "1.2.0"
      tags: finance, pdf
      skillwire/arguments: |
        region! (Region): Whose tax rules apply.
        currency: Three letters.
      skillwire/tools: read_pdf write_pdf
      skillwire/prompts: greet
      skillwire/resources: file:///forms/index.csv
      skillwire/files: |
        references/rules.md (tax-rules): Tax rules by region.

An argument is a name, `!` when it is required, a title in brackets and a
description; all but the name may be missing. A line about a file is its path,
other names for it in brackets, and a description.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.members import MAX_ITEMS, MAX_TEXT
from skillwire.wire.primitive import MAX_NAME, MAX_URI, SkillArgument, SkillDependencies

PREFIX: Final = "skillwire/"
ARGUMENTS: Final = "skillwire/arguments"
TOOLS: Final = "skillwire/tools"
PROMPTS: Final = "skillwire/prompts"
RESOURCES: Final = "skillwire/resources"
FILES: Final = "skillwire/files"

MAX_ARGUMENTS: Final = 64

_ARGUMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63})(!?)")
_NO_NOTES: Mapping[str, "FileNote"] = {}


@dataclass(frozen=True, slots=True)
class FileNote:
    """What is said about a file: other names for it, and a description that may be empty."""

    aliases: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """What one skill declares, and what is wrong with it; whatever is wrong counts as not declared."""

    title: str | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    arguments: tuple[SkillArgument, ...] = ()
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    files: Mapping[str, FileNote] = field(default_factory=lambda: _NO_NOTES)
    findings: tuple[Finding, ...] = ()


def declared_in(frontmatter: Frontmatter) -> Declared:
    """Read what a skill declares. Nothing raises: what cannot be read becomes a finding."""
    fields, findings = frontmatter.fields, list[Finding]()
    metadata = fields.get("metadata")
    more: Mapping[str, JsonValue] = metadata if isinstance(metadata, dict) else {}
    return Declared(
        title=_text(fields, more, "title"),
        version=_text(fields, more, "version"),
        tags=_words(fields, more, "tags") or _words(fields, more, "keywords"),
        arguments=_arguments(more.get(ARGUMENTS), findings),
        dependencies=_dependencies(more, findings),
        files=file_notes(more.get(FILES), findings),
        findings=tuple(findings),
    )


def file_notes(value: JsonValue, findings: list[Finding]) -> Mapping[str, FileNote]:
    """Read lines about files, by path; a line that cannot be read is left out with a finding."""
    if value is None:
        return _NO_NOTES
    found: dict[str, FileNote] = {}
    for line in _lines(value):
        path, names, description = _parts(line)
        if not path or path in found or len(found) >= 2 * MAX_ITEMS:
            _remark(findings, "file-notes-invalid", f"`{FILES}` has an unusable line: {quoted(line[:80])}")
            continue
        aliases = tuple(alias.strip() for alias in names.split(",") if alias.strip())
        found[path] = FileNote(aliases[:MAX_ITEMS], description)
    return found


def _text(fields: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue], name: str) -> str | None:
    for value in (fields.get(name), metadata.get(name)):
        if isinstance(value, str) and value.strip() and len(value) <= MAX_NAME:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
            return str(value)
    # A number such as 1.10 has lost its last digit already, so it is no version.
    return None


def _words(fields: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    for value in (fields.get(name), metadata.get(name)):
        parts: list[JsonValue] = list(value) if isinstance(value, list) else []
        if isinstance(value, str):
            parts += split_words(value)
        words = [part for part in parts if isinstance(part, str) and 0 < len(part) <= MAX_NAME]
        if words:
            return tuple(dict.fromkeys(words))[:MAX_ITEMS]
    return ()


def split_words(text: str) -> list[str]:
    """Split at commas and line ends, or at spaces where there are none of them."""
    parts = re.split(r"[,\n]", text) if re.search(r"[,\n]", text.strip()) else text.split()
    return [part.strip() for part in parts if part.strip()]


def _arguments(value: JsonValue, findings: list[Finding]) -> tuple[SkillArgument, ...]:
    """Read declared arguments: all, or none, because a template with half of them misleads."""
    if value is None:
        return ()
    found: dict[str, SkillArgument] = {}
    for line in _lines(value):
        head, title, description = _parts(line)
        match = _ARGUMENT.fullmatch(head)
        problem = ""
        if match is None:
            problem = f"has an unusable line: {quoted(line[:80])}"
        elif match[1] in found:
            problem = f"has two arguments {quoted(match[1])}"
        elif len(found) >= MAX_ARGUMENTS:
            problem = f"has more than {MAX_ARGUMENTS} arguments"
        if match is None or problem:
            _remark(
                findings, "arguments-invalid", f"`{ARGUMENTS}` {problem}", fix="write `name!: description`"
            )
            return ()
        found[match[1]] = SkillArgument(match[1], title or None, description or None, required=bool(match[2]))
    return tuple(found.values())


def _dependencies(metadata: Mapping[str, JsonValue], findings: list[Finding]) -> SkillDependencies:
    lists: list[tuple[str, ...]] = []
    for key, longest in ((TOOLS, MAX_NAME), (PROMPTS, MAX_NAME), (RESOURCES, MAX_URI)):
        value = metadata.get(key)
        words = tuple(dict.fromkeys(split_words(value))) if isinstance(value, str) else ()
        if len(words) > MAX_ITEMS or any(len(word) > longest for word in words):
            _remark(findings, "dependencies-invalid", f"`{key}` has too many or too long names")
            words = ()
        lists.append(words)
    return SkillDependencies(*lists)


def _parts(line: str) -> tuple[str, str, str]:
    """Take a line `name (more): description` apart; the name is empty when the line is not of this form."""
    head, _, description = line.partition(":")
    name, bracket, more = head.strip().partition("(")
    if bracket and not more.endswith(")"):
        return "", "", ""
    more = more.removesuffix(")").strip()
    is_plain = not re.search(r"[()]", name + more) and len(head) <= MAX_URI
    return (name.strip(), more, description.strip()[:MAX_TEXT]) if is_plain else ("", "", "")


def _lines(value: JsonValue) -> list[str]:
    """Return the lines of a text that are not empty; of anything else, one line nobody can read."""
    if not isinstance(value, str):
        return ["\0"]
    return [line.strip() for line in value.splitlines() if line.strip()]


def _remark(findings: list[Finding], code: str, message: str, *, fix: str = "") -> None:
    if len(findings) < MAX_ITEMS:
        findings.append(Finding(code, message, fix=fix))
