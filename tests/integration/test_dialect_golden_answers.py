"""What each dialect answers, and what a host reads from it, compared with golden files.

`golden/DIALECT.json` has the answers of a server in that dialect to a client that does not know the released
extension, `golden/host/DIALECT.json` the skills that a host lists and reads in it. `core` is in
`test_dialect_golden`. Error messages are replaced by `<text>`. To write the files again, after a change that
is intended, run

    PYTHONPATH=tests python tests/integration/test_dialect_golden_answers.py
"""

import json
import os
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.from_thread
import pytest

from hostile.hosting import storage_in
from integration.both_paths import StdioClient, converse
from integration.test_dialect_golden import CLIENT, ENVELOPE, write_sample
from programs import http_server, words_of
from serving import INITIALIZED, LEGACY, MODERN, environment
from skillwire import __version__
from skillwire.core.dialects import Dialect
from skillwire.core.errors import SkillError
from skillwire.core.manifest import digest_of
from skillwire.host import Host, HostLimits, HostPolicy
from skillwire.host.model.endpoints import Endpoint, ServerConfig, SiteEndpoint, SkillSettings, StdioEndpoint
from skillwire.host.model.errors import Refusal
from skillwire.host.model.origin import KnownSkill
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.runner import Policy
from skillwire.server.options import ServeOptions
from skillwire.server.skills import MCP_DIALECTS
from skillwire.server.standalone import SkillServer

GOLDEN = Path(__file__).parent / "golden"
PAGE_SIZE = 3
DEADLINE = 60.0
REMOTE = [dialect for dialect in Dialect if dialect is not Dialect.LOCAL]
SITE = "/.well-known/agent-skills"
MEASURED = frozenset({"cpu_seconds", "memory_bytes", "processes", "wall_seconds"})
FILES = ("SKILL.md", "references/green tea.md", "leaf.png", "references/notes.md", "gone.md")

Json = dict[str, Any]
Portal = anyio.from_thread.BlockingPortal

RESOURCES: list[tuple[str, Json]] = [
    ("resources/list", {}),
    ("resources/list", {"cursor": "cmVzb3VyY2VzL2xpc3Q6c2tpbGw6Ly9hY21lL3RlYS9TS0lMTC5tZA"}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "skill://index.json"}),
    ("resources/read", {"uri": "skill://tea/SKILL.md"}),
    ("resources/read", {"uri": "skill://tea/leaf.png"}),
    ("resources/read", {"uri": "skill://gone/SKILL.md"}),
    ("resources/directory/read", {"uri": "skill://tea"}),
    ("resources/directory/read", {"uri": "skill://gone"}),
]
ASKED: dict[Dialect, list[tuple[str, Json]]] = {
    Dialect.INDEX_JUNE: [*RESOURCES, ("resources/read", {"uri": "skill://tea.tar.gz"})],
    Dialect.INDEX_APRIL: [
        *RESOURCES,
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "skill://{+path}"},
                "argument": {"name": "path", "value": "t"},
            },
        ),
    ],
    Dialect.LIST_MARCH: [
        *RESOURCES,
        ("resources/list", {"uri": "skill://tea"}),
        ("resources/read", {"uri": "skill://tea/_manifest"}),
    ],
    Dialect.PRIMITIVE: [
        ("skills/list", {}),
        ("skills/list", {"cursor": "c2tpbGxzL2xpc3Q6c2tpbGw6Ly9hY21lL3RlYS9TS0lMTC5tZA"}),
        ("skills/list", {"cursor": "nonsense"}),
        ("skills/get", {"name": "plain"}),
        ("skills/get", {"name": "refunds"}),
        ("skills/get", {"name": "brewing"}),
        ("skills/get", {"name": "brewing", "arguments": {"region": "EU"}}),
        ("skills/get", {"name": "gone"}),
        ("skills/get", {}),
    ],
    Dialect.EXEC: [
        ("skills/list", {}),
        ("skills/list", {"cursor": "c2tpbGxzL2xpc3Q6c2tpbGw6Ly9hY21lL3RlYS9TS0lMTC5tZA"}),
        ("skills/read", {"name": "plain"}),
        ("skills/read", {"name": "tea"}),
        ("skills/read", {"name": "brewing"}),
        ("skills/read", {"name": "gone"}),
        ("skills/read", {}),
        ("skills/read_reference", {"name": "brewing", "reference": "references/notes.md"}),
        ("skills/read_reference", {"name": "brewing", "reference": "assets/leaf.png"}),
        ("skills/read_reference", {"name": "brewing", "reference": "gone.md"}),
        ("skills/execute", {"name": "brewing", "script": "scripts/brew.py", "arguments": {}}),
        ("skills/execute", {"name": "brewing", "script": "scripts/fail.py", "arguments": {}}),
        ("skills/execute", {"name": "brewing", "script": "scripts/gone.py", "arguments": {}}),
        ("skills/execute", {"name": "gone", "script": "scripts/brew.py", "arguments": {}}),
    ],
    Dialect.PROMPT: [
        ("prompts/list", {}),
        ("prompts/list", {"cursor": "cHJvbXB0cy9saXN0OnNraWxsOi8vYWNtZS90ZWEvU0tJTEwubWQ"}),
        ("prompts/list", {"cursor": "nonsense"}),
        ("prompts/get", {"name": "plain"}),
        ("prompts/get", {"name": "brewing"}),
        ("prompts/get", {"name": "gone"}),
    ],
}
BREWING = b"""---
name: brewing
description: Use when brewing.
version: 1.2.0
tags: [tea, hot]
metadata:
  title: Brewing tea
  skillwire/arguments: |
    region! (Region): Whose water it is.
    cups: How many.
  skillwire/tools: open_tap
  skillwire/files: |
    references/notes.md (notes): Notes by region.
---
Run scripts/brew.py for {{cups}} in {{region}}, and leave {{this}}.
"""
FETCHED = ("index.json", "plain/SKILL.md", "gone/SKILL.md")


