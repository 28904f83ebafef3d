"""The options of a `Host`, by subject: what it decides and how much it allows.

Where it stores its files is `Storage`, in `skillwire.host.state.places`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar, cast, get_args

from skillwire.host.approval.consent import DynamicPolicy, PromptLimits
from skillwire.host.calls import ConnectionLimits
from skillwire.host.model import ConfigError, ProvenanceProvider, ShowRule, Visible
from skillwire.host.state.content import MAX_BYTES_PER_ORIGIN, MAX_CACHE_BYTES
from skillwire.host.use.fetch import NO_ARCHIVES, ArchivePolicy
from skillwire.host.use.present import DEFAULT_PAGE_LENGTH
from skillwire.search.scores import Ranker

DEFAULT_WAIT_SECONDS = 60.0  # `npx` or `uvx` may have to download a server first.

Option = TypeVar("Option")


def _no_rules() -> Mapping[str, ShowRule]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The rules of an embedding program about skills: which are visible, and how they may be used.

    Attributes:
        frozen: Let the project's lock alone decide; nobody is asked.
        dynamic: Whether skills without digests are declined, or asked about on every load.
        granted_by: Who approves; recorded with each approval.
        show: How skills are shown to the model, by reference, `label/*` or `*`. Comes before
            the settings of a configuration file.
        visible: Show the model all skills, or only those the user has approved before.
        top_level_only: Leave out skills inside other skills.
        by_priority: List the skills of a server by the priority that the server gives them.
        archives: Which archives are unpacked; none by default.
        provenance: Asked about each skill before it is loaded; can veto the load.
        ranker: Puts the first matches of a search into another order.
    """

    frozen: bool = False
    dynamic: DynamicPolicy = "decline"
    granted_by: str = ""
    show: Mapping[str, ShowRule] = field(default_factory=_no_rules, hash=False)
    visible: Visible = "all"
    top_level_only: bool = False
    by_priority: bool = False
    archives: ArchivePolicy = NO_ARCHIVES
    provenance: ProvenanceProvider | None = None
    ranker: Ranker | None = None

    def __post_init__(self) -> None:
        _require_one_of("HostPolicy.dynamic", self.dynamic, get_args(DynamicPolicy))
        _require_one_of("HostPolicy.visible", self.visible, get_args(Visible))
        require_kind("HostPolicy.archives", self.archives, ArchivePolicy)
        object.__setattr__(self, "show", _parsed_rules(self.show))


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits on the questions, requests and data of servers, and on the time that a host waits for them.

    Attributes:
        prompts: How often the user is asked.
        connections: What each connection to a server may cost.
        cache_bytes: How much of what was read from servers stays on the disk, in all.
        cache_bytes_per_server: How much of that stays of one server.
        page_length: Bytes of UTF-8 of a skill's text in one page.
        wait_seconds: How long opening the host waits for the first listings; with 0 no server is
            asked before `refresh`.
    """

    prompts: PromptLimits = field(default_factory=PromptLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    cache_bytes: int = MAX_CACHE_BYTES
    cache_bytes_per_server: int = MAX_BYTES_PER_ORIGIN
    page_length: int = DEFAULT_PAGE_LENGTH
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        require_kind("HostLimits.prompts", self.prompts, PromptLimits)
        require_kind("HostLimits.connections", self.connections, ConnectionLimits)
        _require_number("HostLimits.cache_bytes", self.cache_bytes, least=0)
        _require_number("HostLimits.cache_bytes_per_server", self.cache_bytes_per_server, least=0)
        _require_number("HostLimits.page_length", self.page_length, least=1)
        _require_number("HostLimits.wait_seconds", self.wait_seconds, least=0)


def require_kind(name: str, value: object, kind: type[Option], *, fix: str = "") -> Option:
    """Return an option that is of the expected class.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(value, kind):
        raise ConfigError(
            f"`{name}` must be of type {kind.__name__}, not {type(value).__name__}",
            fix=fix or f"pass {kind.__name__}(...)",
        )
    return value


def _require_one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        words = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"`{name}` must be {words}, not {value!r}", fix=f"use {words}")


def _require_number(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ConfigError(
            f"`{name}` must be a number, {least} or more, not {value!r}",
            fix=f"use a number of at least {least}",
        )


def _parsed_rules(show: object) -> Mapping[str, ShowRule]:
    fix = 'pass a dict such as {"label/*": ShowRule.PIN}'
    rules = cast(Mapping[str, object], require_kind("HostPolicy.show", show, Mapping, fix=fix))
    choices = tuple(rule.value for rule in ShowRule)
    for key, value in rules.items():
        _require_one_of(f"HostPolicy.show[{key!r}]", value, choices)
    return MappingProxyType({key: ShowRule(value) for key, value in rules.items()})
