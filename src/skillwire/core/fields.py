"""The rules for frontmatter fields, shared by publishing, validating and hosts."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, TypeAlias

from skillwire.core.characters import quoted, visible
from skillwire.core.finding import Finding, Line
from skillwire.core.yaml12 import Frontmatter, JsonValue

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
KNOWN_FIELDS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
RESERVED_METADATA_PREFIX = "io.modelcontextprotocol/"
MAX_SAFE_INTEGER = 2**53 - 1

LineOf: TypeAlias = Callable[..., Line]
"""Returns the line of a field, given its path of keys."""

# How similar a key and a field must be, from 0 to 1, for the key to count as a misspelling.
_NEAR = 0.85
_MAX_MISSPELLED = 20
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WHEN = re.compile(r"\b(when|whenever|before|after|if|while|for|use)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SkillArgument:
    """One value that the instructions of a skill take, by name."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False

    def to_json(self) -> dict[str, JsonValue]:
        members: dict[str, JsonValue] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "required": self.required,
        }
        return {key: value for key, value in members.items() if value is not None}


def is_name(text: str) -> bool:
    """Return whether `text` is a valid skill name over MCP."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def suggest_name(text: str) -> str:
    """Return the valid name nearest to `text`, or `my-skill` when nothing of it is usable."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")
    return name or "my-skill"


LISTED: Final = "skillwire/listed"
PINNED: Final = "skillwire/pinned"


def metadata_flag(frontmatter: Frontmatter, key: str) -> bool | None:
    """Return a flag in `metadata`; None when it is absent or not a boolean.

    `metadata` maps strings to strings, and authors forget the quotes, so both are read.
    """
    metadata = frontmatter.fields.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def no_line(*_path: str) -> Line:
    """Return None: a `LineOf` for frontmatter without a file."""
    return None


def field_findings(frontmatter: Frontmatter, line_of: LineOf = no_line) -> list[Finding]:
    """Check every frontmatter field against the Agent Skills rules."""
    fields = frontmatter.fields
    findings = [
        *_name_findings(fields, line_of),
        *_description_findings(fields, line_of),
        *_optional_findings(fields, line_of),
        *_metadata_findings(fields, line_of),
        *_version_findings(fields, line_of),
    ]
    findings += [_unknown_field(key, line_of(key)) for key in fields if key not in KNOWN_FIELDS]
    findings += _integer_findings(fields, line_of)
    return findings


def _unknown_field(key: str, line: Line) -> Finding:
    shown = _shown(key)
    if (nearest := _nearest_field(key)) is not None:
        message = f"`{shown}` is not a field of the Agent Skills format, so no client uses it"
        return Finding("field-misspelled", message, line=line, fix=f"write `{nearest}`")
    message = f"`{shown}` is not a field of the Agent Skills format; it is passed through unchanged"
    fix = f"keep it, or move it to `metadata.{shown}` as a string"
    return Finding("field-unknown", message, line=line, fix=fix)


@lru_cache(maxsize=1024)
def _nearest_field(key: str) -> str | None:
    """Return the field that a key such as `allowed_tools`, `Licence` or `lisence` misspells, or None."""
    if len(key) > _MAX_MISSPELLED:
        return None
    spelling = re.sub(r"[ _]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", key)).lower()
    if near := get_close_matches(spelling, sorted(KNOWN_FIELDS), n=1, cutoff=_NEAR):
        return near[0]
    letters = sorted(spelling)
    return next((field for field in sorted(KNOWN_FIELDS) if sorted(field) == letters), None)


def published_findings(frontmatter: Frontmatter) -> list[Finding]:
    """Check every frontmatter field of a skill that is served over MCP, where `name` is ASCII (OPEN-02)."""
    return [
        replace(finding, code="name-invalid") if finding.code == "name-unicode" else finding
        for finding in field_findings(frontmatter)
    ]


