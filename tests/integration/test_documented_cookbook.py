"""Every recipe in `docs/cookbook`, run as it stands there, and what comes of it."""

import ast
import inspect
import io
import json
import logging
import re
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

import documents
import skillwire
from programs import http_server, skillwire_command, write_program
from serving import HttpServer, environment
from skillwire.host import (
    ApprovalError,
    Ask,
    Host,
    HostLimits,
    HostPolicy,
    ListingForm,
    PromptLimits,
    Question,
    Reply,
    ShowRule,
    Trust,
    read_servers,
)
from skillwire.host.model.origin import estimated_tokens
from terminals import PROMPT, Window

ROOT = Path(__file__).parents[2]
PAGES = [
    (documents.DOCS / "cookbook" / f"{name}.md").read_text("utf-8")
    for name in ("servers", "listing", "conversation", "tools", "testing")
]
SKILLS = ROOT / "examples" / "skills"
DEADLINE = 60.0

Names: TypeAlias = dict[str, Any]
Printed: TypeAlias = pytest.CaptureFixture[str]


@cache
def recipes() -> Mapping[str, str]:
    """Return the program of each recipe by its heading."""
    found: dict[str, str] = {}
    for part in (part for page in PAGES for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]):
        [found[part.partition("\n")[0]]] = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    return found


@dataclass(slots=True)
class User:
    """Agrees to everything once, unless told otherwise, and remembers what was asked."""

    reply: Reply = Reply.ONCE
    questions: list[Question] = field(default_factory=list[Question])

    async def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        return self.reply


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[HttpServer]:
    """One server for all recipes: they change nothing there."""
    with http_server(SKILLS, "--no-watch", env=environment(tmp_path_factory.mktemp("server"))) as running:
        yield running


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the configuration that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    configure(tmp_path, team={"url": server.url})
    return tmp_path


def configure(folder: Path, **servers: Mapping[str, Any]) -> None:
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


