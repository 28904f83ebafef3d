"""`AccessSettings`: how callers are authenticated, and how fast they may ask. Values that can be pickled."""

import base64
import binascii
import logging
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skillwire.core import CredentialError, JsonDict, SkillError, is_loopback, literal, quoted

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
"""Algorithms of signed tokens. All are asymmetric: the server never holds a key that could sign."""
SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")
"""One scope, in the syntax of OAuth 2.1."""
MOST_PER_SECOND: Final = 1_000_000

_LONGEST_URL = 2048
_LONGEST_CLAIM = 256
_MOST_SCOPES = 64
# Printable ASCII, without what would end a quoted string in a header.
_URL = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class AccessError(SkillError):
    """A setting or a file about access that cannot be used. Nothing of it takes effect."""

    refusal = "invalid-config"
    violates = "SEC-14"


@dataclass(frozen=True, slots=True)
class Oidc:
    """Whose signed tokens are accepted, and for which audience.

    `issuer` is compared exactly with the token's `iss`. Without `jwks_url`, the
    issuer's metadata says where its keys are. Claims are named as in a token; a
    nested one is written with a dot. Without `scopes_claim`, scopes are those
    of `scope`, or else of `scp`. Each token must have all of `required_scopes`.

    Raises:
        AccessError: A value cannot be used.
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
                fix="set the one that the issuer puts into tokens for this server, usually its URL",
            )
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            what = (
                f"unknown signature algorithm {quoted(unknown[0])}" if unknown else "no signature algorithm"
            )
            raise AccessError(what, fix=f"use {', '.join(ALGORITHMS)}")
        if not self.groups_claim or max(len(self.groups_claim), len(self.scopes_claim)) > _LONGEST_CLAIM:
            raise AccessError("the name of a claim is empty or too long")
        if len(self.required_scopes) > _MOST_SCOPES:
            raise AccessError(f"no more than {_MOST_SCOPES} scopes can be required")
        for scope in self.required_scopes:
            if not SCOPE.fullmatch(scope):
                raise AccessError(f"{quoted(scope)} is not a scope", fix="a scope has no spaces or quotes")


@dataclass(frozen=True, slots=True)
class Rate:
    """How many requests a caller may make: `per_second` on average, and `burst` at once.

    Raises:
        AccessError: A value is out of bounds.
    """

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_second) and 0 < self.per_second <= MOST_PER_SECOND):
            raise AccessError(f"a rate is more than 0 and at most {MOST_PER_SECOND} requests a second")
        if not 1 <= self.burst <= MOST_PER_SECOND:
            raise AccessError(f"a burst is from 1 to {MOST_PER_SECOND} requests")


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access settings of a server: token file, issuer, anonymous access, and rules.

    `public_url` is the URL of the endpoint for clients.

    Raises:
        AccessError: The URL is invalid, or missing although signed tokens are accepted.
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
                "a server that accepts signed tokens needs its public URL",
                fix="set --public-url to the URL that clients use, such as https://skills.example.org/mcp",
            )

    @property
    def is_open(self) -> bool:
        """Whether no credentials are configured."""
        return self.tokens is None and self.oidc is None


def _require_url(what: str, url: str, *, has_query: bool, is_encrypted: bool) -> None:
    fix = "write https:// and a host, such as https://login.example.org"
    if len(url) > _LONGEST_URL or not _URL.fullmatch(url):
        raise AccessError(f"{what} is not a URL", fix=fix)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_usable = parts.port is None or parts.port > 0
    except ValueError:
        raise AccessError(f"{what} is not a URL: {quoted(url)}", fix=fix) from None
    if not is_usable or not host or parts.scheme not in ("http", "https"):
        raise AccessError(f"{what} is not an http or https URL: {quoted(url)}", fix=fix)
    if parts.username is not None or "#" in url or ("?" in url and not has_query):
        raise AccessError(f"{what} must not have a user name, a query or a fragment")
    if is_encrypted and parts.scheme == "http" and not _is_this_machine(host):
        raise AccessError(f"{what} must begin with https://", fix="http:// is for this machine only")


def _is_this_machine(host: str) -> bool:
    address = literal(host)
    return host == "localhost" if address is None else is_loopback(address)


# `Caller`: the authenticated sender of a request.


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a valid credential.

    `name` identifies the caller in logs, rate limits and sessions. `token` is the
    name of a token from the token file, `subject` and `issuer` come from a signed
    token; values that the credential does not contain are empty. `expires` is
    the POSIX time at which the credential expires.
    """

    name: str
    token: str = ""
    subject: str = ""
    issuer: str = ""
    client: str = ""
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    expires: float | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the request had no credential."""
        return not self.token and not self.subject


ANONYMOUS: Final = Caller("anonymous")


# Parsing of the header `Authorization`, which is untrusted input.


MAX_CREDENTIAL: Final = 8 * 1024
"""The maximum length of a credential in characters."""

# Basic authentication encodes a user name and the credential in base64.
_MAX_HEADER = MAX_CREDENTIAL * 3 // 2
_HEADER = re.compile(rb"[ \t]*([A-Za-z]{1,16}) +([A-Za-z0-9._~+/-]+=*)[ \t]*")
_CREDENTIAL = re.compile(rb"[A-Za-z0-9._~+/=-]+")


def credential_of(authorization: bytes, *, basic: bool) -> str:
    """Return the credential in a header: the token of `Bearer`, or where allowed the password of `Basic`.

    Raises:
        CredentialError: It contains none, more than one, or one that is too long.
    """
    found = _HEADER.fullmatch(authorization) if len(authorization) <= _MAX_HEADER else None
    scheme = b"" if found is None else found[1].lower()
    if found is not None and scheme == b"bearer":
        return _checked(found[2])
    if found is not None and basic and scheme == b"basic":
        try:
            pair = base64.b64decode(found[2], validate=True)
        except (binascii.Error, ValueError):
            raise _malformed() from None
        _, colon, password = pair.partition(b":")
        return _checked(password if colon else b"")
    raise _malformed()


def _checked(credential: bytes) -> str:
    if len(credential) > MAX_CREDENTIAL or not _CREDENTIAL.fullmatch(credential):
        raise _malformed()
    return credential.decode("ascii")


def _malformed() -> CredentialError:
    return CredentialError(
        "the Authorization header is malformed",
        reason="malformed",
        fix="send the header Authorization: Bearer TOKEN",
    )


# Reading of token and rule files, which only their owner may be able to write.


_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH
# Without O_NONBLOCK, opening a pipe would block.
_OPENING: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_HAS_MODES = os.name == "posix"

logger = logging.getLogger(__name__)


def read_owner_writable(path: Path, *, most: int, what: str, is_private: bool = False) -> bytes:
    """Return the content of a regular file that only its owner can write; symbolic links are followed.

    With `is_private`, a warning is logged when others can read the file.

    Raises:
        AccessError: The file cannot be read, others can write it, or it has more than `most` bytes.
    """
    shown = f"the {what} {quoted(path.name)}"
    try:
        descriptor = os.open(path, _OPENING)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise AccessError(f"{shown} is not a regular file")
            if _HAS_MODES and mode & _OTHERS_WRITE:
                raise AccessError(f"{shown} is writable by others than its owner", fix="chmod go-w the file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(most + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = error.strerror or "unknown error"
        raise AccessError(
            f"{shown} cannot be read: {reason}", fix="check the path and its permissions"
        ) from (error)
    if len(content) > most:
        raise AccessError(f"{shown} is larger than {most} bytes")
    if is_private and _HAS_MODES and mode & _OTHERS_READ:
        logger.warning("%s is readable by others; chmod go-r the file", shown)
    return content


# Responses to unauthenticated clients: protected resource metadata (RFC 9728) and challenges.


METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
REALM: Final = "skills"
BASIC_CHALLENGE: Final = f'Basic realm="{REALM}", charset="UTF-8"'
"""For browsers, which then ask the user for a token as the password."""

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 503


def metadata(access: AccessSettings) -> JsonDict | None:
    """Return the protected resource metadata; None when no issuer is configured."""
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


def metadata_paths(access: AccessSettings) -> tuple[str, ...]:
    """Return the paths of `metadata`: that of the endpoint, and that of the whole host."""
    if access.oidc is None:
        return ()
    path = urlsplit(access.public_url).path.rstrip("/")
    return tuple(dict.fromkeys((f"{METADATA_PATH}{path}", METADATA_PATH)))


def metadata_url(access: AccessSettings) -> str:
    """Return the URL of `metadata`; empty when there is none."""
    if access.oidc is None:
        return ""
    parts = urlsplit(access.public_url)
    return f"{parts.scheme}://{parts.netloc}{metadata_paths(access)[0]}"


def challenge(access: AccessSettings, error: CredentialError) -> str:
    """Return the value of `WWW-Authenticate` for a refused request."""
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
    """Return the HTTP status of a refused request."""
    if error.reason == "unavailable":
        return UNAVAILABLE
    return FORBIDDEN if error.reason == "scope" else UNAUTHORIZED
