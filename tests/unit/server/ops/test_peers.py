"""From where a request comes, and whose word about that is taken."""

import pytest

from skillwire.core.errors import SkillError
from skillwire.server.ops.peers import Proxies


def address(proxies: Proxies, peer: str | None, *forwarded: str) -> str:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return proxies.address_of({"client": (peer, 4711) if peer is not None else None, "headers": headers})


def test_without_proxies_nobody_is_believed() -> None:
    assert address(Proxies(), "192.0.2.1", "198.51.100.7") == "192.0.2.1"


def test_a_stranger_is_not_believed() -> None:
    assert address(Proxies(["127.0.0.1"]), "192.0.2.1", "198.51.100.7") == "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("127.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9", "198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        ("10.9.9.9", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.9.9.9", ["198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7:52001"], "198.51.100.7"),
        ("127.0.0.1", ["[2001:DB8:0::1]:443"], "2001:db8::1"),
        ("127.0.0.1", ["[2001:db8::1]"], "2001:db8::1"),
        ("127.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7, [::ffff:10.1.2.3]:80"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7, 10.1.2.3:80"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7:port"], "127.0.0.1"),
        ("127.0.0.1", ["[198.51.100.7"], "127.0.0.1"),
        ("127.0.0.1", [f"2001:db8::1%{'z' * 5000}"], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.7, nonsense, 10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ['"><script>'], "127.0.0.1"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", [", ".join(["198.51.100.7"] + ["10.0.0.1"] * 5000)], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_no_proxy_of_ours_is_the_clients(
    peer: str, forwarded: list[str], expected: str
) -> None:
    assert address(Proxies(["127.0.0.1", "10.0.0.0/8"]), peer, *forwarded) == expected


def test_a_connection_without_an_address_has_none() -> None:
    assert address(Proxies(["127.0.0.1"]), None, "198.51.100.7") == ""
    assert address(Proxies(["127.0.0.1"]), "", "198.51.100.7") == ""


def test_what_is_no_address_cannot_be_trusted() -> None:
    with pytest.raises(SkillError):
        Proxies(["proxy.example"])


def client(peer: str, *forwarded: str) -> str:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return Proxies(["127.0.0.1"]).client_of({"client": (peer, 4711), "headers": headers})


@pytest.mark.parametrize(
    "spellings",
    [
        ["198.51.100.7", "::ffff:198.51.100.7", "::FFFF:c633:6407", "64:ff9b::198.51.100.7"],
        ["2001:db8::1", "2001:0DB8:0:0::1", "2001:db8::ffff:2", "2001:db8:0:0:8000::"],
        ["fe80::1", "fe80::1%eth0", "fe80::1%2"],
    ],
)
def test_a_client_is_counted_once_however_its_address_is_written(spellings: list[str]) -> None:
    direct = {client(one) for one in spellings}
    behind_a_proxy = {client("127.0.0.1", one) for one in spellings}

    assert len(direct) == 1
    assert behind_a_proxy == direct


def test_clients_of_other_networks_are_counted_apart() -> None:
    addresses = ["198.51.100.7", "198.51.100.8", "2001:db8::1", "2001:db8:0:1::1", "::1", "unix"]

    assert len({client(one) for one in addresses}) == len(addresses)
