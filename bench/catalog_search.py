"""The search of a catalog: what its index costs to build, to continue, to change and to ask.

The skills are those of the section `search`, and mixtures of two of them until
there are enough. They are in a SQLite file as a server has it, and their bodies
in another, so that a process of its own shows what memory the index takes.
"""

import json
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench.rows import Row, limit_row
from bench.search import MAX_QUERY, SEARCH_MS, Text, texts_and_queries
from skillwire.catalog.database import SqliteDatabase
from skillwire.catalog.model import COLUMNS, FOREVER
from skillwire.catalog.schema import VERSIONS
from skillwire.core import Frontmatter, Manifest, ManifestFile, SkillEntry, SkillUri, digest_of
from skillwire.server.search import ServerSearch
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Snapshot, SnapshotSource
from skillwire.sources.stored import READ_INDEX, SkillsFile, StoredSnapshot
from skillwire.wire.core import write_entry

SIZES = (1_000, 10_000, 100_000)
BUILD_MS_PER_1_000 = 800.0
RESTART_MS = 3000.0
PUBLICATION_MS = 200.0
MEMORY_MIB = 300.0
VIEW = "skill://team-07"

_TEXTS = 10_000
_TEAMS = 50
_PUBLICATIONS = 20
_WORDS = 20
_PART = 1500
_SECONDS = 1800.0
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def measure_catalog_search(sizes: Sequence[int]) -> list[Row]:
    found, sets = texts_and_queries(min(max(sizes), _TEXTS))
    texts = list(found.values())
    queries = {name: [query[:MAX_QUERY] for query, _ in pairs] for name, pairs in sets.items()}
    return [row for size in sizes for row in _measured(size, texts, queries)]


def _measured(size: int, texts: Sequence[Text], queries: dict[str, list[str]]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="skillwire-catalog-") as name:
        folder = Path(name)
        print(f"writing a catalog with {size} skills ...", file=sys.stderr)
        _write(folder, texts, size)
        (folder / "queries.json").write_text(json.dumps(queries))
        build, use = _in_process(folder, "build"), _in_process(folder, "use")
        index = sum(file.stat().st_size for file in folder.glob("index*")) / 2**20
    built = build["cpu"] / size * 1e6
    print(f"{size}: built in {build['wall']:.1f} s, {index:.0f} MiB on the disk", file=sys.stderr)
    return [
        limit_row(f"{size}: index build, CPU per 1,000 skills", built, "ms", BUILD_MS_PER_1_000),
        limit_row(f"{size}: peak memory of that process", build["peak"], "MiB", MEMORY_MIB),
        limit_row(f"{size}: first answer after a restart, wall", use["wall"] * 1000, "ms", RESTART_MS),
        limit_row(f"{size}: a publication until it is found, CPU p50", use["change"], "ms", PUBLICATION_MS),
        *(
            Row(f"{size}: {name}: CPU of a query, p50", f"{ms:.1f} ms", "", None, limit, ms <= SEARCH_MS)
            for limit in (f"{SEARCH_MS:.0f} ms",)
            for name, ms in use["queries"].items()
        ),
        limit_row(f"{size}: peak memory of that process", use["peak"], "MiB", MEMORY_MIB),
    ]


