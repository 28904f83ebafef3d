"""What reviewers of the extension asked for, on every kind of server, seen by real clients."""

import json
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fastmcp import FastMCP
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from configs import configured
from folders import skill_md, write_files, write_skill
from hostile.hosting import User, hosting
from integration.hosting_serve import over_stdio
from programs import http_server, stdio_server
from serving import modern
from skillwire.core.errors import INVALID_PARAMS, InvalidUriError, SkillError, SourceError
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.host import HostPolicy, get_skill, list_skills
from skillwire.host.model.endpoints import ShowRule
from skillwire.server import Skills, add_skills
from skillwire.server.meta import FORMAT, Subject, with_format
from skillwire.wire.by_name import declarations_in
from talking import (
    Json,
    ask,
    connect,
    directory,
    get,
    is_as_promised,
    listing,
    pages,
    read,
    read_item,
    refused,
    skills_of,
)

REFUNDS = "skill://acme/billing/refunds/SKILL.md"
TEA = "skill://tea/SKILL.md"
MIRROR = "io.modelcontextprotocol.skills/"
EXTRA = (
    'license: "MIT"\nallowed-tools: Read\nodd: [1, null, {x: 2.5}]\nmetadata:\n  owner: "billing"\n'
    "  skillwire/dependencies: |\n    pandas (>=2.2): Reads the tables.\n    make\n"
    "  skillwire/scopes: |\n    tickets:read: Looks up tickets.\n"
)

AnyServer: TypeAlias = Server[Any] | MCPServer[Any] | FastMCP[Any]
Serve: TypeAlias = Callable[[Path, dict[str, str]], AbstractContextManager[Callable[[Json], Json]]]
KINDS: list[Callable[[str], AnyServer]] = [Server, MCPServer, FastMCP]


@pytest.fixture(params=KINDS, ids=["lowlevel", "mcpserver", "fastmcp"])
def anyone(request: pytest.FixtureRequest) -> AnyServer:
    return request.param("demo")


@pytest.fixture
def folder(root: Path) -> Path:
    write_files(
        root,
        {
            "acme/billing/refunds/SKILL.md": skill_md("refunds", extra=EXTRA),
            "acme/billing/refunds/references/policy.md": "Thirty days.\n",
            "acme/billing/refunds/assets/logo.png": bytes(range(256)),
            "tea/SKILL.md": skill_md("tea"),
        },
    )
    return root


def talk(server: AnyServer, mode: str) -> Client:
    """Make the SDK's client of any kind of server."""
    if isinstance(server, FastMCP):
        return connect(server._mcp_server, mode)  # pyright: ignore[reportPrivateUsage]
    return connect(server, mode)


@asynccontextmanager
async def plain(folder: Path, mode: str, **options: Any) -> AsyncGenerator[Client]:
    server: MCPServer[Any] = MCPServer("demo")
    add_skills(server, folder, watch=False, **options)
    async with connect(server, mode) as client:
        yield client


async def everything(client: Client) -> dict[str, Json]:
    """Return what a server answers to each question about skills, without the protocol's own remarks."""
    answers = {
        "skills/list": await ask(client, "skills/list"),
        "skills/get": await ask(client, "skills/get", uri=REFUNDS),
        "resources/list": await ask(client, "resources/list"),
        "resources/read": await ask(client, "resources/read", uri=REFUNDS),
        "directory": await ask(client, "resources/directory/read", uri=REFUNDS.removesuffix("/SKILL.md")),
        "above": await ask(client, "resources/directory/read", uri="skill://acme"),
    }
    for answer in answers.values():
        meta = {
            key: value
            for key, value in answer.pop("_meta", {}).items()
            if not key.startswith("io.modelcontextprotocol/")
        }
        answer |= {"_meta": meta} if meta else {}
    return answers


