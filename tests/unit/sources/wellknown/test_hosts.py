"""Where a site may send us: its own place, hosts the user named, and nowhere else."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import SkillError, SourceError
from skillwire.sources.wellknown.web import (
    ForeignHostError,
    HostPort,
    HostRule,
    SiteAddress,
    SiteAnswerError,
    UnsafeAddressError,
)

SITE = "https://example.org"
INDEX = "/.well-known/agent-skills/index.json"


@pytest.mark.parametrize(
    ("typed", "home"),
    [
        ("https://example.org", "https://example.org"),
        ("https://example.org/", "https://example.org"),
        ("https://EXAMPLE.org:443", "https://example.org"),
        ("https://example.org:8443/", "https://example.org:8443"),
        ("https://example.org/team/", "https://example.org/team"),
        (f"https://example.org{INDEX}", "https://example.org"),
        ("https://example.org/team/.well-known/skills/index.json", "https://example.org/team"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://localhost", "http://localhost"),
        ("https://10.0.0.1", "https://10.0.0.1"),
    ],
)
def test_a_site_is_typed_in_whatever_way_people_do(typed: str, home: str) -> None:
    address = SiteAddress.parse(typed)

    assert (address.url, address.index_url) == (home, f"{home}{INDEX}")
    assert address.old_index_url == f"{home}/.well-known/skills/index.json"


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    "typed",
    [
        "",
        "example.org",
        "ftp://example.org",
        "https://",
        "http://example.org",
        "http://10.0.0.1",
        "http://127.1",
        "http://[::ffff:127.0.0.1]",
        "http://localhost.example.org",
        "https://user@example.org",
        "https://example.org/?a=b",
        "https://example.org/#a",
        "https://exa mple.org",
        "https://example.org\\@evil.example",
        "https://%65xample.org",
        "https://example.org:0",
        "https://example.org:99999",
        "https://example.org/" + "a" * 5000,
    ],
)
def test_what_is_no_safe_address_of_a_site_is_refused(typed: str) -> None:
    with pytest.raises(SourceError):
        SiteAddress.parse(typed)


@pytest.mark.requirement("DISC-11")
@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/a",
        "https://example.org.evil.example/a",
        "https://evilexample.org/a",
        "https://example.org:8443/a",
        "https://cdn.example.net:444/a",
        "https://sub.cdn.example.net/a",
        "https://img.example/a",
        "https://169.254.169.254/latest/meta-data",
        "https://127.0.0.1/a",
    ],
)
def test_a_host_nobody_named_is_refused_by_name_with_the_setting_to_change(url: str) -> None:
    address = SiteAddress.parse(SITE, ["cdn.example.net", "*.img.example"])

    with pytest.raises(ForeignHostError) as caught:
        address.hop(url)

    assert caught.value.host in str(caught.value)
    assert "`hosts`" in caught.value.fix
    assert caught.value.refusal == "foreign-host"


@pytest.mark.requirement("DISC-11")
@pytest.mark.parametrize(
    ("url", "is_typed"),
    [
        ("https://example.org/a", True),
        ("https://EXAMPLE.ORG./a", True),
        ("https://example.org:443/a", True),
        ("https://cdn.example.net/a?b=c#d", True),
        ("https://other.example:8443/a", True),
        ("https://x.img.example/a", False),
        ("https://x.y.img.example/a", False),
    ],
)
def test_the_own_host_and_named_ones_are_used(url: str, is_typed: bool) -> None:
    address = SiteAddress.parse(SITE, ["cdn.example.net", "*.img.example", "other.example:8443"])

    hop = address.hop(url)

    assert hop.is_typed is is_typed
    assert not hop.url.fragment


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    "url", ["http://example.org/a", "http://cdn.example.net/a", "http://127.0.0.1:8000/"]
)
def test_nothing_is_fetched_without_encryption_from_a_public_site(url: str) -> None:
    address = SiteAddress.parse(SITE, ["cdn.example.net:80", "example.org:80", "*.example.net"])

    with pytest.raises((UnsafeAddressError, ForeignHostError)):
        address.hop(url)


@pytest.mark.parametrize(
    "url", ["mailto:a@example.org", "file:///etc/passwd", "https://a@example.org/", "//", "x"]
)
def test_what_is_no_web_address_is_no_place_to_go(url: str) -> None:
    with pytest.raises(SiteAnswerError):
        SiteAddress.parse(SITE).hop(url)


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    ("site", "hosts", "url", "address", "is_allowed"),
    [
        (SITE, [], f"{SITE}/a", "93.184.215.14", True),
        (SITE, [], f"{SITE}/a", "10.0.0.1", True),
        (SITE, [], f"{SITE}/a", "169.254.169.254", False),
        (SITE, [], f"{SITE}/a", "0.0.0.0", False),
        (SITE, [], f"{SITE}/a", "::ffff:127.0.0.1", False),
        (SITE, [], f"{SITE}/a", "224.0.0.1", False),
        (SITE, ["*.example.net"], "https://x.example.net/", "93.184.215.14", True),
        (SITE, ["*.example.net"], "https://x.example.net/", "10.0.0.1", False),
        (SITE, ["*.example.net"], "https://x.example.net/", "127.0.0.1", False),
        (SITE, ["*.example.net"], "https://x.example.net/", "100.64.0.1", False),
        (SITE, ["*.example.net"], "https://x.example.net/", "fd00::1", False),
        ("https://169.254.1.5", [], "https://169.254.1.5/", "169.254.1.5", True),
        ("https://169.254.1.5", [], "https://169.254.1.5/", "169.254.1.6", False),
        ("http://localhost:1", [], "http://localhost:1/", "127.0.0.1", True),
        ("http://localhost:1", [], "http://localhost:1/", "::1", True),
        ("http://localhost:1", [], "http://localhost:1/", "93.184.215.14", False),
        ("http://localhost:1", [], "http://localhost:1/", "10.0.0.1", False),
    ],
)
def test_an_address_is_used_when_it_is_public_or_its_host_was_typed(
    site: str, hosts: list[str], url: str, address: str, is_allowed: bool
) -> None:
    hop = SiteAddress.parse(site, hosts).hop(url)

    if is_allowed:
        hop.require_reachable(ip_address(address))
    else:
        with pytest.raises(UnsafeAddressError):
            hop.require_reachable(ip_address(address))


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "*.net", "*.10.0.0.1", "a/b", "https://a.example", "a b", "a.example:0", "a@b", "%61"],
)
def test_what_is_no_host_cannot_be_allowed(text: str) -> None:
    with pytest.raises(SourceError):
        HostRule.parse(text)


def test_an_address_of_ipv6_is_a_host_too() -> None:
    assert HostRule.parse("[2606:4700::1]:8443").place == HostPort("2606:4700::1", 8443)


@pytest.mark.requirement("DISC-11")
@given(st.text(max_size=60))
def test_whatever_a_site_refers_to_leads_to_the_own_host_or_is_refused(text: str) -> None:
    address = SiteAddress.parse(SITE)

    try:
        hop = address.hop(text)
    except SkillError:
        return

    assert (hop.url.scheme, hop.url.host.rstrip("."), hop.url.port) == ("https", "example.org", None)
