"""Trusted folders: a project's own skills are used only if the user trusts its folder.

Write access to a project includes its skills, and a project may come from
anywhere. So the answer is stored in the user's state, never in the project.
"""

import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, cast

from skillwire.core import SourceError, is_digest
from skillwire.host.model import Refusal
from skillwire.host.state.sealed import SealedFolder

logger = logging.getLogger(__name__)

FORMAT: Final = 1
FILE: Final = "trusted-folders.json"


class FolderTrust:
    """The folders this user trusts, stored in `directory`, the user's state.

    Trusting a folder includes everything inside it, and nothing around it.
    Folders are identified by their real paths, so a link is not trusted in
    place of its target. If the stored list was tampered with, no folder is
    trusted, and `tampering` is set.
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
        """Return whether `folder`, or a folder that contains it, is trusted; never raises."""
        try:
            real = PurePath(os.path.realpath(folder))
        except (OSError, ValueError):
            return False
        trusted = self._read()
        return any(os.fspath(path) in trusted for path in (real, *real.parents))

    def trust(self, folder: Path) -> None:
        """Trust a folder and everything inside it.

        Raises:
            SourceError: There is no such folder, or that cannot be written.
        """
        if not os.path.isdir(folder):  # noqa: PTH112 - the method of Path raises where this returns False
            raise SourceError("only a folder that exists can be trusted", fix="check the path")
        with self._changing() as trusted:
            trusted.add(os.path.realpath(folder))

    def distrust(self, folder: Path) -> bool:
        """Stop trusting a folder and all folders inside it; return whether any was trusted.

        A trusted parent folder still covers it.

        Raises:
            SourceError: That cannot be written.
        """
        real = PurePath(os.path.realpath(folder))
        with self._changing() as trusted:
            gone = {path for path in trusted if PurePath(path).is_relative_to(real)}
            trusted -= gone
        return bool(gone)

    @contextmanager
    def _changing(self) -> Generator[set[str]]:
        """Yield the set for changes and store it afterwards, locked against other processes."""
        with self._folder.locked():
            before = self._folder.load_locked(FILE, _parsed) or frozenset[str]()
            trusted = set(before)
            yield trusted
            if frozenset(trusted) != before:
                self._folder.save(FILE, _serialized(trusted))

    def _read(self) -> frozenset[str]:
        try:
            return self._folder.load(FILE, _parsed) or frozenset()
        except SourceError as error:
            logger.warning(
                "no folder is trusted because the list of trusted folders cannot be read: %s", error
            )
            return frozenset()


def _serialized(folders: set[str]) -> bytes:
    # Names that are not UTF-8 hold lone surrogates, which JSON can only escape.
    return json.dumps({"version": FORMAT, "folders": sorted(folders)}, indent=1).encode("ascii")


def _parsed(data: bytes) -> frozenset[str]:
    value = json.loads(data)
    document = cast(dict[str, object], value) if isinstance(value, dict) else {}
    folders = document.get("folders")
    if document.get("version") != FORMAT or not isinstance(folders, list):
        raise ValueError("it is not a list of trusted folders of this version")
    paths = cast(list[object], folders)
    if not all(isinstance(path, str) and PurePath(path).is_absolute() for path in paths):
        raise ValueError("an item is not an absolute path")
    return frozenset(cast(list[str], paths))


# Trusted project files: a configuration found in a folder is used only if the user trusts it.


FILES_FILE: Final = "trusted-files.json"
MAX_FILES: Final = 100


class FileTrust:
    """The files this user trusts, each with its digest, stored in `directory`, the user's state.

    Files are identified by their real paths. If the stored list was tampered
    with, no file is trusted, and `tampering` is set.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)

    @property
    def tampering(self) -> Refusal | None:
        return self._folder.tampering

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Return whether the user trusts this file with this digest; never raises."""
        return self._read().get(_real_path(path)) == digest

    def is_known(self, path: Path) -> bool:
        """Return whether the user has trusted this file with any content."""
        return _real_path(path) in self._read()

    def trust(self, path: Path, digest: str) -> None:
        """Trust this file with this digest.

        Raises:
            SourceError: That cannot be written.
        """
        with self._folder.locked():
            trusted = dict(self._folder.load_locked(FILES_FILE, _parsed_files) or {})
            trusted.pop(_real_path(path), None)
            trusted[_real_path(path)] = digest
            self._folder.save(FILES_FILE, _serialized_files(trusted))

    def distrust(self, path: Path) -> bool:
        """Stop trusting a file; return whether it was trusted.

        Raises:
            SourceError: That cannot be written.
        """
        with self._folder.locked():
            trusted = dict(self._folder.load_locked(FILES_FILE, _parsed_files) or {})
            is_known = trusted.pop(_real_path(path), None) is not None
            if is_known:
                self._folder.save(FILES_FILE, _serialized_files(trusted))
        return is_known

    def _read(self) -> dict[str, str]:
        try:
            return self._folder.load(FILES_FILE, _parsed_files) or {}
        except SourceError as error:
            logger.warning("no file is trusted because the list of trusted files cannot be read: %s", error)
            return {}


def _serialized_files(trusted: dict[str, str]) -> bytes:
    newest = list(trusted.items())[-MAX_FILES:]
    return json.dumps({"version": FORMAT, "files": newest}, indent=1).encode("ascii")


def _real_path(path: Path) -> str:
    return os.path.realpath(path)


def _parsed_files(data: bytes) -> dict[str, str]:
    value = json.loads(data)
    document = cast(dict[str, object], value) if isinstance(value, dict) else {}
    files = document.get("files")
    if document.get("version") != FORMAT or not isinstance(files, list):
        raise ValueError("it is not a list of trusted files of this version")
    found: dict[str, str] = {}
    for row in cast(list[object], files):
        pair = cast(list[object], row) if isinstance(row, list) else []
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError("an item is not a pair of a file and its digest")
        path, digest = cast(list[str], pair)
        if not PurePath(path).is_absolute() or not is_digest(digest):
            raise ValueError("an item has no absolute path or no valid digest")
        found[path] = digest
    return found
