"""What a skill says it needs around it: programs and libraries, and scopes of authorization.

The format has no fields for either, and `metadata` maps strings to strings, so
an author writes lines, as for everything else under our prefix:

    metadata:
      skillwire/dependencies: |
        pandas (>=2.2): Reads the tables.
        GNU Make
      skillwire/scopes: |
        tickets:read: Looks up what was promised.

A dependency is a name, a version in brackets and a description; a scope is a
name and a description. All but the name may be missing. It is a declaration
to be shown to whoever approves the skill: nothing is installed or granted by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skillwire.core.characters import quoted
from skillwire.core.finding import Finding, Line
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.yaml12 import JsonValue

DEPENDENCIES: Final = "skillwire/dependencies"
SCOPES: Final = "skillwire/scopes"

MAX_NEEDS: Final = 64
"""How many dependencies, and how many scopes, one skill may declare."""
MAX_NAME: Final = 256
MAX_DESCRIPTION: Final = 1024

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Dependency:
    """A program or library that must be there. What was not said is empty."""

    name: str
    version: str = ""
    description: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return _said(name=self.name, version=self.version, description=self.description)


@dataclass(frozen=True, slots=True)
class Scope:
    """Something that must be allowed, in the words of whoever grants it."""

    name: str
    description: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return _said(name=self.name, description=self.description)


@dataclass(frozen=True, slots=True)
class Needs:
    """What one skill declares, and what is wrong with it; a line that cannot be read counts as not there."""

    dependencies: tuple[Dependency, ...] = ()
    scopes: tuple[Scope, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dependencies or self.scopes)

    def to_meta(self) -> dict[str, JsonValue]:
        """Return what the resource of the skill's `SKILL.md` says of it in `_meta`."""
        meta: dict[str, JsonValue] = {}
        if self.dependencies:
            meta[DEPENDENCIES] = [needed.to_json() for needed in self.dependencies]
        if self.scopes:
            meta[SCOPES] = [scope.to_json() for scope in self.scopes]
        return meta


NO_NEEDS: Final = Needs()


def needs_in(frontmatter: Frontmatter, *, line: Line = None) -> Needs:
    """Read what a skill needs. Nothing raises: what cannot be read becomes a finding, at `line`."""
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
    """Return name, what stands in brackets, and description of each line of `metadata[key]`."""
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
        # Names of scopes hold no spaces, and no versions belong to them.
        is_odd = key == SCOPES and (bool(more) or " " in name)
        if not name or is_odd or name in found:
            findings.append(_unusable(key, f"has an unusable line: {quoted(text.strip()[:_SHOWN])}", line))
            continue
        found[name] = name, more, description
    return list(found.values())


def _parts(text: str) -> tuple[str, str, str]:
    """Take `name (more): description` apart; the name is empty when the line is not of this form.

    A name may hold colons, as names of scopes do; the one before a space, or at
    the end, is where the description begins.
    """
    head, _, description = f"{text.strip()} ".partition(": ")
    name, bracket, more = head.strip().partition("(")
    name = name.strip()
    if bracket and not more.endswith(")"):
        return "", "", ""
    more = more.removesuffix(")").strip()
    is_plain = not set(name + more) & set("()") and len(name) <= MAX_NAME and len(more) <= MAX_NAME
    return (name, more, description.strip()[:MAX_DESCRIPTION]) if is_plain else ("", "", "")


def _said(**members: str) -> dict[str, JsonValue]:
    return {name: value for name, value in members.items() if value}


def _unusable(key: str, problem: str, line: Line) -> Finding:
    fix = "write `name: description`" if key == SCOPES else "write `name (version): description`"
    return Finding("needs-invalid", f"`{key}` {problem}", line=line, fix=fix)
