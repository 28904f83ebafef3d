"""`IndexUpdates`: brings the search index of a catalog up to date in the background.

Only what changed since the revision of the index is read. When that is not
known, such as the first time, all digests are compared in the order of URIs. A
part of the changes is in memory at a time, and is written at once; after an
interruption, the next update goes on with the rest. Meanwhile, what is in the
index already can be searched.
"""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Lock
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from skillwire.core import SkillEntry, SkillError, SourceError
from skillwire.runner import scripts_of
from skillwire.search.index import SearchIndex, WeighedDocument
from skillwire.search.scores import Document, weigh
from skillwire.sources.combined import CombinedSource
from skillwire.sources.stored import StoredSnapshot

RETRY_SECONDS: Final = 30.0
"""How long a failed update waits for the next attempt, and a body that could not be read, at most."""

logger = logging.getLogger(__name__)

_CURRENT_SECONDS = 2.0
_READ_SECONDS = 60.0
_READERS = 16
_CHUNK = 500
# With more changes, all digests are compared.
_MOST_CHANGES = 5000
# A search waits for so many changes, but not for more.
_FEW_CHANGES = 1000
# How many words are written at once: the more there are, the less often each term is written.
_MOST_WORDS = 1_000_000
# The memory of a document besides its words, in words.
_DOCUMENT = 50

ReadLater: TypeAlias = Callable[[SkillEntry], Awaitable[str | None]]
"""Returns the instructions of a skill; None if they cannot be read at the moment."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Documents that are gone or changed, and the digests of those that are to be written."""

    gone: Sequence[str]
    new: Mapping[str, str]


