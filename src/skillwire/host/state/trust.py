"""Which folders the user trusts: a project's own skills are used only there.

Whoever can write a project can write its skills, and a project may come from
anywhere. So the answer is kept with the user, never in the project.
"""

import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, cast

from skillwire.errors import SourceError
from skillwire.host.refusals import Refusal
from skillwire.host.state.seal import SealedFolder

logger = logging.getLogger(__name__)

FORMAT: Final = 1
FILE: Final = "trusted-folders.json"


class FolderTrust:
    """The folders this user trusts, remembered in `directory`, the user's state.

    To trust a folder is to trust what lies inside it, and nothing around it.
    Folders are known by their real paths, so a link cannot borrow trust. A
    file that something else has changed says nothing: then no folder is
    trusted, and `tampering` says so.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)

    @property
    def tampering(self) -> Refusal | None:
        return self._folder.tampering

    def folders(self) -> tuple[Path, ...]:
        """Return all trusted folders, sorted."""
        return tuple(map(Path, sorted(self._read())))

    def is_trusted(self, folder: Path) -> bool:
        """Tell whether `folder`, or a folder it lies in, is trusted; it never raises."""
        try:
            real = PurePath(os.path.realpath(folder))
        except (OSError, ValueError):
            return False
        trusted = self._read()
        return any(os.fspath(path) in trusted for path in (real, *real.parents))

    def trust(self, folder: Path) -> None:
        """Trust a folder and all inside it from now on.

        Raises:
            SourceError: There is no such folder, or the answer cannot be kept.
        """
        if not os.path.isdir(folder):  # noqa: PTH112 - the method of Path raises where this answers no
            raise SourceError("only a folder that exists can be trusted", fix="check the path")
        with self._changing() as trusted:
            trusted.add(os.path.realpath(folder))

    def distrust(self, folder: Path) -> bool:
        """Trust a folder no longer, nor any inside it; tell whether anything was forgotten by that.

        A folder above it that is trusted still covers it.

        Raises:
            SourceError: The answer cannot be kept.
        """
        real = PurePath(os.path.realpath(folder))
        with self._changing() as trusted:
            gone = {path for path in trusted if PurePath(path).is_relative_to(real)}
            trusted -= gone
        return bool(gone)

    @contextmanager
    def _changing(self) -> Generator[set[str]]:
        """Let the caller change the set, and keep what becomes of it; no other process can meanwhile."""
        with self._folder.locked():
            before = self._folder.load_locked(FILE, _parsed) or frozenset[str]()
            trusted = set(before)
            yield trusted
            if frozenset(trusted) != before:
                self._folder.save(FILE, _written(trusted))

    def _read(self) -> frozenset[str]:
        try:
            return self._folder.load(FILE, _parsed) or frozenset()
        except SourceError as error:
            logger.warning("no folder is trusted while the file that says so cannot be read: %s", error)
            return frozenset()


def _written(folders: set[str]) -> bytes:
    # Names that are not UTF-8 come as halves of surrogate pairs, which only escapes can spell.
    return json.dumps({"version": FORMAT, "folders": sorted(folders)}, indent=1).encode("ascii")


def _parsed(data: bytes) -> frozenset[str]:
    value = json.loads(data)
    document = cast(dict[str, object], value) if isinstance(value, dict) else {}
    folders = document.get("folders")
    if document.get("version") != FORMAT or not isinstance(folders, list):
        raise ValueError("it is not a list of folders of this version")
    paths = cast(list[object], folders)
    if not all(isinstance(path, str) and PurePath(path).is_absolute() for path in paths):
        raise ValueError("it names something that is no absolute path")
    return frozenset(cast(list[str], paths))
