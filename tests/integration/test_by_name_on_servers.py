"""The dialects `primitive` and `exec` beside a server's own tools, prompts and resources."""

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

import mcp_types as types
import pytest
from fastmcp import FastMCP
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from skillwire.core.errors import INVALID_PARAMS
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.server import DynamicSkill, Skills, add_skills
from skillwire.server.meta import Subject
from talking import MODES, Json, ask, eventually, refused, skill

BOTH = ("primitive", "exec")
NEEDS = {
    "skillwire/tools": "open_doc shred_doc",
    "skillwire/prompts": "greet, insult",
    "skillwire/resources": "data://rates data://{year}/rates data://2026/rates data://nowhere "
    "skill://needy/SKILL.md",
}
NEEDY = Skill("needy", description="Use when in need.", frontmatter={"metadata": dict(NEEDS)}, body="Help.\n")
MISSING = [
    "the server has no tool 'shred_doc'",
    "the server has no prompt 'insult'",
    "the server has no resource 'data://nowhere'",
]

AnyServer: TypeAlias = "MCPServer[Any] | FastMCP[Any] | Server[Any]"


def connect(server: AnyServer, mode: str) -> Client:
    lowlevel: Any = server._mcp_server if isinstance(server, FastMCP) else server  # pyright: ignore
    return Client(lowlevel, mode=mode, cache=None)


def mcpserver() -> AnyServer:
    return furnish(MCPServer("office"))


def fastmcp() -> AnyServer:
    return furnish(FastMCP("office"))


def furnish(server: Any) -> AnyServer:
    """Give a server a tool, a prompt, a resource and a template of its own."""

    @server.tool()
    def open_doc() -> str:
        return "opened"

    @server.prompt()
    def greet() -> str:
        return "Hello."

    @server.resource("data://rates")
    def rates() -> str:
        return "1.0"

    @server.resource("data://{year}/rates")
    def rates_of(year: str) -> str:
        return f"{year}: 1.0"

    assert all((open_doc, greet, rates, rates_of))
    return server


def lowlevel() -> AnyServer:
    async def tools(context: object, params: object) -> types.ListToolsResult:
        tool = types.Tool(name="open_doc", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool])

    async def prompts(
        context: object, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        if params is None or params.cursor is None:
            return types.ListPromptsResult(prompts=[types.Prompt(name="first")], next_cursor="2")
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet")])

    async def read(context: object, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) not in ("data://rates", "data://2026/rates"):
            raise ValueError("no such resource")
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, text="1.0", mime_type="text/plain")]
        )

    async def templates(context: object, params: object) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(name="rates", uri_template="data://{year}/rates")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    return Server(
        "office",
        on_list_tools=tools,
        on_list_prompts=prompts,
        on_read_resource=read,
        on_list_resource_templates=templates,
    )


SERVERS = {"MCPServer": mcpserver, "lowlevel": lowlevel, "FastMCP": fastmcp}


@pytest.fixture(params=SERVERS)
def office(request: pytest.FixtureRequest) -> AnyServer:
    return SERVERS[request.param]()


def missing(skills: Skills) -> dict[str, list[str]]:
    return {
        report.place: [finding.message for finding in report.findings if finding.code == "dependency-missing"]
        for report in skills.reports
        if any(finding.code == "dependency-missing" for finding in report.findings)
    }


async def seen(skills: Skills) -> dict[str, list[str]]:
    return missing(skills)


async def listed_and_seen(client: Client, skills: Skills) -> dict[str, list[str]]:
    await ask(client, "skills/list")
    return missing(skills)


