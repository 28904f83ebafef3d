"""The options of `skillwire serve`: their values, and what they mean together."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from skillwire.core.errors import SkillError
from skillwire.runner import Policy
from skillwire.server.access.settings import Rate
from skillwire.server.options import (
    OPTIONS,
    AccessOptions,
    HttpOptions,
    OptionError,
    ServeOptions,
    ValueKind,
    values_of,
    with_values,
)

LOCAL = HttpOptions("127.0.0.1:8000")
EXPOSED = ("0.0.0.0", "[::]", "192.0.2.7", "skills.example")


def with_access(**options: object) -> HttpOptions:
    return with_values(LOCAL, options)


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("host", EXPOSED)
def test_an_address_that_others_can_reach_needs_tokens_or_permission_for_everyone(host: str) -> None:
    exposed = HttpOptions(f"{host}:8000")
    with pytest.raises(OptionError) as caught:
        exposed.check()

    assert "--token-file" in caught.value.fix and "--allow-anonymous" in caught.value.fix
    for auth in (AccessOptions(allow_anonymous=True), AccessOptions(token_file=Path("tokens"))):
        replace(exposed, auth=auth).check()
        assert replace(exposed, auth=auth).access.is_open == auth.allow_anonymous


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_itself_needs_nothing(host: str) -> None:
    HttpOptions(f"{host}:8000").check()


@pytest.mark.parametrize(
    "options",
    [
        with_access(access=Path("access.toml")),
        with_access(audience="https://skills.example"),
        with_access(oidc="https://login.example"),
        with_access(oidc="http://login.example", public_url="https://skills.example/mcp"),
        with_access(tls_cert=Path("cert.pem")),
        with_access(tls_key=Path("key.pem")),
        with_access(rate="often"),
        with_access(rate="0"),
        with_access(rate="10/0"),
        with_access(public_url="skills.example"),
        with_access(proxy=("my-proxy",)),
    ],
)
def test_options_that_make_no_sense_are_refused(options: HttpOptions) -> None:
    with pytest.raises(SkillError):
        options.check()


def test_signed_tokens_are_for_the_public_url_unless_there_is_an_audience() -> None:
    given = with_access(oidc="https://login.example", public_url="https://skills.example/mcp")
    named = with_values(given, {"audience": "skills"})

    own, other = given.access.oidc, named.access.oidc

    assert own is not None and own.audience == "https://skills.example/mcp"
    assert other is not None and other.audience == "skills"


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20", Rate(20, 100)), ("0.5", Rate(0.5, 2)), ("20/40", Rate(20, 40)), ("1/1", Rate(1, 1))],
)
def test_a_rate_has_a_burst_of_five_seconds_unless_it_names_one(text: str, rate: Rate) -> None:
    assert with_access(rate=text).access.rate == rate


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:0", ("::1", 0)), ("a.b:1", ("a.b", 1))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert HttpOptions(text).address == address


@pytest.mark.parametrize(
    "text", ["", "8000", ":8000", "[]:1", "host", "host:", "host:port", "host:65536", "host:-1"]
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(OptionError):
        _ = HttpOptions(text).address


def test_a_policy_needs_scripts_and_scripts_have_a_policy() -> None:
    with pytest.raises(OptionError):
        _ = ServeOptions(script_policy=Path("policy.toml")).script_rules

    own = Policy(pool=3)
    assert ServeOptions().script_rules is None
    assert ServeOptions(scripts=True).script_rules == Policy()
    assert ServeOptions(scripts=True, policy=own).script_rules is own


def test_every_option_has_a_help_line_and_a_default_within_its_bounds() -> None:
    for option in OPTIONS.values():
        assert option.help.endswith(".")
        assert bool(option.metavar) == (option.kind is not ValueKind.FLAG)
        if isinstance(option.default, int | float) and option.kind is not ValueKind.FLAG:
            assert option.least <= option.default <= option.most


def test_values_are_set_by_name_wherever_they_are_in_the_tree() -> None:
    options = with_values(ServeOptions(), {"rate": "5", "page_size": 7, "workers": 2})

    assert (options.endpoint.auth.rate, options.page_size, options.endpoint.workers) == ("5", 7, 2)
    assert values_of(ServeOptions()).keys() == OPTIONS.keys()
    assert values_of(options) == {**values_of(ServeOptions()), "rate": "5", "page_size": 7, "workers": 2}
    assert pickle.loads(pickle.dumps(options)) == options
