"""Runs an operation again and again, killing it before each thing it does to the disk.

    python crashing.py FOLDER OPERATION…

For every operation one line of JSON: how often it was killed, which states a
fresh process found afterwards, and what was wrong. The first line says what
came of several processes at once. Processes are forks of this one, which has
loaded everything and touched nothing.
"""

import gc
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from approving import FILES, approval, entry, manifest, origin, skill_id
from skillwire.bridge.folders import FolderChanges, opened_target
from skillwire.core.manifest import ManifestFile, digest_of
from skillwire.host.approval.lock import lock_bytes, read_lock, write_lock
from skillwire.host.approval.lock_trust import LockState, LockTrust
from skillwire.host.approval.store import APPROVALS_FILE, ApprovalStore
from skillwire.host.approval.synced import SyncedFolder, SyncedFolders
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import ArchiveKey, ContentCache, UnpackedArchives
from skillwire.server.wellknown.folder import INDEX, SiteFolder
from skillwire.wire.wellknown import ArtifactType, SiteEntry, write_index

CALLS = "chmod fchmod fsync link mkdir open rename replace rmdir symlink truncate unlink utime write".split()
MOST_STEPS = 400
CHANGED = {**FILES, "SKILL.md": b"Changed.\n"}
CONTENT = bytes(range(256)) * 40
CACHED = ManifestFile.of("skill://acme/refunds/data.bin", CONTENT)
LINES = 20
WORKERS = 4
GRANTS = 10

Act = Callable[[Path], None]


@dataclass(frozen=True)
class Operation:
    """What to do, on which ground, and how to tell what came of it: `old`, `new`, or what is wrong."""

    prepare: Act
    act: Act
    look: Callable[[Path], str]


@dataclass
class Outcome:
    kills: int = 0
    states: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[str] = field(default_factory=list[str])


def nothing(_: Path) -> None:
    pass


def granted(*names: str) -> Act:
    def act(folder: Path) -> None:
        for name in names:
            ApprovalStore(folder / "state").grant(approval(name))

    return act


def holds(old: list[str], new: list[str]) -> Callable[[Path], str]:
    """Tell which skills are approved, and that nothing looks tampered with."""

    def look(folder: Path) -> str:
        store = ApprovalStore(folder / "state")
        if store.is_tampered:
            return f"tampered: {store.tampering}"
        found = dict(store.approvals())
        for names, state in ((new, "new"), (old, "old")):
            if found == {skill_id(name): approval(name) for name in names}:
                return state
        return f"approvals of {sorted(skill.uri for skill in found)}"

    return look


def ended(folder: Path) -> str:
    state = holds(["refunds", "billing"], ["billing"])(folder)
    ended = ApprovalStore(folder / "state").previous(skill_id())
    previous = None if ended is None else ended.manifest
    return state if previous == (manifest() if state == "new" else None) else f"{state} with {previous}"


def with_lock(folder: Path) -> None:
    LockTrust(folder / "state").write(folder / "skills.lock", [approval()])


def with_foreign_lock(folder: Path) -> None:
    with_lock(folder)
    write_lock(folder / "skills.lock", [approval("billing")])


def lock_is(*wanted: LockState) -> Callable[[Path], str]:
    """Tell which approvals the lock holds, and that it is as trusted as it should be."""

    def look(folder: Path) -> str:
        state = LockTrust(folder / "state").state(folder / "skills.lock")
        if state not in wanted:
            return f"the lock is {state}"
        if state is LockState.ABSENT:
            return "old"
        lock = read_lock(folder / "skills.lock")
        states = {
            lock_bytes([approval()]): "old" if LockState.ABSENT not in wanted else "new",
            lock_bytes([approval(), approval("billing")]): "new",
        }
        return states.get(lock.content, "the lock is neither the old nor the new")

    return look


def write_in_place(folder: Path) -> None:
    descriptor = os.open(folder / "skills.lock", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, lock_bytes([approval(), approval("billing")]))
    os.close(descriptor)


def trusted(folder: Path) -> str:
    state = LockTrust(folder / "state").state(folder / "skills.lock")
    return {LockState.CHANGED: "old", LockState.TRUSTED: "new"}.get(state, f"the lock is {state}")


