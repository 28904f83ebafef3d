"""The rules for frontmatter fields, shared by publishing, validating and hosts."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from skillwire.core.characters import visible
from skillwire.core.finding import Finding, Line
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.yaml12 import JsonValue

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
KNOWN_FIELDS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
RESERVED_METADATA_PREFIX = "io.modelcontextprotocol/"
MAX_SAFE_INTEGER = 2**53 - 1

LineOf: TypeAlias = Callable[..., Line]
"""Tells the line on which a field stands, given the path of keys that leads to it."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WHEN = re.compile(r"\b(when|whenever|before|after|if|while|for|use)\b", re.IGNORECASE)


def is_name(text: str) -> bool:
    """Tell whether `text` is a name a skill may have over MCP."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def suggest_name(text: str) -> str:
    """Return the valid name nearest to `text`, or `my-skill` when nothing of it is usable."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")
    return name or "my-skill"


def no_line(*_path: str) -> Line:
    """A `LineOf` for frontmatter that came without a file."""
    return None


def field_findings(frontmatter: Frontmatter, line_of: LineOf = no_line) -> list[Finding]:
    """Check every frontmatter field against the Agent Skills rules."""
    fields = frontmatter.fields
    findings = [
        *_name_findings(fields, line_of),
        *_description_findings(fields, line_of),
        *_optional_findings(fields, line_of),
        *_metadata_findings(fields, line_of),
    ]
    for key in fields:
        if key not in KNOWN_FIELDS:
            shown = _shown(key)
            message = f"`{shown}` is not a field of the Agent Skills format; it is passed through unchanged"
            fix = f"keep it, or move it to `metadata.{shown}` as a string"
            findings.append(Finding("field-unknown", message, line=line_of(key), fix=fix))
    findings += _integer_findings(fields, line_of)
    return findings


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
    """Tell whether a name outside a-z is still one the Agent Skills text allows locally."""
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
    """Return a stranger's key for a message: short, on one line, and inert."""
    return visible(key if len(key) <= 40 else key[:37] + "...")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
