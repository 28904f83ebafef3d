"""`FolderChanges`: writes and removals of folders, each recorded before it begins and when it is over.

So a process that is killed at any moment leaves the old folder or the new one,
and the next one knows what to finish or to undo. The caller holds the lock of
all syncs.
"""

from collections.abc import Mapping
from pathlib import Path

from skillwire.bridge.folders import build, content_of, opened_target, put, settle, take
from skillwire.bridge.folders import replace as replace_folder
from skillwire.core import digest_of
from skillwire.host.approval.synced import FolderChange, SyncedFolder, SyncedFolders, SyncRecord
from skillwire.host.state.vault import temporary_name


class FolderChanges:
    """Changes folders together with their record in `store`."""

    def __init__(self, store: SyncedFolders) -> None:
        self._store = store

    def recover(self) -> SyncRecord:
        """Finish or undo the changes of a sync that was interrupted, and return the record.

        Raises:
            UnsafePlaceError: A link has taken the place of a folder of skills.
            SourceError: A folder or the record cannot be read or written.
            OSError: A change cannot be finished now.
        """
        record = self._store.read()
        for change in record.changes:
            row = change.after or change.before
            assert row is not None, "a change is from or to a folder"
            with opened_target(Path(change.target), Path(row.project)) as above:
                record = self._settle(above, change)
        return record

    def write(
        self, above: int, before: SyncedFolder | None, after: SyncedFolder, files: Mapping[str, bytes]
    ) -> None:
        """Write a folder of these files, in place of `before` if there was one.

        Raises:
            ForeignFolderError: Something that was not written here is in its place.
            FolderChangedError: Another program has changed `before`.
            OSError: It cannot be written; the old folder, if any, is in its place.
        """
        assert after.files == {path: digest_of(content) for path, content in files.items()}
        change = FolderChange(after.target, after.name, temporary_name(), before, after)
        self._store.change(lambda record: record.beginning(change))
        try:
            build(above, change.temporary, files)
            if before is None:
                put(above, change.temporary, after.name)
            else:
                replace_folder(above, change.temporary, after.name, before.files)
        finally:
            self._settle(above, change)

    def remove(self, above: int | None, row: SyncedFolder) -> None:
        """Remove a recorded folder, or forget it if it is gone already.

        Raises:
            FolderChangedError: Another program has changed it.
            OSError: It cannot be removed.
        """
        if above is None or content_of(above, row.name) is None:
            self._store.change(lambda record: record.without(row.key))
            return
        change = FolderChange(row.target, row.name, temporary_name(), row, None)
        self._store.change(lambda record: record.beginning(change))
        try:
            take(above, row.name, change.temporary, row.files)
        finally:
            self._settle(above, change)

    def _settle(self, above: int | None, change: FolderChange) -> SyncRecord:
        before, after = change.before, change.after
        found = None
        if above is not None:
            sides = [None if side is None else side.files for side in (before, after)]
            left = settle(above, change.temporary, change.name, *sides)
            rows = (side for side in (after, before) if side is not None and side.files is left)
            found = next(rows, None)
        return self._store.change(lambda record: record.ending(change, found))
