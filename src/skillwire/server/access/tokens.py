"""`Tokens`: static bearer tokens, stored as digests in the token file.

A token is `skw_NAME_SECRET`. The name is public and selects the line of the
file; the secret is 256 random bits, as 64 hexadecimal digits. That many cannot
be guessed, so a plain SHA-256 of the token is as safe as a slow password hash,
and fast enough for every request. The file has one token per line:

    NAME sha256:HEX [group=a,b] [scope=x,y] [expires=2027-01-31T00:00:00Z]

Lines that begin with `#` are comments.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from skillwire.core import CredentialError, quoted
from skillwire.server.access.settings import ANONYMOUS, AccessError, Caller, read_owner_writable

PREFIX: Final = "skw_"
MAX_SIZE: Final = 1024 * 1024
MAX_TOKENS: Final = 5000
MAX_VALUES: Final = 64

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
_TOKEN = re.compile(rf"{PREFIX}({_NAME.pattern})_[0-9a-f]{{64}}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# The characters of OAuth scopes, without those with a meaning in the token file.
_VALUE = re.compile(r"[\x21\x24-\x2b\x2d-\x5b\x5d-\x7e]{1,128}")
_EXPIRES = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_UNKNOWN_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Token:
    """One line of a token file, which has the digest of a token and not the token itself."""

    name: str
    digest: str
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    expires: datetime | None = None

    @classmethod
    def parse(cls, line: str) -> "Token":
        """Parse a line.

        Raises:
            AccessError: The line is malformed.
        """
        name, *words = line.split() or [""]
        found = _DIGEST.fullmatch(words[0]) if words else None
        if found is None:
            raise AccessError("after the name, sha256: and 64 lower-case hexadecimal digits are expected")
        values: dict[str, str] = {}
        for option in words[1:]:
            key, equals, value = option.partition("=")
            if not equals or key not in ("group", "scope", "expires"):
                raise AccessError(f"{quoted(option)} is unknown", fix="use group=, scope= or expires=")
            if key in values:
                raise AccessError(f"{key}= is given twice")
            values[key] = value
        return cls(
            require_name(name),
            found[1],
            require_values("group", values["group"].split(",")) if "group" in values else (),
            require_values("scope", values["scope"].split(",")) if "scope" in values else (),
            _parse_time(values["expires"]) if "expires" in values else None,
        )

    @property
    def line(self) -> str:
        """The line of a token file that `parse` reads back."""
        parts = [self.name, f"sha256:{self.digest}"]
        if self.groups:
            parts.append(f"group={','.join(self.groups)}")
        if self.scopes:
            parts.append(f"scope={','.join(self.scopes)}")
        if self.expires is not None:
            parts.append(f"expires={format_time(self.expires)}")
        return " ".join(parts)

    @property
    def caller(self) -> Caller:
        """The holder of the token."""
        return Caller(
            self.name,
            token=self.name,
            groups=frozenset(self.groups),
            scopes=frozenset(self.scopes),
            expires=None if self.expires is None else self.expires.timestamp(),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a server, by name."""

    by_name: Mapping[str, Token] = field(default_factory=dict[str, Token])

    def caller(self, credential: str, *, now: float) -> Caller:
        """Return the holder of a token.

        An unknown name takes as long as a wrong secret, and raises the same error.

        Raises:
            CredentialError: There is no such token, or it has expired.
        """
        found = _TOKEN.fullmatch(credential)
        token = None if found is None else self.by_name.get(found[1])
        expected = _UNKNOWN_DIGEST if token is None else token.digest
        is_same = hmac.compare_digest(digest_of(credential), expected)
        if token is None or not is_same:
            raise CredentialError("unknown token", reason="unknown")
        if token.expires is not None and now >= token.expires.timestamp():
            raise CredentialError("the token has expired", reason="expired")
        return token.caller


def new_secret(name: str) -> str:
    """Return a new random token."""
    return f"{PREFIX}{require_name(name)}_{secrets.token_hex(32)}"


