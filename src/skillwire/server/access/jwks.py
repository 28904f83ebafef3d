"""`IssuerKeys`: the public keys of an issuer, fetched when they are needed and kept for a while."""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc

from skillwire.core.characters import quoted
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.errors import CredentialError, SkillError, SourceError
from skillwire.server.access.settings import Oidc
from skillwire.server.access.signatures import PublicKey, parse_key
from skillwire.sources.wellknown.freshness import fresh_seconds
from skillwire.sources.wellknown.hosts import SiteAddress
from skillwire.sources.wellknown.web import Answer, Web

MAX_BYTES: Final = 1024 * 1024
MOST_KEYS: Final = 100
SHORTEST_KEPT: Final = 60.0
LONGEST_KEPT: Final = 24 * 3600.0
USUALLY_KEPT: Final = 3600.0
"""Seconds that keys are kept when the issuer does not say for how long."""
LONGEST_WITHOUT_ISSUER: Final = 24 * 3600.0
"""Seconds that the last good keys go on while the issuer cannot be reached."""
REST: Final = 10.0
"""Seconds between two attempts, whatever tokens arrive meanwhile."""
FETCH_SECONDS: Final = 5.0

_OPENID = "/.well-known/openid-configuration"
_OAUTH = "/.well-known/oauth-authorization-server"

logger = logging.getLogger(__name__)


class IssuerKeys:
    """The keys of one issuer. Nothing is fetched before `async with`, which fetches them in the background.

    Keys are fetched again when they are too old, or when a token names one
    that is not among them; never more often than every ten seconds, and never
    twice at once. Whoever has keys that are merely old does not wait. While the
    issuer is away the last good keys go on for a day.
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
        self._is_away = False
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        self._begin(self._ticks())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        group, self._group = self._group, None
        group.cancel_scope.cancel()
        # A failure of whoever uses the keys is none of a fetch, and must not be wrapped like one.
        await group.__aexit__(None, None, None)

    async def current(self) -> tuple[PublicKey, ...]:
        """Return the keys that count now.

        Raises:
            CredentialError: There are none: the issuer could not be reached, for too long.
        """
        now = self._ticks()
        if now >= self._good_until:
            self._begin(now)
        if not self._are_usable(now):
            await self._done()
        if not self._are_usable(self._ticks()):
            raise CredentialError(
                "signed tokens cannot be checked now: the keys of their issuer are not to be had",
                reason="unavailable",
                fix="try again later",
            )
        return self._keys

    async def newest(self) -> tuple[PublicKey, ...]:
        """Return the keys after another look at the issuer, unless the last look was just now."""
        self._begin(self._ticks())
        await self._done()
        return self._keys

    def _are_usable(self, now: float) -> bool:
        return bool(self._keys) and now < self._fetched_at + LONGEST_WITHOUT_ISSUER

    def _begin(self, now: float) -> None:
        """Begin to fetch the keys, unless that is going on already, or was done just now.

        It is no part of the request that wants it, or whoever breaks that off would break it off for all.
        """
        assert self._group is not None, "it is open"
        if self._fetching is None and now >= self._tried_at + REST:
            self._fetching = anyio.Event()
            self._tried_at = now
            self._group.start_soon(self._refresh, self._fetching)

    async def _done(self) -> None:
        if self._fetching is not None:
            await self._fetching.wait()

    async def _refresh(self, done: anyio.Event) -> None:
        """Fetch the keys anew; what goes wrong is logged, and the old ones stay."""
        try:
            with anyio.fail_after(2 * self._seconds):
                keys, kept = await self._fetch()
        except Exception as error:
            # A server must outlive whatever its issuer answers.
            self._good_until = -float("inf")
            # Its keys may have moved.
            self._found_at = -float("inf")
            if not self._is_away:
                self._is_away = True
                going_on = "the last ones go on" if self._keys else "no signed token can be checked"
                logger.warning(
                    "the keys of %s cannot be fetched: %s; %s", self._oidc.issuer, _words(error), going_on
                )
        else:
            if self._is_away:
                self._is_away = False
                logger.warning("the keys of %s can be fetched again", self._oidc.issuer)
            self._keys = keys
            self._fetched_at = self._ticks()
            self._good_until = self._fetched_at + kept
        finally:
            self._fetching = None
            done.set()

    async def _fetch(self) -> tuple[tuple[PublicKey, ...], float]:
        now = self._ticks()
        if not self._oidc.jwks_url and now >= self._found_at + LONGEST_KEPT:
            self._jwks_url = await self._discover()
            self._found_at = now
        answer = await self._get(self._jwks_url)
        if answer.status != 200:
            raise SourceError(f"the answer to {quoted(self._jwks_url)} is {answer.status}")
        keys = parse_key_set(answer.body)
        if len(keys) == 0:
            raise SourceError("none of the keys can be used here")
        kept = fresh_seconds(answer.headers)
        return keys, USUALLY_KEPT if kept is None else min(max(kept, SHORTEST_KEPT), LONGEST_KEPT)

    async def _discover(self) -> str:
        """Ask the issuer where its keys are."""
        for url in discovery_urls(self._oidc.issuer):
            answer = await self._get(url)
            if answer.status == 200:
                return _keys_url(answer.body, self._oidc.issuer)
        raise SourceError("it says nowhere where its keys are")

    async def _get(self, url: str) -> Answer:
        parts = urlsplit(url)
        # The issuer speaks for every caller, so where it says its keys are, they are; no redirect leads away.
        address = SiteAddress.parse(f"{parts.scheme}://{parts.netloc}")
        return await Web(address, seconds=self._seconds).get(url, max_bytes=MAX_BYTES)


def discovery_urls(issuer: str) -> tuple[str, ...]:
    """Return where an issuer may say where its keys are (OpenID Connect Discovery, RFC 8414)."""
    parts = urlsplit(issuer)
    home, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (f"{home}{path}{_OPENID}", f"{home}{_OAUTH}{path}")


def parse_key_set(body: bytes) -> tuple[PublicKey, ...]:
    """Read a set of keys. Those of another kind, or for another use, are left out.

    Raises:
        SourceError: It is no set of keys, or has too many.
    """
    keys = _object(body, "the set of keys").get("keys")
    if not isinstance(keys, list):
        raise SourceError("the set of keys has no list of keys")
    items = cast("list[object]", keys)
    if len(items) > MOST_KEYS:
        raise SourceError(f"the set of keys has more than {MOST_KEYS} keys")
    return tuple(key for key in map(parse_key, items) if key is not None)


def _keys_url(body: bytes, issuer: str) -> str:
    found = _object(body, "what it says of itself")
    if found.get("issuer") != issuer:
        raise SourceError(
            f"it calls itself {quoted(str(found.get('issuer')))}", fix="give the issuer exactly as it says"
        )
    url = found.get("jwks_uri")
    if not isinstance(url, str) or not url.isascii():
        raise SourceError("it says of itself not where its keys are")
    if urlsplit(issuer).scheme == "https" and not url.startswith("https://"):
        raise SourceError("it says that its keys are where the way is not encrypted")
    return url


def _words(error: Exception) -> str:
    if isinstance(error, SkillError):
        return f"{error} ({error.fix})" if error.fix else str(error)
    return "it takes too long" if isinstance(error, TimeoutError) else quoted(repr(error))


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        found = parse_strictly(body)
    except StrictJsonError as error:
        raise SourceError(f"{what} {error}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{what} is no object")
    return cast("dict[str, Any]", found)
