"""What scripts leave behind, read back over MCP; and scripts on the servers of others."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import mcp_types as types
import pytest
from fastmcp import FastMCP
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

from integration.runner.execute_world import LARGE, WAYS, HttpPeer, Json, peer, texts, write_lab
from programs import http_server
from serving import environment
from serving import legacy as legacy_request
from serving import modern as modern_request
from skillwire.runner import Limits, Policy, Runner
from skillwire.server import DynamicSkill, Skills, add_skills
from skillwire.server.fast.requests import FastRequest
from skillwire.server.options import ServeOptions
from skillwire.server.outputs import OUTPUT_SCHEME, RUN, OutputQuota, OutputStore
from skillwire.server.standalone import SkillServer
from talking import MODES, ask, content_of, refused

AnyServer: TypeAlias = "MCPServer[Any] | FastMCP[Any] | Server[Any]"
SERVERS: dict[str, type[Any]] = {"MCPServer": MCPServer, "lowlevel": Server, "FastMCP": FastMCP}
EXPECTED = {
    "plots/grün 1.txt": "Grün".encode(),
    "dot.png": b"\x89PNG\xff",
    "large.csv": b"a,b\n" * (LARGE // 4),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lab(tmp_path_factory.mktemp("skills"))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> AnyServer:
    return SERVERS[request.param]("office")


def connect(server: AnyServer, mode: str) -> Client:
    lowlevel: Any = server._mcp_server if isinstance(server, FastMCP) else server  # pyright: ignore
    return Client(lowlevel, mode=mode, cache=None)


def uris_of(result: Json) -> dict[str, str]:
    """Return the URIs of all files of a result by how it has them, smallest first."""
    found: dict[str, str] = {}
    for item in result["content"]:
        if item["type"] == "resource":
            found[item["resource"]["uri"]] = "embedded"
        elif item["type"] == "resource_link":
            found[item["uri"]] = "linked"
    return found


def shelf_of(skills: Skills) -> OutputStore:
    assert skills.scripts is not None
    return skills.scripts.outputs


@pytest.mark.requirement("EXEC-05", "EXEC-17")
@pytest.mark.parametrize("mode", MODES)
async def test_files_can_be_read_for_a_while_and_only_then(server: AnyServer, mode: str, lab: Path) -> None:
    skills = add_skills(server, lab, scripts=Policy(pool=0))
    clock = [0.0]
    assert skills.scripts is not None
    skills.scripts.outputs = OutputStore(OutputQuota(seconds=60), clock=lambda: clock[0])

    async with connect(server, mode) as client:
        result = await ask(client, "skills/execute", name="lab", script="files")
        uris = uris_of(result)
        read = [await ask(client, "resources/read", uri=uri) for uri in uris]
        wrong = [uri[:-1] + "_" for uri in uris] + [f"{OUTPUT_SCHEME}://0/dot.png", f"{OUTPUT_SCHEME}://"]
        unknown = [await refused(client, "resources/read", uri=uri) for uri in wrong]
        plain = await refused(client, "resources/read", uri="nothing://here")
        resources = await ask(client, "resources/list")
        clock[0] = 60.0
        late = [await refused(client, "resources/read", uri=uri) for uri in uris]

    assert list(uris.values()).count("linked") == 1
    assert sorted(content_of(answer["contents"][0]) for answer in read) == sorted(EXPECTED.values())
    assert [answer["contents"][0]["uri"] for answer in read] == list(uris)
    assert {error.code for error in (*unknown, *late)} == {plain.code}
    assert OUTPUT_SCHEME not in str(resources)
    assert "Files can be read for 60 seconds." in texts(result)[0]
    assert result["_meta"][RUN]["outputTtlMs"] == 60_000
    assert "'link'" in texts(result)[0]
    if mode == "auto":
        assert {(answer["ttlMs"], answer["cacheScope"]) for answer in read} == {(0, "private")}


@pytest.mark.requirement("EXEC-17")
@pytest.mark.parametrize("way", WAYS)
def test_files_can_be_read_over_every_transport(way: str, lab: Path, tmp_path: Path) -> None:
    with peer(way, lab, "--scripts", home=tmp_path) as client:
        result = client.ask("skills/execute", name="lab", script="files.py")["result"]
        uris = uris_of(result)
        read = [client.ask("resources/read", uri=uri)["result"] for uri in (*uris, *uris)]
        uri = next(iter(uris))
        guessed = client.ask("resources/read", uri=uri[:-5] + "other")
        stranger = None
        if isinstance(client, HttpPeer):
            other = HttpPeer(client._http, client._make)  # pyright: ignore[reportPrivateUsage]
            stranger = other.ask("resources/read", uri=uri)

    found = [content_of(answer["contents"][0]) for answer in read]
    assert found[:3] == found[3:]
    assert sorted(found[:3]) == sorted(EXPECTED.values())
    assert guessed["error"]["code"] == -32602
    if way == "http-legacy":
        assert stranger is not None and stranger["error"]["code"] == -32602
    if way == "http-modern":  # There are no sessions: who knows the URI may read.
        assert stranger is not None and "result" in stranger


@pytest.mark.requirement("EXEC-17")
async def test_ready_answers_have_no_outputs(lab: Path) -> None:
    standalone = SkillServer(ServeOptions((lab,), scripts=True, policy=Policy(pool=0), watch=False))
    async with standalone.skills.open(), Client(standalone.server, mode="auto", cache=None) as client:
        result = await ask(client, "skills/execute", name="lab", script="files")
        uri = next(iter(uris_of(result)))
        read = await ask(client, "resources/read", uri=uri)
        request = FastRequest(b"1", "resources/read", {"uri": uri})
        ready = standalone.hot.result(request, modern=True)
        fetched = await standalone.hot.fetch(request, modern=True)

    assert read["contents"]
    assert (ready, fetched) == (None, None)


@pytest.mark.requirement("EXEC-12", "EXEC-17")
async def test_the_oldest_outputs_make_room_for_new_ones(lab: Path) -> None:
    server = MCPServer("office")
    skills = add_skills(server, lab, scripts=Policy(pool=0))
    shelf_of(skills).quota = OutputQuota(all_files=4)

    async with connect(server, "auto") as client:
        first, second = [
            uris_of(await ask(client, "skills/execute", name="lab", script="files")) for _ in range(2)
        ]
        gone = [await refused(client, "resources/read", uri=uri) for uri in first]
        there = [await ask(client, "resources/read", uri=uri) for uri in second]

    assert {error.code for error in gone} == {-32602}
    assert len(there) == 3
    assert len(shelf_of(skills)) == 0, "a server that stopped keeps nothing"


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize("mode", MODES)
async def test_what_fastmcp_hides_cannot_be_run_and_outputs_are_not_hidden_with_it(
    mode: str, lab: Path
) -> None:
    server = FastMCP("office")
    add_skills(server, lab, scripts=Policy(pool=0))
    server.disable(names={"plain"})

    async with connect(server, mode) as client:
        hidden = await refused(client, "skills/execute", name="plain", script="echo.py")
        uris = uris_of(await ask(client, "skills/execute", name="lab", script="files"))
        read = [await ask(client, "resources/read", uri=uri) for uri in uris]

    assert (hidden.code, hidden.data) == (-32002, {"name": "plain"})
    assert len(read) == 3


@pytest.mark.requirement("EXEC-12", "EXEC-16")
async def test_who_comes_when_too_many_run_is_told_so(lab: Path) -> None:
    server = MCPServer("office")
    add_skills(server, lab, scripts=Policy(concurrent=1, queue=1, pool=0))
    answers: list[Json] = []
    refusals: list[types.ErrorData] = []

    async with connect(server, "auto") as client:

        async def run_long() -> None:
            long = {"name": "lab", "script": "long", "arguments": {"seconds": "2"}}
            try:
                answers.append(await ask(client, "skills/execute", **long))
            except MCPError as error:
                refusals.append(error.error)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(run_long)

    [busy] = refusals
    assert busy.code == -32003
    assert busy.data == {"name": "lab", "script": "long", "reason": "busy"}
    assert [answer["isError"] for answer in answers] == [False, False]


@pytest.mark.requirement("EXEC-12")
async def test_a_runner_of_ones_own_is_used_and_left_open(lab: Path) -> None:
    limits = Limits(wall_seconds=9)
    async with Runner(Policy(limits=limits, pool=0)) as runner:
        for _ in range(2):
            server = MCPServer("office")
            add_skills(server, lab, scripts=runner)
            async with connect(server, "auto") as client:
                result = await ask(client, "skills/execute", name="lab", script="echo")

            assert result["_meta"][RUN]["limits"]["wall_seconds"] == 9
            assert runner.availability.is_available


@pytest.mark.requirement("EXEC-12", "EXEC-14")
async def test_without_a_sandbox_the_log_says_so_once(
    server: AnyServer, lab: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_skills(server, lab, scripts=Policy(bubblewrap=Path("/nonexistent/bwrap")))

    with caplog.at_level(logging.WARNING, logger="skillwire"):
        async with connect(server, "auto") as client:
            error = await refused(client, "skills/execute", name="lab", script="echo")
            gone = await refused(client, "skills/execute", name="gone", script="echo")
            read = (await ask(client, "skills/read", name="lab"))["skill"]

    assert (error.code, gone.code) == (-32003, -32003)
    assert error.data["reason"] == "sandbox_unavailable"
    assert set(error.data) == {"reason", "cause", "backend", "detail", "fix"}
    assert "scripts" not in read
    assert len([record for record in caplog.records if "scripts are not run" in record.getMessage()]) == 1


class RunParams(types.RequestParams):
    name: str
    script: str


class RunRequest(types.Request[RunParams, str]):
    method: str = "skills/execute"


@asynccontextmanager
async def over_http(lab: Path, home: Path, mode: str) -> AsyncGenerator[Client]:
    with http_server(lab, "--scripts", env=environment(home)) as server:
        async with Client(server.url, mode=mode) as client:
            yield client


@pytest.mark.requirement("EXEC-05", "EXEC-17")
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_wants_progress_gets_it_and_a_large_result(mode: str, tmp_path: Path) -> None:
    folder = write_lab(tmp_path / "skills")
    code = "import time\ntime.sleep(1.3)\nprint('word ' * 200_000)\n" + (
        folder / "lab/scripts/files.py"
    ).read_text("utf-8")
    (folder / "lab/scripts/big.py").write_text(code, "utf-8")
    told: list[tuple[float, float | None, str | None]] = []

    ended = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        if message:
            ended.set()

    request: Any = RunRequest(params=RunParams(name="lab", script="big.py"))
    with anyio.fail_after(60):
        async with over_http(folder, tmp_path, mode) as client:
            result = await client.session.send_request(request, types.CallToolResult, progress_callback=note)
            # The client runs callbacks in tasks of their own.
            await ended.wait()

    assert [total for _, total, _ in told] == [30] * len(told)
    assert len(told) >= 2
    assert told[-1][2] == "exit status 0"
    assert [type(item).__name__ for item in result.content] == [
        "TextContent",
        "TextContent",
        "ResourceLink",
        "EmbeddedResource",
        "ResourceLink",
        "EmbeddedResource",
    ]


@pytest.mark.requirement("EXEC-05")
def test_several_workers_run_scripts(lab: Path, tmp_path: Path) -> None:
    with http_server(lab, "--scripts", "--workers", "2", env=environment(tmp_path)) as server:
        answers = [
            server.call(make("skills/execute", number, name="lab", script="echo"))
            for number in range(3)
            for make in (modern_request, legacy_request)
        ]
        server.wait_for_words(r'(?s)(INFO: \{"run_id".*){6}', within=10)
        words = server.words

    assert [texts(answer["result"]) for answer in answers] == [["echo {}\n"]] * 6
    assert "WARNING" not in words


@pytest.mark.requirement("EXEC-05")
async def test_a_script_that_is_made_anew_is_run_as_it_is_now() -> None:
    made: list[int] = []

    def say() -> str:
        made.append(len(made))
        return f"print('made', {made[-1]})\n"

    server = MCPServer("office")
    live = DynamicSkill("live", "Use when live.", body=lambda: "Now.\n").with_file("scripts/say.py", say)
    add_skills(server, live, scripts=Policy(pool=0))

    async with connect(server, "auto") as client:
        listed = (await ask(client, "skills/read", name="live"))["skill"]["scripts"]
        said = [texts(await ask(client, "skills/execute", name="live", script="say")) for _ in range(2)]

    assert [script["path"] for script in listed] == ["scripts/say.py"]
    assert said == [["made 0\n"], ["made 1\n"]]
