"""Messages whose values would take many times their size are refused before they are parsed."""

import re
import time
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.connect.messages import EventBuffer, LargeResults, require_bounded
from skillwire.host.model.errors import InvalidAnswerError, MessageTooLargeError

MANY = 12 * 1024 * 1024


def answer(items: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"result":{"skills":[' + items + b"]}}"


@pytest.mark.parametrize("item", [b"{}", b"[]", b'{"a":1}', b'"ab"', b'["x",{}]', b'{"\\"":[]}'])
def test_a_message_of_many_small_values_is_refused(item: bytes) -> None:
    with pytest.raises(MessageTooLargeError):
        require_bounded(answer(b",".join([item] * (MANY // len(item)))))


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2], "b": {}},', '"', "\\", '\\"', "x", ",", '",\\', "\n[{},"], ids=repr
)
def test_text_that_looks_like_many_values_is_not_and_costs_linear_time(text: str) -> None:
    body = answer(orjson.dumps(text * (MANY // len(text))))
    started = time.process_time()

    require_bounded(body)

    assert time.process_time() - started < 10


def test_ordinary_entries_pass_at_any_size() -> None:
    entry = orjson.dumps(
        {
            "uri": "skill://some-skill/SKILL.md",
            "frontmatter": {"name": "some-skill", "description": "Does it. Use when asked."},
            "resources": [{"uri": "skill://some-skill/SKILL.md", "digest": "sha256:" + "0" * 64, "size": 9}],
        }
    )

    require_bounded(answer(b",".join([entry] * (2 * MANY // len(entry)))))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [7, 4096, 10**6])
def test_events_come_out_as_they_came_in_and_large_results_packed(end: bytes, size: int) -> None:
    large = answer(orjson.dumps("x" * 50_000))
    lines = [
        b"event: message",
        b"id: 1",
        b"data: " + large,
        b"",
        b": ping",
        b"",
        b"data: {}",
        b"",
        b"data: hal",
    ]
    stream = end.join(lines)
    parcels = LargeResults()
    events = EventBuffer(parcels)

    out = b"".join(events.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + events.rest

    # More than one empty line means the same as one.
    text = re.sub(rb"\n{2,}", b"\n\n", out.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    assert text.startswith(b"event: message\nid: 1\ndata: {")
    assert text.endswith(b"data: {}\n\ndata: hal")
    assert len(out) < 1000


@given(
    texts=st.lists(st.text("ab: ", max_size=3), min_size=1, max_size=4),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_a_complete_event_is_passed_on_with_all_its_bytes_before_anything_follows_it(
    texts: list[str], end: bytes, cuts: list[int]
) -> None:
    stream = b"".join(b"data: " + text.encode() + end + end for text in texts)
    events = EventBuffer(LargeResults())

    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    out = b"".join(events.feed(stream[start:stop]) for start, stop in pairwise(bounds))

    assert out == stream
    assert events.rest == b""


def test_what_the_sdk_would_have_to_parse_is_not_large() -> None:
    with pytest.raises(InvalidAnswerError):
        LargeResults().extract(
            b'{"jsonrpc":"2.0","method":"x","params":{"a":"' + b"x" * (5 * 1024 * 1024) + b'"}}'
        )
