"""The servers of a host: their endpoints, each with a fingerprint, and the user's settings for their skills.

Configuration files are shared with projects, so a setting can only restrict:
no setting approves a skill, and without one the user is asked.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import httpx2

from skillwire.core import Dialect, quoted
from skillwire.host.model.errors import ManualOnlyError, TurnedOffError, UnknownReferenceError
from skillwire.host.model.lookalikes import LOCAL
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind
from skillwire.sources.wellknown.web import SiteAddress

# How skills are shown to the model, per server and per skill.


EVERY: Final = "*"
"""Stands for all skills of a server, or of all origins, that have no setting of their own."""

_DEFAULT_PRIORITY = 0.5


Visible: TypeAlias = Literal["all", "approved"]
"""Which skills are shown to the model: all that are in use, or only those the user has approved."""


class ShowRule(StrEnum):
    """How a skill is shown to the model."""

    PIN = "pin"
    """Always in the listing, with its description, before all others."""
    NORMAL = "normal"
    """In the listing, if the token budget allows."""
    NAME_ONLY = "name-only"
    """In the listing without its description."""
    MANUAL = "manual"
    """Not shown to the model, which cannot load it; a person can."""
    OFF = "off"
    """Not used at all."""


class Trust(StrEnum):
    """Whether and how skills of a server may be loaded."""

    ASK = "ask"
    """The user is asked about each of them, and about every change."""
    APPROVED = "approved"
    """Only skills that were approved beforehand, here or in a lock; the user is not asked."""
    NEVER = "never"
    """Shown to people, but never loaded."""


def _no_rules() -> Mapping[str, ShowRule]:
    return MappingProxyType({})


@dataclass(frozen=True)
class SkillSettings:
    """The settings of one server: whether its skills are used, and how.

    `budget` is the number of tokens they may use in a listing, and `show` the
    rule for single skills: by name, by the part of the reference after the
    label, or `*`. `dialect` restricts the server to a single dialect.
    """

    is_on: bool = True
    trust: Trust = Trust.ASK
    budget: int | None = None
    dialect: Dialect | None = None
    show: Mapping[str, ShowRule] = field(default_factory=_no_rules, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "show", MappingProxyType(dict(self.show)))


class ShowRules:
    """The show rules for every skill of a host.

    The most specific setting applies: the reference, `label/name`, `label/*`,
    then `*`. Local skills have no label; `local/*` means all of them. With
    `by_priority`, lists are sorted by the priority that a server annotates
    its skills with.
    """

    def __init__(
        self,
        servers: Mapping[str, SkillSettings] | None = None,
        show: Mapping[str, ShowRule] | None = None,
        *,
        by_priority: bool = False,
    ) -> None:
        self._by_priority = by_priority
        self._is_approved: Callable[[KnownSkill], bool] | None = None
        self._servers = dict(servers or {})
        self._show = {
            f"{label}/{key}": rule
            for label, settings in self._servers.items()
            for key, rule in settings.show.items()
        }
        self._show |= {key: ShowRule(value) for key, value in (show or {}).items()}

    def show_only(self, is_approved: Callable[[KnownSkill], bool]) -> None:
        """Hide skills from the model that the user has not approved; people see all skills."""
        self._is_approved = is_approved

    @property
    def is_static(self) -> bool:
        """Whether the set of skills shown to the model does not depend on approvals."""
        return self._is_approved is None

    def is_visible(self, skill: KnownSkill) -> bool:
        """Return whether approvals allow a skill to be shown to the model."""
        return self._is_approved is None or self._is_approved(skill)

    def in_order(self, skills: Iterable[KnownSkill]) -> list[KnownSkill]:
        """Return the skills that may be shown to the model, in listing order."""
        found = sorted(skills, key=attrgetter("reference"))
        if self._is_approved is not None:
            found = [skill for skill in found if self._is_approved(skill)]
        if self._by_priority:
            found.sort(key=priority_of, reverse=True)
        return found

    def of(self, skill: KnownSkill) -> ShowRule:
        if not self._show:
            return ShowRule.NORMAL
        label = skill.id.origin.label if skill.is_remote else LOCAL
        for key in (skill.reference, f"{label}/{skill.name}", f"{label}/{EVERY}", EVERY):
            if (found := self._show.get(key)) is not None:
                return found
        return ShowRule.NORMAL

    def trust(self, skill: KnownSkill) -> Trust:
        """Return the trust setting of a skill's server; local skills need none."""
        settings = self._servers.get(skill.id.origin.label) if skill.is_remote else None
        return Trust.ASK if settings is None else settings.trust

    def may_model_load(self, skill: KnownSkill) -> bool:
        """Return whether a skill may be shown to the model and loaded by it."""
        is_offered = self.of(skill) not in (ShowRule.MANUAL, ShowRule.OFF)
        return is_offered and self.trust(skill) is not Trust.NEVER and self.is_visible(skill)

    def may_user_load(self, skill: KnownSkill) -> bool:
        """Return whether a person may load a skill."""
        return self.of(skill) is not ShowRule.OFF and self.trust(skill) is not Trust.NEVER

    @property
    def budgets(self) -> Mapping[str, int]:
        """The listing token budget of each server that has one."""
        return {
            label: settings.budget for label, settings in self._servers.items() if settings.budget is not None
        }

    def require_allowed(self, skill: KnownSkill, *, by_user: bool) -> None:
        """Check that the settings allow a skill to be loaded.

        Raises:
            TurnedOffError: The skill, or all loading from its server, is turned off.
            ManualOnlyError: Only a person may load it.
            UnknownReferenceError: It is not shown to the model, because the user has not approved it.
        """
        if not (by_user or self._is_approved is None or self._is_approved(skill)):
            raise UnknownReferenceError(
                f"no skill is called {quoted(skill.reference)}", reference=skill.reference
            )
        rule = self.of(skill)
        if rule is ShowRule.OFF:
            raise TurnedOffError(f"{skill.reference} is turned off", reference=skill.reference)
        if self.trust(skill) is Trust.NEVER:
            raise TurnedOffError(
                f"skills of the server {skill.id.origin.label} are never loaded, by its `trust` setting",
                reference=skill.reference,
                fix="set another `trust` for this server in the configuration",
            )
        if rule is ShowRule.MANUAL and not by_user:
            raise ManualOnlyError(
                f"{skill.reference} can be loaded only by people", reference=skill.reference
            )


