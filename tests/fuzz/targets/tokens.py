"""Token files and what callers show for themselves: a line means one thing, and nobody is someone else."""

import hashlib

from fuzz.properties import require_fit, text_of
from skillwire.core.errors import CredentialError
from skillwire.server.access.settings import MAX_CREDENTIAL, AccessError, credential_of
from skillwire.server.access.tokens import Token, Tokens, parse_tokens

_LATER = 32_503_680_000.0
_SECRET = "skw_tea_" + "0123456789abcdef" * 4
_KNOWN = Tokens({"tea": Token("tea", hashlib.sha256(_SECRET.encode()).hexdigest())})


def check(data: bytes) -> None:
    """All is a token file, and each line of it an `Authorization` header, too."""
    _check_file(data)
    for line in data.split(b"\n")[:20]:
        for basic in (False, True):
            _check_header(line, basic=basic)


def _check_file(data: bytes) -> None:
    try:
        tokens = parse_tokens(data)
    except AccessError as error:
        require_fit(str(error))
        return
    lines = [token.line for token in tokens.by_name.values()]
    assert parse_tokens("\n".join(lines).encode()) == tokens
    for name, token in tokens.by_name.items():
        assert token.name == name == token.caller.token
        assert Token.parse(token.line) == token
        assert not token.caller.is_anonymous
        for guess in (name, token.digest, f"skw_{name}_{token.digest}", f"skw_{name}_{'0' * 64}"):
            if hashlib.sha256(guess.encode()).hexdigest() != token.digest:
                _require_unknown(tokens, guess)


def _check_header(header: bytes, *, basic: bool) -> None:
    try:
        credential = credential_of(header, basic=basic)
    except CredentialError as error:
        require_fit(str(error))
        assert text_of(header) not in str(error) or len(header) < 20
        return
    assert 0 < len(credential) <= MAX_CREDENTIAL
    assert credential.isascii()
    assert not set(credential) & set(' \t\r\n,;"\\\0')
    if not basic:
        assert credential.encode() in header
        assert credential_of(header, basic=True) == credential
    bare = credential.rstrip("=")
    # A password may have this sign anywhere, a bearer token only at its end.
    if bare and "=" not in bare:
        assert credential_of(b"Bearer " + bare.encode(), basic=basic) == bare
    if credential == _SECRET:
        assert _KNOWN.caller(credential, now=0.0).token == "tea"
    else:
        _require_unknown(_KNOWN, credential)


def _require_unknown(tokens: Tokens, guess: str) -> None:
    try:
        found = tokens.caller(guess, now=_LATER)
    except CredentialError as error:
        require_fit(str(error))
        assert guess not in str(error) or len(guess) < 10
    else:
        raise AssertionError(f"{guess!r} is taken for {found}")
