"""`add_skills` on servers of other people: where skills come from, what the server keeps, who opens what."""

import logging
import math
import sys
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from folders import write_files, write_skill
from programs import words_of
from serving import environment
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import (
    INVALID_PARAMS,
    DuplicateSkillError,
    InvalidSkillError,
    InvalidUriError,
    NotFoundError,
    SkillError,
    SourceError,
)
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.gateway import Upstream
from skillwire.host.model.endpoints import ServerConfig, StdioEndpoint
from skillwire.host.state.content import ContentCache
from skillwire.server import DynamicSkill, Skills, add_skills
from skillwire.sources import MemorySource
from skillwire.wire.core import CacheScope
from talking import (
    EXTENSION,
    AnyServer,
    Json,
    PlainSource,
    ask,
    connect,
    directory,
    eventually,
    get,
    is_as_promised,
    listing,
    pages,
    read,
    refused,
    skill,
    skills_of,
)

HELLO = "skill://acme/hello/SKILL.md"


async def failure_of_connecting(server: AnyServer, mode: str) -> BaseException:
    """Connect to a server that cannot be opened, and return what went wrong.

    With the handshake the server runs in a task of its own, whose failures come in a group.
    """
    with pytest.raises(Exception) as caught:
        async with connect(server, mode):
            pass
    failure: BaseException = caught.value
    while isinstance(failure, BaseExceptionGroup):
        [failure] = cast(BaseExceptionGroup[BaseException], failure).exceptions
    return failure


# Where skills come from


def as_folder(place: Path, skills: Callable[[], Skills]) -> None:
    write_skill(place / "acme/hello", {"references/a.md": "# A\n", "logo.png": b"\x89PNG"})
    skills().add(place)


def as_plain_source(place: Path, skills: Callable[[], Skills]) -> None:
    files = {"references/a.md": b"# A\n", "logo.png": b"\x89PNG"}
    built = Skill("hello", path="acme/hello", body=_skill_md())
    for path, content in files.items():
        built = built.with_reference(path, content)
    skills().add(PlainSource(built))


def as_built_skill(place: Path, skills: Callable[[], Skills]) -> None:
    built = Skill("hello", path="acme/hello", body=_skill_md())
    skills().add(built.with_reference("references/a.md", "# A\n").with_reference("logo.png", b"\x89PNG"))


def as_decorated_function(place: Path, skills: Callable[[], Skills]) -> None:
    write_skill(place / "hello", {"references/a.md": "# A\n", "logo.png": b"\x89PNG"})

    @skills().skill("acme/hello")
    def hello() -> Path:
        return place / "hello"

    assert hello() == place / "hello"


def as_package_in_an_archive(place: Path, skills: Callable[[], Skills]) -> None:
    write_skill(place / "hello", {"references/a.md": "# A\n", "logo.png": b"\x89PNG"})
    with zipfile.ZipFile(place / "package.zip", "w") as archive:
        for path in ("SKILL.md", "references/a.md", "logo.png"):
            archive.write(place / "hello" / path, f"package/skills/acme/hello/{path}")
    skills().add(zipfile.Path(place / "package.zip", "package/skills/"))


def as_skills_of_another_server(place: Path, skills: Callable[[], Skills]) -> None:
    write_skill(place / "served/hello", {"references/a.md": "# A\n", "logo.png": b"\x89PNG"})
    command, *words = words_of(place / "served")
    endpoint = StdioEndpoint(command, tuple(words), environment(place))
    skills().add(Upstream(ServerConfig("acme", endpoint, seconds=60), ContentCache(place / "cache")))


def _skill_md() -> bytes:
    return b'---\nname: "hello"\ndescription: Use when testing hello.\n---\n\nDo it.\n'


PROVIDERS = [
    as_folder,
    as_plain_source,
    as_built_skill,
    as_decorated_function,
    as_package_in_an_archive,
    as_skills_of_another_server,
]


