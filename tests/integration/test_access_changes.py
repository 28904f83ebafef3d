"""Who may see what, while it changes: tokens come and go, rules are edited, credentials expire."""

import base64
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import orjson
import pytest

from integration.access_world import (
    Asker,
    listening,
    serving,
    token_line,
    token_of,
    write_access,
    write_world,
)
from serving import legacy
from skillwire.core import INDEX_PATH, SITE_PATH
from skillwire.server.access.settings import AccessSettings, Rate
from skillwire.server.http.app import HttpApp
from skillwire.server.ops.peers import Proxies
from skillwire.server.options import ServeOptions
from talking import eventually

pytestmark = pytest.mark.requirement("SEC-14")

NOTHING_FOR_FEW = """
[[rule]]
tokens = ["many"]
see = ["*"]
"""


def replace_file(path: Path, text: str) -> None:
    """Replace a file as careful programs do, with another time of change for certain."""
    other = path.with_name(f".{path.name}.new")
    other.write_text(text)
    other.chmod(0o600)
    later = time.time() + 5
    os.utime(other, (later, later))
    other.rename(path)


async def seen_by(caller: Asker) -> list[str]:
    answer = await caller.ask("skills/list")
    assert answer.status == 200, answer
    return [entry["uri"] for entry in orjson.loads(answer.raw)["result"]["skills"]]


