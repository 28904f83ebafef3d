"""`Tokens`: bearer tokens of our own, known by the digests of what their holders have.

A token is `skw_NAME_SECRET`. The name is public and picks the line of the
file; the secret is 256 random bits, as 64 hexadecimal digits. Nobody can guess
that many, however fast a guess can be tried, so a plain SHA-256 of the token
keeps it as well as a slow hash keeps a password, and costs no time on each
request. The file has one token a line:

    NAME sha256:HEX [group=a,b] [scope=x,y] [expires=2027-01-31T00:00:00Z]

Lines that begin with `#` are remarks.
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

from skillwire.core.characters import quoted
from skillwire.errors import CredentialError
from skillwire.server.access.caller import ANONYMOUS, Caller
from skillwire.server.access.files import read_guarded
from skillwire.server.access.settings import AccessError

PREFIX: Final = "skw_"
MAX_SIZE: Final = 1024 * 1024
MOST_TOKENS: Final = 5000
MOST_VALUES: Final = 64

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
_TOKEN = re.compile(rf"{PREFIX}({_NAME.pattern})_[0-9a-f]{{64}}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# As scopes are, without what means something in a line.
_VALUE = re.compile(r"[\x21\x24-\x2b\x2d-\x5b\x5d-\x7e]{1,128}")
_EXPIRES = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_NOBODY = "0" * 64


@dataclass(frozen=True, slots=True)
class Token:
    """One line of a token file: what is known of a token, which is not the token itself."""

    name: str
    digest: str
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    expires: datetime | None = None

    @classmethod
    def parse(cls, line: str) -> "Token":
        """Read a line.

        Raises:
            AccessError: It is none, and the message says what is wrong with it.
        """
        name, *words = line.split() or [""]
        found = _DIGEST.fullmatch(words[0]) if words else None
        if found is None:
            raise AccessError("after the name comes sha256: and 64 lower-case hexadecimal digits")
        values: dict[str, str] = {}
        for option in words[1:]:
            key, equals, value = option.partition("=")
            if not equals or key not in ("group", "scope", "expires"):
                raise AccessError(f"{quoted(option)} is unknown", fix="known are group=, scope= and expires=")
            if key in values:
                raise AccessError(f"{key}= is there twice")
            values[key] = value
        return cls(
            require_name(name),
            found[1],
            require_values("group", values["group"].split(",")) if "group" in values else (),
            require_values("scope", values["scope"].split(",")) if "scope" in values else (),
            _time(values["expires"]) if "expires" in values else None,
        )

    @property
    def line(self) -> str:
        """The line that `parse` makes the same value of."""
        parts = [self.name, f"sha256:{self.digest}"]
        if self.groups:
            parts.append(f"group={','.join(self.groups)}")
        if self.scopes:
            parts.append(f"scope={','.join(self.scopes)}")
        if self.expires is not None:
            parts.append(f"expires={stamp_of(self.expires)}")
        return " ".join(parts)

    @property
    def caller(self) -> Caller:
        """Whoever holds the token."""
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
        """Return whoever holds a token.

        A name that nobody has costs what a wrong secret costs, and is answered alike.

        Raises:
            CredentialError: There is no such token, or it has expired.
        """
        found = _TOKEN.fullmatch(credential)
        token = None if found is None else self.by_name.get(found[1])
        expected = _NOBODY if token is None else token.digest
        is_same = hmac.compare_digest(digest_of(credential), expected)
        if token is None or not is_same:
            raise CredentialError("the token is not known here", reason="unknown")
        if token.expires is not None and now >= token.expires.timestamp():
            raise CredentialError("the token has expired", reason="expired")
        return token.caller


def new_secret(name: str) -> str:
    """Make a token that nobody has had before."""
    return f"{PREFIX}{require_name(name)}_{secrets.token_hex(32)}"


def digest_of(credential: str) -> str:
    """Return what a file knows of a token."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(path: Path) -> Tokens:
    """Read a token file that nobody else can write.

    Raises:
        AccessError: It cannot be read, others can write it, or a line is malformed.
    """
    return parse_tokens(read_guarded(path, most=MAX_SIZE, what="token file", is_private=True))


def parse_tokens(content: bytes) -> Tokens:
    """Read the lines of a token file.

    Raises:
        AccessError: It is no text, a line is malformed, or a name is there twice; the message names the line.
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
        if is_remark(line):
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
        if len(found) > MOST_TOKENS:
            raise AccessError(f"the token file has more than {MOST_TOKENS} tokens")
    return Tokens(found)


def is_remark(line: str) -> bool:
    """Tell whether a line holds no token: it is blank, or begins with `#`."""
    text = line.strip()
    return not text or text.startswith("#")


def require_name(name: str) -> str:
    """Check the name of a token, and return it.

    Raises:
        AccessError: No token can have it.
    """
    if not _NAME.fullmatch(name) or name == ANONYMOUS.name:
        raise AccessError(
            f"{quoted(name)} is no name for a token",
            fix="use lower-case letters, digits, dots and hyphens, at most 64, and not the word anonymous",
        )
    return name


def require_values(kind: str, values: list[str]) -> tuple[str, ...]:
    """Check the groups or scopes of a token, and return them once each, in their order.

    Raises:
        AccessError: One is none, or they are too many.
    """
    for value in values:
        if not _VALUE.fullmatch(value):
            raise AccessError(
                f"{quoted(value)} is no {kind}",
                fix="blanks, commas, quotes, backslashes and # are not possible",
            )
    found = tuple(dict.fromkeys(values))
    if len(found) > MOST_VALUES:
        raise AccessError(f"a token has at most {MOST_VALUES} of {kind}=")
    return found


def stamp_of(moment: datetime) -> str:
    """Return a moment as a token file writes it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _time(text: str) -> datetime:
    try:
        if not _EXPIRES.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text)
    except ValueError:
        raise AccessError(f"{quoted(text)} is no time", fix="write 2027-01-31T00:00:00Z") from None
