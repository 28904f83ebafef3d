"""Differences between a skill as its server lists it now and what the user approved, as values."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final, Literal, TypeAlias

from skillwire.core import (
    JsonValue,
    Manifest,
    ManifestFile,
    is_script,
    visible,
)
from skillwire.host.model import KnownSkill, Refusal

# Line by line differences of two texts, at a bounded cost.


CONTEXT: Final = 3
"""The number of unchanged lines shown around changes."""
MOST_LINES: Final = 20_000
"""The maximum number of lines of a text that is compared."""
MOST_SHOWN: Final = 2_000
"""The maximum number of lines of a difference that are kept."""

_MOST_STEPS = 300_000

Sign: TypeAlias = Literal["+", "-", " "]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line: added, removed or unchanged, with its line number.

    An unchanged line has its number in the new text. `is_ended` is false for
    a last line without a line end.
    """

    sign: Sign
    number: int
    text: str
    is_ended: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """Adjacent lines of a difference, with their first numbers and counts in both texts."""

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
    """Return whether a text is short enough to be compared line by line."""
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
    """Yield all lines of both texts in order: removed lines before those that replace them."""
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
        # Only the diagonals of the last round are needed again.
        reach = {diagonal: reach[diagonal] for diagonal in range(-distance, distance + 1, 2)}
    raise AssertionError("an edit path always exists")


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
    """Yield the ranges of changes, each with its context; adjacent ranges are merged."""
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


# The differences between a skill as its server lists it now and what the user approved.


MOST_FILE_BYTES: Final = 512 * 1024
"""The maximum size of a file that is compared line by line."""

_LONGEST_PATH = 60
_PLAIN_PATH = re.compile(r"\S+")

Json: TypeAlias = dict[str, object]


class Basis(StrEnum):
    """What a skill is compared with."""

    APPROVED = "approved"
    """The content the user approved on this machine."""
    ENDED = "ended"
    """The content of an approval on this machine that ended when the skill changed."""
    LOCKED = "locked"
    """The content pinned in the project's lock."""
    NOTHING = "nothing"
    """Nothing: it was never approved."""
    LOCAL = "local"
    """Nothing: a local skill is the user's own, and needs no approval."""


class FileState(StrEnum):
    """How a file changed."""

    MODIFIED = "modified"
    ADDED = "added"
    REMOVED = "removed"


class OmissionReason(StrEnum):
    """Why the changed lines of a file are omitted."""

    NOT_CACHED = "not-cached"
    NOT_TEXT = "not-text"
    TOO_LARGE = "too-large"
    TOO_MUCH = "too-much"
    NOT_WANTED = "not-wanted"
    MOVED = "moved"
    PACKED = "packed"
    REFUSED = "refused"

    @property
    def words(self) -> str:
        return _OMISSION_TEXTS[self]


