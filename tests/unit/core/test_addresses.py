"""Which addresses count as public, held against what the standard library knows of the same registries."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.addresses import AddressScope, is_loopback, literal, scope_of

V4 = st.ip_addresses(v=4)
V6 = st.ip_addresses(v=6)

INTERNAL = (
    "127.0.0.1 127.255.0.9 10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 "
    "::1 fc00::1 fd12:3456::1"
).split()
LINK_LOCAL = "169.254.169.254 169.254.0.1 168.63.129.16 fe80::1 fe80::1%eth0 febf::1".split()
NOBODY = (
    "0.0.0.0 0.1.2.3 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 192.0.2.7 198.18.0.1 198.51.100.1 "
    "203.0.113.1 192.0.0.8 :: ff02::1 2001:db8::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 2002:7f00:1:: "
    "2001::1 3fff::1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 5f00::1 fec0::1"
).split()
PUBLIC = (
    "8.8.8.8 1.1.1.1 168.63.129.17 172.32.0.1 100.128.0.1 169.253.0.1 2606:4700::1111 64:ff9b::808:808 "
    "2001:4860:4860::8888"
).split()


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    ("text", "scope"),
    [
        *((text, AddressScope.INTERNAL) for text in INTERNAL),
        *((text, AddressScope.LINK_LOCAL) for text in LINK_LOCAL),
        *((text, AddressScope.NOBODY) for text in NOBODY),
        *((text, AddressScope.PUBLIC) for text in PUBLIC),
    ],
)
def test_an_address_is_reached_by_those_its_registry_says(text: str, scope: AddressScope) -> None:
    assert scope_of(ip_address(text)) is scope


@pytest.mark.requirement("DISC-13")
@given(V4 | V6)
def test_nothing_is_public_that_the_standard_library_calls_private(
    address: IPv4Address | IPv6Address,
) -> None:
    if scope_of(address) is AddressScope.PUBLIC:
        assert not address.is_private
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast
        assert not address.is_unspecified


@pytest.mark.requirement("DISC-13")
@given(V4)
def test_an_ipv4_address_in_any_disguise_is_never_more_public_than_itself(address: IPv4Address) -> None:
    inside = int(address)
    disguises = [
        IPv6Address((0xFFFF << 32) | inside),
        IPv6Address(inside),
        IPv6Address((0x2002 << 112) | (inside << 80)),
        IPv6Address((0x0064_FF9B << 96) | inside),
    ]

    if scope_of(address) is not AddressScope.PUBLIC:
        assert AddressScope.PUBLIC not in {scope_of(disguise) for disguise in disguises}
    assert {scope_of(disguise) for disguise in disguises[:3]} <= {AddressScope.NOBODY, AddressScope.INTERNAL}


@given(V4 | V6)
def test_loopback_means_what_the_standard_library_means(address: IPv4Address | IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    assert is_loopback(address) == (address.is_loopback and mapped is None)


@pytest.mark.parametrize(
    "text", ["127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "example.org", "", "1.2.3"]
)
def test_only_the_usual_spelling_of_an_address_is_one(text: str) -> None:
    assert literal(text) is None