def write_skills(folder: Path) -> None:
    """Write the skills of `test_dialect_golden`, and one with references, assets and scripts."""
    brewing = folder / "brewing"
    for path, content in {
        "SKILL.md": BREWING,
        "references/notes.md": b"# Notes\n",
        "assets/leaf.png": b"\x89PNG\xff",
        "scripts/brew.py": b"print('done')\n",
        "scripts/fail.py": b"raise SystemExit(3)\n",
    }.items():
        (brewing / path).parent.mkdir(parents=True, exist_ok=True)
        (brewing / path).write_bytes(content)
    write_sample(folder)


def plain(value: Any, name: str = "") -> Any:
    """Return the value of the member `name` of an answer without free text, and without what varies."""
    if isinstance(value, list):
        items = cast(list[Any], value)
        return [plain(item) for item in items]
    if not isinstance(value, dict):
        return value
    members = cast(Json, value)
    return {key: placeholder(members, name, key) or plain(inner, key) for key, inner in members.items()}


def placeholder(members: Json, name: str, key: str) -> str:
    """Return the placeholder of the member `key` of `name`; empty when it is compared as it is."""
    is_ours = "uriTemplate" in members or members.get("uri") == "skill://index.json"
    if key == "fix" or (key == "message" and "code" in members) or (key == "description" and is_ours):
        return "<text>"
    return f"<{key}>" if key == "runId" or (name == "usage" and key in MEASURED) else ""


def talk(revision: str, requests: list[tuple[str, Json]], client: StdioClient) -> None:
    """Ask everything in order, as a client that does not know the released extension."""
    meta: Json = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": {}}
    if revision == LEGACY:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        hello: Json = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}
        client.send(json.dumps(hello).encode() + b"\n")
        client.wait_for("hello")
        client.send(json.dumps(INITIALIZED).encode() + b"\n")
    for position, (method, params) in enumerate(requests):
        identifier = f"{position:02} {method}"
        more: Json = {"_meta": meta} if revision == MODERN else {}
        request: Json = {"jsonrpc": "2.0", "id": identifier, "method": method, "params": {**params, **more}}
        client.send(json.dumps(request).encode() + b"\n")
        client.wait_for(identifier)


def answers_of(portal: Portal, folder: Path, dialect: Dialect) -> Json:
    """Return what a server of one dialect answers to clients of both revisions, by revision and request."""
    options = ServeOptions(
        (folder,),
        page_size=PAGE_SIZE,
        watch=False,
        dialect=(dialect.value,),
        scripts=dialect is Dialect.EXEC,
        policy=Policy(),
    )
    served = SkillServer(options)
    found: Json = {}
    with portal.wrap_async_context_manager(served.skills.open()):
        for name, revision in (("modern", MODERN), ("legacy", LEGACY)):
            lines = converse(portal, served, served.hot, partial(talk, revision, ASKED[dialect]))
            texts = [line.decode().replace(f'"{__version__}"', '"VERSION"') for line in lines]
            answers = {answer.pop("id"): plain(answer) for answer in map(json.loads, texts) if "id" in answer}
            if revision == LEGACY:
                answers["hello"] = answers["hello"]["result"]["capabilities"]
            found[name] = dict(sorted(answers.items()))
    return found


def site_of(folder: Path, home: Path) -> Json:
    """Return what a server's web site of skills answers, by path; files by their digest."""
    found: Json = {}
    with http_server(
        folder / "plain", folder / "brewing", "--dialect", "well-known", "--no-watch", env=environment(home)
    ) as server:
        base = server.url.removesuffix("/mcp") + SITE
        index = json.loads(fetch(f"{base}/index.json")[2])
        for path in (*FETCHED, *(entry["url"] for entry in index["skills"])):
            status, headers, body = fetch(f"{base}/{path}")
            kept = {name: headers[name] for name in ("Content-Type", "Cache-Control") if name in headers}
            content = json.loads(body) if path == "index.json" else digest_of(body) if status == 200 else None
            found[path] = {"status": status, "headers": kept, "content": content}
    return found


