"""How two texts differ, line by line, at a cost that no text can drive up.

Lines end with `\\n` and nothing else: whatever other characters start a line
on some screens are part of one here, and stay so. Where the search for the
shortest difference would take too long, the texts count as wholly different,
which is always true enough to be reviewed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, TypeAlias

CONTEXT: Final = 3
"""How many lines that are the same are shown around those that are not."""
MOST_LINES: Final = 20_000
"""How many lines a text may have to be compared at all."""
MOST_SHOWN: Final = 2_000
"""How many lines of a difference are kept."""

_MOST_STEPS = 300_000

Sign: TypeAlias = Literal["+", "-", " "]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line: added, removed or there before and after, with its number in the text it is of.

    A line that is in both texts has the number it has now. `is_ended` is
    false for a last line without a line end.
    """

    sign: Sign
    number: int
    text: str
    is_ended: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that stand together; the counts and first numbers are those of the two texts."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[DiffLine, ...]


@dataclass(frozen=True, slots=True)
class TextDiff:
    """The difference of two texts: how many lines were added and removed, and where.

    `left_out` counts the lines of the difference that are not in `hunks`.
    """

    added: int = 0
    removed: int = 0
    hunks: tuple[Hunk, ...] = ()
    left_out: int = 0


def is_comparable(text: str) -> bool:
    """Tell whether a text is short enough to be compared line by line."""
    return text.count("\n") < MOST_LINES


def text_diff(old: str, new: str) -> TextDiff:
    """Compare two texts, each of at most `MOST_LINES` lines."""
    before, after = _lines(old), _lines(new)
    rows = list(_rows(before, after))
    added = sum(1 for row in rows if row.sign == "+")
    removed = sum(1 for row in rows if row.sign == "-")
    hunks: list[Hunk] = []
    shown = total = 0
    for start, end in _groups(rows):
        total += end - start
        room = MOST_SHOWN - shown
        if room > 0:
            part = rows[start : min(end, start + room)]
            hunks.append(_hunk(rows, start, part))
            shown += len(part)
    return TextDiff(added, removed, tuple(hunks), total - shown)


def _lines(text: str) -> list[str]:
    parts = text.split("\n")
    ended = [part + "\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended


def _rows(before: Sequence[str], after: Sequence[str]) -> Iterator[DiffLine]:
    """Yield all lines of both texts in order: the removed ones before those that stand in their place."""
    old = new = 0
    for left, right in (*_pairs(before, after), (len(before), len(after))):
        for number in range(old, left):
            yield _line("-", number, before[number])
        for number in range(new, right):
            yield _line("+", number, after[number])
        if right < len(after) and left < len(before):
            yield _line(" ", right, after[right])
        old, new = left + 1, right + 1


def _line(sign: Sign, position: int, text: str) -> DiffLine:
    return DiffLine(sign, position + 1, text.removesuffix("\n"), text.endswith("\n"))


def _pairs(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of lines that both texts have, in order."""
    least = min(len(before), len(after))
    head = next((n for n in range(least) if before[n] != after[n]), least)
    rest = least - head
    tail = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    numbers: dict[str, int] = {}
    left = [numbers.setdefault(line, len(numbers)) for line in before[head : len(before) - tail]]
    right = [numbers.setdefault(line, len(numbers)) for line in after[head : len(after) - tail]]
    middle = [(head + one, head + other) for one, other in _common(left, right)]
    ends = zip(range(len(before) - tail, len(before)), range(len(after) - tail, len(after)), strict=True)
    return [*((n, n) for n in range(head)), *middle, *ends]


def _common(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Find the shortest edit by Myers' greedy search; nothing in common when it takes too many steps."""
    if not left or not right:
        return []
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    steps = 0
    for distance in range(len(left) + len(right) + 1):
        trail.append(dict(reach))
        for diagonal in range(-distance, distance + 1, 2):
            steps += 1
            x = _start(reach, diagonal, distance)
            y = x - diagonal
            while x < len(left) and y < len(right) and left[x] == right[y]:
                x, y, steps = x + 1, y + 1, steps + 1
            reach[diagonal] = x
            if x >= len(left) and y >= len(right):
                return _traced(trail, len(left), len(right))
        if steps > _MOST_STEPS:
            return []
        # Only the diagonals of the last round are looked at again.
        reach = {diagonal: reach[diagonal] for diagonal in range(-distance, distance + 1, 2)}
    raise AssertionError("two texts always have an edit between them")


def _start(reach: dict[int, int], diagonal: int, distance: int) -> int:
    """Return where a path on a diagonal begins: below its upper neighbour, or right of its lower one."""
    if diagonal == -distance:
        return reach[diagonal + 1]
    if diagonal == distance:
        return reach[diagonal - 1] + 1
    return max(reach[diagonal - 1] + 1, reach[diagonal + 1])


def _traced(trail: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance, reach in reversed(list(enumerate(trail))):
        diagonal = x - y
        is_down = diagonal == -distance or (
            diagonal != distance and reach[diagonal - 1] + 1 <= reach[diagonal + 1]
        )
        before = diagonal + 1 if is_down else diagonal - 1
        start = reach[before]
        while x > start + (not is_down) and y > start - before + is_down:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start, start - before
    return pairs[::-1]


def _groups(rows: Sequence[DiffLine]) -> Iterator[tuple[int, int]]:
    """Yield where changes stand, each with the lines around it; close ones are drawn together."""
    start = end = -1
    for position in (position for position, row in enumerate(rows) if row.sign != " "):
        if start >= 0 and position - CONTEXT <= end:
            end = position + CONTEXT + 1
            continue
        if start >= 0:
            yield start, min(end, len(rows))
        start, end = max(position - CONTEXT, 0), position + CONTEXT + 1
    if start >= 0:
        yield start, min(end, len(rows))


def _hunk(rows: Sequence[DiffLine], start: int, part: Sequence[DiffLine]) -> Hunk:
    old_before = sum(1 for row in islice(rows, start) if row.sign != "+")
    new_before = sum(1 for row in islice(rows, start) if row.sign != "-")
    old_count = sum(1 for row in part if row.sign != "+")
    new_count = sum(1 for row in part if row.sign != "-")
    return Hunk(old_before + (old_count > 0), old_count, new_before + (new_count > 0), new_count, tuple(part))
