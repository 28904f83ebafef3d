"""What the pages in `docs/host` and `docs/security` say, held against the host and the tests."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

import documents
import requirements
import skillwire
import skillwire.host
from folders import write_skill
from programs import http_server, words_of
from skillwire.bridge.overview import Overview, StoredOverview
from skillwire.core import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.manifest import digest_of
from skillwire.core.refusals import REFUSALS
from skillwire.host import (
    Grant,
    Host,
    HostLimits,
    HostPolicy,
    KnownSkill,
    ListingForm,
    Occasion,
    PromptLimits,
    Question,
    RefusedError,
    Reply,
    ServerConfig,
    Storage,
    SyncedFolders,
    SyncTarget,
    ToolCall,
    ToolKind,
    Verdict,
    list_skills,
    oauth_for,
    read_servers,
)
from skillwire.host.registry.servers import MAX_SECONDS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = documents.text_of(
    "quickstart/agent-author.md",
    "host/overview.md",
    "host/connecting.md",
    "host/options.md",
    "host/listing.md",
    "host/tools.md",
    "host/references.md",
    "host/files.md",
    "host/local-folders.md",
    "host/approvals.md",
    "host/lock.md",
    "host/gate.md",
    "host/conversations.md",
    "host/offline.md",
    "host/refusals.md",
    "host/audit-log.md",
    "host/storage.md",
    "host/limits.md",
)
GUARANTEES = documents.text_of("security/guarantees.md").partition("\n## ")[2]
ATTACKS_PAGE = documents.text_of("security/attacks.md")
SKILLS = ROOT / "examples" / "skills"
DEADLINE = 60.0
ATTACKS = 85

Row: TypeAlias = list[str]
Names: TypeAlias = dict[str, Any]


def section(page: str, heading: str) -> str:
    """Return what stands under a heading of a page, up to the next one of its rank."""
    [found] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found


def examples(heading: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(PAGE, heading), re.DOTALL)


def tables(text: str) -> list[list[Row]]:
    """Return the rows of each table, without its head, as the cells' bare words."""
    found: list[list[Row]] = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [line.strip("|\n").split("|") for line in block.splitlines()]
        found.append([[cell.strip() for cell in row] for row in rows[2:]])
    return found


def bare(text: str) -> str:
    return text.replace("`", "")


# The examples


def configuration(*servers: tuple[str, Path], **more: Mapping[str, Any]) -> str:
    """Return a configuration in which `skillwire serve` is this checkout's."""
    commands = {label: words_of(folder) for label, folder in servers}
    table = {label: {"command": program, "args": words} for label, (program, *words) in commands.items()}
    return json.dumps({"mcpServers": {**table, **more}})


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the configuration and the project that the page speaks of."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(configuration(("team", SKILLS)))
    write_skill(tmp_path / "project" / ".agents" / "skills" / "notes")
    return tmp_path


@dataclass(slots=True)
class User:
    """Agrees to everything, unless told otherwise, and remembers what was asked."""

    reply: Reply = Reply.ALWAYS
    questions: list[Question] = field(default_factory=list[Question])

    async def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        return self.reply

    @property
    def occasions(self) -> list[Occasion]:
        return [question.occasion for question in self.questions]


@dataclass(frozen=True, slots=True)
class Stage:
    """An open host for examples to run on, and the user in front of it."""

    host: Host
    user: User

    async def play(self, example: str, **names: Any) -> Names:
        """Run an example as if it stood inside the page's `async with`, and return its names."""
        return await play(example, host=self.host, **names)


