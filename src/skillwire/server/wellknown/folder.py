"""`SiteFolder`: the web site of skills as files, for any web server to serve.

Artifacts are named by their digests and never change, so they are written
first, and the index, which names them, is replaced last and atomically. A
concurrent reader gets the old site or the new one, both complete. Earlier
artifacts stay, for clients with an earlier index.

Everything is written to a staging folder beside the site first. A lock file in
it excludes other writers. The system releases the lock of a process that dies,
and the next writer removes its leftovers.
"""

import os
import re
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

import orjson

from skillwire.core import SITE_PATH, SKILL_FILE, SkillError, digest_of
from skillwire.server.wellknown.site import FORMAT
from skillwire.wire.wellknown import SiteEntry, SiteForm, parse_site

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows.
    fcntl = None

INDEX: Final = "index.json"

_FOLDER_MODE = 0o755
_FILE_MODE = 0o644
_WORLD_WRITABLE = stat.S_IWOTH
_LARGEST_INDEX = 32 * 1024 * 1024
_LOCK = "lock"
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_LOCK_ATTEMPTS = 100
_HEX = re.compile(r"[0-9a-f]{64}")


class SiteFolderError(SkillError):
    """A site cannot be written into this folder."""

    refusal = "cannot-write"


class ForeignFolderError(SiteFolderError):
    """A folder has files that this command did not write."""

    refusal = "already-exists"


