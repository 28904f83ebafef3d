"""Managed sources on both engines: what is published, when, by whom, and what failures leave."""

import shutil
import time
from pathlib import Path

import anyio
import pytest

from folders import skill_md, write_skill
from integration.catalog.catalog_world import draft, publish, published, uri_of
from integration.catalog.test_fetch import FILES, commit, tar_gz
from integration.web_sites import WebSite, single, web_site
from skillwire.catalog import Catalog, CatalogError, open_catalog, sync
from skillwire.catalog.fetch import ManagedKind
from skillwire.catalog.maintenance import verify
from skillwire.catalog.sync import (
    ManagedSource,
    SyncResult,
    add_source,
    managed_sources,
    remove_source,
    run_due,
)
from skillwire.core import SkillError

pytestmark = pytest.mark.anyio


def folder_source(folder: Path, name: str = "own", prefix: str = "acme") -> ManagedSource:
    return ManagedSource(name, ManagedKind.FOLDER, str(folder), prefix)


async def make_due(catalog: Catalog) -> None:
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute("UPDATE managed SET last_at = last_at - 2 * every")


async def run_again(catalog: Catalog) -> dict[str, SyncResult]:
    await make_due(catalog)
    return await run_due(catalog)


# Adding, listing, removing


async def test_sources_are_listed_by_name_with_what_they_last_did(catalog: Catalog, tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    second = ManagedSource("b", ManagedKind.GIT, "https://example.org/r.git#main:skills", "x/y", 300.0)
    await add_source(catalog, second)
    await add_source(catalog, folder_source(tmp_path / "skills", "a", "/acme/"))

    assert [(one.name, one.prefix, one.last_at) for one in await managed_sources(catalog)] == [
        ("a", "acme", None),
        ("b", "x/y", None),
    ]
    assert (await managed_sources(catalog))[1] == second

    await remove_source(catalog, "b")
    await run_due(catalog)

    [listed] = await managed_sources(catalog)
    assert listed.last_result == SyncResult("", 1, 1, 1, 0)
    assert listed.last_at is not None and abs(listed.last_at - time.time()) < 60


@pytest.mark.parametrize(
    "source",
    [
        ManagedSource("", ManagedKind.FOLDER, "/srv"),
        ManagedSource("../x", ManagedKind.FOLDER, "/srv"),
        ManagedSource("a" * 65, ManagedKind.FOLDER, "/srv"),
        ManagedSource("a", ManagedKind.FOLDER, ""),
        ManagedSource("a", ManagedKind.FOLDER, "/srv\n/etc"),
        ManagedSource("a", ManagedKind.FOLDER, "skills"),
        ManagedSource("a", ManagedKind.ARCHIVE, "skills.zip"),
        ManagedSource("a", ManagedKind.FOLDER, "/srv", "a/../b"),
        ManagedSource("a", ManagedKind.FOLDER, "/srv", every=1.0),
        ManagedSource("a", ManagedKind.FOLDER, "/srv", every=float("nan")),
        ManagedSource("a", ManagedKind.GIT, "ext::sh -c id"),
        ManagedSource("a", ManagedKind.ARCHIVE, "http://example.org/x.zip"),
        ManagedSource("a", ManagedKind.ARCHIVE, "https://me:secret@example.org/x.zip"),
        ManagedSource("a", ManagedKind.WELL_KNOWN, "example"),
    ],
)
async def test_a_source_that_is_not_valid_is_not_added(catalog: Catalog, source: ManagedSource) -> None:
    with pytest.raises(SkillError):
        await add_source(catalog, source)

    assert await managed_sources(catalog) == []


async def test_a_name_is_used_once_and_must_be_known(catalog: Catalog, tmp_path: Path) -> None:
    await add_source(catalog, folder_source(tmp_path))

    with pytest.raises(CatalogError, match="already"):
        await add_source(catalog, folder_source(tmp_path / "other"))
    with pytest.raises(CatalogError, match="no source"):
        await remove_source(catalog, "other")

    assert [source.location for source in await managed_sources(catalog)] == [str(tmp_path)]


# Publishing


async def test_every_kind_of_source_is_published_below_its_prefix(catalog: Catalog, tmp_path: Path) -> None:
    commit(tmp_path / "repository", FILES)
    (tmp_path / "skills.tar.gz").write_bytes(tar_gz({f"top/{name}": text for name, text in FILES.items()}))
    write_skill(tmp_path / "folder" / "mate")
    with web_site() as site:
        site.index(single(skill_md("water"), "water", "water/SKILL.md"))
        site.put("/.well-known/agent-skills/water/SKILL.md", skill_md("water"))
        location = f"{(tmp_path / 'repository').as_uri()}#:skills"
        await add_source(catalog, ManagedSource("git", ManagedKind.GIT, location, "git"))
        location = str(tmp_path / "skills.tar.gz")
        await add_source(catalog, ManagedSource("archive", ManagedKind.ARCHIVE, location, "zip"))
        await add_source(catalog, folder_source(tmp_path / "folder", "folder", "folder"))
        await add_source(catalog, ManagedSource("site", ManagedKind.WELL_KNOWN, site.url, "site"))

        results = await run_due(catalog)
        again = await run_again(catalog)

    assert {name: (result.error, result.skills, result.changes) for name, result in results.items()} == {
        "archive": ("", 2, 2),
        "folder": ("", 1, 1),
        "git": ("", 2, 2),
        "site": ("", 1, 1),
    }
    assert [result.changes for result in again.values()] == [0] * 4
    assert set(await published(catalog)) == {
        *("git/tea", "git/coffee", "zip/skills/tea", "zip/skills/coffee", "folder/mate", "site/water")
    }
    assert (await verify(catalog)).is_intact
    [made] = await catalog.history(uri_of("git/tea"))
    assert (made.row.source, made.row.modified, made.made.actor, made.made.action) == (
        *("git", None, "sync:git", "sync"),
    )


async def test_what_changes_and_goes_in_a_source_changes_and_goes_in_the_catalog(
    catalog: Catalog, tmp_path: Path
) -> None:
    for name in ("tea", "coffee", "mate"):
        write_skill(tmp_path / "skills" / name)
    await publish(catalog, draft("acme/by-hand"))
    await add_source(catalog, folder_source(tmp_path / "skills"))
    await run_due(catalog)

    shutil.rmtree(tmp_path / "skills" / "tea")
    (tmp_path / "skills" / "coffee" / "new.md").write_text("new")
    results = await run_again(catalog)

    assert results == {"own": SyncResult("", 3, 2, 2, 0)}
    assert await published(catalog) == {"acme/by-hand": 1, "acme/coffee": 3, "acme/mate": 2}


async def test_a_removed_source_leaves_its_skills_to_everybody(catalog: Catalog, tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    await add_source(catalog, folder_source(tmp_path / "skills"))
    await run_due(catalog)
    with pytest.raises(CatalogError, match="own"):
        await publish(catalog, draft("acme/tea"))

    await remove_source(catalog, "own")

    assert await run_due(catalog) == {}
    assert set(await published(catalog)) == {"acme/tea"}
    await publish(catalog, draft("acme/tea"))


# Failures


async def test_a_source_that_fails_keeps_its_skills_and_does_not_stop_others(
    catalog: Catalog, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name / "skill", name=f"skill-{name}")
        await add_source(catalog, folder_source(tmp_path / name, name))
    await run_due(catalog)
    shutil.rmtree(tmp_path / "b")
    write_skill(tmp_path / "c" / "more", name="more")

    results = await run_again(catalog)

    assert [bool(results[name].error) for name in ("a", "b", "c")] == [False, True, False]
    assert len(await published(catalog)) == 4
    failed = {source.name: source.last_result for source in await managed_sources(catalog)}["b"]
    assert failed == results["b"] and str(tmp_path) not in results["b"].error
    assert await run_due(catalog) == {}

    write_skill(tmp_path / "b" / "skill", name="skill-b")
    assert (await run_again(catalog))["b"].error == ""


async def test_a_folder_that_is_empty_removes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    await add_source(catalog, folder_source(tmp_path / "skills"))
    await run_due(catalog)
    shutil.rmtree(tmp_path / "skills" / "tea")

    results = await run_again(catalog)

    assert "no skills" in results["own"].error
    assert await published(catalog) == {"acme/tea": 1}


async def test_a_skill_that_a_site_does_not_deliver_is_not_removed(catalog: Catalog) -> None:
    def show(site: WebSite, *names: str) -> None:
        site.index(*(single(skill_md(name), name, f"{name}/SKILL.md") for name in names))
        for name in names:
            site.put(f"/.well-known/agent-skills/{name}/SKILL.md", skill_md(name))

    with web_site() as site:
        show(site, "tea", "water")
        await add_source(catalog, ManagedSource("site", ManagedKind.WELL_KNOWN, site.url, "acme"))
        await run_due(catalog)
        del site.pages["/.well-known/agent-skills/water/SKILL.md"]
        late = await run_again(catalog)
        listed = set(await published(catalog))
        show(site, "tea")
        gone = await run_again(catalog)

    assert late == {"site": SyncResult("", 1, 1, 0, 1)}
    assert listed == {"acme/tea", "acme/water"}
    assert gone == {"site": SyncResult("", 2, 1, 1, 0)}
    assert set(await published(catalog)) == {"acme/tea"}


async def test_a_skill_that_is_not_valid_is_counted_and_the_others_are_published(
    catalog: Catalog, tmp_path: Path
) -> None:
    write_skill(tmp_path / "skills" / "tea")
    write_skill(tmp_path / "skills" / "bad", {"other.md": "x"})
    (tmp_path / "skills" / "bad" / "SKILL.md").write_text("no frontmatter")
    await add_source(catalog, folder_source(tmp_path / "skills"))

    assert await run_due(catalog) == {"own": SyncResult("", 1, 1, 1, 1)}


async def test_a_source_that_takes_too_long_is_ended(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(write: object) -> None:
        time.sleep(5)

    monkeypatch.setattr(sync, "SYNC_SECONDS", 0.5)
    write_skill(tmp_path / "skills" / "tea")
    await add_source(catalog, folder_source(tmp_path / "skills", "z"))
    with web_site() as site:
        site.put("/x.tar.gz", b"")
        site.pages["/x.tar.gz"] = type(site.pages["/x.tar.gz"])(write=hang)
        await add_source(catalog, ManagedSource("a", ManagedKind.ARCHIVE, f"{site.url}/x.tar.gz"))
        start = time.monotonic()

        results = await run_due(catalog)

        assert time.monotonic() - start < 4
    assert "seconds" in results["a"].error
    assert results["z"].error == ""


async def test_an_unexpected_failure_is_recorded_too(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: object) -> None:
        raise RuntimeError("private")

    monkeypatch.setattr(sync, "_publish", fail)
    await add_source(catalog, folder_source(tmp_path))

    assert await run_due(catalog) == {"own": SyncResult("unexpected failure: RuntimeError")}


# The schedule


async def test_a_source_is_due_after_its_interval_give_or_take_a_tenth(catalog: Catalog) -> None:
    source = ManagedSource("a", ManagedKind.FOLDER, "/srv", every=1000.0)

    due = [
        ManagedSource(f"a{number}", source.kind, source.location, every=1000.0, last_at=5000.0).due_at
        for number in range(200)
    ]

    assert source.due_at == 0.0
    assert 5900.0 <= min(due) < 5910.0 and 6090.0 < max(due) <= 6100.0
    assert len(set(due)) > 50


async def test_of_many_replicas_one_fetches_a_source(catalog_url: str, tmp_path: Path) -> None:
    names = [f"source{number}" for number in range(6)]
    async with open_catalog(catalog_url, create=True) as catalog:
        for name in names:
            write_skill(tmp_path / name / name)
            await add_source(catalog, folder_source(tmp_path / name, name))
        results: list[dict[str, SyncResult]] = []

        async def run() -> None:
            async with open_catalog(catalog_url) as own:
                for _ in range(2):
                    results.append(await run_due(own))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(run)

        done = [name for result in results for name in result]
        assert sorted(done) == names
        assert await catalog.revision() == len(names)
        assert all(result.error == "" for found in results for result in found.values())


async def test_a_source_that_another_replica_fetches_is_left_out(catalog: Catalog, tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    await add_source(catalog, folder_source(tmp_path / "skills"))

    async with catalog.lease("sync:own") as is_held:
        assert is_held
        assert await run_due(catalog) == {}

    assert set(await run_due(catalog)) == {"own"}
