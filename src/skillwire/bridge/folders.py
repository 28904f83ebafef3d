"""Folders of skills on disk: written whole beside their place, compared by content, replaced and removed.

Everything is opened relative to the folder above it, and no link is followed.
A folder is removed or replaced only if it has exactly the expected files when
it is out of reach of other programs, under a temporary name.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skillwire.core import (
    MAX_FILES,
    MAX_TOTAL_SIZE,
    SourceError,
    check_segment,
    digest_of,
    folders_of,
    path_findings,
    quoted,
)
from skillwire.host import (
    FolderChange,
    RefusedError,
    SyncedFolder,
    SyncedFolders,
    SyncRecord,
    UnsafePathsError,
    UnsafePlaceError,
)
from skillwire.host.state.vault import read_up_to, write_whole

IS_SUPPORTED: Final = {os.open, os.mkdir, os.rename, os.unlink, os.stat} <= os.supports_dir_fd
"""Whether this system can open files relative to a folder; without that (Windows) nothing is written."""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
# A folder on the way need not be readable.
_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
_MAX_ENTRIES = 4 * MAX_FILES
_AT_ONCE = 2  # RENAME_EXCHANGE of Linux
_NOT_HERE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_ASIDE = "-before"
_EMPTY = "it is an empty folder"
_SHARED_FINDINGS = frozenset({"path-twins", "reserved-path", "unusable-path"})


class OccupiedPlaceError(RefusedError):
    """Something that was not written here is in the place of a folder."""

    refusal = "foreign-folder"


class FolderChangedError(RefusedError):
    """Another program changed a folder since it was written here."""

    refusal = "folder-changed"


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What is in a folder: each file's digest, and what is neither a plain file nor a folder of files.

    `odd` has a reason for each path. A place that is not a folder has the path "".
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    odd: Mapping[str, str] = field(default_factory=dict[str, str])

    def matches(self, files: Mapping[str, str]) -> bool:
        """Return whether it has exactly these files, and nothing else."""
        return not self.odd and dict(self.files) == dict(files)

    def is_part_of(self, files: Mapping[str, str]) -> bool:
        """Return whether it has only such files, as a folder that is being removed."""
        is_plain = all(reason == _EMPTY for reason in self.odd.values())
        return is_plain and self.files.items() <= files.items()


@contextmanager
def opened_target(target: Path, project: Path, *, make: bool = False) -> Generator[int | None]:
    """Open a folder of skills; yield None when there is none. With `make`, create it.

    Inside of the project, where others may have written, no part of the path
    may be a link. Elsewhere the user has typed the path, and it is resolved.

    Raises:
        UnsafePlaceError: A part of the path is a link or a file, or it cannot be opened.
    """
    base, parts = project, target.parts[len(project.parts) :]
    if not target.is_relative_to(project):
        base, parts = Path(target.anchor), Path(os.path.realpath(target)).parts[1:]
    with ExitStack() as stack:
        try:
            inside = os.open(base, _ON_THE_WAY)
            stack.callback(os.close, inside)
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=inside)
                inside = os.open(part, _ON_THE_WAY | _NOFOLLOW, dir_fd=inside)
                stack.callback(os.close, inside)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            reason = "a part of it is a link or not a folder" if error.errno in _LINKED else error.strerror
            raise UnsafePlaceError(
                f"skills cannot be written to {quoted(str(target))}: {reason}",
                reference=str(target),
                fix="replace the link by a folder, or choose another folder with --to",
            ) from error
        yield inside


def require_writable_paths(paths: Collection[str]) -> None:
    """Check that a skill's files can exist together on every common file system.

    Raises:
        UnsafePathsError: Two are the same where case is ignored, or a name is reserved or not allowed.
    """
    for finding in path_findings(paths):
        if finding.code in _SHARED_FINDINGS:
            raise UnsafePathsError(f"{quoted(finding.file)}: {finding.message}", reference=finding.file)
    for path in paths:
        for segment in path.split("/"):
            check_segment(segment)


def content_of(above: int, name: str) -> FolderContent | None:
    """Return what is in a folder, without following links; None when there is nothing of that name.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        return _content(above, name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SourceError(f"the folder {quoted(name)} cannot be read: {reason}") from error


def _content(above: int, name: str) -> FolderContent | None:
    try:
        root = os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _LINKED:
            return FolderContent(odd={"": "it is a link or a file"})
        raise
    files: dict[str, str] = {}
    odd: dict[str, str] = {}
    with ExitStack() as stack:
        stack.callback(os.close, root)
        pending, seen, room = [("", root)], 0, 2 * MAX_TOTAL_SIZE
        folders: set[str] = set()
        while pending:
            base, inside = pending.pop()
            for entry in sorted(os.listdir(inside)):  # noqa: PTH208 - a folder by its descriptor
                seen += 1
                if seen > _MAX_ENTRIES:
                    return FolderContent(files, {**odd, base: "it has too many files"})
                path = f"{base}{entry}"
                found = os.stat(entry, dir_fd=inside, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    folders.add(path)
                    opened = os.open(entry, _FOLDER, dir_fd=inside)
                    stack.callback(os.close, opened)
                    pending.append((f"{path}/", opened))
                elif not stat.S_ISREG(found.st_mode):
                    odd[path] = "it is a link or a special file"
                elif found.st_size > room:
                    odd[path] = "it is too large"
                else:
                    files[path] = _digest(inside, entry)
                    room -= found.st_size
                    if found.st_mode & 0o111:
                        odd[path] = "it is executable"
    odd |= {folder: _EMPTY for folder in folders - folders_of(files.keys() | odd.keys())}
    return FolderContent(files, odd)


def _digest(inside: int, name: str) -> str:
    descriptor = os.open(name, _READ, dir_fd=inside)
    with os.fdopen(descriptor, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def read_file(above: int, name: str, path: str, most: int) -> bytes | None:
    """Return a file of a folder, to be shown; None when it is gone, a link or larger than `most` bytes."""
    with ExitStack() as stack, suppress(OSError):
        inside = above
        *folders, last = f"{name}/{path}".split("/")
        for part in folders:
            inside = os.open(part, _FOLDER, dir_fd=inside)
            stack.callback(os.close, inside)
        descriptor = os.open(last, _READ, dir_fd=inside)
        stack.callback(os.close, descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            content = read_up_to(descriptor, most + 1)
            return content if len(content) <= most else None
    return None


def build(above: int, temporary: str, files: Mapping[str, bytes]) -> None:
    """Write a new folder with these files, none of them executable.

    Raises:
        OSError: It cannot be written; what was written is removed with the record's help.
    """
    os.mkdir(temporary, 0o755, dir_fd=above)
    for folder in sorted(folders_of(files)):
        os.mkdir(f"{temporary}/{folder}", 0o755, dir_fd=above)
    for path, content in sorted(files.items()):
        descriptor = os.open(f"{temporary}/{path}", _CREATE, 0o644, dir_fd=above)
        try:
            write_whole(descriptor, content)
        finally:
            os.close(descriptor)


def put(above: int, temporary: str, name: str) -> None:
    """Rename a new folder into its place.

    Raises:
        OccupiedPlaceError: Something is in that place.
    """
    if _exists(above, name):
        raise _foreign(name)
    try:
        _rename(above, temporary, name)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _foreign(name) from error
        raise


def replace(above: int, temporary: str, name: str, before: Mapping[str, str]) -> None:
    """Exchange a folder with a new one, and check that it had exactly the files `before`.

    Then the new one has its place, and the old one the temporary name.

    Raises:
        FolderChangedError: Another program changed it; it has its place again.
    """
    _exchange(above, temporary, name)
    if not _has(above, temporary, before):
        _exchange(above, temporary, name)
        raise _changed(name)


def take(above: int, name: str, temporary: str, before: Mapping[str, str]) -> None:
    """Rename a folder to a temporary name, and check that it has exactly the files `before`.

    Raises:
        FolderChangedError: Another program changed it; it has its place again.
    """
    _rename(above, name, temporary)
    if not _has(above, temporary, before):
        _rename(above, temporary, name)
        raise _changed(name)


def settle(
    above: int, temporary: str, name: str, before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Finish or undo a change, whatever it was interrupted at, and remove what is temporary.

    Return what has its place then: the files `after`, or `before`, even if
    another program changed these; None when there is nothing of ours.

    Raises:
        OSError: It cannot be finished now.
    """
    _put_back(above, temporary + _ASIDE, name)
    here, held = content_of(above, name), content_of(above, temporary)
    is_after = after is not None and here is not None and here.matches(after)
    is_changed = before is not None and held is not None and not held.is_part_of(before)
    if is_changed and after is None and here is None:
        _rename(above, temporary, name)
        return before
    if is_changed and is_after:
        _exchange(above, temporary, name)
        is_after = False
    remove(above, temporary)
    if is_after:
        return after
    return None if here is None else before


def _put_back(above: int, aside: str, name: str) -> None:
    """Put a folder back that an interrupted exchange took from its place."""
    if _exists(above, aside):
        if _exists(above, name):
            remove(above, aside)
        else:
            _rename(above, aside, name)


def remove(above: int, temporary: str) -> None:
    """Remove a folder that has a temporary name, if it is there.

    Raises:
        OSError: Not all of it can be removed.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(temporary, dir_fd=above)


def _has(above: int, name: str, files: Mapping[str, str]) -> bool:
    return (found := content_of(above, name)) is not None and found.matches(files)


def _rename(above: int, name: str, other: str) -> None:
    os.rename(name, other, src_dir_fd=above, dst_dir_fd=above)


def _exists(above: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _exchange(above: int, one: str, other: str) -> None:
    """Exchange two names: at once where the system can; else `recover` finishes what was interrupted."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        if call(above, os.fsencode(one), above, os.fsencode(other), _AT_ONCE) == 0:
            return
        if (number := ctypes.get_errno()) not in _NOT_HERE:
            raise OSError(number, os.strerror(number))
    aside = one + _ASIDE
    for before, after in ((other, aside), (one, other), (aside, one)):
        _rename(above, before, after)


def _foreign(name: str) -> OccupiedPlaceError:
    return OccupiedPlaceError(f"{quoted(name)} exists and was not written here", reference=name)


def _changed(name: str) -> FolderChangedError:
    return FolderChangedError(f"another program changed {quoted(name)}", reference=name)


# Changes of folders, each recorded before it begins and when it is over: a process that is killed at any
# moment leaves the old folder or the new one, and the next process knows what to finish or to undo.


class FolderChanges:
    """Changes folders together with their record in `store`; the caller holds the lock of all syncs."""

    def __init__(self, store: SyncedFolders) -> None:
        self._store = store

    def expected(self) -> SyncRecord:
        """Return the record as `recover` would leave it; nothing is written.

        Raises:
            UnsafePlaceError: A link has taken the place of a folder of skills.
            SourceError: A folder or the record cannot be read.
        """
        record = self._store.read()
        for change in record.changes:
            with _target_of(change) as above:
                found = None if above is None else content_of(above, change.name)
            sides = (side for side in (change.after, change.before) if side is not None)
            left = next((side for side in sides if found is not None and found.matches(side.files)), None)
            record = record.ending(change, left or (None if found is None else change.before))
        return record

    def recover(self) -> SyncRecord:
        """Finish or undo the changes of a sync that was interrupted, and return the record.

        Raises:
            UnsafePlaceError: A link has taken the place of a folder of skills.
            SourceError: A folder or the record cannot be read or written.
            OSError: A change cannot be finished now.
        """
        record = self._store.read()
        for change in record.changes:
            with _target_of(change) as above:
                record = self._settle(above, change)
        return record

    def write(
        self, above: int, before: SyncedFolder | None, after: SyncedFolder, files: Mapping[str, bytes]
    ) -> None:
        """Write a folder of these files, in place of `before` if there was one.

        Raises:
            OccupiedPlaceError: Something that was not written here is in its place.
            FolderChangedError: Another program has changed `before`.
            OSError: It cannot be written; the old folder, if any, is in its place.
        """
        assert after.files == {path: digest_of(content) for path, content in files.items()}
        change = FolderChange.between(before, after)
        self._store.change(lambda record: record.beginning(change))
        try:
            build(above, change.temporary, files)
            if before is None:
                put(above, change.temporary, after.name)
            else:
                replace(above, change.temporary, after.name, before.files)
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
        change = FolderChange.between(row, None)
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


def _target_of(change: FolderChange) -> AbstractContextManager[int | None]:
    """Open the folder of skills in which a change was begun."""
    row = change.after or change.before
    assert row is not None, "a change is from or to a folder"
    return opened_target(Path(change.target), Path(row.project))
