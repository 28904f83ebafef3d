"""Publishing over HTTP: who may do what, and how a client does it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest

from integration.access_world import token_line, token_of
from integration.catalog.publishing_world import (
    NAMES,
    Publisher,
    World,
    a_world,
    as_json,
    draft_of,
    files_of,
    serving_catalog,
    write_rules,
)
from skillwire.catalog import CatalogConflictError, CatalogError, open_catalog
from skillwire.catalog.remote import open_remote
from skillwire.core import NotFoundError, SkillUri
from skillwire.server.access.settings import AccessSettings
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions

pytestmark = pytest.mark.requirement("SEC-14")


@pytest.fixture
async def world(sqlite_url: str, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[World]:
    async with a_world(sqlite_url, tmp_path) as opened:
        yield opened


async def test_what_is_published_over_http_is_served_by_the_same_server(world: World) -> None:
    async with world.remote("publisher") as remote:
        plan = await remote.plan([draft_of("acme/refunds"), draft_of("acme/billing/tea", version="1.2.0")])
        done = await remote.publish(plan, note="first")
        again = await remote.publish(await remote.plan([draft_of("acme/refunds")]))

    assert [(change.uri.path, change.kind, change.is_pin) for change in done.changes] == [
        ("acme/refunds", "added", False),
        ("acme/billing/tea", "added", False),
        ("acme/billing/v1.2.0/tea", "added", True),
    ]
    assert (done.revision, again.revision, again.changes) == (1, 1, ())
    answer = await world.caller("reader").ask("resources/read", uri="skill://acme/refunds/SKILL.md")
    assert b"Do it." in answer.raw
    [revision] = await world.catalog.history()
    assert (revision.actor, revision.action, revision.note) == ("publisher", "publish", "first")


async def test_history_rollback_and_unpublish_work_over_http(world: World) -> None:
    uri = SkillUri.build("acme/refunds")
    async with world.remote("publisher") as remote:
        for body in ("One.\n", "Two.\n"):
            draft = draft_of("acme/refunds", files_of("acme/refunds", body))
            await remote.publish(await remote.plan([draft]), note=body.strip())
        versions = await remote.history(uri)

    assert [(one.made.number, one.made.note, one.row.is_current) for one in versions] == [
        (2, "Two.", True),
        (1, "One.", False),
    ]
    async with world.remote("admin") as remote:
        back = await remote.rollback(uri, 1)
        gone = await remote.unpublish([uri])
        with pytest.raises(NotFoundError):
            await remote.unpublish([uri])

    assert [change.kind for change in (*back.changes, *gone.changes)] == ["changed", "removed"]
    events = [(one.actor, one.action, one.uri) for one in await world.catalog.audit_log(limit=2)]
    assert events == [("admin", "unpublish", uri.text), ("admin", "rollback", uri.text)]


async def test_roles_decide_what_each_caller_may_do(world: World) -> None:
    path, uri = "acme/refunds", "skill://acme/refunds/SKILL.md"
    assert (await world.caller("publisher").publish(draft_of(path), files=[files_of(path)]))[0] == 200

    async def statuses(name: str) -> list[int]:
        caller = world.caller(name)
        drafts = as_json(draft_of(path))
        answers = [
            await caller.call("plan", drafts=drafts),
            await caller.fetch(f"history?uri={uri}"),
            await caller.fetch("audit"),
            await caller.call("rollback", uri=uri, revision=1),
            await caller.call("unpublish", uris=["skill://acme/nothing/SKILL.md"]),
        ]
        return [status for status, _ in answers]

    assert {name: await statuses(name) for name in (*NAMES, "")} == {
        "reader": [403] * 5,
        "publisher": [200, 200, 403, 403, 403],
        "admin": [200, 200, 200, 200, 404],
        "billing": [403] * 5,
        "other": [403, 403, 200, 403, 403],
        "root": [200, 200, 200, 200, 404],
        "nobody": [403] * 5,
        "": [401] * 5,
    }
    assert await world.denials()


async def test_a_caller_sees_what_it_may_publish_and_shares_the_view_of_readers(world: World) -> None:
    await world.caller("root").publish(
        draft_of("acme/refunds"), draft_of("globex/tea"), files=[files_of("acme/refunds"), files_of("g/tea")]
    )

    async def seen(name: str) -> list[str]:
        answer = orjson.loads((await world.caller(name).ask("skills/list")).raw)
        return [entry["uri"] for entry in answer["result"]["skills"]]

    assert {name: await seen(name) for name in ("reader", "publisher", "admin", "other", "nobody")} == {
        **{one: ["skill://acme/refunds/SKILL.md"] for one in ("reader", "publisher", "admin")},
        "other": ["skill://globex/tea/SKILL.md"],
        "nobody": [],
    }
    assert len(world.app._views) == 3  # pyright: ignore[reportPrivateUsage]


async def test_the_audit_log_has_only_what_the_caller_manages(world: World) -> None:
    both = [files_of("acme/refunds"), files_of("g/tea"), files_of("g/coffee")]
    skills = [draft_of("acme/refunds"), draft_of("globex/tea"), draft_of("globex/coffee")]
    await world.caller("root").publish(*skills, files=both)
    await world.caller("billing").call("plan", drafts=as_json(draft_of("globex/spy")))
    await world.caller("nobody").fetch("audit")

    async def log(name: str) -> list[tuple[str, str, str]]:
        _, answer = await world.caller(name).fetch("audit?limit=10")
        return [(one["actor"], one["action"], one["uri"]) for one in answer["events"]]

    published = [
        ("root", "publish", "skill://globex"),
        ("root", "publish", "skill://acme/refunds/SKILL.md"),
    ]
    spied = ("billing", "denied", "skill://globex/spy/SKILL.md")
    assert await log("admin") == published[1:]
    assert await log("other") == [spied, published[0]]
    assert await log("root") == [("nobody", "denied", ""), spied, *published]
    status, page = await world.caller("root").fetch("audit?limit=1&before=2")
    assert (status, [event["number"] for event in page["events"]]) == (200, [1])


async def test_a_plan_that_others_overtook_is_a_conflict_and_the_same_again_is_not(world: World) -> None:
    one, two = files_of("acme/refunds", "One.\n"), files_of("acme/refunds", "Two.\n")
    publisher, admin = world.caller("publisher"), world.caller("admin")
    _, plan = await publisher.call("plan", drafts=as_json(draft_of("acme/refunds", one)))
    uploads = await publisher.upload(*one.values())
    request = {"drafts": as_json(draft_of("acme/refunds", one)), "seen": plan["seen"], "uploads": uploads}
    first = await publisher.call("publish", **request)

    assert first[1]["revision"] == 1
    assert await publisher.call("publish", **request) == (200, {"revision": 1, "changes": []})
    await admin.publish(draft_of("acme/refunds", two), files=[two])
    status, answer = await publisher.call("publish", **request)
    assert (status, answer["uris"]) == (409, ["skill://acme/refunds/SKILL.md"])
    assert await world.catalog.revision() == 2

    async with world.remote("publisher") as remote:
        plan = await remote.plan([draft_of("acme/refunds", one)])
        await admin.publish(draft_of("acme/refunds"), files=[files_of("acme/refunds")])
        with pytest.raises(CatalogConflictError) as caught:
            await remote.publish(plan)
    assert caught.value.uris == ("skill://acme/refunds/SKILL.md",)


async def test_files_that_were_removed_after_they_were_uploaded_are_uploaded_again(world: World) -> None:
    files = files_of("acme/refunds") | {"notes.md": b"More.\n"}
    async with world.remote("publisher") as remote:
        plan = await remote.plan([draft_of("acme/refunds", files)])
        stored = 0

        def remove(done: int, count: int) -> None:
            nonlocal stored
            stored += 1
            if stored == count:
                for path in (world.catalog.database.path or Path()).with_name("catalog.db.blobs").rglob("*"):
                    if path.is_file():
                        path.unlink()

        done = await remote.publish(plan, progress=remove)

    assert (done.revision, stored) == (1, 4)


async def test_clients_say_what_a_server_said(world: World) -> None:
    async with world.remote("reader") as remote:
        with pytest.raises(CatalogError, match="no role"):
            await remote.plan([draft_of("acme/refunds")])
    async with world.remote("publisher") as remote:
        with pytest.raises(CatalogError, match="no role"):
            await remote.unpublish([SkillUri.build("acme/refunds")])
        with pytest.raises(CatalogError):
            await remote.history()
    remove = "".join(token_line(name, token_of(name)) for name in NAMES if name != "publisher")
    (world.access.tokens or Path()).write_text(remove)
    world.app.reload()
    async with world.remote("publisher") as remote:
        with pytest.raises(CatalogError, match="token"):
            await remote.plan([draft_of("acme/refunds")])


@pytest.mark.parametrize(
    "url",
    [
        "http://skills.example.com",
        "https://me:secret@skills.example.com",
        "ftp://x",
        "https://x/?a",
        "https://",
    ],
)
async def test_a_token_is_only_sent_encrypted(url: str) -> None:
    with pytest.raises(CatalogError) as caught:
        async with open_remote(url, token="skw_a_b"):
            pass

    assert "secret" not in str(caught.value)


async def test_nothing_of_it_exists_without_access_settings_or_a_catalog(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with open_catalog(sqlite_url, create=True), serving_catalog(sqlite_url, None, tmp_path) as app:
        stranger = Publisher(app, "")
        assert (await stranger.send("POST", "/catalog/plan", b"{}")).status == 404
        assert (await stranger.send("GET", "/catalog/audit")).status == 404
    access = write_rules(tmp_path / "etc")
    app = HttpApp(ServeOptions((tmp_path,)), host="127.0.0.1", access=access)
    async with app.open():
        assert (await Publisher(app, token_of("root")).send("GET", "/catalog/audit")).status == 404


async def test_without_rules_nobody_may_publish(sqlite_url: str, tmp_path: Path) -> None:
    tokens = write_rules(tmp_path / "etc").tokens
    access = AccessSettings(tokens=tokens, allow_anonymous=True)
    async with (
        open_catalog(sqlite_url, create=True),
        serving_catalog(sqlite_url, access, tmp_path) as app,
    ):
        drafts = as_json(draft_of("acme/refunds"))
        assert (await Publisher(app, token_of("root")).call("plan", drafts=drafts))[0] == 403
        assert (await Publisher(app, "").call("plan", drafts=drafts))[0] == 401
