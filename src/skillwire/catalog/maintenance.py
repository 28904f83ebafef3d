"""Figures of a catalog, a check of everything in it, and the removal of files that nothing refers to."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from skillwire.catalog.blobs import BlobDamagedError, BlobMissingError, StoredBlob, for_each
from skillwire.catalog.catalog import COLLECTION, PUBLISHERS, Catalog, ReportProgress
from skillwire.catalog.changes import in_batches, read_revision
from skillwire.catalog.database import SQLITE, Transaction
from skillwire.catalog.model import COLUMNS, FOREVER, CatalogError, SkillRow
from skillwire.core import ManifestFile, SkillError, digest_of, parse_entry
from skillwire.core.json import parse_strictly

GRACE_SECONDS: Final = 86400.0
"""How long a file that nothing refers to is kept: a publication may be about to refer to it."""

_BATCH = 500
_WAIT_SECONDS = 60.0
_TURN_SECONDS = 3.0
_PAUSE_SECONDS = 0.1


# Figures


@dataclass(frozen=True, slots=True)
class CatalogStats:
    """What a catalog has now; `files` and `size` are of all that is stored, also for earlier revisions."""

    revision: int
    skills: int
    pins: int
    namespaces: int
    revisions: int
    files: int
    size: int
    database_size: int


async def stats(catalog: Catalog) -> CatalogStats:
    """Count what a catalog has.

    Raises:
        CatalogError: It cannot be read.
    """
    database = catalog.database
    [(revision, skills, pins, namespaces, revisions)] = await database.read(
        "SELECT (SELECT revision FROM state WHERE one = 1), count(*) - coalesce(sum(is_pin), 0), "
        "coalesce(sum(is_pin), 0), count(DISTINCT namespace), (SELECT count(*) FROM revisions) "
        f"FROM versions WHERE until = {FOREVER}"
    )
    files = size = 0
    async for batch in catalog.store.digests():
        files += len(batch)
        size += sum(blob.size for blob in batch)
    size_query = (
        "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        if database.kind == SQLITE
        else "SELECT pg_database_size(current_database())"
    )
    [(database_size,)] = await database.read(size_query)
    return CatalogStats(
        int(revision),
        int(skills),
        int(pins),
        int(namespaces),
        int(revisions),
        files,
        size,
        int(database_size),
    )


# The files that rows refer to


class References:
    """The digests of files that rows refer to, with the size and one URI of each."""

    def __init__(self) -> None:
        self.lines: dict[str, ManifestFile] = {}
        self.rows = 0
        self.unreadable: list[Problem] = []

    def add(self, rows: Iterable[SkillRow]) -> None:
        """Add rows; those that cannot be read are collected."""
        for row in rows:
            self.rows += 1
            try:
                for line in lines_of(row):
                    self.lines.setdefault(line.digest, line)
            except CatalogError as error:
                self.unreadable.append(Problem(f"{row.uri} of revision {row.since}", str(error)))

    async def add_from(self, transaction: Transaction, since: int = 0) -> None:
        """Add all rows of a transaction that are newer than a revision."""
        async for rows in rows_of(transaction, since):
            await anyio.to_thread.run_sync(self.add, rows)


async def rows_of(transaction: Transaction, since: int = 0) -> AsyncIterator[list[SkillRow]]:
    """Yield the rows of all revisions after one, sorted."""
    query = f"SELECT {COLUMNS} FROM versions WHERE since > ? ORDER BY uri, since"
    async for batch in transaction.stream(query, (since,), batch=_BATCH):
        yield [SkillRow(*row) for row in batch]


def lines_of(row: SkillRow) -> Sequence[ManifestFile]:
    """Return the files of a row, after checking that it is as it was written.

    Raises:
        CatalogError: It is not.
    """
    entry = bytes(row.entry)
    if digest_of(entry) != row.digest:
        raise CatalogError("the entry does not match its digest")
    try:
        parsed = parse_entry(parse_strictly(entry))
        details = parse_strictly(row.details.encode())
    except (SkillError, ValueError) as error:
        raise CatalogError(f"the entry cannot be read: {error}") from error
    if parsed.uri.text != row.uri or parsed.manifest is None or not isinstance(details, dict):
        raise CatalogError("the entry is not that of this row")
    return parsed.manifest.files


# Checking everything


class Problem(NamedTuple):
    """Something in a catalog that is not as it should be: what, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check of all rows of all revisions, and of every file they refer to."""

    revision: int
    rows: int
    files: int
    size: int
    missing: tuple[Problem, ...] = ()
    damaged: tuple[Problem, ...] = ()
    unreadable: tuple[Problem, ...] = ()

    @property
    def is_intact(self) -> bool:
        return not (self.missing or self.damaged or self.unreadable)


async def verify(catalog: Catalog, progress: ReportProgress | None = None) -> Verification:
    """Read every row and the bytes of every file that one refers to, and return what is wrong.

    Nothing is repaired or removed.

    Raises:
        CatalogError: The database or the store of blobs cannot be used.
    """
    references = References()
    async with catalog.database.transaction(write=False) as transaction:
        revision = await read_revision(transaction)
        await references.add_from(transaction)
    lines = references.lines
    missing: list[Problem] = []
    damaged: list[Problem] = []
    size = done = 0

    async def check(line: ManifestFile) -> None:
        nonlocal size, done
        try:
            content = await catalog.store.get(line.digest)
            size += len(content)
            if len(content) != line.size:
                raise BlobDamagedError(f"it has {len(content)} bytes, and the entry says {line.size}")
        except BlobMissingError as error:
            missing.append(Problem(line.digest, f"{error} ({line.uri})"))
        except BlobDamagedError as error:
            damaged.append(Problem(line.digest, f"{error} ({line.uri})"))
        done += 1
        if progress is not None:
            progress(done, len(lines))

    await for_each(sorted(lines.values(), key=lambda line: line.digest), check)
    return Verification(
        revision,
        references.rows,
        len(lines),
        size,
        tuple(sorted(missing)),
        tuple(sorted(damaged)),
        tuple(references.unreadable),
    )


# Removing what nothing refers to


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What nothing refers to any more: files that were removed, or would be, and younger ones that stay."""

    files: int
    size: int
    young: int
    is_dry_run: bool


