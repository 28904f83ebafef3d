"""`Admission`: authenticates the `Authorization` header of a request, and returns what the caller may see."""

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

import anyio

from skillwire.core import CredentialError, SkillError, TokenBucket
from skillwire.server.access.rules import FOR_ANYONE, FOR_CALLERS, Rules, read_rules
from skillwire.server.access.settings import (
    ANONYMOUS,
    AccessError,
    AccessSettings,
    Caller,
    Oidc,
    Rate,
    credential_of,
)
from skillwire.server.access.tokens import PREFIX, Tokens, read_tokens
from skillwire.server.visibility import Visibility

# `ReloadedFile`: the parsed content of a file, reloaded when the file changes.


CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of a file."""

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, ...] | None
"""Identifies a version of a file; None when there is no file."""

logger = logging.getLogger(__name__)


class ReloadedFile(Generic[T]):
    """The value of a file, which `read` reads and parses.

    The file is checked on access, at most once a second. A new version is read
    when it is a second old, or two checks in a row found it, so that a file is
    not read while it is being written. An invalid version is logged once, and
    the last valid one stays in use, also when the file is deleted. `version`
    changes with the value.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda is_good: None,
    ) -> None:
        """Call `on_change` after each reload, with whether the new version is valid."""
        self.version = 0
        self._on_change = on_change
        self._path = path
        self._read = read
        self._now = now
        self._ticks = ticks
        self._next_check = -float("inf")
        self._value: T | None = None
        self._loaded_stamp: Stamp = None
        self._last_stamp: Stamp = None

    def load(self) -> T:
        """Read the file for the first time.

        Raises:
            SkillError: The file is invalid.
        """
        self._last_stamp = self._loaded_stamp = _stamp(self._path)
        self._value = self._read(self._path)
        self._next_check = self._ticks() + CHECK_SECONDS
        self.version += 1
        return self._value

    @property
    def value(self) -> T:
        """The value of the last valid version."""
        assert self._value is not None, "load() has not been called"
        return self._value

    def check(self) -> None:
        """Reload the file if it has changed, unless the last check was less than a second ago."""
        now = self._ticks()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        stamp = _stamp(self._path)
        if stamp != self._loaded_stamp and (stamp == self._last_stamp or self._is_settled(stamp)):
            self._replace(stamp)
        self._last_stamp = stamp

    def reload(self) -> None:
        """Reload the file now."""
        self._last_stamp = _stamp(self._path)
        self._replace(self._last_stamp)

    def _is_settled(self, stamp: Stamp) -> bool:
        return stamp is not None and self._now() - stamp[-1] / 1e9 >= CHECK_SECONDS

    def _replace(self, stamp: Stamp) -> None:
        self._loaded_stamp = stamp
        try:
            self._value = self._read(self._path)
        except SkillError as error:
            fix = f" ({error.fix})" if error.fix else ""
            logger.error("%s%s; the previous version stays in use", error, fix)
            self._on_change(False)
            return
        self.version += 1
        self._on_change(True)
        logger.info("%s was reloaded", self._path.name)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    # With ctime, so that the file is read again after its permissions were corrected.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


MAX_CACHED: Final = 4096
SIGNED_TOKEN_SECONDS: Final = 60.0
"""Seconds for which the result of verifying a signed token is cached."""

_NO_HEADER = b""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """An authenticated caller, what they may see and do, and the part of it that their view has."""

    caller: Caller
    visibility: Visibility
    of_view: Visibility = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_view", self.visibility.of_view)


@dataclass(frozen=True, slots=True)
class _CachedAdmission:
    admitted: AdmittedCaller
    is_basic: bool
    until: float
    """Monotonic clock."""
    expires: float
    """POSIX time."""


class _TokenVerifier(AbstractAsyncContextManager["_TokenVerifier"], Protocol):
    async def caller(self, credential: str) -> Caller: ...