def fetch(url: str) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def served_in(portal: Portal, folder: Path, home: Path, dialect: Dialect) -> Json:
    return site_of(folder, home) if dialect is Dialect.WELL_KNOWN else answers_of(portal, folder, dialect)


@contextmanager
def reached(folder: Path, home: Path, dialect: Dialect) -> Generator[Endpoint]:
    """Serve the folder in a dialect, and yield how a host reaches it."""
    env = environment(home)
    if dialect is Dialect.WELL_KNOWN:
        with http_server(
            folder / "plain", folder / "brewing", "--dialect", "well-known", "--no-watch", env=env
        ) as server:
            yield SiteEndpoint(server.url.removesuffix("/mcp"), ())
        return
    spoken = ("--dialect", dialect.value) if dialect in MCP_DIALECTS else ()
    command = words_of(folder, "--stdio", "--no-watch", *spoken)
    yield StdioEndpoint(command[0], tuple(command[1:]), env)


async def listed(folder: Path, home: Path, dialect: Dialect) -> Json:
    """Return the skills that a host lists in a dialect, and the digests of files it reads."""
    with reached(folder, home, dialect) as endpoint, anyio.fail_after(DEADLINE):
        config = ServerConfig("shop", endpoint, seconds=30, skills=SkillSettings(dialect=dialect))
        async with Host(
            [config],
            roots=(),
            storage=storage_in(home),
            limits=HostLimits(wait_seconds=30),
            policy=HostPolicy(dynamic="ask", archives=ArchivePolicy()),
        ) as host:
            view = host.view
            return {
                "skills": [described(skill) for skill in view.skills],
                "hidden": [refused(refusal) for refusal in view.hidden],
                "notices": [refused(refusal) for refusal in view.notices],
                "files": {
                    f"{skill.reference} {path}": await read(host, skill, path)
                    for skill in view.skills
                    for path in FILES
                },
            }


def described(skill: KnownSkill) -> Json:
    return {
        "reference": skill.reference,
        "name": skill.name,
        "dialect": skill.dialect.value,
        "isListed": skill.is_listed,
        "entry": skill.entry.to_json(),
    }


def refused(refusal: Refusal) -> Json:
    return {"code": refusal.code, "subject": refusal.subject}


async def read(host: Host, skill: KnownSkill, path: str) -> str:
    """Return the digest of a file, or the code of the refusal."""
    try:
        return digest_of((await host.preview(skill.reference, path)).content)
    except SkillError as error:
        return f"refused: {error.refusal}"


def as_text(recording: Json) -> str:
    return json.dumps(recording, indent=1, ensure_ascii=False) + "\n"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def portal() -> Generator[Portal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skills(tmp_path / "skills")
    return tmp_path / "skills"


@pytest.mark.parametrize("dialect", [*ASKED, Dialect.WELL_KNOWN])
def test_a_server_answers_in_a_dialect_as_in_the_golden_file(
    portal: Portal, folder: Path, empty_home: Path, dialect: Dialect
) -> None:
    assert served_in(portal, folder, empty_home, dialect) == golden(dialect.value)


@pytest.mark.parametrize("dialect", REMOTE)
def test_a_host_lists_and_reads_in_a_dialect_as_in_the_golden_file(
    portal: Portal, folder: Path, empty_home: Path, dialect: Dialect
) -> None:
    assert portal.call(listed, folder, empty_home, dialect) == golden(f"host/{dialect.value}")


def test_every_dialect_that_a_server_speaks_has_requests() -> None:
    assert ASKED.keys() == MCP_DIALECTS.keys()


def homes(home: Path) -> Iterator[Path]:
    """Yield new homes, so that nothing cached for one dialect is there for the next."""
    for number in range(100):
        (home / str(number)).mkdir()
        os.environ["HOME"] = str(home / str(number))
        os.environ["XDG_CACHE_HOME"] = str(home / str(number) / ".cache")
        yield home / str(number)


def main() -> None:
    """Write the golden files from the code as it is."""
    (GOLDEN / "host").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, anyio.from_thread.start_blocking_portal() as portal:
        folder, new_homes = Path(root) / "skills", homes(Path(root))
        write_skills(folder)
        for dialect in (*ASKED, Dialect.WELL_KNOWN):
            answers = served_in(portal, folder, next(new_homes), dialect)
            (GOLDEN / f"{dialect.value}.json").write_text(as_text(answers), "utf-8")
        for dialect in REMOTE:
            found = portal.call(listed, folder, next(new_homes), dialect)
            (GOLDEN / "host" / f"{dialect.value}.json").write_text(as_text(found), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
