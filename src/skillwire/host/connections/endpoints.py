"""What a label stands for: the command or the URL behind it, and a fingerprint of that."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import httpx2

from skillwire.host.origin import Origin, OriginKind

DEFAULT_SECONDS = 30.0


def _no_values() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class StdioEndpoint:
    """A server that is a program of its own, spoken to over its standard input and output.

    `env` comes on top of the few variables a child inherits. Its values are
    often secrets, so they are neither shown nor part of the fingerprint.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)
    cwd: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))

    @cached_property
    def fingerprint(self) -> str:
        """Names what would be started: the command, its arguments and its folder."""
        return _fingerprint(kind="stdio", command=self.command, args=self.args, cwd=self.cwd)


@dataclass(frozen=True)
class HttpEndpoint:
    """A server at a URL.

    The values of `headers` are often secrets, so they are neither shown nor
    part of the fingerprint; the same holds for a name and password in the URL.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=_no_values, repr=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    @cached_property
    def fingerprint(self) -> str:
        """Names where requests go: the URL, in one spelling, without a name and password."""
        url = httpx2.URL(self.url)
        host = url.raw_host.decode("ascii").lower()
        return _fingerprint(
            kind="http", scheme=url.scheme, host=host, port=url.port, target=url.raw_path.decode("ascii")
        )

    @cached_property
    def shown(self) -> str:
        """The URL as it may be shown: without a name and password, and without a query."""
        return str(httpx2.URL(self.url).copy_with(userinfo=b"", query=None, fragment=None))

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.shown!r})"


Endpoint: TypeAlias = StdioEndpoint | HttpEndpoint


@dataclass(frozen=True)
class ServerConfig:
    """One server as the user configured it.

    `label` is the name this host knows it by, `title` what the user wrote.
    `seconds` is how long connecting, and each call, may take. `auth` signs
    the requests to an HTTP endpoint.
    """

    label: str
    endpoint: Endpoint
    title: str = ""
    is_enabled: bool = True
    seconds: float = DEFAULT_SECONDS
    auth: httpx2.Auth | None = field(default=None, repr=False, compare=False)

    @cached_property
    def origin(self) -> Origin:
        return Origin(OriginKind.SERVER, self.label, self.endpoint.fingerprint)


def _fingerprint(**parts: object) -> str:
    """Hash what identifies an endpoint, written in one way only."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"
