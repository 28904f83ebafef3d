"""Cursors: opaque to clients, understood by every replica, and never taken for another listing's."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import InvalidCursorError
from skillwire.core.uri import MAX_URI_LENGTH
from skillwire.wire.core import is_cursor_of, read_cursor, write_cursor

words = st.text("abcdefghijklmnopqrstuvwxyz/", min_size=1, max_size=24)


@pytest.mark.requirement("LIST-12")
@given(words, st.text(st.characters(codec="utf-8"), max_size=200))
def test_a_cursor_leads_back_to_where_it_was_written(listing: str, uri: str) -> None:
    assert read_cursor(listing, write_cursor(listing, uri)) == uri


@pytest.mark.requirement("LIST-13")
@given(words, words, st.text(st.characters(codec="utf-8"), max_size=50))
def test_a_cursor_belongs_to_one_listing(listing: str, other: str, uri: str) -> None:
    cursor = write_cursor(listing, uri)

    assert is_cursor_of(other, cursor) == (listing == other)


@pytest.mark.requirement("LIST-13")
@given(st.text(max_size=60))
def test_any_other_text_is_refused_or_is_exactly_what_we_would_write(cursor: str) -> None:
    try:
        uri = read_cursor("skills/list", cursor)
    except InvalidCursorError:
        return

    assert write_cursor("skills/list", uri) == cursor


def test_the_longest_uri_has_a_cursor() -> None:
    uri = "skill://" + "a" * (MAX_URI_LENGTH - 8)

    assert read_cursor("resources/directory/read", write_cursor("resources/directory/read", uri)) == uri


def encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


BAD = {
    "empty": "",
    "not base64": "!",
    "a length base64 does not have": "aaaaa",
    "padding": urlsafe_b64encode(b"skills/list:x").decode(),
    "no colon": encoded(b"skills/list"),
    "not UTF-8": encoded(b"skills/list:\xff"),
    "stray bits at the end": write_cursor("skills/list", "x")[:-1] + "h",
    "a line end": write_cursor("skills/list", "x") + "\n",
    "the standard alphabet": "+/+/",
    "far too long": write_cursor("skills/list", "a" * MAX_URI_LENGTH * 2),
}


@pytest.mark.requirement("LIST-13")
@pytest.mark.parametrize("cursor", BAD.values(), ids=BAD.keys())
def test_what_no_page_ever_carried_is_refused(cursor: str) -> None:
    assert not is_cursor_of("skills/list", cursor)
    with pytest.raises(InvalidCursorError):
        read_cursor("skills/list", cursor)
