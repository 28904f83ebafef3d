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
from skillwire.host.vault import locked, make_folder, read_private, replace, set_aside

logger = logging.getLogger(__name__)

FORMAT: Final = 1
MAX_BYTES: Final = 1024 * 1024


class FolderTrust:
    """The folders this user trusts, remembered in `directory`, the user's state.

    To trust a folder is to trust what lies inside it, and nothing around it.
    Folders are known by their real paths, so a link cannot borrow trust. A
    file that is broken, a link, or open to other users says nothing: then no
    folder is trusted.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "trusted-folders.json"

    def folders(self) -> tuple[Path, ...]:
        """Return all trusted folders, sorted."""
        return tuple(map(Path, sorted(self._read() or ())))

    def is_trusted(self, folder: Path) -> bool:
        """Tell whether `folder`, or a folder it lies in, is trusted; it never raises."""
        try:
            real = PurePath(os.path.realpath(folder))
        except (OSError, ValueError):
            return False
        trusted = self._read() or ()
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
        try:
            make_folder(self._directory)
            with locked(self._path.with_suffix(".lock")):
                found = self._read()
                before = found or frozenset[str]()
                trusted = set(before)
                yield trusted
                if found is None:
                    set_aside(self._path, "broken")
                if frozenset(trusted) != before:
                    replace(self._path, _written(trusted))
        except OSError as error:
            raise SourceError(
                "the trusted folders cannot be kept", fix="check the user's state folder"
            ) from error

    def _read(self) -> frozenset[str] | None:
        """Return the trusted folders, none when there is no file; None when the file must not be used."""
        try:
            data = read_private(self._path, most=MAX_BYTES)
            return frozenset() if data is None else _parsed(data)
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("no folder is trusted, because the file that says so cannot be used: %s", error)
            return None


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
