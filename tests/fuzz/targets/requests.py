"""Requests that are plainly good: recognising one again is the same as reading it, as anyone else does."""

import json
from typing import Any

from fuzz.properties import same_json
from skillwire.server.fast.requests import METHODS, FastRequest, RequestReader, parse_request, response


def check(data: bytes) -> None:
    """Each line is a request to one reader; its memory must never show."""
    reader = RequestReader(_knows_envelope)
    state = object()
    for number, body in enumerate(data.split(b"\n")[:50]):
        if number == 25:
            state = object()
        known = reader.cached_reply(body, state)
        fresh = parse_request(body)
        if fresh is not None:
            fresh = fresh._replace(has_envelope=_knows_envelope(fresh.params.get("_meta")))
            _check_meaning(body, fresh)
        request = reader.read(body)
        assert request == fresh, (body, request, fresh)
        if known is not None:
            assert fresh is not None, f"an answer to {body!r}, which is no request"
            assert known[1].request._replace(id=fresh.id) == fresh
            assert known[0] + known[1].rest == _answer(fresh)
        if request is not None:
            for _ in range(2):  # What is asked once is not kept.
                reader.cache_reply(body, request, _answer(request), state)


def _check_meaning(body: bytes, request: FastRequest) -> None:
    """Hold a request against what the standard library reads."""
    message: dict[str, Any] = json.loads(body)
    assert message.keys() == {"jsonrpc", "id", "method", "params"}
    assert message["jsonrpc"] == "2.0"
    assert message["method"] == request.method
    assert request.method in METHODS
    assert json.loads(request.id) == message["id"]
    assert type(message["id"]) in (int, str)
    assert same_json(message["params"], request.params), (message["params"], request.params)


def _answer(request: FastRequest) -> bytes:
    """Answer with all that an answer may depend on, but the id."""
    rest = repr((request.method, request.params, request.has_envelope)).encode("utf-8", "replace")
    return b"".join(response(request, (rest,)))


def _knows_envelope(meta: object) -> bool:
    return isinstance(meta, dict) and "v" in meta
