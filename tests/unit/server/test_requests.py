"""Knowing a request again: what may differ, and what must not."""

import json
from typing import Any

import pytest

from skillwire.server.fast.requests import RequestReader, response

META: dict[str, Any] = {"a": {"version": "1"}}
STATE = object()


def body(identifier: str, uri: str = "skill://a/SKILL.md") -> bytes:
    params = json.dumps({"uri": uri, "_meta": META}, separators=(",", ":"))
    return f'{{"jsonrpc":"2.0","id":{identifier},"method":"skills/get","params":{params}}}'.encode()


@pytest.fixture
def reader() -> RequestReader:
    return RequestReader(lambda meta: meta == META)


def answered(reader: RequestReader, asked: bytes, state: object = STATE, content: bytes = b"{}") -> bytes:
    """Let the reader see a request and its answer, twice: what is asked once is not kept."""
    reader.cached_reply(asked, state)
    request = reader.read(asked)
    assert request is not None
    answer = b"".join(response(request, (content,)))
    for _ in range(2):
        reader.cache_reply(asked, request, answer, state)
    return answer


def recalled(reader: RequestReader, asked: bytes, state: object = STATE) -> bytes | None:
    known = reader.cached_reply(asked, state)
    return None if known is None else known[0] + known[1].rest


def test_an_answer_is_recalled_for_the_same_request_with_another_id(reader: RequestReader) -> None:
    answered(reader, body("7"))

    assert recalled(reader, body("123456789")) == b'{"jsonrpc":"2.0","id":123456789,"result":{}}'
    assert recalled(reader, body("0")) == b'{"jsonrpc":"2.0","id":0,"result":{}}'
    assert recalled(reader, body("8", uri="skill://b/SKILL.md")) is None


def test_an_answer_that_was_given_once_is_not_kept(reader: RequestReader) -> None:
    request = reader.read(body("7"))
    assert request is not None
    reader.cached_reply(body("7"), STATE)
    reader.cache_reply(body("7"), request, b"".join(response(request, (b"{}",))), STATE)

    assert recalled(reader, body("8")) is None


@pytest.mark.parametrize("spelled", ['"id":%s,', '"\\u0069d":%s,'])
def test_an_answer_is_not_kept_where_another_key_may_be_the_id(reader: RequestReader, spelled: str) -> None:
    twice = body("7").replace(b'"method"', (spelled % "7").encode() + b'"method"')
    answered(reader, twice)

    assert recalled(reader, twice) is None


def test_nothing_is_recalled_once_something_changed(reader: RequestReader) -> None:
    answered(reader, body("7"))

    assert recalled(reader, body("8"), object()) is None
    assert recalled(reader, body("9")) is None


def test_an_answer_from_before_a_change_is_not_kept(reader: RequestReader) -> None:
    request = reader.read(body("7"))
    assert request is not None
    now = object()
    reader.cached_reply(body("7"), now)

    for _ in range(2):
        reader.cache_reply(body("7"), request, b"".join(response(request, (b"{}",))), STATE)

    assert recalled(reader, body("8"), now) is None


@pytest.mark.parametrize(
    "identifier", ["-1", "01", "1.0", "1e3", '"x"', "null", "true", "1234567890123456", ""]
)
def test_only_a_plain_number_is_taken_for_an_id(reader: RequestReader, identifier: str) -> None:
    answered(reader, body("7"))

    assert recalled(reader, body(identifier)) is None


def test_a_number_that_a_later_key_overrides_is_not_the_id(reader: RequestReader) -> None:
    twice = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"skills/get","params":{"uri":"skill://a/SKILL.md"}}'

    answered(reader, twice)

    assert recalled(reader, twice) is None
    request = reader.read(twice.replace(b'"id":1', b'"id":5'))
    assert request is not None
    assert request.id == b"2"


def test_an_id_at_the_end_is_known_again_too(reader: RequestReader) -> None:
    ending = b'{"method":"skills/get","params":{"uri":"skill://a/SKILL.md"},"jsonrpc":"2.0","id":%d}'

    answered(reader, ending % 1)

    assert recalled(reader, ending % 22) == b'{"jsonrpc":"2.0","id":22,"result":{}}'
    assert recalled(reader, ending.replace(b"%d", b"022")) is None
    assert recalled(reader, (ending % 22)[:-1] + b"]") is None


def test_large_answers_are_not_kept(reader: RequestReader) -> None:
    answered(reader, body("7"), content=b'{"text":"' + b"x" * 300_000 + b'"}')

    assert recalled(reader, body("8")) is None


def test_what_is_kept_is_bounded(reader: RequestReader) -> None:
    text = b'{"text":"' + b"x" * 10_000 + b'"}'
    for number in range(2000):
        answered(reader, body("7", uri=f"skill://a{number}/SKILL.md"), content=text)

    kept = sum(
        recalled(reader, body("8", uri=f"skill://a{number}/SKILL.md")) is not None for number in range(2000)
    )

    assert 0 < kept * len(text) <= 1024 * 1024
