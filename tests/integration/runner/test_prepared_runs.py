"""Runs as they are prepared from folders of skills and a policy file, in the real sandbox."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from folders import write_skill
from integration.runner.running import needs_sandbox
from skillwire.core.errors import InvalidScriptArgumentsError, RunnerError
from skillwire.core.uri import SkillUri
from skillwire.runner import Ending, Outcome, Policy, Runner, prepare
from skillwire.runner.policy import load_policy
from skillwire.sources import DirectorySource

pytestmark = needs_sandbox

ROOT = Path(__file__).parents[3]
SECONDS = 60
URI = SkillUri.build("teller")

TELLS = """\
import json, os, sys
given = json.load(sys.stdin)
secrets = {}
if os.path.isdir('/run/secrets'):
    secrets = {name: open('/run/secrets/' + name).read() for name in os.listdir('/run/secrets')}
print(json.dumps({'given': given, 'argv': sys.argv[1:], 'lengths': {k: len(v) for k, v in secrets.items()}}))
"""


@asynccontextmanager
async def running(policy: Policy) -> AsyncGenerator[Runner]:
    with anyio.fail_after(SECONDS):
        async with Runner(policy) as runner:
            yield runner


async def run(folder: Path, uri: SkillUri, script: str, arguments: object, policy: Policy) -> Outcome:
    async with DirectorySource(folder) as source:
        prepared = await prepare(await source.get_skill(uri), script, arguments, source.read_file)
    async with running(policy) as runner:
        return await runner.run(prepared)


def teller(folder: Path, declared: Mapping[str, object]) -> Path:
    manifest = json.dumps({"scripts": {"tell.py": declared}})
    write_skill(folder / "teller", {"scripts/tell.py": TELLS, "scripts/manifest.json": manifest})
    return folder


def policy_of(folder: Path, text: str) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return load_policy(path)


@pytest.mark.requirement("EXEC-15")
async def test_an_example_runs_with_arguments_that_fit() -> None:
    examples = ROOT / "examples" / "skills"
    uri = SkillUri.build("csv-insights")

    outcome = await run(examples, uri, "profile", {"csv": "a,b\n1,2\n3,4\n"}, Policy())

    assert outcome.verdict == "exit status 0"
    assert outcome.structured is not None
    assert outcome.structured["rows"] == 2
    assert outcome.limits.wall_seconds == 10
    with pytest.raises(InvalidScriptArgumentsError):
        await run(examples, uri, "profile", {"csv": ""}, Policy())


@pytest.mark.requirement("EXEC-15")
async def test_options_arrive_one_by_one_and_nothing_is_split_or_run(tmp_path: Path) -> None:
    properties = {"name": {"type": "string"}, "tag": {"type": "array"}, "count": {"type": "integer"}}
    folder = teller(tmp_path, {"arguments": {"properties": properties}, "args": "argv"})
    given = {"tag": ["--evil", "a b"], "name": "$(id); `id` 'x' \"y\"\n--other=1", "count": 2}

    outcome = await run(folder, URI, "tell.py", given, Policy())

    assert outcome.structured is not None
    assert outcome.structured["argv"] == [f"--name={given['name']}", "--tag=--evil", "--tag=a b", "--count=2"]
    assert outcome.structured["given"] == given


@pytest.mark.requirement("EXEC-11")
async def test_a_secret_is_there_when_declared_and_granted_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELLER_KEY", "correct-horse-battery")
    (tmp_path / "token").write_bytes(b"staple\n")
    folder = teller(tmp_path / "skills", {"secrets": ["KEY", "TOKEN", "UNGRANTED"]})
    policy = policy_of(
        tmp_path,
        f"""
        [[grant]]
        skill = "{URI.text}"
        script = "scripts/tell.py"
        [grant.secrets]
        KEY = {{ env = "TELLER_KEY" }}
        TOKEN = {{ file = "{tmp_path / "token"}" }}
        UNDECLARED = {{ env = "TELLER_KEY" }}
        """,
    )

    granted = await run(folder, URI, "tell", {}, policy)
    ungranted = await run(folder, URI, "tell", {}, Policy())
    monkeypatch.delenv("TELLER_KEY")

    assert granted.structured is not None
    assert ungranted.structured is not None
    assert granted.structured["lengths"] == {"KEY": 21, "TOKEN": 6}
    assert ungranted.structured["lengths"] == {}
    with pytest.raises(RunnerError, match="KEY"):
        await run(folder, URI, "tell", {}, policy)


@pytest.mark.requirement("EXEC-12")
async def test_a_script_gets_no_more_than_the_policy_file_allows(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    manifest = json.dumps({"scripts": {"sleep.py": {"limits": {"wall_seconds": 60, "memory_mib": 64}}}})
    files = {"scripts/sleep.py": "import time; time.sleep(60)", "scripts/manifest.json": manifest}
    write_skill(folder / "teller", files)
    policy = policy_of(tmp_path, "pool = 0\n[limits]\nwall_seconds = 1\n[most]\nwall_seconds = 1\n")

    outcome = await run(folder, URI, "sleep", {}, policy)

    assert outcome.ending is Ending.LIMIT
    assert outcome.limit is not None
    assert (outcome.limit.name, outcome.limit.allowed) == ("wall_seconds", 1)
    assert outcome.limits.memory_bytes == 64 * 1024 * 1024