class Admission:
    """Authenticator of callers, configured by `access`; used as a context manager (`async with`).

    Files are read when it opens, and again when they change. Results are cached
    by the digest of the header; headers themselves are not stored.
    """

    def __init__(
        self,
        access: AccessSettings,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda is_good: None,
    ) -> None:
        """Call `on_change` after each reload of a file, with whether the new version is valid."""
        self.access = access
        self._now = now
        self._ticks = ticks
        self._on_change = on_change
        self._tokens: ReloadedFile[Tokens] | None = None
        self._rules: ReloadedFile[Rules] | None = None
        if access.tokens is not None:
            self._tokens = self._reloaded(access.tokens, read_tokens)
        if access.rules is not None:
            self._rules = self._reloaded(access.rules, read_rules)
        self._signed: _TokenVerifier | None = None
        self._known: dict[bytes, _CachedAdmission] = {}
        self._versions = (0, 0)
        self._stack = AsyncExitStack()

    def load(self) -> None:
        """Read the files, so that errors in them are raised before the first request.

        Raises:
            AccessError: A file is invalid, or the packages that verify signed tokens are not installed.
        """
        for file in (self._tokens, self._rules):
            if file is not None:
                file.load()
        if self.access.oidc is not None and self._signed is None:
            self._signed = _signed_tokens(self.access.oidc, self._now, self._ticks)

    async def __aenter__(self) -> Self:
        self.load()
        if self._signed is not None:
            await self._stack.enter_async_context(self._signed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._known.clear()
        return await self._stack.__aexit__(kind, error, trace)

    def reload(self) -> None:
        """Reload the files now; an invalid file is logged, and its previous version stays in use."""
        for file in (self._tokens, self._rules):
            if file is not None:
                file.reload()
        self._forget_outdated()

    def reconfigure(self, access: AccessSettings) -> None:
        """Admit as `access` says from now on; its signed tokens are those of before.

        Raises:
            AccessError: A file cannot be used. Nothing is changed then.
        """
        tokens, rules = self._tokens, self._rules
        if access.tokens != self.access.tokens:
            tokens = None if access.tokens is None else self._reloaded(access.tokens, read_tokens)
        if access.rules != self.access.rules:
            rules = None if access.rules is None else self._reloaded(access.rules, read_rules)
        for file, before in ((tokens, self._tokens), (rules, self._rules)):
            if file is not None and file is not before:
                file.load()
        self.access, self._tokens, self._rules = access, tokens, rules
        self._known.clear()

    def _reloaded(self, path: Path, read: Callable[[Path], _T]) -> ReloadedFile[_T]:
        return ReloadedFile(path, read, now=self._now, ticks=self._ticks, on_change=self._on_change)

    def cached_result(self, authorization: bytes | None, *, basic: bool = False) -> AdmittedCaller | None:
        """Return the cached result for a header; None when it has to be authenticated."""
        for file in (self._tokens, self._rules):
            if file is not None:
                file.check()
        self._forget_outdated()
        key = _key(authorization)
        known = self._known.get(key)
        if known is None or (known.is_basic and not basic):
            return None
        if self._ticks() >= known.until or self._now() >= known.expires:
            del self._known[key]
            return None
        return known.admitted

    async def admit(self, authorization: bytes | None, *, basic: bool = False) -> AdmittedCaller:
        """Return the caller of a header, or of none, and what they may see.

        With `basic` the credential may also be the password of HTTP Basic authentication.

        Raises:
            CredentialError: The credential is invalid, or it is missing and required.
        """
        recalled = self.cached_result(authorization, basic=basic)
        if recalled is not None:
            return recalled
        caller, kept = await self._caller(authorization, basic=basic)
        admitted = AdmittedCaller(caller, self._visibility_of(caller))
        is_basic = authorization is not None and authorization.lstrip(b" \t")[:5].lower() == b"basic"
        expires = float("inf") if caller.expires is None else caller.expires
        while len(self._known) >= MAX_CACHED:
            del self._known[next(iter(self._known))]
        self._known[_key(authorization)] = _CachedAdmission(admitted, is_basic, self._ticks() + kept, expires)
        return admitted

    async def _caller(self, authorization: bytes | None, *, basic: bool) -> tuple[Caller, float]:
        """Return the caller, and for how many seconds the result may be cached."""
        if self.access.is_open:
            return ANONYMOUS, float("inf")
        if authorization is None:
            if self.access.allow_anonymous:
                return ANONYMOUS, float("inf")
            raise CredentialError(
                "this server requires a credential",
                reason="missing",
                fix="send the header Authorization: Bearer TOKEN",
            )
        credential = credential_of(authorization, basic=basic)
        if self._signed is not None and (self._tokens is None or not credential.startswith(PREFIX)):
            return await self._signed.caller(credential), SIGNED_TOKEN_SECONDS
        tokens = Tokens() if self._tokens is None else self._tokens.value
        return tokens.caller(credential, now=self._now()), float("inf")

    def _visibility_of(self, caller: Caller) -> Visibility:
        if self._rules is not None:
            return self._rules.value.visibility_of(caller)
        defaults: Rules = FOR_ANYONE if self.access.is_open else FOR_CALLERS
        return defaults.visibility_of(caller)

    def _forget_outdated(self) -> None:
        versions = (
            0 if self._tokens is None else self._tokens.version,
            0 if self._rules is None else self._rules.version,
        )
        if versions != self._versions:
            self._versions = versions
            self._known.clear()


def _key(authorization: bytes | None) -> bytes:
    return _NO_HEADER if authorization is None else hashlib.sha256(authorization).digest()


def _signed_tokens(oidc: Oidc, now: Callable[[], float], ticks: Callable[[], float]) -> _TokenVerifier:
    """Import the verifier of signed tokens, which needs optional packages."""
    try:
        module = import_module("skillwire.server.access.oidc")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("joserfc", "cryptography"):
            raise
        raise AccessError(
            "the packages that verify signed tokens are not installed", fix='pip install "skillwire[auth]"'
        ) from error
    return module.SignedTokens(oidc, now=now, ticks=ticks)


# `LiveGrants`: rechecks the authorization of requests while they are being answered.


GRANT_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks, and so the time a stream may outlive its authorization."""


@dataclass(slots=True, eq=False)
class _LiveGrant:
    """One request: its authorization, how to check it again, and the event that ends it."""

    admitted: AdmittedCaller
    readmit: Callable[[], Awaitable[AdmittedCaller]]
    ended: anyio.Event = field(default_factory=anyio.Event)


class LiveGrants:
    """The requests in progress, each with the event that ends it.

    A stream of changes stays open until its client closes it. When the
    credential expires or is revoked, or the rules change, the server ends it;
    the client reconnects and is authorized again.
    """

    def __init__(self) -> None:
        self._grants: set[_LiveGrant] = set()

    @contextmanager
    def track(
        self, admitted: AdmittedCaller, readmit: Callable[[], Awaitable[AdmittedCaller]]
    ) -> Generator[anyio.Event]:
        """Recheck a request while the block runs; the event is set when it has to end."""
        grant = _LiveGrant(admitted, readmit)
        self._grants.add(grant)
        try:
            yield grant.ended
        finally:
            self._grants.discard(grant)

    async def keep_checking(self) -> None:
        """End requests that are no longer allowed, until cancelled."""
        while True:
            await anyio.sleep(GRANT_CHECK_SECONDS)
            for grant in tuple(self._grants):
                if not grant.ended.is_set() and not await _is_allowed(grant):
                    grant.ended.set()


async def _is_allowed(grant: _LiveGrant) -> bool:
    try:
        return await grant.readmit() == grant.admitted
    except CredentialError as error:
        logger.info("stream ended: its credential is no longer valid (%s)", error.reason)
        return False
    except Exception:
        logger.exception("stream ended: its credential could not be checked")
        return False


# `RateLimiter`: rate limits for each caller.


MAX_CALLERS: Final = 10_000
_SHARED_BUCKETS: Final = 1024
# Removing full buckets iterates over all of them.
_SWEEP_SECONDS: Final = 0.25


class RateLimiter:
    """A token bucket for each caller, which holds `rate.burst` requests and refills by `rate.per_second`.

    Only full buckets are removed, which equal new ones: load by other callers
    never resets a bucket. When `most` buckets are in use, new callers share a
    fixed number of buckets.
    """

    def __init__(
        self, rate: Rate, *, most: int = MAX_CALLERS, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._ticks = ticks
        self._buckets: dict[str, TokenBucket] = {}
        self._shared = [TokenBucket(rate.burst, rate.per_second, clock=ticks) for _ in range(_SHARED_BUCKETS)]
        self._next_sweep = float("-inf")

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Count one request of a caller; return 0 when it is allowed, else the seconds to wait."""
        bucket = self._buckets.get(name)
        if bucket is not None:
            return bucket.take()
        shared = self._shared[hash(name) % _SHARED_BUCKETS]
        if not self._has_room():
            return shared.take()
        bucket = copy(shared)
        wait = bucket.take()
        if not wait:
            self._buckets[name] = bucket
        return wait

    def _has_room(self) -> bool:
        """Return whether another bucket can be stored, after removing the full ones."""
        if len(self._buckets) < self._most:
            return True
        now = self._ticks()
        if now < self._next_sweep:
            return False
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full}
        self._next_sweep = now + _SWEEP_SECONDS
        return len(self._buckets) < self._most