async def cook(heading: str, **names: Any) -> Names:
    """Run a recipe, within the deadline, and return the names it made."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(recipes()[heading], f"docs/cookbook: {heading}", "exec", flags=flags)
    space: Names = {"__name__": "recipe", **names}
    with anyio.fail_after(DEADLINE):
        waiting = eval(code, space)
        if inspect.isawaitable(waiting):
            await waiting
    return space


@asynccontextmanager
async def kitchen(user: Ask | None = None, **options: Any) -> AsyncGenerator[Host]:
    """The open host that most recipes stand in."""
    async with Host.from_config(
        ".mcp.json", approve=user or User(), limits=HostLimits(wait_seconds=DEADLINE), **options
    ) as host:
        yield host


def loaded(host: Host) -> list[str]:
    return [window.skill.reference for window in host.loaded]


def test_every_recipe_is_run_by_a_test_here() -> None:
    source = Path(__file__).read_text("utf-8")

    for heading in recipes():
        assert f'"{heading}"' in source, heading


async def test_many_servers_are_used_side_by_side_and_one_that_fails_costs_itself(
    workplace: Path, server: HttpServer, capsys: Printed
) -> None:
    away = {"command": str(workplace / "gone")}
    configure(workplace, team={"url": server.url}, away=away, odd={"command": 7})

    await cook("One agent, many servers")

    [team, gone, odd] = capsys.readouterr().out.splitlines()
    assert team == "team listed 12 skills "
    assert gone.startswith("away failed 0 skills ") and "[server-unavailable" in gone
    assert "invalid-config" in odd


def test_the_user_is_asked_in_a_terminal(workplace: Path) -> None:
    play = (
        "import ast, asyncio, sys\n"
        "flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT\n"
        "asyncio.run(eval(compile(sys.argv[1], 'recipe', 'exec', flags=flags)))\n"
    )
    words = [sys.executable, "-W", "error", "-c", play, recipes()["Ask the user in a terminal"]]
    env = {**environment(workplace), "TERM": "xterm-256color", "LANG": "C.UTF-8"}

    window = Window(words, cwd=workplace, env=env, lines=60)
    try:
        asked = window.wait_for(PROMPT)
        window.type("once")
        code = window.wait_for_end()
    finally:
        window.close()

    assert code == 0
    assert asked.index("From: MCP server team") < asked.index("| Decides and prepares")
    assert "\nSkill: team/refunds\nOrigin: MCP server team" in window.everything


async def test_without_a_terminal_the_answer_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    with pytest.raises(ApprovalError):
        await cook("Ask the user in a terminal")


async def test_the_user_is_asked_in_a_web_app() -> None:
    names = await cook("Ask the user in a web app")
    shown: list[str] = []

    async def browse() -> None:
        [(key, waiting)] = names["pending"].items()
        shown.append(waiting.text)
        names["answer"](key, "once")

    async def ask(question: Question) -> Reply:
        reply = Reply.DENY
        async with anyio.create_task_group() as group:
            group.start_soon(browse)  # It gets to run when the question waits for its answer.
            reply = await names["ask_user"](question)
        return reply

    with anyio.fail_after(DEADLINE):
        async with kitchen(ask) as host:
            await host.load("team/refunds")
            windows = loaded(host)

    assert windows == ["team/refunds"]
    assert "From: MCP server team" in shown[0] and names["pending"] == {}
    assert PromptLimits().answer_seconds == 10 * 60  # What a comment of the recipe says.


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_stands_in_for_the_user(capsys: Printed) -> None:
    async with kitchen(lock="skills.lock") as host:
        await host.approve(await host.find("team/refunds"))
        await host.write_lock()

    names = await cook("Run without a user")

    assert names["loaded"].reference == "team/refunds"
    assert capsys.readouterr().out == "not-in-lock\n"


async def test_settings_choose_what_the_model_sees() -> None:
    names = await cook("Choose what the model sees")

    lines = [line for line in names["system"].splitlines() if "team/" in line]
    assert "team/refunds" in lines[0] and "customer refunds" in lines[0]
    assert len(lines) == 10
    assert not any("release-notes" in line or "code-mode" in line for line in lines)
    assert not any("Reviews HTML" in line for line in lines)


def test_the_configuration_of_the_page_says_the_same(workplace: Path) -> None:
    [block] = re.findall(r"```json\n(.*?)```", "".join(PAGES), re.DOTALL)
    (workplace / "settings.json").write_text(block)

    found = read_servers(workplace / "settings.json")

    [team] = found.servers
    assert found.refused == ()
    assert (team.skills.budget, team.skills.trust) == (1500, Trust.ASK)
    assert dict(team.skills.show) == {
        "refunds": ShowRule.PIN,
        "release-notes": ShowRule.MANUAL,
        "code-mode": ShowRule.OFF,
        "*": ShowRule.NAME_ONLY,
    }


async def test_a_list_is_measured_with_the_tokenizer_it_is_given() -> None:
    async with kitchen() as host:
        names = await cook("Count with your model's tokenizer", host=host)

    assert 400 < names["count"](names["system"]) <= 800


async def test_each_form_of_the_list_is_made(capsys: Printed) -> None:
    async with kitchen() as host:
        await cook("Choose the form of the list", host=host)
        forms = [host.child().listing(form=form, budget_tokens=1000) for form in ListingForm]

    printed = capsys.readouterr().out
    assert len(set(forms)) == 4 and all(form in printed for form in forms)
    assert "<available_skills>" in printed


async def test_a_search_goes_on_until_everything_is_found() -> None:
    async with kitchen() as host:
        names = await cook("Search instead of listing", host=host)

    assert estimated_tokens(names["system"]) <= 300 and "search_skills" in names["system"]
    assert len(names["found"]) == len(set(names["found"])) == names["page"].total > 2


@pytest.mark.requirement("INT-06")
async def test_what_a_sub_agent_loads_is_adopted(capsys: Printed) -> None:
    async with kitchen() as host:
        await cook("Give skills to a sub-agent", host=host)

    assert capsys.readouterr().out == "[]\n['team/triage']\n"


async def test_texts_are_put_back_after_compaction_without_a_question() -> None:
    user = User()
    async with kitchen(user) as host:
        names = await cook("Survive compaction", host=host)

    restored = names["restored"]
    assert [skill.text.splitlines()[0] for skill in restored.skills] == ["Skill: team/refunds"]
    assert restored.listing and names["messages"][1]["content"] == restored.text
    assert len(user.questions) == 1


async def test_a_status_line_shows_what_is_loaded(capsys: Printed) -> None:
    async with kitchen() as host:
        await cook("Show the user what is loaded", host=host)

    assert re.fullmatch(r"skills: team/refunds since \d\d:\d\d\n", capsys.readouterr().out)


async def test_a_person_can_load_what_is_left_to_people(capsys: Printed) -> None:
    async with kitchen(policy=HostPolicy(show={"team/release-notes": ShowRule.MANUAL})) as host:
        with pytest.raises(skillwire.SkillError) as for_the_model:
            await host.load("team/release-notes")
        await cook("A slash command", host=host)

    shown = capsys.readouterr().out
    assert for_the_model.value.refusal == "manual-only"
    assert shown.startswith("Skill: team/release-notes\n")
    assert "[unknown-reference, NAME-04]" in shown


async def test_a_picture_is_read_as_bytes(capsys: Printed) -> None:
    async with kitchen() as host:
        names = await cook("Read a binary file", host=host)

    assert names["image"] == (SKILLS / "brand-assets" / "assets" / "palette.png").read_bytes()


async def test_a_skill_that_explains_a_tool_is_pointed_out_once(capsys: Printed) -> None:
    async with kitchen() as host:
        await cook("Point out the skill that explains a tool", host=host)

    said, nothing = capsys.readouterr().out.splitlines()
    assert said.startswith("Before you call execute_code of the server team: the skill team/code-mode")
    assert nothing == ""


@pytest.mark.requirement("CACHE-02", "SEC-06")
async def test_a_file_tool_is_gated_by_its_path(workplace: Path, capsys: Printed) -> None:
    user = User()
    async with kitchen(user) as host:
        names = await cook("Gate a file tool by its path", host=host)
        await host.load("team/refunds")
        user.reply = Reply.DENY
        refused = await names["guard"].refusal("write_file", {"path": "notes.txt"})
        read = await names["guard"].refusal("read_file", {"path": "notes.txt"})
        assert names["describe"]("write_file", {}).kind == "write"

    assert capsys.readouterr().out == "protected-place\nNone\n"
    assert (refused.refusal.code, read) == ("writing", None)
    assert str(workplace / "notes.txt") in user.questions[-1].call


async def test_a_refusal_is_logged_as_json_and_said_in_other_words(
    capsys: Printed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agent")

    async with kitchen() as host:
        await cook("Replace the text of a refusal, and log it", host=host)

    [record] = [record for record in caplog.records if record.name == "agent"]
    assert json.loads(record.getMessage())["code"] == "unknown-reference"
    assert capsys.readouterr().out == "We have no such playbook. Search with search_skills.\n"


@pytest.mark.requirement("CACHE-05")
async def test_an_approved_skill_is_there_while_its_server_is_away(
    workplace: Path, capsys: Printed, env: dict[str, str]
) -> None:
    with http_server(SKILLS, "--no-watch", env=env) as going:
        configure(workplace, team={"url": going.url})
        async with kitchen(User(Reply.ALWAYS)) as host:
            await host.load("team/refunds")

    await cook("Work without a network")

    shown = capsys.readouterr().out
    assert shown.startswith("team/refunds: offline, approved on ")
    assert "\nSkill: team/refunds\n" in shown and "Offline: server unreachable" in shown


async def test_signing_in_is_set_up_and_asks_nobody_where_it_is_not_wanted(capsys: Printed) -> None:
    names = await cook("A server that requires sign-in")

    assert names["signed"].auth is not None
    assert capsys.readouterr().out == "['listed']\n"


async def test_a_script_reads_what_a_command_prints(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    write_program(workplace / "bin" / "skillwire", skillwire_command())
    monkeypatch.setenv("PATH", f"{workplace / 'bin'}:/usr/bin:/bin")

    await cook("Inspect from a script")

    schema, references = capsys.readouterr().out.splitlines()
    assert schema == "skillwire/list/1"
    assert len(ast.literal_eval(references)) == 12


async def test_an_agent_is_tested_with_a_scripted_model() -> None:
    names = await cook("Test your agent with a scripted model")

    assert names["script"] == []


async def test_skills_are_served_and_used_in_one_process() -> None:
    names = await cook("Serve and use skills in one process")

    assert names["text"].startswith("Skill: tests/greeting\n") and "Say hello." in names["text"]
