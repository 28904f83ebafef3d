"""Publishers that are killed before or after each of their calls to the database and the blobs.

    python killed_publisher.py URL

Each try is a process of its own, which publishes the next state of its skills
and dies at the n-th call. Then the catalog has the state of before or of after,
with every file, and publishing again leads to the state of after. It prints how
often a publisher was killed, what the catalog had then, and how the last one ended.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from integration.catalog.catalog_world import draft, publish, rows_after, uri_of
from skillwire.catalog import Catalog, Draft, open_catalog
from skillwire.catalog.blobs import BlobStore
from skillwire.catalog.changes import lines_in
from skillwire.catalog.database import Database, Row, Transaction

MOST_CALLS = 300


class Fatal:
    """Ends this process, without any clean-up, at the n-th step."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class FatalTransaction:
    def __init__(self, inner: Transaction, fatal: Fatal) -> None:
        self._inner, self._fatal = inner, fatal

    async def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        self._fatal.step()
        return await self._inner.fetch(sql, parameters)

    async def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        self._fatal.step()
        return await self._inner.execute(sql, parameters)

    async def execute_many(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        for row in parameters:
            self._fatal.step()
            await self._inner.execute(sql, row)

    def stream(
        self, sql: str, parameters: Sequence[object] = (), *, batch: int = 1
    ) -> AsyncIterator[list[Row]]:
        return self._inner.stream(sql, parameters, batch=batch)


class FatalDatabase:
    """A database that ends this process at a call. All else is the inner database's."""

    def __init__(self, inner: Database, fatal: Fatal) -> None:
        self._inner, self._fatal = inner, fatal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def transaction(self, *, write: bool) -> AsyncGenerator[Transaction]:
        self._fatal.step()
        async with self._inner.transaction(write=write) as transaction:
            yield FatalTransaction(transaction, self._fatal)
            self._fatal.step()
        self._fatal.step()

    async def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        self._fatal.step()
        return await self._inner.read(sql, parameters)


class FatalBlobs:
    """A store that ends this process at a call. All else is the inner store's."""

    def __init__(self, inner: BlobStore, fatal: Fatal) -> None:
        self._inner, self._fatal = inner, fatal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def has(self, digests: Collection[str]) -> set[str]:
        self._fatal.step()
        return await self._inner.has(digests)

    async def put(self, digest: str, content: bytes) -> None:
        self._fatal.step()
        await self._inner.put(digest, content)
        self._fatal.step()


def drafts_at(state: int) -> list[Draft]:
    """Return the drafts of a state: every skill and version differs from the state before."""
    files = {"SKILL.md": f"State {state}.\n".encode(), "a.md": f"More {state}.\n".encode()}
    last = [draft("acme/odd", files)] if state % 2 else [draft("acme/even", files)]
    return [draft("acme/refunds", files, version=f"1.{state}.0"), *last]


async def publish_at(catalog: Catalog, state: int) -> None:
    """Publish a state as a managed source does."""
    await publish(catalog, *drafts_at(state), source="team", prune=True)


async def state_of(catalog: Catalog) -> int:
    """Return which state a catalog has, if it is exactly that, with every file."""
    rows = await rows_after(catalog)
    for row in rows:
        for digest in lines_in(row.entry).values():
            await catalog.read_blob(digest)
    moving = {row.name: row for row in rows if not row.is_pin}
    content = await catalog.read_blob(lines_in(moving["refunds"].entry)[uri_of("acme/refunds").text])
    state = int(content.split()[1].rstrip(b"."))
    wanted = {one.entry.uri.text: one.entry.to_json() for one in drafts_at(state)}
    assert {row.uri: json.loads(row.entry) for row in moving.values()} == wanted
    versions = {row.version for row in rows if row.is_pin}
    assert versions == {f"1.{one}.0" for one in range(1, state + 1)}
    # One revision for each state that was reached, and nothing else.
    assert await catalog.revision() == len(await catalog.history(limit=1000)) == state
    return state


async def run(url: str, last: int, say: Callable[[str], None]) -> None:
    """Say which state the one before left, publish that again, and die while publishing the next one."""
    async with open_catalog(url, create=True) as catalog:
        if last > 1:
            say({last - 1: "before", last: "after"}.get(await state_of(catalog), "another state"))
        await publish_at(catalog, last)
        assert await state_of(catalog) == last
        fatal = Fatal(last)
        database: Any = FatalDatabase(catalog.database, fatal)
        store: Any = FatalBlobs(catalog.store, fatal)
        await publish_at(Catalog(database, store, identity=catalog.id), last + 1)


def forked(work: Callable[[Callable[[str], None]], None]) -> tuple[int, str]:
    """Do something in another process; return how that ended, and what it said before."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1

        def say(text: str) -> None:
            os.write(writing, text.encode()[-4000:])

        try:
            work(say)
            status = 0
        except BaseException:
            say(traceback.format_exc())
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def try_all(url: str) -> dict[str, Any]:
    """Kill a publisher at each of its calls, until it has no more."""
    found: Counter[str] = Counter()
    for last in range(1, MOST_CALLS):
        status, said = forked(lambda say, last=last: anyio.run(run, url, last, say))
        if last > 1:
            found[said] += 1
        if status != -signal.SIGKILL:
            return {"kills": last - 1, "found": found, "status": status}
    return {"kills": MOST_CALLS, "found": found, "status": "it never ended"}


if __name__ == "__main__":
    gc.freeze()
    sys.stdout.write(json.dumps(try_all(sys.argv[1])))
