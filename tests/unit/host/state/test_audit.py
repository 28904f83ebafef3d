"""`AuditLog`: one inert line for each event, whole, bounded, and never in the way."""

import errno
import json
import logging
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approving import mode_of
from commands import names_in
from skillwire.core.characters import hidden_characters
from skillwire.host.model.approval import Grant
from skillwire.host.state.audit import AuditLog, line_of
from skillwire.host.state.vault import locked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.requirement("HOST-18")
def test_an_event_is_a_line_with_its_time_and_session(path: Path) -> None:
    log = AuditLog(path)

    log.record("load", origin="acme", uri="skill://acme/refunds/SKILL.md", grants=[Grant.LOAD], bytes=7)
    log.record("refused", code="not-approved", ok=False, detail=None, ratio=0.5)

    first, second = events(path)
    when = datetime.fromisoformat(first.pop("time"))
    assert abs(datetime.now(UTC) - when) < timedelta(minutes=1)
    assert first == {
        "session": log.session,
        "event": "load",
        "origin": "acme",
        "uri": "skill://acme/refunds/SKILL.md",
        "grants": ["load"],
        "bytes": 7,
    }
    assert (second["event"], second["ok"], second["detail"], second["ratio"]) == ("refused", False, None, 0.5)
    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700


@pytest.mark.requirement("HOST-18")
def test_sessions_share_a_log_and_can_be_told_apart(path: Path) -> None:
    logs = [AuditLog(path), AuditLog(path)]
    for log in logs:
        log.record("start")

    assert [event["session"] for event in events(path)] == [log.session for log in logs]
    assert logs[0].session != logs[1].session


def test_fields_cannot_pass_for_the_hosts_own(path: Path) -> None:
    AuditLog(path, session="mine").record(
        "read", **{"session": "theirs", "event": "approve", "time": "never"}
    )

    (event,) = events(path)
    assert (event["session"], event["event"]) == ("mine", "read")
    assert event["time"] != "never"


@pytest.mark.requirement("HOST-18")
def test_text_is_cut_and_inert_and_content_is_never_written(path: Path) -> None:
    log = AuditLog(path)

    log.record(
        "load",
        name='\x1b]52;c;x\x07\n{"event": "approve"}\u202e\ud800',
        long="x" * 10_000,
        body=b"secret",  # pyright: ignore[reportArgumentType] - what a caller must not pass
        headers={"Authorization": "Bearer secret"},  # pyright: ignore[reportArgumentType] - the same
        many=["a"] * 1000,
        huge=10**30,
        odd=float("nan"),
    )

    raw = path.read_bytes()
    assert b"secret" not in raw
    assert b"\x1b" not in raw
    (event,) = events(path)
    assert hidden_characters(event["name"]) == []
    assert event["long"] == "x" * 499 + "…"
    assert (event["body"], event["headers"]) == ("<bytes>", "<dict>")
    assert len(event["many"]) == 51
    assert (event["huge"], event["odd"]) == (str(10**30), None)


def test_a_line_has_an_end(path: Path) -> None:
    AuditLog(path).record("load", **{f"field-{number}": ["\u202e" * 500] * 50 for number in range(3)})

    (event,) = events(path)
    assert event["cut"] is True
    assert path.stat().st_size < 1000


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20), st.dictionaries(st.text(max_size=8), VALUES | st.lists(VALUES, max_size=4)))
def test_whatever_is_recorded_is_one_line_of_json(event: str, fields: dict[str, Any]) -> None:
    line = line_of(event, "session", fields)

    assert line.count(b"\n") == 1
    assert json.loads(line)["session"] == "session"


def test_a_full_log_is_rotated_and_so_many_are_kept(path: Path) -> None:
    log = AuditLog(path, max_bytes=1000, keep=2)

    for number in range(100):
        log.record("read", number=number)

    assert [name for name in names_in(path.parent) if not name.startswith(".")] == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
    ]
    files = [path.with_name(f"audit.jsonl{suffix}") for suffix in (".2", ".1", "")]
    assert all(file.stat().st_size <= 1000 for file in files)
    numbers = [event["number"] for file in files for event in events(file)]
    assert numbers == list(range(100 - len(numbers), 100))


def test_keeping_none_starts_again(path: Path) -> None:
    log = AuditLog(path, max_bytes=500, keep=0)

    for number in range(30):
        log.record("read", number=number)

    assert [name for name in names_in(path.parent) if not name.startswith(".")] == ["audit.jsonl"]
    assert events(path)[-1]["number"] == 29


def test_many_writers_mix_no_lines_and_lose_none(path: Path) -> None:
    logs = [AuditLog(path, max_bytes=4000, keep=50) for _ in range(2)]

    def work(writer: int) -> None:
        for number in range(50):
            logs[writer % 2].record("read", writer=writer, number=number)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    found = [
        (event["writer"], event["number"])
        for file in path.parent.glob("audit.jsonl*")
        for event in events(file)
    ]
    assert sorted(found) == [(writer, number) for writer in range(4) for number in range(50)]


def test_a_log_that_cannot_be_rotated_grows_no_further_than_twice(path: Path) -> None:
    log = AuditLog(path, max_bytes=1000)
    log.record("start")

    path.with_name(".audit.jsonl.lock").mkdir()
    for number in range(100):
        log.record("read", number=number)

    assert path.stat().st_size < 2200
    path.with_name(".audit.jsonl.lock").rmdir()
    log.record("end")
    assert [event["event"] for event in events(path)] == ["end"]


def test_a_busy_rotation_does_not_hold_up_the_host(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillwire.host.state.audit._LOCK_TIMEOUT", 0.01)
    log = AuditLog(path, max_bytes=300)
    log.record("start", text="x" * 200)

    with locked(path.with_name(".audit.jsonl.lock")):
        log.record("read")

    assert [event["event"] for event in events(path)] == ["start", "read"]


@pytest.mark.parametrize("planted", ["link", "pipe", "folder", "open"])
def test_nothing_is_written_through_what_was_planted(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture, planted: str
) -> None:
    path.parent.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("mine")
    if planted == "link":
        path.symlink_to(outside)
    elif planted == "pipe":
        os.mkfifo(path)
    elif planted == "folder":
        path.mkdir()
    else:
        path.write_text("")
        path.chmod(0o666)
    log = AuditLog(path)

    log.record("load")
    log.record("load")

    assert outside.read_text() == "mine"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_failing_disk_is_reported_once_and_stops_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    log = AuditLog(path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        log.record("load")
        log.record("load")
    log.record("read")

    assert len(caplog.records) == 1
    assert [event["event"] for event in events(path)] == ["read"]


def test_a_line_that_a_full_disk_cut_off_does_not_swallow_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(path)
    real = os.write

    def cut(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[:10])

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", cut)
        log.record("load")
    log.record("read")

    torn, whole = path.read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(whole)["event"] == "read"