async def gc(
    catalog: Catalog, *, grace_seconds: float = GRACE_SECONDS, dry_run: bool = False
) -> CollectionReport:
    """Remove the blobs that no row of any revision refers to, and that are older than the grace time.

    Publishers go on meanwhile. Those that begin while a batch of blobs is being
    removed wait until it is, and those that run are waited for.

    Raises:
        CatalogError: A row cannot be read, others remove blobs too, or publishers did not end in time.
    """
    references = References()
    async with catalog.database.transaction(write=False) as transaction:
        revision = await read_revision(transaction)
        [(now,)] = await transaction.fetch(f"SELECT {catalog.database.clock}")
        await references.add_from(transaction)
    _require_readable(references)
    unused: dict[str, StoredBlob] = {}
    young = 0
    async for batch in catalog.store.digests():
        for blob in batch:
            if blob.digest in references.lines:
                continue
            if blob.at > min(now, time.time()) - grace_seconds:
                young += 1
            else:
                unused[blob.digest] = blob
    removed = list(unused.values()) if dry_run else []
    if not dry_run:
        await catalog.store.remove([])  # What interrupted writes left.
        for digests in in_batches(unused):
            removed += [unused[one] for one in await _remove(catalog, digests, revision)]
        detail = f"{len(removed)} files with {sum(blob.size for blob in removed)} bytes removed"
        await catalog.record("gc", actor="", detail=detail)
    return CollectionReport(len(removed), sum(blob.size for blob in removed), young, dry_run)


async def _remove(catalog: Catalog, digests: Sequence[str], revision: int) -> list[str]:
    """Remove those blobs that no row after a revision refers to either, while nobody publishes."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        async with catalog.lease(COLLECTION) as is_held:
            if is_held and await _publishers_ended(catalog):
                async with catalog.database.transaction(write=True) as transaction:
                    # As a change does, so that none is written until this ends.
                    await transaction.execute("UPDATE state SET revision = revision WHERE one = 1")
                    references = References()
                    await references.add_from(transaction, revision)
                    _require_readable(references)
                    unused = [digest for digest in digests if digest not in references.lines]
                    await catalog.store.remove(unused, transaction)
                return unused
        # Publishers that wait begin now.
        await anyio.sleep(_TURN_SECONDS)
    raise CatalogError(
        "others publish or remove unused files at this time, and did not end in time", fix="try again later"
    )


async def _publishers_ended(catalog: Catalog) -> bool:
    """Wait for a short while until no publisher holds a lease; return whether none does."""
    query = f"SELECT count(*) FROM leases WHERE name LIKE ? AND until > {catalog.database.clock}"
    deadline = time.monotonic() + _TURN_SECONDS
    while (await catalog.database.read(query, (f"{PUBLISHERS}%",)))[0][0]:
        if time.monotonic() > deadline:
            return False
        await anyio.sleep(_PAUSE_SECONDS)
    return True


def _require_readable(references: References) -> None:
    if references.unreadable:
        raise CatalogError(
            f"a row cannot be read, so the files that it refers to are not known: "
            f"{references.unreadable[0].name}",
            fix="run `skillwire catalog verify`, and restore a backup",
        )
