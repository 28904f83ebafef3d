"""Every refusal in the product can be explained: its code by `why`, and the real thing by its chain.

Each situation is real: a server process that lies, a folder, a lock, a
setting. What happened while a skill was used is explained afterwards, from the
audit log.
"""

import json
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from folders import write_files, write_skill
from hostile.hosting import (
    DEADLINE,
    LABEL,
    PATIENCE,
    REFUNDS,
    REPORTS,
    User,
    Visit,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.running import hostile
from integration.indexed_world import digest, skill_text, told, world
from integration.web_sites import INDEX, web_site
from serving import environment
from skillwire.cli import command as output
from skillwire.cli.app import run
from skillwire.core.dialects import Dialect
from skillwire.core.errors import SkillError
from skillwire.core.finding import RULES
from skillwire.core.manifest import digest_of
from skillwire.core.refusals import REFUSALS
from skillwire.host import (
    HostLimits,
    HostPolicy,
    HttpEndpoint,
    LocalRoot,
    Origin,
    OriginKind,
    PromptLimits,
    Reply,
    ServerConfig,
    ShowRule,
    SkillId,
    StdioEndpoint,
    SyncedFolder,
    SyncedFolders,
    SyncRecord,
    ToolCall,
    ToolKind,
    read_servers,
)
from skillwire.host.approval.lock import write_lock
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.model.approval import Provenance, ProvenanceVerdict
from skillwire.host.model.endpoints import SiteEndpoint
from skillwire.host.use.explain import Explanation
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.runner import Policy
from skillwire.wire.index import SCHEMA

NEEDY = f"{LABEL}/needy"
NO_SHELL = Policy(pool=0, interpreters={".sh": None})
NEVER_AT_REST = {
    "skill-error": "the base of all errors: what is raised has a code of its own",
    "verification-failed": "the base of four errors, each with a code of its own",
    "refused": "the base of the host's own rules; it names calls no command makes, such as opening twice",
    "invalid-cursor": "a server says it of a request; a host begins the listing again",
    "duplicate-uri": "a server says it of its folders; to a host such entries are invalid",
    "protected-place": "it is about one call of a tool and a place, and about no skill",
    "foreign-folder": "it is about a place that a command leaves alone, and about no skill of a host",
    "folder-changed": "it is about a folder that a command leaves alone, and about no skill of a host",
    "invalid-arguments": "it is about one call of a tool, whose caller is told, and about no skill",
}
"""Codes that no skill and no server is left with, and why."""

Chain: TypeAlias = Callable[[Path], Awaitable[Explanation]]
SITUATIONS: dict[str, Chain] = {}


def situation(code: str) -> Callable[[Chain], Chain]:
    def add(chain: Chain) -> Chain:
        assert code not in SITUATIONS
        SITUATIONS[code] = chain
        return chain

    return add


def codes(chain: Explanation) -> list[str]:
    return [step.refusal.code for step in chain.steps if step.refusal is not None]


# What a server shows

WAITING = HostLimits(wait_seconds=DEADLINE)
LISTINGS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "not-declared": ("undeclared", LABEL, {}),
    "too-slow": ("slow", LABEL, {"form": "silent", "seconds": 2.0}),
    "invalid-answer": ("endless_listing", LABEL, {"form": "number"}),
    "endless-listing": ("endless_listing", LABEL, {"form": "same"}),
    "message-too-large": ("huge_message", LABEL, {"bytes": 40_000_000}),
    # Also for a machine that takes no more than the usual 500 a second.
    "flooding": (
        "floods",
        LABEL,
        {
            "messages": 20_000,
            "options": {"limits": replace(WAITING, connections=ConnectionLimits(messages_per_second=50))},
        },
    ),
    "not-found": ("honest", f"{LABEL}/skill://acme/nothing", {}),
    "invalid-entry": ("odd_resources", REFUNDS, {"form": "empty"}),
    "over-limit": ("claims", REFUNDS, {"form": "files"}),
    "unsafe-paths": ("twins", REFUNDS, {"form": "case"}),
    "dynamic-declined": ("dynamic", REFUNDS, {}),
    "archives-off": ("packed", REFUNDS, {"form": "alone"}),
    "unknown-reference": ("honest", f"{LABEL}/refudns", {}),
    "ambiguous-reference": ("same_name_twice", REFUNDS, {}),
    "renamed": ("same_name_twice", f"{LABEL}/acme/billing/refunds", {}),
    "not-approved": ("honest", REFUNDS, {}),
    "turned-off": ("honest", REFUNDS, {"options": {"policy": HostPolicy(show={REFUNDS: ShowRule.OFF})}}),
    "manual-only": ("honest", REFUNDS, {"options": {"policy": HostPolicy(show={REFUNDS: ShowRule.MANUAL})}}),
}


