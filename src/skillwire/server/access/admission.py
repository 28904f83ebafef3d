"""`Admission`: from the header of a request to who asks and what they may see. Nothing else decides that."""

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Final, Protocol, Self

from skillwire.errors import CredentialError
from skillwire.server.access.caller import ANONYMOUS, Caller
from skillwire.server.access.credentials import credential_of
from skillwire.server.access.reloading import Reloaded
from skillwire.server.access.rules import FOR_ANYONE, FOR_CALLERS, Rules, read_rules
from skillwire.server.access.settings import Access, AccessError, Oidc
from skillwire.server.access.sight import Sight
from skillwire.server.access.tokens import PREFIX, Tokens, read_tokens

MOST_KNOWN: Final = 4096
KNOWN_SECONDS: Final = 60.0
"""Seconds for which a signed token that was found good is taken for good."""

_NO_HEADER = b""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who asks, and what they may see."""

    caller: Caller
    sight: Sight


@dataclass(frozen=True, slots=True)
class _Known:
    admitted: Admitted
    is_basic: bool
    until: float
    """By the steady clock."""
    expires: float
    """By the wall clock."""


class _SignedTokens(AbstractAsyncContextManager["_SignedTokens"], Protocol):
    async def caller(self, credential: str) -> Caller: ...


class Admission:
    """Admits callers as `access` says, while it is open (`async with`).

    Files are read when it opens, and again when they change; the caller of a
    header that was admitted before is known at once. Headers are remembered by
    their digests alone.
    """

    def __init__(
        self,
        access: Access,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda is_good: None,
    ) -> None:
        """Tell `on_change` of each version of a file that was read anew, and whether it could be used."""
        self.access = access
        self._now = now
        self._ticks = ticks
        self._tokens: Reloaded[Tokens] | None = None
        self._rules: Reloaded[Rules] | None = None
        if access.tokens is not None:
            self._tokens = Reloaded(access.tokens, read_tokens, now=now, ticks=ticks, on_change=on_change)
        if access.rules is not None:
            self._rules = Reloaded(access.rules, read_rules, now=now, ticks=ticks, on_change=on_change)
        self._signed: _SignedTokens | None = None
        self._known: dict[bytes, _Known] = {}
        self._versions = (0, 0)
        self._stack = AsyncExitStack()

    def load(self) -> None:
        """Read the files, so that what is wrong with them is known before anyone asks.

        Raises:
            AccessError: A file cannot be used, or what checks signed tokens is not installed.
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
        """Read the files anew, now; one that cannot be used is logged, and what it said before goes on."""
        for file in (self._tokens, self._rules):
            if file is not None:
                file.reload()
        self._forget_outdated()

    def recall(self, authorization: bytes | None, *, basic: bool = False) -> Admitted | None:
        """Return what the same header was admitted as a while ago; None when that has to be found out."""
        for file in (self._tokens, self._rules):
            if file is not None:
                file.look()
        self._forget_outdated()
        key = _key(authorization)
        known = self._known.get(key)
        if known is None or (known.is_basic and not basic):
            return None
        if self._ticks() >= known.until or self._now() >= known.expires:
            del self._known[key]
            return None
        return known.admitted

    async def admit(self, authorization: bytes | None, *, basic: bool = False) -> Admitted:
        """Return who asks with a header, or without one, and what they may see.

        With `basic` the credential may also stand where a browser puts a password.

        Raises:
            CredentialError: Nobody can tell who it is, or only callers who can be told are admitted.
        """
        recalled = self.recall(authorization, basic=basic)
        if recalled is not None:
            return recalled
        caller, kept = await self._caller(authorization, basic=basic)
        admitted = Admitted(caller, self._sight(caller))
        is_basic = authorization is not None and authorization.lstrip(b" \t")[:5].lower() == b"basic"
        expires = float("inf") if caller.expires is None else caller.expires
        while len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[_key(authorization)] = _Known(admitted, is_basic, self._ticks() + kept, expires)
        return admitted

    async def _caller(self, authorization: bytes | None, *, basic: bool) -> tuple[Caller, float]:
        """Return who asks, and for how many seconds that stays true."""
        if self.access.is_open:
            return ANONYMOUS, float("inf")
        if authorization is None:
            if self.access.allow_anonymous:
                return ANONYMOUS, float("inf")
            raise CredentialError(
                "this server answers only who shows a credential",
                reason="missing",
                fix="send the header Authorization: Bearer, a blank, and a token",
            )
        credential = credential_of(authorization, basic=basic)
        if self._signed is not None and (self._tokens is None or not credential.startswith(PREFIX)):
            return await self._signed.caller(credential), KNOWN_SECONDS
        tokens = Tokens() if self._tokens is None else self._tokens.value
        return tokens.caller(credential, now=self._now()), float("inf")

    def _sight(self, caller: Caller) -> Sight:
        if self._rules is not None:
            return self._rules.value.sight(caller)
        standing: Rules = FOR_ANYONE if self.access.is_open else FOR_CALLERS
        return standing.sight(caller)

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


def _signed_tokens(oidc: Oidc, now: Callable[[], float], ticks: Callable[[], float]) -> _SignedTokens:
    """Load what checks signed tokens, which only servers need that take them."""
    try:
        module = import_module("skillwire.server.access.oidc")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("joserfc", "cryptography"):
            raise
        raise AccessError(
            "what checks signed tokens is not installed", fix='pip install "skillwire[auth]"'
        ) from error
    return module.SignedTokens(oidc, now=now, ticks=ticks)
