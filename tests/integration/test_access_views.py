"""Many callers with different rights: each is served by a view of its own, within a limit of memory."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from folders import skill_md, write_files
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
from skillwire.runner import OutputFile, Policy
from skillwire.server.access.settings import AccessSettings
from skillwire.server.http.app import HttpApp
from skillwire.server.http.views import VIEWS_BYTES, Views
from talking import eventually

pytestmark = pytest.mark.requirement("SEC-14")

RIGHTS = 200
# Room for a handful of views, so that 200 callers make each other's views go.
FEW_VIEWS = 4 * 1024 * 1024


async def seen_by(caller: Asker) -> list[str]:
    answer = await caller.ask("skills/list")
    assert answer.status == 200, answer
    return [entry["uri"] for entry in orjson.loads(answer.raw)["result"]["skills"]]


def views_of(app: HttpApp) -> Any:
    views = app._views  # pyright: ignore[reportPrivateUsage]
    assert isinstance(views, Views)
    return views


def own_skill(name: str) -> str:
    return f"skill://team/{name}/SKILL.md"


@asynccontextmanager
async def serving_teams(
    folder: Path, names: Sequence[str], *, limit: int, **options: Any
) -> AsyncGenerator[HttpApp]:
    """Serve one skill for each name, which only the token of that name may see and run."""
    write_files(folder / "skills", {f"team/{name}/SKILL.md": skill_md(name) for name in names})
    tokens, rules = folder / "tokens", folder / "access.toml"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in names))
    tokens.chmod(0o600)
    rule = '[[rule]]\ntokens = ["{0}"]\nsee = ["team/{0}"]\nrun = ["team/{0}"]\n'
    rules.write_text("".join(rule.format(name) for name in names))
    async with serving(
        folder / "skills", AccessSettings(tokens=tokens, rules=rules), watch=False, **options
    ) as app:
        views_of(app)._limit = limit
        yield app


@pytest.mark.parametrize("limit", [FEW_VIEWS, VIEWS_BYTES])
async def test_two_hundred_different_rights_at_once_all_get_answers(limit: int, tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(RIGHTS)]
    seen: dict[str, list[str]] = {}
    async with serving_teams(tmp_path, names, limit=limit) as app:

        async def ask(name: str) -> None:
            seen[name] = await seen_by(Asker(app, token_of(name)))

        for _ in range(2):
            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(ask, name)
        kept = len(views_of(app))

    assert seen == {name: [own_skill(name)] for name in names}
    assert kept == RIGHTS if limit == VIEWS_BYTES else kept < 20


async def test_rights_that_are_held_by_streams_alone_lock_nobody_out(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(12)]
    async with serving_teams(tmp_path, [*names, "late"], limit=FEW_VIEWS) as app, AsyncExitStack() as stack:
        heard = [
            await stack.enter_async_context(listening(Asker(app, token_of(name)), "modern")) for name in names
        ]

        assert await seen_by(Asker(app, token_of("late"))) == [own_skill("late")]

        await heard[0].wait_for_end()  # It was told so, and not cut off: `end` is the last part of an answer.
        assert not heard[-1].is_over
        assert await seen_by(Asker(app, token_of(names[0]))) == [own_skill(names[0])]


@pytest.mark.parametrize("is_asking", [True, False])
async def test_a_live_session_survives_two_hundred_others(is_asking: bool, tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(RIGHTS)]
    async with serving_teams(tmp_path, [*names, "older"], limit=FEW_VIEWS) as app:
        older = Asker(app, token_of("older"))
        session = await older.shake_hands()
        headers = (b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")

        for number, name in enumerate(names):
            await seen_by(Asker(app, token_of(name)))
            if is_asking and number % 20 == 0:
                assert (await older.post(legacy("skills/list"), *headers)).status == 200

        answer = await older.post(legacy("skills/list"), *headers)
        assert len(views_of(app)) < 20

    assert answer.status == 200 and own_skill("older").encode() in answer.raw


async def test_sessions_that_asked_longest_ago_go_first(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(30)]
    async with serving_teams(tmp_path, [*names, "older"], limit=FEW_VIEWS) as app:
        older = Asker(app, token_of("older"))
        session = await older.shake_hands()
        first = await Asker(app, token_of(names[0])).shake_hands()
        headers = (b"mcp-protocol-version", b"2025-11-25")

        for name in names[1:]:
            await Asker(app, token_of(name)).shake_hands()
            assert (await older.post(legacy("ping"), (b"mcp-session-id", session), headers)).status == 200

        gone = await Asker(app, token_of(names[0])).post(legacy("ping"), (b"mcp-session-id", first), headers)

    assert gone.status == 404  # As MCP wants it: the client begins another session.


async def test_who_finds_every_view_answering_is_told_when_to_come_back(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        views = views_of(app)
        views._limit = 1
        first, second = await seen_by(few), await seen_by(many)
        again = await seen_by(few)
        [view] = views._views.values()
        with view.in_use():
            busy = await many.ask("skills/list")
        free = await many.ask("skills/list")

    assert first == again != second
    assert busy.status == 503 and b"retry-after" in dict(busy.headers)
    assert free.status == 200


async def test_what_a_view_keeps_ready_counts_as_its_memory(tmp_path: Path) -> None:
    access = write_access(tmp_path / "etc")
    folder = write_world(tmp_path / "skills", with_secrets=True)
    write_files(folder, {"acme/open/references/long.md": "x" * 200_000})
    async with serving(folder, access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        await seen_by(many)
        await seen_by(few)
        views = views_of(app)
        before = sum(view.size for view in views._views.values())
        views._limit = before + 100_000
        assert len(views) == 2

        for _ in range(2):  # An answer is kept when it is given again.
            await few.ask("resources/read", uri="skill://acme/open/references/long.md")
        after = sum(view.size for view in views._views.values())

        async def count() -> int:
            return len(views)

        assert await eventually(count, lambda held: held == 1) == 1
        assert after > before + 200_000
        [left] = views._views
        assert not left.is_unrestricted  # The one that was asked last.


async def test_outputs_of_scripts_count_as_memory_and_a_view_that_has_them_is_closed_last(
    tmp_path: Path,
) -> None:
    names = [f"t{number}" for number in range(30)]
    scripts = {"scripts": True, "policy": Policy(pool=0)}
    async with serving_teams(tmp_path, [*names, "owner"], limit=FEW_VIEWS, **scripts) as app:
        views = views_of(app)
        await seen_by(Asker(app, token_of("owner")))
        [view] = views._views.values()
        before = view.size
        [uri] = view.skills.scripts.outputs.put([OutputFile("big.txt", b"x" * 2**20)], ("owner",)).values()
        after = view.size

        for name in names:
            await Asker(app, token_of(name)).shake_hands()
        kept = len(views)
        output = view.skills.scripts.outputs.read(uri, ("owner",))
        view.skills.scripts.outputs.clear()
        for name in names:
            await seen_by(Asker(app, token_of(name)))

        assert after == before + 2**20
        assert kept < 10
        assert output is not None and output.content == b"x" * 2**20
        assert view not in views._views.values()


async def test_a_view_that_failed_is_made_anew_for_who_asks_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = write_access(tmp_path / "etc")
    async with serving(write_world(tmp_path / "skills", with_secrets=True), access) as app:
        views = views_of(app)
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        first, others = await seen_by(few), await seen_by(many)
        [broken] = [view for visibility, view in views._views.items() if not visibility.is_unrestricted]

        broken.endpoint.end_streams = lambda: 1 / 0
        broken.close()
        await anyio.wait_all_tasks_blocked()

        assert len(views) == 1
        assert (await seen_by(few), await seen_by(many)) == (first, others)
    assert caplog.text.count("a view of the skills failed unexpectedly") == 1
