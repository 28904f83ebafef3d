"""Addresses: the paths of well-known indexes, and IP addresses by who can reach them.

The tables are our own, because the standard library's properties differ
between releases of Python. IPv4 has few blocks that are not public, so those
are listed; of IPv6 only a part is public, so that is listed.
"""

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

SITE_PATH: Final = "/.well-known/agent-skills/"
INDEX_PATH: Final = "/.well-known/agent-skills/index.json"
OLD_INDEX_PATH: Final = "/.well-known/skills/index.json"
"""The path of the 0.1.0 index; a client requests it when there is none at `INDEX_PATH`."""

Address: TypeAlias = IPv4Address | IPv6Address


class AddressScope(StrEnum):
    """Who can reach an address."""

    PUBLIC = "public"
    INTERNAL = "internal"
    """This machine, or a private network, or a provider's shared address space."""
    LINK_LOCAL = "link-local"
    """The local link, which includes the metadata services of cloud providers."""
    NOBODY = "nobody"
    """Not an address of a web site: unspecified, multicast, reserved, or it wraps another address."""


def _networks4(*texts: str) -> tuple[IPv4Network, ...]:
    return tuple(map(IPv4Network, texts))


def _networks6(*texts: str) -> tuple[IPv6Network, ...]:
    return tuple(map(IPv6Network, texts))


_INTERNAL_4: Final = _networks4(
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"
)
# The second looks public, and is the metadata service of one cloud provider.
_LINK_LOCAL_4: Final = _networks4("169.254.0.0/16", "168.63.129.16/32")
_NOBODY_4: Final = _networks4(
    "0.0.0.0/8",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
_INTERNAL_6: Final = _networks6("::1/128", "fc00::/7")
_LINK_LOCAL_6: Final = _networks6("fe80::/10")
_PUBLIC_6: Final = _networks6("2000::/3")
# Inside the public part: protocol assignments, documentation, and addresses that wrap an IPv4 one.
_NOBODY_6: Final = _networks6("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
# NAT64: how a network without IPv4 reaches it. The IPv4 address inside is the one to check.
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


def scope_of(address: Address) -> AddressScope:
    """Return who can reach an address. Whatever is not known to be public is not."""
    if isinstance(address, IPv4Address):
        if _is_in(address, _INTERNAL_4):
            return AddressScope.INTERNAL
        if _is_in(address, _LINK_LOCAL_4):
            return AddressScope.LINK_LOCAL
        return AddressScope.NOBODY if _is_in(address, _NOBODY_4) else AddressScope.PUBLIC
    if address in _TRANSLATED:
        return (
            AddressScope.PUBLIC
            if scope_of(IPv4Address(int(address) & 0xFFFFFFFF)) is AddressScope.PUBLIC
            else AddressScope.NOBODY
        )
    if _is_in(address, _INTERNAL_6):
        return AddressScope.INTERNAL
    if _is_in(address, _LINK_LOCAL_6):
        return AddressScope.LINK_LOCAL
    is_public = _is_in(address, _PUBLIC_6) and not _is_in(address, _NOBODY_6)
    return AddressScope.PUBLIC if is_public else AddressScope.NOBODY


def is_loopback(address: Address) -> bool:
    """Return whether an address is a loopback address, and not one that wraps it."""
    return address in IPv4Network("127.0.0.0/8") if address.version == 4 else address == IPv6Address("::1")


def literal(host: str) -> Address | None:
    """Parse `host` as an address; None when it is a name, or an unusual spelling of an address."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)