def _name_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    name = fields.get("name")
    line = line_of("name")
    if "name" not in fields or name is None or name == "":
        return [
            Finding(
                "name-missing",
                "`name` is missing",
                line=line,
                fix="add `name: …`, equal to the folder's name",
            )
        ]
    if not isinstance(name, str):
        return [Finding("name-invalid", "`name` is not a string", line=line, fix="put the name in quotes")]
    if is_name(name):
        return []
    if _is_local_name(name):
        message = f"`name` {name!r} has letters beyond a-z: it works from a local folder but not over MCP"
        return [Finding("name-unicode", message, line=line, fix=f"set `name: {suggest_name(name)}`")]
    return [
        Finding(
            "name-invalid",
            f"`name` {_shortened(name)} {_name_problem(name)}",
            line=line,
            fix=f"set `name: {suggest_name(name)}` and rename the folder to match",
        )
    ]


def _is_local_name(name: str) -> bool:
    """Return whether a name outside a-z is one the Agent Skills specification allows locally."""
    return (
        not name.isascii()
        and len(name) <= MAX_NAME
        and unicodedata.normalize("NFKC", name) == name == name.lower()
        and all(part and part.isalnum() for part in name.split("-"))
    )


def _name_problem(name: str) -> str:
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if name != name.lower():
        return "has uppercase letters"
    if name.startswith("-") or name.endswith("-"):
        return "starts or ends with a hyphen"
    if "--" in name:
        return "has two hyphens in a row"
    return "has characters other than a-z, 0-9 and hyphens"


def _description_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    description = fields.get("description")
    line = line_of("description")
    if not isinstance(description, str) or not description.strip():
        is_empty = not description or isinstance(description, str)
        message = "`description` is missing or empty" if is_empty else "`description` is not a string"
        return [
            Finding(
                "description-missing", message, line=line, fix="say what the skill does and when to use it"
            )
        ]
    if len(description) > MAX_DESCRIPTION:
        message = f"`description` has {len(description)} characters; at most {MAX_DESCRIPTION} are allowed"
        return [Finding("description-too-long", message, line=line, fix="move detail into the body")]
    if not _WHEN.search(description):
        message = "`description` does not say when to use the skill, so agents may never pick it"
        return [
            Finding("description-vague", message, line=line, fix="add a sentence that starts `Use when …`")
        ]
    return []


def _optional_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    findings: list[Finding] = []
    if "license" in fields and not isinstance(fields["license"], str):
        findings.append(
            Finding(
                "license-invalid",
                "`license` is not a string",
                line=line_of("license"),
                fix="put it in quotes",
            )
        )
    if "compatibility" in fields:
        value = fields["compatibility"]
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_COMPATIBILITY:
            length = f"; it has {len(value)}" if isinstance(value, str) else ""
            findings.append(
                Finding(
                    "compatibility-invalid",
                    f"`compatibility` must be a string of 1 to {MAX_COMPATIBILITY} characters{length}",
                    line=line_of("compatibility"),
                    fix="shorten it, or remove it: most skills do not need it",
                )
            )
    if "allowed-tools" in fields and not isinstance(fields["allowed-tools"], str):
        findings.append(
            Finding(
                "allowed-tools-invalid",
                "`allowed-tools` must be one string with spaces between the tools",
                line=line_of("allowed-tools"),
                fix="write it as `allowed-tools: Read Grep`",
            )
        )
    return findings


def _metadata_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    metadata = fields.get("metadata")
    if "metadata" not in fields:
        return []
    if not isinstance(metadata, dict):
        message = "`metadata` is not a mapping"
        fix = "write it as indented `key: value` lines, or remove it"
        return [Finding("metadata-invalid", message, line=line_of("metadata"), fix=fix)]
    findings: list[Finding] = []
    for key, value in metadata.items():
        line, shown = line_of("metadata", key), _shown(key)
        if not isinstance(value, str):
            message = (
                f"`metadata.{shown}` is {_kind(value)}, not a string; clients may refuse a listing over it"
            )
            findings.append(Finding("metadata-invalid", message, line=line, fix=_metadata_fix(shown, value)))
        if key.startswith(RESERVED_METADATA_PREFIX):
            message = f"`metadata.{shown}` uses a prefix reserved for MCP extensions, and none defines it"
            findings.append(Finding("metadata-reserved", message, line=line, fix="use a prefix of your own"))
    return findings


