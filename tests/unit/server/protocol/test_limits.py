"""Counting why connections end, and saying so now and then."""

import logging
import resource

import pytest

from skillwire.server.limits import (
    RESPONSES,
    CloseReason,
    ConnectionCounts,
    HttpConnectionLimits,
    raise_open_file_limit,
)
from skillwire.sources.background import LogFilter


def test_endings_are_all_counted_and_each_kind_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moments = [0.0, 0.0, 1.0, 1.0, 59.0, 59.0, 60.0, 60.0, 61.0, 61.0]
    counts = ConnectionCounts(warnings=LogFilter(60.0, clock=iter(moments).__next__))

    for _ in range(5):
        counts.note(CloseReason.MALFORMED)
        counts.note(CloseReason.SLOW_BODY)

    assert dict(counts.by_reason) == {CloseReason.MALFORMED: 5, CloseReason.SLOW_BODY: 5}
    assert [record.getMessage().partition("(")[2] for record in caplog.records] == [
        "malformed: 1 so far)",
        "slow-body: 1 so far)",
        "malformed: 4 so far)",
        "slow-body: 4 so far)",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_happens_on_every_server_is_counted_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    counts = ConnectionCounts()

    counts.note(CloseReason.SILENT)
    counts.note(CloseReason.IDLE)

    assert counts.by_reason.total() == 2
    assert not caplog.records


def test_every_answer_is_an_error_in_plain_ascii() -> None:
    assert all(400 <= status <= 503 and words.isascii() for status, words in RESPONSES.values())


def test_connections_are_looked_at_often_enough_for_the_shortest_limit() -> None:
    assert HttpConnectionLimits().check_seconds == 15
    assert HttpConnectionLimits(idle_seconds=3).check_seconds == 3
    assert HttpConnectionLimits(unread_seconds=4).check_seconds == 1


def test_there_is_room_for_what_the_system_allows(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    few = raise_open_file_limit(10)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    many = raise_open_file_limit(100_000_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert few == 10
    if before[1] != resource.RLIM_INFINITY:
        assert 16 <= many < before[1]
        assert "raise the limit of open files" in caplog.text
