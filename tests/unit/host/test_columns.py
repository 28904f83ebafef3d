"""Breaking lines where a terminal ends: nothing is lost, and nothing is too wide."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from skillwire.core.characters import visible
from skillwire.host.use.question import MIN_WIDTH, columns_of, wrapped


@given(st.text(), st.integers(min_value=0, max_value=100), st.integers(min_value=0, max_value=8))
def test_the_parts_are_the_whole_line_and_none_is_too_wide(text: str, width: int, indent: int) -> None:
    line = visible(text)

    first, *rest = wrapped(line, width, indent=indent)

    assert first + "".join(rest) == line
    assert sum(map(columns_of, first)) <= max(width, MIN_WIDTH)
    assert all(sum(map(columns_of, part)) <= max(width - indent, MIN_WIDTH) for part in rest)


@given(st.characters(exclude_categories=("Cs",)))
def test_no_character_is_wider_than_we_take_it_for(character: str) -> None:
    shown = visible(character)

    assert cell_len(shown) <= sum(map(columns_of, shown))


def test_a_line_is_broken_after_a_space_where_one_is_near() -> None:
    assert wrapped("one two three", 9) == ["one two ", "three"]
    assert wrapped("one-two-three", 9) == ["one-two-t", "hree"]
    assert wrapped("    indented", 6) == ["    in", "dented"]


def test_wide_characters_count_twice_and_letters_of_other_alphabets_once() -> None:
    assert wrapped("漢字漢字", 5) == ["漢字", "漢字"]
    assert wrapped("привет", 5) == ["приве", "т"]
    assert wrapped("\u2502\u2502\u2502", 4) == ["\u2502\u2502", "\u2502"]


def test_without_a_width_a_line_stays_whole() -> None:
    assert wrapped("a" * 500, None) == ["a" * 500]
    assert wrapped("", 10) == [""]