@pytest.mark.requirement("SDK-01", "SDK-02", "SDK-06")
@pytest.mark.parametrize("provide", PROVIDERS)
async def test_wherever_a_skill_comes_from_it_is_served_alike(
    tmp_path: Path, mode: str, provide: Callable[[Path, Callable[[], Skills]], None]
) -> None:
    server = MCPServer("demo")
    skills = add_skills(server)
    provide(tmp_path, lambda: skills)

    async with connect(server, mode) as client:
        listed = await skills_of(client)
        got = await get(client, HELLO)
        contents = {line["uri"]: await read(client, line["uri"]) for line in got["resources"]}
        children = await directory(client, "skill://acme/hello")
        [resource] = await listing(client, "resources/list")
        missing = await refused(client, "resources/read", uri="skill://acme/hello/b.md")

    assert listed == {HELLO: got}
    assert got["frontmatter"] == {"name": "hello", "description": "Use when testing hello."}
    assert contents == {
        HELLO: _skill_md(),
        "skill://acme/hello/logo.png": b"\x89PNG",
        "skill://acme/hello/references/a.md": b"# A\n",
    }
    assert all(is_as_promised(contents[line["uri"]], line) for line in got["resources"])
    assert children == {
        HELLO: "text/markdown",
        "skill://acme/hello/logo.png": "image/png",
        "skill://acme/hello/references": "inode/directory",
    }
    assert (resource["name"], resource["size"]) == ("hello", len(_skill_md()))
    assert missing.code == INVALID_PARAMS


