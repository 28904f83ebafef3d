"""Large answers take a shortcut past the SDK's parser, and arrive the same."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse, jsonrpc_message_adapter

from skillwire.host.connect.messages import MIN_LARGE_BYTES, LargeResults

PADDING = "x" * MIN_LARGE_BYTES
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def parsed(body: bytes) -> SessionMessage:
    return SessionMessage(jsonrpc_message_adapter.validate_json(body, by_name=False))


def through(body: bytes) -> tuple[bytes, SessionMessage | Exception]:
    parcels = LargeResults()
    packed = parcels.extract(body)
    return packed, parcels.restore(parsed(packed))


@given(st.dictionaries(st.text(), json_values, max_size=4), st.integers(0, 10**6) | st.text(max_size=5))
def test_a_large_result_arrives_as_the_sdk_would_have_read_it(
    result: dict[str, Any], identifier: int | str
) -> None:
    message = {"jsonrpc": "2.0", "id": identifier, "result": {**result, "padding": PADDING}}
    body = orjson.dumps(message)

    packed, arrived = through(body)

    assert len(packed) < 1000
    assert isinstance(arrived, SessionMessage)
    assert arrived.message == parsed(body).message


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "result": [PADDING]},
        {"jsonrpc": "2.0", "id": True, "result": {"x": PADDING}},
        {"jsonrpc": "2.0", "id": None, "result": {"x": PADDING}},
        {"jsonrpc": "2.0", "id": 1.5, "result": {"x": PADDING}},
        {"jsonrpc": "1.0", "id": 1, "result": {"x": PADDING}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": PADDING}},
        {"jsonrpc": "2.0", "id": 1, "result": {"x": PADDING}, "more": 1},
        {"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": PADDING}},
        [PADDING],
        PADDING,
    ],
)
def test_whatever_is_small_or_no_plain_result_is_left_to_the_sdk(message: Any) -> None:
    body = orjson.dumps(message)

    assert LargeResults().extract(body) == body


@pytest.mark.parametrize("body", [b"", b"{" * 20_000, b"\xff" * 20_000, b'{"id":1,' + b" " * 20_000])
def test_what_is_no_json_is_left_to_the_sdk(body: bytes) -> None:
    assert LargeResults().extract(body) == body


def test_no_server_can_ask_for_a_result_that_is_not_its_answer() -> None:
    parcels = LargeResults()
    parcels.extract(orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": PADDING}}))
    forged = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=2, result={"0": "0", "slip": "0"}))

    assert parcels.restore(forged) is forged
    assert isinstance(forged.message, JSONRPCResponse)
    assert forged.message.result == {"0": "0", "slip": "0"}
