"""Rows in columns that fit a terminal, and that stay one line each anywhere else.

The first column is what someone may want to copy, so it is never cut; nor are
the columns in the middle. The last one is cut to what is left. Where too
little is left, the columns stand below each other.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from skillwire.cli.answer import Answer, Part
from skillwire.core.characters import visible

Row: TypeAlias = Sequence[Part]

GAP = "  "
_FIRST_SHARE = 0.45
_LEAST = 24
"""Columns the last cell needs to be worth a place beside the others."""

_SPACES = re.compile(r"\s+")


def print_rows(
    answer: Answer, rows: Iterable[Row], *, indent: int = 0, right: Sequence[int] = (), flexible: bool = True
) -> None:
    """Print rows of equally many cells; those of the columns `right` are aligned there.

    Without `flexible`, the last column is as important as the others. All text
    is made harmless. Very many rows are printed as quickly as few.
    """
    table = [[_cell(part) for part in row] for row in rows]
    if not table:
        return
    width = answer.width
    if width is None:
        lines = (_plain(row, indent) for row in table)
    else:
        lines = _Layout(table, width - indent, right, flexible).lines(table, " " * indent)
    for line in lines:
        sys.stdout.write(line.rstrip() + "\n")


def print_hanging(answer: Answer, head: Part, text: str, *, indent: int = 0) -> None:
    """Print a short word and a text beside it that, where it is wrapped, stays beside it."""
    word, style = _cell(head)
    width = answer.width
    shown = visible(text)
    if width is None:
        sys.stdout.write(f"{' ' * indent}{word}{GAP}{shown}".rstrip() + "\n")
        return
    margin = indent + cell_len(word) + len(GAP)
    paint = _Paint()
    lines = Text(shown).wrap(paint.console, max(width - margin, _LEAST))
    start = " " * indent + paint(word, style) + GAP
    for line in lines:
        sys.stdout.write((start + line.plain).rstrip() + "\n")
        start = " " * margin


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits into `width` columns; `…` says that there is more."""
    some = text[: 2 * max(width, 1) + 1]
    if len(some) == len(text) and cell_len(text) <= width:
        return text
    while some and cell_len(some) >= width:
        some = some[: -max(1, (cell_len(some) - width) // 2)]
    return some.rstrip() + "…" if width > 0 else ""


def one_line(text: str) -> str:
    """Return a stranger's text without line ends and wide gaps."""
    return _SPACES.sub(" ", text).strip()


def _cell(part: Part) -> tuple[str, str]:
    text, style = (part, "") if isinstance(part, str) else part
    return visible(text), style


def _plain(row: Sequence[tuple[str, str]], indent: int) -> str:
    return " " * indent + GAP.join(text for text, _ in row)


class _Layout:
    """Where the columns stand, for rows of one table in a terminal."""

    def __init__(
        self, table: Sequence[Sequence[tuple[str, str]]], width: int, right: Sequence[int], flexible: bool
    ) -> None:
        self._paint = _Paint()
        self._width = max(width, _LEAST)
        self._right = frozenset(right)
        self._widths = [max(cell_len(row[number][0]) for row in table) for number in range(len(table[0]))]
        self._has_last = flexible and len(self._widths) > 1
        gaps = len(GAP) * (len(self._widths) - 1)
        if self._has_last:
            self._widths[0] = min(self._widths[0], int(self._width * _FIRST_SHARE))
            self._widths[-1] = self._width - gaps - sum(self._widths[:-1])
            self._is_stacked = self._widths[-1] < min(_LEAST, max(cell_len(row[-1][0]) for row in table))
        else:
            self._is_stacked = gaps + sum(self._widths) > self._width

    def lines(self, table: Iterable[Sequence[tuple[str, str]]], margin: str) -> Iterator[str]:
        for row in table:
            for line in self._stacked(row) if self._is_stacked else self._beside(row):
                yield margin + line

    def _beside(self, row: Sequence[tuple[str, str]]) -> Iterator[str]:
        (first, style), *rest = row
        is_long = cell_len(first) > self._widths[0]
        if is_long:
            yield self._paint(first, style)
            first = ""
        cells = [self._padded(0, first, style)]
        for number, (text, look) in enumerate(rest, 1):
            is_last = number == len(rest)
            shown = cut(text, self._widths[number]) if is_last and self._has_last else text
            cells.append(self._padded(number, shown, look, pad=not is_last or number in self._right))
        yield GAP.join(cells)

    def _stacked(self, row: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Put cells beside each other while they fit, and the last one on a line of its own."""
        line, used = "", 0
        last = row[-1] if self._has_last else None
        for text, style in row[:-1] if last else row:
            space = cell_len(text) + (len(GAP) if line else 0)
            if line and used + space > self._width:
                yield line
                line, used, space = GAP, len(GAP), cell_len(text)
                line += self._paint(text, style)
            else:
                line += (GAP if line else "") + self._paint(text, style)
            used += space
        yield line
        if last and last[0]:
            yield GAP + self._paint(cut(last[0], self._width - len(GAP)), last[1])

    def _padded(self, number: int, text: str, style: str, *, pad: bool = True) -> str:
        space = " " * max(0, self._widths[number] - cell_len(text)) if pad else ""
        painted = self._paint(text, style)
        return space + painted if number in self._right else painted + space


class _Paint:
    """Puts text in styles as Rich would, by its rules for terminals and the environment, only quicker."""

    def __init__(self) -> None:
        self.console = Console(markup=False, highlight=False, emoji=False)
        self._codes: dict[str, tuple[str, str]] = {"": ("", "")}

    def __call__(self, text: str, style: str) -> str:
        if style not in self._codes:
            self._codes[style] = self._learned(style)
        before, after = self._codes[style]
        return f"{before}{text}{after}" if text else ""

    def _learned(self, style: str) -> tuple[str, str]:
        """Return what switches a style on and off."""
        if self.console.legacy_windows:
            return "", ""
        with self.console.capture() as captured:
            self.console.print(Text("x", style=style), end="")
        before, _, after = captured.get().partition("x")
        return before, after
