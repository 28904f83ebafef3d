"""Scripts and servers that write where the host keeps things. The numbers are those of the threat model."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from hostile.catalog import SCRIPT, digest
from hostile.hosting import (
    BODY_URI,
    REFUNDS,
    REPORTS,
    ROOT,
    User,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.integrity import MARK
from hostile.persistence import SETUP
from hostile.running import WIRES, Peer, hostile
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.registry.local import default_roots
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

BASH = ToolCall("Bash", ToolKind.EXECUTE)
CHECK = ToolCall(
    "run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/check.sh", script_digest=digest(SCRIPT)
)
REWRITTEN = ("approvals", "no-seal", "own-seal", "approvals-link")


async def run_setup(host: Host) -> bytes:
    """Run the skill's script as a careless agent would: the user agreed, and there is no sandbox."""
    script = await host.request_scripts(REFUNDS, SETUP)
    await run(script)
    return script


async def run(script: bytes) -> None:
    words = [sys.executable, "-c", script.decode()]
    await anyio.to_thread.run_sync(lambda: subprocess.run(words, check=True, timeout=30))


def paths(folder: Path) -> dict[str, str]:
    """Return where a script finds what it is after; a folder of its own is made for it."""
    (folder / "aside").mkdir(exist_ok=True)
    kept = storage_in(folder)
    named = {
        "state": kept.state,
        "cache": kept.cache,
        "aside": folder / "aside",
        "project": folder / "project",
    }
    return {name: str(path) for name, path in named.items()}


def codes(host: Host) -> list[str]:
    return [refusal.code for refusal in host.problems]


