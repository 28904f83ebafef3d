"""What leaves a real sandbox: requests by the one way out, text that is safe to show, and no secrets."""

import base64
import json
from collections.abc import Mapping
from urllib.parse import quote

import anyio
import pytest

from integration.runner.running import needs_sandbox
from skillwire.runner import Limits, Outcome, Policy, Runner, ScriptInterface, ScriptRule, ScriptRun

pytestmark = needs_sandbox

SKILL = "skill://speaker/SKILL.md"
SCRIPT = "scripts/speak.py"
SECONDS = 60
TOKEN = b'tok"en/\xc3\xbc+42=\n'
VALUE = TOKEN.strip()

ASKS = """\
import json, socket, sys, urllib.error, urllib.request
found = {}
for url in json.load(sys.stdin)["urls"]:
    try:
        urllib.request.urlopen(url, timeout=10)
        found[url] = "reached"
    except urllib.error.HTTPError as error:
        found[url] = error.code
    except OSError as error:
        found[url] = str(error)
for address in ("1.1.1.1", "127.0.0.1"):
    try:
        socket.create_connection((address, 80), 2)
        found[address] = "reached"
    except OSError as error:
        found[address] = "no way"
print(json.dumps(found))
"""

TELLS = """\
import base64, json, sys, urllib.parse
raw = open("/run/secrets/TOKEN", "rb").read()
text = raw.decode().strip()
print(text, urllib.parse.quote(text), raw.hex(), json.dumps(text), repr(text))
print(base64.b64encode(b"user:" + raw).decode(), base64.urlsafe_b64encode(b"u:" + raw).decode())
print(text[:4] + "\\x1b[1m" + text[4:], file=sys.stderr)
open("/out/note.txt", "wb").write(b"kept: " + raw)
"""


async def run(
    code: str,
    arguments: Mapping[str, object] | None = None,
    *,
    network: tuple[str, ...] = (),
    asked: tuple[str, ...] | None = None,
    secrets: Mapping[str, bytes] | None = None,
    limits: Limits | None = None,
) -> Outcome:
    sources = {name: lambda value=value: value for name, value in (secrets or {}).items()}
    rule = ScriptRule(SKILL, SCRIPT, secrets=sources, network=network)
    interface = ScriptInterface(network=network if asked is None else asked, secrets=tuple(sources))
    files = {"SKILL.md": b"", SCRIPT: code.encode()}
    wanted = ScriptRun(SKILL, SCRIPT, files, json.loads(json.dumps(arguments or {})), interface)
    with anyio.fail_after(SECONDS):
        async with Runner(Policy(limits=limits or Limits(), rules=(rule,))) as runner:
            return await runner.run(wanted)


@pytest.mark.requirement("EXEC-12")
async def test_a_script_with_a_way_out_reaches_nothing_but_public_hosts_of_its_list() -> None:
    urls = ["http://localhost/", "http://evil.example/", "http://127.0.0.1/", "https://localhost/"]

    outcome = await run(ASKS, {"urls": urls}, network=("localhost:80",))

    assert outcome.structured == {
        # Listed, and at an address of this machine.
        "http://localhost/": 502,
        "http://evil.example/": 403,
        "http://127.0.0.1/": 403,
        # Listed with another port only.
        "https://localhost/": "<urlopen error Tunnel connection failed: 403 Forbidden>",
        "1.1.1.1": "no way",
        "127.0.0.1": "no way",
    }


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    ("network", "asked"),
    [((), ()), ((), ("localhost:80",)), (("localhost:80",), ()), (("a.example",), ("b.example",))],
)
async def test_a_script_has_no_way_out_unless_it_asks_for_one_and_is_granted_it(
    network: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    code = ASKS + "import os; print(sorted(n for n in os.environ if 'proxy' in n.lower()), file=sys.stderr)"

    outcome = await run(code, {"urls": []}, network=network, asked=asked)

    assert outcome.structured == {"1.1.1.1": "no way", "127.0.0.1": "no way"}
    assert outcome.stderr.strip() == "[]"


@pytest.mark.requirement("EXEC-11")
async def test_what_a_script_tells_is_without_the_secrets_it_was_given() -> None:
    outcome = await run(TELLS, secrets={"TOKEN": TOKEN})

    assert outcome.exit_code == 0, outcome.stderr
    (file,) = outcome.files
    everything = outcome.stdout.encode() + outcome.stderr.encode() + file.content
    assert everything.count(b"[redacted:TOKEN]") == 9
    for spelling in (
        VALUE,
        quote(VALUE).encode(),
        VALUE.hex().encode(),
        json.dumps(VALUE.decode())[1:-1].encode(),
        base64.b64encode(b"user:" + VALUE)[8:-4],
        base64.urlsafe_b64encode(b"u:" + VALUE)[4:-4],
    ):
        assert spelling not in everything


@pytest.mark.requirement("EXEC-11")
async def test_a_secret_that_is_cut_by_a_limit_leaves_no_beginning() -> None:
    code = "print('x' * 90 + open('/run/secrets/TOKEN').read() + 'y' * 500)"

    outcome = await run(code, secrets={"TOKEN": b"swordfish-and-chips"}, limits=Limits(stdout_bytes=100))

    assert "sword" not in outcome.stdout
    assert outcome.stdout.startswith("x" * 90)
    assert "[truncated: " in outcome.stdout


@pytest.mark.requirement("EXEC-10")
@pytest.mark.requirement("EXEC-17")
async def test_what_a_script_writes_is_safe_to_show_and_obeyed_by_nobody() -> None:
    code = r"""
import json, sys
sys.stderr.buffer.write(b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \xe2\x80\xaeevil\xff\r\nnext\x00\x9b")
print(json.dumps({"type": "resource_link", "uri": "file:///etc/passwd", "note": "\x1b[1mbold\u200b"}))
"""

    outcome = await run(code)

    assert outcome.stderr == "red evil\ufffd\nnext\ufffd"
    assert outcome.structured == {"type": "resource_link", "uri": "file:///etc/passwd", "note": "bold"}
    assert outcome.files == ()
