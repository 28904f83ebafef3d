"""Endpoints of servers: a command, a URL or a web site, each with a fingerprint."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import httpx2

from skillwire.host.model.origin import Origin, OriginKind
from skillwire.host.model.show_rules import SkillSettings
from skillwire.sources.wellknown.web import SiteAddress

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
