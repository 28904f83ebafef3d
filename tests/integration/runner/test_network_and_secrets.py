"""What an operator grants a script in a policy file, judged from outside: who was reached, what was told."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from integration.runner.running import DEADLINE, SKILL, needs_sandbox, ran, script_run
from skillwire.core.errors import RunnerError
from skillwire.core.manifest import digest_of
from skillwire.runner import Outcome, Policy, Runner, RunRecord, ScriptInterface
from skillwire.runner.policy import load_policy

pytestmark = [needs_sandbox, pytest.mark.requirement("EXEC-11", "EXEC-12")]

TOKEN = "tok-5ecr3t/value+42"
NAMES = ("API_TOKEN", "LICENCE", "OTHER")
LISTS = (
    "import json, os\n"
    "found = {}\n"
    "for name in sorted(os.listdir('/run/secrets')):\n"
    "    content = open('/run/secrets/' + name).read()\n"
    "    found[name] = [len(content), content[::-1]]\n"
    "print(json.dumps(found))\n"
)
REACHES = """\
import json, os, socket, sys, urllib.error, urllib.request
given = json.load(sys.stdin)
found = {"proxies": sorted(name for name in os.environ if "proxy" in name.lower())}
for url in given["urls"]:
    try:
        found[url] = urllib.request.urlopen(url, timeout=10).read().decode()
    except urllib.error.HTTPError as error:
        found[url] = error.code
    except OSError as error:
        found[url] = "unreachable"
for family, address in ((socket.AF_INET, ("127.0.0.1", given["port"])), (socket.AF_UNIX, given["path"])):
    try:
        with socket.socket(family) as one:
            one.settimeout(3)
            one.connect(address)
        found[family.name] = "reached"
    except OSError:
        found[family.name] = "unreachable"