_OMISSION_TEXTS = {
    OmissionReason.NOT_CACHED: "the approved file is not cached, so lines cannot be compared; digests differ",
    OmissionReason.NOT_TEXT: "not a text file; digests differ",
    OmissionReason.TOO_LARGE: f"larger than {MOST_FILE_BYTES // 1024} KiB, or too many lines to compare",
    OmissionReason.TOO_MUCH: "not read, because too many other files differ",
    OmissionReason.NOT_WANTED: "not read",
    OmissionReason.MOVED: "the same bytes were approved at another path",
    OmissionReason.PACKED: "an archive that cannot be unpacked on both sides; digests differ",
    OmissionReason.REFUSED: "the new bytes cannot be fetched",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that differs: the approved and the listed version, and the changed lines.

    `omission` is the reason why lines are omitted, `refusal` the reason why the new
    bytes cannot be fetched, and `moved_from` the former path of the same bytes.
    """

    path: str
    state: FileState
    old: ManifestFile | None
    new: ManifestFile | None
    lines: TextDiff | None = None
    omission: OmissionReason | None = None
    refusal: Refusal | None = None
    moved_from: str = ""

    @property
    def is_script(self) -> bool:
        return is_script(self.path)

    @property
    def shown(self) -> str:
        """The path without whitespace; percent-encoded, as in its URI, if it has special characters."""
        file = self.new or self.old
        assert file is not None, "a file that differs was there before or is there now"
        return shown_path(self.path, file.uri)

    def to_json(self) -> Json:
        return {
            "path": self.path,
            "state": self.state.value,
            "script": self.is_script,
            "old": _file_json(self.old),
            "new": _file_json(self.new),
            "movedFrom": self.moved_from or None,
            "lack": None if self.omission is None else self.omission.value,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
            "lines": None if self.lines is None else _lines_json(self.lines),
        }


def with_lines(file: FileChange, old: bytes, new: bytes) -> FileChange:
    """Return a change with the lines that differ between two contents, or the reason why they are omitted."""
    texts = [_text(old), _text(new)]
    if None in texts:
        return replace(file, omission=OmissionReason.NOT_TEXT)
    before, after = (text or "" for text in texts)
    if not (is_comparable(before) and is_comparable(after)):
        return replace(file, omission=OmissionReason.TOO_LARGE)
    return replace(file, lines=text_diff(before, after))


def _text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One frontmatter field that differs; `had` and `has` distinguish a missing field from a null."""

    name: str
    old: JsonValue = None
    new: JsonValue = None
    had: bool = True
    has: bool = True

    def to_json(self) -> Json:
        old: Json = {"old": self.old} if self.had else {}
        new: Json = {"new": self.new} if self.has else {}
        return {"name": self.name, **old, **new}


@dataclass(frozen=True, slots=True)
class ComparisonBase:
    """What the user approved before: on which basis, for which files, and when.

    `holds` is true while that approval is still valid.
    """

    basis: Basis
    manifest: Manifest | None = None
    granted_at: datetime | None = None
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A skill as it is listed now, compared with what was approved.

    `frontmatter` is None if the approved `SKILL.md` is not cached, so that
    its fields are unknown. `is_dynamic` is true if the skill has no digests
    any more. `problems` would prevent the listed version from being loaded.
    """

    skill: KnownSkill
    previous: ComparisonBase
    files: tuple[FileChange, ...] = ()
    frontmatter: tuple[FieldChange, ...] | None = ()
    is_dynamic: bool = False
    problems: tuple[Refusal, ...] = ()

    @property
    def basis(self) -> Basis:
        return self.previous.basis

    @property
    def unread(self) -> tuple[FileChange, ...]:
        """The files whose lines are omitted because their approved bytes are not cached."""
        return tuple(file for file in self.files if file.omission is OmissionReason.NOT_CACHED)

    @property
    def is_coverage_changed(self) -> bool:
        """Whether the digests cover another part of the skill than when it was approved."""
        before, after = self.previous.manifest, self.skill.entry.manifest
        return before is not None and after is not None and before.coverage is not after.coverage

    @property
    def is_same(self) -> bool:
        """Whether nothing differs from what was approved; a local skill needs no approval."""
        if self.basis is Basis.LOCAL:
            return True
        differs = self.files or self.frontmatter or self.is_dynamic or self.is_coverage_changed
        return not (self.basis is Basis.NOTHING or differs)

    @property
    def is_approved(self) -> bool:
        """Whether a valid approval covers exactly what is listed; a local skill needs none."""
        return self.is_same and (self.basis is Basis.LOCAL or self.previous.holds)

    def of_state(self, state: FileState) -> tuple[FileChange, ...]:
        return tuple(file for file in self.files if file.state is state)

    def to_json(self) -> Json:
        origin, when = self.skill.id.origin, self.previous.granted_at
        fields = self.frontmatter
        return {
            "reference": self.skill.reference,
            "origin": {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint},
            "uri": self.skill.id.uri,
            "basis": self.basis.value,
            "approvedAt": None if when is None else when.isoformat().replace("+00:00", "Z"),
            "same": self.is_same,
            "approved": self.is_approved,
            "dynamic": self.is_dynamic,
            "covers": _coverage_json(self.skill.entry.manifest),
            "covered": _coverage_json(self.previous.manifest),
            "files": [file.to_json() for file in self.files],
            "frontmatter": None if fields is None else [changed.to_json() for changed in fields],
            "problems": [problem.to_json() for problem in self.problems],
        }


def shown_path(path: str, uri: str) -> str:
    """Return a file's path without whitespace: as in its URI if it has special characters."""
    if path == uri:
        return path if len(path) <= 3 * _LONGEST_PATH else f"{path[: 3 * _LONGEST_PATH]}…"
    if _PLAIN_PATH.fullmatch(path) and visible(path) == path and len(path) <= _LONGEST_PATH:
        return path
    parts = path.count("/") + 1
    word = "/".join(uri.split("/")[-parts:])
    return word if len(word) <= 3 * _LONGEST_PATH else f"{word[: 3 * _LONGEST_PATH]}…"


def _coverage_json(manifest: Manifest | None) -> str | None:
    return None if manifest is None else manifest.coverage.value


def _file_json(file: ManifestFile | None) -> Json | None:
    return None if file is None else {"digest": file.digest, "size": file.known_size}


def _lines_json(lines: TextDiff) -> Json:
    return {
        "added": lines.added,
        "removed": lines.removed,
        "leftOut": lines.left_out,
        "hunks": [
            {
                "oldStart": hunk.old_start,
                "oldCount": hunk.old_count,
                "newStart": hunk.new_start,
                "newCount": hunk.new_count,
                "lines": [
                    {"sign": line.sign, "number": line.number, "text": line.text, "ended": line.is_ended}
                    for line in hunk.lines
                ],
            }
            for hunk in lines.hunks
        ],
    }
