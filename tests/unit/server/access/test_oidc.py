"""Signed tokens after their signature was found good: whom the claims are about, and when they count."""

from typing import Any

import pytest

from skillwire.core.errors import CredentialError
from skillwire.server.access.oidc import LEEWAY, caller_of
from skillwire.server.access.settings import Caller, Oidc

ISSUER = "https://login.example.org"
URL = "https://skills.example.org/mcp"
NOW = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": URL, "sub": "alice", "exp": NOW + 300, "iat": NOW - 10}


def caller(oidc: Oidc | None = None, **claims: Any) -> Caller:
    said = {**CLAIMS, **claims}
    kept = {name: value for name, value in said.items() if value is not ...}
    return caller_of(kept, oidc or Oidc(ISSUER, URL), now=NOW)


def reason(oidc: Oidc | None = None, **claims: Any) -> str:
    with pytest.raises(CredentialError) as caught:
        caller(oidc, **claims)
    return caught.value.reason


@pytest.mark.requirement("SEC-14")
def test_claims_make_a_caller() -> None:
    found = caller(azp="app", groups=["billing", 7, "ops"], scope="a b  c")

    assert found == Caller(
        f"{ISSUER} alice",
        subject="alice",
        issuer=ISSUER,
        client="app",
        groups=frozenset({"billing", "ops"}),
        scopes=frozenset({"a", "b", "c"}),
        expires=NOW + 300 + LEEWAY,
    )
    assert not found.is_anonymous


@pytest.mark.parametrize("audience", [URL, [URL], ["other", URL]])
def test_an_audience_may_be_one_of_several(audience: object) -> None:
    assert caller(aud=audience).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"iss": ...}, "issuer"),
        ({"aud": "https://skills.example.org"}, "audience"),
        ({"aud": [URL + "/x", [URL]]}, "audience"),
        ({"aud": {URL: 1}}, "audience"),
        ({"aud": ...}, "audience"),
        ({"exp": NOW - LEEWAY}, "expired"),
        ({"exp": ...}, "malformed"),
        ({"exp": "never"}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"exp": 10**400}, "malformed"),
        ({"nbf": NOW + LEEWAY + 1}, "early"),
        ({"iat": NOW + LEEWAY + 1}, "early"),
        ({"nbf": None}, "malformed"),
        ({"sub": ...}, "subject"),
        ({"sub": ""}, "subject"),
        ({"sub": 7}, "subject"),
        ({"sub": "a" * 256}, "subject"),
        ({"sub": "alice\n"}, "subject"),
        ({"sub": "alice\u200b"}, "subject"),
        ({"at_hash": "x"}, "type"),
        ({"typ": "ID"}, "type"),
        ({"typ": "Refresh"}, "type"),
        ({"token_use": "id"}, "type"),
        ({"events": {}}, "type"),
        ({"cnf": {"jkt": "x"}}, "bound"),
    ],
)
@pytest.mark.requirement("SEC-14")
def test_claims_that_prove_nothing_here_say_why(claims: dict[str, Any], expected: str) -> None:
    assert reason(**claims) == expected


def test_clocks_may_differ_by_a_minute() -> None:
    assert caller(exp=NOW - LEEWAY + 1, nbf=NOW + LEEWAY - 1, iat=NOW + LEEWAY - 1).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b"}, {"a", "b"}),
        ({"scp": ["a", "b"]}, {"a", "b"}),
        ({"scp": "a b"}, {"a", "b"}),
        ({"scope": "a", "scp": "b"}, {"a"}),
        ({"scope": {"a": 1}}, set[str]()),
    ],
)
def test_scopes_are_found_where_issuers_put_them(claims: dict[str, Any], scopes: set[str]) -> None:
    assert caller(**claims).scopes == scopes


@pytest.mark.requirement("SEC-14")
def test_a_scope_that_is_required_must_be_there() -> None:
    oidc = Oidc(ISSUER, URL, required_scopes=("read", "list"))

    assert reason(oidc, scope="read") == "scope"
    assert reason(oidc) == "scope"
    assert caller(oidc, scope="list read more").scopes == {"list", "read", "more"}


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("roles", {"roles": ["ops"]}),
        ("roles", {"roles": "ops"}),
        ("realm_access.roles", {"realm_access": {"roles": ["ops"]}}),
        ("https://acme.example/groups", {"https://acme.example/groups": ["ops"]}),
    ],
)
def test_groups_are_found_where_the_operator_says(name: str, claims: dict[str, Any]) -> None:
    assert caller(Oidc(ISSUER, URL, groups_claim=name), **claims).groups == {"ops"}


def test_a_groups_claim_that_is_not_there_or_no_list_gives_no_group() -> None:
    oidc = Oidc(ISSUER, URL, groups_claim="a.b")

    odd: tuple[Any, ...] = (..., 1, {}, {"b": 1}, [])
    assert [caller(oidc, a=value).groups for value in odd] == [frozenset()] * 5


def test_no_subject_can_have_the_name_of_a_token() -> None:
    assert caller(sub="ci").name == f"{ISSUER} ci"
    assert caller(sub="anonymous").name != "anonymous"