def _version_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    """Check `version`, which some clients show although the format does not define it."""
    version = fields.get("version")
    if isinstance(version, bool) or not isinstance(version, int | float):
        return []
    message = "`version` is a number, so 1.10 is the same as 1.1; one with a point is not shown to clients"
    fix = f'put it in quotes: `version: "{version}"`'
    return [Finding("version-number", message, line=line_of("version"), fix=fix)]


def _metadata_fix(key: str, value: JsonValue) -> str:
    if isinstance(value, dict):
        return f"flatten it to `{key}.…` keys with string values"
    if isinstance(value, list):
        return f'write it as one string: `{key}: "…, …"`'
    if value is None:
        return f'write `{key}: ""`, or remove it'
    return f'write `{key}: "{str(value).lower() if isinstance(value, bool) else value}"`'


def _integer_findings(fields: Mapping[str, JsonValue], line_of: LineOf) -> list[Finding]:
    findings: list[Finding] = []
    for key, value in fields.items():
        if _has_big_integer(value):
            message = f"`{_shown(key)}` holds an integer that JavaScript clients cannot hold exactly"
            findings.append(Finding("big-integer", message, line=line_of(key), fix="put it in quotes"))
    return findings


def _has_big_integer(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_big_integer, value.values()))
    if isinstance(value, list):
        return any(map(_has_big_integer, value))
    return isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER


def _kind(value: JsonValue) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "a mapping"


def _shown(key: str) -> str:
    """Return an untrusted key for a message: short, on one line, and without control characters."""
    return visible(key if len(key) <= 40 else key[:37] + "...")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


# The audience and the priority of a skill, as its author declares them.


AUDIENCE: Final = "skillwire/audience"
PRIORITY: Final = "skillwire/priority"
AUDIENCES: Final = ("user", "assistant")

_NUMBER = re.compile(r"[01](?:\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class AuthorAnnotations:
    """What an author declares, and findings about it. Empty and None mean: not declared."""

    audience: tuple[str, ...] = ()
    priority: float | None = None
    findings: tuple[Finding, ...] = ()


NO_ANNOTATIONS: Final = AuthorAnnotations()


def annotations_in(frontmatter: Frontmatter, *, line: Line = None) -> AuthorAnnotations:
    """Read the annotations of a skill. Never raises: an invalid value becomes a finding, at `line`."""
    metadata = frontmatter.fields.get("metadata")
    if not isinstance(metadata, dict) or not metadata.keys() & {AUDIENCE, PRIORITY}:
        return NO_ANNOTATIONS
    findings: list[Finding] = []
    audience = _audience(metadata.get(AUDIENCE), findings, line)
    priority = _priority(metadata.get(PRIORITY), findings, line)
    return AuthorAnnotations(audience, priority, tuple(findings))


def _audience(value: JsonValue, findings: list[Finding], line: Line) -> tuple[str, ...]:
    if value is None:
        return ()
    words = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else []
    if not words or not set(words) <= set(AUDIENCES):
        _add_finding(
            findings, AUDIENCE, value, "write `user`, `assistant`, or both with a comma between them", line
        )
        return ()
    return tuple(audience for audience in AUDIENCES if audience in words)


def _priority(value: JsonValue, findings: list[Finding], line: Line) -> float | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()) or float(value) > 1:
        _add_finding(findings, PRIORITY, value, 'write a number from 0 to 1 in quotes, such as "0.9"', line)
        return None
    return float(value)


def _add_finding(findings: list[Finding], key: str, value: JsonValue, fix: str, line: Line) -> None:
    shown = quoted(str(value)[:80])
    findings.append(Finding("annotations-invalid", f"`{key}` cannot be {shown}", line=line, fix=fix))


# What a skill declares to need: programs and libraries, and authorization scopes.


DEPENDENCIES: Final = "skillwire/dependencies"
SCOPES: Final = "skillwire/scopes"

