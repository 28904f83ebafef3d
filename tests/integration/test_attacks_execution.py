"""Skills that want something to run. The numbers are those of the threat model."""

from pathlib import Path

import pytest

from hostile.catalog import SCRIPT, digest
from hostile.hosting import REFUNDS, REPORTS, User, config, hosting, refused, storage_in, visiting
from hostile.running import WIRES, hostile
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

BASH = ToolCall("Bash", ToolKind.EXECUTE)
WRITE = ToolCall("Write", ToolKind.WRITE, path="/workspace/notes.txt")
FETCH = ToolCall("Fetch", ToolKind.NETWORK)
LOOK = ToolCall("Read", ToolKind.READ, path="/workspace/notes.txt")
UNKNOWN = ToolCall("mystery")


@everywhere
@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-06")
@pytest.mark.requirement("SEC-10")
async def test_whatever_a_skill_asks_for_running_writing_and_sending_need_the_users_yes(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attacks 43 and 46."""
    async with visiting("asks_for_tools", tmp_path, transport=transport, era=era) as visit:
        before = [visit.host.gate(call).verdict for call in (BASH, WRITE, FETCH, LOOK, UNKNOWN)]
        await visit.host.load(REFUNDS)
        during = [visit.host.gate(call) for call in (BASH, WRITE, FETCH, LOOK, UNKNOWN)]

        assert before == [Verdict.ALLOW] * 5
        assert [(decision.verdict, decision.code) for decision in during] == [
            (Verdict.ASK, "execution"),
            (Verdict.ASK, "writing"),
            (Verdict.ASK, "network"),
            (Verdict.ALLOW, ""),
            (Verdict.ASK, "execution"),
        ]
        assert all(decision.skills == (REFUNDS,) for decision in during if decision.code)
        assert visit.user.occasions == [Occasion.FIRST]


@pytest.mark.requirement("SEC-10")
@pytest.mark.requirement("APPR-05")
async def test_tools_a_skill_names_are_granted_apart_from_loading_and_only_by_plain_names(
    tmp_path: Path,
) -> None:
    """Attack 43."""
    async with visiting("asks_for_tools", tmp_path, era="legacy") as visit:
        await visit.host.load(REFUNDS)
        tools = await visit.host.request_allowed_tools(REFUNDS)
        verdicts = [visit.host.gate(call).verdict for call in (WRITE, BASH)]

        assert tools == ("Write",)
        assert visit.user.occasions == [Occasion.FIRST, Occasion.ALLOWED_TOOLS]
        assert verdicts == [Verdict.ALLOW, Verdict.ASK]


@everywhere
@pytest.mark.requirement("SEC-05")
@pytest.mark.requirement("SEC-16")
async def test_hooks_commands_mentions_and_placeholders_stay_words(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 44."""
    ran, secret = tmp_path / "ran", tmp_path / "secret.txt"
    secret.write_text("the-secret", "utf-8")
    body = f"!`touch {ran}`\n\n@{secret}\n\n$ARGUMENTS $1 ${{SKILL_DIR}}\n"
    fields = {"hooks": {"PreToolUse": f"touch {ran}"}, "metadata": {"setup": f"touch {ran}"}}
    async with visiting("says", tmp_path, transport=transport, era=era, body=body, fields=fields) as visit:
        loaded = await visit.host.load(REFUNDS)

        assert body.strip() in loaded.text
        assert "the-secret" not in loaded.text
        assert not ran.exists()


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-07")
@pytest.mark.requirement("APPR-05")
async def test_a_script_is_run_only_after_a_question_that_shows_it_and_only_with_those_bytes(
    tmp_path: Path,
) -> None:
    """Attack 45."""
    async with visiting("asks_for_tools", tmp_path, transport="http", era="modern") as visit:
        await visit.host.load(REFUNDS)
        call = ToolCall(
            "run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/setup.sh", script_digest=digest(SCRIPT)
        )
        swapped = ToolCall(
            "run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/setup.sh", script_digest=digest(b"other")
        )
        unlisted = ToolCall(
            "run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/more.sh", script_digest=digest(SCRIPT)
        )
        before = visit.host.gate(call).verdict
        content = await visit.host.request_scripts(REFUNDS, "scripts/setup.sh")

        question = visit.user.questions[-1]
        assert before is Verdict.ASK
        assert question.occasion is Occasion.SCRIPTS
        assert (question.script, question.script_digest) == ("scripts/setup.sh", digest(SCRIPT))
        assert question.script_content == content == SCRIPT
        assert [visit.host.gate(each).verdict for each in (call, swapped, unlisted, BASH)] == [
            Verdict.ALLOW,
            Verdict.ASK,
            Verdict.ASK,
            Verdict.ASK,
        ]


@pytest.mark.requirement("SEC-04")
async def test_a_no_to_scripts_leaves_the_skill_loaded_and_its_scripts_unrun(tmp_path: Path) -> None:
    """Attack 45."""
    async with visiting("asks_for_tools", tmp_path, user=User(Reply.ALWAYS, Reply.DENY)) as visit:
        await visit.host.load(REFUNDS)
        error = await refused(visit.host.request_scripts(REFUNDS, "scripts/setup.sh"))
        decision = await visit.host.authorise(BASH)

        assert error.refusal == "approval-denied"
        assert decision.verdict is Verdict.DENY
        assert [window.skill.reference for window in visit.host.loaded] == [REFUNDS]


@pytest.mark.requirement("SEC-06")
async def test_a_yes_to_one_command_is_a_yes_to_no_other(tmp_path: Path) -> None:
    """Attack 46."""
    async with visiting("asks_for_tools", tmp_path, era="modern") as visit:
        await visit.host.load(REFUNDS)
        first = await visit.host.authorise(BASH)
        again = visit.host.gate(BASH)
        visit.user.will(Reply.DENY)
        second = await visit.host.authorise(BASH)

        assert (first.verdict, again.verdict, second.verdict) == (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)
        assert visit.user.occasions == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]


