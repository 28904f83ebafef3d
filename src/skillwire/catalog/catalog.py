"""`Catalog`: publishing skills to a database, their history, and what changed since a revision."""

import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, overload

import anyio

from skillwire.catalog.blobs import BlobStore, open_blobs
from skillwire.catalog.changes import (
    CatalogChange,
    change_between,
    current_rows,
    in_batches,
    make_plan,
    read_revision,
    record_event,
    write_change,
)
from skillwire.catalog.database import SECONDS, Database, open_database
from skillwire.catalog.model import (
    COLUMNS,
    FOREVER,
    AuditEvent,
    CatalogError,
    Draft,
    Publication,
    PublishPlan,
    Revision,
    SkillChange,
    SkillChangeKind,
    SkillRow,
    SkillVersion,
)
from skillwire.catalog.schema import prepare
from skillwire.core import ManifestFile, NotFoundError, SkillUri, VerificationError
from skillwire.sources.background import FailureLog, run_in_background
from skillwire.sources.snapshot import AFTER_SLASH

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 60.0
MAX_LIMIT: Final = 1000
"""The maximum number of items of one page of a history."""
COLLECTION: Final = "gc"
"""The lease of whoever removes files that no revision has. Nothing is published meanwhile."""
PUBLISHERS: Final = "publish/"
"""How the leases of publishers begin. While there is one, no file may be removed."""

ReportProgress: TypeAlias = Callable[[int, int], object]
"""Is called with the number of files that are stored, and of all that were missing."""