print(json.dumps(found))
"""


@dataclass
class Listeners:
    """Servers on loopback and at a path, and how many connections each of them saw."""

    port: int
    path: str
    seen: list[str] = field(default_factory=list[str])


@contextmanager
def listening(folder: Path) -> Generator[Listeners]:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)  # The mode is not what keeps a script out.
        local.listen()
        found = Listeners(tcp.getsockname()[1], str(folder / "socket"))
        threads = [
            threading.Thread(target=serve, args=(listener, name, found.seen))
            for listener, name in ((tcp, "tcp"), (local, "unix"))
        ]
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            for listener in (tcp, local):
                listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(5)


def serve(listener: socket.socket, name: str, seen: list[str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            seen.append(name)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def policy(folder: Path, text: str) -> Policy:
    """Read a policy as an operator writes it."""
    path = folder / "policy.toml"
    path.write_text(f"pool = 0\n{text}", "utf-8")
    path.chmod(0o600)
    return load_policy(path)


def grant(more: str) -> str:
    return f'[[grant]]\nskill = "{SKILL}"\nscript = "scripts/a.py"\n{more}\n'


async def tried(listeners: Listeners, given: Policy | None, *asked: str) -> Outcome:
    urls = [f"http://127.0.0.1:{listeners.port}/", f"http://localhost:{listeners.port}/"]
    run = script_run(
        REACHES,
        arguments={"urls": [*urls], "port": listeners.port, "path": listeners.path},
        interface=ScriptInterface(network=asked),
    )
    return await ran(run, given)


def test_the_listeners_of_these_tests_can_be_reached_without_a_sandbox(tmp_path: Path) -> None:
    with listening(tmp_path) as listeners:
        with socket.create_connection(("127.0.0.1", listeners.port), 5) as tcp:
            assert tcp.recv(8) == b"HTTP/1.1"
        with socket.socket(socket.AF_UNIX) as local:
            local.connect(listeners.path)
            assert local.recv(8) == b"HTTP/1.1"

    assert sorted(listeners.seen) == ["tcp", "unix"]


async def test_a_script_without_a_grant_reaches_nobody(tmp_path: Path) -> None:
    with listening(tmp_path) as listeners:
        outcome = await tried(listeners, None)

    assert listeners.seen == []
    assert outcome.structured == {
        "proxies": [],
        f"http://127.0.0.1:{listeners.port}/": "unreachable",
        f"http://localhost:{listeners.port}/": "unreachable",
        "AF_INET": "unreachable",
        "AF_UNIX": "unreachable",
    }


async def test_even_a_granted_name_does_not_lead_to_this_machine(tmp_path: Path) -> None:
    with listening(tmp_path) as listeners:
        host = f"localhost:{listeners.port}"
        given = policy(tmp_path, grant(f'network = ["{host}"]'))
        outcome = await tried(listeners, given, host)

    assert listeners.seen == []
    assert outcome.structured == {
        "proxies": ["HTTPS_PROXY", "HTTP_PROXY", "http_proxy", "https_proxy"],
        f"http://127.0.0.1:{listeners.port}/": 403,
        f"http://localhost:{listeners.port}/": 502,
        "AF_INET": "unreachable",
        "AF_UNIX": "unreachable",
    }


@pytest.mark.parametrize(
    "more",
    [
        'network = ["other.example.com"]',
        f'digest = "{digest_of(b"other bytes")}"\nnetwork = ["localhost:8000"]',
        'origin = "team"\nnetwork = ["localhost:8000"]',
    ],
    ids=["other host", "other bytes", "other server"],
)
async def test_a_grant_for_something_else_opens_no_way_out(tmp_path: Path, more: str) -> None:
    with listening(tmp_path) as listeners:
        outcome = await tried(listeners, policy(tmp_path, grant(more)), "localhost:8000")

    assert outcome.structured is not None
    assert outcome.structured["proxies"] == []
    assert listeners.seen == []


def secrets_policy(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> Policy:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    (folder / "licence").write_text("licence-key-7\n", "utf-8")
    return policy(
        folder,
        grant(
            f"{more}\n[grant.secrets]\n"
            'API_TOKEN = { env = "LAB_TOKEN" }\n'
            f'LICENCE = {{ file = "{folder / "licence"}" }}\n'
            'UNASKED = { env = "LAB_TOKEN" }'
        ),
    )


async def test_granted_secrets_are_files_of_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = secrets_policy(tmp_path, monkeypatch)

    outcome = await ran(script_run(LISTS, interface=ScriptInterface(secrets=NAMES)), given)

    # Backwards a secret is not recognised, which shows that the script had it, and what redaction is worth.
    assert outcome.structured == {
        "API_TOKEN": [len(TOKEN), TOKEN[::-1]],
        "LICENCE": [13, "licence-key-7"[::-1]],
    }


async def test_a_script_that_asks_for_no_secret_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = secrets_policy(tmp_path, monkeypatch)
    code = LISTS + "import sys\nprint(dict(os.environ), file=sys.stderr)\n"

    outcome = await ran(script_run(code), given)

    assert outcome.structured == {}
    assert TOKEN not in outcome.stderr and "LAB_TOKEN" not in outcome.stderr


async def test_a_script_with_other_bytes_finds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = secrets_policy(tmp_path, monkeypatch, f'digest = "{digest_of(LISTS.encode())}"')
    interface = ScriptInterface(secrets=NAMES)

    same = await ran(script_run(LISTS, interface=interface), given)
    changed = await ran(script_run(LISTS + "\n", interface=interface), given)

    assert same.structured is not None and same.structured.keys() == {"API_TOKEN", "LICENCE"}
    assert changed.structured == {}


async def test_a_skill_of_a_server_does_not_get_what_was_granted_to_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = secrets_policy(tmp_path, monkeypatch)
    run = script_run(LISTS, interface=ScriptInterface(secrets=NAMES), origin="team")

    assert (await ran(run, given)).structured == {}


async def test_secrets_are_taken_out_of_everything_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = secrets_policy(tmp_path, monkeypatch)
    records: list[RunRecord] = []
    code = (
        "import base64, sys\n"
        "token = open('/run/secrets/API_TOKEN').read()\n"
        "print('{\"token\": \"' + token + '\"}')\n"
        "print('Authorization: Bearer', token, file=sys.stderr)\n"
        "open('/out/encoded.txt', 'wb').write(base64.b64encode(token.encode()))\n"
        "raise SystemExit(token)\n"
    )

    outcome = await ran(
        script_run(code, interface=ScriptInterface(secrets=NAMES)), given, record=records.append
    )

    assert outcome.structured == {"token": "[redacted:API_TOKEN]"}
    assert outcome.stderr == "Authorization: Bearer [redacted:API_TOKEN]\n[redacted:API_TOKEN]\n"
    assert outcome.files[0].content.startswith(b"[redacted:API_TOKEN]")
    [record] = records
    assert (record.secrets, record.outcome) == (("API_TOKEN", "LICENCE"), "exited")
    assert TOKEN not in record.line() and "licence-key-7" not in record.line()


async def test_nothing_that_is_done_to_secrets_reaches_the_next_run_or_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(secrets_policy(tmp_path, monkeypatch), pool=1, concurrent=1)
    spoils = "for name in ('LICENCE', 'LEFT'): open('/run/secrets/' + name, 'w').write('spoilt')\n" + LISTS
    interface = ScriptInterface(secrets=NAMES)

    with anyio.fail_after(DEADLINE):
        async with Runner(given) as runner:
            first = await runner.run(script_run(spoils, interface=interface))
            second = await runner.run(script_run(LISTS, interface=interface))

    assert first.structured is not None and first.structured["LEFT"] == [6, "tliops"]
    assert second.structured is not None and second.structured.keys() == {"API_TOKEN", "LICENCE"}
    assert second.structured["LICENCE"] == [13, "licence-key-7"[::-1]]
    assert (tmp_path / "licence").read_text("utf-8") == "licence-key-7\n"


async def test_a_run_whose_secret_cannot_be_had_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = secrets_policy(tmp_path, monkeypatch)
    monkeypatch.delenv("LAB_TOKEN")

    with pytest.raises(RunnerError) as refused:
        await ran(script_run(LISTS, interface=ScriptInterface(secrets=NAMES)), given)

    assert "API_TOKEN" in str(refused.value)
    assert refused.value.fix == "set the environment variable LAB_TOKEN"
