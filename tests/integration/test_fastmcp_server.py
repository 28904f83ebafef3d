"""Skills on FastMCP servers: real clients of both generations, in memory, over HTTP and over pipes."""

import base64
import logging
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import httpx2
import mcp_types as types
import pytest
import uvicorn
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import AuthorizationError, ResourceError
from fastmcp.resources import Resource, ResourceResult
from fastmcp.server import create_proxy
from fastmcp.server.auth import require_scopes
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.context import Context
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import AuthMiddleware, CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.providers import Provider
from fastmcp.server.transforms import Namespace
from mcp.client import Client as SdkClient
from mcp.shared.exceptions import MCPError

from folders import skill_md, write_files, write_skill
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS, NotFoundError, SkillError
from skillwire.core.uri import SkillUri
from skillwire.server import DynamicSkill, Skill, Skills, add_skills
from skillwire.sources import MemorySource
from skillwire.wire.core import EXTENSION

PDF = "skill://pdf/SKILL.md"
REFUNDS = "skill://acme/billing/refunds/SKILL.md"
LATIN = b"caf\xe9\r\n"
PNG = bytes(range(256))
METHOD_NOT_FOUND = -32601

AnyClient: TypeAlias = "Client[Any] | SdkClient"
AnyServer: TypeAlias = FastMCP[Any]
Connect: TypeAlias = Callable[[AnyServer], AnyClient]


class AnyRequest(types.Request[dict[str, Any], str]):
    """Any request at all."""


class AnyResult(types.Result, extra="allow"):
    """Any result, with all it holds."""


async def ask(client: AnyClient, method: str, **params: Any) -> dict[str, Any]:
    """Send one request and return its result as it came, but for the server's name."""
    with anyio.fail_after(20):
        result = await client.session.send_request(AnyRequest(method=method, params=params), AnyResult)
    data = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    data.pop("_meta", None)
    return data


async def refusal(client: AnyClient, method: str, **params: Any) -> tuple[int, str, Any]:
    """Send one request that must fail, and return the error's code, message and data."""
    with pytest.raises(MCPError) as caught:
        await ask(client, method, **params)
    return caught.value.code, caught.value.message, caught.value.data


async def listed(client: AnyClient) -> list[str]:
    return [entry["uri"] for entry in (await ask(client, "skills/list"))["skills"]]


async def listed_resources(client: AnyClient) -> list[str]:
    return [resource["uri"] for resource in (await ask(client, "resources/list"))["resources"]]


async def contents(client: AnyClient, uri: str) -> bytes:
    """Return the bytes of a resource, decoded as its one item says."""
    (item,) = (await ask(client, "resources/read", uri=uri))["contents"]
    return item["text"].encode() if "text" in item else base64.b64decode(item["blob"])


def connect(server: AnyServer, mode: str) -> Client[Any]:
    return Client(server, mode=mode, cache=False)


def skill(name: str, *, body: str = "Do it.", path: str | None = None) -> Skill:
    return Skill(name, body=body, description=f"Use when testing {name}.", path=path)


def with_skills(*skills: Skill, name: str = "server") -> AnyServer:
    server = FastMCP[Any](name)
    add_skills(server, *skills)
    return server


async def startup_error(server: AnyServer) -> BaseException:
    """Return why a server does not start."""
    with pytest.raises(RuntimeError) as caught:
        async with connect(server, "auto"):
            pass
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