_UPLOADS = 8
_PAUSE_SECONDS = 0.1
_HAS_BATCH = 1000
_REVISION = "revision, at, actor, action, note"


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows that differ between two revisions; `revision` is the newer one."""

    revision: int
    batches: AsyncIterator[list[SkillRow]]


@asynccontextmanager
async def open_catalog(
    url: str, *, create: bool = False, blobs: str = "", poll_seconds: float = POLL_SECONDS
) -> AsyncGenerator["Catalog"]:
    """Open the catalog at a URL: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.

    With `create` it is created if there is none, and `blobs` is then where files
    are stored: `folder`, `table` or `s3://bucket/path`. At least every
    `poll_seconds`, `wait_for_change` checks for changes.

    Raises:
        CatalogError: There is no catalog, it cannot be reached, or it is not one.
    """
    async with open_database(url, create=create) as database:
        meta = await prepare(database, create=create, blobs=blobs)
        store = open_blobs(meta["blobs"], database)
        if create:
            await store.check()
        yield Catalog(database, store, identity=meta["id"], poll_seconds=poll_seconds)


class Catalog:
    """An open catalog. `database` and `store` are for the other modules of this package."""

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        *,
        identity: str,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.database = database
        self.store = store
        self.id = identity
        self._poll_seconds = poll_seconds
        self._failures = FailureLog(logger)

    @property
    def url(self) -> str:
        """The URL, without a password."""
        return self.database.url

    # Publishing

    async def plan(self, drafts: Sequence[Draft], *, source: str = "", prune: bool = False) -> PublishPlan:
        """Return what publishing the drafts would change.

        `source` is the name of the managed source that they come from. With
        `prune`, the skills of that source that are not among them are removed.

        Raises:
            InvalidSkillError: A draft breaks a rule.
            CatalogConflictError: What is in the catalog does not allow it.
        """
        if prune and not source:
            raise ValueError("prune needs the name of a source")
        async with self.database.transaction(write=False) as transaction:
            plan = await make_plan(transaction, drafts, source=source, prune=prune)
        return replace(plan, missing=frozenset(await self._missing(plan.files)))

    async def publish(
        self, plan: PublishPlan, *, actor: str, note: str = "", progress: ReportProgress | None = None
    ) -> Publication:
        """Store the files that are missing, and write the changes of a plan as one revision.

        Publishing the same again changes nothing.

        Raises:
            CatalogConflictError: Another publisher changed one of the skills since the plan was made.
            CatalogError: A file is not as its draft says, or unused files are being removed.
        """
        if not plan.changes:
            return Publication(await self.revision(), ())
        async with self.no_collection():
            # A file may have been removed since the plan was made.
            await upload(plan, await self._missing(plan.files), self.store.put, progress)
            action = "sync" if plan.source else "publish"
            change = CatalogChange(action, plan.rows, plan.removed, plan.seen, actor, note)
            revision, changed = await write_change(self.database, change)
        return Publication(revision, tuple(one for one in plan.changes if one.uri.text in changed))

    async def rollback(self, uri: SkillUri, revision: int, *, actor: str, note: str = "") -> Publication:
        """Make the state that a skill had at a revision its current one, as a new revision.

        Raises:
            NotFoundError: The skill had no state then.
            CatalogConflictError: The catalog of now does not allow it.
        """
        earlier = (await self.version_at(uri, revision)).row._replace(since=0, until=FOREVER)
        async with self.database.transaction(write=False) as transaction:
            current = (await current_rows(transaction, [uri.text])).get(uri.text)
        if current is not None and current.has_same_content(earlier):
            return Publication(await self.revision(), ())
        seen = {uri.text: current.since if current else 0}
        note = note or f"to revision {revision}"
        change = CatalogChange("rollback", [earlier], (), seen, actor, note)
        new, changed = await write_change(self.database, change)
        return Publication(new, (change_between(current, earlier),) if changed else ())

    async def unpublish(self, uris: Collection[SkillUri], *, actor: str, note: str = "") -> Publication:
        """Remove skills, or immutable versions, from the current state; their history stays.

        Raises:
            NotFoundError: One of them is not published.
            CatalogConflictError: Another publisher changed one of them at this moment.
        """
        async with self.database.transaction(write=False) as transaction:
            rows = await current_rows(transaction, {uri.text for uri in uris})
        for uri in uris:
            if uri.text not in rows:
                raise NotFoundError(f"no skill is published at {uri}", uri=uri.text)
        seen = {uri: row.since for uri, row in rows.items()}
        change = CatalogChange("unpublish", (), rows.keys(), seen, actor, note)
        revision, changed = await write_change(self.database, change)
        removals = (
            SkillChange(SkillUri(uri), SkillChangeKind.REMOVED, row.digest, is_pin=bool(row.is_pin))
            for uri, row in sorted(rows.items())
            if uri in changed
        )
        return Publication(revision, tuple(removals))

    async def _missing(self, files: Collection[str]) -> set[str]:
        missing: set[str] = set()
        for batch in in_batches(files, _HAS_BATCH):
            missing |= set(batch) - await self.store.has(batch)
        return missing

    @asynccontextmanager
    async def no_collection(self, seconds: float = LEASE_SECONDS) -> AsyncGenerator[None]:
        """Exclude the removal of unused files during the block; wait until one that is going on ends.

        `seconds` is how long they stay excluded after this process was killed.

        Raises:
            CatalogError: It did not end in time.
        """
        query = f"SELECT holder FROM leases WHERE name = ? AND until > {self.database.clock}"
        deadline = time.monotonic() + SECONDS
        while True:
            async with self.lease(f"{PUBLISHERS}{secrets.token_hex(16)}", seconds):
                if not await self.database.read(query, (COLLECTION,)):
                    yield
                    return
            # Without the lease, because it is waited for too.
            if time.monotonic() > deadline:
                raise CatalogError("unused files of the catalog are being removed", fix="try again later")
            await anyio.sleep(_PAUSE_SECONDS)

    # Reading

    async def revision(self) -> int:
        """Return the newest revision; 0 when nothing was ever published."""
        return int((await self.database.read("SELECT revision FROM state WHERE one = 1"))[0][0])

    async def version_at(self, uri: SkillUri, revision: int) -> SkillVersion:
        """Return the state of a skill at a revision.

        Raises:
            NotFoundError: It was not published then.
        """
        rows = await self.database.read(
            f"SELECT {COLUMNS}, {_REVISION} FROM versions JOIN revisions ON revision = since "
            "WHERE uri = ? AND since <= ? AND until > ?",
            (uri.text, revision, revision),
        )
        if not rows or revision > await self.revision():
            raise NotFoundError(
                f"no skill was published at {uri} in revision {revision}",
                uri=uri.text,
                fix="`history` has the revisions of a skill",
            )
        return _version(rows[0])

    @overload
    async def history(
        self, uri: SkillUri, *, limit: int = 100, before: int | None = None
    ) -> list[SkillVersion]: ...

    @overload
    async def history(
        self, uri: None = None, *, limit: int = 100, before: int | None = None
    ) -> list[Revision]: ...

    async def history(
        self, uri: SkillUri | None = None, *, limit: int = 100, before: int | None = None
    ) -> list[SkillVersion] | list[Revision]:
        """Return the states of a skill, or the revisions of the catalog, newest first.

        `before` is the number of a revision, for pages. A skill that was removed
        has no state that is current.
        """
        before = FOREVER if before is None else before
        limit = min(limit, MAX_LIMIT)
        if uri is None:
            query = f"SELECT {_REVISION} FROM revisions WHERE revision < ? ORDER BY revision DESC LIMIT ?"
            return [Revision(*row) for row in await self.database.read(query, (before, limit))]
        rows = await self.database.read(
            f"SELECT {COLUMNS}, {_REVISION} FROM versions JOIN revisions ON revision = since "
            "WHERE uri = ? AND since < ? ORDER BY since DESC LIMIT ?",
            (uri.text, before, limit),
        )
        return [_version(row) for row in rows]

    async def named(self, name: str) -> list[SkillUri]:
        """Return the skills with a name, or if there is none, those that had it before they were removed."""
        query = "SELECT DISTINCT uri FROM versions WHERE name = ? AND is_pin = 0"
        rows = await self.database.read(f"{query} AND until = {FOREVER} ORDER BY uri", (name,))
        rows = rows or await self.database.read(f"{query} ORDER BY uri", (name,))
        return [SkillUri(uri) for (uri,) in rows]

    @asynccontextmanager
    async def rows_since(self, revision: int, *, batch: int = 1000) -> AsyncGenerator[RowChanges]:
        """Read the rows that were added or closed after a revision, in any order, at one consistent state.

        After revision 0, only the current rows are read. The transaction is open
        during the block, which therefore must not wait for others.
        """
        query, parameters = f"SELECT {COLUMNS} FROM versions WHERE until = {FOREVER}", ()
        if revision:
            query = f"SELECT {COLUMNS} FROM versions WHERE since > ? OR (until > ? AND until < {FOREVER})"
            parameters = (revision, revision)
        async with self.database.transaction(write=False) as transaction:
            now = await read_revision(transaction)
            rows = transaction.stream(query, parameters, batch=batch)
            yield RowChanges(now, _batches(rows))

    async def read_blob(self, digest: str) -> bytes:
        """Return a file by its digest, verified.

        Raises:
            CatalogError: The catalog does not have it, or it is damaged.
        """
        return await self.store.get(digest)

    async def wait_for_change(self, revision: int, *, seconds: float) -> int:
        """Wait until there is a revision newer than this one, and return the newest that is known.

        After `seconds` without one it is the same revision. While the database
        cannot be reached, waiting continues.
        """
        newest = revision
        with anyio.move_on_after(seconds):
            while True:
                notice = self.database.notice
                try:
                    newest = max(revision, await self.revision())
                    self._failures.recovered("the catalog can be reached again")
                except CatalogError as error:
                    self._failures.failed(type(error).__name__, f"the catalog cannot be reached: {error}")
                if newest > revision:
                    break
                await self.database.wait_for_notice(notice, self._poll_seconds)
        return newest

    # Leases

    @asynccontextmanager
    async def lease(self, name: str, seconds: float = LEASE_SECONDS) -> AsyncGenerator[bool]:
        """Hold a lease, if nobody else does: it is renewed during the block, and released at its end.

        The block gets whether the lease is held. It is cancelled if the lease
        is lost, because it could not be renewed in time.

        Raises:
            CatalogError: The lease was lost.
        """
        holder = secrets.token_hex(16)
        started = time.monotonic()
        if not await self._take_lease(name, holder, seconds):
            yield False
            return
        try:
            with anyio.CancelScope() as scope:
                renewing = partial(self._renew_lease, name, holder, seconds, started + seconds, scope)
                async with run_in_background(renewing):
                    yield True
            if scope.cancelled_caught:
                raise CatalogError(f"the lease {name!r} was lost to another process", fix="try again")
        finally:
            with anyio.move_on_after(SECONDS, shield=True), suppress(CatalogError):
                async with self.database.transaction(write=True) as transaction:
                    query = "DELETE FROM leases WHERE name = ? AND holder = ?"
                    await transaction.execute(query, (name, holder))

    async def _renew_lease(
        self, name: str, holder: str, seconds: float, expires: float, scope: anyio.CancelScope
    ) -> None:
        """Renew a lease until it is lost; then cancel the scope."""
        while True:
            await anyio.sleep(seconds / 3)
            started = time.monotonic()
            try:
                with anyio.fail_after(max(expires - started, 0)):
                    if not await self._take_lease(name, holder, seconds):
                        break
                expires = started + seconds
            except (CatalogError, TimeoutError):
                if time.monotonic() >= expires:
                    break
        scope.cancel()

    async def _take_lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or renew a lease by the clock of the database; return whether it is held now."""
        clock = self.database.clock
        async with self.database.transaction(write=True) as transaction:
            await transaction.execute(
                f"INSERT INTO leases (name, holder, until) VALUES (?, ?, {clock} + ?) ON CONFLICT (name) "
                "DO UPDATE SET holder = excluded.holder, until = excluded.until "
                f"WHERE leases.holder = excluded.holder OR leases.until < {clock}",
                (name, holder, seconds),
            )
            # Those of processes that ended without releasing them.
            await transaction.execute(f"DELETE FROM leases WHERE until < {clock}")
            rows = await transaction.fetch("SELECT holder FROM leases WHERE name = ?", (name,))
        return rows == [(holder,)]

    # The audit log

    async def record(
        self, action: str, *, actor: str, namespace: str = "", uri: str = "", detail: str = ""
    ) -> None:
        """Write a line of the audit log about something that is not a revision, such as a denial."""
        async with self.database.transaction(write=True) as transaction:
            clock = self.database.clock
            await record_event(
                transaction, clock, action, actor=actor, namespace=namespace, uri=uri, detail=detail
            )

    async def audit_log(
        self, *, limit: int = 100, before: int | None = None, below: Collection[str] | None = None
    ) -> list[AuditEvent]:
        """Return the lines of the audit log, newest first; `before` is the number of a line, for pages.

        With `below`, only lines about skills in these directories are returned.
        """
        spans = [span for place in below or () for span in (place, f"{place}/", place + AFTER_SLASH)]
        places = " OR ".join(["uri = ? OR (uri >= ? AND uri < ?)"] * len(below or ()))
        rows = await self.database.read(
            "SELECT id, at, actor, action, namespace, uri, revision, detail FROM audit "
            f"WHERE id < ? {'' if below is None else f'AND ({places})'} ORDER BY id DESC LIMIT ?",
            (FOREVER if before is None else before, *spans, min(limit, MAX_LIMIT)),
        )
        return [AuditEvent(*row) for row in rows]


