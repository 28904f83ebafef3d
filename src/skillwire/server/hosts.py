"""`AllowedHosts`: checks the `Host` and `Origin` headers (DNS rebinding protection).

A web page can make a browser send requests to any machine that the browser can
reach, and by pointing its own DNS name at that machine it can read the answers.
Headers that a page cannot forge show both: `Host` is the name the browser
connects to, `Origin` the site that sends the request.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

HttpRefusal: TypeAlias = tuple[int, str]
"""An HTTP status and the text of the response."""

_WRONG_HOST: Final[HttpRefusal] = (
    421,
    "Host header not allowed. Start the server with --public-url to accept it.",
)
_FOREIGN_ORIGIN: Final[HttpRefusal] = (403, "Origin header not allowed: this page is of another web site.")
_PORTS: Final = {"http": "80", "https": "443"}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]@/\s]+)(?::(?P<port>\d{1,5}))?")
_MAX_KNOWN = 1024


class AllowedHosts:
    """The allowed `Host` and `Origin` values of a server on `host` with the URL `public_url`.

    Loopback names are always allowed, on any port. Without a public URL, on a
    non-loopback address, IP addresses are allowed as well: DNS rebinding needs a
    name. A page may only send requests to its own origin.
    """

    def __init__(self, host: str, public_url: str = "") -> None:
        self.is_exposed = host not in LOOPBACK
        self._public = (
            _split(urlsplit(public_url).netloc, urlsplit(public_url).scheme) if public_url else None
        )
        self._scheme = urlsplit(public_url).scheme
        self._own = {*LOOPBACK, host.lower()}
        self._knows_addresses = self.is_exposed and not public_url
        self._known: dict[tuple[bytes, bytes | None], HttpRefusal | None] = {}

    def refusal(
        self, headers: Iterable[tuple[bytes, bytes]], *, is_for_any_page: bool = False
    ) -> HttpRefusal | None:
        """Return why a request is refused; None when it is allowed."""
        hosts = origins = 0
        host: bytes = b""
        origin: bytes | None = None
        for name, value in headers:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin, origins = value, origins + 1
        if hosts > 1:
            return _WRONG_HOST
        if is_for_any_page:
            origin = None
        elif origins > 1:
            return _FOREIGN_ORIGIN
        return self.check(host, origin)

    def check(self, host: bytes, origin: bytes | None) -> HttpRefusal | None:
        """Return why a request with this `Host` and `Origin` is refused; None when it is allowed."""
        pair = (host, origin)
        if pair in self._known:
            return self._known[pair]
        found = self._reason_against(
            host.decode("latin-1"), None if origin is None else origin.decode("latin-1")
        )
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[pair] = found
        return found

    def _reason_against(self, host: str, origin: str | None) -> HttpRefusal | None:
        if not self._is_ours(_split(host, "https")) and not self._is_ours(_split(host, "http")):
            return _WRONG_HOST
        if origin is None:
            return None
        scheme, separator, authority = origin.partition("://")
        if not separator or scheme not in _PORTS:
            return _FOREIGN_ORIGIN
        asking = _split(authority, scheme)
        if asking is None or not self._is_ours(asking):
            return _FOREIGN_ORIGIN
        if asking == self._public:
            return None if scheme == self._scheme else _FOREIGN_ORIGIN
        is_local = asking[0] in LOOPBACK
        is_same_origin = asking == _split(host, scheme)
        return None if is_same_origin or (is_local and not self._knows_addresses) else _FOREIGN_ORIGIN

    def _is_ours(self, authority: tuple[str, str] | None) -> bool:
        if authority is None:
            return False
        name, _ = authority
        return authority == self._public or name in self._own or (self._knows_addresses and _is_address(name))


def _split(authority: str, scheme: str) -> tuple[str, str] | None:
    """Return the normalized host and port of an authority; None when it is invalid."""
    match = _HOST.fullmatch(authority.strip(" \t").lower())
    if match is None:
        return None
    return match["name"].strip("[]"), match["port"] or _PORTS.get(scheme, "")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
