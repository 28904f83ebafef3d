"""Which files of projects the user has seen: a configuration found in a folder counts only then.

A configuration names programs to start, and a project may come from anywhere.
So a file that nobody named counts only with the very bytes the user agreed to,
and the answer is kept with the user, never in the project.
"""

import json
import logging
import os
from pathlib import Path, PurePath
from typing import Final, cast

from skillwire.core.manifest import is_digest
from skillwire.errors import SourceError
from skillwire.host.refusals import Refusal
from skillwire.host.state.seal import SealedFolder

logger = logging.getLogger(__name__)

FORMAT: Final = 1
FILE: Final = "trusted-files.json"
MOST_FILES: Final = 100


class FileTrust:
    """The files this user trusts with the bytes they had then, remembered in `directory`, the user's state.

    Files are known by their real paths. When something else has changed what
    is remembered, no file is trusted, and `tampering` says so.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)

    @property
    def tampering(self) -> Refusal | None:
        return self._folder.tampering

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Tell whether the user agreed to the content of this digest in this file; it never raises."""
        return self._read().get(_place(path)) == digest

    def is_known(self, path: Path) -> bool:
        """Tell whether the user agreed to some content of this file once."""
        return _place(path) in self._read()

    def trust(self, path: Path, digest: str) -> None:
        """Remember that the user agreed to the content of this digest in this file.

        Raises:
            SourceError: The answer cannot be kept.
        """
        with self._folder.locked():
            trusted = dict(self._folder.load_locked(FILE, _parsed) or {})
            trusted.pop(_place(path), None)
            trusted[_place(path)] = digest
            self._folder.save(FILE, _written(trusted))

    def distrust(self, path: Path) -> bool:
        """Forget a file; tell whether it was trusted.

        Raises:
            SourceError: The answer cannot be kept.
        """
        with self._folder.locked():
            trusted = dict(self._folder.load_locked(FILE, _parsed) or {})
            is_known = trusted.pop(_place(path), None) is not None
            if is_known:
                self._folder.save(FILE, _written(trusted))
        return is_known

    def _read(self) -> dict[str, str]:
        try:
            return self._folder.load(FILE, _parsed) or {}
        except SourceError as error:
            logger.warning("no file is trusted while what says so cannot be read: %s", error)
            return {}


def _written(trusted: dict[str, str]) -> bytes:
    newest = list(trusted.items())[-MOST_FILES:]
    return json.dumps({"version": FORMAT, "files": newest}, indent=1).encode("ascii")


def _place(path: Path) -> str:
    return os.path.realpath(path)


def _parsed(data: bytes) -> dict[str, str]:
    value = json.loads(data)
    document = cast(dict[str, object], value) if isinstance(value, dict) else {}
    files = document.get("files")
    if document.get("version") != FORMAT or not isinstance(files, list):
        raise ValueError("it is not a list of files of this version")
    found: dict[str, str] = {}
    for row in cast(list[object], files):
        pair = cast(list[object], row) if isinstance(row, list) else []
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError("it holds something that is no file and its digest")
        path, digest = cast(list[str], pair)
        if not PurePath(path).is_absolute() or not is_digest(digest):
            raise ValueError("it names something that is no absolute path or no digest")
        found[path] = digest
    return found
