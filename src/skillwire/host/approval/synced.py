"""The record of folders that were written from approved skills for other agents.

It is a sealed file in the user's state, apart from the folders, so that a
project cannot claim that a folder of its own was written here, or hide one.
"""

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final, TypeAlias, cast

from skillwire.core import SourceError, is_digest
from skillwire.host.approval.store import id_row, parse_id
from skillwire.host.model import OriginKind, Refusal, SkillId
from skillwire.host.state.vault import (
    Row,
    SealedFolder,
    SealedTable,
    fields,
    is_temporary,
    items,
    locked,
    temporary_name,
    text,
)

FILE: Final = "synced-folders.json"
LOCK_FILE: Final = ".sync.lock"
LOCK_SECONDS: Final = 30.0
VERSION: Final = 1

FileDigests: TypeAlias = Mapping[str, str]
"""The digest of each file of a folder, by its path."""
FolderKey: TypeAlias = tuple[str, str]
"""The real path of a folder of skills, and the name of a folder in it."""

_DOCUMENT = frozenset({"version", "targets", "folders", "changes"})
_TARGET = frozenset({"path", "project"})
_FOLDER = frozenset(
    {"target", "name", "project", "kind", "label", "fingerprint", "uri", "binding", "original_name", "files"}
)
_CHANGE = frozenset({"target", "name", "temporary", "before", "after"})
_LONGEST_PATH = 16_384


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """A folder of skills that a project's approved skills are written to, by their real paths."""

    path: str
    project: str


@dataclass(frozen=True, slots=True)
class SyncedFolder:
    """One folder as it was written: of which skill and approved content, and each file's digest.

    `original_name` is the name in the approved frontmatter where the folder
    has another one; if it is empty, all bytes are the approved ones.
    """

    target: str
    name: str
    project: str
    skill: SkillId
    binding: str
    files: FileDigests
    original_name: str = ""

    @property
    def key(self) -> FolderKey:
        return self.target, self.name

    @property
    def place(self) -> str:
        return os.path.join(self.target, self.name)  # noqa: PTH118 - paths are text in the record


@dataclass(frozen=True, slots=True)
class FolderChange:
    """A write or removal that has begun: what the folder was and becomes, and its temporary folder."""

    target: str
    name: str
    temporary: str
    before: SyncedFolder | None
    after: SyncedFolder | None

    @classmethod
    def between(cls, before: SyncedFolder | None, after: SyncedFolder | None) -> "FolderChange":
        """Return a new change, with a temporary name that nothing else has."""
        row = after or before
        assert row is not None, "a change is from or to a folder"
        return cls(row.target, row.name, temporary_name(), before, after)

    @property
    def key(self) -> FolderKey:
        return self.target, self.name


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """All that is recorded; immutable, so each change returns a new value."""

    targets: frozenset[SyncTarget] = frozenset()
    folders: Mapping[FolderKey, SyncedFolder] = field(default_factory=dict[FolderKey, SyncedFolder])
    changes: tuple[FolderChange, ...] = ()

    def with_target(self, target: SyncTarget) -> "SyncRecord":
        return SyncRecord(self.targets | {target}, self.folders, self.changes)

    def beginning(self, change: FolderChange) -> "SyncRecord":
        return SyncRecord(self.targets, self.folders, (*self.changes, change))

    def ending(self, change: FolderChange, found: SyncedFolder | None) -> "SyncRecord":
        """Return the record once a change is over and its folder is `found`; None for no folder."""
        folders = {key: folder for key, folder in self.folders.items() if key != change.key}
        if found is not None:
            folders[found.key] = found
        return SyncRecord(self.targets, folders, tuple(each for each in self.changes if each != change))

    def without(self, key: FolderKey) -> "SyncRecord":
        """Forget a folder that is gone."""
        return SyncRecord(
            self.targets,
            {known: folder for known, folder in self.folders.items() if known != key},
            self.changes,
        )

    @property
    def places(self) -> frozenset[str]:
        """The paths of all folders that were written, or may have been by a change that was interrupted."""
        begun = (change.after or change.before for change in self.changes)
        return frozenset(folder.place for folder in (*self.folders.values(), *begun) if folder is not None)

    def to_bytes(self) -> bytes:
        """Return the record as JSON; the same record gives the same bytes."""
        document = {
            "version": VERSION,
            "targets": sorted(
                ({"path": target.path, "project": target.project} for target in self.targets),
                key=lambda row: (row["path"], row["project"]),
            ),
            "folders": [_folder_row(self.folders[key]) for key in sorted(self.folders)],
            "changes": [
                {
                    "target": change.target,
                    "name": change.name,
                    "temporary": change.temporary,
                    "before": None if change.before is None else _folder_row(change.before),
                    "after": None if change.after is None else _folder_row(change.after),
                }
                for change in self.changes
            ],
        }
        # Paths that are not UTF-8 hold lone surrogates, which JSON can only escape.
        return json.dumps(document, separators=(",", ":")).encode("ascii")

    @classmethod
    def parse(cls, content: bytes) -> "SyncRecord":
        """Parse the output of `to_bytes`.

        Raises:
            ValueError: It has another format or version.
        """
        try:
            document = fields(json.loads(content), _DOCUMENT)
        except RecursionError:
            raise ValueError("it nests too deeply") from None
        if document["version"] != VERSION:
            raise ValueError("it has another version")
        folders = [_parse_folder(row) for row in items(document["folders"], "folders")]
        return cls(
            frozenset(_parse_target(row) for row in items(document["targets"], "targets")),
            {folder.key: folder for folder in folders},
            tuple(_parse_change(row) for row in items(document["changes"], "changes")),
        )