def listed(code: str) -> Chain:
    scenario, reference, control = LISTINGS[code]

    async def chain(folder: Path) -> Explanation:
        said: dict[str, Any] = {"options": {}, "seconds": PATIENCE, **control}
        options, seconds = said.pop("options"), said.pop("seconds")
        async with (
            hostile(scenario, **said) as peer,
            hosting(
                folder,
                [config(peer, seconds=seconds)],
                user=User(),
                **{"limits": WAITING, **options},
            ) as host,
        ):
            return await host.explain(reference)

    return chain


for _code in LISTINGS:
    situation(_code)(listed(_code))


@situation("server-unavailable")
async def _away(folder: Path) -> Explanation:
    server = ServerConfig(LABEL, StdioEndpoint(str(folder / "nothing-here")))
    async with hosting(folder, [server], user=User()) as host:
        return await host.explain(REFUNDS)


@situation("foreign-host")
async def _sent_elsewhere(folder: Path) -> Explanation:
    return await _redirected(folder, "https://elsewhere.example/")


@situation("unsafe-address")
async def _sent_in_the_open(folder: Path) -> Explanation:
    return await _redirected(folder, "http://a.example.net/", "*.example.net:80")


async def _redirected(folder: Path, target: str, *hosts: str) -> Explanation:
    with web_site() as site:
        site.redirect(INDEX, target)
        server = ServerConfig(LABEL, SiteEndpoint(site.url, hosts))
        async with hosting(folder, [server], user=User()) as host:
            return await host.explain(LABEL)


@situation("not-signed-in")
async def _closed(folder: Path) -> Explanation:
    with closed_door() as url:
        async with hosting(folder, [ServerConfig(LABEL, HttpEndpoint(url))], user=User()) as host:
            return await host.explain(LABEL)


