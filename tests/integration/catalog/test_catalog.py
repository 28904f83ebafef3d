"""Catalogs on SQLite and PostgreSQL: publishing, rules, history, changes, leases. One suite for both."""

import json
import time
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from folders import skill_md, write_files, write_skill
from integration.catalog.catalog_world import (
    FILES,
    draft,
    publish,
    published,
    rows_after,
    run_together,
    uri_of,
)
from skillwire.catalog import (
    FOREVER,
    Catalog,
    CatalogConflictError,
    CatalogError,
    Draft,
    SkillChangeKind,
    SkillRow,
    drafts_of,
    open_catalog,
    open_drafts,
)
from skillwire.core import (
    DuplicateSkillError,
    Frontmatter,
    InvalidSkillError,
    ManifestFile,
    NotFoundError,
    Skill,
    SkillEntry,
    digest_of,
)
from skillwire.sources import MemorySource

pytestmark = pytest.mark.anyio

OTHER = {**FILES, "notes/a.md": b"Changed.\n"}

# Publishing


async def test_a_published_skill_is_one_current_row_with_the_entry_as_it_is_listed(catalog: Catalog) -> None:
    result = await publish(catalog, draft("acme/billing/refunds"))

    (row,) = await rows_after(catalog)
    assert (result.revision, await catalog.revision()) == (1, 1)
    assert [(change.uri, change.kind) for change in result.changes] == [
        (uri_of("acme/billing/refunds"), SkillChangeKind.ADDED)
    ]
    assert row[:5] == ("skill://acme/billing/refunds/SKILL.md", 1, FOREVER, "acme", "refunds")
    assert json.loads(row.entry) == draft("acme/billing/refunds").entry.to_json()
    assert row.digest == digest_of(row.entry) == result.changes[0].after
    assert row[7:] == ("{}", None, 1, 0, 0, "", "")


