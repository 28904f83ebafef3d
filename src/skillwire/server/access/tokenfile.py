"""Changing the text of a token file: one line comes or goes, and all others stay as they are."""

from skillwire.server.access.settings import AccessError
from skillwire.server.access.tokens import Token, is_remark, parse_tokens


def with_token(content: bytes, token: Token) -> bytes:
    """Return a token file with one token more, at its end.

    Raises:
        AccessError: The file is malformed, or a token of that name is in it.
    """
    if token.name in parse_tokens(content).by_name:
        raise AccessError(
            f"there is a token {token.name} already", fix="choose another name, or revoke that one first"
        )
    gap = b"\n" if content and not content.endswith(b"\n") else b""
    return _checked(content + gap + token.line.encode() + b"\n")


def without_token(content: bytes, name: str) -> bytes:
    """Return a token file without the token of that name.

    Raises:
        AccessError: The file is malformed, or no token of that name is in it.
    """
    known = parse_tokens(content)
    if name not in known.by_name:
        names = ", ".join(sorted(known.by_name)[:20])
        raise AccessError(
            f"there is no token {name}", fix=f"these are there: {names}" if names else "there are none at all"
        )
    lines = content.decode("utf-8-sig").split("\n")
    kept = [line for line in lines if is_remark(line) or Token.parse(line).name != name]
    return _checked("\n".join(kept).encode())


def _checked(content: bytes) -> bytes:
    """Never write what could not be read."""
    parse_tokens(content)
    return content