def priority_of(skill: KnownSkill) -> float:
    """Return the priority a server annotates a skill with, from 0 to 1; 0.5 without an annotation."""
    annotations = skill.entry.extra.get("annotations")
    value = annotations.get("priority") if isinstance(annotations, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return _DEFAULT_PRIORITY
    return float(value)


# Endpoints: a command, a URL or a web site.


DEFAULT_SECONDS = 30.0


def _no_values() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class StdioEndpoint:
    """A server that is started as a process and used over its standard input and output.

    `env` is added to the few variables that a child process inherits. Its values
    are often secrets, so they are neither shown nor part of the fingerprint. If
    `args` hold secrets too, `shown_args` has placeholders for them, and is used
    for display and in the fingerprint.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)
    cwd: str | None = None
    shown_args: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        if self.shown_args is not None and len(self.shown_args) != len(self.args):
            raise ValueError("`shown_args` and `args` differ in length")

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of what would be started: the command, its arguments and its folder."""
        return _fingerprint(kind="stdio", command=self.command, args=self._safe_args, cwd=self.cwd)

    @property
    def _safe_args(self) -> tuple[str, ...]:
        return self.args if self.shown_args is None else self.shown_args

    def __repr__(self) -> str:
        return f"StdioEndpoint(command={self.command!r}, args={self._safe_args!r}, cwd={self.cwd!r})"


@dataclass(frozen=True)
class HttpEndpoint:
    """A server at a URL.

    The values of `headers` are often secrets, so they are neither shown nor
    part of the fingerprint; nor are a user name and password in the URL. If its
    path or query holds a secret too, `shown_url` has a placeholder for it, and is
    used for display and in the fingerprint. It must have the same scheme, host
    and port, or a ValueError is raised.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)
    shown_url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))
        if self.shown_url is not None and _host_of(self.shown_url) != _host_of(self.url):
            raise ValueError("`shown_url` has another host than `url`")

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the normalized URL, without user name and password."""
        scheme, host, port = _host_of(self._safe_url)
        target = httpx2.URL(self._safe_url).raw_path.decode("ascii")
        return _fingerprint(kind="http", scheme=scheme, host=host, port=port, target=target)

    @cached_property
    def shown(self) -> str:
        """The URL for display: without user name, password and query."""
        return str(httpx2.URL(self._safe_url).copy_with(userinfo=b"", query=None, fragment=None))

    @property
    def _safe_url(self) -> str:
        return self.url if self.shown_url is None else self.shown_url

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.shown!r})"


@dataclass(frozen=True)
class SiteEndpoint:
    """A web site with an index of skills, and further hosts from which its files may come.

    Raises:
        SourceError: `url` is not the address of a site, or one of `hosts` is not a host.
    """

    url: str
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(self.hosts))
        _ = self.address

    @cached_property
    def address(self) -> SiteAddress:
        return SiteAddress.parse(self.url, self.hosts)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the site's scheme, host, port and path. `hosts` are not part of it."""
        scheme, host, port = _host_of(self.address.url)
        target = httpx2.URL(self.address.url).raw_path.decode("ascii")
        return _fingerprint(kind="site", scheme=scheme, host=host, port=port, target=target)

    @property
    def shown(self) -> str:
        """The URL for display; it holds no secrets."""
        return self.address.url


Endpoint: TypeAlias = StdioEndpoint | HttpEndpoint | SiteEndpoint


@dataclass(frozen=True)
class ServerConfig:
    """One server as the user configured it.

    `label` is its name in this host, `title` what the user wrote. `is_label_given`
    is false if the label was derived from the address or command. `seconds` is
    the timeout for connecting and for each call; a process has twice as long to
    start, because `npx` or `uvx` may have to download it first. `skills` holds
    the settings for its skills, and `auth` authorizes requests to an HTTP
    endpoint.
    """

    label: str
    endpoint: Endpoint
    title: str = ""
    is_enabled: bool = True
    seconds: float = DEFAULT_SECONDS
    skills: SkillSettings = field(default_factory=SkillSettings)
    auth: httpx2.Auth | None = field(default=None, repr=False, compare=False)
    is_label_given: bool = True

    @property
    def connect_seconds(self) -> float:
        """The connect timeout in seconds."""
        return 2 * self.seconds if isinstance(self.endpoint, StdioEndpoint) else self.seconds

    @cached_property
    def origin(self) -> Origin:
        kind = OriginKind.SITE if isinstance(self.endpoint, SiteEndpoint) else OriginKind.SERVER
        shown = self.endpoint.command if isinstance(self.endpoint, StdioEndpoint) else self.endpoint.shown
        return Origin(
            kind, self.label, self.endpoint.fingerprint, made_from="" if self.is_label_given else shown
        )


def _host_of(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.raw_host.decode("ascii").lower(), parsed.port


def _fingerprint(**parts: object) -> str:
    """Return the hash of the parts that identify an endpoint, in canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"
