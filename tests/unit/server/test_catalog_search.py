"""Searching a catalog: one index that follows its revisions, in which a caller finds what it may see."""

import os
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.catalog.model import COLUMNS, FOREVER
from skillwire.catalog.schema import VERSIONS
from skillwire.core import LimitError, Manifest, ManifestFile, SkillEntry, SkillUri, SourceError, digest_of
from skillwire.core.frontmatter import Frontmatter
from skillwire.search import index as index_module
from skillwire.search import scores as scores_module
from skillwire.search.index import Area, SearchIndex
from skillwire.server import index_updates
from skillwire.server.search import Filters, ServerSearch, SkillSearchPage
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import SnapshotSource
from skillwire.sources.stored import READ_INDEX, SkillsFile, StoredSnapshot
from skillwire.wire.core import write_entry

Skills = Mapping[str, tuple[str, str]]
"""The descriptions and bodies of skills by path."""

_INTEGER = {"integer": "INTEGER", "real": "REAL", "blob": "BLOB", "text": "TEXT"}


class Shelf(SnapshotSource):
    """A catalog in a SQLite file, changed in place."""

    cache_key = "catalog shelf"

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self.file = SkillsFile(self.database)
        self.revision = 0
        self.bodies: dict[str, str] = {}
        self.reads: list[str] = []
        self.unreadable: set[str] = set()
        if not self.database.execute("PRAGMA table_info(versions)").fetchall():
            self.database.execute(VERSIONS.format(**_INTEGER))
            self.database.execute(READ_INDEX)
        self.show()

    def show(self) -> None:
        number = 1 if self._snapshot is None else self._snapshot.revision + 1
        self._replace_snapshot(replace(StoredSnapshot.at(self.file, self.revision), revision=number))

    def publish(self, skills: Skills, removed: Iterable[str] = ()) -> None:
        """Make one revision."""
        self.revision += 1
        self.database.execute("BEGIN")
        for path in [*skills, *removed]:
            self.database.execute(
                "UPDATE versions SET until = ? WHERE uri = ? AND until = ?",
                (self.revision, SkillUri.build(path).text, FOREVER),
            )
        for path, (description, body) in skills.items():
            one = entry(path, description, body)
            self.bodies[one.uri.text] = body
            written = write_entry(one)
            row = (one.uri.text, self.revision, FOREVER, "", one.name, written, digest_of(written), "{}")
            self.database.execute(
                f"INSERT INTO versions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, 1, 0, 0, '', '')", row
            )
        self.database.execute("COMMIT")
        self.show()

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        return None

    async def read_file(self, uri: str) -> bytes:
        self.reads.append(SkillUri(uri).path)
        if uri in self.unreadable:
            raise SourceError("the store is away")
        return f"---\nname: x\ndescription: y\n---\n{self.bodies[uri]}".encode()


def entry(path: str, description: str, body: str = "", *, scripts: bool = False) -> SkillEntry:
    uri = SkillUri.build(path)
    files = {"SKILL.md": body, **({"scripts/run.py": ""} if scripts or path.startswith("run") else {})}
    lines = [
        ManifestFile(f"{uri.root}/{name}", digest_of(text.encode()), len(text)) for name, text in files.items()
    ]
    return SkillEntry(uri, Frontmatter({"name": uri.name, "description": description}), Manifest.of(lines))


@asynccontextmanager
async def searching(shelf: Shelf, file: Path | None = None) -> AsyncGenerator[ServerSearch]:
    """Search a catalog whose bodies are at hand only later."""

    async def read(skill: SkillEntry) -> str | None:
        try:
            return (await shelf.read_file(skill.uri.text)).decode().split("---\n")[2]
        except SourceError:
            return None

    search = ServerSearch(lambda _: None)
    async with CombinedSource([shelf]) as source, anyio.create_task_group() as group:
        search.use_file(file)
        group.start_soon(search.updates(source, read).run)
        try:
            yield search
        finally:
            group.cancel_scope.cancel()
    search.close()


async def current(shelf: Shelf, search: ServerSearch) -> StoredSnapshot:
    """Wait until the index has the newest revision."""
    await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(20):
        while not (await search.find(shelf.stored, "nothing")).is_complete:
            await anyio.sleep(0.01)
    return shelf.stored
