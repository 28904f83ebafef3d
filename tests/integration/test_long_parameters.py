"""Long and odd values in every parameter of every method: none costs a server more than a moment of CPU."""

import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio
import orjson
import pytest
from fastmcp import FastMCP
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

from folders import skill_md, write_files
from integration.both_paths import exchange
from integration.odd_requests import HttpRequest, header_value
from serving import MODERN, legacy, modern
from skillwire.core import SITE_PATH
from skillwire.core.skill import Skill
from skillwire.server import add_skills
from skillwire.server.http.app import HttpApp
from skillwire.server.http.views import Endpoint
from skillwire.server.messages import MAX_ECHO
from skillwire.server.options import ServeOptions
from skillwire.server.parameters import MAX_PARAMETER
from skillwire.server.standalone import SkillServer
from skillwire.wire.core import write_cursor
from talking import MODES, AnyServer, ask, connect

Json: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[str, Json], Awaitable[bytes]]

ATTEMPTS = 3
CPU_SECONDS = 1.0
"""What one request may cost, with every line counted for coverage; the worst cost 4 to 13 seconds before."""
DIALECTS = ("list-march", "primitive", "exec", "prompt")
SKILL = "skill://acme/refunds"

REQUESTS: dict[str, Json] = {
    "ping": {},
    "server/discover": {},
    "skills/list": {"cursor": write_cursor("skills/list", SKILL)},
    "skills/get": {"uri": f"{SKILL}/SKILL.md", "name": "refunds", "arguments": {"region": "eu"}},
    "skills/read": {"name": "refunds"},
    "skills/read_reference": {"name": "refunds", "reference": "policy.md"},
    "skills/execute": {"name": "refunds", "script": "run.py", "arguments": {"amount": "1"}},
    "resources/read": {"uri": f"{SKILL}/references/policy.md"},
    "resources/list": {"cursor": write_cursor("resources/list", SKILL), "uri": SKILL},
    "resources/templates/list": {"cursor": "x"},
    "resources/directory/read": {"uri": SKILL, "cursor": write_cursor("resources/directory/read", SKILL)},
    "resources/subscribe": {"uri": f"{SKILL}/SKILL.md"},
    "resources/unsubscribe": {"uri": f"{SKILL}/SKILL.md"},
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "skill://{+path}", "name": "refunds"},
        "argument": {"name": "path", "value": "acme/"},
        "context": {"arguments": {"path": "acme"}},
    },
    "prompts/list": {"cursor": write_cursor("prompts/list", SKILL)},
    "prompts/get": {"name": "refunds", "arguments": {"region": "eu"}},
    "tools/list": {"cursor": "x"},
    "tools/call": {
        "name": "find_skills",
        "arguments": {"query": "refunds", "below": "acme", "cursor": write_cursor("find_skills", "x")},
    },
    "logging/setLevel": {"level": "info"},
}
"""An ordinary request of each method. A stream has no end, and starts no lookup, so it is asked elsewhere."""
STREAMS = {"subscriptions/listen"}
# The SDK's own, for tools and prompts that ask back; none of ours does.
OTHERS = {"inputResponses", "requestState", "task", "_meta"}

PATTERNS = {
    "slashes": "a/",
    "empty segments": "/",
    "dots": "../",
    "one long name": "a",
    "escapes": "%41",
    "escaped slashes": "%2f",
    "escapes of escapes": "%2525",
    "broken escapes": "%",
    "letters to escape": "é/",
    "combining characters": "e\u0301\u0327\u0308",
    "ligatures": "\ufdfa",
    "characters without spaces": "技能",
    "emoji": "👩\u200d🚀",
    "brackets": "[(",
    "braces": "{+path}",
    "spaces": " ",
    "backslashes": "\\",
    "controls": "\x00\x1b",
    "words": "a b* OR ",
}


