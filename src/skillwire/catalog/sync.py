"""Managed sources: skills of folders, repositories, archives and sites, published again on a schedule."""

import hashlib
import logging
import re
from dataclasses import asdict, dataclass, replace
from typing import Final

import anyio
import orjson

from skillwire.catalog.catalog import Catalog
from skillwire.catalog.database import Row
from skillwire.catalog.drafts import drafts_of
from skillwire.catalog.fetch import ManagedKind, check_location, fetched
from skillwire.catalog.model import CatalogError
from skillwire.core import SkillError, SkillUri, quoted

logger = logging.getLogger(__name__)

SYNC_SECONDS: Final = 900.0
"""How long fetching and publishing one source may take."""
MIN_EVERY: Final = 60.0
MAX_EVERY: Final = 30 * 86400.0

_COLUMNS = "name, kind, location, prefix, every, last_at, last_result"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MAX_LOCATION = 2_000
_MAX_ERROR = 500
# How much earlier or later than its interval a source is fetched, so that not all are at once.
_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What the last synchronization of a source did; with an `error`, nothing was changed.

    `skills` is the number of skills in the source, `changes` of those that were
    published or removed, and `broken` of folders from which none could be published.
    """

    error: str = ""
    revision: int = 0
    skills: int = 0
    changes: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class ManagedSource:
    """A source that the catalog publishes every so many seconds, below a prefix.

    `location` is a folder, the path or URL of an archive, the URL of a site, or of
    a repository: `https://host/repository.git#ref:folder`.
    """

    name: str
    kind: ManagedKind
    location: str
    prefix: str = ""
    every: float = 3600.0
    last_at: float | None = None
    last_result: SyncResult | None = None

    @property
    def due_at(self) -> float:
        """When it is to be fetched again, in POSIX seconds: the same on every replica."""
        if self.last_at is None:
            return 0.0
        drawn = hashlib.sha256(f"{self.name} {self.last_at!r}".encode()).digest()
        return self.last_at + self.every * (1 + _JITTER * (drawn[0] / 127.5 - 1))


async def add_source(catalog: Catalog, source: ManagedSource) -> None:
    """Add a managed source, which is then due.

    Raises:
        SkillError: There is one of this name, or its name, location, prefix or interval is not valid.
    """
    if _NAME.fullmatch(source.name) is None:
        raise CatalogError(
            f"{quoted(source.name)} is not a name of a source", fix="use a-z, 0-9, dots, dashes, underscores"
        )
    if len(source.location) > _MAX_LOCATION or not source.location.isprintable() or not source.location:
        raise CatalogError("the location of a source is a path or a URL on one line")
    if not MIN_EVERY <= source.every <= MAX_EVERY:
        raise CatalogError(f"the interval of a source is {MIN_EVERY:.0f} to {MAX_EVERY:.0f} seconds")
    check_location(source.kind, source.location)
    prefix = source.prefix.strip("/")
    SkillUri.build(f"{prefix}/name" if prefix else "name")
    async with catalog.database.transaction(write=True) as transaction:
        added = await transaction.execute(
            "INSERT INTO managed (name, kind, location, prefix, every, options, last_result) "
            "VALUES (?, ?, ?, ?, ?, '{}', '') ON CONFLICT (name) DO NOTHING",
            (source.name, source.kind.value, source.location, prefix, source.every),
        )
    if not added:
        raise CatalogError(f"there is a source {source.name!r} already", fix="remove it, or use another name")


async def remove_source(catalog: Catalog, name: str) -> None:
    """Remove a managed source; its skills stay published, and anybody may change them then.

    Raises:
        CatalogError: There is none of this name.
    """
    async with catalog.database.transaction(write=True) as transaction:
        removed = await transaction.execute("DELETE FROM managed WHERE name = ?", (name,))
    if not removed:
        raise CatalogError(f"there is no source {quoted(name)}", fix="list the sources of the catalog")


async def managed_sources(catalog: Catalog) -> list[ManagedSource]:
    """Return all managed sources, by name."""
    rows = await catalog.database.read(f"SELECT {_COLUMNS} FROM managed ORDER BY name")
    return [_source(row) for row in rows]


async def run_due(catalog: Catalog) -> dict[str, SyncResult]:
    """Fetch and publish the sources that are due, and return the result of each, which is recorded too.

    A source that fails keeps its skills, and does not stop the others. One that
    another process fetches at this time is left out.

    Raises:
        CatalogError: The catalog cannot be read.
    """
    results: dict[str, SyncResult] = {}
    for source in sorted(await _due(catalog), key=lambda source: source.due_at):
        try:
            async with catalog.lease(f"sync:{source.name}") as is_held:
                # Another process may have done it since.
                if is_held and source in await _due(catalog):
                    results[source.name] = result = await _sync(catalog, source)
                    await _record(catalog, source, result)
        except CatalogError as error:
            logger.warning("the result of the source %s is not recorded: %s", source.name, error)
            results[source.name] = SyncResult(str(error)[:_MAX_ERROR])
    return results


async def _due(catalog: Catalog) -> list[ManagedSource]:
    rows = await catalog.database.read(f"SELECT {_COLUMNS}, {catalog.database.clock} FROM managed")
    return [source for row in rows if (source := _source(row[:-1])).due_at <= row[-1]]


async def _record(catalog: Catalog, source: ManagedSource, result: SyncResult) -> None:
    query = f"UPDATE managed SET last_at = {catalog.database.clock}, last_result = ? WHERE name = ?"
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute(query, (orjson.dumps(asdict(result)).decode(), source.name))


async def _sync(catalog: Catalog, source: ManagedSource) -> SyncResult:
    """Fetch and publish a source; errors are results."""
    try:
        with anyio.fail_after(SYNC_SECONDS):
            return await _publish(catalog, source)
    except TimeoutError:
        error = f"it took more than {SYNC_SECONDS:.0f} seconds"
    except SkillError as caught:
        error = f"{caught}; {caught.fix}" if caught.fix else str(caught)
    except Exception as caught:
        logger.exception("unexpected failure while the source %s was fetched", source.name)
        error = f"unexpected failure: {type(caught).__name__}"
    logger.warning("the source %s was not published: %s", source.name, error)
    return SyncResult(error[:_MAX_ERROR])


async def _publish(catalog: Catalog, source: ManagedSource) -> SyncResult:
    """Fetch a source, and make its skills those of the catalog.

    What a site does not deliver may only be late, so nothing is removed then;
    and nothing is removed because a folder is empty, or not mounted.
    """
    async with fetched(source.kind, source.location, source.prefix) as opened:
        found = drafts_of(opened)
        is_temporary = source.kind in (ManagedKind.GIT, ManagedKind.ARCHIVE)
        drafts = [replace(draft, modified=None) if is_temporary else draft for draft in found.drafts]
        prune = not (found.broken and source.kind is ManagedKind.WELL_KNOWN)
        plan = await catalog.plan(drafts, source=source.name, prune=prune)
        if plan.removed and not drafts:
            raise CatalogError(
                "it has no skills any more, and nothing was removed",
                fix="if this is intended, remove the source and unpublish its skills",
            )
        done = await catalog.publish(plan, actor=f"sync:{source.name}", note=source.location)
    return SyncResult("", done.revision, len(drafts), len(done.changes), len(found.broken))


def _source(row: Row) -> ManagedSource:
    name, kind, location, prefix, every, last_at, last_result = row
    try:
        result = SyncResult(**orjson.loads(last_result)) if last_result else None
        return ManagedSource(name, ManagedKind(kind), location, prefix, every, last_at, result)
    except (ValueError, TypeError) as error:
        raise CatalogError(
            f"the source {quoted(name)} is one of a later version", fix="upgrade skillwire"
        ) from error
