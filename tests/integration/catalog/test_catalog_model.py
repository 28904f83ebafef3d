"""Random changes of catalogs on both engines, compared with a model in memory."""

import secrets
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.catalog.catalog_world import draft, publish, rows_after, uri_of
from skillwire.catalog import FOREVER, Catalog, CatalogConflictError, open_catalog
from skillwire.core import NotFoundError, SkillUri

PATHS = ["acme/a/tea", "acme/b/tea", "acme/milk", "globex/tea", "tea"]
VERSIONS = ["", "1.0.0", "1.0.1"]
PINS = ["acme/v1.0.0/milk", "v1.0.1/tea", "acme/a/v1.0.0/tea"]

Published: TypeAlias = tuple[tuple[str, str, str], ...]
"""Path, body and version of each skill."""

paths = st.sampled_from(PATHS)
skills = st.tuples(paths, st.sampled_from(["x", "y", "z"]), st.sampled_from(VERSIONS))
publishing = st.tuples(
    st.just("publish"),
    st.lists(skills, min_size=1, max_size=4, unique_by=lambda skill: skill[0]).map(tuple),
    st.sampled_from(["", "", "team"]),
)
rolling_back = st.tuples(st.just("rollback"), st.sampled_from(PATHS + PINS), st.integers(0, 6))
unpublishing = st.tuples(
    st.just("unpublish"),
    st.lists(st.sampled_from(PATHS + PINS), min_size=1, max_size=2, unique=True).map(tuple),
)
operations = st.lists(st.one_of(publishing, publishing, rolling_back, unpublishing), max_size=10)

Operation: TypeAlias = tuple[object, ...]
"""A name and its arguments."""

State: TypeAlias = tuple[str, str, str, bool]
"""Body, version, source, and whether it is an immutable version."""


@dataclass
class Span:
    path: str
    since: int
    until: int
    state: State


@dataclass
class Model:
    """A catalog as a list of all states that were ever current."""

    revision: int = 0
    spans: list[Span] = field(default_factory=list[Span])

    def current(self) -> dict[str, State]:
        return {span.path: span.state for span in self.spans if span.until == FOREVER}

    def set(self, wanted: dict[str, State | None]) -> None:
        """Make states current, or end them, as one revision; nothing happens if all are so already.

        Raises:
            CatalogConflictError: A name would not be unique.
        """
        current = self.current()
        changed = {path: state for path, state in wanted.items() if current.get(path) != state}
        after = {**current, **changed}
        names = [
            (path.partition("/")[0] if "/" in path else "", path.rpartition("/")[2])
            for path, state in after.items()
            if state and not state[3]
        ]
        if len(set(names)) < len(names):
            raise CatalogConflictError("", uris=())
        if not changed:
            return
        self.revision += 1
        for span in self.spans:
            if span.until == FOREVER and span.path in changed:
                span.until = self.revision
        self.spans += [
            Span(path, self.revision, FOREVER, state) for path, state in changed.items() if state is not None
        ]

    def publish(self, skills: Published, source: str) -> None:
        wanted: dict[str, State | None] = {}
        for path, body, version in skills:
            wanted[path] = (body, version, source, False)
            if version:
                above, _, name = path.rpartition("/")
                pin = "/".join(filter(None, (above, f"v{version}", name)))
                known = {span.state[0] for span in self.spans if span.path == pin}
                if known - {body}:
                    raise CatalogConflictError("", uris=())
                if not known:
                    wanted[pin] = (body, version, source, True)
        if source:
            wanted.update(
                (path, None)
                for path, state in self.current().items()
                if state[2] == source and not state[3] and path not in wanted
            )
        self.set(wanted)

    def rollback(self, path: str, revision: int) -> None:
        for span in self.spans:
            if span.path == path and span.since <= revision < span.until and revision <= self.revision:
                return self.set({path: span.state})
        raise NotFoundError("", uri=path)

    def unpublish(self, paths: tuple[str, ...]) -> None:
        if not set(paths) <= self.current().keys():
            raise NotFoundError("", uri="")
        self.set(dict.fromkeys(paths))

    def changed_since(self, revision: int) -> list[tuple[str, int, int, str, str, int]]:
        return sorted(
            (span.path, span.since, span.until, span.state[1], span.state[2], int(span.state[3]))
            for span in self.spans
            if (
                span.since > revision or revision < span.until < FOREVER
                if revision
                else span.until == FOREVER
            )
        )


async def apply(catalog: Catalog, operation: Operation) -> None:
    if operation[0] == "publish":
        _, skills, source = cast("tuple[str, Published, str]", operation)
        drafts = [draft(path, {"SKILL.md": body.encode()}, version=version) for path, body, version in skills]
        await publish(catalog, *drafts, source=source, prune=bool(source))
    elif operation[0] == "rollback":
        _, path, revision = cast("tuple[str, str, int]", operation)
        await catalog.rollback(uri_of(path), revision, actor="ann")
    else:
        _, gone = cast("tuple[str, tuple[str, ...]]", operation)
        await catalog.unpublish([uri_of(path) for path in gone], actor="ann")


async def apply_to_model(model: Model, operation: Operation) -> None:
    getattr(model, str(operation[0]))(*operation[1:])


async def outcome_of(action: Awaitable[None]) -> str:
    try:
        await action
    except (CatalogConflictError, NotFoundError) as error:
        return type(error).__name__
    return "done"


async def compare(url: str, sequence: list[Operation]) -> None:
    """Apply operations to a catalog and to the model, and compare the outcome of each and all rows."""
    model = Model()
    async with open_catalog(url, create=True, blobs="table") as catalog:
        for operation in sequence:
            expected = await outcome_of(apply_to_model(model, operation))
            assert await outcome_of(apply(catalog, operation)) == expected, operation
            assert await catalog.revision() == model.revision
        for revision in range(model.revision + 1):
            found = await rows_after(catalog, revision)
            assert model.changed_since(revision) == sorted(
                (SkillUri(row.uri).path, row.since, row.until, row.version, row.source, row.is_pin)
                for row in found
            )
        assert [one.number for one in await catalog.history()] == [*range(model.revision, 0, -1)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(sequence=operations)
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_any_sequence_of_changes_ends_as_in_the_model(
    engine: str, sequence: list[Operation], tmp_path: Path, postgres: str
) -> None:
    name = f"run_{secrets.token_hex(8)}"
    if engine == "sqlite":
        anyio.run(compare, f"sqlite:///{tmp_path}/{name}.db", sequence)
        return
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        url = f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3D{name}"
        anyio.run(compare, url, sequence)
        connection.execute("SET client_min_messages = error")
        connection.execute(f"DROP SCHEMA {name} CASCADE".encode())
