"""`SiteFolder`: the web site of skills as files, for any web server to serve.

Artifacts are named by their digests and never change, so they are put there
first, and the index, which names them, is replaced last and in one step. Who
reads meanwhile sees the old site or the new one, and both are whole. Artifacts
of earlier times stay, for those who still hold an earlier index.
"""

import os
import re
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

import orjson

from skillwire.core.manifest import digest_of
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import SkillError
from skillwire.server.wellknown.site import FORMAT
from skillwire.wire.wellknown import SITE_PATH, SiteEntry, SiteForm, parse_site

INDEX: Final = "index.json"

_FOLDER_MODE = 0o755
_FILE_MODE = 0o644
_FOR_ALL_TO_WRITE = stat.S_IWOTH
_LARGEST_INDEX = 32 * 1024 * 1024
_HEX = re.compile(r"[0-9a-f]{64}")


class SiteFolderError(SkillError):
    """A folder into which no site can be written."""

    refusal = "cannot-write"


class ForeignFolderError(SiteFolderError):
    """A folder in which there is something that we did not write."""

    refusal = "already-exists"


@dataclass(slots=True)
class SiteFolder:
    """The folder `.well-known/agent-skills` below the root of a web server.

    Entering it takes it for this writer alone; nothing in it changes before `publish`.
    """

    root: Path
    home: Path = field(init=False)
    _staging: Path = field(init=False)
    _added: list[Path] = field(init=False, default_factory=list[Path])

    def __post_init__(self) -> None:
        self.home = self.root / SITE_PATH.strip("/")
        self._staging = self.home.with_name(f".{self.home.name}.part")

    def __enter__(self) -> "SiteFolder":
        """Make sure that the folder may be written to, and that nobody else does.

        Raises:
            ForeignFolderError: There is something in it that we did not write.
            SiteFolderError: It lies behind a link, or is being written to.
            OSError: It cannot be looked at or made.
        """
        made: list[Path] = []
        try:
            for folder in (self.root, self.home.parent, self.home):
                if not _is_folder(folder):
                    folder.mkdir(mode=_FOLDER_MODE, parents=folder == self.root)
                    made.append(folder)
            self._refuse_foreign()
            self._stage()
        except BaseException:
            for folder in reversed(made):
                folder.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in self._added:  # They were never published.
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def is_exposed(self) -> bool:
        """Whether every user of this machine may change the site."""
        return any(folder.stat().st_mode & _FOR_ALL_TO_WRITE for folder in (self.home, self.home.parent))

    def has(self, path: str) -> bool:
        """Tell whether the artifact at `path` is there, whole."""
        file = self.home / path
        try:
            return digest_of(file.read_bytes()) == f"sha256:{file.parent.name}"
        except FileNotFoundError:
            return False

    def add(self, path: str, data: bytes) -> None:
        """Put an artifact there, in one step; one that is damaged is replaced.

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
        """Replace the index, in one step.

        Raises:
            OSError: It cannot be written; then the earlier site stays.
        """
        _write(self._staging / INDEX, index)
        (self._staging / INDEX).replace(self.home / INDEX)
        self._added.clear()

    def others(self, paths: Collection[str]) -> list[str]:
        """Return the names of the artifacts' folders that are there beside those of `paths`."""
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
        try:
            self._staging.mkdir(mode=_FOLDER_MODE)
        except FileExistsError:
            raise SiteFolderError(
                f"{self._staging} is there: the site is being written by another process, or one was stopped",
                fix="wait for it, or remove that folder",
            ) from None

    def _refuse_foreign(self) -> None:
        """Refuse a folder with anything in it that is not as we would have written it."""
        for child in self.home.iterdir():
            is_own = _is_own_index(child) if child.name == INDEX else _is_artifact(child)
            if not is_own:
                raise ForeignFolderError(
                    f"{child} was not written by this command, so nothing is changed there",
                    fix="choose another folder, or move it away",
                )


def _is_folder(path: Path) -> bool:
    """Tell whether a folder is there, or nothing; anything else is refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise SiteFolderError(
            f"{path} is a link, and nothing is written through links", fix="name its target"
        )
    if not stat.S_ISDIR(mode):
        raise SiteFolderError(f"{path} is not a folder")
    return True


def _is_artifact(folder: Path) -> bool:
    """Tell whether a folder is named by a digest and holds one file that we could have put there."""
    if not _HEX.fullmatch(folder.name) or not stat.S_ISDIR(folder.lstat().st_mode):
        return False
    files = list(folder.iterdir())
    return len(files) == 1 and stat.S_ISREG(files[0].lstat().st_mode) and _is_artifact_name(files[0].name)


def _is_artifact_name(name: str) -> bool:
    return name == SKILL_FILE or name.endswith(f".{FORMAT}")


def _is_own_index(path: Path) -> bool:
    """Tell whether a file is an index as we write it: each skill at a path that begins with its digest."""
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
    with open(os.open(path, flags, _FILE_MODE), "wb") as file:  # noqa: PTH123  # A path takes no mode.
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
