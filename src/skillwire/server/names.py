"""`Names`: under which names requests may come, and from pages of which web sites.

A web page can make its reader's browser send requests to any machine that the
browser can reach, and by pointing a name of its own at that machine it can even
read the answers. Both are told by headers that no page can forge: `Host` is the
name the browser believes to be talking to, `Origin` the site it acts for.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

Refusal: TypeAlias = tuple[int, str]
"""A status, and what is said with it."""

_WRONG_NAME: Final[Refusal] = (
    421,
    "This server is not called that; whoever runs it can say how it is called with --public-url",
)
_FOREIGN_PAGE: Final[Refusal] = (403, "Pages of other web sites may not ask this server")
_PORTS: Final = {"http": "80", "https": "443"}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]@/\s]+)(?::(?P<port>\d{1,5}))?")
_MOST_KNOWN = 1024


class Names:
    """The names of a server that listens on `host` and is known to others by `public_url`.

    Names of this machine itself always do, whatever the port. Without a public
    URL, on an address that others can reach, addresses do as well: a page has
    to bring a name to get in, and cannot bring one of these. Pages may ask only
    where they come from.
    """

    def __init__(self, host: str, public_url: str = "") -> None:
        self.is_exposed = host not in LOOPBACK
        self._public = (
            _split(urlsplit(public_url).netloc, urlsplit(public_url).scheme) if public_url else None
        )
        self._scheme = urlsplit(public_url).scheme
        self._own = {*LOOPBACK, host.lower()}
        self._knows_addresses = self.is_exposed and not public_url
        self._known: dict[tuple[bytes, bytes | None], Refusal | None] = {}

    def refusal(
        self, headers: Iterable[tuple[bytes, bytes]], *, is_for_any_page: bool = False
    ) -> Refusal | None:
        """Return why a request is not answered; None when it may be."""
        hosts = origins = 0
        host: bytes = b""
        origin: bytes | None = None
        for name, value in headers:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin, origins = value, origins + 1
        if hosts > 1:
            return _WRONG_NAME
        if is_for_any_page:
            origin = None
        elif origins > 1:
            return _FOREIGN_PAGE
        return self.judged(host, origin)

    def judged(self, host: bytes, origin: bytes | None) -> Refusal | None:
        """Return why a request under a name, by a page or by none, is not answered; None when it may be."""
        pair = (host, origin)
        if pair in self._known:
            return self._known[pair]
        found = self._reason_against(
            host.decode("latin-1"), None if origin is None else origin.decode("latin-1")
        )
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[pair] = found
        return found

    def _reason_against(self, host: str, origin: str | None) -> Refusal | None:
        if not self._is_ours(_split(host, "https")) and not self._is_ours(_split(host, "http")):
            return _WRONG_NAME
        if origin is None:
            return None
        scheme, separator, place = origin.partition("://")
        if not separator or scheme not in _PORTS:
            return _FOREIGN_PAGE
        asking = _split(place, scheme)
        if asking is None or not self._is_ours(asking):
            return _FOREIGN_PAGE
        if asking == self._public:
            return None if scheme == self._scheme else _FOREIGN_PAGE
        is_local = asking[0] in LOOPBACK
        is_at_home = asking == _split(host, scheme)
        return None if is_at_home or (is_local and not self._knows_addresses) else _FOREIGN_PAGE

    def _is_ours(self, place: tuple[str, str] | None) -> bool:
        if place is None:
            return False
        name, _ = place
        return place == self._public or name in self._own or (self._knows_addresses and _is_address(name))


def _split(place: str, scheme: str) -> tuple[str, str] | None:
    """Return the name and the port of a place on the network, in one spelling; None when it is none."""
    match = _HOST.fullmatch(place.strip(" \t").lower())
    if match is None:
        return None
    return match["name"].strip("[]"), match["port"] or _PORTS.get(scheme, "")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
