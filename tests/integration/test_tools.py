"""The tools of the model, in front of a real server, and the guard before an agent's own tools."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from folders import skill_md
from hostile.hosting import User, hosting
from integration import hosting_dynamic
from integration.hosting_serve import BILLING, DESK, over_stdio, written
from programs import script_command, words_of
from serving import environment
from skillwire.host import (
    Conversation,
    Guard,
    Host,
    HostLimits,
    HostPolicy,
    LocalRoot,
    Reply,
    ShowRule,
    SkillSettings,
    Tool,
    ToolCall,
    ToolKind,
    ToolResult,
    Trust,
)
from skillwire.host.model.endpoints import ServerConfig, StdioEndpoint
from skillwire.host.use.present import PagedText


@asynccontextmanager
async def desk(
    folder: Path, *, user: User | None = None, files: Any = BILLING, **options: Any
) -> AsyncGenerator[tuple[Host, dict[str, Tool]]]:
    """Open a host in front of one server, with the tools its model gets."""
    skills = written(folder / "served", files)
    command, *args = words_of(skills)
    program = StdioEndpoint(command, tuple(args), environment(folder))
    server = ServerConfig("billing", program, seconds=30)
    async with hosting(folder, [server], user=user, **options) as host:
        await host.refresh()
        yield host, {tool.name: tool for tool in host.tools(with_resources=True)}


def data(result: ToolResult) -> dict[str, Any]:
    return json.loads(result.text)["refused"]


@pytest.mark.requirement("HOST-06")
async def test_a_model_finds_loads_and_reads_a_skill_with_nothing_but_its_tools(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (_, tools):
        found = await tools["search_skills"]({"query": "refunds"})
        loaded = await tools["load_skill"]({"skill": "billing/refunds"})
        files = await tools["list_skill_files"]({"skill": "billing/refunds"})
        policy = await tools["read_skill_file"]({"skill": "billing/refunds", "path": "references/policy.md"})

    assert "- billing/refunds: " in found.text
    assert "Origin: MCP server billing" in loaded.text
    assert files.text.splitlines() == [
        "Files of billing/refunds: 3",
        "- assets/logo.png (14 bytes)",
        "- references/policy.md (23 bytes)",
        "- scripts/check.sh (23 bytes)",
    ]
    assert "Refund within 30 days." in policy.text
    assert not any(result.is_error for result in (found, loaded, files, policy))


LONG_CALLS: list[tuple[str, dict[str, object]]] = [
    ("load_skill", {"skill": "billing/long"}),
    ("read_skill_file", {"skill": "billing/long", "path": "references/long.md"}),
    ("read_resource", {"server": "billing", "uri": "skill://long/references/other.md"}),
    ("read_resource", {"server": "billing", "uri": "skill://unloaded/long.md"}),
]


async def test_the_pages_of_a_long_text_are_built_once_for_all_reads_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "A line of a long text.\n" * 10_000
    files = {
        "long/SKILL.md": skill_md("long", body=lines),
        "long/references/long.md": lines,
        "long/references/other.md": lines,
        "unloaded/SKILL.md": skill_md("unloaded"),
        "unloaded/long.md": lines,
    }
    built: list[int] = []
    original = PagedText.of

    def counting(text: str, length: int) -> PagedText:
        built.append(len(text))
        return original(text, length)

    monkeypatch.setattr(PagedText, "of", counting)
    async with desk(tmp_path, user=User(), files=files) as (_, tools):
        for number, (tool, arguments) in enumerate(LONG_CALLS, start=1):
            results = [await tools[tool]({**arguments, "page": page}) for page in (1, 2, 3, 2)]

            assert not any(result.is_error for result in results), results
            assert len({result.text for result in results}) >= 3
            assert len(built) == number, tool


@pytest.mark.requirement("ASK-19", "HOST-06")
async def test_one_tool_loads_local_skills_and_those_of_servers(tmp_path: Path) -> None:
    local = "---\nname: refunds\ndescription: Use when money goes back.\n---\nAsk for the receipt.\n"
    written(tmp_path / "local", {"refunds/SKILL.md": local.encode(), "refunds/steps.md": b"One, two.\n"})
    roots = [LocalRoot(tmp_path / "local", "user")]
    results: dict[str, list[ToolResult]] = {}
    async with desk(tmp_path, user=User(), roots=roots) as (host, tools):
        for reference, path in (("refunds", "steps.md"), ("billing/refunds", "references/policy.md")):
            results[reference] = [
                await tools["load_skill"]({"skill": reference}),
                await tools["read_skill_file"]({"skill": reference, "path": path}),
            ]
        loaded = [window.skill.reference for window in host.loaded]

    assert loaded == ["refunds", "billing/refunds"]
    assert not any(result.is_error for found in results.values() for result in found)
    mine, theirs = results["refunds"], results["billing/refunds"]
    assert "Origin: local folder user" in mine[0].text and "Ask for the receipt." in mine[0].text
    assert "Origin: MCP server billing" in theirs[0].text and "Ask for the receipt." not in theirs[0].text
    assert "One, two." in mine[1].text and "Refund within 30 days." in theirs[1].text


WRONG_CALLS: list[tuple[str, dict[str, object], str]] = [
    ("load_skill", {"skill": "billing/nothing"}, "unknown-reference"),
    ("load_skill", {"skill": "billing/report"}, "ambiguous-reference"),
    ("load_skill", {}, "invalid-arguments"),
    ("load_skill", {"skill": None}, "invalid-arguments"),
    ("load_skill", {"skill": 7}, "invalid-arguments"),
    ("load_skill", {"skill": "x" * 20_000}, "invalid-arguments"),
    ("load_skill", {"name": "billing/refunds"}, "invalid-arguments"),
    ("load_skill", {"skill": "billing/refunds", "page": "soon"}, "invalid-arguments"),
    ("load_skill", {"skill": "billing/refunds", "page": True}, "invalid-arguments"),
    ("load_skill", {"skill": "billing/refunds", "page": 99}, "no-such-page"),
    ("read_skill_file", {"skill": "billing/stock", "path": "references/policy.md"}, "not-loaded"),
    ("list_skill_files", {"skill": "billing/stock"}, "not-loaded"),
    ("search_skills", {"query": "refunds", "cursor": "made up"}, "invalid-cursor"),
    ("read_resource", {"server": "nobody", "uri": "skill://x"}, "unknown-reference"),
]


async def test_a_wrong_call_is_answered_with_a_refusal_a_model_can_act_on(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (_, tools):
        results = [await tools[tool](arguments) for tool, arguments, _ in WRONG_CALLS]

    refusals = [data(result) for result in results]
    assert [refusal["code"] for refusal in refusals] == [code for _, _, code in WRONG_CALLS]
    assert all(refusal["remedy"] and refusal["sentence"] for refusal in refusals)


async def test_a_page_may_be_written_as_models_write_numbers(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User(), limits=HostLimits(page_length=1000)) as (_, tools):
        results = [
            await tools["load_skill"]({"skill": "billing/stock", "page": page}) for page in (2, "2", 2.0)
        ]

    assert all("Page: 2 of" in result.text for result in results)


async def test_a_no_of_the_user_reaches_the_model_as_a_refusal_and_is_not_asked_again(tmp_path: Path) -> None:
    user = User(Reply.DENY)

    async with desk(tmp_path, user=user) as (_, tools):
        results = [await tools["load_skill"]({"skill": "billing/refunds"}) for _ in range(2)]

    assert [data(result)["code"] for result in results] == ["approval-denied", "approval-denied"]
    assert len(user.questions) == 1


@pytest.mark.requirement("HOST-09")
async def test_a_resource_is_read_as_ordinary_content_and_loads_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (host, tools):
        result = await tools["read_resource"](
            {"server": "billing", "uri": "skill://refunds/references/policy.md"}
        )

        assert "ordinary content of that server" in result.text
        assert host.loaded == ()


@pytest.mark.requirement("HOST-09")
async def test_the_tool_for_resources_is_there_only_when_it_is_wanted(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (host, tools):
        names = [tool.name for tool in host.tools()]

    assert names == ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    assert [*tools] == [*names, "read_resource"]


@pytest.mark.requirement("HOST-04")
async def test_a_host_without_skills_and_servers_has_neither_tools_nor_a_listing(tmp_path: Path) -> None:
    async with hosting(tmp_path, [], user=User()) as host:
        assert (host.tools(), host.listing()) == ((), "")


@pytest.mark.requirement("DIR-15")
async def test_files_of_a_dynamic_skill_are_asked_for_folder_by_folder(tmp_path: Path) -> None:
    program, *words = script_command(Path(hosting_dynamic.__file__))
    server = ServerConfig("ops", StdioEndpoint(program, tuple(words), environment(tmp_path)), seconds=30)
    async with hosting(tmp_path, [server], user=User(), policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        tools = {tool.name: tool for tool in host.tools()}
        await tools["load_skill"]({"skill": "ops/status"})
        top = await tools["list_skill_files"]({"skill": "ops/status"})
        logs = await tools["list_skill_files"]({"skill": "ops/status", "path": "logs"})

    assert top.text.splitlines() == ["Files of ops/status: 2", "- SKILL.md", "- logs"]
    assert logs.text.splitlines() == ["Files of ops/status: 1", "- logs/today.md"]


@pytest.mark.requirement("HOST-05")
async def test_what_is_off_or_manual_is_out_of_the_models_sight_and_reach(tmp_path: Path) -> None:
    show = {"billing/refunds": ShowRule.OFF, "billing/stock": ShowRule.MANUAL}

    async with desk(tmp_path, user=User(), policy=HostPolicy(show=show)) as (host, tools):
        found = await tools["search_skills"]({"query": ""})
        off = await tools["load_skill"]({"skill": "billing/refunds"})
        manual = await tools["load_skill"]({"skill": "billing/stock"})
        by_a_person = await host.load("billing/stock", actor="user")
        everything = await host.search("", everything=True)
        why = await host.explain("billing/refunds")
        listing = host.listing()

    shown = found.text + listing
    assert "billing/refunds" not in shown and "billing/stock" not in shown and "billing/outer" in shown
    assert [data(off)["code"], data(manual)["code"]] == ["turned-off", "manual-only"]
    assert by_a_person.reference == "billing/stock"
    assert {"billing/refunds", "billing/stock"} <= {match.skill.reference for match in everything.matches}
    assert "turned-off" in [step.refusal.code for step in why.steps if step.refusal]


async def test_a_server_that_is_turned_off_is_not_even_started_and_why_says_so(tmp_path: Path) -> None:
    server = ServerConfig("quiet", StdioEndpoint("/does/not/exist"), skills=SkillSettings(is_on=False))

    async with hosting(tmp_path, [server], user=User()) as host:
        why = await host.explain("quiet/refunds")

        assert host.view.servers == ()
    assert [step.refusal.code for step in why.steps if step.refusal] == ["turned-off"]


async def test_nobody_is_asked_about_a_server_of_which_only_the_approved_counts(tmp_path: Path) -> None:
    skills = written(tmp_path / "served", BILLING)
    endpoint = over_stdio(skills, environment(tmp_path), "billing").endpoint
    server = ServerConfig("billing", endpoint, seconds=30, skills=SkillSettings(trust=Trust.APPROVED))
    user = User()

    async with hosting(tmp_path, [server], user=user) as host:
        await host.refresh()
        [load, *_] = host.tools()
        before = await load({"skill": "billing/refunds"})
        await host.approve(await host.find("billing/refunds"))
        after = await load({"skill": "billing/refunds"})

    assert (data(before)["code"], after.is_error, user.questions) == ("approval-required", False, [])


@pytest.mark.requirement("HOST-21")
async def test_a_sub_agent_has_tools_of_its_own_over_what_its_parent_loaded(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (host, tools):
        await tools["load_skill"]({"skill": "billing/refunds"})
        child = host.child()
        own = {tool.name: tool for tool in child.tools()}
        inherited = await own["list_skill_files"]({"skill": "billing/refunds"})
        policy = await own["read_skill_file"]({"skill": "billing/refunds", "path": "references/policy.md"})
        await own["load_skill"]({"skill": "billing/stock"})

        assert not inherited.is_error and "matches the server's listing" in policy.text
        assert [window.skill.reference for window in host.loaded] == ["billing/refunds"]


# The guard before an agent's own tools.


async def test_the_guard_lets_calls_run_until_a_servers_skill_is_loaded(tmp_path: Path) -> None:
    user = User(Reply.ALWAYS, Reply.DENY, Reply.ONCE)

    async with desk(tmp_path, user=user) as (host, _):
        guard = Guard(host, {"write_note": ToolKind.WRITE, "look": ToolKind.READ})
        before = await guard.refusal("write_note", {})
        await host.load("billing/refunds")
        denied = await guard.refusal("write_note", {})
        allowed = await guard.refusal("write_note", {})
        reading = await guard.refusal("look", {})

    assert (before, allowed, reading) == (None, None, None)
    assert denied is not None and data(denied)["code"] == "writing"
    assert "go on without this call" in data(denied)["remedy"]


@pytest.mark.requirement("SEC-06")
async def test_a_tool_nobody_declared_counts_as_running_code(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User(Reply.ALWAYS, Reply.DENY)) as (host, _):
        await host.load("billing/refunds")
        refused = await Guard(host).refusal("surprise", {"x": 1})

    assert refused is not None and data(refused)["code"] == "execution"


async def test_a_guard_that_is_told_the_path_keeps_tools_out_of_the_hosts_own_places(tmp_path: Path) -> None:
    def describe(name: str, arguments: Any) -> ToolCall:
        return ToolCall(name, ToolKind.WRITE, path=str(arguments["path"]))

    async with desk(tmp_path, user=User()) as (host, _):
        guard = Guard(host, describe=describe)
        refused = await guard.refusal("write_note", {"path": tmp_path / "state" / "approvals"})
        allowed = await guard.refusal("write_note", {"path": tmp_path / "elsewhere"})

    assert refused is not None and data(refused)["code"] == "protected-place"
    assert allowed is None


async def test_a_model_is_told_once_which_skill_explains_a_tool_it_is_about_to_call(tmp_path: Path) -> None:
    text = b"---\nname: shipping\ndescription: How to use create_label. Use before shipping.\n---\nShip it.\n"
    files = {"shipping/SKILL.md": text}

    async with desk(tmp_path, user=User(), files=files) as (host, _):
        guard = Guard(host, servers={"create_label": "billing", "other": "billing"})
        hints = [guard.nudge(name) for name in ("other", "create_label", "create_label", "unknown")]

    assert "billing/shipping" in hints[1]
    assert [bool(hint) for hint in hints] == [False, True, False, False]


# What the model is told of the skills there are.


@pytest.mark.requirement("HOST-03")
async def test_the_listing_stays_the_same_for_a_conversation_and_changes_are_appended(tmp_path: Path) -> None:
    async with desk(tmp_path, user=User()) as (host, _):
        first = host.listing(budget_tokens=2000)
        written(tmp_path / "served", {"letters/SKILL.md": DESK["letters/SKILL.md"]})
        await _listed(host, "billing/letters")
        second, changes, again = (
            host.listing(budget_tokens=2000),
            await host.listing_changes(),
            await host.listing_changes(),
        )
        fresh = host.child().listing(budget_tokens=2000)

    assert "billing/refunds" in first and "billing/letters" not in first
    assert second == first
    assert "billing/letters" in changes and again == ""
    assert "billing/letters" in fresh


async def _listed(host: Conversation, reference: str) -> None:
    assert isinstance(host, Host)
    with anyio.fail_after(30):
        while reference not in [skill.reference for skill in host.view.skills]:
            await host.refresh(force=True)
            await anyio.sleep(0.05)