@pytest.mark.requirement("P2076-01", "P2076-03", "EXEC-03", "EXEC-04", "NEG-14", "NEG-15")
@pytest.mark.parametrize("mode", MODES)
async def test_skills_are_served_by_name_beside_everything_else(office: AnyServer, mode: str) -> None:
    tea = skill("acme/tea", body="Boil {{water}}.\n").with_reference("references/leaves.md", "Green.\n")
    add_skills(office, tea, skill("a/twin"), skill("b/twin"), dialects=BOTH)

    async with connect(office, mode) as client:
        listed = (await ask(client, "skills/list"))["skills"]
        got = await ask(client, "skills/get", name="tea", arguments={"water": "x"})
        read = await ask(client, "skills/read", name="tea")
        leaves = await ask(client, "skills/read_reference", name="tea", reference="leaves")
        clash = await refused(client, "skills/get", name="tea", uri="skill://acme/tea/SKILL.md")
        unknown = [await refused(client, method, name="twin") for method in ("skills/get", "skills/read")]
        tools = await client.list_tools()

    assert sorted(item["name"] for item in listed) == ["a-twin", "b-twin", "tea"]
    assert {item["uri"] for item in listed} >= {"skill://acme/tea/SKILL.md"}
    assert got["instructions"] == "\nBoil {{water}}.\n"
    assert got["files"][0]["uri"] == "skill://acme/tea/references/leaves.md"
    assert read["skill"]["references"] == [
        {
            "name": "leaves.md",
            "description": "leaves.md",
            "path": "references/leaves.md",
            "annotations": {"audience": ["assistant"], "priority": 0.3},
        }
    ]
    assert leaves["content"]["text"] == "Green.\n"
    assert clash.code == INVALID_PARAMS
    assert [error.code for error in unknown] == [INVALID_PARAMS, -32002]
    assert [tool.name for tool in tools.tools] == ["open_doc"]