def _in_process(folder: Path, task: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.catalog_search", str(folder), task]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_SECONDS)
    return json.loads(done.stdout)


def _text(texts: Sequence[Text], number: int) -> tuple[str, str, str]:
    """Return the name, the description and the body of a skill."""
    one, other = texts[number % len(texts)], texts[(number * 7919 + 13) % len(texts)]
    round_number = number // len(texts)
    if not round_number:
        return one.name, one.frontmatter.description, one.body
    described = [word for text in (one, other) for word in text.frontmatter.description.split()[:_WORDS]]
    body = f"{one.body[:_PART]}\n\n{other.body[:_PART]}"
    return f"{one.name}-{round_number}", " ".join(described), body


def _row(number: int, revision: int, name: str, described: str, body: str) -> tuple[object, ...]:
    uri = SkillUri.build(f"team-{number % _TEAMS:02d}/{name.strip('-') or 'x'}")
    manifest = Manifest.of([ManifestFile.of(uri.text, body.encode("utf-8", "replace"))])
    written = write_entry(
        SkillEntry(uri, Frontmatter({"name": uri.name, "description": described}), manifest)
    )
    digest = digest_of(written)
    return (uri.text, revision, FOREVER, "", uri.name, written, digest, "{}", None, 1, 0, 0, "", "")


_INSERT = f"INSERT OR IGNORE INTO versions ({COLUMNS}) VALUES ({', '.join('?' * 14)})"


def _write(folder: Path, texts: Sequence[Text], size: int) -> None:
    with closing(sqlite3.connect(folder / "skills.db")) as database, database:
        database.execute(VERSIONS.format(**SqliteDatabase.types))
        for statement in (
            READ_INDEX,
            "CREATE INDEX versions_since ON versions (since)",
            "CREATE INDEX versions_until ON versions (until)",
            "CREATE TABLE bodies (uri TEXT PRIMARY KEY, body TEXT NOT NULL)",
        ):
            database.execute(statement)
        for number in range(size):
            text = _text(texts, number)
            row = _row(number, 1, *text)
            database.execute(_INSERT, row)
            database.execute("INSERT OR IGNORE INTO bodies VALUES (?, ?)", (row[0], text[2]))


# In the process that is measured


class _Catalog(SnapshotSource):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self.database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self.bodies = sqlite3.connect(file, check_same_thread=False)
        self._file = SkillsFile(self.database)
        self.show(1)

    def show(self, revision: int) -> None:
        number = 1 if self._snapshot is None else self._snapshot.revision + 1
        self._replace_snapshot(replace(StoredSnapshot.at(self._file, revision), revision=number))

    async def catch_up(self) -> Snapshot:
        return self.snapshot

    async def read_file(self, uri: str) -> bytes:
        raise AssertionError(f"{uri} is at hand")

    def body(self, entry: SkillEntry) -> str:
        return self.bodies.execute("SELECT body FROM bodies WHERE uri = ?", (entry.uri.text,)).fetchone()[0]

    def publish(self, revision: int, number: int) -> None:
        """Change one skill."""
        rows = self.database.execute("SELECT uri FROM versions LIMIT 1 OFFSET ?", (number,))
        path = SkillUri(rows.fetchone()[0]).path.partition("/")[2]
        row = _row(number, revision, path, f"Handles revision{revision} of something.", "")
        self.database.execute("UPDATE versions SET until = ? WHERE uri = ?", (revision, row[0]))
        self.database.execute(_INSERT, row)
        self.bodies.execute("INSERT OR IGNORE INTO bodies VALUES (?, ?)", (row[0], "New."))
        self.bodies.commit()
        self.show(revision)


@asynccontextmanager
async def _searching(folder: Path) -> AsyncGenerator[tuple[_Catalog, CombinedSource, ServerSearch]]:
    async def read_later(_: SkillEntry) -> None:
        raise AssertionError("all bodies are at hand")

    catalog = _Catalog(folder / "skills.db")
    search = ServerSearch(catalog.body)
    search.use_file(folder / "index")
    async with CombinedSource([catalog]) as source, anyio.create_task_group() as group:
        group.start_soon(search.updates(source, read_later).run)
        yield catalog, source, search
        group.cancel_scope.cancel()
    search.close()


async def _complete(source: CombinedSource, search: ServerSearch, query: str) -> int:
    """Search until the index has the newest revision, and return the number of matches."""
    while True:
        page = await search.find(source.snapshot, query)
        if page.is_complete:
            return page.total
        await anyio.sleep(0.01)


async def _build(folder: Path) -> dict[str, Any]:
    begun, used = time.monotonic(), time.process_time()
    async with _searching(folder) as (_, source, search):
        await _complete(source, search, "migration")
        return {"wall": time.monotonic() - begun, "cpu": time.process_time() - used, "peak": _peak()}


async def _use(folder: Path) -> dict[str, Any]:
    begun = time.monotonic()
    async with _searching(folder) as (catalog, source, search):
        await _complete(source, search, "migration")
        wall = time.monotonic() - begun
        sets = json.loads((folder / "queries.json").read_text())
        view = source.snapshot.visible([VIEW], 1)
        spent = {name: await _spent(search, source.snapshot, queries) for name, queries in sets.items()}
        for times in ("first", "second"):
            name = f"prompts in a view of one in {_TEAMS}, the {times} time"
            spent[name] = await _spent(search, view, sets["prompts"])
        changes: list[float] = []
        for number in range(_PUBLICATIONS):
            catalog.publish(number + 2, number * 7)
            used = time.process_time()
            await source.catch_up()
            assert await _complete(source, search, f"revision{number + 2}") == 1, "it is found"
            changes.append((time.process_time() - used) * 1000)
        return {"wall": wall, "queries": spent, "change": median(changes), "peak": _peak()}


async def _spent(search: ServerSearch, snapshot: Snapshot, queries: Sequence[str]) -> float:
    """Return the median of the CPU milliseconds of a query."""
    costs: list[float] = []
    for query in queries:
        used = time.process_time()
        await search.find(snapshot, query)
        costs.append((time.process_time() - used) * 1000)
    return median(costs or [0.0])


def _peak() -> float:
    found = _PEAK.search(Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    print(json.dumps(anyio.run({"build": _build, "use": _use}[sys.argv[2]], Path(sys.argv[1]))))