@dataclass(slots=True)
class SiteFolder:
    """The folder `.well-known/agent-skills` below the root of a web server.

    Entering the context locks it; the published index does not change before `publish`.
    """

    root: Path
    home: Path = field(init=False)
    _staging: Path = field(init=False)
    _added: list[Path] = field(init=False, default_factory=list[Path])
    _lock: int | None = field(init=False, default=None)
    _is_staged: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.home = self.root / SITE_PATH.strip("/")
        self._staging = self.home.with_name(f".{self.home.name}.part")

    def __enter__(self) -> "SiteFolder":
        """Create the folder if needed, check its contents, and lock it.

        Raises:
            ForeignFolderError: It has files that this command did not write.
            SiteFolderError: It is a link, or another process is writing to it.
            OSError: It cannot be read or created.
        """
        made: list[Path] = []
        try:
            for folder in (self.root, self.home.parent, self.home):
                if not _is_folder(folder):
                    folder.mkdir(mode=_FOLDER_MODE, parents=folder == self.root)
                    made.append(folder)
            self._stage()
            self._refuse_foreign()
        except BaseException:
            self._release()
            for folder in reversed(made):
                with suppress(OSError):  # Another writer uses it.
                    folder.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in self._added:  # They were not published.
            shutil.rmtree(folder, ignore_errors=True)
        self._release()

    @property
    def is_exposed(self) -> bool:
        """Whether every user of this machine may change the site."""
        return any(folder.stat().st_mode & _WORLD_WRITABLE for folder in (self.home, self.home.parent))

    def has(self, path: str) -> bool:
        """Return whether the artifact at `path` exists and matches its digest."""
        file = self.home / path
        try:
            return digest_of(file.read_bytes()) == f"sha256:{file.parent.name}"
        except FileNotFoundError:
            return False

    def add(self, path: str, data: bytes) -> None:
        """Write an artifact atomically; replace a damaged one.

        Raises:
            OSError: It cannot be written.
        """
        target = (self.home / path).parent
        made = self._staging / target.name
        made.mkdir(mode=_FOLDER_MODE)
        _write(self._staging / path, data)
        if target.exists():
            (self._staging / path).replace(self.home / path)
            made.rmdir()
        else:
            made.rename(target)
            self._added.append(target)

    def publish(self, index: bytes) -> None:
        """Replace the index atomically.

        Raises:
            OSError: It cannot be written; the earlier site stays.
        """
        _write(self._staging / INDEX, index)
        (self._staging / INDEX).replace(self.home / INDEX)
        self._added.clear()

    def other_artifacts(self, paths: Collection[str]) -> list[str]:
        """Return the names of artifact folders other than those of `paths`."""
        named = {path.partition("/")[0] for path in paths}
        return sorted(
            folder.name for folder in self.home.iterdir() if folder.name != INDEX and folder.name not in named
        )

    def remove(self, name: str) -> None:
        """Remove the folder of an artifact.

        Raises:
            OSError: It cannot be removed.
        """
        shutil.rmtree(self.home / name)

    def _stage(self) -> None:
        """Lock the staging folder and empty it.

        Without file locks, as on Windows, a folder that a stopped process left has to be removed by hand.
        """
        if fcntl is None:
            try:
                self._staging.mkdir(mode=_FOLDER_MODE)
            except FileExistsError:
                raise self._busy(f"If there is none, remove {self._staging}") from None
        else:
            for _ in range(_LOCK_ATTEMPTS):
                self._lock = self._try_lock()
                if self._lock is not None:
                    break
            else:
                raise self._busy()
            self._empty_staging()
        self._is_staged = True

    def _try_lock(self) -> int | None:
        """Return a descriptor that holds the lock; None when the folder was removed meanwhile.

        Raises:
            SiteFolderError: Another process holds it.
        """
        assert fcntl is not None
        path = self._staging / _LOCK
        try:
            if not _is_folder(self._staging):
                self._staging.mkdir(mode=_FOLDER_MODE)
            descriptor = os.open(path, _OPEN_LOCK, _FILE_MODE)
        except (FileExistsError, FileNotFoundError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise self._busy() from None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _empty_staging(self) -> None:
        """Remove the leftovers of a stopped process; only files that this command could have written."""
        left = [child for child in self._staging.iterdir() if child.name != _LOCK]
        for child in left:
            is_index = child.name == INDEX and stat.S_ISREG(child.lstat().st_mode)
            if not is_index and not _is_artifact(child):
                raise _foreign(child)
        for child in left:
            if child.name == INDEX:
                child.unlink()
            else:
                shutil.rmtree(child)

    def _release(self) -> None:
        """Remove the staging folder if it is ours, and then release the lock."""
        if self._is_staged:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._is_staged = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _busy(self, advice: str = "") -> SiteFolderError:
        fix = "wait until it has finished, and publish again"
        return SiteFolderError(
            f"another process is writing the site in {self.home}", fix=f"{fix}. {advice}" if advice else fix
        )

    def _refuse_foreign(self) -> None:
        """Raise if the folder has files that this command would not have written."""
        for child in self.home.iterdir():
            is_own = _is_own_index(child) if child.name == INDEX else _is_artifact(child)
            if not is_own:
                raise _foreign(child)


def _foreign(path: Path) -> ForeignFolderError:
    return ForeignFolderError(
        f"{path} was not written by this command, so nothing was changed",
        fix="choose another folder, or move it",
    )


def _is_folder(path: Path) -> bool:
    """Return whether `path` is a folder, or False if it does not exist; raise for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise SiteFolderError(f"{path} is a symbolic link, which is not followed", fix="pass its target")
    if not stat.S_ISDIR(mode):
        raise SiteFolderError(f"{path} is not a folder")
    return True


def _is_artifact(folder: Path) -> bool:
    """Return whether a folder is named by a digest and has at most one file, an artifact.

    A stopped process may leave an empty one.
    """
    if not _HEX.fullmatch(folder.name) or not stat.S_ISDIR(folder.lstat().st_mode):
        return False
    files = list(folder.iterdir())
    are_own = all(stat.S_ISREG(file.lstat().st_mode) and _is_artifact_name(file.name) for file in files)
    return len(files) <= 1 and are_own


def _is_artifact_name(name: str) -> bool:
    return name == SKILL_FILE or name.endswith(f".{FORMAT}")


def _is_own_index(path: Path) -> bool:
    """Return whether a file is an index as we write it: each path begins with the skill's digest."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_INDEX:
        return False
    try:
        site, findings = parse_site(orjson.loads(path.read_bytes()))
    except orjson.JSONDecodeError:
        return False
    return site.form is SiteForm.V0_2_0 and not findings and all(map(_is_own_entry, site.entries))


def _is_own_entry(entry: object) -> bool:
    if not isinstance(entry, SiteEntry):
        return False
    name, _, file = entry.url.partition("/")
    return f"sha256:{name}" == entry.digest and _is_artifact_name(file) and "/" not in file


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, _FILE_MODE), "wb") as file:  # noqa: PTH123  # `Path.open` has no mode bits.
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
