"""What the page derives from a snapshot, by threads that may be late."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.relations import Relation
from skillwire.core.uri import SkillUri
from skillwire.server.page import catalog
from skillwire.server.page.catalog import PageIndex
from skillwire.sources import Snapshot


def entry(path: str, related: str = "") -> SkillEntry:
    uri = SkillUri.build(path)
    fields: dict[str, Any] = {"name": uri.name, "description": "Use when asked."}
    if related:
        fields["metadata"] = {Relation.RELATED.key: related}
    return SkillEntry(uri, Frontmatter(fields), None)


def counts(index: PageIndex, snapshot: Snapshot) -> dict[str, int]:
    return {folder.name: folder.skills for folder in index.folders(snapshot, "")}


def test_folders_and_relations_are_those_of_the_snapshot_that_is_asked_about() -> None:
    index = PageIndex()
    few = Snapshot.of([entry("acme/one"), entry("acme/two")])
    more = Snapshot.of([*few.entries, entry("acme/three", related="one"), entry("beta/one")], revision=2)

    assert counts(index, few) == {"acme": 2}
    assert index.graph(few) is None
    assert counts(index, more) == {"acme": 3, "beta": 1}
    graph = index.graph(more)
    assert graph is not None and graph is index.graph(more)


def test_a_thread_that_is_late_leaves_nothing_to_those_who_look_at_something_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = PageIndex()
    old, new = (
        Snapshot.of([entry("acme/one")]),
        Snapshot.of([entry("acme/one"), entry("acme/two")], revision=2),
    )
    plain = catalog.names_in

    def overtaken(entries: Sequence[SkillEntry]) -> Iterator[tuple[str, str]]:
        """Let somebody else look at the newer snapshot while the folders of the old one are counted."""
        yield from plain(entries)
        if entries is old.entries:
            index.graph(new)

    monkeypatch.setattr(catalog, "names_in", overtaken)

    assert counts(index, old) == {"acme": 1}
    assert counts(index, new) == {"acme": 2}
