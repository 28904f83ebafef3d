"""The origin of a skill, and the identity under which a host stores it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

from skillwire.core import Dialect, Finding, HiddenCharacter, SkillEntry


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
        return f"{_WORDS[self.kind]} {self.label}"


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

    @property
    def takes_arguments(self) -> bool:
        """Whether its dialect has arguments of skills."""
        return self.dialect in (Dialect.PRIMITIVE, Dialect.PROMPT)


@dataclass(frozen=True, slots=True)
class Preview:
    """A file of a skill shown to a person: verified against the entry, and not loaded.

    `text` has its hidden characters escaped; it is None if the file is not text.
    """

    skill: KnownSkill
    uri: str
    content: bytes
    text: str | None
    hidden: tuple[HiddenCharacter, ...]


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
