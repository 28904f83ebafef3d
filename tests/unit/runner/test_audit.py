"""The one line that stays of a run."""

import json
import logging
from dataclasses import replace

import pytest

from skillwire.runner import RunRecord
from skillwire.runner.outcome import log_record

RECORD = RunRecord(
    run_id="r1",
    origin="team",
    skill="skill://lab/SKILL.md",
    script="scripts/a.py",
    script_digest="sha256:" + "a" * 64,
    arguments_digest="sha256:" + "b" * 64,
    approval="lock",
    limits="wall=30s",
    secrets=("API_TOKEN",),
    network=("api.example.com",),
    outcome="exited",
    detail="exit status 0",
    duration_seconds=0.25,
    cpu_seconds=0.1,
    memory_bytes=1024,
    is_pooled=True,
)


def test_a_record_is_one_line_of_json_with_exactly_these_fields() -> None:
    line = RECORD.line()

    assert "\n" not in line
    assert json.loads(line) == {
        "run_id": "r1",
        "origin": "team",
        "skill": "skill://lab/SKILL.md",
        "script": "scripts/a.py",
        "script_digest": "sha256:" + "a" * 64,
        "arguments_digest": "sha256:" + "b" * 64,
        "approval": "lock",
        "limits": "wall=30s",
        "secrets": ["API_TOKEN"],
        "network": ["api.example.com"],
        "outcome": "exited",
        "detail": "exit status 0",
        "duration_seconds": 0.25,
        "cpu_seconds": 0.1,
        "memory_bytes": 1024,
        "is_pooled": True,
        "traffic": "",
    }


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u202eb", "a\u200bb", "a\u2028b", 'a"b'])
def test_nothing_in_a_record_can_hide_or_start_a_second_line(text: str) -> None:
    line = replace(RECORD, skill=text, script=text, detail=text, origin=text, approval=text).line()

    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert json.loads(line)["run_id"] == "r1"


def test_long_words_are_cut() -> None:
    line = replace(RECORD, detail="x" * 100_000).line()

    assert len(json.loads(line)["detail"]) == 500


def test_a_record_is_written_to_a_logger_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="skillwire.runner.outcome"):
        log_record(RECORD)

    assert [(record.name, record.levelno, record.message) for record in caplog.records] == [
        ("skillwire.runner.outcome", logging.INFO, RECORD.line())
    ]