@pytest.mark.parametrize(("transport", "era"), [("stdio", "modern"), ("http", "legacy")])
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("CACHE-02")
async def test_nothing_a_user_granted_opens_the_hosts_own_files_under_any_name(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 49."""
    kept, lock = storage_in(tmp_path), tmp_path / "skills.lock"
    options = {"lock": lock}
    async with visiting(
        "persists",
        tmp_path,
        transport=transport,
        era=era,
        options=options,
        form="bytes",
        paths=paths(tmp_path),
    ) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.request_scripts(REFUNDS, SETUP)
        granted = await visit.host.request_allowed_tools(REFUNDS)
        await visit.host.write_lock()
        # Made while the host runs, as a tool could.
        (tmp_path / "to-state").symlink_to(kept.state)
        (tmp_path / "to-link").symlink_to(tmp_path / "to-state")
        (tmp_path / "notes.txt").symlink_to(kept.state / "approvals.json")
        (tmp_path / "to-lock").symlink_to(lock)
        cached = next(path for path in kept.cache.rglob("*") if len(path.name) == 64 and path.is_file())
        private = [
            kept.state,
            kept.cache,
            kept.state / "key",
            kept.state / "approvals.json",
            kept.state / "not-there-yet",
            kept.audit,
            cached,
            cached.parent / "planted",
            tmp_path / "to-state" / "key",
            tmp_path / "to-link" / "approvals.json",
            tmp_path / "notes.txt",
            kept.cache / ".." / "state" / "key",
            tmp_path / "no" / ".." / "CACHE" / "x",
            tmp_path / "STATE" / "Approvals.JSON",
            Path(str(kept.state).upper()) / "KEY",
        ]
        protected = [
            lock,
            tmp_path / "to-lock",
            tmp_path / "Skills.LOCK",
            tmp_path / "state" / ".." / lock.name,
        ]
        agents = [visit.host, visit.host.child()]
        asked = len(visit.user.questions)
        found = {
            (agent.gate(call).verdict, (await agent.authorise(call)).verdict, agent.gate(call).code)
            for agent in agents
            for name in ("Write", "Bash", "Look")
            for kind in (*ToolKind, None)
            for path in (*private, *(protected if kind is not ToolKind.READ else ()))
            for call in [ToolCall(name, kind, path=str(path))]
        }
        looks = [
            visit.host.gate(ToolCall("Look", ToolKind.READ, path=str(path))).verdict for path in protected
        ]

        assert granted == ("Bash", "Write")
        assert (
            visit.host.gate(ToolCall("Write", ToolKind.WRITE, path=str(tmp_path / "x"))).verdict
            is Verdict.ALLOW
        )
        assert found == {(Verdict.DENY, Verdict.DENY, "protected-place")}
        assert looks == [Verdict.ALLOW] * len(protected)
        assert len(visit.user.questions) == asked


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-06")
async def test_writing_instructions_skills_or_servers_for_later_needs_the_users_yes(tmp_path: Path) -> None:
    """Attack 49."""
    project = tmp_path / "project"
    targets = (
        "AGENTS.md",
        "CLAUDE.md",
        ".mcp.json",
        ".agents/skills/helper/SKILL.md",
        ".git/hooks/pre-commit",
    )
    async with visiting(
        "persists", tmp_path, options={"project": project}, form="planted", paths=paths(tmp_path)
    ) as visit:
        await visit.host.load(REFUNDS)
        visit.user.will(Reply.DENY)
        calls = [ToolCall("Edit", ToolKind.WRITE, path=str(project / target)) for target in targets]
        found = [(visit.host.gate(call), await visit.host.authorise(call)) for call in calls]

        assert {(before.verdict, before.code, after.verdict) for before, after in found} == {
            (Verdict.ASK, "writing", Verdict.DENY)
        }
        assert [question.call for question in visit.user.questions[1:]] == [
            visit.host.gate(call).call.describe() for call in calls
        ]


@asynccontextmanager
async def after_setup(
    peer: Peer, folder: Path, user: User, *, restarts: bool, **options: Any
) -> AsyncGenerator[Host]:
    """Let the script run in a host, and give that host or the next one; from then on the user says no."""
    async with hosting(folder, [config(peer)], user=user, **options) as host:
        await host.load(REFUNDS)
        await run_setup(host)
        user.will(Reply.DENY)
        if not restarts:
            yield host
            return
    async with hosting(folder, [config(peer)], user=user, **options) as host:
        yield host


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("form", ["bytes", "hard-links", "folder-link"])
@pytest.mark.requirement("CACHE-02")
@pytest.mark.requirement("CACHE-03")
async def test_a_script_that_rewrites_the_cache_gains_nothing_by_it(
    form: str, restarts: bool, tmp_path: Path
) -> None:
    """Attack 49."""
    user = User()
    async with (
        hostile("persists", transport="http", form=form, paths=paths(tmp_path)) as peer,
        after_setup(peer, tmp_path, user, restarts=restarts) as host,
    ):
        touched = [*tampered_with(tmp_path), *(tmp_path / "aside").iterdir()]
        asked = len(user.questions)
        host.close(REFUNDS)
        loaded = await host.load(REFUNDS)
        script = await host.request_scripts(REFUNDS, SETUP)
        found = list(storage_in(tmp_path).cache.rglob("*"))

        assert touched, "the script did nothing"
        assert f"Run {SETUP} once." in loaded.text and MARK not in loaded.text
        assert script.startswith(b"import json")
        # Not even true bytes are taken from where something else could change them.
        assert peer.reads() == [BODY_URI, f"{ROOT}/{SETUP}"] * 2
        assert tampered_with(tmp_path) == []
        assert not any(path.is_symlink() or (path.is_file() and path.stat().st_nlink > 1) for path in found)
        assert len(user.questions) == asked


def tampered_with(folder: Path) -> list[Path]:
    """Return the files of the cache that a script has put its words into."""
    files = [path for path in storage_in(folder).cache.rglob("*") if path.is_file()]
    return [path for path in files if path.read_bytes().startswith(MARK.encode()[:8])]


@pytest.mark.parametrize(
    ("form", "restarts"),
    [
        *((form, restarts) for form in REWRITTEN for restarts in (False, True)),
        # A running host knows what the user said, and does not look for the key.
        ("new-key", True),
    ],
)
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("SEC-10")
async def test_a_script_that_rewrites_the_approvals_ends_them(
    form: str, restarts: bool, tmp_path: Path
) -> None:
    """Attack 49."""
    user = User()
    async with (
        hostile("persists", transport="http", form=form, paths=paths(tmp_path)) as peer,
        after_setup(peer, tmp_path, user, restarts=restarts) as host,
    ):
        asked = len(user.questions)
        if not restarts:
            file = await refused(host.read_skill_file(REFUNDS, "scripts/check.sh"))
            assert file.refusal == "not-approved"
            assert [host.gate(call).verdict for call in (BASH, CHECK)] == [Verdict.ASK] * 2

        assert await both_loads(host) == ["approval-denied"] * 2
        assert "state-tampered" in codes(host) and host.approvals == ()
        assert len(user.questions) == asked + 2
        assert peer.reads() == [BODY_URI, f"{ROOT}/{SETUP}"]


async def both_loads(host: Host) -> list[str]:
    """Return the codes with which loads of both skills are refused."""
    return [(await refused(host.load(reference))).refusal for reference in (REFUNDS, REPORTS)]


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.requirement("APPR-01")
async def test_with_a_key_that_is_kept_elsewhere_no_script_can_make_a_seal(
    restarts: bool, tmp_path: Path
) -> None:
    """Attack 49."""
    storage = replace(storage_in(tmp_path), state_key=b"kept by the embedder, in a vault")
    async with (
        hostile("persists", form="own-key", paths=paths(tmp_path)) as peer,
        after_setup(peer, tmp_path, User(), restarts=restarts, storage=storage) as host,
    ):
        assert await both_loads(host) == ["approval-denied"] * 2
        assert "state-tampered" in codes(host)


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-02")
async def test_a_script_cannot_bring_back_what_the_user_took_back(tmp_path: Path) -> None:
    """Attack 49."""
    user = User()
    async with (
        hostile("persists", era="legacy", form="older-copy", paths=paths(tmp_path)) as peer,
        hosting(tmp_path, [config(peer)], user=user) as host,
    ):
        await host.load(REFUNDS)
        script = await run_setup(host)
        await host.revoke(REFUNDS)
        await run(script)
        user.will(Reply.DENY)
        before = len(user.questions)
        error = await refused(host.load(REFUNDS))

        assert error.refusal == "approval-denied" and len(user.questions) == before + 1
        assert "state-tampered" in codes(host) and host.approvals == ()


@everywhere
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("INT-02")
async def test_a_server_that_writes_to_the_hosts_files_while_it_is_asked_is_not_believed_either(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 49."""
    async with visiting(
        "persists", tmp_path, transport=transport, era=era, form="approvals", paths=paths(tmp_path)
    ) as visit:
        visit.peer.say(at="resources/read")
        during = await refused(visit.host.load(REFUNDS))
        opened = visit.host.loaded
        visit.peer.say(at=None)
        loaded = await visit.host.load(REFUNDS)
        visit.peer.say(at="skills/list", form="bytes")
        await visit.host.refresh(force=True)
        changed = tampered_with(tmp_path)
        visit.peer.say(at=None)
        visit.host.close(REFUNDS)
        again = await visit.host.load(REFUNDS)

        assert during.refusal in ("skill-changed", "approval-required") and opened == ()
        assert visit.user.occasions[:2] == [Occasion.FIRST, Occasion.FIRST]
        assert "state-tampered" in codes(visit.host)
        assert changed and MARK not in loaded.text + again.text


@pytest.mark.requirement("FS-04")
@pytest.mark.requirement("SEC-16")
async def test_what_a_script_leaves_in_a_project_is_not_taken_up_by_the_host(tmp_path: Path) -> None:
    """Attack 49."""
    project = tmp_path / "project"
    project.mkdir()
    options: dict[str, Any] = {"project": project, "roots": default_roots(project)}
    async with hostile("persists", form="planted", paths=paths(tmp_path)) as peer:
        async with hosting(tmp_path, [config(peer)], user=User(), **options) as host:
            await host.load(REFUNDS)
            await run_setup(host)
        async with hosting(tmp_path, [config(peer)], user=User(), **options) as host:
            found = [skill.reference for skill in host.view.skills]
            error = await refused(host.load("helper"))
            loaded = await host.load(REFUNDS)

    assert MARK in (project / "AGENTS.md").read_text("utf-8")
    assert found == [REFUNDS, REPORTS]
    assert error.refusal in ("unknown-reference", "untrusted-folder")
    assert MARK not in loaded.text and MARK not in str(error)