async def test_every_file_can_be_read_by_its_digest(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds"))

    assert {await catalog.read_blob(digest_of(content)) for content in FILES.values()} == {*FILES.values()}


async def test_both_engines_store_the_same_rows(sqlite_url: str, postgres_url: str) -> None:
    stored: list[object] = []
    for url in (sqlite_url, postgres_url):
        async with open_catalog(url, create=True) as catalog:
            await publish(
                catalog,
                draft("acme/Zz/one"),
                draft("acme/zz/two", version="1.0.0"),
                draft("tea", modified=1.5),
            )
            await publish(catalog, draft("acme/zz/two", OTHER), draft("äther/ω/three"))
            await catalog.unpublish([uri_of("tea")], actor="bob")
            stored.append([await rows_after(catalog), await rows_after(catalog, 1)])

    assert stored[0] == stored[1]


async def test_publishing_the_same_again_makes_no_revision(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds", modified=1.0), draft("acme/tea"))
    again = await publish(catalog, draft("acme/refunds", modified=2.0), draft("acme/tea"))

    assert (again.revision, again.changes) == (1, ())
    assert len(await catalog.history()) == 1


async def test_publishing_one_plan_twice_makes_one_revision(catalog: Catalog) -> None:
    plan = await catalog.plan([draft("acme/refunds", version="1.0.0")])
    first = await catalog.publish(plan, actor="ann")
    second = await catalog.publish(plan, actor="ann")

    assert (len(first.changes), first.revision) == (2, 1)
    assert (second.changes, second.revision) == ((), 1)


async def test_a_plan_says_what_would_change_and_writes_nothing(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds"), draft("acme/tea"))

    changed = {"SKILL.md": FILES["SKILL.md"], "b.md": b"New.\n"}
    plan = await catalog.plan([draft("acme/refunds", changed), draft("acme/tea"), draft("acme/new")])

    assert [(change.uri.path, change.kind, change.files) for change in plan.changes] == [
        ("acme/refunds", SkillChangeKind.CHANGED, ("b.md", "notes/a.md")),
        ("acme/new", SkillChangeKind.ADDED, ()),
    ]
    assert plan.missing == {digest_of(b"New.\n")}
    assert await catalog.revision() == 1


async def test_only_files_that_are_missing_are_read(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds"))

    reads: list[str] = []
    steps: list[tuple[int, int]] = []
    plan = await catalog.plan([draft("acme/refunds", {**FILES, "b.md": b"New.\n"}, reads=reads)])
    await catalog.publish(plan, actor="ann", progress=lambda done, total: steps.append((done, total)))

    assert reads == ["skill://acme/refunds/b.md"]
    assert steps == [(1, 1)]


async def test_a_file_that_changes_while_it_is_published_fails_and_nothing_is_written(
    catalog: Catalog,
) -> None:
    honest = draft("acme/refunds")

    async def read(line: ManifestFile) -> bytes:
        return b"something else"

    with pytest.raises(CatalogError, match="changed while"):
        await publish(catalog, Draft(honest.entry, read))

    assert (await catalog.revision(), await rows_after(catalog)) == (0, [])


async def test_more_skills_than_fit_in_one_query_are_published_and_compared(catalog: Catalog) -> None:
    drafts = [draft(f"space-{number % 3}/skill-{number}", {"SKILL.md": b"x"}) for number in range(1203)]
    first = await publish(catalog, *drafts)
    second = await publish(catalog, *drafts, draft("space-1/other"))

    assert (len(first.changes), len(second.changes)) == (1203, 1)
    assert len(await rows_after(catalog)) == 1204


async def test_one_uri_twice_in_one_call_is_refused(catalog: Catalog) -> None:
    with pytest.raises(DuplicateSkillError):
        await catalog.plan([draft("acme/refunds"), draft("acme/refunds", OTHER)])


async def test_what_breaks_a_rule_or_has_no_digests_is_refused(catalog: Catalog) -> None:
    entry = draft("acme/refunds").entry
    for broken in (
        SkillEntry(entry.uri, Frontmatter({"name": "other", "description": "Use when."}), entry.manifest),
        SkillEntry(entry.uri, entry.frontmatter, None),
    ):
        with pytest.raises(InvalidSkillError):
            await catalog.plan([Draft(broken, draft("acme/refunds").read)])


async def test_what_an_author_and_a_source_say_is_stored(catalog: Catalog) -> None:
    uri = uri_of("acme/refunds")
    await publish(
        catalog,
        draft("acme/hidden", metadata={"skillwire/listed": "false"}),
        draft("acme/first", metadata={"skillwire/pinned": "true"}),
        draft(
            "acme/refunds",
            media_types={uri.join("notes/a.md"): "text/x-notes"},
            folders=(uri.join("empty"),),
            order=("notes/a.md",),
            version="2.0.0",
        ),
    )

    rows = {row.uri: row for row in await rows_after(catalog)}
    pin = rows["skill://acme/v2.0.0/refunds/SKILL.md"]
    assert {row.name: (row.listed, row.pinned) for row in rows.values() if not row.is_pin} == {
        "hidden": (0, 0),
        "first": (1, 1),
        "refunds": (1, 0),
    }
    assert json.loads(rows[uri.text].details) == {
        "mediaTypes": {"skill://acme/refunds/notes/a.md": "text/x-notes"},
        "folders": ["skill://acme/refunds/empty"],
        "order": ["notes/a.md"],
    }
    assert json.loads(pin.details)["mediaTypes"] == {"skill://acme/v2.0.0/refunds/notes/a.md": "text/x-notes"}
    assert (pin.listed, pin.is_pin, pin.version, pin.namespace) == (0, 1, "2.0.0", "acme")


async def test_any_text_can_be_the_name_of_an_actor_or_a_note(catalog: Catalog) -> None:
    plan = await catalog.plan([draft("acme/refunds")])
    await catalog.publish(plan, actor="a\0\ud800'; --", note="?%s" + "x" * 10_000)

    (made,) = await catalog.history()
    assert (made.actor, len(made.note), made.note[:4]) == ("a?'; --", 2000, "?%sx")


# Sources


async def test_a_source_prunes_only_what_it_published_itself(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/hand"))
    await publish(catalog, draft("acme/other"), source="other")
    await publish(catalog, draft("acme/one", version="1.0.0"), draft("acme/two"), source="team")

    result = await publish(catalog, draft("acme/two"), source="team", prune=True)

    assert [(change.uri.path, change.kind) for change in result.changes] == [
        ("acme/one", SkillChangeKind.REMOVED)
    ]
    assert await published(catalog) == {
        "acme/hand": 1,
        "acme/other": 2,
        "acme/two": 3,
        "acme/v1.0.0/one": 3,
    }


async def test_a_skill_of_a_managed_source_cannot_be_published_by_others(catalog: Catalog) -> None:
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute("INSERT INTO managed VALUES ('team', 'git', '', '', 60, '{}', NULL, '')")
    await publish(catalog, draft("acme/refunds"), source="team")
    await publish(catalog, draft("acme/stale"), source="removed since")

    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("acme/refunds", OTHER)])
    assert len((await publish(catalog, draft("acme/stale", OTHER))).changes) == 1


async def test_pruning_needs_a_source(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="source"):
        await catalog.plan([], prune=True)


# Several publishers


async def test_a_publisher_that_planned_on_an_older_state_conflicts(
    catalog: Catalog, catalog_url: str
) -> None:
    await publish(catalog, draft("acme/refunds"), draft("acme/tea"))
    async with open_catalog(catalog_url) as second:
        plan = await second.plan([draft("acme/refunds", OTHER), draft("acme/tea", OTHER)])
        await publish(catalog, draft("acme/refunds", {"SKILL.md": b"Mine.\n"}))

        with pytest.raises(CatalogConflictError) as caught:
            await second.publish(plan, actor="bob")

    assert caught.value.uris == ("skill://acme/refunds/SKILL.md",)
    assert await published(catalog) == {"acme/refunds": 2, "acme/tea": 1}


async def test_two_publishers_of_the_same_content_do_not_conflict(catalog: Catalog, catalog_url: str) -> None:
    async with open_catalog(catalog_url) as second:
        plan = await second.plan([draft("acme/refunds"), draft("acme/tea")])
        await publish(catalog, draft("acme/refunds"))
        result = await second.publish(plan, actor="bob")

    assert [change.uri.path for change in result.changes] == ["acme/tea"]
    assert await published(catalog) == {"acme/refunds": 1, "acme/tea": 2}


async def test_of_many_publishers_of_one_skill_at_once_one_wins(catalog: Catalog, catalog_url: str) -> None:
    await publish(catalog, draft("acme/refunds"))
    outcomes: list[str] = []

    async def compete(number: int) -> None:
        async with open_catalog(catalog_url) as mine:
            plan = await mine.plan([draft("acme/refunds", {"SKILL.md": f"{number}".encode()})])
            ready.append(number)
            if len(ready) == 4:
                go.set()
            await go.wait()
            try:
                await mine.publish(plan, actor=f"{number}")
                outcomes.append("published")
            except CatalogConflictError:
                outcomes.append("conflict")

    ready: list[int] = []
    go = anyio.Event()
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(compete, number)

    assert sorted(outcomes) == ["conflict"] * 3 + ["published"]
    assert await catalog.revision() == 2


COMPETE = """
import sys, anyio
from integration.catalog.catalog_world import draft, publish
from skillwire.catalog import CatalogConflictError, open_catalog

async def main():
    published = 0
    async with open_catalog(sys.argv[1]) as catalog:
        for number in range(8):
            body = f"{sys.argv[2]} {number}".encode()
            try:
                await publish(catalog, draft("acme/refunds", {"SKILL.md": body}), actor=sys.argv[2])
                published += 1
            except CatalogConflictError:
                pass
    print(published)

sys.stdin.read()
anyio.run(main)
"""


async def test_processes_that_publish_one_skill_lose_no_revision(catalog: Catalog, catalog_url: str) -> None:
    await publish(catalog, draft("acme/refunds"))
    commands = [(COMPETE, catalog_url, name) for name in ("ann", "bob", "eve")]
    printed = await anyio.to_thread.run_sync(run_together, commands)

    states = await catalog.history(uri_of("acme/refunds"))
    spans = [(one.row.since, one.row.until) for one in reversed(states)]
    assert spans == [*((number, number + 1) for number in range(1, len(spans))), (len(spans), FOREVER)]
    made = Counter(one.made.actor for one in states[:-1])
    assert [made[name] for name in ("ann", "bob", "eve")] == [int(number) for number in printed]
    assert await catalog.revision() == len(states) > 1


# Names, nesting and versions


async def test_a_name_is_unique_in_a_namespace(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/billing/refunds"), draft("globex/refunds"), draft("refunds"))

    with pytest.raises(CatalogConflictError) as caught:
        await catalog.plan([draft("acme/sales/refunds"), draft("acme/tea")])
    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("acme/a/tea"), draft("acme/b/tea")])

    assert caught.value.uris == (
        "skill://acme/billing/refunds/SKILL.md",
        "skill://acme/sales/refunds/SKILL.md",
    )


async def test_a_name_that_another_publisher_takes_meanwhile_conflicts(catalog: Catalog) -> None:
    plan = await catalog.plan([draft("acme/sales/refunds")])
    await publish(catalog, draft("acme/billing/refunds"))

    with pytest.raises(CatalogConflictError):
        await catalog.publish(plan, actor="bob")
    assert await published(catalog) == {"acme/billing/refunds": 1}


async def test_a_skill_can_move_in_its_namespace_when_the_source_drops_the_old_place(
    catalog: Catalog,
) -> None:
    await publish(catalog, draft("acme/billing/refunds"), source="team")
    await publish(catalog, draft("acme/sales/refunds"), source="team", prune=True)

    assert await published(catalog) == {"acme/sales/refunds": 2}


INNER = {"SKILL.md": b"Inner.\n", "x.md": b"X.\n"}
OUTER = {"SKILL.md": b"Outer.\n", "inner/SKILL.md": b"Inner.\n", "inner/x.md": b"X.\n"}


async def test_a_skill_inside_another_needs_a_manifest_around_it_that_lists_it(catalog: Catalog) -> None:
    both = [draft("acme/outer", OUTER), draft("acme/outer/inner", INNER)]
    await publish(catalog, *both)

    for alone in (
        draft("acme/outer/inner", {"SKILL.md": b"Inner.\n"}),
        draft("acme/outer", {"SKILL.md": b"Outer.\n"}),
        draft("acme/outer/deep/er/new"),
        draft("acme"),
    ):
        with pytest.raises(CatalogConflictError):
            await catalog.plan([alone])
    await catalog.unpublish([uri_of("acme/outer/inner")], actor="ann")
    await publish(catalog, draft("acme/outer", {"SKILL.md": b"Outer.\n"}))
    with pytest.raises(CatalogConflictError):
        await catalog.rollback(uri_of("acme/outer/inner"), 1, actor="ann")
    assert await published(catalog) == {"acme/outer": 3}


async def test_a_skill_that_another_publisher_puts_around_one_meanwhile_conflicts(catalog: Catalog) -> None:
    plan = await catalog.plan([draft("acme/outer/inner")])
    await publish(catalog, draft("acme/outer"))

    with pytest.raises(CatalogConflictError):
        await catalog.publish(plan, actor="bob")


async def test_a_version_is_published_beside_the_skill_and_never_changes(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/billing/refunds", version="1.2.0"), draft("tea", version="0.1.0-rc.1"))

    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("acme/billing/refunds", OTHER, version="1.2.0")])
    await publish(catalog, draft("acme/billing/refunds", OTHER, version="1.3.0"))
    await catalog.rollback(uri_of("acme/billing/refunds"), 1, actor="ann")
    await catalog.unpublish([uri_of("tea")], actor="ann")

    assert await published(catalog) == {
        "acme/billing/refunds": 3,
        "acme/billing/v1.2.0/refunds": 1,
        "acme/billing/v1.3.0/refunds": 2,
        "v0.1.0-rc.1/tea": 1,
    }


async def test_a_version_that_was_removed_stays_removed_and_keeps_its_content(catalog: Catalog) -> None:
    pin = uri_of("acme/v1.0.0/refunds")
    await publish(catalog, draft("acme/refunds", version="1.0.0"))
    await catalog.unpublish([pin], actor="ann")

    assert (await publish(catalog, draft("acme/refunds", version="1.0.0"))).changes == ()
    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("acme/refunds", OTHER, version="1.0.0")])
    assert pin.path not in await published(catalog)
    await catalog.rollback(pin, 1, actor="ann")
    assert (await published(catalog))[pin.path] == 3


