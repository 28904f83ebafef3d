"""Changes of a catalog: plans, the checks that a new state is valid, and the transaction that writes it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from skillwire.catalog.database import Database, Row, Transaction
from skillwire.catalog.drafts import rows_of
from skillwire.catalog.model import (
    COLUMNS,
    FOREVER,
    CatalogConflictError,
    Draft,
    PublishPlan,
    SkillChange,
    SkillChangeKind,
    SkillRow,
)
from skillwire.core import DuplicateSkillError, ManifestFile, SkillUri
from skillwire.sources.snapshot import possible_skills

BATCH: Final = 500
"""How many skills one query is about."""
MAX_NAMED: Final = 10
"""How many skills an error names."""
MAX_NOTE: Final = 2000

Item = TypeVar("Item")

_CURRENT = f"until = {FOREVER}"
_INSERT = f"INSERT INTO versions ({COLUMNS}) VALUES ({', '.join('?' * len(SkillRow._fields))})"


class CatalogChange(NamedTuple):
    """What a transaction is to write; `seen` maps URIs to the revision of the state it is based on."""

    action: str
    rows: Sequence[SkillRow]
    removed: Collection[str]
    seen: Mapping[str, int]
    actor: str
    note: str = ""


def in_batches(items: Collection[Item], size: int = BATCH) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


async def read_revision(transaction: Transaction) -> int:
    """Return the newest revision."""
    return int((await transaction.fetch("SELECT revision FROM state WHERE one = 1"))[0][0])


async def current_rows(transaction: Transaction, uris: Collection[str]) -> dict[str, SkillRow]:
    """Return the current states of those skills that have one, by URI."""
    return {
        row[0]: SkillRow(*row)
        for batch in in_batches(uris)
        for row in await transaction.fetch(
            f"SELECT {COLUMNS} FROM versions WHERE uri IN ({_marks(batch)}) AND {_CURRENT}", batch
        )
    }


# Plans


async def make_plan(
    transaction: Transaction, drafts: Sequence[Draft], *, source: str, prune: bool
) -> PublishPlan:
    """Compare drafts with the current states, and check that they can be published.

    Raises:
        InvalidSkillError: A draft breaks a rule.
        DuplicateSkillError: Two drafts have the same URI.
        CatalogConflictError: What is in the catalog does not allow it.
    """
    managed = {name for (name,) in await transaction.fetch("SELECT name FROM managed")}
    rows: list[SkillRow] = []
    changes: list[SkillChange] = []
    seen: dict[str, int] = {}
    versions: set[str] = set()
    files: dict[str, tuple[Draft, ManifestFile]] = {}
    for batch in in_batches(drafts):
        proposed: dict[str, tuple[SkillRow, Draft]] = {}
        for draft in batch:
            for row in rows_of(draft, source):
                if row.uri in proposed or row.uri in seen or row.uri in versions:
                    raise DuplicateSkillError(
                        f"{row.uri} is in what is to be published twice",
                        uris=[row.uri],
                        fix="remove one of the two",
                    )
                proposed[row.uri] = row, draft
        before = await current_rows(transaction, proposed)
        known = await _check_versions(transaction, [row for row, _ in proposed.values()])
        for uri, (row, draft) in proposed.items():
            old = before.get(uri)
            if row.is_pin:
                versions.add(uri)
            else:
                seen[uri] = old.since if old else 0
            if uri in known or (old and old.has_same_content(row)):
                continue
            if old and old.source in managed - {source}:
                raise CatalogConflictError(
                    f"{uri} comes from the source {old.source!r}, which keeps it up to date",
                    uris=[uri],
                    fix="change the skill there, or publish it under another path",
                )
            rows.append(row)
            changes.append(change_between(old, row))
            assert draft.entry.manifest is not None, "`rows_of` has checked it"
            for line in draft.entry.manifest.files:
                files.setdefault(line.digest, (draft, line))
    if prune:
        changes += await _removals(transaction, source, seen)
    plan = PublishPlan(tuple(changes), frozenset(), source, tuple(rows), seen, files)
    await check_fit(transaction, rows, plan.removed)
    return plan


async def _removals(transaction: Transaction, source: str, seen: dict[str, int]) -> list[SkillChange]:
    """Return the removals of skills of a source that are not among those seen, and add them there."""
    found = await transaction.fetch(
        f"SELECT uri, since, digest FROM versions WHERE {_CURRENT} AND source <> '' AND source = ? "
        "AND is_pin = 0 ORDER BY uri",
        (source,),
    )
    gone = [row for row in found if row[0] not in seen]
    seen.update((uri, since) for uri, since, _ in gone)
    return [SkillChange(SkillUri(uri), SkillChangeKind.REMOVED, digest) for uri, _, digest in gone]


def change_between(before: SkillRow | None, after: SkillRow) -> SkillChange:
    """Return how a skill changes, with the paths of files that differ."""
    uri = SkillUri(after.uri)
    if before is None:
        return SkillChange(uri, SkillChangeKind.ADDED, "", after.digest, is_pin=bool(after.is_pin))
    old, new = lines_in(before.entry), lines_in(after.entry)
    differing = sorted(file for file in old | new if old.get(file) != new.get(file))
    paths = tuple(uri.relative_path(file) for file in differing)
    return SkillChange(uri, SkillChangeKind.CHANGED, before.digest, after.digest, paths, bool(after.is_pin))


def lines_in(entry: bytes) -> dict[str, str]:
    """Return the digests of the files in a stored entry, by URI."""
    return {line["uri"]: line["digest"] for line in orjson.loads(entry)["resources"]}


# Checks


async def check_fit(transaction: Transaction, rows: Sequence[SkillRow], removed: Collection[str]) -> None:
    """Check that the catalog with new states, and without removed skills, is valid.

    Raises:
        CatalogConflictError: A name would not be unique, or a manifest would not list the files of a skill
            inside it.
    """
    replaced = {row.uri for row in rows} | set(removed)
    await _check_names(transaction, rows, replaced)
    await _check_nesting(transaction, {row.uri: row for row in rows}, frozenset(removed))


async def _check_names(transaction: Transaction, rows: Sequence[SkillRow], replaced: Collection[str]) -> None:
    owners: dict[tuple[str, str], str] = {}
    taken: list[tuple[str, str]] = []
    moving = [row for row in rows if not row.is_pin]
    for row in moving:
        other = owners.setdefault((row.namespace, row.name), row.uri)
        if other != row.uri:
            taken.append((row.uri, other))
    for batch in in_batches(moving):
        found = await transaction.fetch(
            f"SELECT v.uri, v.namespace, v.name FROM (VALUES {_values(batch, 2)}) AS w JOIN versions v "
            f"ON v.namespace = w.column1 AND v.name = w.column2 WHERE v.{_CURRENT} AND v.is_pin = 0",
            [value for row in batch for value in (row.namespace, row.name)],
        )
        taken += [(owners[space, name], uri) for uri, space, name in found if uri not in replaced]
    if taken:
        uri, other = min(taken)
        raise CatalogConflictError(
            f"{uri} has the name of {other}, and names are unique in a namespace{_and_more(len(taken) - 1)}",
            uris=sorted({one for pair in taken for one in pair}),
            fix="give one of them another name, or publish it in another namespace",
        )


async def _check_nesting(
    transaction: Transaction, rows: Mapping[str, SkillRow], removed: frozenset[str]
) -> None:
    """Check that the manifest of each skill around another lists exactly the other's files there."""
    outside = {
        uri: [outer.text for outer in possible_skills(SkillUri(uri).root.rpartition("/")[0])] for uri in rows
    }
    stored: set[str] = set()
    for batch in in_batches({outer for found in outside.values() for outer in found}):
        query = f"SELECT uri FROM versions WHERE uri IN ({_marks(batch)}) AND {_CURRENT}"
        stored.update(uri for (uri,) in await transaction.fetch(query, batch))
    present = (stored - removed) | rows.keys()
    pairs = {(outer, uri) for uri, found in outside.items() for outer in found if outer in present}
    for batch in in_batches(rows):
        pairs |= {pair for pair in await _inside(transaction, batch) if pair[1] not in removed}
    if not pairs:
        return
    states = {uri: lines_in(row.entry) for uri, row in rows.items() if any(uri in pair for pair in pairs)}
    others = {uri for pair in pairs for uri in pair} - rows.keys()
    for batch in in_batches(others):
        states.update(
            (uri, lines_in(row.entry)) for uri, row in (await current_rows(transaction, batch)).items()
        )
    for outer, inner in sorted(pairs):
        inside = SkillUri(inner).root + "/"
        if {file: digest for file, digest in states[outer].items() if file.startswith(inside)} != states[
            inner
        ]:
            raise CatalogConflictError(
                f"{inner} is inside {outer}, and the files that the two list there differ",
                uris=[inner, outer],
                fix="publish the folder with both, or remove one of them first",
            )


