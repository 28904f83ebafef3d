"""Cursors: only what a listing wrote continues it."""

from fuzz.properties import require_fit, text_of
from skillwire.core.errors import InvalidCursorError
from skillwire.wire.core import is_cursor_of, read_cursor, write_cursor

_LISTINGS = ("skills/list", "resources/list", "resources/directory/read")


def check(data: bytes) -> None:
    text = text_of(data)
    _check_read(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # No URI of ours holds half a character.
    if len(text) < 4096:
        for listing in _LISTINGS:
            cursor = write_cursor(listing, text)
            assert read_cursor(listing, cursor) == text
            assert [other for other in _LISTINGS if is_cursor_of(other, cursor)] == [listing]


def _check_read(cursor: str) -> None:
    for listing in _LISTINGS:
        try:
            after = read_cursor(listing, cursor)
        except InvalidCursorError as error:
            require_fit(str(error))
            assert not is_cursor_of(listing, cursor)
        else:
            assert write_cursor(listing, after) == cursor
