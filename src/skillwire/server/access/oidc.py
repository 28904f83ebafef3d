"""`SignedTokens`: access tokens of an OpenID Connect or OAuth 2.1 issuer, checked with its public keys."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from skillwire.core.characters import visible
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.errors import CredentialError
from skillwire.server.access.caller import Caller
from skillwire.server.access.jwks import FETCH_SECONDS, IssuerKeys
from skillwire.server.access.settings import Oidc
from skillwire.server.access.signatures import decoded, is_signed

LEEWAY: Final = 60
"""Seconds by which the clocks of an issuer and of this machine may differ."""

_LONGEST_NAME = 255
_LONGEST_KID = 1024
_ACCESS_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
# What only an ID token or a logout token says of itself, and what some issuers call their other tokens.
_NOT_FOR_US = frozenset({"at_hash", "c_hash", "s_hash", "events"})
_OTHER_TYPES = frozenset({"id", "refresh", "offline", "logout"})


class SignedTokens:
    """Tells who holds a signed token, while it is open (`async with`)."""

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
        """Return whoever a token was made for.

        Raises:
            CredentialError: It is none of the issuer's, or not for this server, or not now; `reason` tells.
        """
        header, payload, signed, signature = _parts(credential)
        algorithm, kid = _how_signed(header)
        if algorithm not in self._oidc.algorithms:
            raise CredentialError("the token is not signed in a way that counts here", reason="algorithm")
        found = is_signed(await self._keys.current(), kid, algorithm, signed, signature)
        if found is None or not (found or kid):  # A token that names no key may be signed with a new one.
            found = is_signed(await self._keys.newest(), kid, algorithm, signed, signature)
        if not found:
            reason = "key" if found is None else "signature"
            raise CredentialError("the token is not signed by its issuer", reason=reason)
        return caller_of(_object(payload), self._oidc, now=self._now())


def caller_of(claims: Mapping[str, Any], oidc: Oidc, *, now: float) -> Caller:
    """Return whoever the claims of a token, whose signature is good, are about.

    Raises:
        CredentialError: They are not about someone who may ask this server something now.
    """
    if claims.get("iss") != oidc.issuer:
        raise CredentialError("the token is of another issuer", reason="issuer")
    if oidc.audience not in _texts(claims.get("aud")):
        raise CredentialError("the token is for another server", reason="audience")
    expires = _require_current(claims, now)
    kind = claims.get("typ", claims.get("token_use", ""))
    if not _NOT_FOR_US.isdisjoint(claims) or str(kind).lower() in _OTHER_TYPES:
        raise CredentialError("the token is no access token", reason="type")
    if "cnf" in claims:
        # Whoever shows it must also show a key, and `Bearer` shows none (RFC 9449, RFC 8705).
        raise CredentialError("the token is bound to a key, and cannot be shown alone", reason="bound")
    scopes = _scopes(claims, oidc.scopes_claim)
    if not scopes.issuperset(oidc.required_scopes):
        raise CredentialError("the token has not all the scopes that are needed here", reason="scope")
    subject = _name(claims.get("sub"))
    client = claims.get("azp", claims.get("client_id"))
    return Caller(
        # An issuer has no blank in it, so no two callers have the same name, nor that of a token.
        f"{oidc.issuer} {subject}",
        subject=subject,
        issuer=oidc.issuer,
        client=client if isinstance(client, str) else "",
        groups=frozenset(_texts(_claim(claims, oidc.groups_claim))),
        scopes=scopes,
        expires=expires,
    )


def _parts(credential: str) -> tuple[Mapping[str, Any], bytes, bytes, bytes]:
    """Take a token apart: its header, what it says, what was signed, and the signature."""
    signed, _, signature = credential.encode("ascii").rpartition(b".")
    parts = [decoded(part) for part in (*signed.split(b"."), signature)]
    if len(parts) != 3 or parts[0] is None or parts[1] is None or parts[2] is None:
        raise _malformed()
    return _object(parts[0]), parts[1], signed, parts[2]


def _how_signed(header: Mapping[str, Any]) -> tuple[str, str]:
    algorithm, kid, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or not isinstance(kid, str) or len(kid) > _LONGEST_KID:
        raise _malformed()
    if "crit" in header:
        raise CredentialError("the token demands what is not understood here", reason="malformed")
    if not isinstance(kind, str) or kind.lower() not in _ACCESS_TYPES:
        raise CredentialError("the token is no access token", reason="type")
    return algorithm, kid


def _require_current(claims: Mapping[str, Any], now: float) -> float:
    """Check when a token counts, and return when it stops to."""
    expires = _moment(claims.get("exp")) + LEEWAY
    if now >= expires:
        raise CredentialError("the token has expired", reason="expired")
    for name in ("nbf", "iat"):
        if name in claims and _moment(claims[name]) - LEEWAY > now:
            raise CredentialError("the token does not count yet", reason="early")
    return expires


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise _malformed()
    return float(value)


def _name(value: object) -> str:
    """Return a subject that names one caller, and looks like no other."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or visible(value) != value:
        raise CredentialError("the token says of nobody that it is theirs", reason="subject")
    return value


def _scopes(claims: Mapping[str, Any], named: str) -> frozenset[str]:
    value = _claim(claims, named) if named else claims.get("scope", claims.get("scp"))
    return frozenset(scope for text in _texts(value) for scope in text.split(" ") if scope)


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim; a dot in its name leads into another one, unless a claim has just that name."""
    if name in claims:
        return claims[name]
    outer, dot, inner = name.partition(".")
    found = claims.get(outer)
    return _claim(cast("dict[str, Any]", found), inner) if dot and isinstance(found, dict) else None


def _texts(value: object) -> tuple[str, ...]:
    """Return the texts of a claim that has one or several; what is no text allows nothing."""
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
    return CredentialError("this is no signed token", reason="malformed")