class IndexUpdates:
    """The updates of one index, which `lock` protects.

    `body` returns instructions if they are at hand; the others are read with
    `read_later`, some at a time.
    """

    def __init__(
        self,
        index: SearchIndex,
        lock: Lock,
        source: CombinedSource,
        body: Callable[[SkillEntry], str | None],
        read_later: ReadLater,
    ) -> None:
        self._index = index
        self._lock = lock
        self._source = source
        self._body = body
        self._read_later = read_later
        self._wanted = anyio.Event()
        self._progress = anyio.Event()
        # The revision in the index, None until it is open, and whether much is missing in it.
        self._at: int | None = None
        self._is_behind = False
        self._failure: Exception | None = None
        self._gone: list[str] = []
        self._new: list[WeighedDocument] = []
        self._words = 0
        # Whether the store of the bodies does not answer, and whether there are more that could not be read.
        self._is_away = False
        self._has_more = False

    @property
    def snapshot(self) -> StoredSnapshot:
        """The newest state of the catalog, without immutable versions: they would repeat what is found."""
        snapshot = self._source.snapshot
        assert isinstance(snapshot, StoredSnapshot), "only a catalog is updated in the background"
        return snapshot.without_versions()

    def start(self) -> None:
        """Begin to update, if that has not been done."""
        self._wanted.set()

    async def wait(self) -> bool:
        """Wait for a short time until the index is up to date, and return whether it is.

        Raises:
            SourceError: It failed, and is tried again later.
        """
        self.start()
        if not self._index.is_open:
            self._at = None  # It failed during a search.
        with anyio.move_on_after(_CURRENT_SECONDS):
            while self._failure is None and (self._at is None or not (self._is_current or self._is_behind)):
                await self._progress.wait()
        if self._at is None:
            raise SourceError(
                "skills cannot be searched at the moment", fix="try again later, or list them"
            ) from self._failure
        return self._is_current

    @property
    def _is_current(self) -> bool:
        return self._at == self.snapshot.selection.at

    async def run(self) -> None:
        """Update whenever the catalog changes, from the first search on, until cancelled."""
        await self._wanted.wait()
        retries = True
        while True:
            snapshot, failed = self.snapshot, self._failure is not None
            try:
                await self._update(snapshot, retries=retries)
                self._failure = None
            except Exception as error:
                if self._index.is_stopped:
                    return
                is_expected = isinstance(error, sqlite3.Error | SkillError | MemoryError)
                logger.warning("the search index could not be updated: %s", error, exc_info=not is_expected)
                self._failure = error
                if not isinstance(error, SkillError):
                    self._at = None
                    await self._in_thread(self._index.discard)
                    if not failed:
                        continue
            self._announce()
            seconds = 0.0 if self._has_more and not self._is_away else RETRY_SECONDS
            with anyio.move_on_after(seconds) as waiting:
                await self._source.wait_for_change(snapshot.revision)
            retries = waiting.cancelled_caught

    def _announce(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def locked() -> Result:
            with self._lock:
                return work()

        return await anyio.to_thread.run_sync(locked)

    async def _update(self, snapshot: StoredSnapshot, *, retries: bool) -> None:
        """Update the index to a snapshot; with `retries`, also skills whose bodies could not be read."""
        self._gone, self._new, self._words = [], [], 0
        self._has_more = self._is_away = False
        chunks, is_large = await self._in_thread(partial(self._chunks, snapshot, retries))
        self._is_behind = is_large
        self._at = -1 if self._at is None else self._at
        self._announce()
        while (chunk := await self._in_thread(partial(next, chunks, None))) is not None:
            await self._add(snapshot, chunk)
            if self._words > _MOST_WORDS:
                await self._in_thread(self._write)
        await self._in_thread(partial(self._write, snapshot.selection.at))
        self._at, self._is_behind = snapshot.selection.at, False

    def _chunks(self, snapshot: StoredSnapshot, retries: bool) -> tuple[Iterator[_Chunk], bool]:
        """Return what differs between the index and a snapshot, and whether that may be much."""
        index, count = self._index, len(snapshot.stored)
        revision = index.revision
        # After a restart of the catalog from a backup, its revision may be older.
        if 0 < revision <= snapshot.selection.at:
            changed = snapshot.changed_since(revision, _MOST_CHANGES)
            if changed is not None:
                unread = index.incomplete(_CHUNK) if retries else []
                self._has_more = len(unread) == _CHUNK
                changed += unread
                known, now = index.digests_of(changed), snapshot.digests_of(changed)
                # Else something is gone since so long that the catalog does not know it.
                if len(index) - len(known) + len(now) == count:
                    return _differences(known, now), len(changed) > _FEW_CHANGES
        return self._compared(snapshot), max(count, len(index)) > _FEW_CHANGES

    def _compared(self, snapshot: StoredSnapshot) -> Iterator[_Chunk]:
        """Compare all digests in the order of URIs."""
        position = ""
        while True:
            now = snapshot.digests(position, _CHUNK)
            end = "" if len(now) < _CHUNK else next(reversed(now))
            yield from _differences(self._index.digests(position, end), now)
            if not end:
                return
            position = end

    async def _add(self, snapshot: StoredSnapshot, chunk: _Chunk) -> None:
        """Read the documents of a chunk, to be written."""
        self._gone += chunk.gone
        in_thread = anyio.to_thread.run_sync
        entries = await in_thread(snapshot.read, list(chunk.new))
        bodies = await in_thread(lambda: {entry.uri.text: self._body(entry) for entry in entries})
        missing = [entry for entry in entries if bodies[entry.uri.text] is None]
        if missing and not self._is_away:
            await self._read_bodies(iter(missing), bodies)
            self._is_away = all(bodies[entry.uri.text] is None for entry in missing)
        found = await in_thread(
            lambda: [_weighed(entry, chunk.new, bodies[entry.uri.text]) for entry in entries]
        )
        self._new += found
        self._words += sum(len(document.words.terms) + _DOCUMENT for document in found)

    async def _read_bodies(self, entries: Iterator[SkillEntry], bodies: dict[str, str | None]) -> None:
        """Read the bodies that are not at hand, as far as they can be read in time."""

        async def read() -> None:
            for entry in entries:
                bodies[entry.uri.text] = await self._read_later(entry)

        with anyio.move_on_after(_READ_SECONDS):
            async with anyio.create_task_group() as group:
                for _ in range(_READERS):
                    group.start_soon(read)

    def _write(self, revision: int | None = None) -> None:
        self._index.write(self._gone, self._new, revision=revision)
        self._gone, self._new, self._words = [], [], 0


def _differences(known: Mapping[str, bytes], now: Mapping[str, str]) -> Iterator[_Chunk]:
    gone = [uri for uri, digest in known.items() if uri not in now or now[uri].encode() != digest]
    new = {uri: digest for uri, digest in now.items() if known.get(uri) != digest.encode()}
    for start in range(0, max(len(new), 1), _CHUNK):
        yield _Chunk(() if start else gone, dict(islice(new.items(), start, start + _CHUNK)))


def document_of(entry: SkillEntry) -> Document:
    """Return the document of a skill of a catalog."""
    return Document(
        entry.frontmatter.name, entry.uri.path, entry.frontmatter, has_scripts=bool(scripts_of(entry))
    )


def _weighed(entry: SkillEntry, digests: Mapping[str, str], text: str | None) -> WeighedDocument:
    digest = b"" if text is None else digests[entry.uri.text].encode()
    return WeighedDocument(entry.uri.text, digest, weigh(document_of(entry), text or ""))
