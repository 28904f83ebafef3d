"""`SignedTokens`: verifies access tokens of an OpenID Connect or OAuth 2.1 issuer with its public keys.

`IssuerKeys` holds these keys (JWKS), fetched on demand and cached.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from skillwire.core import (
    CredentialError,
    SkillError,
    SourceError,
    StrictJsonError,
    parse_strictly,
    quoted,
    visible,
)
from skillwire.server.access.settings import Caller, Oidc
from skillwire.sources.wellknown.web import SiteAddress, WebClient, WebResponse, fresh_seconds

# Public keys of an issuer, and verification of signatures. The only module that needs `joserfc`.


MAX_TRIED_KEYS: Final = 8
"""The maximum number of keys that a signature is verified with."""

_KINDS: Final[Mapping[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
# Shorter keys are insecure, and longer ones are slow to verify with.
_RSA_BITS = range(2048, 8192 + 1)
_MAX_EXPONENT_BITS = 64
# Members of private keys. A published private key is compromised.
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})

# Curves for key agreement, not for signatures.
_AGREEMENT_CURVES = ("X25519", "X448")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures. `kid` and `algorithm` are empty where the issuer gives none."""

    kid: str
    algorithm: str
    key: Key

    def fits(self, algorithm: str) -> bool:
        """Return whether the type and curve of this key suit a signature algorithm."""
        if self.algorithm not in ("", algorithm):
            return False
        try:
            JWSRegistry.algorithms[algorithm].check_key(self.key)
        except (JoseError, ValueError):
            return False
        return True

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether this key made a signature by an algorithm that it `fits`."""
        try:
            return JWSRegistry.algorithms[algorithm].verify(signed, signature, self.key)
        except (JoseError, ValueError):
            return False


def parse_key(found: object) -> PublicKey | None:
    """Parse one key of a key set; None when it is not usable."""
    if not isinstance(found, dict):
        return None
    rows = cast("dict[str, Any]", found)
    kind = _KINDS.get(str(rows.get("kty")))
    kid, algorithm = rows.get("kid", ""), rows.get("alg", "")
    operations = rows.get("key_ops", ["verify"])
    if (
        kind is None
        or not isinstance(kid, str)
        or not isinstance(algorithm, str)
        or not isinstance(operations, list)
        or rows.get("use", "sig") != "sig"
        or "verify" not in operations
        or not _PRIVATE.isdisjoint(rows)
        or rows.get("crv") in _AGREEMENT_CURVES
    ):
        return None
    # Certificates and other members are not used.
    plain = {name: rows[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in rows}
    try:
        if kind is RSAKey and not _is_acceptable_rsa(plain["n"], plain["e"]):
            return None
        return PublicKey(kid, algorithm, kind.import_key(plain))
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _is_acceptable_rsa(modulus: str, exponent: str) -> bool:
    """Return whether an RSA key is strong enough and not too expensive to verify with."""
    n, e = (int.from_bytes(decoded(part.encode("ascii")) or b"") for part in (modulus, exponent))
    return n.bit_length() in _RSA_BITS and e.bit_length() <= _MAX_EXPONENT_BITS


def is_signed(
    keys: Iterable[PublicKey], kid: str, algorithm: str, signed: bytes, signature: bytes
) -> bool | None:
    """Return whether one of the keys made a signature; None when none of them has that key ID.

    Without a key ID, all keys that fit the algorithm are tried, up to `MOST_TRIED`.
    """
    named = [key for key in keys if not kid or key.kid == kid]
    if not named:
        return None
    fitting = (key for key in named if key.fits(algorithm))
    return any(key.verifies(algorithm, signed, signature) for key in islice(fitting, MAX_TRIED_KEYS))


def decoded(part: bytes) -> bytes | None:
    """Return a base64url-decoded part of a token; None when it is not base64url."""
    try:
        return urlsafe_b64decode(part)
    except (ValueError, TypeError):
        return None


MAX_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 100
MIN_CACHE_SECONDS: Final = 60.0
MAX_CACHE_SECONDS: Final = 24 * 3600.0
DEFAULT_CACHE_SECONDS: Final = 3600.0
"""Seconds that keys are cached when the issuer sends no `Cache-Control`."""
MAX_STALE_SECONDS: Final = 24 * 3600.0
"""Seconds that the last valid keys stay in use while the issuer is unreachable."""
RETRY_SECONDS: Final = 10.0
"""The minimum number of seconds between two fetches."""
FETCH_SECONDS: Final = 5.0

_OPENID = "/.well-known/openid-configuration"
_OAUTH = "/.well-known/oauth-authorization-server"

logger = logging.getLogger(__name__)


class IssuerKeys:
    """The keys of one issuer. `async with` starts to fetch them in the background.

    Keys are fetched again when they are stale, or when a token names an unknown
    key; at most every ten seconds, and never concurrently. Stale keys are used
    while new ones are fetched. While the issuer is unreachable, the last valid
    keys stay in use for a day.
    """

    def __init__(
        self,
        oidc: Oidc,
        *,
        ticks: Callable[[], float] = time.monotonic,
        seconds: float = FETCH_SECONDS,
    ) -> None:
        self._oidc = oidc
        self._ticks = ticks
        self._seconds = seconds
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched_at = -float("inf")
        self._good_until = -float("inf")
        self._tried_at = -float("inf")
        self._found_at = -float("inf")
        self._jwks_url = oidc.jwks_url
        self._fetching: anyio.Event | None = None
        self._is_unreachable = False
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        self._start_fetch(self._ticks())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        group, self._group = self._group, None
        group.cancel_scope.cancel()
        # An exception of the `async with` body must not be wrapped in an exception group.
        await group.__aexit__(None, None, None)

    async def current(self) -> tuple[PublicKey, ...]:
        """Return the current keys.

        Raises:
            CredentialError: There are none: the issuer has been unreachable for too long.
        """
        now = self._ticks()
        if now >= self._good_until:
            self._start_fetch(now)
        if not self._are_usable(now):
            await self._wait_for_fetch()
        if not self._are_usable(self._ticks()):
            raise CredentialError(
                "signed tokens cannot be verified now: the keys of the issuer are not available",
                reason="unavailable",
                fix="try again later",
            )
        return self._keys

    async def refreshed(self) -> tuple[PublicKey, ...]:
        """Return the keys after fetching them again, unless they were fetched a moment ago."""
        self._start_fetch(self._ticks())
        await self._wait_for_fetch()
        return self._keys

    def _are_usable(self, now: float) -> bool:
        return bool(self._keys) and now < self._fetched_at + MAX_STALE_SECONDS

    def _start_fetch(self, now: float) -> None:
        """Start to fetch the keys, unless a fetch is running or was tried a moment ago.

        It runs in a task of its own, so that cancelling one request does not cancel it for all.
        """
        assert self._group is not None, "used outside of `async with`"
        if self._fetching is None and now >= self._tried_at + RETRY_SECONDS:
            self._fetching = anyio.Event()
            self._tried_at = now
            self._group.start_soon(self._refresh, self._fetching)

    async def _wait_for_fetch(self) -> None:
        if self._fetching is not None:
            await self._fetching.wait()

    async def _refresh(self, done: anyio.Event) -> None:
        """Fetch the keys; failures are logged, and the old keys stay."""
        try:
            with anyio.fail_after(2 * self._seconds):
                keys, kept = await self._fetch()
        except Exception as error:
            # No answer of the issuer may stop the server.
            self._good_until = -float("inf")
            # The URL of the keys may have changed.
            self._found_at = -float("inf")
            if not self._is_unreachable:
                self._is_unreachable = True
                effect = "the previous keys stay in use" if self._keys else "signed tokens are refused"
                logger.warning(
                    "the keys of %s cannot be fetched: %s; %s", self._oidc.issuer, _describe(error), effect
                )
        else:
            if self._is_unreachable:
                self._is_unreachable = False
                logger.warning("the keys of %s can be fetched again", self._oidc.issuer)
            self._keys = keys
            self._fetched_at = self._ticks()
            self._good_until = self._fetched_at + kept
        finally:
            self._fetching = None
            done.set()

    async def _fetch(self) -> tuple[tuple[PublicKey, ...], float]:
        now = self._ticks()
        if not self._oidc.jwks_url and now >= self._found_at + MAX_CACHE_SECONDS:
            self._jwks_url = await self._discover()
            self._found_at = now
        answer = await self._get(self._jwks_url)
        if answer.status != 200:
            raise SourceError(f"{quoted(self._jwks_url)} answered with status {answer.status}")
        keys = parse_key_set(answer.body)
        if len(keys) == 0:
            raise SourceError("the key set has no usable key")
        kept = fresh_seconds(answer.headers)
        return keys, DEFAULT_CACHE_SECONDS if kept is None else min(
            max(kept, MIN_CACHE_SECONDS), MAX_CACHE_SECONDS
        )

    async def _discover(self) -> str:
        """Return the JWKS URL from the issuer's metadata."""
        for url in discovery_urls(self._oidc.issuer):
            answer = await self._get(url)
            if answer.status == 200:
                return _keys_url(answer.body, self._oidc.issuer)
        raise SourceError("the issuer publishes no metadata document")

    async def _get(self, url: str) -> WebResponse:
        parts = urlsplit(url)
        # The issuer is trusted, so its JWKS URL may be on any host; redirects are not followed.
        address = SiteAddress.parse(f"{parts.scheme}://{parts.netloc}")
        return await WebClient(address, seconds=self._seconds).get(url, max_bytes=MAX_BYTES)


