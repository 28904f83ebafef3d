"""The origin of a skill, and the identity under which a host stores it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias, cast

from skillwire.core import Dialect, Finding, SkillEntry, quoted, visible
from skillwire.host.model.errors import ArgumentsNeededError, InvalidArgumentsError
from skillwire.wire.by_name import SkillArgument, parse_item


class OriginKind(StrEnum):
    """The kind of an origin: an MCP server, a web site, or a folder on this machine."""

    SERVER = "server"
    SITE = "site"
    LOCAL = "local"

    @property
    def words(self) -> str:
        """The kind's name for people."""
        return _WORDS[self]


_WORDS = {
    OriginKind.SERVER: "MCP server",
    OriginKind.SITE: "web site",
    OriginKind.LOCAL: "local folder",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A server, site or folder that skills come from.

    `label` is the name given by the user, never one given by a server, and
    `fingerprint` (`sha256:…`) identifies the endpoint or folder behind it: the
    same label for another endpoint is another origin. `made_from` is the
    address or program that the label was derived from, if the user gave none;
    it is shown, but not part of the identity.
    """

    kind: OriginKind
    label: str
    fingerprint: str
    made_from: str = field(default="", compare=False)

    @property
    def is_remote(self) -> bool:
        """Whether the skills come from a server or site, also when they are cached."""
        return self.kind is not OriginKind.LOCAL

    @property
    def introduction(self) -> str:
        """The origin's name for a question to the user, with the source of that name."""
        if not self.is_remote:
            return str(self)
        return f"{self} ({self.made_from})" if self.made_from else f"{self}, a name you gave it"

    def __str__(self) -> str:
        return f"{self.kind.words} {self.label}"


@dataclass(frozen=True, slots=True)
class SkillId:
    """A skill's identity: its origin, and the canonical URI of its `SKILL.md` there.

    Registry, approvals, cache and windows use this as the only key: a name,
    or a URI alone, does not identify the origin.
    """

    origin: Origin
    uri: str


# `KnownSkill`: a skill in the registry, before any of its files is fetched.


@dataclass(frozen=True, slots=True)
class KnownSkill:
    """One record of the registry: a skill's identity, reference and current entry.

    `reference` is the unique name of the skill in this host: the model sees it
    and passes it back. `is_listed` is false for a skill that only `skills/get`
    returns. `offline_since` is the date of the approval under which a cached
    copy is used while its server is unavailable. `directory` and `findings`
    are set for local skills: the folder, and remarks for the author.
    """

    id: SkillId
    reference: str
    entry: SkillEntry
    dialect: Dialect = Dialect.CORE
    is_listed: bool = True
    offline_since: str | None = None
    directory: Path | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The skill's name, or the name of its folder if it has none or is not known yet."""
        return self.entry.name or (self.directory.name if self.directory else self.entry.uri.name)

    @property
    def description(self) -> str:
        """The description as its author wrote it: untrusted text, to be escaped wherever it is shown."""
        return self.entry.frontmatter.description

    @property
    def is_remote(self) -> bool:
        return self.id.origin.is_remote


# Arguments of a skill: those it declares, and a check of those to be sent to its server.


ARGUMENTS: Final = "arguments"
"""The key in an entry's `extra` that holds the declared arguments."""

DIALECTS: Final = frozenset({Dialect.PRIMITIVE, Dialect.PROMPT})
MAX_CHARACTERS: Final = 10_000
"""The maximum total length of names and values: the user is shown every character that is sent."""

_MOST_NAMED = 20
_MOST_ROWS = 64
_LONGEST_NAME = 100
_LONGEST_DESCRIPTION = 200


def declared_arguments(skill: KnownSkill) -> tuple[SkillArgument, ...]:
    """Return the arguments a skill declares; none if its dialect does not support arguments."""
    if skill.dialect not in DIALECTS:
        return ()
    item, _ = parse_item({"name": skill.name or "-", ARGUMENTS: skill.entry.extra.get(ARGUMENTS, [])})
    return () if item is None else item.arguments


def checked_arguments(skill: KnownSkill, given: Mapping[str, object] | None) -> dict[str, str]:
    """Return the arguments to send for a skill.

    Raises:
        InvalidArgumentsError: The skill does not take them, or they are not strings or too long.
        ArgumentsNeededError: A required one is missing.
    """
    declared = {argument.name: argument for argument in declared_arguments(skill)}
    values = dict(given or {})
    if unknown := [name for name in values if name not in declared]:
        raise InvalidArgumentsError(_unknown_words(skill, unknown, declared), reference=skill.reference)
    for name, value in values.items():
        if not isinstance(value, str):
            raise _invalid(skill, f"the argument {quoted(name)} must be a string")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _invalid(skill, f"the argument {quoted(name)} is not valid Unicode")
    texts = cast("dict[str, str]", values)
    if sum(len(name) + len(value) for name, value in texts.items()) > MAX_CHARACTERS:
        raise _invalid(skill, f"the arguments have more than {MAX_CHARACTERS:,} characters together")
    missing = [argument for argument in declared.values() if argument.required and argument.name not in texts]
    if missing:
        raise ArgumentsNeededError(
            f"{skill.reference} needs arguments: {'; '.join(map(_described, missing[:_MOST_NAMED]))}",
            reference=skill.reference,
            arguments=missing,
        )
    return texts


def argument_rows(skill: KnownSkill) -> list[str]:
    """Return one line for each argument a skill declares, with its description, not escaped."""
    rows: list[str] = []
    for argument in declared_arguments(skill)[:_MOST_ROWS]:
        mark = " (required)" if argument.required else ""
        words = argument.description or argument.title
        rows.append(f"{argument.name}{mark}: {words}" if words else f"{argument.name}{mark}")
    return rows


def written(arguments: Mapping[str, str]) -> list[str]:
    """Format the arguments to be sent, one line each, with hidden characters escaped."""
    return [
        f"{visible(name)} = {visible(json.dumps(value, ensure_ascii=False))}"
        for name, value in arguments.items()
    ]


def _unknown_words(skill: KnownSkill, unknown: Iterable[str], declared: Iterable[str]) -> str:
    names = _named(unknown)
    if skill.dialect in DIALECTS:
        takes = f"takes {_named(declared)}" if declared else "takes no arguments"
        return f"{skill.reference} has no argument {names}; it {takes}"
    if not skill.is_remote:
        return f"a local skill takes no arguments: {names}"
    return f"{skill.reference} takes no arguments in the dialect {skill.dialect.value}: {names}"


def _invalid(skill: KnownSkill, message: str) -> InvalidArgumentsError:
    return InvalidArgumentsError(message, reference=skill.reference)


def _named(names: Iterable[str]) -> str:
    return ", ".join(quoted(name[:_LONGEST_NAME]) for name in list(names)[:_MOST_NAMED])


def _described(argument: SkillArgument) -> str:
    """Return an argument's name with its description, quoted and shortened."""
    name = quoted(argument.name[:_LONGEST_NAME])
    words = argument.description or argument.title
    if not words:
        return name
    return f"{name} ({json.dumps(visible(words[:_LONGEST_DESCRIPTION]), ensure_ascii=False)})"


# Token counts of texts: an estimate, unless the caller passes a tokenizer.


TokenCounter: TypeAlias = Callable[[str], int]
"""Returns the number of tokens of a text. It need not be additive, and may be slow: it is called rarely."""

BYTES_PER_TOKEN: Final = 4


def estimated_tokens(text: str) -> int:
    """Return the length in UTF-8 bytes divided by four, rounded up.

    This is the default, because every model has its own tokenizer. It is an
    estimate, not a bound: English prose usually takes slightly fewer tokens,
    and names, numbers, markup and rare words take more, in unusual texts about
    twice as many. To stay strictly within a limit, pass the model's own
    counter.
    """
    return -(-size_of(text) // BYTES_PER_TOKEN)


def size_of(text: str) -> int:
    """Return the length in UTF-8 bytes; a lone surrogate counts as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