def without_meta(value: Any) -> Any:
    """Return a JSON value without any `_meta` in it."""
    if isinstance(value, dict):
        return {key: without_meta(item) for key, item in value.items() if key != "_meta"}  # pyright: ignore[reportUnknownVariableType]
    return [without_meta(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def sizes_below(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*.*") if path.is_file()]
    return {f"skill://{path.relative_to(folder).as_posix()}": path.stat().st_size for path in files}


def of_skill(resources: list[Json], uri: str = REFUNDS) -> Json:
    return next(resource for resource in resources if resource["uri"] == uri)


# Sizes and digests


@pytest.mark.requirement("ASK-01")
async def test_the_size_of_a_file_is_the_same_wherever_it_is_told(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(anyone, folder, watch=False)
    sizes = sizes_below(folder)

    async with talk(anyone, mode) as client:
        entries = await skills_of(client)
        resources = await listing(client, "resources/list")
        inside = [
            child
            for place in ("", "/references", "/assets")
            for child in await listing(
                client, "resources/directory/read", uri=REFUNDS.removesuffix("/SKILL.md") + place
            )
            if child["mimeType"] != "inode/directory"
        ]

    lines = [line for entry in entries.values() for line in entry["resources"]]
    assert {line["uri"]: line["size"] for line in lines} == sizes
    assert {item["uri"]: item["size"] for item in resources} == {uri: sizes[uri] for uri in (REFUNDS, TEA)}
    assert {item["uri"]: item["size"] for item in inside} == {uri: sizes[uri] for uri in sizes if uri != TEA}


@pytest.mark.requirement("ASK-21")
async def test_a_changed_supporting_file_changes_what_is_promised_of_the_skill(
    folder: Path, mode: str
) -> None:
    policy = REFUNDS.replace("SKILL.md", "references/policy.md")
    async with plain(folder, mode) as client:
        before = await get(client, REFUNDS)
        for line in before["resources"]:
            assert is_as_promised(await read(client, line["uri"]), line)
    write_files(folder, {"acme/billing/refunds/references/policy.md": "Sixty days.\n"})

    async with plain(folder, mode) as client:
        after = await get(client, REFUNDS)

    changed = [line["uri"] for line in after["resources"] if line not in before["resources"]]
    assert changed == [policy]
    assert after["frontmatter"] == before["frontmatter"]


# Frontmatter in `_meta`


@pytest.mark.requirement("META-03", "ASK-03")
async def test_a_mirror_repeats_the_frontmatter_where_gateways_look(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(anyone, folder, mirror=True, watch=False)

    async with talk(anyone, mode) as client:
        frontmatter = (await get(client, REFUNDS))["frontmatter"]
        found = [
            of_skill(await listing(client, "resources/list")),
            of_skill(
                await listing(client, "resources/directory/read", uri=REFUNDS.removesuffix("/SKILL.md"))
            ),
        ]
        tea = of_skill(await listing(client, "resources/list"), TEA)

    expected = {
        f"{MIRROR}{key}": value for key, value in frontmatter.items() if key not in ("name", "description")
    }
    assert set(frontmatter) > {"license", "allowed-tools", "odd", "metadata"}
    for resource in found:
        assert {
            key: resource["_meta"][key] for key in resource["_meta"] if key.startswith(MIRROR)
        } == expected
    assert "_meta" not in tea


@pytest.mark.requirement("META-03", "ASK-03", "NEG-16")
async def test_without_the_mirror_nothing_differs_and_with_it_only_that(folder: Path, mode: str) -> None:
    async with plain(folder, mode) as client:
        off = await everything(client)
    async with plain(folder, mode, mirror=True) as client:
        on = await everything(client)

    assert MIRROR not in json.dumps(off)
    assert [name for name in off if off[name] != on[name]] == ["resources/list", "directory"]
    assert without_meta(on) == without_meta(off)


@pytest.mark.requirement("META-03", "ASK-03")
def test_the_command_mirrors_on_the_fast_path_too(folder: Path, env: dict[str, str]) -> None:
    request = modern("resources/directory/read", uri=REFUNDS.removesuffix("/SKILL.md"))
    with stdio_server(folder, *configured(Path(env["HOME"]), mirror=True), env=env) as server:
        [first, again] = [server.call({**request, "id": number}) for number in (1, 2)]
    with stdio_server(folder, env=env) as server:
        off = server.call(request)

    assert of_skill(first["result"]["resources"])["_meta"][f"{MIRROR}license"] == "MIT"
    assert first["result"] == again["result"]
    assert MIRROR not in json.dumps(off)


# `_meta` of the author's own


def noting(subject: Subject) -> dict[str, JsonValue]:
    """Say of everything what it is, and try to say more than is allowed."""
    about: dict[str, JsonValue] = {"kind": subject.kind, "uri": subject.uri, "method": subject.method}
    return {
        "com.example/about": about,
        "io.modelcontextprotocol/serverInfo": "somebody else",
        "io.modelcontextprotocol.skills/license": "none",
        "bare": True,
    }


@pytest.mark.requirement("ASK-04")
async def test_an_author_may_add_to_every_result_entry_and_resource(
    folder: Path, anyone: AnyServer, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_skills(anyone, folder, annotate=noting, watch=False)
    with caplog.at_level(logging.CRITICAL):
        async with talk(anyone, mode) as client:
            found = await everything(client)
            info = (
                (await ask(client, "skills/list")).get("_meta", {}).get("io.modelcontextprotocol/serverInfo")
            )
    async with plain(folder, mode) as client:
        without = await everything(client)

    asked = {"skills/get": REFUNDS, "resources/read": REFUNDS, "above": "skill://acme"}
    asked["directory"] = REFUNDS.removesuffix("/SKILL.md")
    for name, answer in found.items():
        method = "resources/directory/read" if name in ("directory", "above") else name
        about = {"kind": "result", "uri": asked.get(name, ""), "method": method}
        assert answer["_meta"] == {"com.example/about": about}
    entries = [*found["skills/list"]["skills"], found["skills/get"]["skill"]]
    resources = [
        item for name in ("resources/list", "directory", "above") for item in found[name]["resources"]
    ]
    for kind, things in (("entry", entries), ("resource", resources)):
        for thing in things:
            assert thing["_meta"]["com.example/about"] == {"kind": kind, "uri": thing["uri"], "method": ""}
            assert not {"bare", "io.modelcontextprotocol.skills/license"} & thing["_meta"].keys()
    assert info != "somebody else"
    if isinstance(anyone, MCPServer):
        assert without_meta(found) == without_meta(without)


@pytest.mark.requirement("ASK-04")
async def test_the_host_keeps_what_is_said_about_an_entry_as_it_is(folder: Path, mode: str) -> None:
    said: dict[str, JsonValue] = {"com.example/scan": {"verdict": "clean", "by": ["a", None, 1.5]}}

    def annotate(subject: Subject) -> dict[str, JsonValue]:
        return said

    async with plain(folder, mode, annotate=annotate) as client:
        listed = await list_skills(client)
        entry = await get_skill(client, REFUNDS)

    assert [item.extra["_meta"] for item in listed.entries] == [said, said]
    assert entry.extra["_meta"] == said
    assert entry.to_json()["_meta"] == said


@pytest.mark.requirement("ASK-04")
async def test_pages_stay_small_whatever_is_added_to_their_entries(mode: str) -> None:
    server: MCPServer[Any] = MCPServer("demo")
    built = [Skill(f"s{number}", description="Use when testing.", body="x") for number in range(120)]
    add_skills(server, *built, annotate=lambda _: {"com.example/long": "x" * 16_000})

    async with connect(server, mode) as client:
        found = await pages(client, "skills/list")

    assert len(found) > 1
    assert max(len(json.dumps(page)) for page in found) < 1_048_576
    assert sum(len(page["skills"]) for page in found) == 120


@pytest.mark.requirement("ASK-29")
async def test_a_server_may_say_which_format_of_skills_it_follows(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(anyone, folder, annotate=with_format, watch=False)
    async with talk(anyone, mode) as client:
        found = await everything(client)
    async with plain(folder, mode) as client:
        silent = await everything(client)

    told = found["skills/list"].pop("_meta")
    assert set(told) == {FORMAT}
    assert {"name", "description"} < set(told[FORMAT]["fields"])
    assert FORMAT not in json.dumps([found, silent])


@pytest.mark.requirement("ASK-14")
async def test_what_a_skill_declares_to_need_is_told_with_its_resource(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(anyone, folder, watch=False)

    async with talk(anyone, mode) as client:
        resource = of_skill(await listing(client, "resources/list"))
        entry = await get(client, REFUNDS)

    assert resource["_meta"] == {
        "skillwire/dependencies": [
            {"name": "pandas", "version": ">=2.2", "description": "Reads the tables."},
            {"name": "make"},
        ],
        "skillwire/scopes": [{"name": "tickets:read", "description": "Looks up tickets."}],
    }
    assert "_meta" not in entry
    # The same prefix is read for dialects by name, and neither reader stumbles over the other's keys.
    frontmatter = Skill("refunds", body=skill_md("refunds", extra=EXTRA)).frontmatter
    assert declarations_in(frontmatter).findings == ()


# Another media type


@pytest.mark.requirement("ASK-31")
async def test_another_media_type_of_skill_files_is_the_same_everywhere_and_changes_no_promise(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    write_skill(folder / "acme/billing/refunds/inner")
    add_skills(anyone, folder, skill_media_type="text/x-skill; charset=utf-8", watch=False)
    inner = REFUNDS.replace("SKILL.md", "inner/SKILL.md")

    async with talk(anyone, mode) as client:
        told = [
            of_skill(await listing(client, "resources/list"), uri)["mimeType"]
            for uri in (REFUNDS, inner, TEA)
        ]
        told.append((await directory(client, REFUNDS.removesuffix("/SKILL.md")))[REFUNDS])
        told += [(await read_item(client, uri))["mimeType"] for uri in (REFUNDS, inner)]
        policy = await read_item(client, REFUNDS.replace("SKILL.md", "references/policy.md"))
        entry = await get(client, REFUNDS)
        content = await read(client, REFUNDS)

    assert set(told) == {"text/x-skill; charset=utf-8"}
    assert policy["mimeType"] == "text/markdown"
    assert is_as_promised(content, of_skill(entry["resources"]))


@pytest.mark.requirement("ASK-31")
def test_what_is_no_media_type_stops_the_server_before_it_starts(folder: Path) -> None:
    with pytest.raises(ValueError, match="media type"):
        add_skills(MCPServer("demo"), folder, skill_media_type="markdown")


# Finding skills by words


def with_own_tools(server: AnyServer) -> AnyServer:
    """Give a server a tool of its own, as far as that takes one line."""
    if isinstance(server, MCPServer | FastMCP):

        @server.tool()
        def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
            return a + b

    return server


async def found_by(client: Client, **arguments: object) -> list[Json]:
    """Return the links to what was found, or the words that say that nothing was."""
    result = await ask(client, "tools/call", name="find_skills", arguments=arguments)
    assert not result.get("isError"), result
    *links, words = result["content"]
    assert words["type"] == "text" and all(link["uri"] in words["text"] for link in links)
    assert [link["uri"] for link in links] == [
        skill["uri"] for skill in result["structuredContent"]["skills"]
    ]
    return links or [words]


@pytest.mark.requirement("ASK-08")
async def test_a_client_finds_a_skill_by_words_and_then_asks_for_it(
    folder: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(with_own_tools(anyone), folder, find_tool=True, watch=False)

    async with talk(anyone, mode) as client:
        tools = [tool["name"] for tool in (await ask(client, "tools/list"))["tools"]]
        [link] = await found_by(client, query="test refunds", limit=1)
        nothing = await found_by(client, query="zebra")
        entry = await get_skill(client, SkillUri.parse(link["uri"]))
        content = await read(client, link["uri"])
        own = None
        if len(tools) > 1:
            own = await ask(client, "tools/call", name="add", arguments={"a": 1, "b": 2})

    assert sorted(tools) == (["find_skills"] if isinstance(anyone, Server) else ["add", "find_skills"])
    assert (link["type"], link["uri"], link["name"]) == ("resource_link", REFUNDS, "refunds")
    assert link["mimeType"] == "text/markdown"
    assert [item["type"] for item in nothing] == ["text"]
    assert entry.uri.text == REFUNDS
    assert is_as_promised(content, of_skill(entry.to_json()["resources"]))  # pyright: ignore[reportArgumentType]
    assert own is None or own["content"][0]["text"] == "3"


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": ""},
        {"query": 7},
        {"query": "x" * 401},
        {"query": "tea", "limit": 0},
        {"query": "tea", "limit": "2"},
        {"query": "tea", "cursor": "zz"},
        {"query": "tea", "cursor": 1},
        {"query": "tea", "below": "a/../b"},
        {"query": "tea", "has_scripts": "yes"},
        {"query": "tea", "where": "acme"},
    ],
)
async def test_a_bad_question_is_answered_with_a_word_and_not_with_skills(
    folder: Path, anyone: AnyServer, mode: str, arguments: Json
) -> None:
    add_skills(anyone, folder, find_tool=True, watch=False)

    async with talk(anyone, mode) as client:
        result = await ask(client, "tools/call", name="find_skills", arguments=arguments)

    assert result["isError"] is True
    assert [item["type"] for item in result["content"]] == ["text"]


@pytest.mark.requirement("ASK-08")
async def test_no_tool_is_there_unless_it_was_asked_for(folder: Path, mode: str) -> None:
    async with plain(folder, mode) as client:
        assert (await ask(client, "tools/list"))["tools"] == []


@pytest.mark.requirement("ASK-08")
async def test_a_tool_of_the_servers_own_by_that_name_wins(folder: Path, mode: str) -> None:
    for server in (MCPServer[Any]("demo"), FastMCP[Any]("demo")):

        @server.tool(name="find_skills")
        def own(query: str) -> str:  # pyright: ignore[reportUnusedFunction]
            return f"looked for {query}"

        add_skills(server, folder, find_tool=True, watch=False)
        async with talk(server, mode) as client:
            tools = (await ask(client, "tools/list"))["tools"]
            result = await ask(client, "tools/call", name="find_skills", arguments={"query": "tea"})

        assert [tool["name"] for tool in tools] == ["find_skills"]
        assert result["content"][0]["text"] == "looked for tea"


@pytest.mark.requirement("ASK-08")
async def test_nobody_finds_what_a_server_hides(folder: Path, mode: str) -> None:
    server = FastMCP[Any]("demo")
    add_skills(server, folder, find_tool=True, watch=False)
    server.disable(names={"refunds"})

    async with talk(server, mode) as client:
        found = await found_by(client, query="testing refunds tea")

    assert [item["uri"] for item in found] == [TEA]


@pytest.mark.requirement("ASK-08")
async def test_what_is_added_while_the_server_runs_is_found_and_what_is_gone_is_not(mode: str) -> None:
    server: MCPServer[Any] = MCPServer("demo")
    skills: Skills = add_skills(server, find_tool=True)
    tea = Skill("tea", description="Use when thirsty.", body="Boil.\n")

    async with connect(server, mode) as client:
        before = await found_by(client, query="tea")
        skills.add(tea)
        during = await _until(client, "resource_link")
        skills.remove(tea.uri)
        after = await _until(client, "text")

    assert [item["type"] for item in before] == [item["type"] for item in after] == ["text"]
    assert [item["uri"] for item in during] == [TEA]


async def _until(client: Client, kind: str) -> list[Json]:
    for _ in range(1000):
        found = await found_by(client, query="tea")
        if found[0]["type"] == kind:
            return found
    raise AssertionError(f"the answer never was a {kind}")


@contextmanager
def over_stdio_pipe(folder: Path, env: dict[str, str]) -> Generator[Callable[[Json], Json]]:
    with stdio_server(folder, *configured(Path(env["HOME"]), find=True), "--no-watch", env=env) as server:
        yield server.call


@contextmanager
def over_loopback(folder: Path, env: dict[str, str]) -> Generator[Callable[[Json], Json]]:
    with http_server(folder, *configured(Path(env["HOME"]), find=True), "--no-watch", env=env) as server:

        def call(request: Json) -> Json:
            name = request["params"].get("name")
            return server.call(request, **({"Mcp_Name": name} if name else {}))

        yield call


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize("serve", [over_stdio_pipe, over_loopback])
def test_the_command_offers_the_tool_on_request(folder: Path, env: dict[str, str], serve: Serve) -> None:
    with serve(folder, env) as call:
        tools = call(modern("tools/list"))["result"]["tools"]
        found = call(modern("tools/call", 2, name="find_skills", arguments={"query": "tea"}))["result"]
        unknown = call(modern("tools/call", 3, name="gone", arguments={}))

    assert [tool["name"] for tool in tools] == ["find_skills"]
    assert [item["uri"] for item in found["content"][:-1]] == [TEA]
    assert unknown["error"]["code"] == INVALID_PARAMS


# Groups


@pytest.mark.requirement("ASK-09")
async def test_a_skill_can_be_the_door_to_a_group_that_is_walked_by_directories(
    root: Path, anyone: AnyServer, mode: str
) -> None:
    write_files(
        root,
        {
            "acme/start/SKILL.md": skill_md("start", body="All of billing is in skill://acme/billing\n"),
            "acme/billing/refunds/SKILL.md": skill_md("refunds"),
            "acme/billing/eu/invoices/SKILL.md": skill_md("invoices"),
            "acme/billing/eu/invoices/rules.md": "Rules.\n",
            "tea/SKILL.md": skill_md("tea"),
        },
    )
    add_skills(anyone, root, watch=False)

    async with talk(anyone, mode) as client:
        body = (await read(client, "skill://acme/start/SKILL.md")).decode()
        waiting, seen = [body.split()[-1]], list[str]()
        while waiting:
            place = waiting.pop()
            for uri, media_type in (await directory(client, place)).items():
                (waiting if media_type == "inode/directory" else seen).append(uri)
        members = [await get(client, uri) for uri in sorted(seen) if uri.endswith("/SKILL.md")]

    assert sorted(seen) == [
        "skill://acme/billing/eu/invoices/SKILL.md",
        "skill://acme/billing/eu/invoices/rules.md",
        "skill://acme/billing/refunds/SKILL.md",
    ]
    assert [member["frontmatter"]["name"] for member in members] == ["invoices", "refunds"]


# Ways around a blocklist

SPELLINGS = [
    "skill://acme/billing/refunds/%53KILL.md",
    "SKILL://acme/billing/refunds/SKILL.md",
    "skill://acme/billing/%72efunds/SKILL%2Emd",
    "skill://acme/billing/refunds/SKILL.md/",
    "skill://acme/billing/refunds/./SKILL.md",
    "skill://acme/billing/x/../refunds/SKILL.md",
    "skill://acme/billing//refunds/SKILL.md",
    "skill://acme/billing/refunds/SKILL.md?x",
    "skill://acme/billing/refunds/SKILL.md#x",
    "skill://acme/billing%2Frefunds/SKILL.md",
]


@pytest.mark.requirement("ASK-28", "URI-10", "DIR-14")
@pytest.mark.parametrize("spelling", [REFUNDS, *SPELLINGS])
async def test_no_spelling_leads_around_what_a_fastmcp_server_hides(
    folder: Path, mode: str, spelling: str
) -> None:
    server = FastMCP[Any]("demo")
    add_skills(server, folder, watch=False, find_tool=True)
    server.disable(names={"refunds"})
    place = spelling.rstrip("/").rpartition("/")[0]

    async with talk(server, mode) as client:
        codes = [
            (await refused(client, method, uri=uri)).code
            for method, uri in [
                ("resources/read", spelling),
                ("skills/get", spelling),
                ("resources/directory/read", place),
                ("resources/directory/read", f"{place}/"),
                ("resources/read", spelling.replace("SKILL.md", "references/policy.md")),
            ]
        ]

    assert set(codes) == {INVALID_PARAMS}


@pytest.mark.requirement("ASK-28", "URI-10", "DIR-14")
async def test_no_spelling_leads_around_what_a_user_turned_off(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    user = User()
    options = {"policy": HostPolicy(show={"desk/refunds": ShowRule.OFF})}
    caught: set[str] = set()

    async with hosting(tmp_path / "host", [over_stdio(folder, env)], user=user, **options) as host:
        await host.refresh()
        for spelling in ("desk/refunds", "desk/refunds/", "desk/acme/billing/refunds", REFUNDS, *SPELLINGS):
            for reference in (spelling, f"desk/{spelling}"):
                with pytest.raises(SkillError) as refusal:
                    await host.load(reference)
                caught.add(refusal.value.refusal)
        tea = await host.load("desk/tea")

    assert caught == {"turned-off", "unknown-reference", "not-found"}
    assert tea.reference == "desk/tea"
    assert [question.skill and question.skill.entry.name for question in user.questions] == ["tea"]


# Directories that are no skills

HANDBOOK = "docs://acme/handbook"


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    folder = tmp_path / "handbook"
    write_files(
        folder,
        {
            "README.md": "# Handbook\n",
            "a b/ü.txt": "ü\n",
            "a b/logo.png": bytes(range(256)),
            ".git/config": "secret\n",
            "a b/.hidden": "secret\n",
            "back\\slash.txt": "no URI can name this\n",
            **{f"many/{number}.txt": str(number) for number in range(7)},
        },
    )
    (folder / "empty").mkdir()
    write_files(tmp_path, {"outside.txt": "secret\n"})
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "up").symlink_to(tmp_path)
    return folder


@pytest.mark.requirement("ASK-32")
async def test_a_tree_without_any_skill_is_walked_and_read_like_one(
    handbook: Path, anyone: AnyServer, mode: str
) -> None:
    add_skills(anyone, page_size=3).add_directory(HANDBOOK, handbook)

    async with talk(anyone, mode) as client:
        listed = await listing(client, "skills/list", "skills")
        waiting, files = [HANDBOOK], dict[str, Json]()
        while waiting:
            for child in await listing(client, "resources/directory/read", uri=waiting.pop()):
                if child["mimeType"] == "inode/directory":
                    waiting.append(child["uri"])
                else:
                    files[child["uri"]] = child
        contents = {uri: await read(client, uri) for uri in files}
        empty = await listing(client, "resources/directory/read", uri=f"{HANDBOOK}/empty")
        roots = [item["uri"] for item in await listing(client, "resources/list")]

    assert listed == empty == []
    assert roots == [HANDBOOK]
    assert contents == {
        f"{HANDBOOK}/README.md": b"# Handbook\n",
        f"{HANDBOOK}/a%20b/%C3%BC.txt": "ü\n".encode(),
        f"{HANDBOOK}/a%20b/logo.png": bytes(range(256)),
        **{f"{HANDBOOK}/many/{number}.txt": str(number).encode() for number in range(7)},
    }
    assert {uri: child["size"] for uri, child in files.items()} == {
        uri: len(content) for uri, content in contents.items()
    }


@pytest.mark.requirement("ASK-32", "DIR-03", "DIR-14")
@pytest.mark.parametrize(
    "path",
    [
        "/link.txt",
        "/up",
        "/up/outside.txt",
        "/.git",
        "/.git/config",
        "/a%20b/.hidden",
        "/../outside.txt",
        "/%2E%2E/outside.txt",
        "/..%2Foutside.txt",
        "/README.md/",
        "/many/",
        "/gone",
        "x",
    ],
)
async def test_nothing_but_the_tree_itself_is_served(
    handbook: Path, anyone: AnyServer, mode: str, path: str
) -> None:
    add_skills(anyone).add_directory(HANDBOOK, handbook)

    async with talk(anyone, mode) as client:
        codes = [
            (await refused(client, method, uri=f"{HANDBOOK}{path}")).code
            for method in ("resources/read", "resources/directory/read", "skills/get")
        ]
        file_as_directory = await refused(client, "resources/directory/read", uri=f"{HANDBOOK}/README.md")

    assert set(codes) <= {INVALID_PARAMS, -32002}
    assert file_as_directory.code == INVALID_PARAMS


@pytest.mark.requirement("ASK-32")
async def test_a_tree_and_skills_are_served_side_by_side(handbook: Path, folder: Path, mode: str) -> None:
    server: MCPServer[Any] = MCPServer("demo")
    add_skills(server, folder, watch=False).add_directory(HANDBOOK, handbook)
    async with connect(server, mode) as client:
        beside = await everything(client)
        found = await directory(client, f"{HANDBOOK}/many")
    async with plain(folder, mode) as client:
        alone = await everything(client)

    [root] = [item for item in beside["resources/list"]["resources"] if item["uri"] == HANDBOOK]
    beside["resources/list"]["resources"].remove(root)
    assert beside == alone
    assert len(found) == 7


@pytest.mark.requirement("ASK-32")
@pytest.mark.parametrize("uri", ["handbook", "docs://", "docs://a/../b", "docs://a/", "docs://a?x"])
def test_a_tree_needs_the_uri_of_a_directory(handbook: Path, uri: str) -> None:
    with pytest.raises(InvalidUriError):
        add_skills(MCPServer("demo")).add_directory(uri, handbook)


@pytest.mark.requirement("ASK-32")
def test_a_tree_needs_a_folder(handbook: Path) -> None:
    with pytest.raises(SourceError):
        add_skills(MCPServer("demo")).add_directory(HANDBOOK, handbook / "README.md")
