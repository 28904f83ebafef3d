"""Trusted folders and files: what a project brings is used only if the user trusts it.

Write access to a project includes its skills and its configuration, and a
project may come from anywhere. So the answer is stored in the user's state,
never in the project.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

from skillwire.core import SourceError, is_digest
from skillwire.host.model import Refusal
from skillwire.host.state.vault import SealedFolder, SealedTable, fields, items

FORMAT: Final = 1
FILE: Final = "trusted-folders.json"
FILES_FILE: Final = "trusted-files.json"
MAX_FILES: Final = 100
FOLDERS: Final = (".agents/skills", ".skillwire/skills")
"""The folders of skills in a project and in a user's home."""


class FolderTrust:
    """The folders this user trusts, stored in `directory`, the user's state.

    Trusting a folder includes everything inside it, and nothing around it.
    Folders are identified by their real paths, so a link is not trusted in
    place of its target. If the stored list was tampered with, no folder is
    trusted, and `tampering` is set.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        folder = SealedFolder(directory, key=key)
        self._table = SealedTable(folder, FILE, frozenset[str](), _parse_folders, _folders_bytes)

    @property
    def tampering(self) -> Refusal | None:
        return self._table.folder.tampering

    def folders(self) -> tuple[Path, ...]:
        """Return all trusted folders, sorted."""
        return tuple(map(Path, sorted(self._table.read_or_empty())))

    def is_trusted(self, folder: Path) -> bool:
        """Return whether `folder`, or a folder that contains it, is trusted; never raises."""
        try:
            real = PurePath(os.path.realpath(folder))
        except (OSError, ValueError):
            return False
        trusted = self._table.read_or_empty()
        return any(os.fspath(path) in trusted for path in (real, *real.parents))

    def trust(self, folder: Path) -> None:
        """Trust a folder and everything inside it.

        Raises:
            SourceError: There is no such folder, or that cannot be written.
        """
        if not os.path.isdir(folder):  # noqa: PTH112 - the method of Path raises where this returns False
            raise SourceError("only a folder that exists can be trusted", fix="check the path")
        self._table.change(lambda trusted: trusted | {os.path.realpath(folder)})

    def distrust(self, folder: Path) -> bool:
        """Stop trusting a folder and all folders inside it; return whether any was trusted.

        A trusted parent folder still covers it.

        Raises:
            SourceError: That cannot be written.
        """
        real = PurePath(os.path.realpath(folder))
        before, after = self._table.change(
            lambda trusted: frozenset(path for path in trusted if not PurePath(path).is_relative_to(real))
        )
        return before != after


class FileTrust:
    """The files this user trusts, each with its digest, stored in `directory`, the user's state.

    Files are identified by their real paths. If the stored list was tampered
    with, no file is trusted, and `tampering` is set.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        folder = SealedFolder(directory, key=key)
        # Pairs of a path and its digest, the newest last.
        self._table = SealedTable[tuple[tuple[str, str], ...]](
            folder, FILES_FILE, (), _parse_files, _files_bytes
        )

    @property
    def tampering(self) -> Refusal | None:
        return self._table.folder.tampering

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Return whether the user trusts this file with this digest; never raises."""
        return self._digests().get(os.path.realpath(path)) == digest

    def is_known(self, path: Path) -> bool:
        """Return whether the user has trusted this file with any content."""
        return os.path.realpath(path) in self._digests()

    def trust(self, path: Path, digest: str) -> None:
        """Trust this file with this digest.

        Raises:
            SourceError: That cannot be written.
        """
        real = os.path.realpath(path)
        self._table.change(lambda pairs: (*_without(pairs, real), (real, digest))[-MAX_FILES:])

    def distrust(self, path: Path) -> bool:
        """Stop trusting a file; return whether it was trusted.

        Raises:
            SourceError: That cannot be written.
        """
        before, after = self._table.change(lambda pairs: _without(pairs, os.path.realpath(path)))
        return before != after

    def _digests(self) -> Mapping[str, str]:
        return dict(self._table.read_or_empty())


def _without(pairs: tuple[tuple[str, str], ...], path: str) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if pair[0] != path)


def _folders_bytes(folders: frozenset[str]) -> bytes:
    # Names that are not UTF-8 hold lone surrogates, which JSON can only escape.
    return json.dumps({"version": FORMAT, "folders": sorted(folders)}, indent=1).encode("ascii")


def _files_bytes(pairs: tuple[tuple[str, str], ...]) -> bytes:
    return json.dumps({"version": FORMAT, "files": pairs}, indent=1).encode("ascii")


def _parse_folders(data: bytes) -> frozenset[str]:
    return frozenset(map(_absolute, _rows(data, "folders")))


def _parse_files(data: bytes) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for row in _rows(data, "files"):
        pair = items(row, "files")
        if len(pair) != 2 or not (isinstance(pair[1], str) and is_digest(pair[1])):
            raise ValueError("an item is not a pair of a file and its digest")
        found.append((_absolute(pair[0]), pair[1]))
    return tuple(found)


def _rows(data: bytes, name: str) -> tuple[object, ...]:
    document = fields(json.loads(data), {"version", name})
    if document["version"] != FORMAT:
        raise ValueError("it has another version")
    return tuple(items(document[name], name))


def _absolute(path: object) -> str:
    if not isinstance(path, str) or not PurePath(path).is_absolute():
        raise ValueError("an item is not an absolute path")
    return path
