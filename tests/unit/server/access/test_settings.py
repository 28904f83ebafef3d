"""Settings of access: what cannot be meant is refused before a server starts."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillwire.server.access.settings import ALGORITHMS, AccessError, AccessSettings, Oidc, Rate

ISSUER = "https://login.example.org/realms/acme"
URL = "https://skills.example.org/mcp"


def test_without_tokens_and_issuer_a_server_is_open() -> None:
    assert AccessSettings().is_open
    assert AccessSettings(rules=Path("rules.toml")).is_open
    assert not AccessSettings(tokens=Path("tokens")).is_open
    assert not AccessSettings(oidc=Oidc(ISSUER, URL), public_url=URL).is_open


def test_settings_can_be_sent_to_another_process() -> None:
    access = AccessSettings(Path("t"), Oidc(ISSUER, URL), Path("r"), True, Rate(5, 10), URL)

    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize(
    "issuer",
    [
        "",
        "login",
        "http://login.example.org",
        "https://",
        "https://a b",
        "ftp://x",
        "https://u@x/",
        "https://x/?a=1",
        "https://x/#a",
        "https://x:0/",
        "https://x:99999/",
        "https://x/" + "a" * 3000,
    ],
)
@pytest.mark.requirement("SEC-14")
def test_an_issuer_is_an_encrypted_place_on_the_web(issuer: str) -> None:
    with pytest.raises(AccessError):
        Oidc(issuer, URL)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "[::1]:80"])
def test_an_issuer_on_this_machine_needs_no_encryption(host: str) -> None:
    assert Oidc(f"http://{host}/a", URL).issuer == f"http://{host}/a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"audience": ""},
        {"algorithms": ()},
        {"algorithms": ("none",)},
        {"algorithms": ("RS256", "HS256")},
        {"groups_claim": ""},
        {"required_scopes": ("a b",)},
        {"required_scopes": ('a"',)},
        {"required_scopes": tuple(map(str, range(100)))},
        {"jwks_url": "http://keys.example.org/"},
    ],
)
@pytest.mark.requirement("SEC-14")
def test_what_would_weaken_signed_tokens_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AccessError):
        replace(Oidc(ISSUER, URL), **wrong)


def test_nothing_that_both_sides_would_have_to_know_signs_a_token() -> None:
    assert not [name for name in ALGORITHMS if name == "none" or name.startswith("HS")]


@pytest.mark.parametrize(
    ("per_second", "burst"), [(0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (1, 0)]
)
def test_a_rate_allows_something_and_not_everything(per_second: float, burst: int) -> None:
    with pytest.raises(AccessError):
        Rate(per_second, burst)


def test_a_server_with_an_issuer_knows_its_own_url() -> None:
    with pytest.raises(AccessError) as caught:
        AccessSettings(oidc=Oidc(ISSUER, URL))

    assert "https://" in caught.value.fix
    with pytest.raises(AccessError):
        AccessSettings(public_url='https://x/"')
