"""`Skill`: a skill as a source holds it, and the way to build one in code."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from skillwire.core.entry import SkillEntry, entry_findings
from skillwire.core.fields import field_findings, is_name
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter, SkillDocument, parse_skill_md
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.media import media_type_of
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri, check_segment
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidSkillError, InvalidUriError

_YAML_WORDS = frozenset({"null", "true", "false"})
# What JSON allows bare inside a string and YAML does not.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A supporting file: its path inside the skill, its bytes, and what kind of file it is."""

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
        content = body.encode("utf-8") if isinstance(body, str) else body
        if description is not None or frontmatter is not None or not _has_frontmatter(content):
            content = _synthesised(name, description, frontmatter, content)
        document = parse_skill_md(content)
        if document.frontmatter.name != name:
            raise InvalidSkillError(
                f"the skill is called {name!r} but its frontmatter says {document.frontmatter.name!r}"
            )
        uri = SkillUri.build(path or name, scheme=scheme)
        if uri.name != name:
            raise InvalidSkillError(
                f"the path {path!r} must end in the skill's name {name!r}",
                fix=f"use the path '{path}/{name}'",
            )
        errors = [finding for finding in field_findings(document.frontmatter) if finding.is_error]
        if errors:
            raise InvalidSkillError("; ".join(finding.message for finding in errors), fix=errors[0].fix)
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
        """Return this skill with one more supporting file, or a finding that says why not."""
        problem = self._path_problem(path)
        if problem:
            return Finding(
                "unusable-path", f"the path {path!r} {problem}", file=path, fix="choose another path"
            )
        data = content.encode("utf-8") if isinstance(content, str) else content
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
            for segment in path.split("/"):
                check_segment(segment)
        except InvalidUriError:
            return "leaves the skill or cannot be part of a URI"
        if path == SKILL_FILE:
            return "is the skill's own file"
        if any(file.path == path for file in self.files):
            return "is already taken"
        return ""


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
    if not description:
        raise InvalidSkillError(
            f"the skill {name!r} has neither frontmatter nor a description", fix="pass description=…"
        )
    fields: dict[str, JsonValue] = {"name": name, "description": description, **(extra or {})}
    return b"---\n" + write_frontmatter(fields).encode("utf-8") + b"---\n\n" + body


def write_frontmatter(fields: Mapping[str, JsonValue]) -> str:
    """Write fields as YAML that every reader understands alike.

    Values are spelled as JSON, which is YAML too, because PyYAML's own writer
    quotes by the rules of YAML 1.1 and would leave `1e3` or `0o17` bare.
    """
    lines: list[str] = []
    for key, value in fields.items():
        if key == "name" and isinstance(value, str) and is_name(value):
            lines.append(f"name: {value}")
        elif key == "metadata" and isinstance(value, dict) and value:
            lines.append("metadata:")
            lines += [f"  {_key(inner)}: {_json(item)}" for inner, item in value.items()]
        else:
            lines.append(f"{_key(key)}: {_json(value)}")
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return (
        key if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", key) and key.lower() not in _YAML_WORDS else _json(key)
    )


def _json(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