MAX_NEEDS: Final = 64
"""How many dependencies, and how many scopes, one skill may declare."""
MAX_NEED_NAME: Final = 256
MAX_NEED_DESCRIPTION: Final = 1024

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Dependency:
    """A program or library that must be installed. Fields that were not declared are empty."""

    name: str
    version: str = ""
    description: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return _non_empty(name=self.name, version=self.version, description=self.description)


@dataclass(frozen=True, slots=True)
class Scope:
    """An authorization scope, as the authorization server names it."""

    name: str
    description: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return _non_empty(name=self.name, description=self.description)


@dataclass(frozen=True, slots=True)
class Needs:
    """What one skill declares, and findings about it; a line that cannot be read is left out."""

    dependencies: tuple[Dependency, ...] = ()
    scopes: tuple[Scope, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dependencies or self.scopes)

    def to_meta(self) -> dict[str, JsonValue]:
        """Return the declarations as the resource of the skill's `SKILL.md` has them in `_meta`."""
        meta: dict[str, JsonValue] = {}
        if self.dependencies:
            meta[DEPENDENCIES] = [needed.to_json() for needed in self.dependencies]
        if self.scopes:
            meta[SCOPES] = [scope.to_json() for scope in self.scopes]
        return meta


NO_NEEDS: Final = Needs()


def needs_in(frontmatter: Frontmatter, *, line: Line = None) -> Needs:
    """Read what a skill needs. Never raises: what cannot be read becomes a finding, at `line`."""
    metadata = frontmatter.fields.get("metadata")
    if not isinstance(metadata, dict) or not metadata.keys() & {DEPENDENCIES, SCOPES}:
        return NO_NEEDS
    findings: list[Finding] = []
    dependencies = tuple(Dependency(*parts) for parts in _read(metadata, DEPENDENCIES, findings, line))
    scopes = tuple(Scope(name, words) for name, _, words in _read(metadata, SCOPES, findings, line))
    return Needs(dependencies, scopes, tuple(findings))


def _read(
    metadata: Mapping[str, JsonValue], key: str, findings: list[Finding], line: Line
) -> list[tuple[str, str, str]]:
    """Return name, bracketed text, and description of each line of `metadata[key]`."""
    value = metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, str):
        findings.append(_unusable(key, "is not text", line))
        return []
    found: dict[str, tuple[str, str, str]] = {}
    for text in value.splitlines():
        if not text.strip():
            continue
        if len(found) >= MAX_NEEDS:
            findings.append(_unusable(key, f"has more than {MAX_NEEDS} lines", line))
            break
        name, more, description = _parts(text)
        # Scopes have no spaces in their names, and no versions.
        is_odd = key == SCOPES and (bool(more) or " " in name)
        if not name or is_odd or name in found:
            findings.append(_unusable(key, f"has an unusable line: {quoted(text.strip()[:_SHOWN])}", line))
            continue
        found[name] = name, more, description
    return list(found.values())


def _parts(text: str) -> tuple[str, str, str]:
    """Split `name (more): description`; the name is empty when the line is not of this form.

    A name may contain colons, as names of scopes do; the description starts
    after a colon that is followed by a space or ends the line.
    """
    head, _, description = f"{text.strip()} ".partition(": ")
    name, bracket, more = head.strip().partition("(")
    name = name.strip()
    if bracket and not more.endswith(")"):
        return "", "", ""
    more = more.removesuffix(")").strip()
    is_plain = not set(name + more) & set("()") and len(name) <= MAX_NEED_NAME and len(more) <= MAX_NEED_NAME
    return (name, more, description.strip()[:MAX_NEED_DESCRIPTION]) if is_plain else ("", "", "")


def _non_empty(**members: str) -> dict[str, JsonValue]:
    return {name: value for name, value in members.items() if value}


def _unusable(key: str, problem: str, line: Line) -> Finding:
    fix = "write `name: description`" if key == SCOPES else "write `name (version): description`"
    return Finding("needs-invalid", f"`{key}` {problem}", line=line, fix=fix)
