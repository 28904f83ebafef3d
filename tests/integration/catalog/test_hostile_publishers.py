"""Publishers that lie, reach beyond what is theirs, or send too much or too slowly."""

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from folders import skill_md
from integration.access_world import token_line, token_of
from integration.catalog.publishing_world import (
    NAMES,
    World,
    a_world,
    as_json,
    digest,
    draft_of,
    files_of,
)
from skillwire.catalog.http import Receipts
from skillwire.server.access.settings import Rate
from skillwire.server.fast.requests import Message
from skillwire.server.http import catalog as publishing
from talking import eventually

pytestmark = pytest.mark.requirement("SEC-14")

Json = dict[str, Any]


@pytest.fixture
async def world(sqlite_url: str, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[World]:
    async with a_world(sqlite_url, tmp_path) as opened:
        yield opened


def changed(**entry: Any) -> Callable[[Json], None]:
    return lambda draft: draft["entry"].update(entry)


def line(**values: Any) -> Callable[[Json], None]:
    return lambda draft: draft["entry"]["resources"][0].update(values)


def more(**values: Any) -> Callable[[Json], None]:
    return lambda draft: draft.update(values)


URI = "skill://acme/refunds/SKILL.md"
OTHER = {"name": "refunds", "description": "Use when lying."}
LIES: dict[str, Callable[[Json], None]] = {
    "frontmatter": changed(frontmatter=OTHER),
    "a name": changed(frontmatter={**OTHER, "name": "other"}),
    "no frontmatter": changed(frontmatter=None),
    "a size": line(size=1),
    "a negative size": line(size=-1),
    "a digest": line(digest=digest(b"other bytes")),
    "no digest": line(digest="sha256:constructor"),
    "a path above": line(uri="skill://acme/refunds/../tea/SKILL.md"),
    "an escaped path": line(uri="skill://acme/refunds/%2e%2e/SKILL.md"),
    "another skill's file": line(uri="skill://acme/tea/SKILL.md"),
    "dynamic": changed(resources="dynamic"),
    "no files": changed(resources=[]),
    "too many files": lambda draft: draft["entry"]["resources"].extend(
        {"uri": f"skill://acme/refunds/{n}.md", "digest": digest(b""), "size": 0} for n in range(513)
    ),
    "too large": line(size=17 * 1024 * 1024),
    "twins": lambda draft: draft["entry"]["resources"].extend(
        {"uri": f"skill://acme/refunds/{name}", "digest": digest(b""), "size": 0} for name in ("a.md", "A.md")
    ),
    "unknown members": changed(instructions="skill://other/SKILL.md"),
    "unknown members of a file": line(_meta={}),
    "unknown members of a draft": more(source="company"),
    "a version": more(version="../../1"),
    "a time": more(modified=1e300),
    "a time as text": more(modified="now"),
    "a media type": more(details={"mediaTypes": {URI: "text/html\r\nset-cookie: a=b"}}),
    "the media type of another": more(details={"mediaTypes": {"skill://x/SKILL.md": "text/html"}}),
    "folders elsewhere": more(details={"folders": ["skill://globex/x"]}),
    "an order of other files": more(details={"order": ["../x"]}),
    "details": more(details={"links": []}),
    "an entry": more(entry=[]),
    "a uri": changed(uri="file:///etc/passwd/SKILL.md"),
    "a uri above": changed(uri="skill://acme/../globex/refunds/SKILL.md"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_entry_that_lies_is_refused_and_nothing_is_published(lie: str, world: World) -> None:
    files = files_of("acme/refunds")
    [draft] = as_json(draft_of("acme/refunds", files))
    LIES[lie](draft)
    publisher = world.caller("publisher")
    uploads = await publisher.upload(*files.values(), b"", b"other bytes")

    status, answer = await publisher.call("publish", drafts=[draft], seen={URI: 0}, uploads=uploads)

    assert status == 400, answer
    assert 0 < len(answer["error"]) < 2000
    assert await world.catalog.revision() == 0


async def test_a_version_that_the_frontmatter_contradicts_is_refused(world: World) -> None:
    files = files_of("acme/refunds", extra='metadata: {version: "1.0.0"}\n')

    status, _ = await world.caller("publisher").publish(
        draft_of("acme/refunds", files, version="2.0.0"), files=[files]
    )

    assert status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"drafts": {}}',
        b'{"drafts": [1]}',
        b'{"drafts": [], "drafts": []}',
        b'{"drafts": ["\\ud800"]}',
        b"[" * 100_000,
        b'{"drafts": [], "more": 1}',
        b'{"drafts": [], "prune": true}',
    ],
)
async def test_a_body_of_another_form_is_refused(body: bytes, world: World) -> None:
    for route in ("plan", "publish", "unpublish", "rollback"):
        answer = await world.caller("root").send("POST", f"/catalog/{route}", body)
        assert answer.status == 400, (route, answer)


