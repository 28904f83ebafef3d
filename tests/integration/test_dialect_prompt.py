"""The dialect `prompt` as clients see it: the text of a prompt is what reading the skill's files gives."""

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import anyio
import mcp_types as types
import pytest
from fastmcp import Client as FastClient
from fastmcp import FastMCP
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged

from folders import skill_md, write_files, write_skill
from programs import http_server, words_of
from skillwire.core.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    DuplicateSkillError,
    InvalidSkillError,
    SkillError,
)
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server import DynamicSkill, add_skills
from talking import (
    AnyServer,
    Inbox,
    Json,
    PlainSource,
    ask,
    connect,
    listing,
    pages,
    read_item,
    refused,
    skill,
    skills_of,
)

METHOD_NOT_FOUND = -32601
MEBIBYTE = 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "wire" / "prompt.json"
VALIDATOR: Any = Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
NOTE = "\n--- / not included, because they are not text: / ---\n"

CODE_MODE = (
    Skill("code-mode", description="Writes queries. Use when asked for data.", body="# Code mode")
    .with_reference("references/schema.graphql", "type Query { a: Int }", media_type="application/graphql")
    .with_reference("references/examples.md", "# Examples\r\n")
    .with_reference("assets/logo.png", PNG)
    .with_reference("references/a first by name.txt", b"", media_type="text/x-own")
)


async def prompt_text(client: Client, name: str) -> str:
    """Get a prompt and return its text; what is sent must be of the schema."""
    result = await ask(client, "prompts/get", name=name)
    VALIDATOR.validate(result)
    [message] = result["messages"]
    assert message == {"role": "user", "content": {"type": "text", "text": message["content"]["text"]}}
    return message["content"]["text"]