def put(folder: Path) -> None:
    assert ContentCache(folder / "cache").put(origin(), CACHED, CONTENT)


def put_another(folder: Path) -> None:
    assert ContentCache(folder / "cache").put(origin("umbrella"), CACHED, CONTENT)


def cached(folder: Path) -> str:
    found = ContentCache(folder / "cache").get(origin(), CACHED)
    return "old" if found is None else "new" if found == CONTENT else "other bytes"


def forgotten(folder: Path) -> str:
    cache = ContentCache(folder / "cache")
    if cache.get(origin("umbrella"), CACHED) != CONTENT:
        return "another server's file is gone"
    return {"old": "new", "new": "old"}.get(cached(folder), "other bytes")


TREE = ArchiveKey(origin(), "skill://acme/refunds.tar.gz", digest_of(CONTENT))
LEAVES = {digest_of(leaf): leaf for leaf in (b"one", b"two" * 1000, b"")}


def plant(folder: Path) -> None:
    assert UnpackedArchives(folder / "trees").put(TREE, CONTENT, LEAVES)


def plant_another(folder: Path) -> None:
    assert UnpackedArchives(folder / "trees").put(replace(TREE, origin=origin("umbrella")), CONTENT, LEAVES)


def planted(folder: Path) -> str:
    """Tell whether a tree is there, and that it is all there."""
    trees = UnpackedArchives(folder / "trees")
    found = [
        trees.read(TREE, ManifestFile("leaf", digest, len(leaf))) == leaf for digest, leaf in LEAVES.items()
    ]
    if trees.archive(TREE, len(CONTENT)) is None:
        return "old" if not any(found) else "files without their archive"
    return "new" if all(found) else "half a tree"


def cleared(folder: Path) -> str:
    if (
        UnpackedArchives(folder / "trees").archive(replace(TREE, origin=origin("umbrella")), len(CONTENT))
        != CONTENT
    ):
        return "another server's tree is gone"
    return {"old": "new", "new": "old"}.get(planted(folder), planted(folder))


def forge(folder: Path) -> None:
    granted("refunds")(folder)
    path = folder / "state" / APPROVALS_FILE
    path.write_bytes(path.read_bytes().replace(b'["load"]', b'["scripts"]'))


def notice(folder: Path) -> None:
    ApprovalStore(folder / "state").find(skill_id())


def nothing_approved(folder: Path) -> str:
    evidence = [path for path in (folder / "state").iterdir() if b'["scripts"]' in path.read_bytes()]
    if len(evidence) != 1:
        return f"{len(evidence)} copies of the forged file"
    state = "old" if evidence[0].name == APPROVALS_FILE else "new"
    return state if ApprovalStore(folder / "state").find(skill_id()) is None else "approved"


def many_events(folder: Path) -> None:
    log = AuditLog(folder / "state" / "audit.jsonl", max_bytes=10_000)
    for number in range(LINES):
        log.record("read", number=number)


def rotate(folder: Path) -> None:
    AuditLog(folder / "state" / "audit.jsonl", max_bytes=10).record("read", number=LINES)


def no_event_lost(folder: Path) -> str:
    files = sorted((folder / "state").glob("audit.jsonl*"), reverse=True)
    lines = [line for file in files for line in file.read_text().split("\n")[:-1]]
    numbers = [json.loads(line)["number"] for line in lines]
    wanted = list(range(LINES))
    if numbers[:LINES] != wanted:
        return f"events {numbers}"
    return "new" if LINES in numbers else "old"


def site(*contents: bytes) -> Act:
    """Write a web site of skills with these contents, and remove artifacts of earlier ones."""

    def act(folder: Path) -> None:
        with SiteFolder(folder / "site") as written:
            paths = [artifact_path(content) for content in contents]
            for path, content in zip(paths, contents, strict=True):
                if not written.has(path):
                    written.add(path, content)
            written.publish(site_index(*contents))
            for name in written.other_artifacts(paths):
                written.remove(name)

    return act


def artifact_path(content: bytes) -> str:
    return f"{digest_of(content).removeprefix('sha256:')}/SKILL.md"


def site_index(*contents: bytes) -> bytes:
    return write_index(
        SiteEntry(f"s{number}", ArtifactType.SKILL_MD, "Use.", artifact_path(content), digest_of(content))
        for number, content in enumerate(contents)
    )