@pytest.mark.parametrize(
    "path",
    [
        "/catalog/",
        "/catalog/blobs",
        "/catalog/blobs/",
        "/catalog/blobs/sha256:abc",
        f"/catalog/blobs/../blobs/{digest(b'')}",
        "/catalog/plan/",
        "/catalog/blobs/../../etc/passwd",
    ],
)
async def test_other_paths_do_not_exist(path: str, world: World) -> None:
    assert (await world.caller("root").send("PUT", path, b"")).status == 404
    assert (await world.caller("root").send("GET", "/catalog/plan")).status == 405


@pytest.mark.parametrize(
    "query", ["", "uri=", "uri=skill://acme", f"uri={URI}&limit=-1", f"uri={URI}&before=x"]
)
async def test_a_history_of_nothing_is_refused(query: str, world: World) -> None:
    assert (await world.caller("root").fetch(f"history?{query}"))[0] == 400


# What is not theirs


@pytest.mark.parametrize(
    "path",
    ["globex/refunds", "acme/refunds", "acme/billing-x/refunds", "acme", "refunds", "acme/v1.0.0/billing"],
)
async def test_skills_elsewhere_cannot_be_published(path: str, world: World) -> None:
    draft = draft_of(path)
    status, answer = await world.caller("billing").call("plan", drafts=as_json(draft))

    assert (status, "role" in answer["error"]) == (403, True)
    assert await world.denials() == [("billing", draft.entry.uri.text, "publish")]


async def test_a_version_is_only_published_where_the_caller_may(world: World) -> None:
    draft = draft_of("acme/billing", version="1.0.0")

    status, answer = await world.caller("billing").call("plan", drafts=as_json(draft))

    assert (status, "v1.0.0" in answer["error"]) == (403, True)


async def test_conflicts_with_what_a_caller_may_not_see_do_not_tell_what_it_is(world: World) -> None:
    root, billing = world.caller("root"), world.caller("billing")
    secret = [draft_of("acme/vault/refunds"), draft_of("acme/billing/visible")]
    assert (await root.publish(*secret, files=[files_of("a/refunds"), files_of("a/visible")]))[0] == 200
    outer = {"SKILL.md": skill_md("globex")}
    assert (await root.publish(draft_of("globex", outer), files=[outer]))[0] == 200
    world.app.reload()

    name = await billing.call("plan", drafts=as_json(draft_of("acme/billing/refunds")))
    seen = await billing.call("plan", drafts=as_json(draft_of("acme/billing/deep/visible")))

    assert name[0] == seen[0] == 409
    assert "vault" not in json.dumps(name) and name[1]["uris"] == ["skill://acme/billing/refunds/SKILL.md"]
    assert "acme/billing/visible" in seen[1]["error"]


async def test_a_skill_inside_one_that_the_caller_may_not_see_is_refused_without_its_name(
    sqlite_url: str, tmp_path: Path
) -> None:
    rules = '[[rule]]\ntokens=["root"]\nmanage=["*"]\n[[rule]]\ntokens=["billing"]\npublish=["acme/x/y"]\n'
    async with a_world(sqlite_url, tmp_path, rules) as world:
        outer = {"SKILL.md": skill_md("x")}
        assert (await world.caller("root").publish(draft_of("acme/x", outer), files=[outer]))[0] == 200

        status, answer = await world.caller("billing").call("plan", drafts=as_json(draft_of("acme/x/y/z")))

    assert (status, answer["uris"]) == (409, ["skill://acme/x/y/z/SKILL.md"])
    assert "inside" not in answer["error"]


# Bytes by their digests