def values(*, is_short: bool) -> Iterator[tuple[str, object]]:
    """Yield values of every shape: just short enough to be looked at and, unless `is_short`, too long."""
    for name, pattern in PATTERNS.items():
        text = (pattern * 16_000)[:15_900]
        yield name, text
        yield f"{name} below a skill", f"{SKILL}/{text}"
        if not is_short:
            yield f"{name} as a URI", f"skill://{text}/SKILL.md"
            yield f"{name}, {MAX_PARAMETER}", (pattern * MAX_PARAMETER)[:MAX_PARAMETER]
            yield f"{name}, 120,000 bytes", pattern * (120_000 // len(pattern.encode()))
    for listing in ("skills/list", "resources/directory/read", "find_skills"):
        yield f"a cursor of {listing}", write_cursor(listing, f"{SKILL}/" + "a/" * 8000)
    deep: object = "a"
    for number in range(150):
        deep = [deep] if number % 2 else {"a": deep}
    yield "deep nesting", deep
    yield "many members", {f"member {number}": "a/" * 10 for number in range(3000)}
    yield "many items", ["a/" * 10] * 5000


def places(params: object, way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the way to each value among parameters."""
    if isinstance(params, dict):
        for name, value in cast(Json, params).items():
            yield from places(value, (*way, name))
    else:
        yield way


def changed(params: Json, way: Sequence[str], value: object) -> Json:
    """Return parameters with another value in one place."""
    result = copy.deepcopy(params)
    inner = result
    for name in way[:-1]:
        inner = inner[name]
    inner[way[-1]] = value
    return result


def long_requests(methods: Sequence[str], *, is_short: bool = False) -> Iterator[tuple[str, str, Json]]:
    for method in methods:
        for way in places(REQUESTS[method]):
            params = dict(REQUESTS[method])
            if method == "skills/get":  # By the one or by the other.
                params = {way[0]: params[way[0]], **({"name": "refunds"} if way[0] == "arguments" else {})}
            for name, value in values(is_short=is_short) if way else ():
                yield method, f"{method} {'.'.join(way)}: {name}", changed(params, way, value)
        token = {"progressToken": "a/" * 60_000}
        yield method, f"{method} progressToken", {**REQUESTS[method], "_meta": token}


def write_catalog(folder: Path) -> Path:
    write_files(
        folder,
        {
            "acme/refunds/SKILL.md": skill_md("refunds", body="For {{region}}: {{region}}.\n"),
            "acme/refunds/references/policy.md": "p",
            "acme/refunds/scripts/run.py": "pass\n",
            f"{'a/' * 50}deep/SKILL.md": skill_md("deep"),
            **{f"many/s{number}/SKILL.md": skill_md(f"s{number}") for number in range(50)},
        },
    )
    return folder


async def slow_ones(ask_it: Ask, requests: Iterator[tuple[str, str, Json]]) -> dict[str, float]:
    """Return the requests that cost more than they may, or whose answers repeat what was sent."""
    slow: dict[str, float] = {}
    for method, name, params in requests:
        answer, spent = b"", 0.0
        for _ in range(ATTEMPTS):  # Something else, such as a collection of garbage, may run meanwhile.
            start = time.process_time()
            answer = await ask_it(method, params)
            spent = time.process_time() - start
            if spent <= CPU_SECONDS:
                break
        else:
            slow[name] = spent
        if b'"error"' in answer:
            assert len(answer) < 32 * MAX_ECHO, f"{name}: {answer[:500]!r}"
    return slow


def over_http(endpoint: Endpoint, version: str) -> Ask:
    async def ask_it(method: str, params: Json) -> bytes:
        made = modern(method, **params) if version == MODERN else legacy(method, **params)
        if version == MODERN and "_meta" in params:
            made["params"]["_meta"] |= params["_meta"]
        headers = [
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", version.encode()),
            (b"mcp-method", method.encode()),
        ]
        named = params.get("uri" if method.startswith("resources/") else "name")
        if isinstance(named, str):
            headers.append((b"mcp-name", header_value(named)))
        outcome = await exchange(endpoint, HttpRequest(tuple(headers), (orjson.dumps(made),)))
        assert not outcome.raised
        return outcome.raw

    return ask_it


def methods_of(server: Server[Any]) -> set[str]:
    return set(server._request_handlers)  # pyright: ignore[reportPrivateUsage] -- there is no other way to see all


def offered(folder: Path, index: str) -> ServeOptions:
    return ServeOptions(
        (folder,), watch=False, dialect=(index, *DIALECTS), find=True, scripts=True, page_size=10
    )


def test_every_method_and_every_parameter_is_asked(tmp_path: Path) -> None:
    server = SkillServer(offered(tmp_path, "index-june")).server

    assert methods_of(server) - STREAMS <= REQUESTS.keys()
    for method in methods_of(server) - STREAMS:
        fields = server.get_request_handler(method).params_type.model_fields  # type: ignore[union-attr]
        assert {field.alias or name for name, field in fields.items()} <= {*REQUESTS[method], *OTHERS}, method


@pytest.mark.parametrize(
    ("version", "is_short"),
    [
        (MODERN, True),
        ("2025-11-25", True),
        *(pytest.param(version, False, marks=pytest.mark.proof) for version in (MODERN, "2025-11-25")),
    ],
)
async def test_no_value_costs_more_than_a_moment_over_http(
    tmp_path: Path, version: str, is_short: bool
) -> None:
    assert await slow_over_http(write_catalog(tmp_path), "index-june", version, is_short=is_short) == {}


@pytest.mark.proof
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_no_value_costs_more_than_a_moment_where_there_are_no_skills(
    tmp_path: Path, version: str
) -> None:
    assert await slow_over_http(tmp_path, "index-june", version, is_short=True) == {}


async def test_no_value_costs_more_than_a_moment_with_the_older_index(tmp_path: Path) -> None:
    methods = ("completion/complete", "resources/read", "resources/templates/list")
    assert await slow_over_http(write_catalog(tmp_path), "index-april", MODERN, *methods) == {}


async def slow_over_http(
    folder: Path, index: str, version: str, *methods: str, is_short: bool = False
) -> dict[str, float]:
    standalone = SkillServer(offered(folder, index))
    endpoint = Endpoint(standalone, is_stateless=True)
    asked = methods or sorted(methods_of(standalone.server) - STREAMS)
    async with endpoint.open():
        return await slow_ones(over_http(endpoint, version), long_requests(asked, is_short=is_short))


@asynccontextmanager
async def in_memory(server: object, mode: str) -> AsyncGenerator[Ask]:
    async with connect(cast(AnyServer, server), mode) as client:
        yield asking(client)


def asking(client: Client) -> Ask:
    async def ask_it(method: str, params: Json) -> bytes:
        try:
            return orjson.dumps(await ask(client, method, **params))
        except MCPError as error:
            if error.error.code == 0:
                return b""  # The text of an exception in a handler of the server's own, as the SDK sends it.
            return orjson.dumps({"error": error.error.model_dump(mode="json")}, default=str)

    return ask_it


@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.proof)])
@pytest.mark.parametrize("kind", [Server, MCPServer, FastMCP])
async def test_no_value_costs_more_than_a_moment_on_any_kind_of_server(
    tmp_path: Path, kind: type[Any], mode: str
) -> None:
    server = kind("demo")
    built = Skill("built", path="a/a/a/a/built", description="Use when testing.", body="Do it.\n")
    add_skills(server, write_catalog(tmp_path), built, dialects=DIALECTS, find_tool=True, watch=False)
    methods = [method for method in REQUESTS if method not in ("logging/setLevel", "skills/execute")]
    target: Any = server._mcp_server if kind is FastMCP else server

    async with in_memory(target, mode) as ask_it:
        slow = await slow_ones(ask_it, long_requests(methods, is_short=True))

    assert slow == {}


async def test_no_address_costs_more_than_a_moment_on_the_pages_for_people(tmp_path: Path) -> None:
    offer = ServeOptions((write_catalog(tmp_path),), watch=False, dialect=("well-known",))
    slow: dict[str, float] = {}

    async with HttpApp(offer, host="127.0.0.1").open() as app:
        for name, pattern in PATTERNS.items():
            text = (pattern * 8000)[: 8000 // len(pattern.encode())]
            for start in ("/", "/skills/", "/files/", "/static/", SITE_PATH, "/?q=", "/?page=", "/?below="):
                path, _, query = (start + text).partition("?")
                headers = ((b"host", b"127.0.0.1"),)
                request = HttpRequest(headers, (b"",), "GET", path, query=query.encode())
                before = time.process_time()
                with anyio.fail_after(30):
                    outcome = await exchange(app, request)
                spent = time.process_time() - before
                assert outcome.status in (200, 400, 404), (name, start, outcome.status)
                if spent > CPU_SECONDS:
                    slow[f"{start} {name}"] = spent

    assert slow == {}


@pytest.mark.parametrize("mode", MODES)
async def test_a_long_value_is_refused_in_plain_words(tmp_path: Path, mode: str) -> None:
    server = MCPServer("demo")
    add_skills(server, write_catalog(tmp_path))

    async with connect(server, mode) as client:
        for params in (
            changed(REQUESTS["completion/complete"], ("argument", "value"), "a/" * MAX_PARAMETER),
            changed(REQUESTS["completion/complete"], ("ref", "uri"), "a/" * MAX_PARAMETER),
        ):
            with pytest.raises(MCPError) as caught:
                await ask(client, "completion/complete", **params)
            assert caught.value.error.code == -32602
            assert f"is longer than {MAX_PARAMETER} characters" in caught.value.error.message


async def test_the_servers_own_tools_take_arguments_of_any_length() -> None:
    server = MCPServer("demo")
    add_skills(server, Skill("built", description="Use when testing.", body="Do it.\n"), find_tool=True)

    @server.tool()
    def length(text: str) -> int:
        return len(text)

    async with connect(server) as client:
        result = await ask(client, "tools/call", name="length", arguments={"text": "x" * 200_000})

    assert result["structuredContent"] == {"result": 200_000}
