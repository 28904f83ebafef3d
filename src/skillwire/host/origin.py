"""Where a host got a skill, and the only key under which it remembers one."""

from dataclasses import dataclass
from enum import StrEnum


class OriginKind(StrEnum):
    """What sort of place skills come from: an MCP server, a web site, or a folder on this machine."""

    SERVER = "server"
    SITE = "site"
    LOCAL = "local"

    @property
    def words(self) -> str:
        """What to call it."""
        return _WORDS[self]


_WORDS = {
    OriginKind.SERVER: "MCP server",
    OriginKind.SITE: "web site",
    OriginKind.LOCAL: "local folder",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A place skills come from, as this host knows it.

    `label` is what the user calls it, never what a server says of itself, and
    `fingerprint` (`sha256:…`) names the endpoint or folder behind the label: a
    label that is given to another endpoint is another origin.
    """

    kind: OriginKind
    label: str
    fingerprint: str

    @property
    def is_remote(self) -> bool:
        """Whether skills arrive from elsewhere; cached ones do too, however long ago that was."""
        return self.kind is not OriginKind.LOCAL

    def __str__(self) -> str:
        return f"{self.kind.words} {self.label}"


@dataclass(frozen=True, slots=True)
class SkillId:
    """A skill's identity: its origin, and the canonical URI of its `SKILL.md` there.

    Registry, approvals, cache and windows know skills by this and nothing
    else: a name, or a URI alone, says nothing about whose skill it is.
    """

    origin: Origin
    uri: str
