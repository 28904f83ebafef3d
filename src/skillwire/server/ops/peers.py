"""`Proxies`: the client address of a request, behind trusted proxies."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from skillwire.core import Address, SkillError, quoted

_FORWARDED = b"x-forwarded-for"
# The maximum number of proxies in a chain.
_MAX_PROXIES = 16
# An address as proxies and sockets write it: in brackets, with a port, with a zone.
_SPELLING: Final = re.compile(
    r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<with_port>[0-9.]+)(?=:)|(?P<plain>[^\[\]]*))(?::[0-9]{1,5})?"
)
_MAX_ADDRESS: Final = 80
# The IPv6 network that a single customer has at least, with free choice of addresses.
_CLIENT_BITS: Final = 64
# NAT64: the last 32 bits are the IPv4 address of the client.
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


class Proxies:
    """The addresses of trusted proxies.

    Anyone can send `X-Forwarded-For`, so it is used only when the connection
    comes from a trusted proxy. It is read from its end, where the nearest proxy
    has written; the first address that is not a trusted proxy is the client's.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Trust single addresses, or networks such as `10.0.0.0/8`.

        Raises:
            SkillError: One of them is not an address or network.
        """
        self._networks = tuple(map(_network, networks))
        self._trusts = lru_cache(maxsize=1024)(self._is_in_networks)

    def address_of(self, scope: Mapping[str, Any]) -> str:
        """Return the client address of a request, normalized; empty when it is not known."""
        client = scope.get("client")
        peer = _normalized(str(client[0])) if client else ""
        if not self._networks or not self._trusts(peer):
            return peer
        said = b",".join(value for name, value in scope["headers"] if name == _FORWARDED)
        for part in reversed(said.decode("latin-1").split(",")[-_MAX_PROXIES:]):
            text = part.strip()
            address = _parsed(text) if len(text) <= _MAX_ADDRESS else None
            if address is None:
                break  # Entries before a malformed one are not trusted.
            peer = str(address)
            if not self._trusts(peer):
                break
        return peer

    def client_of(self, scope: Mapping[str, Any]) -> str:
        """Return the key for rate limits of one client: an IPv4 address, or an IPv6 /64 network.

        A client controls its whole IPv6 network, and could use another address for each request.
        """
        return _client_at(self.address_of(scope))

    def _is_in_networks(self, address: str) -> bool:
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Address | None:
    """Return the address in `text`; None when it is not an address.

    IPv4-mapped IPv6 addresses become IPv4 addresses, and the zone is removed.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        return None
    try:
        address = ip_address((match[1] or match[2] or match[3] or "").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _normalized(text: str) -> str:
    address = _parsed(text)
    return text if address is None else str(address)


@lru_cache(maxsize=1024)
def _client_at(text: str) -> str:
    address = _parsed(text)
    if address is None or isinstance(address, IPv4Address):
        return text
    if address in _TRANSLATED:
        return str(IPv4Address(int(address) & 0xFFFFFFFF))
    return str(IPv6Network((address, _CLIENT_BITS), strict=False))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise SkillError(
            f"{quoted(text)} is not an address or network", fix="write it like 127.0.0.1 or 10.0.0.0/8"
        ) from None