async def test_a_version_and_a_skill_that_changes_cannot_have_one_uri(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds", version="1.0.0"))
    await publish(catalog, draft("globex/v1.0.0/refunds"))

    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("acme/v1.0.0/refunds")])
    with pytest.raises(CatalogConflictError):
        await catalog.plan([draft("globex/refunds", version="1.0.0")])


# History


async def test_history_has_every_state_and_who_made_it(catalog: Catalog) -> None:
    uri = uri_of("acme/refunds")
    before = time.time()
    await publish(catalog, draft("acme/refunds"))
    await publish(catalog, draft("acme/tea"), actor="bob")
    await publish(catalog, draft("acme/refunds", OTHER), actor="bob")
    await catalog.unpublish([uri], actor="eve", note="wrong")

    revisions = await catalog.history()
    states = await catalog.history(uri)
    assert [(one.number, one.actor, one.action, one.note) for one in revisions] == [
        (4, "eve", "unpublish", "wrong"),
        (3, "bob", "publish", ""),
        (2, "bob", "publish", ""),
        (1, "ann", "publish", ""),
    ]
    assert [(one.row.since, one.row.until, one.made.actor) for one in states] == [
        (3, 4, "bob"),
        (1, 3, "ann"),
    ]
    assert all(before - 60 < one.at < time.time() + 60 for one in revisions)
    assert [one.number for one in await catalog.history(limit=2, before=4)] == [3, 2]
    assert [one.row.since for one in await catalog.history(uri, before=3)] == [1]