@pytest.mark.requirement("SDK-06")
async def test_an_installed_package_is_a_place_skills_come_from(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.resources import files

    write_files(tmp_path, {"skilled_package/__init__.py": ""})
    write_skill(tmp_path / "skilled_package/skills/hello")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    server = MCPServer("demo")
    add_skills(server, files("skilled_package") / "skills", prefix="acme")

    async with connect(server, mode) as client:
        listed = await skills_of(client)

    sys.modules.pop("skilled_package")
    assert list(listed) == [HELLO]


@pytest.mark.requirement("SDK-01")
async def test_a_decorated_function_is_called_when_the_server_starts(root: Path, mode: str) -> None:
    server = MCPServer("demo")
    skills = add_skills(server)
    calls: list[str] = []

    @skills.skill("acme/billing/refunds")
    def refunds() -> str:
        calls.append("called")
        return str(root / "refunds")

    assert calls == []
    write_skill(root / "refunds")
    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert refunds.__name__ == "refunds"
    assert calls == ["called"]
    assert list(listed) == ["skill://acme/billing/refunds/SKILL.md"]


@pytest.mark.requirement("SDK-01", "URI-02")
async def test_a_decorated_path_that_does_not_end_in_the_name_is_refused(root: Path, mode: str) -> None:
    write_skill(root / "refunds")
    server = MCPServer("demo")
    skills = add_skills(server)

    @skills.skill("acme/payments")
    def refunds() -> Path:  # pyright: ignore[reportUnusedFunction]
        return root / "refunds"

    failure = await failure_of_connecting(server, mode)

    assert isinstance(failure, InvalidSkillError)
    assert "payments" in str(failure)
    assert str(root) not in str(failure)


@pytest.mark.parametrize("path", ["", "/acme", "acme/", "a//b", "../x", "acme/..", "a\\b", "a\x00"])
def test_a_decorated_path_must_be_able_to_stand_in_a_uri(path: str) -> None:
    skills = add_skills(MCPServer("demo"))

    with pytest.raises(InvalidUriError):
        skills.skill(path)


async def test_several_folders_and_skills_built_in_code_are_one_listing(
    server: AnyServer, mode: str, tmp_path: Path
) -> None:
    write_skill(tmp_path / "one/refunds")
    write_skill(tmp_path / "two/billing/invoices")
    live = DynamicSkill("live", path="ops/live", description="Use when asked.", body=lambda: "now")
    add_skills(server, tmp_path / "one", str(tmp_path / "two"), skill("acme/hello"), live, prefix="team/x")

    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert list(listed) == [
        "skill://acme/hello/SKILL.md",
        "skill://ops/live/SKILL.md",
        "skill://team/x/billing/invoices/SKILL.md",
        "skill://team/x/refunds/SKILL.md",
    ]


async def test_a_uri_that_two_folders_claim_stops_the_server_and_names_both(
    server: AnyServer, mode: str, tmp_path: Path
) -> None:
    write_skill(tmp_path / "one/refunds")
    write_skill(tmp_path / "two/refunds")
    add_skills(server, tmp_path / "one", tmp_path / "two")

    failure = await failure_of_connecting(server, mode)

    assert isinstance(failure, DuplicateSkillError)
    assert failure.uris == ("skill://refunds/SKILL.md",)
    assert sorted(failure.claims["skill://refunds/SKILL.md"]) == [
        str(tmp_path / "one/refunds"),
        str(tmp_path / "two/refunds"),
    ]
    assert str(tmp_path) not in str(failure)


def test_a_uri_that_two_built_skills_claim_is_refused_at_once() -> None:
    server = MCPServer("demo")

    with pytest.raises(DuplicateSkillError) as caught:
        add_skills(server, skill("acme/hello"), skill("acme/hello", body="Other.\n"))

    assert caught.value.uris == (HELLO,)


async def test_a_broken_skill_is_left_out_and_named_in_the_log(
    server: AnyServer, mode: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(root / "good")
    write_files(root, {"bad/SKILL.md": "There is no frontmatter.\n"})
    add_skills(server, root)

    with caplog.at_level(logging.WARNING, "skillwire"):
        async with connect(server, mode) as client:
            listed = await skills_of(client)

    assert list(listed) == ["skill://good/SKILL.md"]
    assert any(record.getMessage().startswith("bad: ") for record in caplog.records)


async def test_with_strict_a_broken_skill_stops_the_server(server: AnyServer, mode: str, root: Path) -> None:
    write_skill(root / "good")
    write_skill(root / "bad", name="other")
    add_skills(server, root, strict=True)

    failure = await failure_of_connecting(server, mode)
    write_skill(root / "bad")
    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert isinstance(failure, InvalidSkillError)
    assert "bad" in str(failure)
    assert list(listed) == ["skill://bad/SKILL.md", "skill://good/SKILL.md"]


# While the server runs


async def test_skills_built_in_code_come_and_go_while_the_server_runs(server: AnyServer, mode: str) -> None:
    skills = add_skills(server, skill("acme/hello"))
    later = skill("acme/later").with_reference("a.md", "a")

    async def names() -> list[str]:
        return [entry["frontmatter"]["name"] for entry in (await skills_of(client)).values()]

    async with connect(server, mode) as client:
        skills.add(later)
        await eventually(names, lambda seen: seen == ["hello", "later"], seconds=2)
        content = await read(client, "skill://acme/later/a.md")
        skills.remove(SkillUri(HELLO))
        await eventually(names, lambda seen: seen == ["later"], seconds=2)
        errors = [
            await refused(client, "skills/get", uri=HELLO),
            await refused(client, "resources/read", uri=HELLO),
        ]
        with pytest.raises(DuplicateSkillError):
            skills.add(skill("acme/later", body="Other.\n"))
        with pytest.raises(NotFoundError):
            skills.remove(SkillUri(HELLO))
        entry = await get(client, "skill://acme/later/SKILL.md")

    assert content == b"a"
    assert [error.code for error in errors] == [INVALID_PARAMS] * 2
    assert entry == later.entry().to_json()


async def test_a_folder_cannot_be_added_to_a_running_server_and_nothing_else_is_then(
    mode: str, root: Path
) -> None:
    write_skill(root / "refunds")
    server = MCPServer("demo")
    skills = add_skills(server, skill("acme/hello"))

    async with connect(server, mode) as client:
        with pytest.raises(SkillError):
            skills.add(skill("acme/other"), root)
        with pytest.raises(SkillError):
            skills.skill("acme/refunds")(lambda: root / "refunds")
        listed = await skills_of(client)
    skills.add(root)
    async with connect(server, mode) as client:
        listed_later = await skills_of(client)

    assert list(listed) == [HELLO]
    assert list(listed_later) == [HELLO, "skill://refunds/SKILL.md"]


# What is refused


async def test_skills_are_added_to_a_server_once(server: AnyServer, mode: str) -> None:
    add_skills(server, skill("acme/hello"))

    with pytest.raises(SkillError, match="already"):
        add_skills(server, skill("acme/other"))

    async with connect(server, mode) as client:
        assert list(await skills_of(client)) == [HELLO]


@pytest.mark.parametrize(
    "server", ["demo", None, 42, object(), MCPServer], ids=lambda server: type(server).__name__
)
def test_what_is_no_server_is_refused_by_name(server: object) -> None:
    with pytest.raises(SkillError, match=type(server).__name__):
        add_skills(server)


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 0},
        {"page_size": -1},
        {"ttl": -0.001},
        {"ttl": 31_536_001},
        {"ttl": math.inf},
        {"ttl": math.nan},
        {"prefix": "../x"},
        {"prefix": "a\\b"},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused(options: Json, root: Path) -> None:
    server = MCPServer("demo")

    with pytest.raises((ValueError, InvalidUriError)):
        add_skills(server, root, **options)

    add_skills(server)


@pytest.mark.parametrize(("ttl", "milliseconds"), [(0, 0), (0.25, 250), (31_536_000, 31_536_000_000)])
async def test_the_ttl_is_sent_in_milliseconds(ttl: float, milliseconds: int) -> None:
    server = MCPServer("demo")
    add_skills(server, skill("acme/hello"), ttl=ttl)

    async with connect(server) as client:
        told = [await ask(client, "skills/list"), await ask(client, "resources/read", uri=HELLO)]

    assert [result["ttlMs"] for result in told] == [milliseconds] * 2


class AnyToken:
    async def verify_token(self, token: str) -> AccessToken | None:
        return None


def guarded() -> MCPServer:
    settings = AuthSettings(
        issuer_url=AnyHttpUrl("https://issuer.example"),
        resource_server_url=AnyHttpUrl("https://mcp.example"),
        validate_token_resource=False,
    )
    return MCPServer("demo", auth=settings, token_verifier=AnyToken())


@pytest.mark.requirement("LIST-14")
async def test_a_server_that_asks_for_authorization_answers_for_one_user_alone() -> None:
    server, shared = guarded(), guarded()
    add_skills(server, skill("acme/hello"))
    add_skills(shared, skill("acme/hello"), cache_scope="public")

    async with connect(server) as client, connect(shared) as other:
        told = [
            (await ask(client, "skills/list"))["cacheScope"],
            (await ask(client, "skills/get", uri=HELLO))["cacheScope"],
            (await ask(client, "resources/read", uri=HELLO))["cacheScope"],
            (await ask(client, "resources/directory/read", uri="skill://acme"))["cacheScope"],
            (await ask(client, "resources/list"))["cacheScope"],
            (await ask(client, "resources/templates/list"))["cacheScope"],
        ]
        told_to_all = (await ask(other, "skills/list"))["cacheScope"]

    assert told == ["private"] * 6
    assert told_to_all == "public"


# What the server had before


def with_resources(server: MCPServer) -> MCPServer:
    @server.resource("info://about")
    def about() -> str:  # pyright: ignore[reportUnusedFunction]
        return "about"

    @server.resource("info://broken")
    def broken() -> str:  # pyright: ignore[reportUnusedFunction]
        raise ValueError("the server's own words")

    @server.resource("info://people/{name}")
    def person(name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"I am {name}"

    @server.tool()
    def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return a + b

    @server.prompt()
    def greet() -> str:  # pyright: ignore[reportUnusedFunction]
        return "hello"

    return server


@pytest.mark.parametrize("order", ["before", "after"])
async def test_what_an_mcpserver_serves_itself_stays_as_it_was(mode: str, order: str) -> None:
    alone, server = with_resources(MCPServer("demo")), MCPServer("demo")
    if order == "before":
        with_resources(server)
    add_skills(server, skill("acme/hello"))
    if order == "after":
        with_resources(server)

    async def look(client: Client) -> list[object]:
        return [
            (await ask(client, "resources/read", uri="info://about"))["contents"],
            (await ask(client, "resources/read", uri="info://people/ada"))["contents"],
            await refused(client, "resources/read", uri="info://nobody"),
            await refused(client, "resources/read", uri="info://broken"),
            await refused(client, "resources/read", uri="skill://nobody/SKILL.md"),
            (await ask(client, "tools/list"))["tools"],
            (await ask(client, "tools/call", name="add", arguments={"a": 1, "b": 2}))["content"],
            (await ask(client, "prompts/list"))["prompts"],
            (await ask(client, "prompts/get", name="greet"))["messages"],
        ]

    async with connect(alone, mode) as client, connect(server, mode) as other:
        assert await look(other) == await look(client)
        own = await listing(client, "resources/list")
        together = await listing(other, "resources/list")
        templates = await listing(other, "resources/templates/list", "resourceTemplates")

    assert [resource["uri"] for resource in together] == ["info://about", "info://broken", HELLO]
    assert together[:2] == own
    assert [template["uriTemplate"] for template in templates] == ["skill://{+path}", "info://people/{name}"]


async def test_a_resource_of_the_servers_own_is_not_hidden_by_a_directory_of_ours(mode: str) -> None:
    server = MCPServer("demo")

    @server.resource("docs://guide")
    def guide() -> str:  # pyright: ignore[reportUnusedFunction]
        return "the guide"

    add_skills(server, skill("guide/setup", scheme="docs"), skill("acme/hello"))

    async with connect(server, mode) as client:
        content = await read(client, "docs://guide")
        children = await directory(client, "docs://guide")
        error = await refused(client, "resources/read", uri="skill://acme")

    assert content == b"the guide"
    assert list(children) == ["docs://guide/setup"]
    assert (error.code, error.data) == (INVALID_PARAMS, {"uri": "skill://acme"})
    assert "resources/directory/read" in error.message


async def test_the_servers_own_completions_go_on_beside_ours(mode: str) -> None:
    server = MCPServer("demo")

    @server.completion()
    async def complete(  # pyright: ignore[reportUnusedFunction]
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: types.CompletionArgument,
        context: types.CompletionContext | None,
    ) -> types.Completion | None:
        return types.Completion(values=[f"{argument.value}da"])

    add_skills(server, skill("acme/hello").with_reference("references/a.md", "a"))
    ours = types.ResourceTemplateReference(type="ref/resource", uri="skill://{+path}")
    theirs = types.ResourceTemplateReference(type="ref/resource", uri="info://people/{name}")

    async with connect(server, mode) as client:
        paths = (await client.complete(ours, {"name": "path", "value": "acme/hello/"})).completion
        people = (await client.complete(theirs, {"name": "name", "value": "a"})).completion

    assert paths.values == ["acme/hello/SKILL.md", "acme/hello/references/"]
    assert people.values == ["ada"]


async def test_without_completions_of_its_own_a_server_completes_only_our_paths(mode: str) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, skill("acme/hello"))
    other = types.ResourceTemplateReference(type="ref/resource", uri="info://{name}")

    async with connect(server, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.complete(other, {"name": "name", "value": "a"})

    assert caught.value.error.code == INVALID_PARAMS


def paginated(own: int, page_size: int, scope: CacheScope | None = None) -> Server[Any]:
    """Make a lowlevel server whose own resources come in pages, with cursors that are numbers."""

    async def list_resources(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = params.cursor if params else None
        if cursor is not None and not cursor.isdigit():
            raise MCPError(INVALID_PARAMS, "my own words about cursors")
        start = int(cursor or 0)
        stop = min(start + page_size, own)
        return types.ListResourcesResult(
            resources=[types.Resource(uri=f"info://{n:02}", name=f"n{n}") for n in range(start, stop)],
            next_cursor=str(stop) if stop < own else None,
            ttl_ms=1000,
            cache_scope=scope or "public",
        )

    async def read_resource(
        context: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if not params.uri.startswith("info://"):
            raise MCPError(-32002, "my own words about resources")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text="own")])

    return Server("demo", on_list_resources=list_resources, on_read_resource=read_resource)


@pytest.mark.requirement("LIST-12")
@pytest.mark.parametrize("own", [0, 1, 2, 5])
@pytest.mark.parametrize("page_size", [1, 2, 100])
async def test_the_servers_own_pages_come_first_and_the_skills_after_them(
    mode: str, own: int, page_size: int
) -> None:
    server = paginated(own, 2)
    add_skills(server, *(skill(f"acme/s{number}") for number in range(3)), page_size=page_size)

    async with connect(server, mode) as client:
        found = await pages(client, "resources/list")
        contents = await read(client, "info://00")

    uris = [resource["uri"] for page in found for resource in page["resources"]]
    assert uris == [f"info://{n:02}" for n in range(own)] + [
        f"skill://acme/s{number}/SKILL.md" for number in range(3)
    ]
    assert contents == b"own"


async def test_errors_of_the_servers_own_handlers_stay_its_own(mode: str) -> None:
    server = paginated(5, 2)
    add_skills(server, skill("acme/hello"))

    async with connect(server, mode) as client:
        cursor = await refused(client, "resources/list", cursor="nonsense")
        resource = await refused(client, "resources/read", uri="other://x")

    assert (cursor.code, cursor.message) == (INVALID_PARAMS, "my own words about cursors")
    assert (resource.code, resource.message) == (-32002, "my own words about resources")


@pytest.mark.requirement("LIST-14")
@pytest.mark.parametrize("theirs", ["public", "private"])
@pytest.mark.parametrize("ours", ["public", "private"])
async def test_a_merged_page_is_private_when_any_part_of_it_is(ours: CacheScope, theirs: CacheScope) -> None:
    server = paginated(1, 2, theirs)
    add_skills(server, skill("acme/hello"), ttl=60, cache_scope=ours)

    async with connect(server) as client:
        page = await ask(client, "resources/list")

    assert len(page["resources"]) == 2
    assert page["cacheScope"] == ("private" if "private" in (ours, theirs) else "public")
    assert page["ttlMs"] == 1000


async def test_the_servers_own_lifespan_runs_around_every_request(server: AnyServer, mode: str) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(running: object) -> AsyncGenerator[str]:
        events.append("start")
        try:
            yield "state"
        finally:
            events.append("stop")

    if isinstance(server, MCPServer):
        server = MCPServer("demo", lifespan=lifespan)

        @server.tool()
        def state(context: Context[str]) -> str:
            return context.request_context.lifespan_context
    else:

        async def call(
            context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
        ) -> types.CallToolResult:
            text = str(context.lifespan_context)
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

        server = Server("demo", lifespan=lifespan, on_call_tool=call)
    add_skills(server, skill("acme/hello"))

    async with connect(server, mode) as client:
        told = (await ask(client, "tools/call", name="state", arguments={}))["content"][0]["text"]
        listed = await skills_of(client)
        assert events == ["start"]

    assert events == ["start", "stop"]
    assert told == "state"
    assert list(listed) == [HELLO]


# Opening and closing


class CountedSource(PlainSource):
    """A source that must be opened, and notes when it is; with `failures` to go, opening fails."""

    def __init__(self, *skills: Skill, failures: int = 0, delay: float = 0) -> None:
        super().__init__(*skills)
        self.events: list[str] = []
        self.failures = failures
        self.delay = delay

    async def __aenter__(self) -> "CountedSource":
        await anyio.sleep(self.delay)
        if self.failures:
            self.failures -= 1
            raise SourceError("not yet")
        self.events.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.events.append("close")

    async def read_file(self, uri: str) -> bytes:
        assert self.events and self.events[-1] == "open", "read while closed"
        return await super().read_file(uri)


ORDERS = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("modes", [("legacy",) * 3, ("auto",) * 3, ("legacy", "auto", "legacy")], ids=str)
async def test_sources_stay_open_until_the_last_connection_leaves(
    order: tuple[int, ...], modes: tuple[str, ...]
) -> None:
    source = CountedSource(skill("acme/hello"))
    server = MCPServer("demo")
    add_skills(server, source)
    leave = [anyio.Event() for _ in modes]
    left = [anyio.Event() for _ in modes]
    clients: list[Client] = []

    async def stay(number: int, *, task_status: anyio.abc.TaskStatus[Client]) -> None:
        async with connect(server, modes[number]) as client:
            task_status.started(client)
            await leave[number].wait()
        left[number].set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number in range(3):
                clients.append(await group.start(stay, number))
            for position, number in enumerate(order):
                leave[number].set()
                await left[number].wait()
                for other in order[position + 1 :]:
                    assert await read(clients[other], HELLO)
                assert source.events == (["open"] if position < 2 else ["open", "close"])

    async with connect(server, modes[0]) as client:
        assert await read(client, HELLO)
    assert source.events == ["open", "close"] * 2


async def test_connections_that_come_at_once_open_the_sources_once(mode: str) -> None:
    source = CountedSource(skill("acme/hello"), delay=0.05)
    server = MCPServer("demo")
    add_skills(server, source)
    found: list[bytes] = []
    everybody_read = anyio.Event()

    async def visit() -> None:
        async with connect(server, mode) as client:
            found.append(await read(client, HELLO))
            if len(found) == 8:
                everybody_read.set()
            await everybody_read.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(visit)

    assert len(found) == 8
    assert source.events == ["open", "close"]


async def test_a_source_that_cannot_be_opened_fails_who_connects_and_nobody_later(
    server: AnyServer, mode: str
) -> None:
    source = CountedSource(skill("acme/hello"), failures=2)
    add_skills(server, source)

    failures = [await failure_of_connecting(server, mode) for _ in range(2)]
    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert [type(failure) for failure in failures] == [SourceError] * 2
    assert list(listed) == [HELLO]
    assert source.events == ["open", "close"]


async def test_a_folder_that_is_missing_at_first_can_be_served_later(
    server: AnyServer, mode: str, tmp_path: Path
) -> None:
    add_skills(server, tmp_path / "skills")

    failure = await failure_of_connecting(server, mode)
    write_skill(tmp_path / "skills/acme/hello")
    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert isinstance(failure, SourceError)
    assert str(tmp_path) not in str(failure)
    assert list(listed) == [HELLO]


async def test_a_client_that_gives_up_while_sources_open_spoils_nothing(mode: str) -> None:
    source = CountedSource(skill("acme/hello"), delay=0.3)
    server = MCPServer("demo")
    add_skills(server, source)

    with anyio.move_on_after(0.05) as scope:
        async with connect(server, mode):
            pass
    source.delay = 0
    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert scope.cancelled_caught
    assert list(listed) == [HELLO]
    assert source.events in (["open", "close"], ["open", "close"] * 2)


async def test_what_changed_while_nobody_was_connected_is_seen_by_the_next(mode: str, root: Path) -> None:
    folder = write_skill(root / "hello", {"a.md": "one"})
    server = MCPServer("demo")
    add_skills(server, root)

    async with connect(server, mode) as client:
        first = await read(client, "skill://hello/a.md")
    write_files(folder, {"a.md": "two!"})
    async with connect(server, mode) as client:
        second = await read(client, "skill://hello/a.md")
        entry = await get(client, "skill://hello/SKILL.md")

    assert (first, second) == (b"one", b"two!")
    assert is_as_promised(second, entry["resources"][1])


class UnreadableSource(PlainSource):
    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        raise OSError(13, "hunter2")
        yield


async def test_a_source_that_cannot_be_listed_fails_who_connects(server: AnyServer, mode: str) -> None:
    add_skills(server, UnreadableSource())

    failure = await failure_of_connecting(server, mode)

    assert isinstance(failure, OSError)


async def test_a_server_that_is_not_running_answers_nothing() -> None:
    skills = add_skills(MCPServer("demo"), skill("acme/hello"))

    with pytest.raises(SourceError):
        _ = skills.answers
    with pytest.raises(SourceError):
        _ = skills.source


async def test_one_source_can_serve_two_servers(mode: str) -> None:
    source = MemorySource([skill("acme/hello")])
    one, two = MCPServer("one"), MCPServer("two")
    add_skills(one, source)
    add_skills(two, source)

    async with connect(one, mode) as client, connect(two, mode) as other:
        assert await skills_of(client) == await skills_of(other)
        source.add(skill("acme/later"))
        for each in (client, other):
            await eventually(lambda each=each: skills_of(each), lambda seen: len(seen) == 2, seconds=2)


async def test_an_mcpserver_with_other_extensions_declares_them_all(mode: str) -> None:
    server: Server[Any] = Server("demo")
    server.extensions["com.example/other"] = {"x": 1}
    add_skills(server, skill("acme/hello"))

    async with connect(server, mode) as client:
        declared = client.server_capabilities.extensions or {}

    assert declared[EXTENSION] == {"directoryRead": True}
    assert mode == "legacy" or declared["com.example/other"] == {"x": 1}
