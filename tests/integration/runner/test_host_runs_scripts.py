"""A host runs scripts of loaded skills: real servers and folders, a user who answers, the real sandbox."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from folders import skill_md, write_files
from hostile.hosting import User, hosting, refused, storage_in, visiting
from integration.hosting_serve import at, audit, over_stdio, serving
from integration.hosting_shop import REFUNDS as REFUNDS_URI
from integration.hosting_shop import Shop, digest
from integration.runner.hosting_scripts import (
    CSV,
    ECHO,
    EXAMPLES,
    OTHER,
    POLICY,
    PROFILE,
    REFUNDS,
    SECRET,
    SLOW,
    call,
    catalogue,
    loaded,
    runs,
)
from skillwire.core.errors import SandboxUnavailableError
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Question, Reply
from skillwire.host.registry.local import LocalRoot
from skillwire.host.use.question import text_of_question
from skillwire.runner import ScriptRule


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        yield shop


# From end to end


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("EXEC-13")
@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_an_approved_script_of_a_server_runs_in_a_sandbox_with_exactly_the_bytes_that_were_shown(
    way: str, tmp_path: Path, env: dict[str, str]
) -> None:
    async def use(server: Any) -> None:
        user = User()
        async with hosting(tmp_path, [server], user=user, scripts=POLICY) as host:
            await host.refresh()
            await host.load("team/csv-insights")
            ran = await host.run_script("team/csv-insights", "profile.py", CSV)
            again = await host.run_script("team/csv-insights", "scripts/profile.py", CSV)

        question = user.questions[-1]
        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]
        assert (question.script_content, question.script_digest) == (PROFILE, digest(PROFILE))
        assert (ran.where, ran.script, ran.digest) == ("sandbox", "scripts/profile.py", digest(PROFILE))
        assert (ran.is_error, ran.verdict, ran.origin.label) == (False, "exit status 0", "team")
        assert ran.outcome is not None and ran.outcome.structured is not None
        assert ran.outcome.structured["rows"] == 2
        assert ran.outcome.limits.wall_seconds == 10
        assert '"Oslo"' in ran.text and "holds no instructions" in ran.text
        assert again.outcome is not None and again.outcome.structured == ran.outcome.structured
        lines = runs(tmp_path)
        assert [(line["origin"], line["script"], line["outcome"]) for line in lines] == [
            ("team", "scripts/profile.py", "exited")
        ] * 2
        assert [line["approval"] for line in lines] == ["granted now", "granted before"]
        assert lines[0]["script_digest"] == digest(PROFILE)
        assert "Oslo" not in json.dumps(audit(tmp_path))

    if way == "stdio":
        return await use(over_stdio(EXAMPLES, env, "team"))
    with serving(EXAMPLES, env) as server:
        await use(at(server, "team"))


@pytest.mark.requirement("SEC-04")
async def test_a_local_skills_script_runs_in_the_sandbox_too_and_after_the_same_question(
    tmp_path: Path,
) -> None:
    user = User(Reply.ONCE)
    roots = [LocalRoot(EXAMPLES, "user")]
    async with hosting(tmp_path, [], user=user, roots=roots, scripts=POLICY) as host:
        not_loaded = await refused(host.run_script("csv-insights", "profile.py", CSV))
        ran = await host.run_script("csv-insights", "profile.py", CSV, actor="user")
        again = await host.run_script("csv-insights", "profile.py", CSV)

        assert not_loaded.refusal == "not-loaded"
        assert user.occasions == [Occasion.SCRIPTS]
        assert "local folder user" in text_of_question(user.questions[0])
        assert not ran.is_error and not again.is_error
        assert ran.origin.label == "user" and "Origin: local folder user" in ran.text
        assert host.scripts_availability is not None and host.scripts_availability.is_available
    async with hosting(tmp_path, [], user=User(Reply.DENY), roots=roots, scripts=POLICY) as later:
        error = await refused(later.run_script("csv-insights", "profile.py", CSV, actor="user"))

        assert error.refusal == "approval-denied"
    assert len(runs(tmp_path)) == 2


@pytest.mark.requirement("HOST-06")
async def test_the_models_tool_runs_a_script_and_gets_the_framed_output(shop: Shop, tmp_path: Path) -> None:
    async with loaded(tmp_path, shop, User()) as host:
        ran = await call(host, skill=REFUNDS, script="scripts/leaves.py")
        echoed = await call(host, skill=REFUNDS, script="echo.py", arguments={"b": [1], "a": "ü\x1b[2J"})
        failed = await call(host, skill=REFUNDS, script="fail")
        wrong = await call(host, skill=REFUNDS, script="echo.py", arguments="text")
        missing = await call(host, skill=REFUNDS, script="nothing.py")

        assert not ran.is_error
        assert "table.csv (8 bytes, text/csv, below)" in ran.text and "a,b\n1,2\n-----" in ran.text
        assert "dot.png (5 bytes, image/png)" in ran.text
        assert '{"a": "\\u00fc\\u001b[2J", "b": [1]}' in echoed.text
        assert "Ended: exit status 3 (an error)" in failed.text
        assert "bad luck" in failed.text and not failed.is_error
        assert wrong.refusal is not None and wrong.refusal.code == "invalid-arguments"
        assert missing.refusal is not None and missing.refusal.code == "script-not-found"
        files = (await host.run_script(REFUNDS, "leaves.py")).files
        assert {file.path: file.content for file in files} == {
            "table.csv": b"a,b\n1,2\n",
            "dot.png": b"\x89PNG\xff",
        }


# What it takes


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("APPR-05")
@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
async def test_to_have_loaded_a_skill_is_not_to_have_agreed_to_its_scripts(
    reply: Reply, shop: Shop, tmp_path: Path
) -> None:
    user = User(reply, Reply.DENY)
    async with loaded(tmp_path, shop, user) as host:
        denied = await refused(host.run_script(REFUNDS, "echo.py"))
        not_asked_again = await refused(host.run_script(REFUNDS, "other.py"))
        count = len(user.questions)
        by_a_person = await refused(host.run_script(REFUNDS, "echo.py", actor="user"))

        assert [denied.refusal, not_asked_again.refusal] == ["approval-denied"] * 2
        assert (count, by_a_person.refusal) == (2, "approval-denied")
        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.SCRIPTS]
        assert [window.skill.reference for window in host.loaded] == [REFUNDS]
        assert runs(tmp_path) == []
    assert [line["code"] for line in audit(tmp_path, "refusal")] == ["approval-denied"] * 3


@pytest.mark.requirement("EXEC-13")
@pytest.mark.requirement("APPR-10")
async def test_where_nobody_can_be_asked_nothing_runs(shop: Shop, tmp_path: Path) -> None:
    async with loaded(tmp_path, shop, User()):
        pass
    async with loaded(tmp_path, shop, None) as host:
        error = await refused(host.run_script(REFUNDS, "echo.py"))

    assert error.refusal == "approval-required"
    assert runs(tmp_path) == []


async def test_a_host_that_was_not_told_to_runs_none_and_offers_no_tool(shop: Shop, tmp_path: Path) -> None:
    user = User()
    async with loaded(tmp_path, shop, user, scripts=None) as host:
        by_model = await refused(host.run_script(REFUNDS, "echo.py"))
        by_user = await refused(host.run_script(REFUNDS, "echo.py", actor="user"))
        previewed = await refused(host.preview_script(REFUNDS, "echo.py"))

        assert [error.refusal for error in (by_model, by_user, previewed)] == ["scripts-off"] * 3
        assert host.scripts_availability is None
        assert "run_skill_script" not in [tool.name for tool in host.tools()]
        assert user.occasions == [Occasion.FIRST]


@pytest.mark.requirement("EXEC-12")
async def test_without_a_sandbox_nobody_is_asked_and_the_refusal_says_what_to_do(
    shop: Shop, tmp_path: Path
) -> None:
    user = User()
    gone = replace(POLICY, bubblewrap=tmp_path / "no-bwrap-here")
    async with loaded(tmp_path, shop, user, scripts=gone) as host:
        error = await refused(host.run_script(REFUNDS, "echo.py"))
        told = await call(host, skill=REFUNDS, script="echo.py")

        assert isinstance(error, SandboxUnavailableError) and error.fix
        assert host.scripts_availability is not None and not host.scripts_availability.is_available
        assert told.refusal is not None
        assert (told.refusal.code, told.refusal.requirement) == ("sandbox-unavailable", "EXEC-12")
        assert told.refusal.remedy == error.fix
        assert user.occasions == [Occasion.FIRST]
        assert runs(tmp_path) == []


async def test_what_cannot_be_run_is_refused_before_anyone_is_asked(shop: Shop, tmp_path: Path) -> None:
    user = User()
    async with loaded(tmp_path, shop, user) as host:
        no_interpreter = await refused(host.run_script(REFUNDS, "odd.xyz"))
        outside = await refused(host.run_script(REFUNDS, "../../etc/passwd"))
        no_script = await refused(host.run_script(REFUNDS, "SKILL.md"))
        too_large = await refused(host.run_script(REFUNDS, "echo.py", {"a": "x" * 2**20}))
        no_json = await refused(host.run_script(REFUNDS, "echo.py", {"a": b"bytes"}))

        assert no_interpreter.refusal == "script-not-run"
        assert [outside.refusal, no_script.refusal] == ["script-not-found"] * 2
        assert [too_large.refusal, no_json.refusal] == ["invalid-script-arguments"] * 2
        assert user.occasions == [Occasion.FIRST]


# What is shown is what runs


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("EXEC-13")
async def test_the_question_shows_code_digest_arguments_limits_and_where_it_runs(
    shop: Shop, tmp_path: Path
) -> None:
    user = User(Reply.ALWAYS, Reply.DENY)
    async with loaded(tmp_path, shop, user) as host:
        arguments = {"to": "dana", "note": "\x1b[2J\nNetwork it gets: all"}
        await refused(host.run_script(REFUNDS, "slow.py", arguments))
        text = text_of_question(user.questions[-1])

    assert 'Its arguments:\n  | {"to": "dana", "note": "\\u001b[2J\\nNetwork it gets: all"}' in text
    assert "Limits it asks for: time 20 s" in text
    assert "Limits it gets: time 20 s" in text
    assert "Network it gets: none" in text and "Secrets it gets: none" in text
    assert "Where: in a sandbox on this machine" in text
    assert f"Its digest: {digest(SLOW)}" in text
    assert "  | subprocess.run(['sleep', '54.321'])" in text
    assert "scripts/other.py" in text and "dana" not in repr(user.questions[-1])


async def test_a_preview_says_what_would_run_and_runs_nothing(shop: Shop, tmp_path: Path) -> None:
    rule = ScriptRule(REFUNDS_URI, "scripts/secret.py", "shop", secrets={"TOKEN": lambda: b"hidden"})
    user = User()
    async with hosting(tmp_path, [shop.config], user=user, scripts=replace(POLICY, rules=(rule,))) as host:
        await host.refresh()
        preview = await host.preview_script(REFUNDS, "secret")
        slow = await host.preview_script(REFUNDS, "slow.py", {})
        wrong = await refused(host.preview_script(REFUNDS, "nothing.py"))

        assert (preview.script, preview.content, preview.digest) == (
            "scripts/secret.py",
            SECRET,
            digest(SECRET),
        )
        assert (preview.where, preview.secrets, preview.network) == ("sandbox", ("TOKEN",), ())
        assert preview.interface.secrets == ("TOKEN", "KEY")
        assert slow.limits.wall_seconds == 20
        assert wrong.refusal == "script-not-found"
        assert host.loaded == () and user.questions == []
        assert runs(tmp_path) == []


@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("SEC-04")
async def test_one_changed_byte_of_a_script_ends_the_grant_and_the_new_code_is_shown(
    shop: Shop, tmp_path: Path
) -> None:
    user = User()
    changed = ECHO.replace(b"got", b"GOT")
    async with loaded(tmp_path, shop, user) as host:
        await host.run_script(REFUNDS, "echo.py")
        await shop.publish(catalogue(echo=changed))
        await host.refresh(force=True)
        stale = await refused(host.run_script(REFUNDS, "echo.py"))
        await host.load(REFUNDS)
        ran = await host.run_script(REFUNDS, "echo.py")

        assert stale.refusal == "skill-changed"
        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.CHANGED, Occasion.SCRIPTS]
        assert user.questions[-1].script_content == changed
        assert ran.outcome is not None and ran.outcome.stdout == "GOT {}\n"
        assert len(runs(tmp_path)) == 2


@pytest.mark.requirement("APPR-02")
async def test_a_change_of_another_file_ends_the_grant_as_well(shop: Shop, tmp_path: Path) -> None:
    user = User()
    async with loaded(tmp_path, shop, user) as host:
        await host.run_script(REFUNDS, "echo.py")
        await shop.publish(catalogue(number=1))
        await host.refresh(force=True)
        await shop.publish(catalogue(number=0))
        await host.refresh(force=True)
        await host.load(REFUNDS)
        user.will(Reply.DENY)
        error = await refused(host.run_script(REFUNDS, "echo.py"))

        assert error.refusal == "approval-denied"
        assert user.occasions[-1] is Occasion.SCRIPTS
        assert len(runs(tmp_path)) == 1


@pytest.mark.requirement("APPR-02")
async def test_a_skill_that_changes_while_the_question_is_on_the_screen_is_not_run(
    shop: Shop, tmp_path: Path
) -> None:
    async with shop_changing_meanwhile(shop, tmp_path) as (host, user):
        error = await refused(host.run_script(REFUNDS, "echo.py"))

        assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]
        assert error.refusal == "skill-changed"
        assert runs(tmp_path) == []


@asynccontextmanager
async def shop_changing_meanwhile(shop: Shop, folder: Path) -> AsyncGenerator[tuple[Host, User]]:
    user = User()

    async def ask(question: Question) -> Reply:
        if question.occasion is Occasion.SCRIPTS:
            await shop.publish(catalogue(number=7))
            await host.refresh(force=True)
        return await user(question)

    async with Host([shop.config], roots=(), storage=storage_in(folder), approve=ask, scripts=POLICY) as host:
        await host.refresh()
        await host.load(REFUNDS)
        yield host, user


@pytest.mark.requirement("INT-02")
async def test_a_script_that_a_server_swaps_is_refused_and_nobody_is_asked_to_run_it(tmp_path: Path) -> None:
    async with visiting("swapped_file", tmp_path, options={"scripts": POLICY}) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(swap=True)
        error = await refused(visit.host.run_script(REFUNDS, "check.sh"))

        assert error.refusal == "digest-mismatch"
        assert visit.user.occasions == [Occasion.FIRST]
        assert runs(tmp_path) == []


async def test_a_local_script_that_changed_since_it_was_agreed_to_is_not_run(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    write_files(root, {"tea/SKILL.md": skill_md("tea"), "tea/scripts/echo.py": ECHO})
    user = User()
    async with hosting(tmp_path, [], user=user, roots=[LocalRoot(root, "user")], scripts=POLICY) as host:
        await host.run_script("tea", "echo.py", actor="user")
        (root / "tea/scripts/echo.py").write_bytes(OTHER)
        stale = await refused(host.run_script("tea", "echo.py"))
        await host.load("tea")
        user.will(Reply.DENY)
        denied = await refused(host.run_script("tea", "echo.py"))

        assert [stale.refusal, denied.refusal] == ["skill-changed", "approval-denied"]
        assert user.questions[-1].script_content == OTHER
        assert len(runs(tmp_path)) == 1
