"""What a client without a good credential is told."""

from pathlib import Path

import pytest

from skillwire.core.errors import CredentialError
from skillwire.server.access.settings import (
    AccessSettings,
    Oidc,
    challenge,
    metadata,
    metadata_paths,
    metadata_url,
    status_of,
)

URL = "https://skills.example.org/team/mcp"
TOKENS = AccessSettings(tokens=Path("tokens"))
SIGNED = AccessSettings(
    oidc=Oidc("https://login.example.org", URL, required_scopes=("skills:read", "b")), public_url=URL
)
PLACE = "https://skills.example.org/.well-known/oauth-protected-resource/team/mcp"


def failed(reason: str) -> CredentialError:
    return CredentialError("no", reason=reason)


def test_clients_learn_where_to_get_a_token() -> None:
    assert metadata(SIGNED) == {
        "resource": URL,
        "authorization_servers": ["https://login.example.org"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["skills:read", "b"],
    }
    assert metadata_url(SIGNED) == PLACE
    assert metadata_paths(SIGNED) == (
        "/.well-known/oauth-protected-resource/team/mcp",
        "/.well-known/oauth-protected-resource",
    )


def test_where_no_issuer_gives_tokens_there_is_nothing_to_learn() -> None:
    assert (metadata(TOKENS), metadata_url(TOKENS), metadata_paths(TOKENS)) == (None, "", ())
    assert challenge(TOKENS, failed("missing")) == 'Bearer realm="skills"'
    assert challenge(TOKENS, failed("unknown")) == 'Bearer realm="skills", error="invalid_token"'


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [
        ("missing", 401, ""),
        ("unknown", 401, 'error="invalid_token", '),
        ("expired", 401, 'error="invalid_token", '),
        ("scope", 403, 'error="insufficient_scope", '),
        ("unavailable", 503, 'error="invalid_token", '),
    ],
)
@pytest.mark.requirement("SEC-14")
def test_the_challenge_names_the_metadata_and_what_is_wrong(reason: str, status: int, error: str) -> None:
    told = challenge(SIGNED, failed(reason))

    assert told == f'Bearer realm="skills", {error}scope="skills:read b", resource_metadata="{PLACE}"'
    assert status_of(failed(reason)) == status
