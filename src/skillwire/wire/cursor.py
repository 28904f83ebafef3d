"""Keyset cursors: "go on after this URI".

A cursor holds no position and no state of a process, so any replica can
continue a listing, and a listing that changes under way loses nothing that
stayed in it.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from skillwire.core.uri import MAX_URI_LENGTH
from skillwire.errors import InvalidCursorError

_CURSOR = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_NAME = 64
_LONGEST = 4 * (MAX_URI_LENGTH + _LONGEST_NAME) // 3


def write_cursor(listing: str, after: str) -> str:
    """Return the cursor that continues `listing`, a one-word name, after the item at the URI `after`."""
    return urlsafe_b64encode(f"{listing}:{after}".encode()).decode("ascii").rstrip("=")


def read_cursor(listing: str, cursor: str) -> str:
    """Return the URI after which to go on.

    Raises:
        InvalidCursorError: No cursor of this listing looks like that.
    """
    if len(cursor) <= _LONGEST and _CURSOR.fullmatch(cursor):
        try:
            name, colon, after = (
                urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("utf-8").partition(":")
            )
        except ValueError:
            pass
        else:
            if name == listing and colon and write_cursor(listing, after) == cursor:
                return after
    raise InvalidCursorError("the cursor is not one of this listing", fix="start the listing again")


def is_cursor_of(listing: str, cursor: str) -> bool:
    """Tell whether a cursor continues `listing`."""
    try:
        read_cursor(listing, cursor)
    except InvalidCursorError:
        return False
    return True