@pytest.mark.requirement("APPR-10")
@pytest.mark.requirement("SEC-06")
async def test_where_nobody_can_be_asked_nothing_runs_while_a_skill_is_loaded(tmp_path: Path) -> None:
    """Attack 27."""
    async with hostile("asks_for_tools", transport="http") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.refresh()
            await host.load(REFUNDS)
        async with hosting(tmp_path, [config(peer)], user=None) as host:
            await host.refresh()
            await host.load(REFUNDS)
            decision = await host.authorise(BASH)
            scripts = await refused(host.request_scripts(REFUNDS, "scripts/setup.sh"))

    assert (decision.verdict, decision.code) == (Verdict.DENY, "execution")
    assert scripts.refusal == "approval-required"


@pytest.mark.requirement("INT-06")
@pytest.mark.requirement("HOST-15")
async def test_the_gate_stays_closed_after_the_context_was_summarised(tmp_path: Path) -> None:
    """Attack 47."""
    async with visiting("asks_for_tools", tmp_path, era="legacy") as visit:
        await visit.host.load(REFUNDS)
        visit.host.on_compaction()
        summarised = visit.host.gate(BASH).verdict
        visit.host.on_compaction(removed=[REFUNDS])
        gone = visit.host.gate(BASH).verdict

        assert (summarised, gone) == (Verdict.ASK, Verdict.ALLOW)


@pytest.mark.requirement("INT-06")
@pytest.mark.requirement("SEC-06")
async def test_a_sub_agent_is_under_the_same_gate_and_brings_its_own_skills_back(tmp_path: Path) -> None:
    """Attack 48."""
    async with visiting("asks_for_tools", tmp_path, transport="http", era="modern") as visit:
        before = visit.host.child()
        await before.load(REPORTS)
        at_home = visit.host.gate(BASH).verdict
        visit.host.adopt(before)
        adopted = visit.host.gate(BASH)
        await visit.host.load(REFUNDS)
        after = visit.host.child()

        assert at_home is Verdict.ALLOW
        assert (adopted.verdict, adopted.skills) == (Verdict.ASK, (REPORTS,))
        assert after.gate(BASH).skills == (REFUNDS, REPORTS)


@pytest.mark.requirement("CACHE-02")
@pytest.mark.requirement("APPR-01")
async def test_no_tool_may_write_where_the_host_keeps_what_it_remembers(tmp_path: Path) -> None:
    """Attacks 25 and 49."""
    kept = storage_in(tmp_path)
    async with visiting("honest", tmp_path) as visit:
        (tmp_path / "link").symlink_to(kept.state)
        targets = (
            kept.state / "approvals.json",
            kept.cache / "aa" / "file",
            tmp_path / "link" / "approvals.json",
            tmp_path / "elsewhere" / ".." / "state" / "x",
        )
        decisions = [
            visit.host.gate(ToolCall("Write", kind, path=str(path)))
            for path in targets
            for kind in (ToolKind.WRITE, ToolKind.EXECUTE, None)
        ]
        harmless = visit.host.gate(ToolCall("Write", ToolKind.WRITE, path=str(tmp_path / "notes.txt")))

        assert {(decision.verdict, decision.code) for decision in decisions} == {
            (Verdict.DENY, "protected-place")
        }
        assert harmless.verdict is Verdict.ALLOW


@pytest.mark.requirement("NEST-02")
@pytest.mark.requirement("SEC-10")
async def test_tools_named_in_a_skill_inside_a_skill_mean_nothing(tmp_path: Path) -> None:
    """Attack 51."""
    async with visiting("nested", tmp_path, era="modern") as visit:
        await visit.host.load(REFUNDS)
        await visit.host.read_skill_file(REFUNDS, "inner/SKILL.md")
        tools = await visit.host.request_allowed_tools(REFUNDS)

        assert tools == ()
        assert visit.host.gate(BASH).verdict is Verdict.ASK
        assert visit.user.occasions == [Occasion.FIRST]
