"""From a run and a policy to what a sandbox takes, and from what comes out to an outcome."""

import base64
import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillwire.core.errors import RunnerError
from skillwire.core.manifest import digest_of
from skillwire.runner import (
    Ending,
    Interpreter,
    LimitHit,
    Limits,
    Outcome,
    OutputFile,
    Policy,
    ScriptInterface,
    ScriptRule,
    ScriptRun,
    SkippedOutput,
    Usage,
)
from skillwire.runner.outcome import RawOutcome
from skillwire.runner.policy import MAX_SECRET_SIZE, MIB, MOST
from skillwire.runner.runner import PROXY_URL, PreparedRun, assemble
from skillwire.runner.sandbox.command import ENVIRONMENT

SKILL = "skill://lab/SKILL.md"
CODE = b"print('hello')\n"
TOKEN = b"tok-5ecr3t-value"
INTERPRETERS = {
    ".py": Interpreter(Path("/usr/bin/python3")),
    ".sh": Interpreter(Path("/usr/bin/bash"), ("--norc",)),
    ".js": Interpreter(Path("/usr/bin/node"), address_space=16 * 1024 * MIB),
}
ASKING = ScriptInterface(secrets=("API_TOKEN", "OTHER"), network=("api.example.com", "b.example.com:8443"))


def run_of(script: str = "scripts/a.py", **changes: Any) -> ScriptRun:
    return replace(ScriptRun(SKILL, script, {"SKILL.md": b"---", script: CODE}), **changes)


def granting(**changes: Any) -> Policy:
    rule = ScriptRule(
        SKILL,
        "scripts/a.py",
        secrets={"API_TOKEN": lambda: TOKEN, "UNASKED": lambda: b"unasked"},
        network=("api.example.com", "unasked.example.com"),
    )
    return Policy(rules=(replace(rule, **changes),))


def assembled(run: ScriptRun | None = None, policy: Policy | None = None) -> PreparedRun:
    return assemble(run or run_of(), policy or Policy(), INTERPRETERS)


# What goes in


@pytest.mark.requirement("EXEC-12")
def test_limits_are_those_asked_for_as_far_as_the_policy_goes() -> None:
    interface = ScriptInterface(limits={"wall_seconds": 5, "memory_bytes": 1 << 50})

    limits = assembled(run_of(interface=interface)).job.limits

    assert (limits.wall_seconds, limits.memory_bytes) == (5, MOST.memory_bytes)


def test_one_process_may_map_twice_what_all_may_use_and_as_much_as_its_interpreter_needs() -> None:
    large = ScriptInterface(limits={"memory_bytes": 2048 * MIB})

    assert assembled().job.address_space == 1024 * MIB
    assert assembled(run_of(interface=large)).job.address_space == 4096 * MIB
    assert assembled(run_of("scripts/a.js")).job.address_space == 16 * 1024 * MIB


@pytest.mark.requirement("EXEC-15")
def test_the_interpreter_goes_by_the_suffix_and_not_by_the_first_line() -> None:
    script = "scripts/a.sh"
    run = run_of(script, files={script: b"#!/usr/bin/env python3\n"})

    assert assembled(run).job.command == ("/usr/bin/bash", "--norc")
    assert assembled().job.command == ()


@pytest.mark.requirement("EXEC-15", "EXEC-16")
@pytest.mark.parametrize(
    "script", ["scripts/a.rb", "scripts/a", "scripts/.py", "scripts/a.PY", "scripts/a.py.txt"]
)
def test_a_script_without_an_interpreter_is_not_run(script: str) -> None:
    with pytest.raises(RunnerError) as refused:
        assembled(run_of(script))

    assert refused.value.script == script
    assert refused.value.fix == "scripts may end in .js, .py, .sh"


@pytest.mark.requirement("EXEC-15")
def test_arguments_are_json_on_standard_input_and_no_words_of_a_command() -> None:
    arguments: dict[str, Any] = {"--help": "; rm -rf /", "text": "grün\n"}

    job = assembled(run_of(arguments=arguments)).job

    assert json.loads(job.stdin) == arguments
    assert job.argv == ()


@pytest.mark.requirement("EXEC-11")
def test_nothing_is_granted_without_a_rule() -> None:
    found = assembled(run_of(interface=ASKING))

    assert (found.job.secrets, found.job.network, found.network) == ({}, None, ())
    assert found.job.environment == ENVIRONMENT


