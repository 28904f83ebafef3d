"""Whatever else a server speaks, the released extension keeps its bytes: every answer against golden files.

To write the files anew, after a change of `core` that is meant, run this module.
"""

import json
import os
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from configs import configured
from folders import skill_md, write_files
from integration.both_paths import StdioClient, converse
from programs import stdio_server
from serving import INITIALIZED, LEGACY, MODERN, environment
from skillwire import __version__
from skillwire.core import Dialect, parse_dialects
from skillwire.core.errors import SkillError
from skillwire.server.options import ServeOptions
from skillwire.server.skills import MCP_DIALECTS
from skillwire.server.standalone import SkillServer
from skillwire.wire.core import EXTENSION

GOLDEN = Path(__file__).parent / "golden"
PAGE_SIZE = 3
MOMENT = 1_780_000_000

Json = dict[str, Any]
Portal = anyio.from_thread.BlockingPortal

REQUESTS: list[tuple[str, Json]] = [
    ("skills/list", {}),
    ("skills/list", {"cursor": "c2tpbGxzL2xpc3Q6c2tpbGw6Ly9hY21lL3JlZnVuZHMvU0tJTEwubWQ"}),
    ("skills/list", {"cursor": "nonsense"}),
    *(
        ("skills/get", {"uri": uri})
        for uri in (
            "skill://tea/SKILL.md",
            "skill://acme/refunds/inner/SKILL.md",
            "skill://gone/SKILL.md",
            "tea",
        )
    ),
    ("skills/get", {}),
    *(
        ("resources/read", {"uri": uri})
        for uri in (
            *("skill://tea/SKILL.md", "skill://tea/references/green%20tea.md", "skill://tea/leaf.png"),
            *("skill://%74ea/SKILL.md", "skill://gone/SKILL.md", "skill://tea"),
        )
    ),
    *(
        ("resources/directory/read", {"uri": uri})
        for uri in (
            "skill://tea",
            "skill://acme",
            "skill://acme/refunds/inner",
            "skill://gone",
            "skill://tea/SKILL.md",
        )
    ),
]
CLIENT = {"name": "tests", "version": "1"}
DECLARED: Json = {"extensions": {EXTENSION: {}}}
ENVELOPE: Json = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": DECLARED,
}
HANDSHAKE: Json = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {"protocolVersion": LEGACY, "capabilities": DECLARED, "clientInfo": CLIENT},
}


def combined() -> Iterator[tuple[Dialect, ...]]:
    """Yield every set of dialects that one server can speak."""
    for count in range(len(MCP_DIALECTS) + 1):
        for dialects in combinations(MCP_DIALECTS, count):
            try:
                yield parse_dialects(dialects)
            except SkillError:
                continue


COMBINED = list(combined())
# Starting a process takes a while, so these do what needs one: nothing, and as much as there can be at once.
MOST = max(map(len, COMBINED))
PROCESSES = [dialects for dialects in COMBINED if len(dialects) in (0, MOST)]


def write_sample(folder: Path) -> None:
    """Write the same skills every time, down to when they were modified."""
    rich = "license: MIT\nmetadata: {version: '3', 'é': '😀'}\nnumbers: [1, 2.5, true, null]\n"
    dual = "arguments: [{name: region, required: true}]\ndependencies: {tools: [brew]}\n"
    write_files(
        folder,
        {
            "tea/SKILL.md": skill_md("tea", extra=rich, body="Brüh Tee.\r\n"),
            "tea/references/green tea.md": '# Sencha\t"\\\n',
            "tea/leaf.png": bytes(range(256)),
            "tea/scripts/brew.py": "pass\n",
            "acme/refunds/SKILL.md": skill_md("refunds", extra=dual),
            "acme/refunds/inner/SKILL.md": skill_md("inner"),
            "acme/tea/SKILL.md": skill_md("tea"),
            "plain/SKILL.md": skill_md("plain"),
        },
    )
    for path in folder.rglob("*"):
        os.utime(path, (MOMENT, MOMENT))


