"""`SignedTokens`: verifies access tokens of an OpenID Connect or OAuth 2.1 issuer with its public keys."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from skillwire.core import CredentialError, StrictJsonError, parse_strictly, visible
from skillwire.server.access.keys import FETCH_SECONDS, IssuerKeys, decoded, is_signed
from skillwire.server.access.settings import Caller, Oidc

LEEWAY: Final = 60
"""Seconds of accepted clock difference between the issuer and this machine."""

_MAX_SUBJECT = 255
_MAX_KID = 1024
_ACCESS_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
# Claims of ID and logout tokens only, and the types some issuers give to tokens that are not access tokens.
_OTHER_TOKEN_CLAIMS = frozenset({"at_hash", "c_hash", "s_hash", "events"})
_OTHER_TOKEN_TYPES = frozenset({"id", "refresh", "offline", "logout"})


class SignedTokens:
    """Verifier of signed tokens, used as a context manager (`async with`)."""

    def __init__(
        self,
        oidc: Oidc,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        seconds: float = FETCH_SECONDS,
    ) -> None:
        self._oidc = oidc
        self._now = now
        self._keys = IssuerKeys(oidc, ticks=ticks, seconds=seconds)

    async def __aenter__(self) -> Self:
        await self._keys.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._keys.__aexit__(kind, error, trace)

    async def caller(self, credential: str) -> Caller:
        """Return the caller that a token identifies.

        Raises:
            CredentialError: The token is not valid here or now; `reason` has the cause.
        """
        header, payload, signed, signature = _parts(credential)
        algorithm, kid = _signing_header(header)
        if algorithm not in self._oidc.algorithms:
            raise CredentialError("the signature algorithm of the token is not accepted", reason="algorithm")
        found = is_signed(await self._keys.current(), kid, algorithm, signed, signature)
        if found is None or not (found or kid):  # A token without a key ID may be signed with a new key.
            found = is_signed(await self._keys.refreshed(), kid, algorithm, signed, signature)
        if not found:
            reason = "key" if found is None else "signature"
            raise CredentialError("the token is not signed with a key of the issuer", reason=reason)
        return caller_of(_object(payload), self._oidc, now=self._now())


def caller_of(claims: Mapping[str, Any], oidc: Oidc, *, now: float) -> Caller:
    """Return the caller from the claims of a token whose signature is verified.

    Raises:
        CredentialError: A claim is missing or not accepted by this server.
    """
    if claims.get("iss") != oidc.issuer:
        raise CredentialError("the token is from another issuer", reason="issuer")
    if oidc.audience not in _texts(claims.get("aud")):
        raise CredentialError("the token is for another server", reason="audience")
    expires = _require_current(claims, now)
    kind = claims.get("typ", claims.get("token_use", ""))
    if not _OTHER_TOKEN_CLAIMS.isdisjoint(claims) or str(kind).lower() in _OTHER_TOKEN_TYPES:
        raise CredentialError("the token is not an access token", reason="type")
    if "cnf" in claims:
        # Such a token needs a proof of possession, which `Bearer` has not (RFC 9449, RFC 8705).
        raise CredentialError(
            "the token is bound to a key and cannot be used as a bearer token", reason="bound"
        )
    scopes = _scopes(claims, oidc.scopes_claim)
    if not scopes.issuperset(oidc.required_scopes):
        raise CredentialError("the token lacks a required scope", reason="scope")
    subject = _subject(claims.get("sub"))
    client = claims.get("azp", claims.get("client_id"))
    return Caller(
        # Issuers contain no space, so names are unique, also among token names.
        f"{oidc.issuer} {subject}",
        subject=subject,
        issuer=oidc.issuer,
        client=client if isinstance(client, str) else "",
        groups=frozenset(_texts(_claim(claims, oidc.groups_claim))),
        scopes=scopes,
        expires=expires,
    )


def _parts(credential: str) -> tuple[Mapping[str, Any], bytes, bytes, bytes]:
    """Split a token into its header, payload, signed bytes and signature."""
    signed, _, signature = credential.encode("ascii").rpartition(b".")
    parts = [decoded(part) for part in (*signed.split(b"."), signature)]
    if len(parts) != 3 or parts[0] is None or parts[1] is None or parts[2] is None:
        raise _malformed()
    return _object(parts[0]), parts[1], signed, parts[2]


def _signing_header(header: Mapping[str, Any]) -> tuple[str, str]:
    algorithm, kid, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or not isinstance(kid, str) or len(kid) > _MAX_KID:
        raise _malformed()
    if "crit" in header:
        raise CredentialError(
            "the token has critical header parameters that are not supported", reason="malformed"
        )
    if not isinstance(kind, str) or kind.lower() not in _ACCESS_TYPES:
        raise CredentialError("the token is not an access token", reason="type")
    return algorithm, kid


def _require_current(claims: Mapping[str, Any], now: float) -> float:
    """Check the validity period of a token, and return when it expires."""
    expires = _timestamp(claims.get("exp")) + LEEWAY
    if now >= expires:
        raise CredentialError("the token has expired", reason="expired")
    for name in ("nbf", "iat"):
        if name in claims and _timestamp(claims[name]) - LEEWAY > now:
            raise CredentialError("the token is not valid yet", reason="early")
    return expires


def _timestamp(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise _malformed()
    return float(value)


def _subject(value: object) -> str:
    """Return the subject, checked for length and for characters that could imitate another one."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_SUBJECT or visible(value) != value:
        raise CredentialError("the token has no valid subject", reason="subject")
    return value


def _scopes(claims: Mapping[str, Any], named: str) -> frozenset[str]:
    value = _claim(claims, named) if named else claims.get("scope", claims.get("scp"))
    return frozenset(scope for text in _texts(value) for scope in text.split(" ") if scope)


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim; a dotted name is a path into nested claims, unless a claim has exactly that name."""
    if name in claims:
        return claims[name]
    outer, dot, inner = name.partition(".")
    found = claims.get(outer)
    return _claim(cast("dict[str, Any]", found), inner) if dot and isinstance(found, dict) else None


def _texts(value: object) -> tuple[str, ...]:
    """Return the strings of a claim that is a string or a list; other values are ignored."""
    if isinstance(value, str):
        return (value,)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = parse_strictly(data)
    except StrictJsonError:
        raise _malformed() from None
    if not isinstance(found, dict):
        raise _malformed()
    return cast("dict[str, Any]", found)


def _malformed() -> CredentialError:
    return CredentialError("the credential is not a signed token", reason="malformed")