def digest_of(credential: str) -> str:
    """Return the digest of a token, as stored in the token file."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(path: Path) -> Tokens:
    """Read a token file that only its owner can write.

    Raises:
        AccessError: The file cannot be read, others can write it, or a line is malformed.
    """
    return parse_tokens(read_owner_writable(path, most=MAX_SIZE, what="token file", is_private=True))


def parse_tokens(content: bytes) -> Tokens:
    """Parse a token file.

    Raises:
        AccessError: It is not text, a line is malformed, or a name is duplicate; the message names the line.
    """
    if len(content) > MAX_SIZE:
        raise AccessError(f"the token file is larger than {MAX_SIZE} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AccessError("the token file is not UTF-8 text") from None
    found: dict[str, Token] = {}
    places: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if is_comment(line):
            continue
        try:
            token = Token.parse(line)
        except AccessError as error:
            raise AccessError(f"line {number} of the token file: {error}", fix=error.fix) from None
        if token.name in places:
            raise AccessError(
                f"line {number} of the token file: {token.name} is on line {places[token.name]} already",
                fix="give each token a name of its own",
            )
        found[token.name] = token
        places[token.name] = number
        if len(found) > MAX_TOKENS:
            raise AccessError(f"the token file has more than {MAX_TOKENS} tokens")
    return Tokens(found)


def is_comment(line: str) -> bool:
    """Return whether a line is blank or a comment (begins with `#`)."""
    text = line.strip()
    return not text or text.startswith("#")


def require_name(name: str) -> str:
    """Check the name of a token, and return it.

    Raises:
        AccessError: The name is invalid.
    """
    if not _NAME.fullmatch(name) or name == ANONYMOUS.name:
        raise AccessError(
            f"{quoted(name)} is not a valid token name",
            fix="use lower-case letters, digits, dots and hyphens, at most 64, and not the name anonymous",
        )
    return name


def require_values(kind: str, values: list[str]) -> tuple[str, ...]:
    """Check the groups or scopes of a token, and return them once each, in their order.

    Raises:
        AccessError: A value is invalid, or there are too many.
    """
    for value in values:
        if not _VALUE.fullmatch(value):
            raise AccessError(
                f"{quoted(value)} is not a valid {kind}",
                fix="spaces, commas, quotes, backslashes and # are not allowed",
            )
    found = tuple(dict.fromkeys(values))
    if len(found) > MAX_VALUES:
        raise AccessError(f"a token has at most {MAX_VALUES} of {kind}=")
    return found


def format_time(moment: datetime) -> str:
    """Return a time in the format of token files."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _parse_time(text: str) -> datetime:
    try:
        if not _EXPIRES.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text)
    except ValueError:
        raise AccessError(f"{quoted(text)} is not a valid time", fix="write 2027-01-31T00:00:00Z") from None


# Editing of token files: adds or removes one line, and keeps all others unchanged.


def with_token(content: bytes, token: Token) -> bytes:
    """Return the content of a token file with a token appended.

    Raises:
        AccessError: The file is malformed, or it already has a token of that name.
    """
    if token.name in parse_tokens(content).by_name:
        raise AccessError(
            f"a token named {token.name} already exists", fix="choose another name, or revoke that one first"
        )
    gap = b"\n" if content and not content.endswith(b"\n") else b""
    return _checked(content + gap + token.line.encode() + b"\n")


def without_token(content: bytes, name: str) -> bytes:
    """Return the content of a token file without a token.

    Raises:
        AccessError: The file is malformed, or it has no token of that name.
    """
    known = parse_tokens(content)
    if name not in known.by_name:
        names = ", ".join(sorted(known.by_name)[:20])
        raise AccessError(
            f"there is no token named {name}",
            fix=f"existing tokens: {names}" if names else "the file has no tokens",
        )
    lines = content.decode("utf-8-sig").split("\n")
    kept = [line for line in lines if is_comment(line) or Token.parse(line).name != name]
    return _checked("\n".join(kept).encode())


def _checked(content: bytes) -> bytes:
    """Check that the new content can be parsed, and return it."""
    parse_tokens(content)
    return content
