"""What is no JSON-RPC message gets the same error over HTTP and stdio, in both protocol generations."""

from pathlib import Path

import anyio.from_thread
import orjson
import pytest

from folders import write_skill
from integration.both_paths import converse, exchange
from integration.odd_requests import HttpRequest
from serving import INITIALIZED, LEGACY, MODERN, Json, handshake, modern
from skillwire.server.http.views import Endpoint
from skillwire.server.limits import MAX_MESSAGE_BYTES
from skillwire.server.messages import parse_message
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
META = orjson.dumps(modern("skills/list")["params"]).decode()

MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (b"{", PARSE_ERROR, "not JSON"),
    "words": (b"hello", PARSE_ERROR, "not JSON"),
    "two messages": (b'{"jsonrpc":"2.0"} {"jsonrpc":"2.0"}', PARSE_ERROR, "not JSON"),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE_ERROR, "UTF-8"),
    "UTF-16": ('{"jsonrpc":"2.0","id":1,"method":"é"}'.encode("utf-16"), PARSE_ERROR, "UTF-8"),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"skills/list","params":{"a":NaN}}', PARSE_ERROR, "not JSON"),
    "half a character": (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', PARSE_ERROR, "not JSON"),
    "deep nesting": (b"[" * 5000 + b"]" * 5000, PARSE_ERROR, "nested too deeply"),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"skills/list"}]', INVALID_REQUEST, "batches"),
    "an empty batch": (b"[]", INVALID_REQUEST, "batches"),
    "a string": (b'"skills/list"', INVALID_REQUEST, "object"),
    "a number": (b"1", INVALID_REQUEST, "object"),
    "null": (b"null", INVALID_REQUEST, "object"),
    "an empty object": (b"{}", INVALID_REQUEST, "`jsonrpc`"),
    "no jsonrpc": (b'{"id":1,"method":"skills/list"}', INVALID_REQUEST, "`jsonrpc`"),
    "another jsonrpc": (b'{"jsonrpc":"1.0","id":1,"method":"skills/list"}', INVALID_REQUEST, "`jsonrpc`"),
    "jsonrpc as a number": (b'{"jsonrpc":2.0,"id":1,"method":"skills/list"}', INVALID_REQUEST, "`jsonrpc`"),
    "a fraction as id": (b'{"jsonrpc":"2.0","id":1.5,"method":"skills/list"}', INVALID_REQUEST, "`id`"),
    "null as id": (b'{"jsonrpc":"2.0","id":null,"method":"skills/list"}', INVALID_REQUEST, "`id`"),
    "a truth value as id": (b'{"jsonrpc":"2.0","id":true,"method":"skills/list"}', INVALID_REQUEST, "`id`"),
    "an object as id": (b'{"jsonrpc":"2.0","id":{},"method":"skills/list"}', INVALID_REQUEST, "`id`"),
    "no method": (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, "request, notification or response"),
    "a number as method": (b'{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, "`method`"),
    "a list as params": (
        b'{"jsonrpc":"2.0","id":1,"method":"skills/list","params":[1]}',
        INVALID_REQUEST,
        "`params`",
    ),
    "a string as params": (
        b'{"jsonrpc":"2.0","id":1,"method":"skills/list","params":"x"}',
        INVALID_REQUEST,
        "`params`",
    ),
}
LEAKS = (b"pydantic", b"Validation", b"JSONRPC", b"input_value", b"errors.", b"Traceback", b"line 1")


@pytest.fixture
def standalone(tmp_path: Path) -> SkillServer:
    write_skill(tmp_path / "tea")
    return SkillServer(ServeOptions((tmp_path,), watch=False))


def greeting(version: str) -> list[Json]:
    """Return what a client of a protocol generation says first."""
    return [modern("skills/list", 0)] if version == MODERN else [handshake(0), INITIALIZED]


def over_stdio(standalone: SkillServer, version: str, body: bytes) -> bytes:
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(standalone.skills.open()):
            lines = converse(
                portal,
                standalone,
                standalone.hot,
                lambda client: client.send(
                    *(orjson.dumps(message) + b"\n" for message in greeting(version)), body + b"\n"
                ),
            )
    [answer] = [line for line in lines if orjson.loads(line)["id"] != 0]
    return answer


async def over_http(standalone: SkillServer, version: str, body: bytes) -> tuple[int, bytes]:
    headers = (
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", version.encode()),
        (b"mcp-method", b"skills/list"),
    )
    endpoint = Endpoint(standalone, is_stateless=True)
    async with endpoint.open():
        outcome = await exchange(endpoint, HttpRequest(headers, (body,)))
    assert not outcome.raised
    return outcome.status, outcome.raw


@pytest.mark.parametrize("version", [MODERN, LEGACY])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_gets_the_same_error_on_both_transports(
    standalone: SkillServer, version: str, name: str
) -> None:
    body, code, words = MALFORMED[name]

    status, answer = anyio.run(over_http, standalone, version, body)
    line = over_stdio(SkillServer(standalone.options), version, body) if b"\n" not in body else answer

    error = orjson.loads(answer)["error"]
    assert status == 400
    assert error["code"] == code
    assert words in error["message"]
    assert orjson.loads(line) == orjson.loads(answer)
    assert not [leak for leak in LEAKS if leak in answer]


def test_a_response_carries_the_id_of_a_malformed_request_where_it_can_be_read(
    standalone: SkillServer,
) -> None:
    _, answer = anyio.run(over_http, standalone, MODERN, b'{"jsonrpc":"2.0","id":"seven","method":5}')

    assert orjson.loads(answer)["id"] == "seven"


@pytest.mark.parametrize("version", [MODERN, LEGACY])
@pytest.mark.parametrize(
    "member",
    ['"id":7,"id":7', '"id":7,"more":{"a":[1]}', f'"id":7,"huge":{"9" * 400}', '"id":"7"'],
    ids=["a key twice", "an unknown member", "a huge integer", "a string as id"],
)
def test_what_is_unusual_and_no_mistake_is_answered(
    standalone: SkillServer, version: str, member: str
) -> None:
    params = META if version == MODERN else "{}"
    body = f'{{"jsonrpc":"2.0",{member},"method":"skills/list","params":{params}}}'.encode()

    status, answer = anyio.run(over_http, standalone, version, body)
    line = over_stdio(SkillServer(standalone.options), version, body)

    assert status == 200
    assert orjson.loads(answer)["result"]["skills"] == orjson.loads(line)["result"]["skills"]


def test_a_message_that_is_too_large_gets_an_error_over_stdio(standalone: SkillServer) -> None:
    body = orjson.dumps(modern("skills/list", 1)).ljust(MAX_MESSAGE_BYTES + 1)

    error = orjson.loads(over_stdio(standalone, MODERN, body))["error"]

    assert error["code"] == INVALID_REQUEST
    assert "larger than 256 KiB" in error["message"]


def test_a_good_message_is_read() -> None:
    assert parse_message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}').model_dump()["method"] == "ping"