class SyncedFolders:
    """The record on disk, in `directory`, the user's state.

    A record that was tampered with counts as empty, and `tampering` is set:
    then no folder is known to be written here, and none is touched.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        folder = SealedFolder(directory, key=key)
        self._lock = directory / LOCK_FILE
        self._table = SealedTable(folder, FILE, SyncRecord(), SyncRecord.parse, SyncRecord.to_bytes)

    @property
    def tampering(self) -> Refusal | None:
        return self._table.folder.tampering

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock of all syncs of this user; the folder must exist.

        Raises:
            SourceError: Another sync has held it for too long.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock, timeout=LOCK_SECONDS))
            except SourceError as error:
                raise SourceError("another sync is running", fix="try again when it has ended") from error
            yield

    def read(self) -> SyncRecord:
        """Return the record.

        Raises:
            SourceError: It cannot be read now.
        """
        return self._table.read()

    def change(self, change: Callable[[SyncRecord], SyncRecord]) -> SyncRecord:
        """Apply a change, locked against other processes, and return the new record.

        Raises:
            LimitError: It would be too large.
            SourceError: It cannot be written; the old record is unchanged.
        """
        return self._table.change(change)[1]

    def places(self) -> frozenset[str]:
        """Return the real paths of all recorded folders; never raises."""
        return self._table.read_or_empty().places


def _folder_row(folder: SyncedFolder) -> Row:
    return {
        "target": folder.target,
        "name": folder.name,
        "project": folder.project,
        "kind": folder.skill.origin.kind.value,
        **id_row(folder.skill),
        "binding": folder.binding,
        "original_name": folder.original_name,
        "files": dict(sorted(folder.files.items())),
    }


def _parse_folder(value: object) -> SyncedFolder:
    row = fields(value, _FOLDER)
    return SyncedFolder(
        _absolute(row, "target"),
        _name(row, "name"),
        _absolute(row, "project"),
        parse_id(row, OriginKind(text(row, "kind"))),
        _digest(row["binding"]),
        _parse_files(row["files"]),
        text(row, "original_name", least=0),
    )


def _parse_files(value: object) -> FileDigests:
    if not isinstance(value, dict) or not value:
        raise ValueError("`files` is not a table of digests")
    return {str(path): _digest(digest) for path, digest in cast(Mapping[object, object], value).items()}


def _parse_target(value: object) -> SyncTarget:
    row = fields(value, _TARGET)
    return SyncTarget(_absolute(row, "path"), _absolute(row, "project"))


def _parse_change(value: object) -> FolderChange:
    row = fields(value, _CHANGE)
    if not is_temporary(temporary := text(row, "temporary")):
        raise ValueError("`temporary` is not the name of a temporary folder")
    before, after = (None if row[name] is None else _parse_folder(row[name]) for name in ("before", "after"))
    return FolderChange(_absolute(row, "target"), _name(row, "name"), temporary, before, after)


def _absolute(row: Row, name: str) -> str:
    path = text(row, name, _LONGEST_PATH)
    if not PurePath(path).is_absolute():
        raise ValueError(f"`{name}` is not an absolute path")
    return path


def _name(row: Row, name: str) -> str:
    found = text(row, name, 255)
    if "/" in found or os.sep in found or found.startswith("."):
        raise ValueError(f"`{name}` is not the name of a folder")
    return found


def _digest(value: object) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise ValueError("a digest is not well-formed")
    return value
