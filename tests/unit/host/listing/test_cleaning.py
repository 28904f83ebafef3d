"""A stranger's text made fit for a list."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.characters import visible
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.host.listing.text import ELLIPSIS, clean, cut, json_string, plain_or_quoted

ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=80)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Refunds an order.", "Refunds an order."),
        ("  Two\n\nlines\tand  more ", "Two lines and more"),
        ("end\u2028of\u0085line", "end of line"),
        ("a\x1b]52;c;x\x07b", "a<U+001B>]52;c;x<U+0007>b"),
        ("tag\U000e0041\U000e0042", "tag<U+E0041><U+E0042>"),
        ("a\u202eb", "a<U+202E>b"),
        ("soft\u00adhyphen", "soft<U+00AD>hyphen"),
        ("a\ufe0f", "a<U+FE0F>"),
        ("I \u2764\ufe0f it", "I \u2764 it"),
        ("نمی\u200cخواهم", "نمیخواهم"),
        ("half \ud83d pair", "half <U+D83D> pair"),
        ("no \uffff character", "no <U+FFFF> character"),
        ("", ""),
    ],
)
@pytest.mark.requirement("SEC-17")
def test_a_description_becomes_one_line_with_nothing_hidden(text: str, expected: str) -> None:
    assert clean(text) == (expected, False)


@pytest.mark.requirement("SEC-17")
def test_a_megabyte_of_description_is_cut_to_what_a_description_may_be() -> None:
    words, is_cut = clean("word " * 200_000)
    hidden, is_hidden_cut = clean("\u200b" * 1_000_000)

    assert is_cut and is_hidden_cut
    assert words.endswith(f"word{ELLIPSIS}") and 900 < len(words) <= MAX_DESCRIPTION
    assert len(hidden) <= MAX_DESCRIPTION


@given(ANYTHING)
def test_whatever_comes_in_nothing_that_hides_comes_out(text: str) -> None:
    shown, is_cut = clean(text)

    assert visible(shown) == shown
    assert " ".join(shown.split()) == shown
    assert len(shown.splitlines()) <= 1
    shown.encode()
    if text.isascii() and text.isprintable():
        assert (shown, is_cut) == (" ".join(text.split()), False)


@given(ENCODABLE)
@pytest.mark.requirement("NAME-07")
def test_a_reference_is_shown_as_it_is_or_as_a_string_that_means_it(text: str) -> None:
    shown = plain_or_quoted(text)

    assert shown == text or json.loads(shown) == text
    assert json.loads(json_string(text)) == text
    for form in (shown, json_string(text)):
        assert visible(form) == form and len(form.splitlines()) <= 1
        assert "<" not in form and ">" not in form
    assert " " not in shown or shown.startswith('"')
    assert "`" not in shown


@given(ANYTHING, st.integers(-5, 300))
def test_a_cut_fits_and_is_a_beginning(text: str, room: int) -> None:
    shown, _ = clean(text)

    piece = cut(shown, room)

    assert len(piece.encode()) <= max(room, 0)
    assert shown.startswith(piece)


def test_a_cut_is_made_at_a_word_if_there_is_one() -> None:
    assert cut("Refunds an order, and more", 18) == "Refunds an order"
    assert cut("Refunds an order", 3) == ""
    assert cut("x" * 100, 50) == "x" * 50
    assert cut("返金処理を行うためのスキル", 20) == "返金処理を行"