def messages(revision: str) -> Iterator[tuple[str, bytes]]:
    """Yield each request with the label under which its answer is kept."""
    for position, (method, params) in enumerate(REQUESTS):
        identifier = f"{position:02} {method}"
        more = {"_meta": ENVELOPE} if revision == MODERN else {}
        request = {"jsonrpc": "2.0", "id": identifier, "method": method, "params": {**params, **more}}
        yield identifier, json.dumps(request).encode() + b"\n"


def talk(client: StdioClient, revision: str) -> None:
    if revision == LEGACY:
        client.send(json.dumps(HANDSHAKE).encode() + b"\n")
        client.wait_for("hello")
        client.send(json.dumps(INITIALIZED).encode() + b"\n")
    for identifier, message in messages(revision):
        client.send(message)
        client.wait_for(identifier)


def by_label(lines: Iterable[bytes]) -> dict[str, str]:
    """Return the answers as they came, but for the version of the program and the greeting."""
    texts = [line.decode().rstrip("\n").replace(f'"{__version__}"', '"VERSION"') for line in lines]
    answers = {json.loads(text)["id"]: text for text in texts}
    answers.pop("hello", None)
    return answers


def answers_of(portal: Portal, folder: Path, dialects: tuple[str, ...]) -> Mapping[tuple[str, str], Any]:
    """Return every answer of a server, of both revisions, from the fast path and from the plain one."""
    served = SkillServer(ServeOptions((folder,), page_size=PAGE_SIZE, watch=False, dialect=dialects))
    with portal.wrap_async_context_manager(served.skills.open()):
        return {
            (name, path): by_label(converse(portal, served, hot, lambda client: talk(client, revision)))  # noqa: B023 - used at once
            for name, revision in (("modern", MODERN), ("legacy", LEGACY))
            for path, hot in (("fast", served.hot), ("plain", None))
        }


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"core-{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def portal() -> Generator[Portal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("skills")
    write_sample(folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


def named(dialects: tuple[str, ...]) -> str:
    return "+".join(dialects) or "core alone"


@pytest.mark.requirement("NEG-16")
@pytest.mark.parametrize("dialects", COMBINED, ids=named)
def test_no_dialect_changes_a_byte_of_what_the_extension_answers(
    portal: Portal, folder: Path, dialects: tuple[Dialect, ...]
) -> None:
    for (name, path), answers in answers_of(portal, folder, dialects).items():
        assert answers == golden(name), (name, path)


@pytest.mark.requirement("NEG-16")
@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize("dialects", PROCESSES, ids=named)
def test_a_process_that_speaks_dialects_answers_the_same_bytes(
    folder: Path, tmp_path: Path, dialects: tuple[Dialect, ...], path: str
) -> None:
    options = [word for dialect in dialects for word in ("--dialect", dialect.value)]
    env = environment(tmp_path, SKILLWIRE_FAST="1" if path == "fast" else "0")
    command = (
        folder,
        "--name",
        "skillwire",
        "--no-watch",
        *configured(tmp_path, page_size=PAGE_SIZE),
        *options,
    )
    found: dict[str, dict[str, str]] = {}
    for name, revision in (("modern", MODERN), ("legacy", LEGACY)):
        with stdio_server(*command, env=env) as server:
            lines: list[bytes] = []
            if revision == LEGACY:
                server.call(HANDSHAKE)
                server.send(INITIALIZED)
            for _, message in messages(revision):
                server.send(message)
                lines.append(server.lines.get(timeout=30))
        found[name] = by_label(lines)

    assert found == {name: golden(name) for name in ("modern", "legacy")}


def test_the_golden_files_hold_errors_and_results_of_every_method() -> None:
    for name in ("modern", "legacy"):
        answers = golden(name)
        kinds = {(label[3:], "result" in json.loads(text)) for label, text in answers.items()}

        assert kinds == {(method, good) for method, _ in REQUESTS for good in (True, False)}


def main() -> None:
    """Write the golden files from a server that speaks no dialect."""
    with tempfile.TemporaryDirectory() as home, anyio.from_thread.start_blocking_portal() as portal:
        os.environ["XDG_CACHE_HOME"] = home
        write_sample(Path(home) / "skills")
        for (name, path), answers in answers_of(portal, Path(home) / "skills", ()).items():
            if path == "plain":
                text = json.dumps(answers, indent=1, ensure_ascii=False)
                (GOLDEN / f"core-{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