@pytest.mark.requirement("EXEC-11")
def test_a_script_gets_what_it_asks_for_and_was_granted_and_no_more() -> None:
    found = assembled(run_of(interface=ASKING), granting())

    assert found.job.secrets == {"API_TOKEN": TOKEN}
    assert found.network == ("api.example.com",)


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize(
    "change",
    [
        {"digest": digest_of(b"other bytes")},
        {"origin": "team"},
        {"skill": "skill://other/SKILL.md"},
        {"script": "scripts/b.py"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_rule_for_something_else_grants_nothing(change: Mapping[str, str]) -> None:
    found = assembled(run_of(interface=ASKING), granting(**change))

    assert (found.job.secrets, found.job.network) == ({}, None)


@pytest.mark.requirement("EXEC-11")
def test_a_script_that_asks_for_nothing_gets_nothing_granted_or_not() -> None:
    found = assembled(run_of(), granting())

    assert (found.job.secrets, found.job.network) == ({}, None)
    assert not any(TOKEN.decode() in value for value in found.job.environment.values())


@pytest.mark.requirement("EXEC-11")
def test_a_secret_is_no_variable_of_the_environment() -> None:
    environment = assembled(run_of(interface=ASKING), granting()).job.environment

    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY_URL)
    assert environment == {**ENVIRONMENT, **proxies}


def test_a_secret_that_is_too_large_stops_the_run() -> None:
    policy = granting(secrets={"API_TOKEN": lambda: b"x" * (MAX_SECRET_SIZE + 1)})

    with pytest.raises(RunnerError, match=r"API_TOKEN.* is larger than"):
        assembled(run_of(interface=ASKING), policy)


def test_a_secret_is_fetched_for_each_run() -> None:
    values = iter([b"first-value", b"second-value"])
    policy = granting(secrets={"API_TOKEN": lambda: next(values)})

    found = [assembled(run_of(interface=ASKING), policy).job.secrets["API_TOKEN"] for _ in range(2)]

    assert found == [b"first-value", b"second-value"]


def test_no_two_runs_have_one_name() -> None:
    assert len({assembled().run_id for _ in range(100)}) == 100


# What comes out


def raw(status: int | None = 0, *, stdout: bytes = b"", stderr: bytes = b"", **changes: Any) -> RawOutcome:
    usage = Usage(stdout_bytes=len(stdout), stderr_bytes=len(stderr))
    return replace(RawOutcome(status, None, stdout, stderr, usage), **changes)


def outcome_of(came: RawOutcome, policy: Policy | None = None) -> Outcome:
    return assembled(run_of(interface=ASKING), policy).outcome(came)


@pytest.mark.requirement("EXEC-16")
@pytest.mark.parametrize(
    ("status", "ending", "exit_code", "number"),
    [
        (0, Ending.EXITED, 0, None),
        (3 << 8, Ending.EXITED, 3, None),
        (signal.SIGSEGV, Ending.SIGNALLED, None, signal.SIGSEGV),
        (signal.SIGKILL, Ending.SIGNALLED, None, signal.SIGKILL),
    ],
)
def test_a_status_becomes_an_ending(
    status: int, ending: Ending, exit_code: int | None, number: int | None
) -> None:
    outcome = outcome_of(raw(status))

    assert (outcome.ending, outcome.exit_code, outcome.signal) == (ending, exit_code, number)
    assert outcome.limit is None


@pytest.mark.requirement("EXEC-16")
@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGXCPU, "cpu_seconds"), (signal.SIGXFSZ, "disk_bytes")]
)
def test_signals_with_which_the_kernel_enforces_a_limit_are_that_limit(number: int, name: str) -> None:
    used = Usage(cpu_seconds=31.5, disk_bytes=999)

    outcome = outcome_of(raw(number, usage=used))

    assert outcome.ending is Ending.LIMIT
    assert outcome.limit == LimitHit(name, getattr(Limits(), name), getattr(used, name))