async def test_knowing_a_digest_is_not_enough_to_publish_its_bytes(world: World) -> None:
    secret = b"The vault is below the fountain.\n"
    hidden = {**files_of("globex/plan"), "map.md": secret}
    assert (await world.caller("other").publish(draft_of("globex/plan", hidden), files=[hidden]))[0] == 200
    thief, own = world.caller("billing"), files_of("acme/billing/copy")
    stolen = draft_of("acme/billing/copy", {**own, "map.md": secret})
    _, plan = await thief.call("plan", drafts=as_json(stolen))
    uploads = await thief.upload(*own.values())
    theirs = await world.caller("other").upload(secret)

    assert digest(secret) in plan["missing"]
    for forged in (
        {},
        theirs,
        {digest(secret): uploads[digest(own["SKILL.md"])]},
        {digest(secret): f"9999999999.{len(secret)}." + "0" * 64},
        {digest(secret): "x"},
        {digest(secret): "\u0661.\u00b2." + "0" * 64},
    ):
        request = {"drafts": as_json(stolen), "seen": plan["seen"], "uploads": {**uploads, **forged}}
        status, answer = await thief.call("publish", **request)
        assert (status, answer["missing"]) == (409, [digest(secret)])
    for method in ("GET", "HEAD", "POST", "DELETE"):
        answer = await thief.send(method, f"/catalog/blobs/{digest(secret)}")
        assert answer.status == 405 and secret not in answer.raw


def test_a_receipt_expires() -> None:
    now = 1000.0
    receipts = Receipts(b"secret", clock=lambda: now)
    receipt = {digest(b"a"): receipts.issue("ann", digest(b"a"), 1)}

    assert receipts.sizes("ann", receipt) == {digest(b"a"): 1}
    assert receipts.sizes("bob", receipt) == {}
    assert Receipts(b"other", clock=lambda: now).sizes("ann", receipt) == {}
    now += 3601
    assert receipts.sizes("ann", receipt) == {}


async def test_bytes_have_to_match_their_digest_and_their_uploader_a_role(world: World) -> None:
    path = f"/catalog/blobs/{digest(b'these')}"

    assert (await world.caller("publisher").send("PUT", path, b"those")).status == 400
    assert [(await world.caller(name).send("PUT", path, b"these")).status for name in ("reader", "")] == [
        403,
        401,
    ]
    assert await world.catalog.store.has([digest(b"these"), digest(b"those")]) == set()


# Too much, too slowly, or no longer


async def test_a_body_that_is_too_large_is_not_read_to_its_end(world: World) -> None:
    pieces = [bytes(1024 * 1024)] * 17
    publisher = world.caller("publisher")

    assert (await publisher.send("PUT", f"/catalog/blobs/{digest(b'')}", *pieces)).status == 413
    assert (await publisher.send("POST", "/catalog/plan", *pieces)).status == 413
    assert (await world.caller("reader").send("POST", "/catalog/plan", *pieces)).status == 403


