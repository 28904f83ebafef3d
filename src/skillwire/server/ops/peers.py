"""`Proxies`: from where a request comes, when a proxy that is known stands in between."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from skillwire.core.characters import quoted
from skillwire.errors import SkillError

_FORWARDED = b"x-forwarded-for"
# How many proxies may stand in a row.
_MOST = 16


class Proxies:
    """The addresses whose word about other addresses is taken.

    Anyone can send `X-Forwarded-For`, so it counts only when the connection
    itself comes from one of these. It is read from its end, where the proxy
    nearest to us has written; the first address that is no proxy of ours is the
    client's.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Trust single addresses, or networks such as `10.0.0.0/8`.

        Raises:
            SkillError: One of them is neither.
        """
        self._networks = tuple(map(_network, networks))
        self._trusts = lru_cache(maxsize=1024)(self._is_in_networks)

    def address_of(self, scope: Mapping[str, Any]) -> str:
        """Return the address a request comes from, or nothing when it is not known."""
        client = scope.get("client")
        peer = str(client[0]) if client else ""
        if not self._networks or not self._trusts(peer):
            return peer
        said = b",".join(value for name, value in scope["headers"] if name == _FORWARDED)
        for part in reversed(said.decode("latin-1").split(",")[-_MOST:]):
            address = part.strip()
            try:
                ip_address(address)
            except ValueError:
                break  # Whatever comes before what nobody can read is not to be believed.
            peer = address
            if not self._trusts(address):
                break
        return peer

    def _is_in_networks(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise SkillError(
            f"{quoted(text)} is no address of a proxy", fix="write it like 127.0.0.1 or 10.0.0.0/8"
        ) from None
