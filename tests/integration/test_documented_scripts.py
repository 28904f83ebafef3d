"""What the pages in `docs/scripts` say, held against the runner, and their examples, run for real."""

import ast
import inspect
import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from mcp.server.mcpserver import MCPServer

import documents
from configs import configured
from folders import write_skill
from integration.runner.execute_world import peer
from integration.runner.running import DEADLINE, needs_sandbox, ran, script_run
from programs import words_of
from skillwire.core.manifest import digest_of
from skillwire.runner import Limits, Policy, Runner, RunRecord
from skillwire.runner.interface import parse_interfaces
from skillwire.runner.policy import (
    DEFAULT_UID,
    MAX_SECRET_SIZE,
    MIB,
    MOST,
    OPERATOR_LIMITS,
    SCRIPT_LIMITS,
    PolicyError,
    parse_policy,
)
from skillwire.runner.preparation import MAX_ARGUMENTS_SIZE, encode
from skillwire.runner.proxy import ProxyLimits
from skillwire.runner.redaction import MIN_SECRET_SIZE
from skillwire.runner.runner import PROXY_URL
from skillwire.runner.sandbox.cgroups import UNUSABLE
from skillwire.runner.sandbox.command import ENVIRONMENT
from skillwire.runner.sandbox.sandbox import PROFILE
from skillwire.server.outputs import MAX_EMBEDDED, OutputQuota
from terminals import Desk

ROOT = Path(__file__).parents[2]
PAGE = documents.text_of(
    "scripts/install.md",
    "scripts/serve.md",
    "scripts/host.md",
    "scripts/write.md",
    "scripts/policy.md",
    "scripts/limits.md",
    "scripts/sandbox.md",
)
SKILLS = ROOT / "examples" / "skills"
SOURCES = ROOT / "src" / "skillwire" / "runner"

Row: TypeAlias = list[str]


