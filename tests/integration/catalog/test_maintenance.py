"""Figures, verification and collection of catalogs on both engines, with each store of blobs."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from integration.catalog.blob_places import Place
from integration.catalog.catalog_world import draft, publish, uri_of
from skillwire.catalog import Catalog, CatalogError, Draft, maintenance
from skillwire.catalog.maintenance import CatalogStats, CollectionReport, Verification, gc, stats, verify
from skillwire.core import ManifestFile, digest_of

EVERYTHING = -10.0
"""A grace time after which files of this moment are old, whatever the clock of the store."""
UNUSED = b"nothing refers to this\n"
LOST = digest_of(UNUSED)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def catalog(place: Place, anyio_backend: str) -> AsyncGenerator[Catalog]:
    async with place.catalog() as opened:
        yield opened


def skill(path: str, text: str, version: str = "") -> Draft:
    return draft(path, {"SKILL.md": f"# {path}\n".encode(), "notes.md": text.encode()}, version=version)


async def publish_some(catalog: Catalog) -> None:
    """Publish three skills, then change one, publish a version of another and remove the third."""
    await publish(catalog, skill("acme/tea", "one"), skill("acme/coffee", "two"), skill("water", "three"))
    await publish(catalog, skill("acme/tea", "changed"), skill("acme/coffee", "two", version="1.0.0"))
    await catalog.unpublish([uri_of("water")], actor="ann")


async def stored(catalog: Catalog) -> set[str]:
    return {blob.digest async for batch in catalog.store.digests() for blob in batch}


# Figures


async def test_the_figures_of_an_empty_catalog_are_zero(catalog: Catalog) -> None:
    found = await stats(catalog)

    assert found.database_size > 0
    assert found == CatalogStats(0, 0, 0, 0, 0, 0, 0, found.database_size)


async def test_figures_count_what_is_current_and_the_files_of_every_revision(catalog: Catalog) -> None:
    await publish_some(catalog)

    found = await stats(catalog)

    # Three SKILL.md, and "one", "two", "three" and "changed".
    size = len("# acme/tea\n# acme/coffee\n# water\nonetwothreechanged")
    assert found == CatalogStats(3, 2, 1, 1, 3, 7, size, found.database_size)


# Verification


async def test_an_intact_catalog_is_verified_with_all_earlier_revisions(catalog: Catalog) -> None:
    await publish_some(catalog)
    seen: list[tuple[int, int]] = []

    found = await verify(catalog, lambda done, total: seen.append((done, total)))

    assert found == Verification(3, 6, 7, (await stats(catalog)).size)
    assert found.is_intact
    assert seen == [(done, 7) for done in range(1, 8)]


async def test_missing_and_damaged_files_are_named_with_a_skill_and_left_as_they_are(
    place: Place, catalog: Catalog
) -> None:
    await publish_some(catalog)
    missing, damaged, shorter = digest_of(b"one"), digest_of(b"changed"), digest_of(b"two")
    await catalog.store.remove([missing])
    await place.damage(damaged, b"CHANGED")
    await place.damage(shorter, b"tw")

    for _ in range(2):
        found = await verify(catalog)

        assert not found.is_intact
        assert [problem.name for problem in found.missing] == [missing]
        assert [problem.name for problem in found.damaged] == sorted([damaged, shorter])
        assert "skill://acme/tea/notes.md" in found.missing[0].reason
        assert found.unreadable == ()


@pytest.mark.parametrize("column", ["entry", "digest", "details"])
async def test_rows_that_cannot_be_read_are_named_and_nothing_is_removed(
    catalog: Catalog, column: str
) -> None:
    await publish_some(catalog)
    await catalog.store.put(LOST, UNUSED)
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute(
            f"UPDATE versions SET {column} = ? WHERE uri = ? AND since = 1",
            (b"{" if column == "entry" else "{", "skill://acme/tea/SKILL.md"),
        )

    found = await verify(catalog)

    assert [problem.name for problem in found.unreadable] == ["skill://acme/tea/SKILL.md of revision 1"]
    with pytest.raises(CatalogError, match="cannot be read"):
        await gc(catalog, grace_seconds=EVERYTHING)
    assert LOST in await stored(catalog)


# Collection


async def test_only_files_that_no_revision_has_and_that_are_old_are_removed(catalog: Catalog) -> None:
    await publish_some(catalog)
    used = await stored(catalog)
    await catalog.store.put(LOST, UNUSED)

    young = await gc(catalog)
    planned = await gc(catalog, grace_seconds=EVERYTHING, dry_run=True)
    before = await stored(catalog)
    removed = await gc(catalog, grace_seconds=EVERYTHING)
    again = await gc(catalog, grace_seconds=EVERYTHING)

    assert young == CollectionReport(0, 0, 1, False)
    assert planned == CollectionReport(1, len(UNUSED), 0, True)
    assert before == used | {LOST}
    assert removed == CollectionReport(1, len(UNUSED), 0, False)
    assert again == CollectionReport(0, 0, 0, False)
    assert await stored(catalog) == used
    assert (await verify(catalog)).is_intact
    events = [event.detail for event in await catalog.audit_log() if event.action == "gc"]
    assert f"1 files with {len(UNUSED)} bytes removed" in events


async def test_files_of_a_publication_in_progress_stay(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_TURN_SECONDS", 0.2)
    monkeypatch.setattr(maintenance, "_WAIT_SECONDS", 0.5)
    may_go_on = anyio.Event()
    new = skill("acme/tea", "new")
    contents = {new.entry.uri.text: b"# acme/tea\n", new.entry.uri.join("notes.md"): b"new"}

    async def read(line: ManifestFile) -> bytes:
        if line.uri.endswith("notes.md"):
            await may_go_on.wait()
        return contents[line.uri]

    async with anyio.create_task_group() as group:
        group.start_soon(publish, catalog, Draft(new.entry, read))
        deadline = time.monotonic() + 10
        while digest_of(b"# acme/tea\n") not in await stored(catalog):
            assert time.monotonic() < deadline
            await anyio.sleep(0.01)

        assert (await gc(catalog)).young == 1
        with pytest.raises(CatalogError, match="publish"):
            await gc(catalog, grace_seconds=EVERYTHING)
        may_go_on.set()

    assert (await verify(catalog)).is_intact


async def test_publishers_and_the_removal_of_files_do_not_disturb_each_other(place: Place) -> None:
    """Skills share files that come and go; a file that is removed too early would be missing at the end."""
    ended = 0

    async def publish_often(number: int) -> None:
        nonlocal ended
        async with place.catalog() as own:
            for turn in range(12):
                # The first file is an unused one of earlier, the other one is shared.
                await own.store.put(digest_of(b"%d" % turn), b"%d" % turn)
                await publish(own, skill(f"space{number}/tea", str(turn)))
        ended += 1

    async def collect_often() -> None:
        async with place.catalog() as own:
            while ended < 3:
                await own.store.put(LOST, UNUSED)
                await gc(own, grace_seconds=EVERYTHING)

    async with place.catalog() as catalog:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(publish_often, number)
            group.start_soon(collect_often)

        found = await verify(catalog)
        assert found.is_intact
        assert (found.revision, found.rows) == (36, 36)


async def test_what_a_killed_publisher_left_does_not_block_the_removal_for_long(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute(
            f"INSERT INTO leases (name, holder, until) VALUES (?, ?, {catalog.database.clock} + 1)",
            ("publish/dead", "nobody"),
        )
    await catalog.store.put(LOST, UNUSED)

    assert (await gc(catalog, grace_seconds=EVERYTHING)).files == 1


async def test_the_folder_of_blobs_has_no_leftovers_after_a_collection(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/skills.db", "folder")
    async with place.catalog() as catalog:
        await publish_some(catalog)
        await gc(catalog)

    assert list((place.folder / "new").iterdir()) == []
