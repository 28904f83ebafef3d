"""The header `Authorization`, taken apart: a stranger's bytes become one credential, or nothing at all."""

import base64
import binascii
import re
from typing import Final

from skillwire.errors import CredentialError

MAX_CREDENTIAL: Final = 8 * 1024
"""How many characters a credential may have."""

# The password of `Basic` is encoded once more, and a user name stands before it.
_LONGEST_HEADER = MAX_CREDENTIAL * 3 // 2
_HEADER = re.compile(rb"[ \t]*([A-Za-z]{1,16}) +([A-Za-z0-9._~+/-]+=*)[ \t]*")
_CREDENTIAL = re.compile(rb"[A-Za-z0-9._~+/=-]+")


def credential_of(authorization: bytes, *, basic: bool) -> str:
    """Return the credential in a header: the token of `Bearer`, or where allowed the password of `Basic`.

    Raises:
        CredentialError: There is none in it, there are several, or it is too long.
    """
    found = _HEADER.fullmatch(authorization) if len(authorization) <= _LONGEST_HEADER else None
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
        "the Authorization header holds no credential that could be used",
        reason="malformed",
        fix="send one: Authorization: Bearer, a blank, and the token",
    )
