"""How a server lets clients in, from the options that say so."""

from pathlib import Path

import pytest

from skillwire.cli.doors import DoorOptions, parsed_address
from skillwire.cli.failures import MisuseError
from skillwire.errors import SkillError
from skillwire.server.access.settings import Rate

EXPOSED = ("0.0.0.0", "::", "192.0.2.7", "skills.example")


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("host", EXPOSED)
def test_an_address_that_others_can_reach_needs_tokens_or_a_word_that_everyone_may_come_in(host: str) -> None:
    with pytest.raises(MisuseError) as caught:
        DoorOptions().door(host)

    assert "--token-file" in caught.value.fix and "--allow-anonymous" in caught.value.fix
    assert DoorOptions(allow_anonymous=True).door(host).access.is_open
    assert not DoorOptions(token_file=Path("tokens")).door(host).access.is_open


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_itself_needs_nothing(host: str) -> None:
    assert DoorOptions().door(host).access.is_open


@pytest.mark.parametrize(
    "options",
    [
        DoorOptions(access=Path("access.toml")),
        DoorOptions(audience="https://skills.example"),
        DoorOptions(oidc="https://login.example"),
        DoorOptions(oidc="http://login.example", public_url="https://skills.example/mcp"),
        DoorOptions(tls_cert=Path("cert.pem")),
        DoorOptions(tls_key=Path("key.pem")),
        DoorOptions(rate="often"),
        DoorOptions(rate="0"),
        DoorOptions(rate="10/0"),
        DoorOptions(public_url="skills.example"),
        DoorOptions(proxy=("my-proxy",)),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_way_out(options: DoorOptions) -> None:
    with pytest.raises(SkillError):
        options.door("127.0.0.1")

    assert options.given.startswith("--")


def test_signed_tokens_are_for_the_public_url_unless_told_otherwise() -> None:
    given = DoorOptions(oidc="https://login.example", public_url="https://skills.example/mcp")
    told = DoorOptions(
        oidc="https://login.example", public_url="https://skills.example/mcp", audience="skills"
    )

    own, other = given.door("127.0.0.1").access.oidc, told.door("127.0.0.1").access.oidc

    assert own is not None and own.audience == "https://skills.example/mcp"
    assert other is not None and other.audience == "skills"


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20", Rate(20, 100)), ("0.5", Rate(0.5, 2)), ("20/40", Rate(20, 40)), ("1/1", Rate(1, 1))],
)
def test_a_rate_has_a_burst_of_five_seconds_unless_it_names_one(text: str, rate: Rate) -> None:
    assert DoorOptions(rate=text).door("127.0.0.1").access.rate == rate


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:0", ("::1", 0)), ("a.b:1", ("a.b", 1))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parsed_address(text) == address


@pytest.mark.parametrize("text", ["", "8000", ":8000", "host", "host:", "host:port", "host:65536", "host:-1"])
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(MisuseError):
        parsed_address(text)
