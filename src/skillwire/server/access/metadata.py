"""What a client is told that may not ask: where to get a token (RFC 9728), and what is wrong with its own."""

from typing import Final
from urllib.parse import urlsplit

from skillwire.errors import CredentialError
from skillwire.server.access.settings import Access
from skillwire.wire.core import JsonDict

METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
REALM: Final = "skills"
BASIC_CHALLENGE: Final = f'Basic realm="{REALM}", charset="UTF-8"'
"""For a browser, which can ask its user for a token as if it were a password."""

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 503


def metadata(access: Access) -> JsonDict | None:
    """Return what clients are told that look for a token; None when there is no issuer to get one from."""
    if access.oidc is None:
        return None
    found: JsonDict = {
        "resource": access.public_url,
        "authorization_servers": [access.oidc.issuer],
        "bearer_methods_supported": ["header"],
    }
    if access.oidc.required_scopes:
        found["scopes_supported"] = list(access.oidc.required_scopes)
    return found


def metadata_paths(access: Access) -> tuple[str, ...]:
    """Return where `metadata` is to be found: at the endpoint's own path, and at that of the whole host."""
    if access.oidc is None:
        return ()
    path = urlsplit(access.public_url).path.rstrip("/")
    return tuple(dict.fromkeys((f"{METADATA_PATH}{path}", METADATA_PATH)))


def metadata_url(access: Access) -> str:
    """Return the address of `metadata`; empty when there is none."""
    if access.oidc is None:
        return ""
    parts = urlsplit(access.public_url)
    return f"{parts.scheme}://{parts.netloc}{metadata_paths(access)[0]}"


def challenge(access: Access, error: CredentialError) -> str:
    """Return the value of `WWW-Authenticate` for a request that proves nothing."""
    parameters = [("realm", REALM)]
    if error.reason == "scope":
        parameters.append(("error", "insufficient_scope"))
    elif error.reason != "missing":
        parameters.append(("error", "invalid_token"))
    if access.oidc is not None:
        if access.oidc.required_scopes:
            parameters.append(("scope", " ".join(access.oidc.required_scopes)))
        parameters.append(("resource_metadata", metadata_url(access)))
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters)


def status_of(error: CredentialError) -> int:
    """Return the status of the answer to a request that proves nothing."""
    if error.reason == "unavailable":
        return UNAVAILABLE
    return FORBIDDEN if error.reason == "scope" else UNAUTHORIZED
