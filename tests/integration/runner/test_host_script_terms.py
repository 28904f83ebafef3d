"""On which terms a host runs scripts: what is asked about each time, locks, limits, and giving up."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from hostile.hosting import User, hosting, refused, visiting
from integration.hosting_serve import audit, over_stdio
from integration.hosting_shop import REFUNDS as REFUNDS_URI
from integration.hosting_shop import Shop, digest
from integration.runner.hosting_scripts import CSV, ECHO, EXAMPLES, POLICY, REFUNDS, catalogue, loaded, runs
from skillwire.host import HostPolicy
from skillwire.host.approval.lock import write_lock
from skillwire.host.model.approval import Grant, Occasion, Reply
from skillwire.host.registry.local import LocalRoot
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict
from skillwire.host.use.question import text_of_question
from skillwire.runner import Ending, Limits, ScriptRule


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        yield shop


# What is asked about each time


@pytest.mark.requirement("EXEC-11")
@pytest.mark.requirement("EXEC-13")
async def test_a_run_with_secrets_or_network_is_asked_about_each_time_whatever_was_granted(
    shop: Shop, tmp_path: Path
) -> None:
    rules = (
        ScriptRule(REFUNDS_URI, "scripts/secret.py", "shop", secrets={"TOKEN": lambda: b"hunter2-hunter2"}),
        ScriptRule(REFUNDS_URI, "scripts/net.py", "shop", network=("api.example",)),
    )
    user = User()
    async with loaded(tmp_path, shop, user, scripts=replace(POLICY, rules=rules)) as host:
        await host.run_script(REFUNDS, "echo.py")
        assert Grant.SCRIPTS in host.approvals[0].grants
        secret = [await host.run_script(REFUNDS, "secret.py") for _ in range(2)]
        net = [await host.run_script(REFUNDS, "net.py") for _ in range(2)]
        user.will(Reply.DENY)
        denied = await refused(host.run_script(REFUNDS, "secret.py"))
        user.will(Reply.ONCE)
        plain = await host.run_script(REFUNDS, "other.py")

        assert user.occasions == [Occasion.FIRST] + [Occasion.SCRIPTS] * 6
        assert not any(question.may_be_remembered for question in user.questions[2:])
        words = text_of_question(user.questions[2])
        assert "! Secrets it gets (asked about at each run):\n  | TOKEN" in words
        assert "Requested but not granted:\n  | KEY" in words
        assert "hunter2" not in words
        assert secret[0].outcome is not None and "['TOKEN']" in secret[0].outcome.stdout
        assert "hunter2" not in secret[0].text and "it could reach api.example" in net[0].text
        assert net[0].outcome is not None and net[0].outcome.stdout == "proxy\n"
        assert denied.refusal == "approval-denied" and not plain.is_error
        lines = runs(tmp_path)
        assert [line["approval"] for line in lines] == [
            "granted now",
            *["for this run"] * 4,
            "granted before",
        ]
        assert lines[1]["secrets"] == ["TOKEN"] and lines[3]["network"] == ["api.example"]
        assert "hunter2" not in json.dumps(audit(tmp_path))


@pytest.mark.requirement("SEC-06")
@pytest.mark.requirement("SEC-09")
async def test_one_skills_grant_never_speaks_for_another_that_is_loaded(shop: Shop, tmp_path: Path) -> None:
    user = User()
    async with Shop().running() as mall:
        await mall.publish(catalogue(number=3))
        servers = [shop.config, replace(mall.config, label="mall")]
        async with hosting(tmp_path, servers, user=user, scripts=POLICY) as host:
            await host.refresh()
            await host.load(REFUNDS)
            await host.run_script(REFUNDS, "echo.py")
            await host.load("mall/refunds")
            own = ToolCall(
                "run_skill_script",
                ToolKind.EXECUTE,
                skill=REFUNDS,
                script="scripts/echo.py",
                script_digest=digest(ECHO),
            )
            decision = host.gate(own)
            beside = await host.run_script(REFUNDS, "echo.py")
            user.will(Reply.DENY)
            denied = await refused(host.run_script(REFUNDS, "echo.py"))
            other = await refused(host.run_script("mall/refunds", "echo.py"))
            host.close("mall/refunds")
            alone = await host.run_script(REFUNDS, "echo.py")

        assert (decision.verdict, decision.skills) == (Verdict.ASK, ("mall/refunds",))
        assert [error.refusal for error in (denied, other)] == ["approval-denied"] * 2
        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.FIRST] + [Occasion.SCRIPTS] * 3
        assert "! The model may also be acting on: mall/refunds" in text_of_question(user.questions[3])
        assert "! The model may also be acting on: shop/refunds" in text_of_question(user.questions[5])
        assert not beside.is_error and not alone.is_error
        assert [line["approval"] for line in runs(tmp_path)] == [
            "granted now",
            "for this run",
            "granted before",
        ]


@pytest.mark.requirement("APPR-04")
async def test_a_script_without_a_digest_is_asked_about_each_time_and_runs_as_it_was_shown(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program = tmp_path / "live.py"
    program.write_text(DYNAMIC_SERVER, "utf-8")
    server = replace(over_stdio(tmp_path, env, "ops"))
    server = replace(server, endpoint=replace(server.endpoint, args=(str(program),)))  # type: ignore[arg-type]
    user = User()
    async with hosting(
        tmp_path, [server], user=user, policy=HostPolicy(dynamic="ask"), scripts=POLICY
    ) as host:
        await host.refresh()
        await host.load("ops/status")
        first = await host.run_script("ops/status", "scripts/say.py")
        host.close("ops/status")
        await host.load("ops/status")
        second = await host.run_script("ops/status", "say.py")
        missing = await refused(host.run_script("ops/status", "gone.py"))

        assert user.occasions == [Occasion.DYNAMIC, Occasion.SCRIPTS] * 2
        assert not user.questions[1].may_be_remembered and user.questions[1].script_digest == ""
        for ran, question in ((first, user.questions[1]), (second, user.questions[3])):
            assert ran.outcome is not None
            assert question.script_content == f"print({ran.outcome.stdout.strip()})\n".encode()
            assert ran.digest == digest(question.script_content)
        assert first.digest != second.digest
        assert missing.refusal == "script-not-found"
        assert [line["approval"] for line in runs(tmp_path)] == ["for this run"] * 2


@pytest.mark.requirement("IDX-10")
async def test_files_without_digests_are_allowed_once_and_each_run_of_them_is_asked_about(
    tmp_path: Path,
) -> None:
    options = {"policy": HostPolicy(dynamic="ask"), "scripts": POLICY}
    async with visiting("packed", tmp_path, form="plain", options=options) as visit:
        await visit.host.load(REFUNDS)
        ran = [await visit.host.run_script(REFUNDS, "check.sh") for _ in range(2)]

        assert visit.user.occasions == [
            Occasion.FIRST,
            Occasion.UNVERIFIED,
            Occasion.SCRIPTS,
            Occasion.SCRIPTS,
        ]
        assert all(one.outcome is not None and one.outcome.stdout == "checked\n" for one in ran)
        assert "none is listed" in text_of_question(visit.user.questions[-1])


@pytest.mark.requirement("ARC-18")
async def test_a_script_out_of_an_archive_is_granted_with_the_archive(tmp_path: Path) -> None:
    options = {"policy": HostPolicy(archives=ArchivePolicy()), "scripts": POLICY}
    async with visiting("packed", tmp_path, options=options) as visit:
        preview = await visit.host.preview_script(REFUNDS, "check.sh")
        await visit.host.load(REFUNDS)
        ran = [await visit.host.run_script(REFUNDS, "check.sh") for _ in range(2)]

        assert visit.user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]
        assert visit.user.questions[-1].script_digest == preview.digest == ran[0].digest
        assert all(one.outcome is not None and one.outcome.stdout == "checked\n" for one in ran)


DYNAMIC_SERVER = """
from itertools import count
from mcp.server.mcpserver import MCPServer
from skillwire.server import add_skills
from skillwire.sources import DynamicSkill
numbers = count(1)
server = MCPServer("live")
add_skills(
    server,
    DynamicSkill("status", description="Use when asked.", body=lambda: "Status.\\n", path="ops/status")
    .with_file("scripts/say.py", lambda: f"print({next(numbers)})\\n"),
)
server.run("stdio")
"""


# Locks, sub-agents, limits, cancelling


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_lets_run_what_it_grants_and_nothing_else(shop: Shop, tmp_path: Path) -> None:
    lock = tmp_path / "skills.lock"
    rule = ScriptRule(REFUNDS_URI, "scripts/secret.py", "shop", secrets={"TOKEN": lambda: b"hidden"})
    outcomes: list[list[str]] = []
    for grants in ((Grant.LOAD,), (Grant.LOAD, Grant.SCRIPTS)):
        elsewhere = tmp_path / f"elsewhere-{len(grants)}"
        async with hosting(elsewhere, [shop.config], user=User(), lock=lock) as host:
            if lock.exists():
                await host.trust_lock(lock.read_bytes())
            await host.refresh()
            await host.approve(await host.find(REFUNDS), grants)
            await host.write_lock()
        user = User()
        folder = tmp_path / f"ci-{len(grants)}"
        policy = replace(POLICY, rules=(rule,))
        async with loaded(
            folder, shop, user, lock=lock, policy=HostPolicy(frozen=True), scripts=policy
        ) as host:
            found: list[str] = []
            for script in ("echo.py", "secret.py"):
                try:
                    found.append((await host.run_script(REFUNDS, script)).verdict)
                except Exception as error:
                    found.append(getattr(error, "refusal", repr(error)))
            outcomes.append([*found, str(len(runs(folder)))])
        assert user.questions == []

    assert outcomes == [
        ["not-in-lock", "approval-required", "0"],
        ["exit status 0", "approval-required", "1"],
    ]


async def test_a_frozen_lock_lets_no_local_script_run(tmp_path: Path) -> None:
    roots = [LocalRoot(EXAMPLES, "user")]
    lock = tmp_path / "skills.lock"
    write_lock(lock, [])
    async with hosting(
        tmp_path, [], user=User(), roots=roots, lock=lock, policy=HostPolicy(frozen=True), scripts=POLICY
    ) as host:
        error = await refused(host.run_script("csv-insights", "profile.py", CSV, actor="user"))

        assert error.refusal == "not-in-lock"
        assert runs(tmp_path) == []


async def test_a_sub_agent_runs_what_is_loaded_for_it_on_the_same_terms(shop: Shop, tmp_path: Path) -> None:
    user = User()
    async with hosting(tmp_path, [shop.config], user=user, scripts=POLICY) as host:
        await host.refresh()
        before = host.child()
        await host.load(REFUNDS)
        child = host.child()
        ran = await child.run_script(REFUNDS, "echo.py", {"a": 1})
        not_loaded = await refused(before.run_script(REFUNDS, "echo.py"))
        again = await host.run_script(REFUNDS, "echo.py", {"a": 2})

        assert "run_skill_script" in [tool.name for tool in child.tools()]
        assert ran.outcome is not None and ran.outcome.stdout == 'got {"a": 1}\n'
        assert not again.is_error
        assert not_loaded.refusal == "not-loaded"
        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]


@pytest.mark.requirement("EXEC-16")
async def test_a_script_that_is_stopped_at_a_limit_is_a_result_that_says_so(
    shop: Shop, tmp_path: Path
) -> None:
    policy = replace(POLICY, most=Limits(wall_seconds=1))
    async with loaded(tmp_path, shop, User(), scripts=policy) as host:
        ran = await host.run_script(REFUNDS, "slow.py")

        assert ran.is_error and ran.outcome is not None
        assert (ran.outcome.ending, ran.outcome.stdout) == (Ending.LIMIT, "begun\n")
        assert ran.outcome.limit is not None and ran.outcome.limit.name == "wall_seconds"
        assert "Ended: stopped at a limit: time: 1 s allowed" in ran.text
        assert runs(tmp_path)[0]["outcome"] == "limit"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc to look for processes in")
async def test_a_caller_who_gives_up_ends_the_script_with_everything_it_started(
    shop: Shop, tmp_path: Path
) -> None:
    async with loaded(tmp_path, shop, User()) as host:
        async with anyio.create_task_group() as group:
            group.start_soon(host.run_script, REFUNDS, "slow.py")
            await _until_something_sleeps()
            group.cancel_scope.cancel()
        left = _sleepers()
        after = await host.run_script(REFUNDS, "echo.py")

        assert left == []
        assert not after.is_error
        assert len(runs(tmp_path)) == 2


def _sleepers() -> list[str]:
    """Return the processes of this machine that the slow script started."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", b"54.321"]:
            found.append(folder.name)
    return found


async def _until_something_sleeps() -> None:
    with anyio.fail_after(30):
        while not _sleepers():  # noqa: ASYNC110 - it is another process
            await anyio.sleep(0.02)
