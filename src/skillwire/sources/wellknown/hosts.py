"""Where a site is, as a user typed it, and which other hosts it may send us to.

A host that is written out was typed by the user, who may well mean a machine
of a private network. One that only matches `*.example.net` was chosen by the
site, so it has to be public. Every other host is refused, by name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import httpx2

from skillwire.core.addresses import Address, Reach, is_loopback, literal, reach_of
from skillwire.core.characters import quoted
from skillwire.errors import SourceError
from skillwire.sources.wellknown.failures import ForeignHostError, SiteAnswerError, UnsafeAddressError
from skillwire.wire.wellknown import INDEX_PATH, OLD_INDEX_PATH

LONGEST_URL: Final = 4096
MOST_HOSTS: Final = 64

_PORTS = {"http": 80, "https": 443}
_UNUSABLE = re.compile(r"[\x00-\x20\x7f\\]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]@*%\\]+)(?::[0-9]{1,5})?")
_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class Place:
    """A host in one spelling, and a port: two places are the same when requests go to the same server."""

    host: str
    port: int

    @classmethod
    def of(cls, url: httpx2.URL) -> "Place":
        return cls(_plain(url.raw_host.decode("ascii")), url.port or _PORTS[url.scheme])

    @property
    def is_this_machine(self) -> bool:
        """Whether its name says that it is on this machine; what it resolves to must say so too."""
        address = literal(self.host)
        return self.host == _LOCALHOST if address is None else is_loopback(address)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https"] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that the user allows: one place, or all names below one."""

    place: Place
    is_wildcard: bool = False

    @classmethod
    def parse(cls, text: str) -> "HostRule":
        """Read `cdn.example.net`, `cdn.example.net:8443` or `*.example.net`.

        Raises:
            SourceError: It is none of these.
        """
        is_wildcard = text.startswith("*.")
        host = text.removeprefix("*.")
        url = _parsed(f"https://{host}/") if _HOST.fullmatch(host) else None
        if url is None:
            raise SourceError(f"{quoted(text[:200])} is no host", fix="write a host such as cdn.example.net")
        place = Place.of(url)
        if is_wildcard and ("." not in place.host or literal(place.host) is not None):
            raise SourceError(
                f"{quoted(text[:200])} allows too much", fix="name a domain, such as *.example.net"
            )
        return cls(place, is_wildcard)

    def admits(self, place: Place) -> bool:
        if not self.is_wildcard:
            return place == self.place
        return place.port == self.place.port and place.host.endswith(f".{self.place.host}")


@dataclass(frozen=True, slots=True)
class Hop:
    """One request that may be made: where it goes, and whether the user typed that host."""

    url: httpx2.URL
    place: Place
    is_typed: bool

    def require_reachable(self, address: Address) -> None:
        """Check an address that the host's name was resolved to.

        Raises:
            UnsafeAddressError: No request is sent there.
        """
        reach = reach_of(address)
        if self.url.scheme == "http" and not is_loopback(address):
            raise UnsafeAddressError(
                f"{self.place} is not on this machine, and the way there is not encrypted", fix="use https"
            )
        if reach is Reach.PUBLIC or (self.is_typed and reach is Reach.INTERNAL):
            return
        if self.is_typed and reach is Reach.LINK_LOCAL and literal(self.place.host) == address:
            return
        raise UnsafeAddressError(
            f"{quoted(str(self.place))} is at {address}, which is {_WORDS[reach]}",
            fix="if you mean it, name this very host in the configuration"
            if reach is Reach.INTERNAL
            else "report it to the site's author, or look at your name servers",
        )


_WORDS = {
    Reach.INTERNAL: "an address of a private network",
    Reach.LINK_LOCAL: "an address of the local link",
    Reach.NOBODY: "no address of any web site",
}


@dataclass(frozen=True, slots=True)
class SiteAddress:
    """The address of a site: where its index is, in the place of today and in the old one."""

    url: str
    index_url: str
    old_index_url: str
    own: Place
    others: tuple[HostRule, ...] = ()

    @classmethod
    def parse(cls, url: str, hosts: Iterable[str] = ()) -> "SiteAddress":
        """Read what the user typed: the site, or its index itself, and further hosts.

        A path stays before the path of the index, for sites that share a host.

        Raises:
            SourceError: It is no address of a site, or a host is none.
        """
        parsed = _typed(url)
        path = parsed.path.rstrip("/")
        for known in (INDEX_PATH, OLD_INDEX_PATH):
            path = path.removesuffix(known)
        rules = tuple(HostRule.parse(host) for host in dict.fromkeys(hosts))
        if len(rules) > MOST_HOSTS:
            raise SourceError(f"a site has at most {MOST_HOSTS} further hosts")
        home = str(parsed.copy_with(path=path or "/")).removesuffix("/")
        return cls(home, f"{home}{INDEX_PATH}", f"{home}{OLD_INDEX_PATH}", Place.of(parsed), rules)

    def hop(self, url: str) -> Hop:
        """Check a URL that is the site's own, or that the site sends us to.

        Raises:
            SiteAnswerError: It is no URL of the web.
            ForeignHostError: Its host is not one that the user allows.
            UnsafeAddressError: The way there would not be encrypted.
        """
        parsed = _parsed(url)
        if parsed is None or parsed.userinfo:
            raise SiteAnswerError(
                f"the site refers to {quoted(url[:200])}, which is no web address", violates="DISC-04"
            )
        place = Place.of(parsed)
        rules = [rule for rule in (HostRule(self.own), *self.others) if rule.admits(place)]
        if not rules:
            raise ForeignHostError(
                f"the site refers to the host {quoted(str(place)[:200])}, which is not allowed for it",
                host=str(place),
                fix=f"if you trust that host too, add {quoted(str(place)[:200])} to the site's `hosts`",
            )
        is_typed = not all(rule.is_wildcard for rule in rules)
        if parsed.scheme == "http" and not (is_typed and place.is_this_machine):
            raise UnsafeAddressError(
                f"the site refers to {quoted(str(place)[:200])} without encryption", fix="ask for https there"
            )
        return Hop(parsed.copy_with(fragment=None), place, is_typed)


def _typed(url: str) -> httpx2.URL:
    parsed = _parsed(url)
    if parsed is None:
        raise SourceError(
            "this is no address of a web site", fix="write https:// and a host, such as https://example.org"
        )
    if parsed.userinfo or parsed.query or "?" in url or "#" in url:
        raise SourceError("the address of a site has no user name, no query and no fragment")
    if parsed.scheme == "http" and not Place.of(parsed).is_this_machine:
        raise SourceError(
            "the address of a site begins with https://", fix="http:// is for sites on this machine"
        )
    return parsed


def _parsed(url: str) -> httpx2.URL | None:
    """Read a URL of the web; None when it is none."""
    if len(url) > LONGEST_URL or _UNUSABLE.search(url):
        return None
    try:
        parsed = httpx2.URL(url)
        port = parsed.port
    except (httpx2.InvalidURL, ValueError):
        return None
    is_usable = (
        parsed.scheme in _PORTS
        and parsed.host
        and "%" not in parsed.host
        and (port is None or 0 < port < 65536)
    )
    return parsed if is_usable else None


def _plain(host: str) -> str:
    """Return a host in one spelling: lowercase, without brackets or a dot at its end."""
    return host.strip("[]").lower().removesuffix(".")
