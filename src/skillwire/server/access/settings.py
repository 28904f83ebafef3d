"""`Access`: how a server finds out who asks, as its operator wants it. Values only; they can be pickled."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skillwire.core.addresses import is_loopback, literal
from skillwire.core.characters import quoted
from skillwire.errors import SkillError

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""What a signed token may be signed with. In none of these does the server know what an issuer signs with."""
SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")
"""One scope, as OAuth 2.1 writes it."""
MOST_PER_SECOND: Final = 1_000_000

_LONGEST_URL = 2048
_LONGEST_CLAIM = 256
_MOST_SCOPES = 64
# Printable ASCII, without what would end a quoted text in a header.
_URL = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class AccessError(SkillError):
    """A setting or a file about access that cannot be used. Nothing of it counts."""

    refusal = "invalid-config"
    requirement = "SEC-14"


@dataclass(frozen=True, slots=True)
class Oidc:
    """Whose signed tokens are taken, and for whom they must have been made.

    `issuer` is compared with the token's `iss` letter by letter. Where the
    issuer's keys are is asked of the issuer, unless `jwks_url` says it. A claim
    is named as it stands in a token; one inside another is named with a dot.
    Without `scopes_claim`, scopes are those of `scope`, or else of `scp`. Each
    token must have all of `required_scopes`.

    Raises:
        AccessError: One of these cannot be what it is meant to be.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    algorithms: tuple[str, ...] = ALGORITHMS
    groups_claim: str = "groups"
    scopes_claim: str = ""
    required_scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_url("the issuer", self.issuer, has_query=False, is_encrypted=True)
        if self.jwks_url:
            _require_url("the address of the issuer's keys", self.jwks_url, has_query=True, is_encrypted=True)
        if not self.audience or len(self.audience) > _LONGEST_URL:
            raise AccessError(
                "signed tokens need an audience",
                fix="give the one that the issuer puts into tokens for this server, usually its URL",
            )
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            what = f"{quoted(unknown[0])} is no algorithm" if unknown else "there is no algorithm"
            raise AccessError(f"{what} that tokens may be signed with", fix=f"use {', '.join(ALGORITHMS)}")
        if not self.groups_claim or max(len(self.groups_claim), len(self.scopes_claim)) > _LONGEST_CLAIM:
            raise AccessError("the name of a claim is empty, or too long")
        if len(self.required_scopes) > _MOST_SCOPES:
            raise AccessError(f"no more than {_MOST_SCOPES} scopes can be required")
        for scope in self.required_scopes:
            if not SCOPE.fullmatch(scope):
                raise AccessError(f"{quoted(scope)} is no scope", fix="a scope has no blanks and no quotes")


@dataclass(frozen=True, slots=True)
class Rate:
    """How many requests a caller may make: `per_second` for long, and `burst` at once.

    Raises:
        AccessError: That would be none, or without end.
    """

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_second) and 0 < self.per_second <= MOST_PER_SECOND):
            raise AccessError(f"a rate is more than 0 and at most {MOST_PER_SECOND} requests a second")
        if not 1 <= self.burst <= MOST_PER_SECOND:
            raise AccessError(f"a burst is from 1 to {MOST_PER_SECOND} requests")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a server: holders of `tokens`, of an issuer's tokens, or anyone; `rules` say what they see.

    `public_url` is where clients find the endpoint, as they write it.

    Raises:
        AccessError: The URL is none, or signed tokens are taken and there is none.
    """

    tokens: Path | None = None
    oidc: Oidc | None = None
    rules: Path | None = None
    allow_anonymous: bool = False
    rate: Rate | None = None
    public_url: str = ""

    def __post_init__(self) -> None:
        if self.public_url:
            _require_url("the public URL", self.public_url, has_query=False, is_encrypted=False)
        elif self.oidc is not None:
            raise AccessError(
                "a server that takes signed tokens needs to know its own URL",
                fix="give the URL that clients use, such as https://skills.example.org/mcp",
            )

    @property
    def is_open(self) -> bool:
        """Whether nobody can show a credential, because none is known here."""
        return self.tokens is None and self.oidc is None


def _require_url(what: str, url: str, *, has_query: bool, is_encrypted: bool) -> None:
    fix = "write https:// and a host, such as https://login.example.org"
    if len(url) > _LONGEST_URL or not _URL.fullmatch(url):
        raise AccessError(f"{what} is no URL", fix=fix)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_usable = parts.port is None or parts.port > 0
    except ValueError:
        raise AccessError(f"{what} is no URL: {quoted(url)}", fix=fix) from None
    if not is_usable or not host or parts.scheme not in ("http", "https"):
        raise AccessError(f"{what} is no URL of the web: {quoted(url)}", fix=fix)
    if parts.username is not None or "#" in url or ("?" in url and not has_query):
        raise AccessError(f"{what} has a user name, a query or a fragment, which it cannot have")
    if is_encrypted and parts.scheme == "http" and not _is_this_machine(host):
        raise AccessError(f"{what} begins with https://", fix="http:// is for what is on this machine")


def _is_this_machine(host: str) -> bool:
    address = literal(host)
    return host == "localhost" if address is None else is_loopback(address)