@contextmanager
def closed_door() -> Generator[str]:
    """Run a web server that lets nobody in."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        finally:
            server.shutdown()
            thread.join()


@situation("confusable-label")
async def _alike(folder: Path) -> Explanation:
    async with hostile("honest") as one, hostile("honest") as other:
        servers = [config(one, "shop"), config(other, "sh0p")]
        async with hosting(folder, servers, user=User()) as host:
            return await host.explain("sh0p/refunds")


@situation("skill-changed")
async def _changed(folder: Path) -> Explanation:
    async with visiting("honest", folder) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        return await visit.host.explain(REFUNDS)


@situation("similar-name")
async def _nearly_called_so(folder: Path) -> Explanation:
    async with hostile("honest") as one, hostile("neighbour", path="acme/refund5") as other:
        servers = [config(one), config(other, "mall")]
        async with hosting(folder, servers, user=User()) as host:
            await host.refresh()
            return await host.explain("mall/refund5")


@situation("vanished")
async def _gone(folder: Path) -> Explanation:
    async with visiting("neighbour", folder) as visit:
        visit.peer.say(path="acme/returns")
        await visit.host.refresh(force=True)
        return await visit.host.explain(REFUNDS)


@situation("reference-changed")
async def _called_otherwise(folder: Path) -> Explanation:
    root = folder / "skills"
    write_skill(root / "deploy", name="deploy")
    async with hosting(folder, [], user=User(), roots=[LocalRoot(root, "user")]) as host:
        write_skill(root / "deploy", name="ship")
        await host.refresh()
        return await host.explain("deploy")


@situation("nested-skill")
async def _inside(folder: Path) -> Explanation:
    async with visiting("nested", folder, options={"policy": HostPolicy(top_level_only=True)}) as visit:
        return await visit.host.explain(f"{LABEL}/inner")


@situation("missing-dependency")
async def _without_its_tools(folder: Path) -> Explanation:
    async with visiting("primitive", folder, options={"policy": HostPolicy(dynamic="ask")}) as visit:
        return await visit.host.explain(REFUNDS)


@situation("entry-remark")
async def _odd_and_used(folder: Path) -> Explanation:
    with world(folder / "world", "stdio", "legacy", env=environment(folder)) as running:
        uri = "skill://acme/drinks/SKILL.md"
        entry = {**told("tea"), "type": "skill-md", "url": uri, "digest": digest(skill_text("tea"))}
        running.publish({"$schema": SCHEMA, "skills": [entry]})
        server = running.server(dialect=Dialect.INDEX_APRIL)
        async with hosting(folder, [server], user=User()) as host:
            await host.refresh()
            return await host.explain(host.view.skills[0].reference)


class Scanner:
    """A provenance provider that says one thing of everything, or fails."""

    def __init__(self, verdict: ProvenanceVerdict | None) -> None:
        self._verdict = verdict

    async def check(self, subject: Provenance) -> ProvenanceVerdict | None:
        if self._verdict is None:
            raise OSError("the scanner is away")
        return self._verdict


@situation("vetoed")
async def _judged(folder: Path) -> Explanation:
    scanner = Scanner(ProvenanceVerdict("on the list of bad ones", is_veto=True))
    async with visiting("honest", folder, options={"policy": HostPolicy(provenance=scanner)}) as visit:
        return await visit.host.explain(REFUNDS)


@situation("provenance-unknown")
async def _not_judged(folder: Path) -> Explanation:
    async with visiting("honest", folder, options={"policy": HostPolicy(provenance=Scanner(None))}) as visit:
        return await visit.host.explain(REFUNDS)


# What the user decided, and where it is kept


@situation("hidden-until-approved")
async def _unseen(folder: Path) -> Explanation:
    async with visiting("honest", folder, options={"policy": HostPolicy(visible="approved")}) as visit:
        return await visit.host.explain(REFUNDS)


@situation("approval-required")
async def _nobody(folder: Path) -> Explanation:
    async with hostile("honest") as peer, hosting(folder, [config(peer)], user=None) as host:
        return await host.explain(REFUNDS)


@situation("not-in-lock")
async def _frozen(folder: Path) -> Explanation:
    write_lock(folder / "skills.lock", [])
    async with visiting(
        "honest", folder, options={"lock": folder / "skills.lock", "policy": HostPolicy(frozen=True)}
    ) as visit:
        return await visit.host.explain(REFUNDS)


@situation("lock-untrusted")
async def _from_elsewhere(folder: Path) -> Explanation:
    lock = folder / "skills.lock"
    async with hostile("honest") as peer:
        async with hosting(folder / "elsewhere", [config(peer)], user=User(), lock=lock) as host:
            await host.load(REFUNDS)
            await host.write_lock()
        async with hosting(folder / "here", [config(peer)], user=User(), lock=lock) as host:
            return await host.explain(REFUNDS)


@situation("state-tampered")
async def _tampered(folder: Path) -> Explanation:
    async with hostile("honest") as peer:
        async with hosting(folder, [config(peer)], user=User()) as host:
            await host.load(REFUNDS)
        file = storage_in(folder).state / "approvals.json"
        file.write_bytes(file.read_bytes().replace(b"load", b"LOAD"))
        async with hosting(folder, [config(peer)], user=User()) as host:
            return await host.explain(REFUNDS)


@situation("invalid-config")
async def _wrong(folder: Path) -> Explanation:
    path = folder / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"my server": {"url": "nonsense"}}}))
    found = read_servers(path)
    async with hosting(folder, found, user=User()) as host:
        return await host.explain("my-server/refunds")


# What lies in folders


def local(code: str, name: str, write: Callable[[Path], object], *, scope: str = "user") -> None:
    @situation(code)
    async def chain(folder: Path) -> Explanation:
        root = folder / "skills"
        root.mkdir()
        write(root)
        roots = [LocalRoot(root, "project" if scope == "project" else "user")]
        async with hosting(folder, [], user=User(), roots=roots) as host:
            return await host.explain(name)


local(
    "invalid-skill", "deploy", lambda root: write_files(root, {"deploy/SKILL.md": "---\nname: deploy\n---\n"})
)
local("invalid-frontmatter", "deploy", lambda root: write_files(root, {"deploy/SKILL.md": "no frontmatter"}))
local("invalid-uri", "de\x01ploy", lambda root: write_skill(root / "de\x01ploy", name="deploy"))
local("untrusted-folder", "deploy", lambda root: write_skill(root / "deploy"), scope="project")
local(
    "shadowed",
    "deploy",
    lambda root: (write_skill(root / "a" / "deploy"), write_skill(root / "b" / "deploy")),
)


@situation("synced-folder")
async def _synced(folder: Path) -> Explanation:
    root = folder / "skills"
    write_skill(root / "team--refunds")
    skill = SkillId(Origin(OriginKind.SERVER, "team", digest_of(b"")), "skill://refunds/SKILL.md")
    row = SyncedFolder(
        str(root), "team--refunds", str(folder), skill, digest_of(b""), {"SKILL.md": digest_of(b"")}
    )
    storage = storage_in(folder)
    storage.prepare()
    SyncedFolders(storage.state).change(lambda _: SyncRecord(folders={row.key: row}))
    async with hosting(folder, [], user=User(), roots=[LocalRoot(root, "user")]) as host:
        return await host.explain("team--refunds")


@situation("source-unreadable")
async def _too_deep(folder: Path) -> Explanation:
    """A folder whose path is longer than any system call takes cannot be read by anyone."""
    root = folder
    while len(str(root)) < 3_800:
        root = root / ("d" * 200)
    root.mkdir(parents=True)
    inside = os.open(root, os.O_RDONLY)
    try:
        os.mkdir("e" * 250, dir_fd=inside)
        deeper = os.open("e" * 250, os.O_RDONLY, dir_fd=inside)
        os.mkdir("f" * 250, dir_fd=deeper)
        os.close(deeper)
    finally:
        os.close(inside)
    async with hosting(folder, [], user=User(), roots=[LocalRoot(root, "user")]) as host:
        return await host.explain("deploy")


@situation("name-collision")
async def _collision(folder: Path) -> Explanation:
    write_skill(folder / "skills" / "refunds")
    options = {"roots": [LocalRoot(folder / "skills", "user")]}
    async with visiting("honest", folder, options=options) as visit:
        return await visit.host.explain(REFUNDS)


# What happened before, and is explained afterwards by another host of the same user

Deed: TypeAlias = Callable[[Visit], Awaitable[object]]


def afterwards(
    code: str,
    scenario: str,
    deed: Deed,
    *,
    reference: str = REFUNDS,
    reply: Reply = Reply.ALWAYS,
    **more: Any,
) -> None:
    @situation(code)
    async def chain(folder: Path) -> Explanation:
        async with visiting(scenario, folder, user=User(reply), **more) as visit:
            await deed(visit)
            async with hosting(folder, [config(visit.peer)], user=User()) as later:
                return await later.explain(reference)


async def load(visit: Visit) -> object:
    return await refused(visit.host.load(REFUNDS))


async def load_needy(visit: Visit) -> object:
    return await refused(visit.host.load(NEEDY))


def reading(path: str) -> Deed:
    async def deed(visit: Visit) -> None:
        await visit.host.load(REFUNDS)
        await refused(visit.host.read_skill_file(REFUNDS, path))

    return deed


def running(script: str, arguments: dict[str, Any] | None = None, *, times: int = 1) -> Deed:
    """Run a script, or the same one several times at once."""

    async def deed(visit: Visit) -> None:
        await visit.host.load(REFUNDS)
        if times == 1:
            return await _run(visit, script, arguments)
        async with anyio.create_task_group() as group:
            for _ in range(times):
                group.start_soon(_run, visit, script, arguments)

    return deed


async def _run(visit: Visit, script: str, arguments: dict[str, Any] | None) -> None:
    with suppress(SkillError):
        await visit.host.run_script(REFUNDS, script, arguments)


def calling(call: Callable[[Visit], ToolCall]) -> Deed:
    async def deed(visit: Visit) -> None:
        await visit.host.load(REFUNDS)
        visit.host.gate(call(visit))

    return deed


async def unread(visit: Visit) -> object:
    return await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))


async def last_page(visit: Visit) -> object:
    return await refused(visit.host.load(REFUNDS, page=99))


async def change_again(visit: Visit) -> None:
    for version in (1, 2):
        visit.peer.say(version=version)
        await visit.host.refresh(force=True)
        await refused(visit.host.load(REFUNDS))


async def ask_again(visit: Visit) -> None:
    await refused(visit.host.load(REFUNDS))
    await refused(visit.host.load(REPORTS))


async def load_archive(visit: Visit) -> object:
    return await refused(visit.host.load(f"{LABEL}/tar-traversal"))


afterwards("server-error", "rude_errors", load)
afterwards(
    "arguments-needed",
    "primitive",
    load_needy,
    reference=NEEDY,
    options={"policy": HostPolicy(dynamic="ask")},
)
afterwards("size-mismatch", "wrong_length", load, form="shorter")
afterwards("digest-mismatch", "swapped_body", load)
afterwards("frontmatter-mismatch", "frontmatter_lies", load, form="changed")
afterwards("approval-denied", "honest", load, reply=Reply.DENY)
afterwards(
    "keeps-changing",
    "honest",
    change_again,
    reply=Reply.DENY,
    options={"limits": HostLimits(prompts=PromptLimits(contents_per_skill=1))},
)
afterwards(
    "too-many-prompts",
    "honest",
    ask_again,
    reference=REPORTS,
    reply=Reply.DENY,
    options={"limits": HostLimits(prompts=PromptLimits(questions_per_server=1))},
)
afterwards(
    "invalid-archive",
    "hostile_archives",
    load_archive,
    reference=f"{LABEL}/tar-traversal",
    options={"policy": HostPolicy(archives=ArchivePolicy())},
)
afterwards("archive-budget", "packed", load, options={"policy": HostPolicy(archives=ArchivePolicy(budget=0))})
afterwards("unverified-file", "packed", reading("references/policy.md"), form="plain")
afterwards("not-loaded", "honest", unread)
afterwards("unlisted-file", "honest", reading("references/nothing.md"))
afterwards("not-text", "honest", reading("assets/logo.png"))
afterwards("no-such-page", "honest", last_page)
afterwards("execution", "honest", calling(lambda _: ToolCall("Bash", ToolKind.EXECUTE)))
afterwards("writing", "honest", calling(lambda _: ToolCall("Write", ToolKind.WRITE, path="/tmp/x")))
afterwards("network", "honest", calling(lambda _: ToolCall("Fetch", ToolKind.NETWORK)))
afterwards(
    "cross-origin",
    "honest",
    calling(lambda _: ToolCall("read_resource", ToolKind.READ, server="other", uri="skill://x/SKILL.md")),
)
afterwards("scripts-off", "honest", running("check.sh"))
afterwards("script-not-found", "honest", running("nothing.sh"), options={"scripts": Policy(pool=0)})
afterwards(
    "invalid-script-arguments",
    "honest",
    running("check.sh", {"a": "x" * 2**20}),
    options={"scripts": Policy(pool=0)},
)
afterwards(
    "sandbox-unavailable",
    "honest",
    running("check.sh"),
    options={"scripts": Policy(bubblewrap=Path("/nothing/here/bwrap"))},
)
afterwards("script-not-run", "honest", running("check.sh"), options={"scripts": NO_SHELL})
afterwards(
    "runner-busy",
    "honest",
    running("check.sh", times=3),
    options={"scripts": Policy(pool=0, concurrent=1, queue=0)},
)


# The proof


@pytest.mark.requirement("HOST-05")
def test_each_code_has_a_situation_of_its_own_or_a_reason_why_there_is_none() -> None:
    of_commands = {"lock-invalid", "unsafe-place", "untrusted-config"}

    assert SITUATIONS.keys() | NEVER_AT_REST.keys() | of_commands == REFUSALS.keys()
    assert not SITUATIONS.keys() & NEVER_AT_REST.keys()


@pytest.mark.parametrize("code", sorted(SITUATIONS))
async def test_the_chain_names_the_refusal_and_what_to_do(code: str, tmp_path: Path) -> None:
    chain = await SITUATIONS[code](tmp_path)

    assert code in codes(chain), str(chain)
    refusal = next(step.refusal for step in chain.steps if step.refusal and step.refusal.code == code)
    assert refusal.sentence in str(chain)
    assert refusal.remedy in str(chain)


def test_each_code_is_explained_by_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    of_commands = {
        kind.refusal
        for kind in vars(output).values()
        if isinstance(kind, type) and issubclass(kind, SkillError)
    }
    for code in sorted({*REFUSALS, *RULES, *of_commands}):
        assert run(["why", code, "--json"]) == 0
        meaning = json.loads(capsys.readouterr().out)["code"]

        assert meaning["code"] == code
        assert meaning["sentence"].endswith(".") and meaning["remedy"] and meaning["area"]
        if code in REFUSALS:
            assert meaning["sentence"] == REFUSALS[code].sentence
            assert meaning["requirement"] == REFUSALS[code].requirement


@pytest.mark.parametrize("code", ["lock-invalid", "unsafe-place"])
def test_a_host_that_cannot_be_opened_is_explained_by_the_command(
    code: str,
    tmp_path: Path,
    empty_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if code == "lock-invalid":
        (tmp_path / "skills.lock").write_text("nonsense")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(empty_home / ".agents" / "skills"))

    assert run(["why", "shop/refunds", "--json"]) == 1
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["refusal"]["code"] for step in steps] == [code]