def section(heading: str) -> str:
    """Return what stands under a heading, up to the next one of its rank or above."""
    rank = re.search(rf"^(##+) {re.escape(heading)}$", PAGE, re.MULTILINE)
    assert rank is not None, heading
    rest = PAGE[rank.end() :]
    return re.split(rf"^#{{2,{len(rank[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def examples(heading: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(heading), re.DOTALL)


def rows(heading: str, number: int = 0) -> list[Row]:
    """Return the rows of a table of a section, without its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", section(heading), re.MULTILINE)
    lines = [line.strip("|\n").split("|") for line in blocks[number].splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def bare(text: str) -> str:
    return text.replace("`", "")


# Tables and numbers


def test_every_limit_is_in_the_table_with_its_default_and_its_most() -> None:
    names = {limit.field: (name, limit.factor) for name, limit in OPERATOR_LIMITS.items()}
    expected: list[Row] = []
    for one in fields(Limits):
        name, factor = names[one.name]
        most = f"{getattr(MOST, one.name) / factor:g}" if name in SCRIPT_LIMITS else "–"
        expected.append([f"`{one.name}`", f"`{name}`", f"{getattr(Limits(), one.name) / factor:g}", most])

    assert [row[:4] for row in rows("Limits")] == expected


def test_every_reason_for_which_there_is_no_sandbox_is_in_the_table() -> None:
    written = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    known = set(re.findall(r'reason(?:: str)? ?= ?"([a-z_]+)"', written))
    known |= {*re.findall(r'Diagnosis\(\s*"([a-z_]+)"', written), UNUSABLE}

    assert {bare(row[0]) for row in rows("Install")} == known


def test_the_profile_for_apparmor_is_the_one_that_doctor_prints() -> None:
    [profile] = examples("Install", "text")

    assert all(line in PROFILE for line in profile.splitlines())


def test_the_environment_of_a_script_is_that_of_the_table() -> None:
    assert {bare(row[0]): bare(row[1]) for row in rows("A script", 1)} == ENVIRONMENT


@needs_sandbox
async def test_the_suffixes_of_the_table_are_those_that_can_be_run() -> None:
    documented = {suffix for row in rows("A script") for suffix in bare(row[0]).split(", ")}

    async with Runner(Policy(pool=0)) as runner:
        found = set(runner.suffixes)

    assert {".py", ".sh"} <= found <= documented == {".py", ".sh", ".js", ".mjs", ".cjs"}


def test_the_fields_of_a_description_are_those_of_the_table() -> None:
    documented = {bare(row[0]) for row in rows("scripts/manifest.json")}
    everything = {name: None for name in documented}

    _, problems = parse_interfaces(json.dumps({"scripts": {"a.py": {**everything, "other": 1}}}).encode())

    assert problems == ["'a.py': has an unknown member 'other'"]


def test_the_keys_of_a_policy_are_those_of_the_table() -> None:
    documented = {name for row in rows("Policy") for name in bare(row[0]).split(", ")}

    with pytest.raises(PolicyError) as unknown:
        parse_policy(b"other = 1")

    assert unknown.value.fix == f"known here: {', '.join(sorted(documented))}"


def test_the_audit_line_has_the_fields_of_a_record() -> None:
    [line] = examples("The audit line", "json")

    assert list(json.loads(line)) == [one.name for one in fields(RunRecord)]


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    text, quota, proxy, policy = " ".join(PAGE.split()), OutputQuota(), ProxyLimits(), Policy()

    for words in (
        f"Files of up to {MAX_EMBEDDED // 1024} KiB come in the result itself",
        f"for {quota.seconds / 60:g} minutes",
        f"at most {quota.run_bytes // MIB} MiB and {quota.run_files} files of one run",
        f"{quota.all_bytes // MIB} MiB and {quota.all_files} files of all",
        f"Arguments may have {MAX_ARGUMENTS_SIZE // MIB} MiB",
        f"larger than {MAX_SECRET_SIZE // 1024} KiB",
        f"fewer than {MIN_SECRET_SIZE} bytes is not looked for",
        f"reached at `{PROXY_URL}`",
        f"{proxy.connections} connections at a time and {proxy.total_connections} in all",
        f"{proxy.up_bytes // MIB} MiB in each direction",
        f"`uid` ({DEFAULT_UID}, nobody)",
        f"`pool` sandboxes ({policy.pool} by default)",
        f"{policy.queue} more wait, and none waits for longer than a minute",
    ):
        assert words in text, words
    assert policy.queue_seconds == 60
    assert proxy.up_bytes == proxy.down_bytes


def test_numbers_of_the_sandboxs_first_process_are_those_of_its_code() -> None:
    code = (SOURCES / "sandbox" / "init.py").read_text("utf-8")

    assert "SAMPLE_SECONDS = 0.04" in code and "every 40 ms" in PAGE
    assert "MAX_DEPTH = 8" in code and "up to eight folders deep" in " ".join(PAGE.split())


# Examples


@needs_sandbox
@pytest.mark.requirement("EXEC-15", "EXEC-17")
async def test_the_script_of_the_page_does_what_the_page_says() -> None:
    [code] = examples("A script", "python")
    [manifest] = examples("scripts/manifest.json", "json")
    interfaces, problems = parse_interfaces(manifest.encode())

    outcome = await ran(
        script_run(code, name="greet.py", interface=interfaces["scripts/greet.py"], arguments={"name": "Ada"})
    )

    assert problems == []
    assert outcome.structured == {"length": 3}
    assert [(file.path, file.content) for file in outcome.files] == [("greeting.txt", b"Hello, Ada!\n")]
    assert (outcome.limits.wall_seconds, outcome.limits.memory_bytes) == (5, 128 * MIB)


def test_the_policy_of_the_page_is_read_as_it_says() -> None:
    [text] = examples("Policy", "toml")

    policy = parse_policy(text.encode())

    assert (policy.concurrent, policy.queue, policy.queue_seconds, policy.pool) == (4, 32, 60, 2)
    assert policy.limits == Limits(wall_seconds=20, memory_bytes=256 * MIB, stdout_bytes=2 * MIB)
    assert (policy.most.wall_seconds, policy.most.memory_bytes) == (120, 1024 * MIB)
    assert [
        (rule.origin, rule.skill, rule.script, rule.network, [*rule.secrets]) for rule in policy.rules
    ] == [
        ("", "skill://greetings/SKILL.md", "scripts/greet.py", ("api.example.com",), ["API_TOKEN"]),
        ("team", "skill://billing/refunds/SKILL.md", "scripts/report.py", (), ["DATABASE_URL"]),
    ]


@needs_sandbox
def test_the_example_without_a_server_or_a_host_runs_as_it_stands_there(env: dict[str, str]) -> None:
    [example] = examples("Without a server or a host", "python")

    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("exit status 0 {'rows': 1, ")


@needs_sandbox
def test_the_example_of_a_host_runs_as_it_stands_there(tmp_path: Path, env: dict[str, str]) -> None:
    [example] = examples("In an agent", "python")
    program, *words = words_of(SKILLS)
    server = {"command": program, "args": words}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"team": server}}))

    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE)

    assert (result.returncode, result.stderr) == (0, "")
    profile = SKILLS / "csv-insights" / "scripts" / "profile.py"
    assert f"scripts scripts/profile.py {digest_of(profile.read_bytes())}" in result.stdout
    assert "exit status 0\n" in result.stdout


@needs_sandbox
def test_the_commands_for_a_host_work_as_they_stand_there(tmp_path: Path, empty_home: Path) -> None:
    [block] = examples("From the command line", "bash")
    approve, run = (shlex.split(line)[1:] for line in block.splitlines())
    desk = Desk(tmp_path / "project", empty_home)
    desk.serve("team", SKILLS)

    before = desk.run(*run)
    _, code = desk.answer(*approve, typed="y\n", lines=80)
    after = desk.run(*run)

    assert (before.code, code, after.code) == (1, 0, 0), (before, after)
    assert "skillwire approve team/csv-insights" in before.err
    assert json.loads(after.out)["rows"] == 1


@needs_sandbox
@pytest.mark.requirement("EXEC-05", "EXEC-16")
def test_the_command_for_a_server_runs_scripts_and_leaves_the_audit_line(
    tmp_path: Path, empty_home: Path
) -> None:
    [command] = [line for line in examples("Serve scripts", "bash")[0].splitlines() if line]
    words = shlex.split(command)
    policy = tmp_path / "policy.toml"
    policy.write_text(examples("Policy", "toml")[0], "utf-8")
    policy.chmod(0o600)
    write_skill(tmp_path / "skills" / "lab", {"scripts/slow.py": "import time\ntime.sleep(60)\n"})
    manifest = {"scripts": {"slow.py": {"limits": {"wall_seconds": 1}}}}
    write_skill(tmp_path / "skills" / "lab", {"scripts/manifest.json": json.dumps(manifest)})
    arguments = {"csv": "city,visits\nOslo,120\n"}

    assert words[:3] == ["skillwire", "serve", "skills/"]
    assert words[3:] == ["--http", "127.0.0.1:8000", "--scripts", "--config", "serve.toml"]
    folders = (SKILLS, tmp_path / "skills")
    with peer(
        "http-modern", *folders, "--scripts", *configured(tmp_path, script_policy=policy), home=empty_home
    ) as client:
        done = client.ask("skills/execute", name="csv-insights", script="profile.py", arguments=arguments)
        stopped = client.ask("skills/execute", name="lab", script="slow.py", arguments={})
        line = client.server.wait_for_words(r'\{"run_id".*"outcome":"exited".*\}')[0]

    assert client.hello["result"]["capabilities"]["skills"]["scripts"] is True
    assert done["result"]["structuredContent"]["rows"] == 1
    assert done["result"]["_meta"]["skillwire/run"]["limits"]["memory_bytes"] == 256 * MIB
    assert stopped["error"]["code"] == -32003
    documented = {bare(row[0]): re.findall(r"`(\w+)`", row[1]) for row in rows("Outcomes", 1)}
    assert set(stopped["error"]["data"]) == {"reason", *documented["limit"]}
    assert stopped["error"]["data"]["reason"] == "limit"
    shown = json.loads(examples("The audit line", "json")[0])
    told = json.loads(line)
    assert told.keys() == shown.keys()
    assert told["arguments_digest"] == shown["arguments_digest"] == digest_of(encode(dict(arguments)))
    for name in ("skill", "script", "script_digest", "secrets", "network", "outcome", "detail", "approval"):
        assert told[name] == shown[name], name
    assert "Oslo" not in line


@pytest.mark.requirement("EXEC-16")
def test_a_server_without_a_sandbox_says_so_as_the_page_does(tmp_path: Path, empty_home: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('bubblewrap = "/nonexistent/bwrap"\n', "utf-8")
    policy.chmod(0o600)

    with peer(
        "stdio-modern", SKILLS, "--scripts", *configured(tmp_path, script_policy=policy), home=empty_home
    ) as client:
        answer = client.ask("skills/execute", name="csv-insights", script="profile.py", arguments={})
        client.server.wait_for_words("scripts are not run or listed")

    assert client.hello["result"]["capabilities"]["skills"]["scripts"] is False
    documented = {bare(row[0]): set(re.findall(r"`(\w+)`", row[1])) for row in rows("Outcomes", 1)}
    assert answer["error"]["code"] == -32003
    data = answer["error"]["data"]
    assert data["reason"] == "sandbox_unavailable"
    assert set(data) == {"reason", *documented["sandbox_unavailable"]}
    assert data["cause"] in {bare(row[0]) for row in rows("Install")}


async def test_a_server_of_ones_own_speaks_exec_when_it_runs_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = examples("In your own server", "python")
    write_skill(tmp_path / "skills" / "lab")
    monkeypatch.chdir(tmp_path)

    names = await play(example)

    assert isinstance(names["mcp"], MCPServer)
    assert "exec" in names["skills"].dialects


async def play(example: str) -> dict[str, Any]:
    code = compile(
        example.replace("add_skills(mcp", "skills = add_skills(mcp"),
        "docs/scripts",
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    space: dict[str, Any] = {"__name__": "example"}
    waiting = eval(code, space)
    if inspect.isawaitable(waiting):
        await waiting
    return space


# What the page says about the sandbox, asked of a script inside

LOOKS = """\
import json, os, time
def readable(path):
    try:
        with open(path, "rb") as file: return bool(file.read(1))
    except OSError: return False
print(json.dumps({
    "root": sorted(os.listdir("/")),
    "etc": sorted(os.listdir("/etc")),
    "devices": sorted(name for name in os.listdir("/dev") if not os.path.islink("/dev/" + name)),
    "readable": [path for path in json.load(open(0))["paths"] if readable(path)],
    "user": os.getuid(),
    "time": time.tzname[0],
}))
"""


@needs_sandbox
@pytest.mark.requirement("EXEC-12")
async def test_a_script_sees_of_the_machine_what_the_page_admits() -> None:
    told = (
        "cpuinfo",
        "meminfo",
        "uptime",
        "version",
        "loadavg",
        "self/mountinfo",
        "sys/kernel/random/boot_id",
    )
    kept = ("cmdline", "kallsyms", "1/environ")
    admitted = [f"/proc/{name}" for name in told]
    denied = [*(f"/proc/{name}" for name in kept), "/etc/passwd", "/etc/shadow", "/etc/hosts"]

    outcome = await ran(script_run(LOOKS, arguments={"paths": [*admitted, *denied]}))

    assert outcome.structured is not None, outcome.stderr
    seen: dict[str, Any] = dict(outcome.structured)
    belonging = {"bin", "lib", "lib32", "lib64", "libx32", "sbin"}
    ours = {"dev", "etc", "hold", "out", "proc", "run", "skill", "tmp", "usr", "work"}
    assert set(seen["root"]) - belonging == ours
    assert set(seen["etc"]) <= {"alternatives", "ld.so.cache", "pki", "ssl"}
    assert seen["devices"] == ["full", "null", "random", "shm", "urandom", "zero"]
    assert seen["readable"] == admitted
    assert (seen["user"], seen["time"]) == (1000, "UTC")
