"""Over stdio the first answer waits for neither the SDK nor the scan, and nothing that follows differs."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from folders import write_skill
from serving import (
    COMMAND,
    INITIALIZED,
    LEGACY,
    Json,
    environment,
    handshake,
    hook,
    legacy,
    listed_uris,
    modern,
    stdio_server,
)

# The SDK cannot be imported before somebody opens the other end of a named pipe.
HELD = """
import os, sys

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name in ("mcp", "mcp_types") and self in sys.meta_path:
            sys.meta_path.remove(self)
            with open(os.environ["HELD_BY"]):
                pass

sys.meta_path.insert(0, Hold())
"""
DISCOVER = modern("server/discover", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "tea")
    write_skill(tmp_path / "skills" / "coffee")
    return tmp_path / "skills"


@pytest.mark.requirement("TOOL-03")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_it_comes_before_the_sdk_is_there_and_what_follows_waits(
    root: Path, tmp_path: Path, era: str
) -> None:
    held_by = tmp_path / "held"
    os.mkfifo(held_by)
    env = environment(tmp_path, **hook(tmp_path / "hook", HELD), HELD_BY=str(held_by))
    ask = modern if era == "modern" else legacy
    first = DISCOVER if era == "modern" else handshake(0)

    with stdio_server(root, env=env, ready=False) as server:
        answer = server.call(first)
        server.send(*([] if era == "modern" else [INITIALIZED]), ask("skills/list", 1), ask("no/such", 2))
        assert server.words == ""
        held_by.open("w").close()
        listed, refused = server.receive(), server.receive()
        server.close_input()
        code = server.wait()

    assert "- tea: " in answer["result"]["instructions"]
    assert listed_uris(listed) == ["skill://coffee/SKILL.md", "skill://tea/SKILL.md"]
    assert refused["error"]["code"] == -32601
    assert (code, server.words) == (0, "serving 2 skills over stdio\n")


CONVERSATIONS: dict[str, list[Json | bytes]] = {
    "legacy": [handshake("a"), INITIALIZED, legacy("skills/list", "a"), legacy("ping", 2)],
    "legacy, twice": [handshake(0), handshake(1), INITIALIZED, legacy("resources/list", 2)],
    "legacy, then modern": [handshake(0), modern("skills/list", 1), legacy("ping", 2)],
    "legacy, not initialized": [handshake(0), legacy("skills/list", 1)],
    "modern": [DISCOVER, modern("skills/list", 0), modern("no/such", 1), DISCOVER],
    "modern, then legacy": [DISCOVER, handshake(1), legacy("ping", 2)],
    "a request first": [modern("skills/list", 1), DISCOVER],
    "not initialized": [legacy("skills/list", 1), handshake(2)],
    "malformed first": [b"{\n", handshake(0)],
    "blank lines": [b"\n\n", handshake(0), b"\n"],
    "too large": [b" " * 300_000 + b"\n", handshake(0)],
    "no line end": [handshake(0), INITIALIZED, b'{"jsonrpc":"2.0","id":7,"method":"ping"}'],
    "nothing else": [b'{"jsonrpc":"2.0",'],
}


def replies(root: Path, env: dict[str, str], messages: Sequence[Json | bytes]) -> tuple[list[Json], str]:
    with stdio_server(root, env=env, ready=False) as server:
        server.send(*messages)
        server.close_input()
        server.wait()
        return sorted(server.rest(), key=lambda answer: str(answer["id"])), server.words


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_the_same_as_without_it(root: Path, tmp_path: Path, name: str) -> None:
    env = environment(tmp_path)

    early = replies(root, env, CONVERSATIONS[name])

    assert early == replies(root, {**env, "SKILLWIRE_FAST": "0"}, CONVERSATIONS[name])


def test_a_first_message_may_come_late_and_in_pieces(root: Path, tmp_path: Path) -> None:
    with stdio_server(root, env=environment(tmp_path)) as server:
        server.send(b'{"jsonrpc":"2.0","id":0,"method":"initialize",')
        server.send(b'"params":{"protocolVersion":"%s","capabilities":{},' % LEGACY.encode())
        server.send(b'"clientInfo":{"name":"x","version":"1"}}}\n')

        assert "- tea: " in server.receive()["result"]["instructions"]


@pytest.mark.parametrize("args", [["nowhere"], ["skills", "again"], ["skills", "--name", "\u202e"]], ids=str)
def test_a_server_that_cannot_start_answers_nothing_and_says_why(
    root: Path, tmp_path: Path, args: list[str]
) -> None:
    write_skill(tmp_path / "again" / "tea")
    line = orjson.dumps(DISCOVER) + b"\n"

    def outcome(**more: str) -> "subprocess.CompletedProcess[bytes]":
        env = environment(tmp_path, **more)
        return subprocess.run(
            [*COMMAND, *args], input=line, capture_output=True, env=env, cwd=tmp_path, timeout=60
        )

    early, plain = outcome(), outcome(SKILLWIRE_FAST="0")

    assert (early.returncode, early.stdout, early.stderr) == (plain.returncode, b"", plain.stderr)
    assert early.returncode and early.stderr.startswith((b"error: ", b"skill://tea"))


def test_a_damaged_index_is_reported_once(root: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    replies(root, env, [])
    [index] = (tmp_path / ".cache" / "skillwire" / "scan").iterdir()
    index.write_bytes(b"damaged")

    answers, words = replies(root, env, [DISCOVER])

    assert "- tea: " in answers[0]["result"]["instructions"]
    assert words.count("WARNING: the index of an earlier scan cannot be used") == 1
    assert len(words.splitlines()) == 2


def test_a_closed_standard_output_is_no_failure_of_its_own(root: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, str(root)]

    def outcome(**more: str) -> tuple[int, bytes]:
        env = environment(tmp_path, **more)
        line = orjson.dumps(DISCOVER) + b"\n"
        ended = subprocess.run(command, input=line, stderr=subprocess.PIPE, env=env, timeout=60)
        return ended.returncode, ended.stderr

    assert outcome() == outcome(SKILLWIRE_FAST="0")