async def _inside(transaction: Transaction, uris: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of these skills and a current one inside them. Both are usually few."""
    ranges: list[tuple[str, str, str]] = []
    for uri in uris:
        root = SkillUri(uri).root
        # The character after the slash.
        ranges.append((uri, f"{root}/", f"{root}0"))
    found: list[Row] = await transaction.fetch(
        f"SELECT column1, column2, column3, (SELECT min(v.uri) FROM versions v WHERE v.uri > column2 "
        f"AND v.uri < column3 AND v.uri <> column1 AND v.{_CURRENT}) FROM (VALUES {_values(ranges, 3)}) AS w",
        [value for values in ranges for value in values],
    )
    pairs: list[tuple[str, str]] = []
    for uri, start, end, first in found:
        if first is not None:
            query = f"SELECT uri FROM versions WHERE uri > ? AND uri < ? AND uri <> ? AND {_CURRENT}"
            pairs += [(uri, inner) for (inner,) in await transaction.fetch(query, (start, end, uri))]
    return pairs


async def _check_versions(transaction: Transaction, rows: Sequence[SkillRow]) -> set[str]:
    """Return the URIs of immutable versions that are stored, or were until they were removed.

    Raises:
        CatalogConflictError: One has other content, or its URI is not that of a version.
    """
    pins = {row.uri: row for row in rows if row.is_pin}
    known: set[str] = set()
    for batch in in_batches([row.uri for row in rows]):
        query = (
            f"SELECT uri, digest, is_pin FROM versions WHERE uri IN ({_marks(batch)}) "
            f"AND (is_pin = 1 OR {_CURRENT})"
        )
        for uri, digest, is_pin in await transaction.fetch(query, batch):
            if is_pin != (uri in pins):
                raise CatalogConflictError(
                    f"{uri} cannot be an immutable version and a skill that changes",
                    uris=[uri],
                    fix="publish the skill under another path",
                )
            if is_pin and digest != pins[uri].digest:
                raise CatalogConflictError(
                    f"version {pins[uri].version} is published already, with other content: {uri}",
                    uris=[uri],
                    fix="raise the version in the skill's frontmatter",
                )
            if is_pin:
                known.add(uri)
    return known


# The transaction


async def write_change(database: Database, change: CatalogChange) -> tuple[int, frozenset[str]]:
    """Write a change as one revision; return the revision, and the URIs that it changed.

    What another publisher has done meanwhile in the same way is left out. When
    nothing is left, it is the current revision.

    Raises:
        CatalogConflictError: A skill has another state than the change is based on, or the result would not
            be valid. Nothing was written.
    """
    async with database.transaction(write=True) as transaction:
        # Only one process at a time gets past this.
        await transaction.execute("UPDATE state SET revision = revision WHERE one = 1")
        before = await read_revision(transaction)
        done = await _done_meanwhile(transaction, change)
        rows = [row for row in change.rows if row.uri not in done]
        removed = [uri for uri in change.removed if uri not in done]
        if not rows and not removed:
            return before, frozenset()
        await check_fit(transaction, rows, removed)
        revision = before + 1
        changed = [*removed, *(row.uri for row in rows)]
        namespaces = await _namespaces_of(transaction, rows, removed)
        await _write(transaction, rows, changed, revision)
        await _record(transaction, database.clock, change, revision, namespaces)
        await transaction.execute("UPDATE state SET revision = ? WHERE one = 1", (revision,))
        await database.announce(transaction, revision)
    return revision, frozenset(changed)


async def _done_meanwhile(transaction: Transaction, change: CatalogChange) -> set[str]:
    """Return the URIs whose state is the wanted one already.

    Raises:
        CatalogConflictError: Others changed meanwhile, in another way.
    """
    wanted = {row.uri: row for row in change.rows}
    await _check_versions(transaction, change.rows)
    pins = [row.uri for row in change.rows if row.is_pin]
    done = set(await current_rows(transaction, pins))
    conflicts: list[str] = []
    for batch in in_batches(change.seen):
        query = f"SELECT uri, since FROM versions WHERE uri IN ({_marks(batch)}) AND {_CURRENT}"
        found: dict[str, int] = {uri: since for uri, since in await transaction.fetch(query, batch)}
        other = [uri for uri in batch if found.get(uri, 0) != change.seen[uri]]
        now = await current_rows(transaction, other) if other else {}
        for uri in other:
            state, want = now.get(uri), wanted.get(uri)
            if want is not None:
                is_done = state is not None and state.has_same_content(want)
            else:
                is_done = state is None and uri in change.removed
            if is_done:
                done.add(uri)
            else:
                conflicts.append(uri)
    if conflicts:
        named = ", ".join(conflicts[:MAX_NAMED])
        raise CatalogConflictError(
            f"another publisher changed {named}{_and_more(len(conflicts) - MAX_NAMED)} at the same time",
            uris=conflicts,
            fix="check what was published, and publish again",
        )
    return done


async def _namespaces_of(
    transaction: Transaction, rows: Sequence[SkillRow], removed: Collection[str]
) -> dict[str, list[str]]:
    """Return the URIs that change, by namespace."""
    namespaces: dict[str, list[str]] = {}
    for row in rows:
        namespaces.setdefault(row.namespace, []).append(row.uri)
    for batch in in_batches(removed):
        query = f"SELECT uri, namespace FROM versions WHERE uri IN ({_marks(batch)}) AND {_CURRENT}"
        for uri, namespace in await transaction.fetch(query, batch):
            namespaces.setdefault(namespace, []).append(uri)
    return namespaces


async def _write(
    transaction: Transaction, rows: Sequence[SkillRow], changed: Sequence[str], revision: int
) -> None:
    """Close the rows of skills that change, and insert the new ones."""
    for batch in in_batches(changed):
        await transaction.execute_many(
            f"UPDATE versions SET until = ? WHERE uri = ? AND {_CURRENT}", [(revision, uri) for uri in batch]
        )
    for batch in in_batches(rows):
        new = [row._replace(since=revision, until=FOREVER) for row in batch]
        await transaction.execute_many(_INSERT, new)


async def _record(
    transaction: Transaction,
    clock: str,
    change: CatalogChange,
    revision: int,
    namespaces: Mapping[str, Sequence[str]],
) -> None:
    """Write the revision, and a line in the audit log for each namespace."""
    actor, note = stored_text(change.actor), stored_text(change.note)
    await transaction.execute(
        f"INSERT INTO revisions (revision, at, actor, action, note) VALUES (?, {clock}, ?, ?, ?)",
        (revision, actor, change.action, note),
    )
    gone = set(change.removed)
    for namespace, uris in namespaces.items():
        removed = len(gone.intersection(uris))
        await record_event(
            transaction,
            clock,
            change.action,
            actor=actor,
            namespace=namespace,
            uri=uris[0] if len(uris) == 1 else _common_directory(uris),
            revision=revision,
            detail=f"{len(uris) - removed} published, {removed} removed",
        )


async def record_event(
    transaction: Transaction,
    clock: str,
    action: str,
    *,
    actor: str,
    namespace: str = "",
    uri: str = "",
    revision: int | None = None,
    detail: str = "",
) -> None:
    """Write a line of the audit log."""
    values: list[Any] = [*map(stored_text, (actor, action, namespace, uri)), revision, stored_text(detail)]
    await transaction.execute(
        "INSERT INTO audit (at, actor, action, namespace, uri, revision, detail) "
        f"VALUES ({clock}, ?, ?, ?, ?, ?, ?)",
        values,
    )


def _common_directory(uris: Sequence[str]) -> str:
    """Return the innermost directory of all skills; empty when they have none in common."""
    first, last = min(uris), max(uris)
    end = first.rfind("/")
    while not last.startswith(first[: end + 1]):
        end = first.rfind("/", 0, end)
    return first[:end] if end > first.find("://") + 2 else ""


def stored_text(text: str) -> str:
    """Return a text that every database can store, cut to a maximum length."""
    return text[:MAX_NOTE].replace("\0", "").encode("utf-8", "replace").decode()


def _marks(items: Collection[object]) -> str:
    return ", ".join("?" * len(items))


def _values(items: Collection[object], width: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * len(items))


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