@pytest.mark.requirement("EXEC-16")
def test_a_run_that_was_stopped_has_no_exit_status() -> None:
    hit = LimitHit("wall_seconds", 30, 30.01)

    outcome = outcome_of(raw(None, limit=hit, stdout=b"so far\n"))

    assert (outcome.ending, outcome.limit, outcome.exit_code) == (Ending.LIMIT, hit, None)
    assert outcome.stdout == "so far\n"


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    ("usage", "name", "used"),
    [
        (Usage(processes=64), "processes", 64),
        (Usage(disk_bytes=64 * MIB), "disk_bytes", 64 * MIB),
        (Usage(disk_files=20_000), "disk_files", 20_000),
        (Usage(stdout_bytes=2 * MIB), "stdout_bytes", 2 * MIB),
        (Usage(stderr_bytes=65 * 1024), "stderr_bytes", 65 * 1024),
    ],
)
def test_limits_that_did_not_end_a_run_are_told(usage: Usage, name: str, used: int) -> None:
    outcome = outcome_of(raw(usage=usage))

    assert outcome.reached == (LimitHit(name, getattr(Limits(), name), used),)
    assert not outcome.is_error


def test_a_run_that_used_little_reached_nothing() -> None:
    usage = Usage(processes=63, disk_bytes=MIB, disk_files=19_000, stdout_bytes=10, stderr_bytes=10)

    assert outcome_of(raw(usage=usage)).reached == ()


@pytest.mark.requirement("EXEC-12", "EXEC-17")
def test_files_that_are_not_returned_are_told_with_the_limit_that_kept_them() -> None:
    more = SkippedOutput("a", "there are more files than may be returned")
    larger = SkippedOutput("b", "there are more bytes than may be returned")

    outcome = outcome_of(raw(skipped=(more, larger), usage=Usage(disk_bytes=30 * MIB)))

    assert [hit.name for hit in outcome.reached] == ["output_files", "output_bytes"]
    assert outcome.skipped == (more, larger)


def test_standard_output_that_is_one_json_object_is_structured() -> None:
    assert outcome_of(raw(stdout=b'{"rows": 2}\n')).structured == {"rows": 2}
    assert outcome_of(raw(stdout=b'{"rows": 2}\nand more\n')).structured is None


def test_half_an_object_is_no_object() -> None:
    came = raw(stdout=b'{"rows": 2}', usage=Usage(stdout_bytes=2 * MIB))

    assert outcome_of(came).structured is None


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize(
    "spelled", [TOKEN, base64.b64encode(TOKEN), TOKEN.hex().encode()], ids=["plain", "base64", "hex"]
)
def test_a_granted_secret_is_in_nothing_that_comes_out(spelled: bytes) -> None:
    came = raw(
        stdout=b'{"said": "' + spelled + b'"}',
        stderr=b"Authorization: " + spelled + b"\n",
        files=(OutputFile("log.txt", b"<" + spelled + b">"),),
    )

    outcome = outcome_of(came, granting())

    shown = f"{outcome.stdout}{outcome.stderr}{outcome.structured}{outcome.files}"
    assert spelled.decode() not in shown
    assert outcome.stderr.startswith("Authorization: [redacted:API_TOKEN]")
    assert outcome.files[0].content.startswith(b"<[redacted:API_TOKEN]")


@pytest.mark.requirement("EXEC-10")
def test_what_a_terminal_would_obey_is_taken_out() -> None:
    outcome = outcome_of(raw(stdout=b"\x1b[31mred\x1b[0m\x07 \xff", stderr=b"\x1b]0;title\x07plain"))

    assert (outcome.stdout, outcome.stderr) == ("red \ufffd", "plain")


# What stays


@pytest.mark.requirement("EXEC-11", "EXEC-13")
def test_a_record_names_what_was_granted_and_holds_no_value() -> None:
    run = run_of(
        interface=ASKING, arguments={"customer": "private-argument"}, origin="", approval="policy of the lab"
    )
    found = assembled(run, granting())
    came = raw(
        stdout=b"private-output", stderr=b"private-error", usage=Usage(cpu_seconds=0.5, memory_bytes=9)
    )

    record = found.record("exited", "exit status 0", raw=came, seconds=1.23456789, is_pooled=True)

    line = json.loads(record.line())
    assert line["run_id"] == found.run_id
    assert (line["skill"], line["script"], line["script_digest"]) == (SKILL, "scripts/a.py", digest_of(CODE))
    assert line["arguments_digest"] == digest_of(b'{"customer":"private-argument"}')
    assert (line["secrets"], line["network"]) == (["API_TOKEN"], ["api.example.com"])
    assert (line["duration_seconds"], line["cpu_seconds"], line["memory_bytes"]) == (1.234568, 0.5, 9)
    assert line["limits"] == (
        "wall=30s cpu=30s memory=536870912 processes=64 disk=67108864/20000 output=16777216/64"
    )
    assert not any(word in record.line() for word in ("private", TOKEN.decode()))