@asynccontextmanager
async def over_http(server: AnyServer) -> AsyncGenerator[str]:
    """Serve over HTTP on the loopback for as long as the context lasts, and return the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            server.http_app(path="/mcp"), log_level="warning", timeout_graceful_shutdown=1, ws="none"
        )
        http = uvicorn.Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(http.serve, [listening])
            with anyio.fail_after(20):
                while not http.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await anyio.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
            finally:
                http.should_exit = True


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    """How to connect: as revision 2025-11-25, and as 2026-07-28."""
    return request.param


@pytest.fixture(params=["FastMCP's client", "the SDK's client"])
def open_client(request: pytest.FixtureRequest, mode: str) -> Connect:
    if request.param == "FastMCP's client":
        return lambda server: connect(server, mode)
    return lambda server: SdkClient(server._mcp_server, mode=mode)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "skills"
    files = {
        "references/a b.md": "# A\r\n",
        "assets/logo.png": PNG,
        "assets/latin.txt": LATIN,
        "data.json": "{}",
    }
    write_skill(root / "pdf", files)
    write_skill(root / "acme/billing/refunds", {"policy.md": "Thirty days.\n"})
    return root


@pytest.fixture
def server(folder: Path) -> AnyServer:
    server = FastMCP[Any]("billing")

    @server.resource("info://about")
    def about() -> str:  # pyright: ignore[reportUnusedFunction]
        return "about this server"

    add_skills(server, folder, ttl=7, watch=False)
    return server


# The extension, as on any other server


@pytest.mark.requirement("NEG-01")
@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-10")
async def test_the_extension_and_resources_are_declared_to_either_generation(
    server: AnyServer, open_client: Connect
) -> None:
    async with open_client(server) as client:
        capabilities = client.server_capabilities

    assert capabilities is not None
    assert (capabilities.extensions or {})[EXTENSION] == {"directoryRead": True}
    assert capabilities.resources == types.ResourcesCapability(subscribe=True, list_changed=True)


@pytest.mark.requirement("LIST-08")
@pytest.mark.requirement("READ-01")
@pytest.mark.requirement("READ-08")
@pytest.mark.requirement("FMT-11")
async def test_every_listed_file_is_read_to_the_byte(
    server: AnyServer, folder: Path, open_client: Connect
) -> None:
    async with open_client(server) as client:
        entries = (await ask(client, "skills/list"))["skills"]
        lines = [line for entry in entries for line in entry["resources"]]
        served = {line["uri"]: await contents(client, line["uri"]) for line in lines}

    assert [entry["uri"] for entry in entries] == [REFUNDS, PDF]
    assert len(served) == 7
    for line in lines:
        content = served[line["uri"]]
        path = line["uri"].removeprefix("skill://").replace("%20", " ")
        assert content == (folder / path).read_bytes()
        assert line["digest"] == f"sha256:{sha256(content).hexdigest()}"
        assert line["size"] == len(content)


@pytest.mark.requirement("READ-08")
@pytest.mark.requirement("META-02")
@pytest.mark.parametrize(
    ("uri", "media_type", "kind"),
    [
        (PDF, "text/markdown", "text"),
        ("skill://pdf/data.json", "application/json", "text"),
        ("skill://pdf/assets/logo.png", "image/png", "blob"),
        ("skill://pdf/assets/latin.txt", "text/plain", "blob"),
    ],
)
async def test_a_file_is_text_exactly_when_it_is_utf8_and_has_its_own_media_type(
    server: AnyServer, mode: str, uri: str, media_type: str, kind: str
) -> None:
    async with connect(server, mode) as client:
        (item,) = (await ask(client, "resources/read", uri=uri))["contents"]

    assert item.keys() == {"uri", "mimeType", kind}
    assert (item["uri"], item["mimeType"]) == (uri, media_type)


@pytest.mark.requirement("LIST-14")
@pytest.mark.requirement("GET-07")
@pytest.mark.requirement("NEG-17")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("skills/list", {}),
        ("skills/get", {"uri": PDF}),
        ("resources/directory/read", {"uri": "skill://pdf"}),
        ("resources/read", {"uri": PDF}),
    ],
)
async def test_results_say_how_long_they_are_fresh_only_where_the_protocol_has_a_word_for_it(
    server: AnyServer, mode: str, method: str, params: dict[str, str]
) -> None:
    async with connect(server, mode) as client:
        result = await ask(client, method, **params)

    terms = {key: value for key, value in result.items() if key in ("resultType", "ttlMs", "cacheScope")}
    modern = {"resultType": "complete", "ttlMs": 7000, "cacheScope": "public"}
    assert terms == (modern if mode == "auto" else {})


@pytest.mark.requirement("META-01")
@pytest.mark.requirement("META-05")
@pytest.mark.requirement("NEG-09")
async def test_each_skill_is_among_the_resources_beside_the_server_s_own(
    server: AnyServer, folder: Path, mode: str
) -> None:
    async with connect(server, mode) as client:
        resources = {item["uri"]: item for item in (await ask(client, "resources/list"))["resources"]}

    assert resources.keys() == {"info://about", PDF, REFUNDS}
    pdf = resources[PDF]
    assert (pdf["name"], pdf["description"]) == ("pdf", "Use when testing pdf.")
    assert (pdf["mimeType"], pdf["size"]) == ("text/markdown", len((folder / "pdf/SKILL.md").read_bytes()))
    assert pdf["annotations"]["audience"] == ["assistant"]
    assert pdf["annotations"]["priority"] == 0.8
    assert "lastModified" in pdf["annotations"]
    assert "size" not in resources["info://about"]


@pytest.mark.requirement("GET-01")
@pytest.mark.requirement("DIR-02")
async def test_one_skill_is_got_and_a_directory_is_listed(server: AnyServer, open_client: Connect) -> None:
    async with open_client(server) as client:
        entries = (await ask(client, "skills/list"))["skills"]
        got = (await ask(client, "skills/get", uri=PDF))["skill"]
        children = (await ask(client, "resources/directory/read", uri="skill://pdf"))["resources"]

    assert got == entries[1]
    assert [(child["uri"], child["mimeType"]) for child in children] == [
        (PDF, "text/markdown"),
        ("skill://pdf/assets", "inode/directory"),
        ("skill://pdf/data.json", "application/json"),
        ("skill://pdf/references", "inode/directory"),
    ]


@pytest.mark.requirement("READ-09")
@pytest.mark.requirement("GET-02")
@pytest.mark.requirement("DIR-03")
@pytest.mark.requirement("LIST-13")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "skill://gone/SKILL.md"}),
        ("resources/read", {"uri": "skill://pdf/../../etc/passwd"}),
        ("resources/read", {"uri": "skill://pdf/%2e%2e/secret"}),
        ("resources/read", {"uri": "skill://pdf/assets"}),
        ("skills/get", {"uri": "skill://gone/SKILL.md"}),
        ("skills/get", {"uri": "skill://pdf/data.json"}),
        ("skills/get", {}),
        ("resources/directory/read", {"uri": PDF}),
        ("resources/directory/read", {"uri": "skill://pdf/"}),
        ("skills/list", {"cursor": "nonsense"}),
    ],
)
async def test_what_is_not_served_is_an_invalid_parameter(
    server: AnyServer, mode: str, method: str, params: dict[str, str]
) -> None:
    async with connect(server, mode) as client:
        code, _, data = await refusal(client, method, **params)

    assert code == INVALID_PARAMS
    if "uri" in params:
        assert data == {"uri": params["uri"]}


async def test_reading_a_directory_says_how_it_is_read(server: AnyServer, mode: str) -> None:
    async with connect(server, mode) as client:
        _, message, _ = await refusal(client, "resources/read", uri="skill://pdf/assets")

    assert message == "skill://pdf/assets is a directory; use resources/directory/read"


async def test_a_mistake_of_the_peer_s_is_no_error_in_the_log(
    server: AnyServer, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("fastmcp"), "propagate", True)

    async with connect(server, mode) as client:
        await refusal(client, "resources/read", uri="skill://pdf/assets")
        await refusal(client, "resources/read", uri="skill://gone/SKILL.md")

    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_paths_are_completed_beside_what_the_server_completes_itself(
    server: AnyServer, mode: str
) -> None:
    @server.completion  # After the skills were added, and all the same.
    def complete(  # pyright: ignore[reportUnusedFunction]
        ref: object, argument: types.CompletionArgument, context: object
    ) -> list[str]:
        return [f"{argument.value}!"]

    ours = types.ResourceTemplateReference(type="ref/resource", uri="skill://{+path}")
    theirs = types.PromptReference(type="ref/prompt", name="poem")
    async with connect(server, mode) as client:
        templates = (await ask(client, "resources/templates/list"))["resourceTemplates"]
        top = await client.complete(ours, {"name": "path", "value": ""})
        files = await client.complete(ours, {"name": "path", "value": "pdf/d"})
        other = await client.complete(theirs, {"name": "theme", "value": "sea"})

    (template,) = templates
    assert template["uriTemplate"] == "skill://{+path}"
    assert "mimeType" not in template
    assert top.values == ["acme/", "pdf/"]
    assert files.values == ["pdf/data.json"]
    assert other.values == ["sea!"]


@pytest.mark.requirement("GET-03")
@pytest.mark.requirement("READ-02")
async def test_a_skill_that_nobody_lists_is_got_and_read(mode: str) -> None:
    server = FastMCP[Any]("quiet")
    add_skills(server, Quiet(skill("hidden"), skill("shelved")))

    async with connect(server, mode) as client:
        assert await listed(client) == []
        assert (await ask(client, "skills/get", uri="skill://hidden/SKILL.md"))["skill"]["frontmatter"] == {
            "name": "hidden",
            "description": "Use when testing hidden.",
        }
        result = await ask(client, "resources/read", uri="skill://hidden/SKILL.md")

    assert result["contents"][0]["text"] == skill("hidden").skill_md.decode()
    assert result.get("ttlMs", 0) == 0


# Changes


async def test_a_subscriber_of_the_handshake_era_is_told_of_a_change() -> None:
    server = FastMCP[Any]("changing")
    skills = add_skills(server, skill("tea"))
    told, messages = anyio.create_memory_object_stream[Any](16)

    async def on_message(message: object) -> None:
        await told.send(message)

    async with Client(server, mode="legacy", message_handler=on_message) as client:
        await ask(client, "resources/subscribe", uri="skill://tea/SKILL.md")
        replace_skill(skills, skill("tea", body="Boil water."))
        with anyio.fail_after(20):
            message = await messages.receive()
            while not isinstance(message, types.ResourceUpdatedNotification):
                message = await messages.receive()

        assert message.params.uri == "skill://tea/SKILL.md"
        assert b"Boil water." in await contents(client, "skill://tea/SKILL.md")
        await ask(client, "resources/unsubscribe", uri="skill://tea/SKILL.md")
    told.close()
    messages.close()


async def test_a_modern_listener_is_told_of_a_change() -> None:
    server = FastMCP[Any]("changing")
    skills = add_skills(server, skill("tea"))
    lowlevel = server._mcp_server  # pyright: ignore[reportPrivateUsage]

    async with SdkClient(lowlevel, mode="auto") as client:
        async with client.listen(resource_subscriptions=["skill://tea/SKILL.md"]) as events:
            replace_skill(skills, skill("tea", body="Boil water."))
            with anyio.fail_after(20):
                event = await anext(aiter(events))

    assert getattr(event, "uri", None) == "skill://tea/SKILL.md"


@pytest.mark.requirement("GET-04")
async def test_a_change_shows_in_every_answer_at_once(mode: str) -> None:
    server = FastMCP[Any]("changing")
    skills = add_skills(server, skill("tea"))

    async with connect(server, mode) as client:
        await listed_resources(client)
        replace_skill(skills, skill("tea", body="Boil water."), skill("coffee"))
        content = await contents(client, "skill://tea/SKILL.md")
        entry = (await ask(client, "skills/get", uri="skill://tea/SKILL.md"))["skill"]

        assert entry["resources"][0]["digest"] == f"sha256:{sha256(content).hexdigest()}"
        assert await listed(client) == ["skill://coffee/SKILL.md", "skill://tea/SKILL.md"]
        assert await listed_resources(client) == ["skill://coffee/SKILL.md", "skill://tea/SKILL.md"]


async def test_the_response_cache_of_fastmcp_never_holds_an_old_file(mode: str) -> None:
    server = FastMCP[Any]("cached", middleware=[ResponseCachingMiddleware()])
    source = Quiet(skill("hidden"), scheme="acme")
    skills = add_skills(server, skill("tea"), source)

    async with connect(server, mode) as client:
        before = await contents(client, "skill://tea/SKILL.md")
        for _ in range(2):
            await contents(client, "acme://hidden/SKILL.md")
        replace_skill(skills, skill("tea", body="Boil water."))
        source.serve(skill("hidden", body="Changed."))

        after = await contents(client, "skill://tea/SKILL.md")
        assert before != after
        assert after == skill("tea", body="Boil water.").skill_md
        assert b"Changed." in await contents(client, "acme://hidden/SKILL.md")


# What the server's own rules decide


class Notebook(Middleware):
    """Notes what FastMCP lets a middleware see, and refuses what it is told to."""

    def __init__(self, *, refused: str = "", refused_method: str = "") -> None:
        self.reads: list[str] = []
        self.methods: list[str | None] = []
        self.names: list[str] = []
        self._refused = refused
        self._refused_method = refused_method

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.methods.append(context.method)
        if context.method == self._refused_method:
            raise MCPError(-32000, "not today")
        return await call_next(context)

    async def on_read_resource(
        self,
        context: MiddlewareContext[types.ReadResourceRequestParams],
        call_next: CallNext[types.ReadResourceRequestParams, ResourceResult],
    ) -> ResourceResult:
        self.reads.append(str(context.message.uri))
        if self.reads[-1] == self._refused:
            raise ResourceError("not for you")
        return await call_next(context)

    async def on_list_resources(
        self,
        context: MiddlewareContext[types.ListResourcesRequest],
        call_next: CallNext[types.ListResourcesRequest, Sequence[Resource]],
    ) -> Sequence[Resource]:
        resources = await call_next(context)
        self.names.extend(resource.name for resource in resources)
        return [resource for resource in resources if resource.name != "pdf"]


async def test_middleware_sees_reads_and_lists_of_skills(server: AnyServer, mode: str) -> None:
    notebook = Notebook()
    server.add_middleware(notebook)

    async with connect(server, mode) as client:
        await contents(client, PDF)
        await listed(client)
        await ask(client, "resources/directory/read", uri="skill://pdf")
        assert await listed_resources(client) == [REFUNDS, "info://about"]

    assert notebook.reads == [PDF]
    assert sorted(notebook.names) == ["about", "pdf", "refunds"]
    assert {"resources/read", "skills/list", "resources/directory/read"} <= set(notebook.methods)


@pytest.mark.parametrize("spelling", [PDF, "skill://pdf/%53KILL.md", "SKILL://p%64f/SKILL%2Emd"])
async def test_middleware_refuses_a_file_in_every_spelling(
    server: AnyServer, mode: str, spelling: str
) -> None:
    server.add_middleware(Notebook(refused=PDF))

    async with connect(server, mode) as client:
        _, message, _ = await refusal(client, "resources/read", uri=spelling)
        allowed = await ask(client, "resources/read", uri="skill://pdf/d%61ta.json")

    assert message == "not for you"
    assert allowed["contents"] == [
        {"uri": "skill://pdf/d%61ta.json", "mimeType": "application/json", "text": "{}"}
    ]


async def test_middleware_refuses_a_method_of_the_extension(server: AnyServer, mode: str) -> None:
    server.add_middleware(Notebook(refused_method="skills/list"))

    async with connect(server, mode) as client:
        code, message, _ = await refusal(client, "skills/list")
        await ask(client, "skills/get", uri=PDF)

    assert (code, message) == (-32000, "not today")


class Bouncer(Middleware):
    """Denies every resource whose URI starts in a certain way."""

    def __init__(self, start: str) -> None:
        self._start = start

    async def check_resource_access(
        self, context: MiddlewareContext[types.ReadResourceRequestParams]
    ) -> None:
        if str(context.message.uri).startswith(self._start):
            raise AuthorizationError("denied")


def disable_by_name(server: AnyServer) -> None:
    server.disable(names={"refunds"})


def deny_access(server: AnyServer) -> None:
    server.add_middleware(Bouncer("skill://acme/"))


def disable_in_the_provider(server: AnyServer) -> None:
    server.providers[0].disable(names={"refunds"})


@pytest.mark.parametrize("hide", [disable_by_name, deny_access, disable_in_the_provider])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_skill_that_is_hidden_as_a_resource_is_hidden_everywhere(
    server: AnyServer, mode: str, hide: Callable[[AnyServer], None], is_mounted: bool
) -> None:
    hide(server)
    asked = server
    if is_mounted:
        asked = FastMCP[Any]("parent")
        asked.mount(server)
    template = types.ResourceTemplateReference(type="ref/resource", uri="skill://{+path}")

    async with connect(asked, mode) as client:
        listing = await ask(client, "skills/list")
        assert [entry["uri"] for entry in listing["skills"]] == [PDF]
        assert listing.get("cacheScope", "private") == "private"

        unknown = await refusal(client, "skills/get", uri="skill://acme/gone/SKILL.md")
        hidden = await refusal(client, "skills/get", uri=REFUNDS)
        assert (hidden[0], hidden[1].replace("billing/refunds", "gone")) == unknown[:2]

        for uri in (REFUNDS, "skill://acme/billing/refunds/policy.md", "skill://acme/billing/refunds"):
            _, message, _ = await refusal(client, "resources/read", uri=uri)
            assert "is a directory" not in message
        for directory in ("skill://acme", "skill://acme/billing", "skill://acme/billing/refunds"):
            code, message, _ = await refusal(client, "resources/directory/read", uri=directory)
            assert (code, message) == (INVALID_PARAMS, f"{directory} is not a directory")
        assert (await client.complete(template, {"name": "path", "value": ""})).values == ["pdf/"]

        assert (await ask(client, "skills/get", uri=PDF))["skill"]["uri"] == PDF
        assert len((await ask(client, "resources/directory/read", uri="skill://pdf"))["resources"]) == 4
        assert await contents(client, "skill://pdf/data.json") == b"{}"


async def test_what_a_session_disables_is_hidden_from_that_session_alone(server: AnyServer) -> None:
    @server.tool
    async def hide_refunds(context: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        await context.disable_components(names={"refunds"})
        return "done"

    async with connect(server, "legacy") as client, connect(server, "legacy") as other:
        await client.call_tool("hide_refunds")

        assert await listed(client) == [PDF]
        assert await listed(other) == [REFUNDS, PDF]


async def test_reading_and_listing_skills_does_not_go_through_all_resources(
    server: AnyServer, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[object] = []

    async def list_resources(provider: object) -> Sequence[Resource]:
        listings.append(provider)
        return []

    monkeypatch.setattr(type(server.providers[0]), "_list_resources", list_resources)
    server.disable(names={"refunds"})

    async with connect(server, mode) as client:
        assert await contents(client, PDF)
        assert await listed(client) == [PDF]
        await refusal(client, "skills/get", uri=REFUNDS)
        assert listings == []

        await listed_resources(client)
        assert listings == [server.providers[0]]


async def test_a_resource_of_the_server_s_own_does_not_stand_in_for_a_file(
    server: AnyServer, folder: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    @server.resource(PDF)
    def impostor() -> str:  # pyright: ignore[reportUnusedFunction]
        return "something else"

    async with connect(server, mode) as client:
        assert await contents(client, PDF) == (folder / "pdf/SKILL.md").read_bytes()


# Failures


@pytest.mark.parametrize("uri", ["skill://broken/SKILL.md", "skill://broken-too/SKILL.md"])
async def test_a_failure_inside_tells_the_peer_nothing(mode: str, uri: str) -> None:
    def fail() -> str:
        raise OSError("/srv/private/SKILL.md is on fire")

    server = FastMCP[Any]("broken")
    add_skills(server, DynamicSkill("broken", description="Use when broken.", body=fail), Broken())

    async with connect(server, mode) as client:
        code, message, data = await refusal(client, "resources/read", uri=uri)

    assert code == INTERNAL_ERROR
    assert "/srv" not in message and "fire" not in message
    assert data is None


async def test_a_source_that_fails_takes_no_resource_from_the_server(mode: str) -> None:
    server = FastMCP[Any]("broken")
    add_skills(server, Broken())

    @server.resource("info://about")
    def about() -> str:  # pyright: ignore[reportUnusedFunction]
        return "about this server"

    async with connect(server, mode) as client:
        assert await contents(client, "info://about") == b"about this server"


async def test_skills_are_added_to_a_server_once(server: AnyServer) -> None:
    with pytest.raises(SkillError, match="already"):
        add_skills(server, skill("tea"))


# Lifecycle


class Counting(MemorySource):
    """Counts how often it is opened and closed."""

    def __init__(self, *skills: Skill) -> None:
        super().__init__(skills)
        self.events: list[str] = []

    async def __aenter__(self) -> "Counting":
        self.events.append("opened")
        return self

    async def __aexit__(self, *exit: object) -> None:
        self.events.append("closed")


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_sources_are_open_while_the_server_runs(mode: str, is_mounted: bool) -> None:
    source = Counting(skill("tea"))
    server = FastMCP[Any]("server")
    add_skills(server, source)
    asked = server
    if is_mounted:
        asked = FastMCP[Any]("parent")
        asked.mount(server)

    for _ in range(2):
        async with connect(asked, mode) as client:
            assert await listed(client) == ["skill://tea/SKILL.md"]
            assert source.events == ["opened"]
        assert source.events == ["opened", "closed"]
        source.events.clear()


async def test_skills_stay_open_for_the_last_of_several_clients(server: AnyServer, mode: str) -> None:
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(connect(server, mode))
        client = await second.enter_async_context(connect(server, mode))
        await first.aclose()

        assert await listed(client) == [REFUNDS, PDF]
        assert await contents(client, PDF)


# Servers on servers


async def test_a_mounted_server_s_skills_are_the_parent_s(
    server: AnyServer, folder: Path, open_client: Connect
) -> None:
    middle, parent = FastMCP[Any]("middle"), FastMCP[Any]("parent")
    middle.mount(server)
    parent.mount(middle, tool_names={})

    async with open_client(parent) as client:
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert (capabilities.extensions or {})[EXTENSION] == {"directoryRead": True}
        assert await listed(client) == [REFUNDS, PDF]
        assert (await ask(client, "skills/get", uri=PDF))["skill"]["uri"] == PDF
        assert await contents(client, "skill://pdf/assets/logo.png") == PNG
        assert len((await ask(client, "resources/directory/read", uri="skill://pdf"))["resources"]) == 4
        resources = {item["uri"]: item for item in (await ask(client, "resources/list"))["resources"]}
        result = await ask(client, "resources/read", uri=PDF)

    assert resources[PDF]["size"] == len((folder / "pdf/SKILL.md").read_bytes())
    assert resources[PDF]["annotations"]["priority"] == 0.8
    assert result.get("ttlMs", 7000) == 7000


async def test_skills_added_after_mounting_are_the_parent_s_too(mode: str) -> None:
    child, parent = FastMCP[Any]("child"), FastMCP[Any]("parent")
    parent.mount(child)
    add_skills(child, skill("tea"))

    async with connect(parent, mode) as client:
        capabilities = client.server_capabilities
        assert capabilities is not None and EXTENSION in (capabilities.extensions or {})
        assert await listed(client) == ["skill://tea/SKILL.md"]


async def test_a_server_that_is_mounted_may_run_on_its_own_as_well(server: AnyServer, mode: str) -> None:
    parent = FastMCP[Any]("parent")
    parent.mount(server)
    server.disable(names={"refunds"})

    async with connect(parent, mode) as client, connect(server, mode) as direct:
        assert await listed(client) == await listed(direct) == [PDF]
        assert await contents(client, PDF) == await contents(direct, PDF)


async def test_a_server_that_is_mounted_with_a_namespace_keeps_the_parent_from_starting() -> None:
    parent = FastMCP[Any]("parent")
    parent.mount(with_skills(skill("tea")), namespace="drinks")

    error = await startup_error(parent)

    assert isinstance(error, SkillError)
    assert "namespace" in str(error)


async def test_a_server_whose_resources_are_renamed_does_not_start() -> None:
    server = with_skills(skill("tea"))
    server.add_transform(Namespace("drinks"))

    assert isinstance(await startup_error(server), SkillError)


async def test_a_server_may_be_mounted_a_second_time_with_a_namespace(mode: str) -> None:
    child, parent = with_skills(skill("tea")), FastMCP[Any]("parent")
    parent.mount(child, namespace="drinks")
    parent.mount(child)

    async with connect(parent, mode) as client:
        assert await listed(client) == ["skill://tea/SKILL.md"]
        assert await contents(client, "skill://tea/SKILL.md") == skill("tea").skill_md


async def test_a_second_server_with_skills_cannot_be_mounted(mode: str) -> None:
    parent = FastMCP[Any]("parent")
    parent.mount(with_skills(skill("tea")))

    with pytest.raises(SkillError, match="more than one `add_skills`"):
        parent.mount(with_skills(skill("coffee")))
    with pytest.raises(SkillError, match="already"):
        add_skills(parent, skill("coffee"))

    async with connect(parent, mode) as client:
        assert await listed(client) == ["skill://tea/SKILL.md"]


async def test_a_server_with_skills_cannot_be_mounted_on_another() -> None:
    parent = with_skills(skill("tea"))

    with pytest.raises(SkillError, match="more than one `add_skills`"):
        parent.mount(with_skills(skill("coffee")))


async def test_a_mounted_server_that_gets_skills_later_keeps_a_parent_with_skills_from_starting() -> None:
    child, parent = FastMCP[Any]("child"), with_skills(skill("tea"))
    parent.mount(child)
    add_skills(child, skill("coffee"))

    assert isinstance(await startup_error(parent), SkillError)


async def test_another_implementation_of_the_extension_is_not_mixed_with_ours() -> None:
    class Other(ServerExtension):
        identifier = EXTENSION

    first, second = FastMCP[Any]("first"), with_skills(skill("tea"))
    first.add_extension(Other())
    second.add_extension(Other())
    first.mount(with_skills(skill("coffee")))

    assert isinstance(await startup_error(first), SkillError)
    assert isinstance(await startup_error(second), SkillError)


async def test_a_provider_in_between_that_we_do_not_know_lists_nothing_that_cannot_be_read(mode: str) -> None:
    class Upper(Provider):
        """Has another provider's extension and none of its resources."""

        def __init__(self, inner: Provider) -> None:
            super().__init__()
            self._inner = inner

        def required_extensions(self) -> Sequence[ServerExtension]:
            return self._inner.required_extensions()

        @asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[None]:
            async with self._inner.lifespan():
                yield

    child, parent = with_skills(skill("tea")), FastMCP[Any]("parent")
    parent.add_provider(Upper(child.providers[0]))

    async with connect(parent, mode) as client:
        assert await listed(client) == []
        code, _, _ = await refusal(client, "skills/get", uri="skill://tea/SKILL.md")
        assert code == INVALID_PARAMS