async def test_a_token_that_is_revoked_is_good_for_nothing_at_once(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        assert await seen_by(few)

        assert access.tokens is not None
        replace_file(access.tokens, token_line("many", token_of("many")))
        app.reload()

        assert (await few.ask("skills/list")).status == 401
        assert (await many.ask("skills/list")).status == 200


async def test_a_changed_file_is_read_again_without_being_told(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few = Asker(app, token_of("few"))
        assert await seen_by(few)

        assert access.tokens is not None
        replace_file(access.tokens, token_line("many", token_of("many")))

        async def status() -> int:
            return (await few.ask("skills/list")).status

        assert await eventually(status, lambda seen: seen == 401) == 401


async def test_other_rules_show_other_skills_and_a_session_under_the_old_ones_is_over(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few = Asker(app, token_of("few"))
        session = await few.shake_hands()
        assert await seen_by(few)

        assert access.rules is not None
        replace_file(access.rules, NOTHING_FOR_FEW)
        app.reload()

        assert await seen_by(few) == []
        old = await few.post(
            legacy("skills/list"), (b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")
        )
        assert old.status == 404


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("change", ["revoked", "other rules"])
async def test_a_stream_ends_when_the_right_to_it_does(era: str, change: str, tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        async with listening(few, era) as heard, listening(many, era) as other:
            assert access.tokens is not None and access.rules is not None
            if change == "revoked":
                replace_file(access.tokens, token_line("many", token_of("many")))
            else:
                replace_file(access.rules, access.rules.read_text().replace("acme", "other"))
            app.reload()

            await heard.wait_for_end()

            assert not other.is_over


async def test_a_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    assert access.tokens is not None
    line = token_line("few", token_of("few")).rstrip()
    access.tokens.write_text(f"{line} expires={soon:%Y-%m-%dT%H:%M:%SZ}\n")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few = Asker(app, token_of("few"))
        async with listening(few, "modern") as heard:
            await heard.wait_for_end()

        assert (await few.ask("skills/list")).status == 401


async def test_a_file_that_makes_no_sense_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few = Asker(app, token_of("few"))
        before = await seen_by(few)

        assert access.rules is not None
        replace_file(access.rules, "[[rule]]\nsee = 3\n")
        app.reload()
        for _ in range(3):
            assert await seen_by(few) == before
            await anyio.sleep(0.5)

    said = [
        record.getMessage()
        for record in caplog.records
        if "the previous version stays in use" in record.getMessage()
    ]
    assert len(said) == 1


async def test_who_asks_too_often_is_told_when_to_come_back_and_delays_nobody_else(tmp_path: Path) -> None:
    access = replace(write_access(tmp_path / "etc"), rate=Rate(0.5, 3))
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))

        answers = [await few.ask("skills/list") for _ in range(6)]
        other = await many.ask("skills/list")

    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429, 429]
    assert 1 <= int(dict(answers[-1].headers)[b"retry-after"]) <= 3
    assert other.status == 200


async def test_strangers_who_try_credentials_are_slowed_down_by_their_address(tmp_path: Path) -> None:
    access = replace(write_access(tmp_path / "etc"), rate=Rate(0.5, 3))
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        tries = [Asker(app, f"skw_few_{number:064x}") for number in range(6)]

        answers = [(await one.ask("skills/list")).status for one in tries]

    assert answers == [401, 401, 401, 429, 429, 429]


async def test_a_stranger_with_a_whole_network_of_addresses_has_one_rate(tmp_path: Path) -> None:
    access = replace(write_access(tmp_path / "etc"), rate=Rate(0.5, 3))
    skills = write_world(tmp_path / "skills", with_secrets=True)
    app = HttpApp(ServeOptions((skills,)), host="127.0.0.1", access=access, proxies=Proxies(["127.0.0.1"]))
    spellings = ["2001:db8::1", "2001:db8::2", "[2001:DB8:0:0::3]:443", "2001:db8::4:4", "2001:db8:0:1::5"]
    async with app.open():
        stranger = Asker(app, "nonsense")

        answers = [
            (await stranger.get("/", "GET", (b"x-forwarded-for", one.encode()))).status for one in spellings
        ]

    assert answers == [401, 401, 401, 429, 401]


async def test_a_site_that_differs_by_caller_is_kept_for_its_caller_alone_and_not_for_long(
    tmp_path: Path,
) -> None:
    access = write_access(tmp_path / "etc")
    skills = write_world(tmp_path / "skills", with_secrets=True)
    async with serving(skills, access, dialect=("well-known",), ttl=30.0) as app:
        few = Asker(app, token_of("few"))
        index = await few.get(INDEX_PATH)
        path = SITE_PATH + orjson.loads(index.raw)["skills"][0]["url"]
        tag = dict((await few.get(path)).headers)[b"etag"]
        answers = [
            index,
            await few.get(path),
            await few.get(path, "HEAD"),
            await few.get(path, "GET", (b"if-none-match", tag)),
            await few.get(f"{SITE_PATH}nothing/SKILL.md"),
            await few.get(INDEX_PATH, "POST"),
        ]

    assert [answer.status for answer in answers] == [200, 200, 200, 304, 404, 405]
    assert {dict(answer.headers).get(b"vary") for answer in answers} == {b"authorization"}
    kept = [dict(answer.headers).get(b"cache-control") for answer in answers]
    assert kept == [b"private, max-age=30"] * 4 + [b"no-store", None]


async def test_anonymous_callers_see_what_rules_say_of_anyone(tmp_path: Path) -> None:
    rules = '[[rule]]\nanyone = true\nsee = ["acme/open"]\n\n[[rule]]\nauthenticated = true\nsee = ["*"]\n'
    access = replace(write_access(tmp_path / "etc", rules), allow_anonymous=True)
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        stranger, few = Asker(app, ""), Asker(app, token_of("few"))

        assert await seen_by(stranger) == ["skill://acme/open/SKILL.md"]
        assert len(await seen_by(few)) == 2  # A page of more.
        assert (await Asker(app, "nonsense").ask("skills/list")).status == 401


async def test_a_browser_may_give_its_token_as_a_password_and_only_to_the_page(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        basic = b"Basic " + base64.b64encode(f"me:{token_of('few')}".encode())
        browser = Asker(app, "")

        page = await browser.get("/", "GET", (b"authorization", basic))
        refused = await browser.get("/")
        endpoint = await browser.post(legacy("ping"), (b"authorization", basic))

    assert page.status == 200
    assert dict(refused.headers)[b"www-authenticate"].startswith(b"Basic ")
    assert endpoint.status == 401
    assert not dict(endpoint.headers)[b"www-authenticate"].startswith(b"Basic ")


async def test_a_server_that_knows_nobody_asks_nobody(tmp_path: Path) -> None:
    async with serving(write_world(tmp_path / "skills", with_secrets=True), AccessSettings()) as app:
        stranger = Asker(app, "")

        answer = await stranger.ask("skills/list")
        result = orjson.loads(answer.raw)["result"]

        assert result["cacheScope"] == "public"
        assert (await stranger.get("/")).status == 200
        assert (await stranger.get("/metrics")).status == 200
        assert (await stranger.get("/.well-known/oauth-protected-resource")).status == 404
