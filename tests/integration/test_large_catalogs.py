"""Catalogs of which not everything is listed: what clients of every generation see, get and find."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.testclient import TestClient

from skillwire.core import encode
from skillwire.core.errors import SkillError
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.server import Skills, add_skills
from skillwire.server.answers import Answers, ResultSettings
from skillwire.server.fast.hot import HotAnswers
from skillwire.server.fast.requests import FastRequest
from skillwire.server.visibility import ListingRules
from skillwire.server.wellknown.app import site_routes
from skillwire.sources import CombinedSource, MemorySource
from skillwire.wire.core import write_cursor
from talking import MODES, Json, ask, connect, eventually, pages, refused, skill

LISTED = "skill://acme/billing/refunds/SKILL.md"
HIDDEN = "skill://internal/ledger/SKILL.md"
LISTING = ListingRules(unlisted=("internal",))


def made(path: str, *, listed: str = "true") -> Skill:
    name = path.rpartition("/")[2]
    fields: dict[str, JsonValue] = {"metadata": {"skillwire/listed": listed}}
    return Skill(
        name, path=path, body="Do it.\n", description="Use when testing.", frontmatter=fields
    ).with_reference("references/a.md", b"More.\n")


SHOP = [made("acme/billing/refunds"), made("internal/ledger"), made("acme/quiet", listed="false")]

AnyServer = Server[Any] | MCPServer[Any] | FastMCP[Any]


@asynccontextmanager
async def talk(server: AnyServer, mode: str) -> AsyncGenerator[Client]:
    inner = server._mcp_server if isinstance(server, FastMCP) else server  # pyright: ignore[reportPrivateUsage]
    async with connect(inner, mode) as client:
        yield client


@pytest.fixture(params=[Server, MCPServer, FastMCP], ids=["lowlevel", "mcpserver", "fastmcp"])
def anyone(request: pytest.FixtureRequest) -> AnyServer:
    return request.param("demo")


async def uris(client: Client, method: str, member: str, **params: object) -> list[str]:
    return [item["uri"] for page in await pages(client, method, **params) for item in page[member]]


@pytest.mark.requirement("LIST-01", "LIST-02", "ASK-09")
@pytest.mark.parametrize("mode", MODES)
async def test_what_is_not_listed_is_served_all_the_same(anyone: AnyServer, mode: str) -> None:
    dialects = ["index-april", "list-march", "primitive", "prompt"]
    add_skills(anyone, *SHOP, listing=LISTING, dialects=dialects, find_tool=True)

    async with talk(anyone, mode) as client:
        listings = [
            await uris(client, "skills/list", "skills"),
            [uri for uri in await uris(client, "resources/list", "resources") if uri.endswith("SKILL.md")],
            await uris(client, "resources/list", "resources", uri="skill://"),
            await uris(client, "resources/list", "resources", uri="skill://acme"),
        ]
        prompts = [item["name"] for page in await pages(client, "prompts/list") for item in page["prompts"]]
        index = (await ask(client, "resources/read", uri="skill://index.json"))["contents"][0]["text"]

        entry = (await ask(client, "skills/get", uri=HIDDEN))["skill"]
        named = await ask(client, "skills/get", name="ledger")
        prompt = await ask(client, "prompts/get", name="ledger")
        content = (await ask(client, "resources/read", uri=HIDDEN))["contents"][0]
        inside = await uris(client, "resources/list", "resources", uri="skill://internal/ledger")
        groups = await uris(client, "resources/directory/read", "resources", uri="skill://internal")
        files = await uris(client, "resources/directory/read", "resources", uri="skill://internal/ledger")
        completed = await ask(
            client,
            "completion/complete",
            ref={"type": "ref/resource", "uri": "skill://{+path}"},
            argument={"name": "path", "value": ""},
        )
        found = await ask(client, "tools/call", name="find_skills", arguments={"query": "ledger quiet"})

    assert listings == [[LISTED]] * 4
    assert prompts == ["refunds"]
    assert "refunds" in index and "ledger" not in index and "quiet" not in index
    assert entry["uri"] == content["uri"] == HIDDEN
    assert named["instructions"].strip() == "Do it." and "Do it." in prompt["messages"][0]["content"]["text"]
    assert groups == ["skill://internal/ledger"]
    assert files == ["skill://internal/ledger/SKILL.md", "skill://internal/ledger/references"]
    assert inside == ["skill://internal/ledger/SKILL.md", "skill://internal/ledger/references/a.md"]
    assert completed["completion"]["values"] == ["acme/", "internal/"]
    assert {skill["path"] for skill in found["structuredContent"]["skills"]} == {
        "internal/ledger",
        "acme/quiet",
    }


@pytest.mark.requirement("LIST-01", "DISC-01")
async def test_the_web_site_lists_what_is_listed() -> None:
    server: MCPServer[Any] = MCPServer("demo")
    skills = add_skills(server, *SHOP, listing=LISTING)

    async with skills.open():
        app = TestClient(Starlette(routes=site_routes(skills)), base_url="http://127.0.0.1")
        index = app.get("/.well-known/agent-skills/index.json").json()

    assert [skill["name"] for skill in index["skills"]] == ["refunds"]


@pytest.mark.requirement("LIST-01", "LIST-12")
async def test_above_a_size_only_pinned_skills_are_listed_and_paged_in_order() -> None:
    server: MCPServer[Any] = MCPServer("demo")
    many = [made(f"team/case-{number:03}") for number in range(120)]
    pinned = [made(f"pinned/p{number}") for number in range(5)]
    skills = add_skills(server, *many, *pinned, page_size=2, listing=ListingRules(pins=("pinned",), most=100))

    async with connect(server) as client:
        before = await pages(client, "skills/list")
        for gone in many[:30]:
            skills.remove(gone.uri)
        after = await eventually(
            lambda: uris(client, "skills/list", "skills"), lambda found: len(found) == 95
        )

    assert [len(page["skills"]) for page in before] == [2, 2, 1]
    assert [item["frontmatter"]["name"] for page in before for item in page["skills"]] == [
        f"p{number}" for number in range(5)
    ]
    assert after == sorted(after)


@pytest.mark.requirement("LIST-12")
async def test_the_fast_path_lists_the_same_bytes_when_not_all_is_listed() -> None:
    server: Server[Any] = Server("demo")
    many = [made(f"team/case-{number:03}", listed="false" if number % 3 else "true") for number in range(40)]
    skills = add_skills(server, *many, page_size=5)

    async with skills.open():
        hot, answers = HotAnswers(skills, server), skills.answers
        cursor: str | None = None
        seen: list[str] = []
        while True:
            page = answers.list_skills(cursor, modern=False)
            params: Json = {} if cursor is None else {"cursor": cursor}
            fast = hot.result(FastRequest(b"1", "skills/list", params), modern=False)
            assert fast is not None and b"".join(fast) == encode(page)
            seen += [entry["uri"] for entry in page["skills"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break

    assert seen == [f"skill://team/case-{number:03}/SKILL.md" for number in range(0, 40, 3)]


# Skills built in code


@pytest.mark.requirement("LIST-01")
async def test_code_adds_skills_that_are_never_listed_not_even_for_a_moment() -> None:
    server: MCPServer[Any] = MCPServer("demo")
    skills: Skills = add_skills(server)
    tea, coffee = made("tea"), made("coffee")

    async with connect(server) as client:
        skills.add(tea, listed=False)
        await eventually(lambda: _served(skills), lambda paths: "tea" in paths)
        unlisted = await uris(client, "skills/list", "skills")
        skills.add(coffee)
        with pytest.raises(SkillError):
            skills.add(coffee, listed=False)
        await eventually(lambda: _served(skills), lambda paths: "coffee" in paths)
        listed = await uris(client, "skills/list", "skills")
        skills.remove(tea.uri)
        await eventually(lambda: _served(skills), lambda paths: "tea" not in paths)
        skills.add(tea)
        again = await eventually(lambda: uris(client, "skills/list", "skills"), lambda found: len(found) == 2)

    assert (unlisted, listed) == ([], ["skill://coffee/SKILL.md"])
    assert again == ["skill://coffee/SKILL.md", "skill://tea/SKILL.md"]


async def _served(skills: Skills) -> Sequence[str]:
    return [entry.uri.path for entry in skills.source.snapshot.entries]


def test_a_folder_is_left_out_of_listings_by_its_place(tmp_path: Path) -> None:
    skills = add_skills(MCPServer[Any]("demo"))

    with pytest.raises(SkillError) as caught:
        skills.add(tmp_path, listed=False)

    assert "Listing" in caught.value.fix


@pytest.mark.requirement("LIST-01", "DUAL-01")
async def test_a_prompt_that_code_asks_for_is_listed_though_its_skill_is_not() -> None:
    server: MCPServer[Any] = MCPServer("demo")
    skills = add_skills(server)
    skills.add(made("tea"), prompt="make_tea", listed=False)

    async with connect(server) as client:
        prompts = [item["name"] for page in await pages(client, "prompts/list") for item in page["prompts"]]

        assert (prompts, await uris(client, "skills/list", "skills")) == (["make_tea"], [])


# Large directories


@pytest.mark.requirement("DIR-05", "DIR-06", "ASK-10")
async def test_a_directory_with_very_many_children_is_walked_page_by_page_in_no_time() -> None:
    names = [f"case-{number:05}" for number in range(5000)]
    nested = [f"{name}/inner" for name in names[::100]]
    source = MemorySource([skill(f"team/{path}") for path in (*names, *nested, "a", "a-b")])
    async with CombinedSource([source]) as catalog:
        answers = Answers(catalog, ResultSettings(page_size=100))
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = answers.read_directory("skill://team", cursor, modern=False)
            found += [child["name"] for child in page["resources"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        completed = answers.complete("skill://{+path}", "path", "team/case-0123")
        few = answers.complete("skill://{+path}", "path", "team/a")
        beyond = answers.read_directory("skill://team", page_after("skill://zzz"), modern=False)
        before = answers.read_directory("skill://team", page_after("skill://aaa"), modern=False)

    assert sorted(found) == sorted([*names, "a", "a-b"])
    assert completed == {"values": [f"team/case-0123{n}/" for n in range(10)], "total": 10, "hasMore": False}
    assert few is not None and sorted(few["values"]) == ["team/a-b/", "team/a/"]
    assert beyond == {"resources": []}
    assert [child["name"] for child in before["resources"]] == found[:100]


def page_after(uri: str) -> str:
    return write_cursor("resources/directory/read", uri)


# Finding


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize("mode", MODES)
async def test_a_model_walks_through_what_it_finds_and_narrows_it_down(anyone: AnyServer, mode: str) -> None:
    kinds = {"tea": 7, "coffee": 3}
    skills = [made(f"{kind}/recipe-{number}") for kind, count in kinds.items() for number in range(count)]
    add_skills(anyone, *skills, find_tool=True)

    async with talk(anyone, mode) as client:

        async def find(**arguments: object) -> Json:
            return await ask(client, "tools/call", name="find_skills", arguments=arguments)

        [tool] = (await ask(client, "tools/list"))["tools"]
        first = await find(query="recipe", limit=4)
        second = await find(query="recipe", limit=4, cursor=first["structuredContent"]["nextCursor"])
        third = await find(query="recipe", limit=4, cursor=second["structuredContent"]["nextCursor"])
        narrow = await find(query="recipe", below="coffee", has_scripts=False)
        none = await find(query="recipe", has_scripts=True)
        other = await find(query="tea", limit=4, cursor=first["structuredContent"]["nextCursor"])
        entry = await ask(client, "skills/get", uri=narrow["structuredContent"]["skills"][0]["uri"])

    told = [skill["uri"] for page in (first, second, third) for skill in page["structuredContent"]["skills"]]
    assert len(told) == len(set(told)) == first["structuredContent"]["total"] == 10
    assert "nextCursor" not in third["structuredContent"]
    assert first["structuredContent"]["nextCursor"] in first["content"][-1]["text"]
    assert "4 of 10 skills fit" in first["content"][-1]["text"]
    assert narrow["structuredContent"]["total"] == 3
    assert none["structuredContent"] == {"skills": [], "total": 0}
    assert other["isError"] is True and "cursor" in other["content"][0]["text"]
    assert {*tool["outputSchema"]["required"]} <= {*first["structuredContent"]}
    assert SkillUri.parse(entry["skill"]["uri"]).path.startswith("coffee/")


@pytest.mark.requirement("ASK-08")
async def test_an_answer_tells_a_limited_caller_nothing_of_what_is_hidden() -> None:
    server = FastMCP[Any]("demo")
    add_skills(server, *[made(f"team/tea-{number}") for number in range(30)], find_tool=True)
    server.disable(names={f"tea-{number}" for number in range(30) if number % 10})

    async with talk(server, "auto") as client:
        first = await ask(client, "tools/call", name="find_skills", arguments={"query": "tea", "limit": 2})
        cursor = first["structuredContent"]["nextCursor"]
        rest = await ask(
            client, "tools/call", name="find_skills", arguments={"query": "tea", "limit": 2, "cursor": cursor}
        )
        hidden = await refused(client, "skills/get", uri="skill://team/tea-1/SKILL.md")

    told = [[skill["name"] for skill in page["structuredContent"]["skills"]] for page in (first, rest)]
    assert told == [["tea-0", "tea-10"], ["tea-20"]]
    assert "total" not in first["structuredContent"] and "nextCursor" not in rest["structuredContent"]
    assert hidden.code == -32602