async def play(example: str, **names: Any) -> Names:
    code = compile(example, "docs/host", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    space: Names = {"__name__": "example", **names}
    waiting = eval(code, space)
    if inspect.isawaitable(waiting):
        await waiting
    return space


@asynccontextmanager
async def stage(**options: Any) -> AsyncGenerator[Stage]:
    user = User()
    with anyio.fail_after(DEADLINE):
        async with Host.from_config(".mcp.json", **{"approve": user, **options}) as host:
            yield Stage(host, user)


def typing(answer: str) -> Callable[[str], str]:
    """Return an `input` at which somebody always types the same."""

    def read(prompt: str) -> str:
        return answer

    return read


def test_the_first_example_runs_as_it_stands_there(workplace: Path, env: dict[str, str]) -> None:
    [example] = examples("Quick start: use skills in an agent")
    [block] = examples("Quick start: use skills in an agent", "json")

    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(command, cwd=workplace, env=env, capture_output=True, text=True, timeout=DEADLINE)

    assert json.loads(block) == {
        "mcpServers": {"team": {"command": "skillwire", "args": ["serve", "examples/skills"]}}
    }
    assert (result.returncode, result.stderr) == (0, "")
    assert "asked: first team/refunds" in result.stdout
    assert "File: references/policy.md of the skill team/refunds" in result.stdout


@pytest.mark.requirement("HOST-08", "HOST-14")
async def test_the_page_shows_what_a_model_gets() -> None:
    [shown] = examples("What the model gets", "text")

    async with stage() as here:
        loaded = await here.host.load("team/refunds")

    text = loaded.text.replace(loaded.boundary, "…")
    for line in shown.splitlines():
        assert line.strip(" …") in text


async def test_the_example_of_tools_and_guard_answers_a_models_calls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [example] = examples("Tools and the guard")

    async with stage() as here:
        names = await here.play(example)
        here.user.reply = Reply.DENY
        refused = await names["answer"]("write_note", {"text": "again"})

    printed = capsys.readouterr().out
    assert [*names["tools"]] == ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    assert "team/refunds" in names["system"]
    assert "\nSkill: team/refunds\n" in printed and "write_note ran" in printed
    assert '"code": "writing"' in refused


def test_the_page_names_every_form_of_the_list() -> None:
    [rows] = tables(section(PAGE, "Forms"))

    assert [row[0].strip("`") for row in rows] == [f"ListingForm.{form.name}" for form in ListingForm]


@pytest.mark.requirement("NAME-03", "NAME-04", "NAME-08")
async def test_references_are_as_the_table_says(workplace: Path) -> None:
    [rows] = tables(section(PAGE, "References"))
    folder = workplace / "skills"
    for path in ("acme/billing/refunds", "acme/shop/refunds", "refunds", "acme/support/triage"):
        write_skill(folder / path)
    write_skill(workplace / "home" / "notes")
    (workplace / ".mcp.json").write_text(configuration(("team", folder)))

    async with stage(roots=[skillwire.host.LocalRoot(workplace / "home", "user")]) as here:
        known = {skill.reference for skill in here.host.view.skills}
        by_uri = await here.host.find("team/skill://acme/shop/refunds/SKILL.md")
        with pytest.raises(RefusedError) as ambiguous:
            await here.host.find("team/refunds")
        with pytest.raises(skillwire.NotFoundError):
            await here.host.find("team/skill://acme/hidden")

    documented = {reference for row in rows[:-1] for reference in re.findall(r"`([^`]+)`", row[1])}
    assert documented == known
    assert rows[-1][1] == "`team/skill://acme/hidden`"
    assert by_uri.reference == "team/acme/shop/refunds"
    assert ambiguous.value.refusal == "ambiguous-reference"


@pytest.mark.requirement("FS-04")
async def test_a_projects_skills_count_once_its_folder_is_trusted(workplace: Path) -> None:
    [example] = examples("Local folders")

    async with stage(project=workplace / "project") as here:
        before = [refusal.code for refusal in here.host.view.hidden]
        await here.play(example)
        after = [skill.reference for skill in here.host.view.skills if not skill.is_remote]
        loaded = await here.host.load("notes")
        decision = here.host.gate(ToolCall("bash", ToolKind.EXECUTE))

    assert before == ["untrusted-folder"]
    assert after == ["notes"]
    assert loaded.text.startswith("Skill: notes\nOrigin: local folder project\n")
    assert here.user.questions == []
    assert decision.verdict is Verdict.ALLOW


@pytest.mark.requirement("SEC-07", "SEC-12")
async def test_the_question_of_the_page_names_the_origin_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = examples("Ask the user")
    names = await play(example)
    monkeypatch.setattr("builtins.input", typing("a"))

    async with stage(approve=names["ask_user"]) as here:
        await here.host.load("team/csv-insights")
        await here.host.request_scripts("team/csv-insights", "scripts/profile.py")
        await here.host.authorise(ToolCall("bash", ToolKind.EXECUTE))
        remembered = here.host.approvals

    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("From: ")] == [
        "From: MCP server team (first)",
        "From: MCP server team (scripts)",
        "From: MCP server team (call)",
    ]
    assert shown[0].startswith("From: ")
    assert [approval.grants for approval in remembered] == [{Grant.LOAD, Grant.SCRIPTS}]


