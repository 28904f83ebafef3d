"""How the end of a run is told: which limit, which files, and nothing that acts on a terminal."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillwire.cli.command import Output
from skillwire.cli.run import argument_lines
from skillwire.cli.run_output import (
    SavedFiles,
    limits_words,
    outcome_json,
    print_outcome,
    print_output,
    verdict_words,
)
from skillwire.core.manifest import digest_of
from skillwire.host.model.origin import Origin, OriginKind
from skillwire.host.use.script_results import ScriptResult
from skillwire.runner import Ending, LimitHit, Limits, Outcome, OutputFile, ScriptInterface, SkippedOutput
from terminals import check_document

FILES = (OutputFile("a.txt", b"aa"), OutputFile("b\x1b[31m", b"b" * 1000))
ENDED = Outcome("run-1", Ending.EXITED, exit_code=0, stdout="said\n", stderr="warned", files=FILES)
RAN = ScriptResult(
    "lab",
    Origin(OriginKind.LOCAL, "user", "sha256:" + "0" * 64),
    "scripts/a.py",
    digest_of(b""),
    "sandbox",
    ENDED,
    "framed",
    False,
    ENDED.verdict,
    FILES,
)


def ended(outcome: Outcome) -> ScriptResult:
    return replace(RAN, outcome=outcome, is_error=outcome.is_error, verdict=outcome.verdict)


def document(ran: ScriptResult, kept: SavedFiles | None = None) -> dict[str, Any]:
    found = {"schema": "skillwire/run/1", **outcome_json(ran, kept)}
    check_document("run", found)
    return found


def test_what_a_script_said_goes_where_it_said_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_output(Output("run"), RAN)

    assert capsys.readouterr() == ("said\n", "warned\n")


@pytest.mark.requirement("EXEC-10")
def test_what_a_server_says_a_script_wrote_is_made_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    told = replace(RAN, where="server", outcome=None, digest="", text="a\x1b[2Jb\n", files=())

    print_output(Output("run"), told)

    assert capsys.readouterr() == ("a<U+001B>[2Jb\n", "")
    assert document(told)["ending"] is None


def test_a_limit_is_told_with_what_it_allows_and_what_was_used() -> None:
    hit = LimitHit("memory_bytes", 256 * 1024 * 1024, 300 * 1024 * 1024)
    ran = ended(replace(ENDED, ending=Ending.LIMIT, exit_code=None, limit=hit))

    assert verdict_words(ran) == "stopped at a limit (memory: 256 MiB allowed, 300 MiB used)"
    assert (document(ran)["limit"], ran.is_error) == (
        {"name": "memory_bytes", "allowed": 268435456, "used": 314572800},
        True,
    )
    assert limits_words(Limits()).startswith("time 30 s, CPU time 30 s, memory 512 MiB, processes 64")


def test_a_signal_is_told_by_its_name() -> None:
    ran = ended(replace(ENDED, ending=Ending.SIGNALLED, exit_code=None, signal=11))

    assert verdict_words(ran) == "ended by SIGSEGV"
    assert document(ran)["signal"] == 11


@pytest.mark.requirement("EXEC-17")
def test_files_limits_and_what_was_left_out_are_words_about_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reached = (LimitHit("output_files", 2, 3),)
    ran = ended(replace(ENDED, reached=reached, skipped=(SkippedOutput("pipe\x1b", "it is no file"),)))

    print_outcome(Output("run", verbose=True), ran, None)

    out, err = capsys.readouterr()
    assert out == ""
    assert "keep them with --output DIR" in err
    assert f"  |     2  {digest_of(b'aa')}  a.txt\n" in err
    assert f"  | 1,000  {digest_of(b'b' * 1000)}  b<U+001B>[31m\n" in err
    assert "warning: not kept, it is no file: pipe<U+001B>\n" in err
    assert "files returned: 2 allowed, 3 used" in err
    assert "exit status 0 after 0.00 s" in err


def test_files_that_were_kept_are_told_apart_from_those_that_were_not() -> None:
    kept = SavedFiles(Path("out"), ("a.txt",), (SkippedOutput("b", "bad"),))

    found = document(RAN, kept)

    assert [(file["path"], file["kept"]) for file in found["files"]] == [
        ("a.txt", True),
        ("b\x1b[31m", False),
    ]
    assert (found["output"], found["skipped"]) == ("out", [{"path": "b", "reason": "bad"}])


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        (None, []),
        ({"type": "object"}, ['{"type":"object"}']),
        (
            {"properties": {"a": {"type": ["string", "null"]}, "b": True}},
            ['a (["string","null"])', "b (any)"],
        ),
        ({"properties": {"a": {"description": 7}}, "required": "a"}, ["a (any)"]),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, ["a (integer, required)"]),
    ],
    ids=str,
)
def test_any_schema_is_told_in_lines(schema: dict[str, Any] | None, lines: list[str]) -> None:
    assert [*argument_lines(ScriptInterface(arguments=schema))] == lines