@pytest.mark.requirement("P2076-05", "ASK-15")
@pytest.mark.parametrize("mode", MODES)
async def test_what_skills_need_is_compared_with_what_the_server_offers(
    office: AnyServer, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    skills = add_skills(office, NEEDY, skill("content"), dialects=["primitive"])

    with caplog.at_level(logging.WARNING, logger="skillwire"):
        async with connect(office, mode) as client:
            listed = (await ask(client, "skills/list"))["skills"]
            got = await ask(client, "skills/get", name="needy")
            found = await eventually(lambda: seen(skills), bool)

    assert found == {"skill://needy/SKILL.md": MISSING}
    assert [record.getMessage() for record in caplog.records if "needy" in record.getMessage()] == [
        f"skill://needy/SKILL.md: {words}" for words in MISSING
    ]
    needs = next(item for item in listed if item["name"] == "needy")["dependencies"]
    assert needs == {
        "tools": ["open_doc"],
        "prompts": [{"type": "ref/prompt", "name": "greet"}],
        "resources": [
            {"type": "ref/resource", "uri": uri}
            for uri in ("data://rates", "data://{year}/rates", "data://2026/rates", "skill://needy/SKILL.md")
        ],
    }
    assert got["dependencies"] == needs


@pytest.mark.requirement("P2076-05")
async def test_a_skill_that_is_added_later_is_compared_too() -> None:
    server = mcpserver()
    skills = add_skills(server, skill("content"), dialects=["primitive"])

    async with connect(server, "auto") as client:
        await ask(client, "skills/list")
        assert missing(skills) == {}
        skills.add(NEEDY)
        found = await eventually(lambda: listed_and_seen(client, skills), bool)
        skills.remove(NEEDY.uri)
        await eventually(lambda: listed_and_seen(client, skills), lambda reports: not reports)

    assert found == {"skill://needy/SKILL.md": MISSING}


@pytest.mark.requirement("P2076-05")
async def test_a_server_that_cannot_say_what_it_offers_answers_all_the_same() -> None:
    async def tools(context: object, params: object) -> types.ListToolsResult:
        raise RuntimeError("broken")

    server: Server[Any] = Server("office", on_list_tools=tools)
    skills = add_skills(server, NEEDY, dialects=["primitive"])

    async with connect(server, "auto") as client:
        listed = await ask(client, "skills/list")
        found = missing(skills)

    assert [item["name"] for item in listed["skills"]] == ["needy"]
    assert "dependencies" not in listed["skills"][0]  # Of none it is known that it exists.
    assert found == {}


@pytest.mark.requirement("P2076-05")
async def test_a_tool_that_comes_later_is_announced_from_then_on() -> None:
    server = MCPServer("office")
    add_skills(server, NEEDY, dialects=["primitive"])

    async with connect(server, "auto") as client:
        before = (await ask(client, "skills/list"))["skills"][0]
        server.add_tool(lambda: "shredded", name="shred_doc")
        after = (await ask(client, "skills/list"))["skills"][0]

    assert "tools" not in before["dependencies"]
    assert after["dependencies"]["tools"] == ["shred_doc"]


@pytest.mark.requirement("P2076-02", "P2076-06")
@pytest.mark.parametrize("mode", MODES)
async def test_icons_meta_and_the_declared_names_of_files_reach_the_wire(
    office: AnyServer, mode: str
) -> None:
    metadata = {
        "skillwire/files": "references/forms.md (forms-reference, forms; Common Patterns): Examples.",
        "skillwire/icons": "https://example.com/pdf.png image/png 48x48 96x96 dark",
        "com.example/owner": "documents",
        "plain": "stays in the frontmatter",
    }
    pdf = Skill("pdf", description="Use for PDF.", frontmatter={"metadata": dict(metadata)}, body="Read.\n")
    pdf = pdf.with_reference("references/forms.md", "# Forms\n").with_reference("other.md", "Other.\n")

    def annotate(subject: Subject) -> Mapping[str, JsonValue] | None:
        return None if subject.kind == "result" else {"com.example/kind": subject.kind}

    add_skills(office, pdf, dialects=BOTH, annotate=annotate)
    async with connect(office, mode) as client:
        [item] = (await ask(client, "skills/list"))["skills"]
        got = await ask(client, "skills/get", name="pdf")
        contents = [await ask(client, "resources/read", uri=file["uri"]) for file in got["files"]]

    assert item["icons"] == [
        {
            "src": "https://example.com/pdf.png",
            "mimeType": "image/png",
            "theme": "dark",
            "sizes": ["48x48", "96x96"],
        }
    ]
    assert item["_meta"] == {"com.example/owner": "documents", "com.example/kind": "entry"}
    assert got["files"] == [
        {
            "name": "other.md",
            "uri": "skill://pdf/other.md",
            "mimeType": "text/markdown",
            "_meta": {"com.example/kind": "resource"},
        },
        {
            "name": "forms-reference",
            "title": "Common Patterns",
            "uri": "skill://pdf/references/forms.md",
            "description": "Examples.",
            "mimeType": "text/markdown",
            "_meta": {"com.example/kind": "resource"},
        },
    ]
    assert [read["contents"][0]["text"] for read in contents] == ["Other.\n", "# Forms\n"]


@pytest.mark.requirement("P2076-12")
async def test_declarations_that_cannot_be_read_are_reported() -> None:
    odd = Skill(
        "odd",
        description="Use when odd.",
        frontmatter={"metadata": {"skillwire/arguments": "a b"}},
        body="{{a}}",
    )
    server = mcpserver()
    skills = add_skills(server, odd, dialects=["primitive"])

    async with connect(server, "auto") as client:
        got = await ask(client, "skills/get", name="odd", arguments={"a": "x"})
        [report] = [report for report in skills.reports if report.place == "skill://odd/SKILL.md"]

    assert got["instructions"] == "\n{{a}}"
    assert [finding.code for finding in report.findings] == ["arguments-invalid"]


@pytest.mark.requirement("P2076-12")
@pytest.mark.parametrize("mode", MODES)
async def test_an_authors_function_receives_the_arguments(office: AnyServer, mode: str) -> None:
    declared: dict[str, JsonValue] = {"metadata": {"skillwire/arguments": "region!\ncurrency"}}
    body = "Rules of {{region}}.\n"
    fill = Skill("fill", path="a/fill", description="Use when filling.", frontmatter=declared, body=body)
    skills = add_skills(office, fill, dialects=BOTH)
    seen: list[tuple[str, Mapping[str, str]]] = []

    @skills.renderer("a/fill")
    async def render(body: str, arguments: Mapping[str, str]) -> str:
        seen.append((body, arguments))
        return f"Made for {arguments['region']}."

    assert render
    async with connect(office, mode) as client:
        got = await ask(client, "skills/get", name="fill", arguments={"region": "eu", "more": "m"})
        error = await refused(client, "skills/get", name="fill", arguments={"currency": "EUR"})
        file = await ask(client, "resources/read", uri="skill://a/fill/SKILL.md")
        read = await ask(client, "skills/read", name="fill")

    assert got["instructions"] == "Made for eu."
    assert seen == [(f"\n{body}", {"region": "eu", "more": "m"})]
    assert error.code == INVALID_PARAMS
    assert file["contents"][0]["text"].endswith(f"\n{body}")
    assert read["skill"]["instructions"] == f"\n{body}"


@pytest.mark.requirement("EXEC-07", "P2076-03", "CONF-17")
async def test_a_dynamic_skill_is_made_anew_and_a_failure_names_the_culprit() -> None:
    def fails() -> str:
        raise RuntimeError("/home/secret")

    live = (
        DynamicSkill("live", "Use when live.", body=lambda: "Now.\n")
        .with_file("references/now.md", lambda: "fresh")
        .with_file("references/bad.md", fails)
    )
    server = MCPServer("office")
    add_skills(server, live, dialects=BOTH)

    async with connect(server, "auto") as client:
        got = await ask(client, "skills/get", name="live")
        read = await ask(client, "skills/read", name="live")
        reference = await ask(client, "skills/read_reference", name="live", reference="now")
        error = await refused(client, "skills/read_reference", name="live", reference="bad.md")

    assert [result["ttlMs"] for result in (got, read, reference)] == [0, 0, 0]
    assert got["instructions"] == "\nNow.\n"
    assert [file["name"] for file in got["files"]] == ["references/bad.md", "references/now.md"]
    assert reference["content"]["text"] == "fresh"
    assert (error.code, error.data) == (-32603, {"name": "live", "reference": "bad.md"})
    assert "secret" not in error.message


@pytest.mark.requirement("EXEC-10", "SEC-14")
@pytest.mark.parametrize("mode", MODES)
async def test_what_fastmcp_hides_has_no_name(mode: str) -> None:
    server = FastMCP("office")
    add_skills(server, skill("open"), skill("closed").with_reference("references/a.md", "a"), dialects=BOTH)
    server.disable(names={"closed"})

    async with connect(server, mode) as client:
        names = [item["name"] for item in (await ask(client, "skills/list"))["skills"]]
        got = await refused(client, "skills/get", name="closed")
        read = await refused(client, "skills/read", name="closed")
        reference = await refused(client, "skills/read_reference", name="closed", reference="a.md")

    assert names == ["open"]
    assert [error.code for error in (got, read, reference)] == [INVALID_PARAMS, -32002, -32002]


@pytest.mark.requirement("NEG-16")
@pytest.mark.parametrize("mode", MODES)
async def test_without_these_dialects_nothing_is_known_by_name(mode: str) -> None:
    plain, older = MCPServer("office"), MCPServer("office")
    add_skills(plain, skill("tea"))
    add_skills(older, skill("tea"), dialects=BOTH)
    uri = SkillUri.build("tea").text
    results: list[Json] = []

    for server in (plain, older):
        async with connect(server, mode) as client:
            results.append(await ask(client, "skills/get", uri=uri))
    async with connect(plain, mode) as client:
        listed = (await ask(client, "skills/list"))["skills"]
        by_name = await refused(client, "skills/get", name="tea")
        read = await refused(client, "skills/read", name="tea")

    assert results[0] == results[1]
    assert [list(item) for item in listed] == [["uri", "frontmatter", "resources"]]
    assert (by_name.code, read.code) == (INVALID_PARAMS, -32601)