async def test_a_proxy_passes_on_resources_and_declares_nothing(server: AnyServer, mode: str) -> None:
    async with connect(create_proxy(server), mode) as client:
        capabilities = client.server_capabilities
        assert capabilities is not None and EXTENSION not in (capabilities.extensions or {})
        assert await listed_resources(client) == [REFUNDS, PDF, "info://about"]
        assert await contents(client, PDF) == skill_md("pdf")
        code, _, _ = await refusal(client, "skills/list")
        assert code == METHOD_NOT_FOUND


# Over HTTP and pipes


def verifier() -> StaticTokenVerifier:
    return StaticTokenVerifier(
        {
            "full": {"client_id": "a", "scopes": ["skills"]},
            "poor": {"client_id": "b", "scopes": []},
        }
    )


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_authorization_of_the_server_covers_skills(mode: str, is_mounted: bool) -> None:
    server = FastMCP[Any]("closed", auth=verifier())
    home = FastMCP[Any]("child") if is_mounted else server
    add_skills(home, skill("tea"))
    if is_mounted:
        server.mount(home)

    async with over_http(server) as url:
        read = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "resources/read",
            "params": {"uri": "skill://tea/SKILL.md"},
        }
        accept = {"Accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(timeout=20) as stranger:
            assert (await stranger.post(url, json=read, headers=accept)).status_code == 401
        async with Client(url, auth="full", mode=mode, cache=False) as client:
            results = [
                await ask(client, "skills/list"),
                await ask(client, "skills/get", uri="skill://tea/SKILL.md"),
                await ask(client, "resources/read", uri="skill://tea/SKILL.md"),
                await ask(client, "resources/directory/read", uri="skill://tea"),
            ]

    expected = None if mode == "legacy" else "private"
    assert [result.get("cacheScope") for result in results] == [expected] * 4


async def test_a_caller_without_the_scope_sees_no_skill(mode: str) -> None:
    access = AuthMiddleware(auth=require_scopes("skills"))
    server = FastMCP[Any]("scoped", auth=verifier(), middleware=[access])
    add_skills(server, skill("tea"))

    async with over_http(server) as url:
        async with Client(url, auth="full", mode=mode, cache=False) as client:
            assert await listed(client) == ["skill://tea/SKILL.md"]
            assert await contents(client, "skill://tea/SKILL.md") == skill("tea").skill_md
        async with Client(url, auth="poor", mode=mode, cache=False) as client:
            assert await listed(client) == []
            assert await listed_resources(client) == []
            for method in ("skills/get", "resources/read"):
                await refusal(client, method, uri="skill://tea/SKILL.md")


@pytest.mark.requirement("NEG-20")
async def test_skills_are_served_over_http(server: AnyServer, mode: str) -> None:
    async with over_http(server) as url, Client(url, mode=mode, cache=False) as client:
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert (capabilities.extensions or {})[EXTENSION] == {"directoryRead": True}
        assert await listed(client) == [REFUNDS, PDF]
        assert await contents(client, "skill://pdf/assets/logo.png") == PNG
        code, _, data = await refusal(client, "resources/read", uri="skill://gone/SKILL.md")
        assert (code, data) == (INVALID_PARAMS, {"uri": "skill://gone/SKILL.md"})


async def test_skills_are_served_over_pipes(folder: Path, tmp_path: Path, mode: str) -> None:
    source = Path(sys.modules["skillwire"].__file__ or "").parent.parent
    script = f"""
import sys
sys.path.insert(0, {str(source)!r})
from fastmcp import FastMCP
from skillwire.server import add_skills
mcp = FastMCP("piped")
add_skills(mcp, {str(folder)!r}, watch=False)
mcp.run(transport="stdio", show_banner=False)
"""
    write_files(tmp_path, {"piped.py": script})
    transport = StdioTransport(sys.executable, [str(tmp_path / "piped.py")], keep_alive=False)

    with anyio.fail_after(60):
        async with Client(transport, mode=mode, cache=False) as client:
            assert await listed(client) == [REFUNDS, PDF]
            assert await contents(client, "skill://pdf/assets/latin.txt") == LATIN
            code, _, _ = await refusal(client, "skills/get", uri="skill://gone/SKILL.md")

    assert code == INVALID_PARAMS


# Sources for the tests above


class Quiet:
    """A plain source that serves skills and lists none."""

    def __init__(self, *skills: Skill, scheme: str = "skill") -> None:
        self._scheme = scheme
        self.serve(*skills)

    def serve(self, *skills: Skill) -> None:
        self._skills = {f"{self._scheme}://{skill.uri.path}/SKILL.md": skill for skill in skills}

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for entry in list[SkillEntry]():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        return self._find(uri.text).entry()

    async def read_file(self, uri: str) -> bytes:
        return self._find(uri).skill_md

    def _find(self, uri: str) -> Skill:
        if uri not in self._skills:
            raise NotFoundError(f"nothing is served at {uri}", uri=uri)
        return self._skills[uri]


class Broken(Quiet):
    """A plain source that fails at whatever it is asked to read."""

    async def read_file(self, uri: str) -> bytes:
        raise OSError("/srv/private/SKILL.md is on fire")


def replace_skill(skills: Skills, *built: Skill) -> None:
    """Publish skills in place of the one called tea."""
    skills.remove(SkillUri("skill://tea/SKILL.md"))
    skills.add(*built)
