"""Lines about requests: what they say, and that they never hold anyone up."""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.server.ops.accesslog import AccessLog, AccessRecord

LINE = AccessRecord(
    ended=1_790_000_000.1234,
    seconds=0.0123456789,
    id="abc",
    remote="192.0.2.1",
    verb="POST",
    path="/mcp",
    method="skills/list",
    status=200,
    size=1234,
    outcome="ok",
    caller="reader",
    agent="tests/1",
)


class Sink:
    """Takes what is written, at most `most` bytes at a time, and only while `is_open` is set."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.pieces: list[bytes] = []
        self.is_open = threading.Event()
        self.is_open.set()
        self._most = most

    def write(self, piece: bytes) -> int:
        assert self.is_open.wait(10)
        self.pieces.append(piece[: self._most])
        return len(self.pieces[-1])

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in b"".join(self.pieces).splitlines()]


def ignore(count: int) -> None:
    """Let lines be dropped."""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_line_tells_of_a_request_what_an_operator_needs() -> None:
    assert json.loads(LINE.encode()) == {
        "time": "2026-09-21T14:13:20.123Z",
        "id": "abc",
        "remote": "192.0.2.1",
        "method": "POST",
        "path": "/mcp",
        "mcp": "skills/list",
        "status": 200,
        "outcome": "ok",
        "bytes": 1234,
        "seconds": 0.012346,
        "caller": "reader",
        "agent": "tests/1",
    }


def test_the_trace_is_named_when_there_is_one() -> None:
    assert json.loads(replace(LINE, trace="f" * 32).encode())["trace_id"] == "f" * 32


def test_a_request_without_an_answer_has_no_status() -> None:
    assert "status" not in json.loads(replace(LINE, status=0, outcome="aborted").encode())


@settings(max_examples=30)
@given(st.text(min_size=1), st.text(), st.text())
@example("\U00010000", "\U00010000" * 2, "\U00010000" * 2)
def test_whatever_a_client_sends_stays_inside_one_short_line_of_ascii(
    path: str, agent: str, caller: str
) -> None:
    line = replace(LINE, path=path * 50, agent=agent * 50, caller=caller * 50).encode()

    assert line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert len(line) < 4096
    shown = json.loads(line)["path"]
    assert (path * 50).startswith(shown)
    assert len(shown) in (min(len(path * 50), 256), 128)


def test_lines_are_written_in_the_order_of_the_requests() -> None:
    sink = Sink(most=7)

    with AccessLog(sink.write, on_drop=ignore).open() as log:
        for number in range(500):
            log.put(replace(LINE, id=str(number)))

    assert [line["id"] for line in sink.lines] == [str(number) for number in range(500)]


def test_many_lines_are_written_in_few_pieces_and_none_is_torn() -> None:
    sink = Sink()
    sink.is_open.clear()

    with AccessLog(sink.write, on_drop=ignore).open() as log:
        for _ in range(200):
            log.put(LINE)
        sink.is_open.set()

    assert len(sink.lines) == 200
    assert len(sink.pieces) < 150
    assert all(piece.endswith(b"\n") and len(piece) <= 4096 for piece in sink.pieces)


def test_when_nobody_reads_lines_are_dropped_and_counted_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skillwire.server.ops.accesslog._MAX_QUEUED", 1000)
    sink = Sink()
    sink.is_open.clear()
    dropped: list[int] = []

    with AccessLog(sink.write, on_drop=dropped.append).open() as log:
        start = time.monotonic()
        for _ in range(3000):
            log.put(LINE)
        took = time.monotonic() - start
        sink.is_open.set()
        wait_for(lambda: len(b"".join(sink.pieces).splitlines()) > 1000)

    assert took < 5
    assert sum(dropped) > 0
    said = [line["dropped"] for line in sink.lines if "dropped" in line]
    written = [line for line in sink.lines if "id" in line]
    assert sum(said) == sum(dropped)
    assert len(written) + sum(dropped) == 3000


def test_a_reader_that_never_comes_back_does_not_keep_the_server_from_ending(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    sink.is_open.clear()
    monkeypatch.setattr("skillwire.server.ops.accesslog._CLOSE_SECONDS", 0.05)

    with caplog.at_level(logging.WARNING):
        start = time.monotonic()
        with AccessLog(sink.write, on_drop=ignore).open() as log:
            log.put(LINE)
        took = time.monotonic() - start
    sink.is_open.set()

    assert took < 5
    assert "access log" in caplog.text


@pytest.mark.parametrize("error", [BlockingIOError(), BrokenPipeError()])
def test_a_stream_that_fails_once_is_tried_again_for_the_next_lines(error: OSError) -> None:
    sink = Sink()
    failing = [error]

    def write(piece: bytes) -> int:
        if failing:
            raise failing.pop()
        return sink.write(piece)

    with AccessLog(write, on_drop=ignore).open() as log:
        log.put(replace(LINE, id="first"))
        wait_for(lambda: not failing)
        log.put(replace(LINE, id="second"))

    ids = [line["id"] for line in sink.lines]
    assert ids in (["first", "second"], ["second"])
    assert ("first" in ids) is isinstance(error, BlockingIOError)
