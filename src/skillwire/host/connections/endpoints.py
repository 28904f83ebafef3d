"""What a label stands for: the command, the URL or the web site behind it, and a fingerprint of that."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import httpx2

from skillwire.host.attention import SkillSettings
from skillwire.host.origin import Origin, OriginKind
from skillwire.sources.wellknown.hosts import SiteAddress

DEFAULT_SECONDS = 30.0


def _no_values() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class StdioEndpoint:
    """A server that is a program of its own, spoken to over its standard input and output.

    `env` comes on top of the few variables a child inherits. Its values are
    often secrets, so they are neither shown nor part of the fingerprint.
    Where `args` hold secrets too, `shown_args` are the same with names in
    their place, and stand for them on screens and in the fingerprint.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)
    cwd: str | None = None
    shown_args: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        if self.shown_args is not None and len(self.shown_args) != len(self.args):
            raise ValueError("`shown_args` are not as many as `args`")

    @cached_property
    def fingerprint(self) -> str:
        """Names what would be started: the command, its arguments and its folder."""
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
    part of the fingerprint; the same holds for a name and password in the URL.
    Where its path or query holds a secret too, `shown_url` is the same with a
    name in its place, and stands for it on screens and in the fingerprint. It
    leads to the same scheme, host and port, or is a ValueError.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)
    shown_url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))
        if self.shown_url is not None and _place(self.shown_url) != _place(self.url):
            raise ValueError("`shown_url` leads to another host than `url`")

    @cached_property
    def fingerprint(self) -> str:
        """Names where requests go: the URL, in one spelling, without a name and password."""
        scheme, host, port = _place(self._safe_url)
        target = httpx2.URL(self._safe_url).raw_path.decode("ascii")
        return _fingerprint(kind="http", scheme=scheme, host=host, port=port, target=target)

    @cached_property
    def shown(self) -> str:
        """The URL as it may be shown: without a name and password, and without a query."""
        return str(httpx2.URL(self._safe_url).copy_with(userinfo=b"", query=None, fragment=None))

    @property
    def _safe_url(self) -> str:
        return self.url if self.shown_url is None else self.shown_url

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.shown!r})"


@dataclass(frozen=True)
class SiteEndpoint:
    """A web site with an index of skills, and the hosts it may send us to beside its own.

    Raises:
        SourceError: `url` is no address of a site, or one of `hosts` is no host.
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
        """Names the site: its scheme, host, port and path. More hosts do not make it another one."""
        scheme, host, port = _place(self.address.url)
        target = httpx2.URL(self.address.url).raw_path.decode("ascii")
        return _fingerprint(kind="site", scheme=scheme, host=host, port=port, target=target)

    @property
    def shown(self) -> str:
        """The URL as it may be shown; there is nothing in it to hide."""
        return self.address.url


Endpoint: TypeAlias = StdioEndpoint | HttpEndpoint | SiteEndpoint


@dataclass(frozen=True)
class ServerConfig:
    """One server as the user configured it.

    `label` is the name this host knows it by, `title` what the user wrote.
    `seconds` is how long connecting, and each call, may take. `skills`
    says how its skills are used, and `auth` signs the requests to an HTTP
    endpoint.
    """

    label: str
    endpoint: Endpoint
    title: str = ""
    is_enabled: bool = True
    seconds: float = DEFAULT_SECONDS
    skills: SkillSettings = field(default_factory=SkillSettings)
    auth: httpx2.Auth | None = field(default=None, repr=False, compare=False)

    @cached_property
    def origin(self) -> Origin:
        kind = OriginKind.SITE if isinstance(self.endpoint, SiteEndpoint) else OriginKind.SERVER
        return Origin(kind, self.label, self.endpoint.fingerprint)


def _place(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.raw_host.decode("ascii").lower(), parsed.port


def _fingerprint(**parts: object) -> str:
    """Hash what identifies an endpoint, written in one way only."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"