async def upload(
    plan: PublishPlan,
    missing: Collection[str],
    put: Callable[[str, bytes], Awaitable[object]],
    progress: ReportProgress | None,
    *,
    at_once: int = _UPLOADS,
) -> None:
    """Store the missing files of a plan, a few at a time, each checked against its line.

    Raises:
        CatalogError: A file is not as its draft says, or cannot be stored.
    """
    waiting = iter(sorted(missing))
    failures: list[Exception] = []
    stored = 0

    async def work(digests: Iterator[str]) -> None:
        nonlocal stored
        try:
            for digest in digests:
                await put(digest, await _read(*plan.files[digest]))
                stored += 1
                if progress is not None:
                    progress(stored, len(missing))
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(min(at_once, len(missing))):
            group.start_soon(work, waiting)
    if failures:
        raise failures[0]


async def _read(draft: Draft, line: ManifestFile) -> bytes:
    """Read a file of a draft.

    Raises:
        CatalogError: It is not the one that the entry lists.
    """
    content = await draft.read(line)
    try:
        line.verify(content)
    except VerificationError as error:
        raise CatalogError(f"{line.uri} changed while it was published", fix="publish again") from error
    return content


async def _batches(rows: AsyncIterator[list[tuple[object, ...]]]) -> AsyncGenerator[list[SkillRow]]:
    async for batch in rows:
        yield [SkillRow._make(row) for row in batch]  # pyright: ignore[reportArgumentType]


def _version(row: Sequence[object]) -> SkillVersion:
    width = len(SkillRow._fields)
    return SkillVersion(SkillRow._make(row[:width]), Revision(*row[width:]))  # pyright: ignore[reportArgumentType]
