"""The lines in which two texts differ, whatever is in them and however long they are."""

from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.model.comparison import MOST_LINES, MOST_SHOWN, is_comparable, text_diff

LINES = st.lists(st.sampled_from(["a", "b", "c", "\r", "\u2028", ""]), max_size=12)


@given(old=LINES, new=LINES, ends=st.tuples(st.booleans(), st.booleans()))
def test_a_difference_turns_one_text_into_the_other(
    old: list[str], new: list[str], ends: tuple[bool, bool]
) -> None:
    before = "\n".join(old) + "\n" * ends[0]
    after = "\n".join(new) + "\n" * ends[1]

    found = text_diff(before, after)

    lines = after.split("\n")
    for hunk in reversed(found.hunks):
        kept = [line.text for line in hunk.lines if line.sign != "-"]
        gone = [line.text for line in hunk.lines if line.sign != "+"]
        start = max(hunk.new_start - (hunk.new_count > 0), 0)
        assert lines[start : start + hunk.new_count] == kept
        assert (len(kept), len(gone)) == (hunk.new_count, hunk.old_count)
        lines[start : start + hunk.new_count] = gone
    ended = [line for hunk in found.hunks for line in hunk.lines if not line.is_ended]
    if not ended:
        assert "\n".join(lines) == before
    assert (found.added == found.removed == 0) is (before == after)
    assert found.left_out == 0


def test_lines_are_split_at_line_ends_and_nowhere_else() -> None:
    found = text_diff("a\rb\u2028c\x0bd\n", "a\rb\u2028c\x0bX\n")

    assert (found.added, found.removed) == (1, 1)


def test_a_missing_last_line_end_is_a_difference() -> None:
    [hunk] = text_diff("a\nb", "a\nb\n").hunks

    assert [(line.sign, line.text, line.is_ended) for line in hunk.lines] == [
        (" ", "a", True),
        ("-", "b", False),
        ("+", "b", True),
    ]


def test_no_text_makes_a_comparison_take_long_and_what_is_left_out_is_counted() -> None:
    old = "".join(f"{number}\n" for number in range(MOST_LINES - 1))
    new = "".join(f"{number * 7 % 1000}\n" for number in range(MOST_LINES - 1))

    found = text_diff(old, new)

    assert sum(len(hunk.lines) for hunk in found.hunks) == MOST_SHOWN
    assert found.left_out > 0
    assert is_comparable(old)
    assert not is_comparable(old + "\n\n")
