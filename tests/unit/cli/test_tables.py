"""Rows in columns: they fit, nothing worth copying is cut, and nobody's text gets out of its cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from skillwire.cli.command import Output, cut, one_line, print_rows

ROWS = [
    ("team/refunds", ("not approved", "yellow"), "Use when a customer asks for money back."),
    ("team/a-very-long-path/to/a/skill/deep-inside", "approved", "Short."),
]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Output:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    return Output("test")


def test_elsewhere_each_row_is_one_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(Output("test"), ROWS)

    assert capsys.readouterr().out.splitlines() == [
        "team/refunds  not approved  Use when a customer asks for money back.",
        "team/a-very-long-path/to/a/skill/deep-inside  approved  Short.",
    ]


def test_columns_stand_below_each_other_and_a_long_first_cell_gets_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows(on_a_terminal(monkeypatch, 80), ROWS, indent=2)

    assert capsys.readouterr().out.splitlines() == [
        "  team/refunds                         not approved  Use when a customer asks f…",
        "  team/a-very-long-path/to/a/skill/deep-inside",
        "                                       approved      Short.",
    ]


def test_a_narrow_terminal_gets_the_last_cell_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows(on_a_terminal(monkeypatch, 40), ROWS)

    assert capsys.readouterr().out.splitlines() == [
        "team/refunds  not approved",
        "  Use when a customer asks for money ba…",
        "team/a-very-long-path/to/a/skill/deep-inside",
        "  approved",
        "  Short.",
    ]


def test_numbers_are_aligned_at_their_right_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("acme", "2 files", "here"), ("b", "12 files", "there")]

    print_rows(on_a_terminal(monkeypatch, 60), rows, right=(1,))

    assert capsys.readouterr().out.splitlines() == ["acme   2 files  here", "b     12 files  there"]


def test_no_cell_can_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(Output("test"), [("a\x1b[31m", "b\nc", "d\u202e")])

    assert capsys.readouterr().out == "a<U+001B>[31m  b c  d<U+202E>\n"


@given(st.text(), st.integers(min_value=0, max_value=30))
def test_what_is_cut_always_fits_and_is_cut_only_when_it_must_be(text: str, width: int) -> None:
    shown = cut(text, width)

    assert cell_len(shown) <= width or shown == ""
    if cell_len(text) <= width:
        assert shown == text


def test_a_text_of_many_lines_becomes_one() -> None:
    assert one_line(" a\n\n  b\tc ") == "a b c"
