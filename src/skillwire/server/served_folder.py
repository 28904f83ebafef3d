"""`ServedFolder`: a folder that is no skill, to be walked with `resources/directory/read` and read."""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeVar

import anyio.to_thread

from skillwire.core.media import media_type_of
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri, segment_of
from skillwire.errors import InvalidUriError, SourceError
from skillwire.server.answers import FileContent
from skillwire.server.dialects.compat import Compat, Published
from skillwire.sources.opening import FolderReader
from skillwire.wire.core import JsonDict, directory_resource, file_resource
from skillwire.wire.dialect import Dialect

MAX_CHILDREN: Final = 10_000
"""How much of one folder is looked at."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""The largest file that is served."""

Value = TypeVar("Value")


class ServedFolder(Compat):
    """A folder on disk as the directory at a URI, of any scheme.

    It is looked at anew for each request. No link is followed below the
    folder, whatever happens in it meanwhile, and nothing is served whose name
    begins with a dot or cannot be part of a URI.
    """

    dialect: ClassVar[Dialect] = Dialect.CORE

    def __init__(self, skills: Published, uri: str, folder: str | Path) -> None:
        super().__init__(skills)
        # The rules for paths inside a skill are those for paths inside any directory.
        self._place = SkillUri.parse(f"{uri}/{SKILL_FILE}")
        self._folder = os.path.realpath(folder)
        if not Path(self._folder).is_dir():
            raise SourceError("there is no folder to serve", fix="check the path")

    def resources(self) -> Sequence[JsonDict]:
        name = segment_of(self._place.root)
        described = {"title": name, "description": "A directory of files, to be walked and read."}
        return [{**directory_resource(self._place.root), **described}]

    async def children(self, uri: str) -> Sequence[JsonDict] | None:
        path = self._path_of(uri)
        return None if path is None else await self._ask(lambda reader: self._list(reader, path))

    async def read(self, uri: str) -> FileContent | None:
        path = self._path_of(uri)
        content = await self._ask(lambda reader: self._read(reader, path)) if path else None
        if path is None or content is None:
            return None
        return FileContent(uri, media_type_of(path), content, "")

    def _path_of(self, uri: str) -> str | None:
        """Return the path inside the folder that a URI means, in any spelling; None when it means none."""
        try:
            if canonical_uri(uri) == self._place.root:
                return ""
            path = self._place.relative_path(uri)
        except InvalidUriError:
            return None
        return None if any(part.startswith(".") for part in path.split("/")) else path

    async def _ask(self, look: Callable[[FolderReader], Value | None]) -> Value | None:
        def open_and_look() -> Value | None:
            try:
                with FolderReader(self._folder) as reader:
                    return look(reader)
            except OSError:
                return None  # It is gone, something else, or not for us to see.

        return await anyio.to_thread.run_sync(open_and_look)

    def _list(self, reader: FolderReader, path: str) -> list[JsonDict]:
        found: list[JsonDict] = []
        for name, status in reader.names(path, MAX_CHILDREN):
            if name.startswith("."):
                continue
            try:
                uri = self._place.join(f"{path}/{name}" if path else name)
            except InvalidUriError:
                continue
            if stat.S_ISDIR(status.st_mode):
                found.append(directory_resource(uri))
            elif stat.S_ISREG(status.st_mode):
                found.append(file_resource(uri, media_type=media_type_of(name), size=status.st_size))
        return sorted(found, key=lambda resource: resource["uri"])

    def _read(self, reader: FolderReader, path: str) -> bytes | None:
        folder, _, name = path.rpartition("/")
        # Only to know how much room to make: it may be another file by now.
        size = os.lstat(f"{self._folder}/{path}").st_size
        content, status = reader.read(folder, name, min(size, MAX_FILE_BYTES))
        return content if len(content) == status.st_size <= MAX_FILE_BYTES else None