async def test_occasions_and_replies_are_those_of_the_tables() -> None:
    occasions, replies = tables(section(PAGE, "Ask the user"))

    async with stage() as here:
        skill = await here.host.find("team/refunds")

    documented = {bare(row[0]): row[3] for row in occasions}
    assert documented == {occasion.value: remembered(occasion, skill) for occasion in Occasion}
    assert [bare(row[0]) for row in replies] == [reply.name for reply in Reply]


def remembered(occasion: Occasion, skill: KnownSkill) -> str:
    # A dynamic skill is asked about on an occasion of its own, and is never remembered.
    asked = Question(occasion, skill, script_digest=digest_of(b"echo"))
    return "yes" if asked.may_be_remembered else "no"


@pytest.mark.requirement("SEC-12")
async def test_a_skill_is_looked_at_and_approved_beforehand() -> None:
    [example] = examples("Preview and approve beforehand")

    async with stage() as here:
        names = await here.play(example)
        await here.host.load("team/csv-insights")
        approvals = here.host.approvals

    assert names["preview"].text.startswith("#!/usr/bin/env python3")
    assert approvals == (names["approval"],)
    assert here.user.questions == []


@pytest.mark.requirement("APPR-10")
async def test_a_lock_is_written_reviewed_and_trusted(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [write] = examples("Write the lock")
    [review] = examples("Review and trust a lock")
    [frozen] = examples("Use a frozen lock in CI")
    elsewhere = Storage(workplace / "elsewhere" / "state", workplace / "elsewhere" / "cache")
    monkeypatch.setattr("builtins.input", typing("yes"))

    async with stage(lock="skills.lock") as here:
        await here.host.load("team/refunds")
        written = (await here.play(write))["content"]
    async with stage(lock="skills.lock", storage=elsewhere, approve=None) as there:
        codes = [refusal.code for refusal in there.host.problems]
        with pytest.raises(RefusedError) as untrusted:
            await there.host.load("team/refunds")
        await there.play(review)
        loaded = await there.host.load("team/refunds")
    with anyio.fail_after(DEADLINE):
        in_ci = await play(frozen)

    assert (workplace / "skills.lock").read_bytes() == written
    assert (codes, untrusted.value.refusal) == (["lock-untrusted"], "lock-untrusted")
    assert "new: MCP server team skill://acme/billing/refunds/SKILL.md" in capsys.readouterr().out
    assert loaded.reference == in_ci["loaded"].reference == "team/refunds"


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_refuses_what_is_not_in_it(workplace: Path) -> None:
    async with stage(lock="skills.lock") as here:
        await here.host.load("team/refunds")
        await here.host.write_lock()
        await here.host.load("team/triage")
    async with stage(lock="skills.lock", policy=HostPolicy(frozen=True)) as there:
        with pytest.raises(RefusedError) as refused:
            await there.host.load("team/triage")

    assert refused.value.refusal == "not-in-lock"
    assert there.user.questions == []


@pytest.mark.requirement("SEC-04", "SEC-06", "SEC-08")
async def test_the_gate_decides_as_the_table_says(workplace: Path) -> None:
    [rows] = tables(section(PAGE, "Gate every tool call"))
    lock = str(workplace / "skills.lock")

    async with stage(lock="skills.lock") as here:
        own = await here.host.find("team/refunds")
        calls = [
            [ToolCall("bash", ToolKind.EXECUTE), ToolCall("bash")],
            [ToolCall("write", ToolKind.WRITE, path=str(workplace / "notes.txt"))],
            [ToolCall("fetch", ToolKind.NETWORK)],
            [ToolCall("cat", ToolKind.READ), ToolCall("cat", ToolKind.READ, path=lock)],
            [ToolCall("read", ToolKind.READ, server=own.id.origin.label, uri=own.id.uri)],
            [ToolCall("read", ToolKind.READ, server="other", uri="db://orders")],
            [ToolCall("write", kind, path=lock) for kind in (ToolKind.WRITE, ToolKind.EXECUTE, None)],
        ]
        without = [{here.host.gate(call).verdict for call in some} for some in calls]
        await here.host.load("team/refunds")
        within = [[here.host.gate(call) for call in some] for some in calls]

    documented = [(row[1], bare(row[2])) for row in rows]
    assert documented == [(some[0].verdict, some[0].code) for some in within]
    assert all(len({(one.verdict, one.code) for one in some}) == 1 for some in within)
    assert without == [{Verdict.ALLOW}] * 6 + [{Verdict.DENY}]


async def test_a_call_is_authorised_as_the_page_does_it() -> None:
    authorise, scripts = examples("Gate every tool call")

    async with stage() as here:
        await here.host.load("team/refunds")
        allowed = await here.play(authorise)
        here.user.reply = Reply.DENY
        denied = await here.play(authorise)
        here.user.reply = Reply.ALWAYS
        here.host.close("team/refunds")
        granted = await here.play(scripts)

    assert allowed["decision"].verdict is Verdict.ALLOW
    assert denied["decision"].verdict is Verdict.DENY
    assert "[execution, SEC-06]" in denied["result"]
    assert granted["decision"].verdict is Verdict.ALLOW
    # The script was asked about once, and running exactly it is asked about no more.
    assert here.user.occasions[-2:] == [Occasion.FIRST, Occasion.SCRIPTS]
    assert granted["script"] == (SKILLS / "csv-insights" / "scripts" / "profile.py").read_bytes()


@pytest.mark.requirement("INT-06", "HOST-15")
async def test_windows_go_to_sub_agents_and_outlive_compaction() -> None:
    [example] = examples("Sub-agents and compaction")

    async with stage() as here:
        await here.host.load("team/refunds")
        names = await here.play(example)
        left = here.host.loaded

    assert [window.skill.reference for window in names["still_open"]] == ["team/refunds", "team/triage"]
    assert left == ()


@pytest.mark.requirement("CACHE-05")
async def test_an_approved_skill_is_there_without_a_network(
    workplace: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server(SKILLS, env=env) as server:
        (workplace / ".mcp.json").write_text(configuration(team={"url": server.url}))
        async with stage() as here:
            await here.host.load("team/refunds")
            here.user.reply = Reply.ONCE
            await here.host.load("team/triage")
    async with stage() as away:
        [known] = away.host.view.skills
        loaded = await away.host.load("team/refunds")
        with pytest.raises(skillwire.SkillError) as missing:
            await away.host.read_skill_file("team/refunds", "references/policy.md")
        await away.host.forget_server("team")
        kept = away.host.approvals

    assert known.reference == "team/refunds" and known.offline_since is not None
    assert (
        f"Offline: server unreachable; this is the cached copy approved on {known.offline_since}."
        in loaded.text
    )
    assert missing.value.refusal == "server-unavailable"
    assert kept == ()


async def test_a_refusal_is_explained_as_the_page_does_it(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = examples("Refusals")

    async with stage() as here:
        await here.play(example)

    shown = capsys.readouterr().out
    assert "'code': 'unknown-reference'" in shown
    assert "'candidates': ['team/refunds']" in shown
    assert "ok  found: MCP server team" in shown


def test_the_table_of_refusals_lists_every_code_as_the_host_has_it() -> None:
    [rows] = tables(section(PAGE, "Refusals"))

    assert rows == refusal_rows()


def test_the_table_of_events_names_every_field_that_is_written() -> None:
    [rows] = tables(section(PAGE, "The audit log"))

    assert {bare(row[0]): set(bare(row[1]).split(", ")) - {""} for row in rows} == audit_events()


async def test_the_servers_of_the_page_are_read_as_it_says(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = examples("Configure servers", "json")
    (workplace / "servers.json").write_text(block)

    without = read_servers(workplace / "servers.json", environ={})
    monkeypatch.setenv("BILLING_TOKEN", "secret")
    found = read_servers(workplace / "servers.json")

    assert [(refusal.code, refusal.subject) for refusal in without.refused] == [("invalid-config", "billing")]
    assert [(server.label, server.is_enabled) for server in found.servers] == [
        ("billing", True),
        ("team", True),
        ("old", False),
    ]
    assert vars(found.servers[0].endpoint)["headers"] == {"Authorization": "Bearer secret"}
    assert vars(found.servers[1].endpoint)["args"] == ("serve", "skills")
    assert "secret" not in repr(found)


async def test_signing_in_is_set_up_as_the_page_does_it(workplace: Path, env: dict[str, str]) -> None:
    [example] = examples("Configure servers")

    with http_server(SKILLS, env=env) as server, anyio.fail_after(DEADLINE):
        table = configuration(("here", SKILLS), there={"url": server.url})
        (workplace / ".mcp.json").write_text(table)
        names = await play(example, ask_user=User())

    assert [(config.auth is None, config.seconds) for config in names["servers"]] == [
        (True, 30.0),
        (False, 20.0),
    ]


async def test_state_and_cache_lie_where_the_page_says(empty_home: Path) -> None:
    [rows] = tables(section(PAGE, "Storage"))
    documented = [bare(row[0]).replace("~", str(empty_home)) for row in rows]
    if sys.platform != "linux":
        pytest.skip("the page names the places of Linux")

    async with stage(project=Path("project"), lock="skills.lock") as here:
        await here.host.load("team/refunds")
        await here.host.write_lock()
        await here.host.trust_folder(Path("project"))
    SyncedFolders(Storage().state).change(lambda record: record.with_target(SyncTarget("/a", "/")))
    StoredOverview.of([]).save(Overview.unknown(has_scripts=False))

    for place in documented:
        folder, name = Path(place).parent, Path(place).name
        assert list(folder.glob(name.replace("…", "*"))), place


def test_the_host_does_not_start_where_its_state_could_be_written_to(empty_home: Path) -> None:
    async def start() -> None:
        async with stage(storage=Storage(writable_roots=[empty_home])):
            pass

    with pytest.raises(RefusedError) as refused:
        anyio.run(start)

    assert refused.value.refusal == "unsafe-place"


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    [rows] = tables(section(PAGE, "Limits of the host"))

    assert dict(rows) == limits()


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    prompts = PromptLimits()

    text = " ".join(PAGE.split())

    assert f"for at most {default(HostLimits, 'wait_seconds'):g} seconds" in text
    assert f"Silence for {span(prompts.answer_seconds)}utes is a no" in text
    assert f"The user has {span(default(oauth_for, 'seconds'))}utes" in text
    assert f"can cause {prompts.questions_per_server} questions in {span(prompts.seconds)}utes" in text
    assert f"{prompts.contents_per_skill} different contents of one skill asked about" in text


# What the code says, for the tables


def refusal_rows() -> list[Row]:
    return [[f"`{code}`", kind.requirement, kind.sentence, kind.remedy] for code, kind in REFUSALS.items()]


def audit_events() -> dict[str, set[str]]:
    """Return the fields of every event that any code of the host writes to the audit log."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in Path(skillwire.host.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "record"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                assert all(keyword.arg for keyword in node.keywords), (
                    "fields are named where they are written"
                )
                found[str(node.args[0].value)] |= {str(keyword.arg) for keyword in node.keywords}
    return dict(found)


@cache
def host_names() -> Mapping[str, list[Any]]:
    """Return everything that the host's modules hold, by name; adapters need libraries of others."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for module in pkgutil.walk_packages(skillwire.host.__path__, "skillwire.host."):
        if ".adapters" in module.name:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            found[name].append(value)
    return found


def constant(name: str) -> Any:
    """Return the one value that a name has in the host."""
    values = host_names()[name]
    assert values and all(value == values[0] for value in values), name
    return values[0]


def default(function: Callable[..., object], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def size(count: int) -> str:
    unit, divisor = ("GiB", 2**30) if count >= 2**30 else ("MiB", 2**20)
    assert count % divisor == 0
    return f"{count // divisor} {unit}"


def span(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds > 120 else f"{seconds:g} s"


def limits() -> dict[str, str]:
    connection, prompts = constant("ConnectionLimits")(), PromptLimits()
    audit = constant("AuditLog")
    listing = {name: default(list_skills, name) for name in ("max_pages", "max_entries", "max_bytes")}
    assert (connection.max_pages, connection.max_entries, connection.max_listing_bytes) == (
        *listing.values(),
    )
    return {
        "Connecting to a server, and each call": span(default(ServerConfig, "seconds")),
        "Waiting for listings at the start": span(default(HostLimits, "wait_seconds")),
        "One message of a server": f"{size(connection.message_bytes)}, more while a larger file is read",
        "Unsolicited messages": f"{connection.message_burst:,} at once, "
        f"{connection.messages_per_second:g} a second",
        "Requests to one server at a time": f"{connection.in_flight}",
        "Attempts to connect": f"{connection.starts} in {span(connection.start_window)}; "
        f"after each failure a backoff of up to {span(connection.backoff_base)}, doubled each time, "
        f"at most {span(connection.backoff_most)}",
        "A listing": f"{listing['max_pages']:,} pages, {listing['max_entries']:,} entries, "
        f"{size(listing['max_bytes'])}",
        "How long a listing is fresh": f"what the server says, but {span(constant('MIN_SECONDS'))} to "
        f"{span(MAX_SECONDS)}",
        "Skills of a server that it does not list": f"{constant('MAX_UNLISTED'):,}",
        "URIs taken from a server's instructions": f"{constant('MAX_URIS')}, confirmed within "
        f"{span(constant('CONFIRM_SECONDS'))}",
        "A skill": f"{MAX_FILES} files, {size(MAX_TOTAL_SIZE)}",
        "A page of text": f"{default(HostLimits, 'page_length'):,} bytes of UTF-8, "
        f"and {constant('MOST_PAGE_LINES'):,} lines",
        "Questions about the skills of one server": f"{prompts.questions_per_server} in "
        f"{span(prompts.seconds)}; {prompts.contents_per_skill} contents of one skill",
        "An answer of the user": span(prompts.answer_seconds),
        "Signing in": span(default(oauth_for, "seconds")),
        "Folders below a root of local skills": f"{constant('MAX_DEPTH')} deep, "
        f"{constant('MAX_FOLDERS'):,} in all",
        "The configuration": size(constant("MAX_CONFIG_BYTES")),
        "A lock": size(constant("MAX_LOCK_BYTES")),
        "The cache": f"{size(default(HostLimits, 'cache_bytes_per_server'))} a server, "
        f"{size(default(HostLimits, 'cache_bytes'))} in all",
        "The audit log": f"{size(default(audit, 'max_bytes'))} a file, {default(audit, 'keep')} older files",
    }


# The page about security


@cache
def texts_of_tests() -> Mapping[str, str]:
    """Return the text of every test file by its name."""
    folders = [TESTS / "unit", TESTS / "integration", TESTS / "escape", TESTS / "interop"]
    paths = [
        path for folder in folders for path in folder.rglob("test_*.py") if "node_modules" not in path.parts
    ]
    return {path.name: path.read_text("utf-8") for path in paths}


def guarantees() -> Generator[tuple[str, set[str], set[str]]]:
    """Yield each guarantee with the requirements and the test files it names."""
    for item in re.findall(r"^- (.*?)(?=^- |^#|^$|\Z)", GUARANTEES, re.S | re.M):
        words = " ".join(item.split())
        proof = re.search(r"\(([^()]*)\)$", words)
        assert proof, f"this guarantee names no proof: {words}"
        named = re.findall(r"`([^`]+)`", proof[1])
        yield words, set(re.findall(r"[A-Z]+-\d+", proof[1])), set(named)


def proven_in(file: str) -> set[str]:
    marks = re.findall(r"mark\.requirement\(([^)]*)\)", texts_of_tests()[file])
    return {found for mark in marks for found in re.findall(r'"([A-Z0-9]+-\d+)"', mark)}


def test_every_guarantee_names_rules_that_the_named_tests_prove() -> None:
    known = set(requirements.register())
    found = list(guarantees())

    assert len(found) == len(re.findall("^- ", GUARANTEES, re.MULTILINE)) > 0
    for words, rules, files in found:
        assert rules and files, words
        assert rules <= known, words
        assert files <= texts_of_tests().keys(), words
        assert rules <= {rule for file in files for rule in proven_in(file)}, words


def attack_rows() -> dict[int, Row]:
    [rows] = tables(section(ATTACKS_PAGE, "All attacks"))
    return {int(row[0]): row[1:] for row in rows}


def attacks_of(file: str) -> set[int]:
    """Return the numbers of the attacks that the tests of a file say they mount."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(texts_of_tests()[file])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for numbers in re.findall(r"Attacks? ([\d, and]+)", ast.get_docstring(node) or ""):
                found |= {int(number) for number in re.findall(r"\d+", numbers)}
    return found


def test_the_table_of_attacks_is_complete_and_each_proof_is_there() -> None:
    rows = attack_rows()

    assert list(rows) == list(range(1, ATTACKS + 1))
    for number, (_, answer, proof) in rows.items():
        files = re.findall(r"`(test_\w+\.py)`", proof)
        assert answer and (files or proof == "not part of this release"), number
        for file in files:
            assert file in texts_of_tests(), (number, file)
            assert not file.startswith("test_attacks_") or number in attacks_of(file), (number, file)


def test_every_test_that_mounts_an_attack_is_named_in_its_row() -> None:
    rows = attack_rows()

    for file in texts_of_tests():
        if file.startswith("test_attacks_"):
            for number in attacks_of(file):
                assert f"`{file}`" in rows[number][2], (number, file)