async def test_a_skill_is_rolled_back_as_a_new_revision(catalog: Catalog) -> None:
    uri = uri_of("acme/refunds")
    await publish(catalog, draft("acme/refunds"))
    await publish(catalog, draft("acme/refunds", OTHER))

    result = await catalog.rollback(uri, 1, actor="eve")
    again = await catalog.rollback(uri, 1, actor="eve")

    assert (result.revision, again.revision, again.changes) == (3, 3, ())
    assert [(one.kind, one.files) for one in result.changes] == [(SkillChangeKind.CHANGED, ("notes/a.md",))]
    assert (await catalog.version_at(uri, 3)).row.entry == (await catalog.version_at(uri, 1)).row.entry
    assert (await catalog.version_at(uri, 2)).row.entry != (await catalog.version_at(uri, 1)).row.entry


async def test_a_removed_skill_can_be_rolled_back(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds"))
    await catalog.unpublish([uri_of("acme/refunds")], actor="ann")
    assert await published(catalog) == {}

    result = await catalog.rollback(uri_of("acme/refunds"), 1, actor="ann")
    assert [one.kind for one in result.changes] == [SkillChangeKind.ADDED]
    assert await published(catalog) == {"acme/refunds": 3}


async def test_a_rollback_to_a_name_that_is_taken_now_conflicts(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/a/refunds"))
    await catalog.unpublish([uri_of("acme/a/refunds")], actor="ann")
    await publish(catalog, draft("acme/b/refunds"))

    with pytest.raises(CatalogConflictError):
        await catalog.rollback(uri_of("acme/a/refunds"), 1, actor="ann")


@pytest.mark.parametrize("revision", [-1, 0, 2, 3, 4, FOREVER])
async def test_what_was_not_published_at_a_revision_is_not_found(catalog: Catalog, revision: int) -> None:
    await publish(catalog, draft("acme/refunds"))
    await catalog.unpublish([uri_of("acme/refunds")], actor="ann")
    await publish(catalog, draft("acme/tea"))

    with pytest.raises(NotFoundError):
        await catalog.rollback(uri_of("acme/refunds"), revision, actor="ann")
    with pytest.raises(NotFoundError):
        await catalog.unpublish([uri_of("acme/tea"), uri_of("acme/refunds")], actor="ann")
    assert await catalog.revision() == 3


async def test_the_audit_log_has_a_line_for_each_namespace_and_for_denials(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/refunds"), draft("acme/tea"), draft("globex/x"))
    await catalog.unpublish([uri_of("acme/tea")], actor="bob")
    await catalog.record("denied", actor="eve", namespace="acme", detail="no role")

    log = await catalog.audit_log()
    assert [(one.actor, one.action, one.namespace, one.uri, one.revision, one.detail) for one in log] == [
        ("eve", "denied", "acme", "", None, "no role"),
        ("bob", "unpublish", "acme", "skill://acme/tea/SKILL.md", 2, "0 published, 1 removed"),
        ("ann", "publish", "globex", "skill://globex/x/SKILL.md", 1, "1 published, 0 removed"),
        ("ann", "publish", "acme", "skill://acme", 1, "2 published, 0 removed"),
    ]
    assert [one.number for one in await catalog.audit_log(limit=1, before=log[0].number)] == [log[1].number]


# What changed


async def test_the_rows_since_a_revision_are_those_added_and_closed_after_it(catalog: Catalog) -> None:
    await publish(catalog, draft("acme/one"), draft("acme/two"), draft("acme/three"))
    await publish(catalog, draft("acme/two", OTHER))
    await publish(catalog, draft("acme/two"))
    await catalog.unpublish([uri_of("acme/three")], actor="ann")

    def short(rows: list[SkillRow]) -> list[tuple[str, int, int]]:
        return [(row.name, row.since, row.until) for row in rows]

    async with catalog.rows_since(1) as changes:
        assert changes.revision == 4
    assert short(await rows_after(catalog, 1)) == [
        ("three", 1, 4),
        ("two", 1, 2),
        ("two", 2, 3),
        ("two", 3, FOREVER),
    ]
    assert short(await rows_after(catalog, 3)) == [("three", 1, 4)]
    assert await rows_after(catalog, 4) == []
    assert short(await rows_after(catalog)) == [("one", 1, FOREVER), ("two", 3, FOREVER)]


async def test_rows_are_read_at_one_state_while_others_publish(catalog: Catalog) -> None:
    await publish(catalog, *(draft(f"acme/skill-{number}") for number in range(10)))

    async with catalog.rows_since(0, batch=3) as changes:
        sizes: list[int] = []
        async for batch in changes.batches:
            sizes.append(len(batch))
            assert {row.since for row in batch} == {1}
            await publish(
                catalog, draft(f"acme/skill-{9 - len(sizes)}", OTHER), draft(f"acme/new-{len(sizes)}")
            )

    assert (changes.revision, sizes) == (1, [3, 3, 3, 1])
    assert await catalog.revision() == 5


async def test_rows_need_not_be_read_to_the_end(catalog: Catalog) -> None:
    await publish(catalog, *(draft(f"acme/skill-{number}") for number in range(10)))

    for _ in range(20):
        async with catalog.rows_since(0, batch=3) as one, catalog.rows_since(0, batch=2) as other:
            async for batch in one.batches:
                assert len(batch) == 3
                async for rest in other.batches:
                    assert len(rest) == 2
                    break
                break
    with pytest.raises(NotFoundError):
        async with catalog.rows_since(0, batch=3) as one:
            async for _batch in one.batches:
                raise NotFoundError("stop", uri="")
    assert (await publish(catalog, draft("acme/more"))).revision == 2


async def test_a_change_of_another_process_is_noticed_at_once(catalog: Catalog, catalog_url: str) -> None:
    noticed: list[int] = []

    async def wait() -> None:
        noticed.append(await catalog.wait_for_change(0, seconds=20))

    async with open_catalog(catalog_url) as second:
        assert await catalog.wait_for_change(0, seconds=0.1) == 0
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.3)
            with anyio.fail_after(5):
                await publish(second, draft("acme/refunds"))
        assert noticed == [1]
        assert await catalog.wait_for_change(0, seconds=0) in (0, 1)
        assert await catalog.wait_for_change(-5, seconds=5) == 1


# Leases


async def test_a_lease_is_held_by_one_and_released_at_the_end(catalog: Catalog, catalog_url: str) -> None:
    async with open_catalog(catalog_url) as second:
        async with catalog.lease("sync"), second.lease("sync") as other, second.lease("more") as more:
            assert (other, more) == (False, True)
        async with second.lease("sync") as now:
            assert now
    assert await catalog.database.read("SELECT name FROM leases") == []


async def test_a_lease_is_renewed_while_it_is_held_and_expires_when_it_is_not(
    catalog: Catalog, catalog_url: str
) -> None:
    async with open_catalog(catalog_url) as second:
        async with catalog.lease("sync", seconds=1.2):
            await anyio.sleep(1.6)
            async with second.lease("sync") as held:
                assert not held
        async with catalog.database.transaction(write=True) as transaction:
            await transaction.execute(
                f"INSERT INTO leases VALUES ('dead', 'gone', {catalog.database.clock} + 0.3)"
            )
        async with second.lease("dead") as held:
            assert not held
        await anyio.sleep(0.4)
        async with second.lease("dead") as held:
            assert held


async def test_the_block_of_a_lost_lease_is_cancelled(catalog: Catalog) -> None:
    is_finished = False
    with anyio.fail_after(5), pytest.raises(CatalogError):
        async with catalog.lease("sync", seconds=0.3):
            async with catalog.database.transaction(write=True) as transaction:
                await transaction.execute(
                    f"UPDATE leases SET holder = 'thief', until = {catalog.database.clock} + 60"
                )
            await anyio.sleep_forever()
            is_finished = True
    assert not is_finished
    assert await catalog.database.read("SELECT holder FROM leases") == [("thief",)]


async def test_errors_in_the_block_of_a_lease_are_raised_unchanged(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError):
        async with catalog.lease("sync"):
            await catalog.unpublish([uri_of("none")], actor="ann")
    assert await catalog.database.read("SELECT name FROM leases") == []


async def test_nothing_is_published_while_unused_files_are_removed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as group:
        async with catalog.lease("gc") as held:
            assert held
            with monkeypatch.context() as shorter, pytest.raises(CatalogError):
                shorter.setattr("skillwire.catalog.catalog.SECONDS", 0.3)
                await publish(catalog, draft("acme/refunds"))
            group.start_soon(publish, catalog, draft("acme/refunds"))
            await anyio.sleep(0.3)
            assert await catalog.revision() == 0
    assert await catalog.revision() == 1


# Transactions


async def test_a_cancelled_transaction_leaves_nothing_behind(catalog: Catalog) -> None:
    for seconds in (0.0, 0.001, 0.003, 0.01, 0.02):
        with anyio.move_on_after(seconds):
            async with catalog.database.transaction(write=True) as transaction:
                await transaction.execute("UPDATE state SET revision = 77")
                await anyio.sleep_forever()
    with anyio.move_on_after(0.01):
        async with catalog.rows_since(0):
            await anyio.sleep_forever()

    with anyio.fail_after(5):
        assert (await publish(catalog, draft("acme/refunds"))).revision == 1


async def test_an_error_rolls_a_transaction_back(catalog: Catalog) -> None:
    with pytest.raises(CatalogError):
        async with catalog.database.transaction(write=True) as transaction:
            await transaction.execute("UPDATE state SET revision = 77")
            await transaction.execute("SELECT no_such_column FROM state")
    assert await catalog.revision() == 0


# Drafts


async def test_folders_are_published_with_a_prefix_and_broken_skills_are_reported(
    catalog: Catalog, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / "a" / name, {"x.md": name})
    versioned = skill_md("three", extra="metadata:\n  version: 1.2.0\n")
    write_files(tmp_path / "b" / "three", {"SKILL.md": versioned, "inner/SKILL.md": skill_md("inner")})
    write_files(tmp_path / "b" / "broken", {"SKILL.md": "no frontmatter"})

    async with open_drafts([tmp_path / "a", tmp_path / "b"], prefix="acme", version="0.1.0") as found:
        await publish(catalog, *found.drafts)

    assert [report.place.rpartition("/")[2] for report in found.broken] == ["broken"]
    assert set(await published(catalog)) == {
        "acme/one",
        "acme/v0.1.0/one",
        "acme/two",
        "acme/v0.1.0/two",
        "acme/three",
        "acme/v1.2.0/three",
        "acme/three/inner",
    }
    assert await catalog.read_blob(digest_of(b"one")) == b"one"
    assert all(row.modified for row in await rows_after(catalog))


async def test_a_file_of_a_folder_that_changes_before_it_is_read_fails(
    catalog: Catalog, tmp_path: Path
) -> None:
    write_skill(tmp_path / "one", {"x.md": "old"})
    async with open_drafts([tmp_path]) as found:
        plan = await catalog.plan(found.drafts)
        (tmp_path / "one" / "x.md").write_text("newer")
        with pytest.raises(CatalogError):
            await catalog.publish(plan, actor="ann")
    assert await catalog.revision() == 0


async def test_drafts_of_any_source_keep_the_order_of_the_author(catalog: Catalog) -> None:
    skill = Skill("tea", description="Use when making tea.", body="Boil.").with_reference("b.md", "B")
    source = MemorySource([skill.with_reference("a.md", "A")])
    await publish(catalog, *drafts_of(source).drafts)

    (row,) = await rows_after(catalog)
    assert json.loads(row.details).get("order") == list(source.order_of(skill.uri))


@pytest.mark.parametrize(
    "version", ["1.2", "v1.2.0", "1.2.0+build", "01.0.0", "1.0.0-RC1", "1.0.0-", "x" * 99]
)
async def test_a_text_that_is_no_version_is_refused(version: str, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with pytest.raises(CatalogError):
        async with open_drafts([tmp_path], version=version):
            pass