def site_is(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> Callable[[Path], str]:
    """Tell which site a web server would serve, and that all of it is there."""

    def look(folder: Path) -> str:
        home = SiteFolder(folder / "site").home
        index = (home / INDEX).read_bytes() if (home / INDEX).exists() else None
        for contents, state in ((new, "new"), (old, "old")):
            if index == (site_index(*contents) if contents else None):
                is_whole = all((home / artifact_path(one)).read_bytes() == one for one in contents)
                return state if is_whole else f"half of the {state} site"
        return "another index"

    return look


SYNCED = {"SKILL.md": b"---\nname: refunds\n---\n", "references/policy.md": b"Within 30 days.\n" * 50}
RENEWED = {**SYNCED, "SKILL.md": b"---\nname: refunds\n---\n\nChanged.\n", "more/notes.md": b"New.\n"}
NAME = "acme--refunds"


def sync_to(files: dict[str, bytes] | None) -> Act:
    """Finish what was interrupted, then write one folder with these files, or remove it."""

    def act(folder: Path) -> None:
        target, store = folder / "project" / "skills", SyncedFolders(folder / "state")
        changes = FolderChanges(store)
        before = changes.recover().folders.get((str(target), NAME))
        with opened_target(target, folder, make=True) as above:
            assert above is not None
            if files is None:
                if before is not None:
                    changes.remove(above, before)
                return
            digests = {path: digest_of(content) for path, content in files.items()}
            after = SyncedFolder(str(target), NAME, str(folder), skill_id(), digest_of(b""), digests)
            changes.write(above, before, after, files)

    return act


def synced_is(old: dict[str, bytes] | None, new: dict[str, bytes] | None) -> Callable[[Path], str]:
    """Tell which folder an agent would find, and that all of it is there."""

    def look(folder: Path) -> str:
        place = folder / "project" / "skills" / NAME
        paths = [path for path in place.rglob("*") if path.is_file()] if place.exists() else None
        found = None if paths is None else {str(path.relative_to(place)): path.read_bytes() for path in paths}
        for files, state in ((new, "new"), (old, "old")):
            if found == files:
                return state
        return f"a folder with {sorted(found or {})}"

    return look


def synced_alone(look: Callable[[Path], str]) -> Callable[[Path], str]:
    """Tell the same, and once it is the new state, that nothing temporary is left beside it."""

    def both(folder: Path) -> str:
        state = look(folder)
        changes = SyncedFolders(folder / "state").read().changes
        left = [path.name for path in (folder / "project" / "skills").glob(".*")] if not changes else []
        return f"{state}, and {left}" if left else state

    return both


OPERATIONS = {
    "first-sync": Operation(nothing, sync_to(SYNCED), synced_alone(synced_is(None, SYNCED))),
    "sync": Operation(sync_to(SYNCED), sync_to(RENEWED), synced_alone(synced_is(SYNCED, RENEWED))),
    "unsync": Operation(sync_to(SYNCED), sync_to(None), synced_alone(synced_is(SYNCED, None))),
    "first-grant": Operation(nothing, granted("refunds"), holds([], ["refunds"])),
    "grant": Operation(granted("refunds"), granted("billing"), holds(["refunds"], ["refunds", "billing"])),
    "revoke": Operation(
        granted("refunds", "billing"),
        lambda folder: void(ApprovalStore(folder / "state").revoke(skill_id())),
        holds(["refunds", "billing"], ["billing"]),
    ),
    "observe": Operation(
        granted("refunds", "billing"),
        lambda folder: void(ApprovalStore(folder / "state").observe(skill_id(), entry(files=CHANGED))),
        ended,
    ),
    "first-lock": Operation(nothing, with_lock, lock_is(LockState.ABSENT, LockState.TRUSTED)),
    "lock": Operation(
        with_lock,
        lambda folder: void(
            LockTrust(folder / "state").write(folder / "skills.lock", [approval(), approval("billing")])
        ),
        lock_is(LockState.TRUSTED),
    ),
    "write-lock": Operation(
        with_lock,
        lambda folder: void(write_lock(folder / "skills.lock", [approval(), approval("billing")])),
        lock_is(LockState.TRUSTED, LockState.CHANGED),
    ),
    "trust": Operation(
        with_foreign_lock,
        lambda folder: LockTrust(folder / "state").trust(
            folder / "skills.lock", lock_bytes([approval("billing")])
        ),
        trusted,
    ),
    "first-put": Operation(nothing, put, cached),
    "put": Operation(put_another, put, cached),
    "forget": Operation(
        lambda folder: (put(folder), put_another(folder))[0],
        lambda folder: void(ContentCache(folder / "cache").forget_label("acme")),
        forgotten,
    ),
    "first-tree": Operation(nothing, plant, planted),
    "tree": Operation(plant_another, plant, planted),
    "forget-tree": Operation(
        lambda folder: (plant(folder), plant_another(folder))[0],
        lambda folder: void(UnpackedArchives(folder / "trees").forget_label("acme")),
        cleared,
    ),
    "set-aside": Operation(forge, notice, nothing_approved),
    "rotate": Operation(many_events, rotate, no_event_lost),
    "first-publish": Operation(nothing, site(b"one", b"two"), site_is((), (b"one", b"two"))),
    "publish": Operation(
        site(b"one", b"two"), site(b"two", b"three"), site_is((b"one", b"two"), (b"two", b"three"))
    ),
    # Done wrong on purpose: what finds nothing here would find nothing anywhere.
    "in-place": Operation(with_lock, write_in_place, lock_is(LockState.TRUSTED, LockState.CHANGED)),
}


def void(_: object) -> None:
    """Drop what an operation returns."""


def die_at(fatal: int) -> None:
    """Make the `fatal`-th thing this process does to the disk its last; a write may be cut in half."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return count == fatal

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if step():
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "write" and step():
                real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def forked(work: Callable[[], str]) -> tuple[int, str]:
    """Do something in another process; return how that ended, and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            said = work()
            status = 0
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[-4000:])
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def try_all(operation: Operation, folder: Path) -> Outcome:
    """Kill an operation before each of its steps, until it has no more."""
    outcome, work, template = Outcome(), folder / "work", folder / "template"
    work.mkdir(parents=True)
    status, said = forked(lambda: (operation.prepare(work), "")[1])
    assert status == 0, said
    work.rename(template)
    for fatal in range(1, MOST_STEPS):
        # The same path each time: trust is bound to it.
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work, symlinks=True)
        status, said = forked(lambda fatal=fatal: (die_at(fatal), operation.act(work), "")[2])
        if status == 0:
            return outcome
        if status != -signal.SIGKILL:
            outcome.problems.append(f"step {fatal}: {said}")
            continue
        outcome.kills += 1
        status, said = forked(lambda: "\n".join(look_and_repeat(operation, work)))
        state, *rest = said.split("\n") if status == 0 else [said]
        outcome.states[state] = outcome.states.get(state, 0) + 1
        if rest != ["new"]:
            outcome.problems.append(f"again after step {fatal}: {rest or said}")
        if left := [path.name for path in (work / "state").glob(".skillwire-*")]:
            outcome.problems.append(f"left after step {fatal}: {left}")
    outcome.problems.append("it never ended")
    return outcome


def look_and_repeat(operation: Operation, folder: Path) -> tuple[str, str]:
    """Say what is found after a crash, and what once the operation was repeated."""
    found = operation.look(folder)
    operation.act(folder)
    return found, operation.look(folder)


def work_together(folder: Path) -> list[str]:
    """Let several processes approve at once, each its own skills; return the names that are approved then."""
    children: list[int] = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                granted(*(f"skill-{worker}-{number}" for number in range(GRANTS)))(folder)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * WORKERS
    store = ApprovalStore(folder / "state")
    assert not store.is_tampered
    return sorted(skill.uri.split("/")[3] for skill in store.approvals())


if __name__ == "__main__":
    gc.freeze()
    place = Path(sys.argv[1])
    (place / "together").mkdir()
    sys.stdout.write(json.dumps({"operation": "together", "names": work_together(place / "together")}) + "\n")
    for chosen in sys.argv[2:]:
        found = try_all(OPERATIONS[chosen], place / chosen)
        sys.stdout.write(json.dumps({"operation": chosen, **asdict(found)}) + "\n")
