"""How a skill as its server shows it now differs from what the user approved, as one value.

Everything in a comparison but the reference, the states and the numbers is a
stranger's text, to be shown escaped.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from skillwire.core.characters import visible
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.yaml12 import JsonValue
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.skillfiles import is_script
from skillwire.host.textdiff import TextDiff

MOST_FILE_BYTES: Final = 512 * 1024
"""How long a file may be to be compared line by line."""

_LONGEST_PATH = 60
_PLAIN_PATH = re.compile(r"\S+")

Json: TypeAlias = dict[str, object]


class Basis(StrEnum):
    """What a skill is compared with."""

    APPROVED = "approved"
    """What the user approved on this machine."""
    ENDED = "ended"
    """What an approval on this machine was for, before the skill changed."""
    LOCKED = "locked"
    """What the project's lock pins."""
    NOTHING = "nothing"
    """Nothing: it was never approved."""
    LOCAL = "local"
    """Nothing: a local skill is the user's own, and needs no approval."""


class FileState(StrEnum):
    """What became of a file."""

    MODIFIED = "modified"
    ADDED = "added"
    REMOVED = "removed"


class Lack(StrEnum):
    """Why the lines of a file are not shown."""

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
        return _LACKS[self]


_LACKS = {
    Lack.NOT_CACHED: "the approved bytes are not cached; digests differ",
    Lack.NOT_TEXT: "no text; digests differ",
    Lack.TOO_LARGE: f"larger than {MOST_FILE_BYTES // 1024} KiB, or of too many lines, to be compared here",
    Lack.TOO_MUCH: "not read, because so many other files differ",
    Lack.NOT_WANTED: "not read",
    Lack.MOVED: "the same bytes were approved at another path",
    Lack.PACKED: "an archive, which cannot be looked into on both sides; digests differ",
    Lack.REFUSED: "the new bytes cannot be had",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that differs: what was approved of it, what is promised now, and the lines.

    `lack` says why there are no lines. `refusal` says why the new bytes
    cannot be had, and `moved_from` where the same bytes were before.
    """

    path: str
    state: FileState
    old: ManifestFile | None
    new: ManifestFile | None
    lines: TextDiff | None = None
    lack: Lack | None = None
    refusal: Refusal | None = None
    moved_from: str = ""

    @property
    def is_script(self) -> bool:
        return is_script(self.path)

    @property
    def shown(self) -> str:
        """The path as one word that cannot pass for anything else: as its URI has it when it is odd."""
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
            "lack": None if self.lack is None else self.lack.value,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
            "lines": None if self.lines is None else _lines_json(self.lines),
        }


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of the frontmatter that differs; a field that is not there is None with its flag unset."""

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
class Previous:
    """What the user agreed to before: which word of the user's, for which files, and when.

    `holds` says that it has not ended since.
    """

    basis: Basis
    manifest: Manifest | None = None
    granted_at: datetime | None = None
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A skill as it is shown now, held against what was approved of it.

    `frontmatter` is None when the approved `SKILL.md` is not cached, so that
    nothing can be said of its fields. `is_dynamic` says that the skill has no
    digests any more. `problems` would stop a load of what is shown now.
    """

    skill: KnownSkill
    previous: Previous
    files: tuple[FileChange, ...] = ()
    frontmatter: tuple[FieldChange, ...] | None = ()
    is_dynamic: bool = False
    problems: tuple[Refusal, ...] = ()

    @property
    def basis(self) -> Basis:
        return self.previous.basis

    @property
    def is_covered_otherwise(self) -> bool:
        """Whether digests cover something else of the skill than when it was approved."""
        before, after = self.previous.manifest, self.skill.entry.manifest
        return before is not None and after is not None and before.coverage is not after.coverage

    @property
    def is_same(self) -> bool:
        """Whether nothing differs from what was approved; a local skill needs no approval."""
        if self.basis is Basis.LOCAL:
            return True
        differs = self.files or self.frontmatter or self.is_dynamic or self.is_covered_otherwise
        return not (self.basis is Basis.NOTHING or differs)

    @property
    def is_approved(self) -> bool:
        """Whether the user's yes holds now for exactly what is shown; a local skill needs none."""
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
    """Return a file's path as one word: as its URI spells it where it has blanks or is otherwise odd."""
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