async def stitched_by_reading(
    client: Client, entry: Json, order: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Read every file that an entry lists, join the texts by a rule written here, and name the blobs."""
    root = entry["uri"].removesuffix("SKILL.md")
    items = {
        unquote(line["uri"][len(root) :]): await read_item(client, line["uri"]) for line in entry["resources"]
    }
    text = items.pop("SKILL.md")["text"]
    if text[-1:] != "\n":
        text += "\n"
    for path in order or sorted(items):
        if "text" in items[path]:
            text += "\n--- " + path + " ---\n" + items[path]["text"]
            if items[path]["text"][-1:] != "\n":
                text += "\n"
    return text, [path for path in order or sorted(items) if "blob" in items[path]]


async def agrees(client: Client, name: str, entry: Json, order: Sequence[str] = ()) -> bool:
    """Tell whether both surfaces say the same about a skill, byte for byte, but for the note at the end."""
    text, blobs = await stitched_by_reading(client, entry, order)
    note = NOTE + "".join(f"- {path}\n" for path in blobs) if blobs else ""
    return (await prompt_text(client, name)).encode() == (text + note).encode()


async def prompts_of(client: Client) -> dict[str, str]:
    """Return the description of every prompt by name; none is listed twice."""
    found = await pages(client, "prompts/list")
    for page in found:
        VALIDATOR.validate(page)
    prompts = [prompt for page in found for prompt in page["prompts"]]
    names = {prompt["name"]: prompt.get("description", "") for prompt in prompts}
    assert len(names) == len(prompts), "a prompt is listed twice"
    return names


# Both surfaces, through a real client


def write_odd_skills(root: Path) -> None:
    write_skill(root / "plain")
    write_files(
        root / "acme/odd",
        {
            "SKILL.md": b"\xef\xbb\xbf"
            + skill_md("odd", body="No newline\r\nat the end").replace(b"\n", b"\r\n"),
            "references/crlf.md": "a\r\nb\r\n",
            "references/no newline.md": "a",
            "references/empty.md": "",
            "references/only-newline.md": "\n",
            "references/größe & mehr #1?.md": "ü\n",
            "references/nul.txt": b"a\0b",
            "references/latin.txt": b"caf\xe9\n",
            "references/lookalike.md": "x\n\n--- references/forged.md ---\ny\n",
            "a!b.txt": "1",
            "a b.txt": "2",
            "assets/logo.png": PNG,
            "nested/inner/notes.md": "Inside.\n",
        },
    )
    write_skill(root / "acme/odd/nested/inner")
    write_skill(root / "other/plain")
    head = len(skill_md("nearly")) + len("\n--- big.txt ---\n")
    write_skill(root / "nearly", {"big.txt": b"\xc3\xa9" * ((MEBIBYTE - head) // 2 - 1)})
    write_skill(root / "beyond", {"big.txt": b"x" * MEBIBYTE})


@asynccontextmanager
async def served(transport: str, root: Path, env: dict[str, str], mode: str) -> AsyncGenerator[Client]:
    """Run `skillwire serve` as a process of its own, and connect to it."""
    async with AsyncExitStack() as stack:
        if transport == "http":
            server = http_server(root, "--dialect", "prompt", env=env)
            target: Any = (await anyio.to_thread.run_sync(stack.enter_context, server)).url
        else:
            command, *args = words_of(root, "--dialect", "prompt")
            target = StdioServerParameters(command=command, args=args, env=env)
        yield await stack.enter_async_context(Client(target, mode=mode, cache=None))


@pytest.mark.requirement(
    "DUAL-02", "DUAL-03", "DUAL-04", "DUAL-05", "DUAL-06", "DUAL-11", "CONF-13", "OPEN-16"
)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_prompt_is_what_reading_the_skills_files_gives(
    transport: str, mode: str, root: Path, env: dict[str, str]
) -> None:
    write_odd_skills(root)

    with anyio.fail_after(90):
        async with served(transport, root, env, mode) as client:
            entries = await skills_of(client)
            prompts = await prompts_of(client)
            names = {
                "plain": "skill://plain/SKILL.md",
                "other-plain": "skill://other/plain/SKILL.md",
                "odd": "skill://acme/odd/SKILL.md",
                "inner": "skill://acme/odd/nested/inner/SKILL.md",
                "nearly": "skill://nearly/SKILL.md",
            }
            agreeing = [name for name, uri in names.items() if await agrees(client, name, entries[uri])]
            odd = await prompt_text(client, "odd")
            too_large = await refused(client, "prompts/get", name="beyond")
            unknown = await refused(client, "prompts/get", name="gone")
            resources = await listing(client, "resources/list")
            typed = await client.get_prompt("plain")

    assert set(prompts) == {*names, "beyond"}
    assert prompts["odd"] == entries[names["odd"]]["frontmatter"]["description"]
    assert agreeing == list(names)
    assert odd.startswith("\ufeff---\r\n")
    assert odd.endswith(NOTE + "- assets/logo.png\n- references/latin.txt\n")
    assert (too_large.code, "1048576 bytes" in too_large.message) == (INTERNAL_ERROR, True)
    assert unknown.code == INVALID_PARAMS
    assert {resource["uri"] for resource in resources} == set(entries)
    assert [type(message.content) for message in typed.messages] == [types.TextContent]


@pytest.mark.requirement("DUAL-11")
async def test_two_loads_from_disk_give_equal_bytes(root: Path, mode: str) -> None:
    write_odd_skills(root)
    texts: list[str] = []

    for _ in range(2):
        server = MCPServer("demo")
        add_skills(server, root, dialects=["prompt"], watch=False)
        async with connect(server, mode) as client:
            texts.append(await prompt_text(client, "odd"))

    assert texts[0] == texts[1]
    assert texts[0].index("--- a b.txt ---") < texts[0].index("--- a!b.txt ---")


contents = st.binary(max_size=12) | st.sampled_from(
    [b"", b"\n", b"a", b"a\r\n", b"\xff", b"\n\n--- b ---\n", b"\n--- SKILL.md ---", "é\u2028".encode()]
)
file_names = st.sampled_from(["a", "b.md", "c d.txt", "ü/x", "ü/y z", "assets/#1?.bin", "z/SKILL.md"])
built_files = st.lists(st.tuples(file_names, contents), max_size=5, unique_by=lambda file: file[0])
built_bodies = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@pytest.mark.requirement("DUAL-01", "DUAL-02", "DUAL-03", "DUAL-06", "DUAL-11")
@settings(deadline=None, max_examples=40)
@given(built_bodies, built_files, st.sampled_from(["legacy", "auto"]))
def test_whatever_a_skill_built_in_code_holds_both_surfaces_agree(
    body: str, files: list[tuple[str, bytes]], mode: str
) -> None:
    whole = Skill("tea", description="Use when brewing.", body="\n" + body)
    for path, content in files:
        whole = whole.with_reference(path, content)

    async def check() -> None:
        server: Server[Any] = Server("demo")
        add_skills(server).add(whole, prompt="brew")
        async with connect(server, mode) as client:
            [entry] = (await skills_of(client)).values()
            assert await agrees(client, "brew", entry, [path for path, _ in files])
            assert [item["uri"] for item in await listing(client, "resources/list")] == [entry["uri"]]
            assert list(await prompts_of(client)) == ["brew"]

    anyio.run(check)


# One call for both


@pytest.mark.requirement("DUAL-01", "DUAL-03", "DUAL-10", "DUAL-11")
async def test_one_call_makes_a_skill_a_prompt_too(server: AnyServer, mode: str) -> None:
    skills = add_skills(server, skill("other"))
    skills.add(CODE_MODE, prompt="start_code_mode")
    order = [file.path for file in CODE_MODE.files]

    async with connect(server, mode) as client:
        capabilities = client.server_capabilities
        entries = await skills_of(client)
        prompts = await prompts_of(client)
        agreed = await agrees(client, "start_code_mode", entries[CODE_MODE.uri.text], order)
        got = await ask(client, "prompts/get", name="start_code_mode")
        kinds = {path: (await read_item(client, CODE_MODE.uri.join(path)))["mimeType"] for path in order}

    assert prompts == {"start_code_mode": "Writes queries. Use when asked for data."}
    assert agreed
    assert got["messages"][0]["content"]["text"] == CODE_MODE.prompt_text()
    assert set(entries) == {CODE_MODE.uri.text, "skill://other/SKILL.md"}
    assert kinds == {file.path: file.media_type for file in CODE_MODE.files}
    assert kinds["references/schema.graphql"] == "application/graphql"
    assert capabilities is not None
    assert capabilities.prompts is not None


@pytest.mark.requirement("DUAL-01")
async def test_a_decorated_function_names_the_prompt_of_its_folder(root: Path, mode: str) -> None:
    write_skill(root / "refunds", {"references/policy.md": "Pay back."})
    server = MCPServer("demo")
    skills = add_skills(server)

    @skills.skill("acme/refunds", prompt="start_refunds")
    def refunds() -> Path:
        return root / "refunds"

    async with connect(server, mode) as client:
        [entry] = (await skills_of(client)).values()
        assert await agrees(client, "start_refunds", entry)

    assert refunds() == root / "refunds"


@pytest.mark.requirement("DUAL-01")
def test_a_prompt_needs_a_plain_name_of_its_own_and_one_skill_built_in_code(tmp_path: Path) -> None:
    skills = add_skills(MCPServer("demo"))

    for origins in ([], [tmp_path], [skill("one"), skill("two")], [PlainSource(skill("one"))]):
        with pytest.raises(SkillError):
            skills.add(*cast(Any, origins), prompt="start")
    with pytest.raises(InvalidSkillError):
        skills.add(skill("one"), prompt="not plain")
    assert skills.prompts is None

    skills.add(skill("one"), prompt="start")
    with pytest.raises(InvalidSkillError):
        skills.add(skill("two"), prompt="start")
    with pytest.raises(DuplicateSkillError):
        skills.add(skill("one"), prompt="again")


@pytest.mark.requirement("DUAL-01", "DUAL-09")
async def test_a_failed_call_changes_neither_surface(server: AnyServer, mode: str) -> None:
    skills = add_skills(server)
    skills.add(skill("one"), prompt="start")
    for built, prompt in ((skill("two"), "start"), (skill("one"), "again")):
        with pytest.raises(InvalidSkillError):
            skills.add(built, prompt=prompt)

    async with connect(server, mode) as client:
        assert list(await prompts_of(client)) == ["start"]
        assert list(await skills_of(client)) == ["skill://one/SKILL.md"]


@pytest.mark.requirement("DUAL-01")
async def test_prompts_come_and_go_with_their_skills_while_the_server_runs(mode: str) -> None:
    server: Server[Any] = Server("demo")
    skills = add_skills(server)
    skills.add(skill("one"), prompt="first")

    async with connect(server, mode) as client:
        skills.add(skill("two"), prompt="second")
        await skills.source.refresh()
        both = await prompts_of(client)
        skills.remove(SkillUri("skill://one/SKILL.md"))
        await skills.source.refresh()
        rest = await prompts_of(client)
        gone = await refused(client, "prompts/get", name="first")

    assert (list(both), list(rest)) == (["first", "second"], ["second"])
    assert gone.code == INVALID_PARAMS


async def test_the_first_prompt_cannot_come_after_the_start(mode: str) -> None:
    server = MCPServer("demo")
    skills = add_skills(server)

    async with connect(server, mode) as client:
        with pytest.raises(SkillError):
            skills.add(skill("one"), prompt="start")
        assert await skills_of(client) == {}


@pytest.mark.requirement("DUAL-09")
async def test_what_is_registered_cannot_be_changed_from_outside() -> None:
    server = MCPServer("demo")
    skills = add_skills(server)
    skills.add(CODE_MODE, prompt="start_code_mode")

    async with connect(server):
        assert skills.prompts is not None
        book = skills.prompts.table
        with pytest.raises(TypeError):
            cast(Any, book.by_name)["other"] = book.prompts[0]
        for value, name in ((book, "prompts"), (book.prompts[0], "name"), (CODE_MODE, "skill_md")):
            with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
                setattr(value, name, ())
        assert skills.prompts.table is book


# Names


@pytest.mark.requirement("DUAL-01")
async def test_skills_that_share_a_name_are_prompts_by_path(server: AnyServer, mode: str) -> None:
    same = [skill("a/refunds"), skill("refunds"), skill("b/refunds"), skill("tea", scheme="acme")]
    skills = add_skills(server, *same, dialects=["prompt"])
    skills.add(skill("chosen"), prompt="tea")

    async with connect(server, mode) as client:
        prompts = await prompts_of(client)
        texts = [await prompt_text(client, name) for name in ("a-refunds", "refunds", "tea", "acme://tea")]

    assert set(prompts) == {"a-refunds", "refunds", "b-refunds", "tea", "acme://tea"}
    assert ["name: refunds" in texts[0], "name: refunds" in texts[1]] == [True, True]
    assert ["name: chosen" in texts[2], "name: tea" in texts[3]] == [True, True]


@pytest.mark.requirement("DUAL-01", "DUAL-04")
async def test_the_servers_own_prompts_come_first_and_win(
    server: AnyServer, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"greet": "Hello.", "tea": "Own tea."}
    give_prompts(server, own)
    add_skills(server, skill("tea"), skill("coffee"), dialects=["prompt"])

    with caplog.at_level(logging.WARNING, "skillwire"):
        async with connect(server, mode) as client:
            names = [item["name"] for item in await listing(client, "prompts/list", "prompts")]
            again = [item["name"] for item in await listing(client, "prompts/list", "prompts")]
            texts = {name: (await client.get_prompt(name)).messages[0].content for name in names}

    assert names == again == ["greet", "tea", "coffee"]
    assert [cast(types.TextContent, texts[name]).text for name in own] == list(own.values())
    assert "name: coffee" in cast(types.TextContent, texts["coffee"]).text
    [record] = [record for record in caplog.records if "has its own prompt" in record.message]
    assert "skill://tea/SKILL.md" in record.message


def give_prompts(server: AnyServer, texts: dict[str, str]) -> None:
    """Give a server prompts of its own; a lowlevel one lists them one to a page."""
    if isinstance(server, MCPServer):
        for name, text in texts.items():
            server.prompt(name=name)(lambda text=text: text)
        return
    names = list(texts)

    async def list_them(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams
    ) -> types.ListPromptsResult:
        position = int(params.cursor or 0)
        following = str(position + 1) if position + 1 < len(names) else None
        return types.ListPromptsResult(prompts=[types.Prompt(name=names[position])], next_cursor=following)

    async def get_one(
        context: ServerRequestContext[Any, Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        content = types.TextContent(type="text", text=texts[params.name])
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, list_them)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get_one)


async def test_a_server_that_cannot_list_its_own_prompts_still_has_those_of_skills(mode: str) -> None:
    server: Server[Any] = Server("demo")

    async def fail(context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams) -> Any:
        raise RuntimeError("broken")

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, fail)
    add_skills(server, skill("tea"), dialects=["prompt"])

    async with connect(server, mode) as client:
        assert "name: tea" in await prompt_text(client, "tea")
        assert (await refused(client, "prompts/list")).message != ""


async def test_prompts_of_skills_are_listed_page_by_page(server: AnyServer, mode: str) -> None:
    names = [f"skill-{number}" for number in range(5)]
    add_skills(server, *map(skill, names), page_size=2, dialects=["prompt"])

    async with connect(server, mode) as client:
        found = await pages(client, "prompts/list")
        wrong = (
            await refused(client, "prompts/list", cursor="nonsense") if isinstance(server, Server) else None
        )

    assert [[prompt["name"] for prompt in page["prompts"]] for page in found] == [
        names[:2],
        names[2:4],
        names[4:],
    ]
    assert all(("ttlMs" in page) == (mode == "auto") for page in found)
    assert wrong is None or wrong.code == INVALID_PARAMS


# What changes


@pytest.mark.requirement("DUAL-03")
async def test_a_dynamic_skills_prompt_is_made_anew_for_each_request(mode: str) -> None:
    made: list[int] = []

    def body() -> str:
        made.append(len(made))
        return f"Made {len(made)} times."

    def fail() -> str:
        raise RuntimeError("hunter2")

    live = DynamicSkill("live", description="Use now.", body=body).with_file("z.md", lambda: "Z")
    live = live.with_file("a.md", lambda: "A")
    server = MCPServer("demo")
    skills = add_skills(
        server, DynamicSkill("broken", description="Use never.", body=fail), dialects=["prompt"]
    )
    skills.add(live, prompt="start_live")

    async with connect(server, mode) as client:
        texts = [await prompt_text(client, "start_live") for _ in range(2)]
        broken = await refused(client, "prompts/get", name="broken")

    assert ["Made 1 times." in texts[0], "Made 2 times." in texts[1]] == [True, True]
    assert all(text.endswith("\n\n--- z.md ---\nZ\n\n--- a.md ---\nA\n") for text in texts)
    assert broken.code == INTERNAL_ERROR
    assert "hunter2" not in broken.message


class Moving(PlainSource):
    """A source whose skill is replaced whenever a file was read, `moves` times."""

    def __init__(self, moves: int) -> None:
        super().__init__(version_of(0))
        self._moves = moves

    async def read_file(self, uri: str) -> bytes:
        content = await super().read_file(uri)
        if self._moves and uri.endswith("b.md"):
            self._moves -= 1
            [current] = self.skills
            self.skills = [version_of(int(current.read("a.md")) + 1)]
        return content


def version_of(number: int) -> Skill:
    built = skill("tea", body=f"Version {number}.\n")
    for path in ("a.md", "b.md", "c.md"):
        built = built.with_reference(path, str(number))
    return built


@pytest.mark.requirement("DUAL-03")
async def test_a_skill_that_changes_under_way_is_answered_from_one_state(mode: str) -> None:
    server = MCPServer("demo")
    add_skills(server, Moving(1), dialects=["prompt"])

    async with connect(server, mode) as client:
        text = await prompt_text(client, "tea")

    assert "Version 1." in text
    assert text.endswith("--- a.md ---\n1\n\n--- b.md ---\n1\n\n--- c.md ---\n1\n")


@pytest.mark.requirement("DUAL-03")
async def test_a_skill_that_never_stops_changing_is_refused(mode: str) -> None:
    server = MCPServer("demo")
    add_skills(server, Moving(1000), dialects=["prompt"])

    async with connect(server, mode) as client:
        with anyio.fail_after(20):
            changing = await refused(client, "prompts/get", name="tea")

    assert changing.code == INTERNAL_ERROR
    assert "changing" in changing.message


async def test_an_edited_file_is_in_the_next_prompt(root: Path, mode: str) -> None:
    write_skill(root / "tea", {"a.md": "old\n"})
    server = MCPServer("demo")
    skills = add_skills(server, root, dialects=["prompt"], watch=False)

    async with connect(server, mode) as client:
        before = [await prompt_text(client, "tea") for _ in range(2)]
        write_files(root / "tea", {"a.md": "newer\n"})
        await skills.source.refresh()
        assert await read_item(client, "skill://tea/a.md")
        after = await prompt_text(client, "tea")

    assert before[0] == before[1]
    assert after == before[0].replace("old\n", "newer\n")


@pytest.mark.parametrize("dialects", [["prompt"], []], ids=["all", "one"])
async def test_clients_are_told_when_prompts_change(
    server: AnyServer, mode: str, dialects: list[str]
) -> None:
    skills = add_skills(server, dialects=dialects)
    skills.add(skill("one"), prompt="start")
    inbox = Inbox()

    with anyio.fail_after(30):
        async with connect(server, mode, message_handler=inbox.put) as client:
            await skills_of(client)  # The server has seen that the handshake is over.
            declared = client.server_capabilities.prompts
            if mode == "legacy":
                skills.add(skill("two"))
                await inbox.wait_for(_tells_of_prompts)
            else:
                async with client.listen(prompts_list_changed=True) as told:
                    skills.add(skill("two"))
                    event = await anext(told)
                assert (told.honored.prompts_list_changed, event) == (True, PromptsListChanged())

    assert declared is not None
    assert declared.list_changed is True


def _tells_of_prompts(inbox: Inbox) -> bool:
    return any(isinstance(message, types.PromptListChangedNotification) for message in inbox.messages)


# What stays as it is


@pytest.mark.requirement("NEG-16")
async def test_without_the_dialect_nothing_of_it_is_there(mode: str) -> None:
    plain: Server[Any] = Server("demo")
    add_skills(plain, CODE_MODE)
    speaking: Server[Any] = Server("demo")
    add_skills(speaking, CODE_MODE, dialects=["prompt"])

    async with connect(plain, mode) as client, connect(speaking, mode) as other:
        missing = await refused(client, "prompts/list")
        capabilities = client.server_capabilities
        listed = [await ask(asked, "skills/list") for asked in (client, other)]
        resources = [await ask(asked, "resources/list") for asked in (client, other)]

    assert missing.code == METHOD_NOT_FOUND
    assert capabilities is not None
    assert capabilities.prompts is None
    assert listed[0] == listed[1]
    assert resources[0] == resources[1]


@pytest.mark.requirement("DUAL-06", "CONF-13")
async def test_neither_the_resources_nor_an_index_list_supporting_files(server: AnyServer, mode: str) -> None:
    add_skills(server, CODE_MODE, skill("acme/tea"), dialects=["prompt", "index-april"])

    async with connect(server, mode) as client:
        entries = await skills_of(client)
        listed = {item["uri"] for item in await listing(client, "resources/list")}
        index = json.loads((await read_item(client, "skill://index.json"))["text"])
        files = {line["uri"] for entry in entries.values() for line in entry["resources"]}
        readable = [(await read_item(client, uri))["uri"] for uri in sorted(files - set(entries))]

    assert listed == {*entries, "skill://index.json"}
    assert {item["url"] for item in index["skills"]} == set(entries)
    assert len(readable) == len(CODE_MODE.files)


# FastMCP


@pytest.mark.requirement("DUAL-01", "DUAL-03", "DUAL-06", "DUAL-10")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_fastmcp_server_has_both_surfaces_too(mode: str, root: Path) -> None:
    write_odd_skills(root)
    server: FastMCP[Any] = FastMCP("demo")
    server.prompt(name="plain")(lambda: "Own.")
    skills = add_skills(server, root, dialects=["prompt"], watch=False)
    skills.add(CODE_MODE, prompt="start_code_mode")

    async with FastClient(server, mode=mode) as fast:
        client = cast(Client, fast)
        entries = await skills_of(client)
        prompts = await prompts_of(client)
        order = [file.path for file in CODE_MODE.files]
        odd = await agrees(client, "odd", entries["skill://acme/odd/SKILL.md"])
        code_mode = await agrees(client, "start_code_mode", entries[CODE_MODE.uri.text], order)
        too_large = await refused(client, "prompts/get", name="beyond")
        unknown = await refused(client, "prompts/get", name="gone")
        resources = await listing(client, "resources/list")
        own = await ask(client, "prompts/get", name="plain")

    own_and_skills = {"plain", "other-plain", "odd", "inner", "nearly", "beyond", "start_code_mode"}
    assert set(prompts) == own_and_skills
    assert own["messages"][0]["content"]["text"] == "Own."
    assert (odd, code_mode) == (True, True)
    assert (too_large.code, "1048576 bytes" in too_large.message) == (INTERNAL_ERROR, True)
    assert unknown.code == INVALID_PARAMS
    assert {resource["uri"] for resource in resources} == set(entries)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_on_fastmcp_a_skill_that_is_hidden_is_no_prompt_either(mode: str) -> None:
    server: FastMCP[Any] = FastMCP("demo")
    skills = add_skills(server, skill("open"), dialects=["prompt"])
    skills.add(skill("secret"), prompt="start_secret")
    server.disable(names={"secret"})

    async with FastClient(server, mode=mode) as fast:
        client = cast(Client, fast)
        prompts = await prompts_of(client)
        with pytest.raises(MCPError):
            await prompt_text(client, "start_secret")

    assert list(prompts) == ["open"]


async def test_a_fastmcp_server_without_the_dialect_has_only_its_own_prompts() -> None:
    server: FastMCP[Any] = FastMCP("demo")
    server.prompt(name="own")(lambda: "Own.")
    add_skills(server, skill("tea"))

    async with FastClient(server) as fast:
        assert list(await prompts_of(cast(Client, fast))) == ["own"]