def discovery_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs of an issuer's metadata (OpenID Connect Discovery, RFC 8414)."""
    parts = urlsplit(issuer)
    home, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (f"{home}{path}{_OPENID}", f"{home}{_OAUTH}{path}")


def parse_key_set(body: bytes) -> tuple[PublicKey, ...]:
    """Parse a key set. Keys of another type, or for another use, are left out.

    Raises:
        SourceError: It is not a key set, or has too many keys.
    """
    keys = _document(body, "the key set").get("keys")
    if not isinstance(keys, list):
        raise SourceError("the key set has no list `keys`")
    items = cast("list[object]", keys)
    if len(items) > MAX_KEYS:
        raise SourceError(f"the key set has more than {MAX_KEYS} keys")
    return tuple(key for key in map(parse_key, items) if key is not None)


def _keys_url(body: bytes, issuer: str) -> str:
    found = _document(body, "the issuer metadata")
    if found.get("issuer") != issuer:
        raise SourceError(
            f"the metadata names the issuer {quoted(str(found.get('issuer')))}",
            fix="configure exactly that issuer",
        )
    url = found.get("jwks_uri")
    if not isinstance(url, str) or not url.isascii():
        raise SourceError("the issuer metadata has no valid jwks_uri")
    if urlsplit(issuer).scheme == "https" and not url.startswith("https://"):
        raise SourceError("the jwks_uri of an https issuer is not https")
    return url


def _describe(error: Exception) -> str:
    if isinstance(error, SkillError):
        return f"{error} ({error.fix})" if error.fix else str(error)
    return "timed out" if isinstance(error, TimeoutError) else quoted(repr(error))


def _document(body: bytes, what: str) -> dict[str, Any]:
    try:
        found = parse_strictly(body)
    except StrictJsonError as error:
        raise SourceError(f"{what} {error}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{what} is not a JSON object")
    return cast("dict[str, Any]", found)


# Tokens that are signed with these keys.


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