async def sending(world: World, name: str, ended: Callable[[int], None], path: str = "plan") -> None:
    """Send the beginning of a body, and no more; the status is passed on when there is one."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/catalog/{path}",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"authorization", f"Bearer {token_of(name)}".encode()),
        ],
        "client": ("127.0.0.1", 50000),
    }
    first: list[Message] = [{"type": "http.request", "body": b'{"drafts"', "more_body": True}]

    async def receive() -> Message:
        if first:
            return first.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            ended(message["status"])

    await world.app(scope, receive, send)


async def status_of(statuses: list[int]) -> None:
    """Wait until there is a status."""

    async def look() -> list[int]:
        return statuses

    await eventually(look, bool)


async def test_a_body_that_does_not_come_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BODY_SECONDS", 0.2)
    statuses: list[int] = []

    await sending(world, "publisher", statuses.append)

    assert statuses == [408]


async def test_slow_senders_leave_room_for_others(world: World) -> None:
    statuses: list[int] = []
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(sending, world, "publisher", statuses.append)
        await anyio.sleep(0.3)
        assert statuses == [429]
        assert (await world.caller("admin").call("plan", drafts=[]))[0] == 200
        for name in ("admin", "admin", "admin", "admin", "other"):
            group.start_soon(sending, world, name, statuses.append)
        await anyio.sleep(0.3)
        assert statuses == [429, 503]
        assert (await world.caller("reader").ask("skills/list")).status == 200
        group.cancel_scope.cancel()


async def test_a_token_that_is_revoked_during_an_upload_is_good_for_nothing(world: World) -> None:
    statuses: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(sending, world, "publisher", statuses.append)
        await anyio.sleep(0.1)
        assert world.access.tokens is not None
        kept = [name for name in NAMES if name != "publisher"]
        world.access.tokens.write_text("".join(token_line(name, token_of(name)) for name in kept))
        world.app.reload()

        await status_of(statuses)

    assert statuses == [401]


async def test_a_role_that_is_taken_away_during_an_upload_counts_when_it_ends(world: World) -> None:
    statuses: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(sending, world, "publisher", statuses.append)
        await anyio.sleep(0.1)
        assert world.access.rules is not None
        world.access.rules.write_text('[[rule]]\ntokens = ["publisher"]\nsee = ["acme"]\n')
        world.app.reload()
        await status_of(statuses)

    assert statuses == [403]


async def test_a_flood_of_denials_does_not_fill_the_audit_log(world: World) -> None:
    drafts = as_json(draft_of("globex/spy"))
    for _ in range(40):
        assert (await world.caller("billing").call("plan", drafts=drafts))[0] == 403
    await world.caller("reader").call("plan", drafts=drafts)

    denials = await world.denials()
    assert [actor for actor, _, _ in denials].count("billing") == 10
    assert ("reader", "", "plan") in denials


async def test_requests_are_counted_for_the_rate_limit(sqlite_url: str, tmp_path: Path) -> None:
    async with a_world(sqlite_url, tmp_path) as world:
        world.app.reconfigure(replace(world.access, rate=Rate(0.01, 2)))
        statuses = [(await world.caller("reader").call("plan", drafts=[]))[0] for _ in range(4)]

    assert statuses == [403, 403, 429, 429]


async def test_a_seen_state_of_another_form_is_refused(world: World) -> None:
    publisher, files = world.caller("publisher"), files_of("acme/refunds")
    uploads = await publisher.upload(*files.values())
    drafts = as_json(draft_of("acme/refunds", files))

    states: list[Any] = [None, [], {}, {URI: "0"}, {URI: True}, {URI: 1.5}]
    for seen in states:
        status, _ = await publisher.call("publish", drafts=drafts, seen=seen, uploads=uploads)
        assert status == 400, seen
    wrong: list[Any] = [[], {URI: 1}, {digest(b""): None}]
    found = [(await publisher.call("publish", drafts=drafts, seen={URI: 0}, uploads=one))[0] for one in wrong]
    assert found == [400, 409, 409]
    assert await world.catalog.revision() == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=20) | st.just(URI),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
MEMBERS = ("drafts", "seen", "uploads", "note", "uris", "uri", "revision")
PLACES = ("uri", "frontmatter", "resources", "entry", "version", "details", "modified", "digest", "size")
ROUTES = ("plan", "publish", "unpublish", "rollback")


def replaced(value: Any, key: str, new: object) -> Any:
    """Return JSON with the values of all members of a name replaced, and that member in each draft."""
    if isinstance(value, list):
        return [replaced(item, key, new) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    members = cast(Json, value).items()
    found = {name: new if name == key else replaced(item, key, new) for name, item in members}
    return {**found, key: new} if "entry" in found and key in ("version", "details", "modified") else found


SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
tries = st.tuples(st.sampled_from(ROUTES), st.sampled_from(MEMBERS + PLACES), VALUES)


@settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=[*SLOW])
@given(st.lists(tries, min_size=60, max_size=80))
def test_whatever_a_body_has_it_gets_an_answer(tries: list[tuple[str, str, object]]) -> None:
    async def send_all(folder: Path) -> None:
        files = files_of("acme/refunds")
        async with a_world(f"sqlite:///{folder}/catalog.db", folder) as world:
            root = world.caller("root")
            uploads = await root.upload(*files.values())
            drafts = as_json(draft_of("acme/refunds", files))
            valid: dict[str, Json] = {
                "plan": {"drafts": drafts},
                "publish": {"drafts": drafts, "seen": {URI: 0}, "uploads": uploads},
                "unpublish": {"uris": [URI]},
                "rollback": {"uri": URI, "revision": 1},
            }
            for route, key, value in tries:
                document = replaced(valid[route], key, value)
                if key in MEMBERS:
                    document[key] = value
                body = json.dumps(document).encode()
                answer = await root.send("POST", f"/catalog/{route}", body)
                assert answer.status in (200, 400, 404, 409), (answer, body)

    with TemporaryDirectory() as folder:
        anyio.run(send_all, Path(folder))
