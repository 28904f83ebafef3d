"""A real folder that really changes: what is watched, what is served meanwhile, and what nobody may read."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
import watchfiles

from folders import (
    codes,
    delete,
    held_back,
    link,
    manifest_of,
    move,
    scan,
    skill_md,
    uris,
    write_files,
    write_skill,
)
from skillwire.core.errors import SkillError, SourceError
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources import Changes, CombinedSource, DirectorySource, MemorySource, Snapshot
from skillwire.sources.directory import watch

PDF = "skill://pdf/SKILL.md"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_skill(folder / "pdf", {"a.md": "old"})
    return folder


@asynccontextmanager
async def watched(root: Path) -> AsyncGenerator[DirectorySource]:
    """Open a source and wait until its watch is in place, as a change before that tells."""
    write_skill(root / "watch-me")
    with anyio.fail_after(50):
        async with DirectorySource(root) as source:
            shutil.rmtree(root / "watch-me")
            await until(source, lambda snapshot: "skill://watch-me/SKILL.md" not in uris(snapshot))
            yield source


async def until(source: DirectorySource, ready: Callable[[Snapshot], bool]) -> Snapshot:
    """Return the first snapshot that is as it should be, and fail if none comes."""
    with anyio.fail_after(20):
        while not ready(source.snapshot):
            await source.wait_for_change(source.snapshot.revision)
    return source.snapshot


def manifest_in(snapshot: Snapshot, uri: str) -> Manifest | None:
    entry = snapshot.by_uri.get(uri)
    return entry.manifest if entry else None


def publishes(folder: Path, uri: str = PDF) -> Callable[[Snapshot], bool]:
    """Tell whether a snapshot has the skill at `uri` as it is in `folder` now."""
    expected = manifest_of(folder, uri)
    return lambda snapshot: manifest_in(snapshot, uri) == expected


# What is noticed


@pytest.mark.requirement("SDK-07")
@pytest.mark.requirement("GET-04")
async def test_an_edit_is_noticed(root: Path) -> None:
    async with watched(root) as source:
        before = source.snapshot
        write_files(root, {"pdf/a.md": "new!"})

        after = await until(source, publishes(root / "pdf"))

        assert after.changes_since(before) == Changes((), (), (PDF,))
        assert await source.get_skill(SkillUri(PDF)) == after.by_uri[PDF]
        assert await source.read_file("skill://pdf/a.md") == b"new!"


async def test_added_and_removed_files_are_noticed(root: Path) -> None:
    async with watched(root) as source:
        write_files(root, {"pdf/deep/down/b.md": "x"})
        await until(source, publishes(root / "pdf"))
        delete(root / "pdf" / "a.md")
        await until(source, publishes(root / "pdf"))
        shutil.rmtree(root / "pdf" / "deep")
        await until(source, publishes(root / "pdf"))


async def test_a_new_skill_copied_in_is_noticed_whole(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "xls", {f"{number}/{number}.md": "x" for number in range(50)})

    async with watched(root) as source:
        shutil.copytree(tmp_path / "xls", root / "group" / "xls")
        uri = "skill://group/xls/SKILL.md"

        after = await until(source, lambda snapshot: uri in uris(snapshot))

        assert publishes(tmp_path / "xls", uri)(after)


async def test_a_removed_skill_is_noticed(root: Path) -> None:
    async with watched(root) as source:
        shutil.rmtree(root / "pdf")

        after = await until(source, lambda snapshot: not snapshot.entries)

        assert after.reports == ()


async def test_a_renamed_folder_is_noticed_and_watched_under_its_new_name(root: Path) -> None:
    write_skill(root / "group" / "xls", {"a.md": "1"})

    async with watched(root) as source:
        move(root / "group", root / "team")
        await until(source, publishes(root / "team" / "xls", "skill://team/xls/SKILL.md"))
        assert "skill://group/xls/SKILL.md" not in uris(source.snapshot)
        write_files(root, {"team/xls/a.md": "2"})

        await until(source, publishes(root / "team" / "xls", "skill://team/xls/SKILL.md"))


async def test_an_edit_in_a_folder_made_after_the_watch_began_is_noticed(root: Path) -> None:
    async with watched(root) as source:
        write_skill(root / "new" / "group" / "xls", {"deep/a.md": "1"})
        folder, uri = root / "new" / "group" / "xls", "skill://new/group/xls/SKILL.md"
        await until(source, publishes(folder, uri))
        write_files(root, {"new/group/xls/deep/a.md": "2"})

        await until(source, publishes(folder, uri))


async def test_a_broken_skill_is_published_once_it_is_mended_and_set_aside_when_it_breaks(root: Path) -> None:
    write_files(root, {"xls/SKILL.md": "no frontmatter"})

    async with watched(root) as source:
        assert held_back(source.snapshot) == {"xls": ["frontmatter-missing"]}
        write_files(root, {"xls/SKILL.md": skill_md("xls")})
        await until(source, lambda snapshot: "skill://xls/SKILL.md" in uris(snapshot))
        assert source.snapshot.reports == ()
        os.mkfifo(root / "xls" / "pipe")
        await until(source, lambda snapshot: held_back(snapshot) == {"xls": ["special-file"]})
        delete(root / "xls" / "pipe")
        await until(source, lambda snapshot: "skill://xls/SKILL.md" in uris(snapshot))


async def test_a_file_replaced_as_editors_do_it_is_noticed(root: Path) -> None:
    async with watched(root) as source:
        write_files(root, {"pdf/.a.md.swp": "new!"})
        move(root / "pdf" / ".a.md.swp", root / "pdf" / "a.md")

        await until(source, publishes(root / "pdf"))


async def test_changes_in_hidden_folders_are_not_noticed(root: Path) -> None:
    async with watched(root) as source:
        before = source.snapshot
        for number in range(10):
            write_files(root, {f".git/{number}/x": "x", f"pdf/.cache/{number}": "x"})
            write_skill(root / ".hidden" / f"s{number}")
        write_skill(root / "xls")

        after = await until(source, lambda snapshot: "skill://xls/SKILL.md" in uris(snapshot))

        assert after.revision == before.revision + 1
        assert after.changes_since(before) == Changes(("skill://xls/SKILL.md",), (), ())


async def test_a_rewrite_with_the_same_bytes_is_no_new_snapshot(root: Path) -> None:
    async with watched(root) as source:
        before = source.snapshot
        for _ in range(5):
            write_files(root, {"pdf/a.md": "old"})
        write_skill(root / "xls")

        after = await until(source, lambda snapshot: "skill://xls/SKILL.md" in uris(snapshot))

        assert after.changes_since(before) == Changes(("skill://xls/SKILL.md",), (), ())
        assert after.by_uri[PDF] is before.by_uri[PDF]


@pytest.mark.requirement("SDK-07")
async def test_a_burst_of_changes_becomes_a_few_snapshots(root: Path) -> None:
    async with watched(root) as source:
        before = source.snapshot
        for number in range(200):
            write_skill(root / "many" / f"s{number}", {"a.md": "x"})

        after = await until(source, lambda snapshot: len(snapshot.entries) == 201)

        assert after.revision - before.revision <= 20
        assert (after.entries, after.reports) == (scan(root).entries, ())


@pytest.mark.requirement("SDK-07")
async def test_a_skill_written_slowly_is_published_when_it_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 1.0)
    parts = [skill_md("slow"), b"Step one.\n", b"Step two.\n", b"Step three.\n"]
    published: list[Manifest] = []

    async with watched(root) as source, anyio.create_task_group() as group:

        async def follow() -> None:
            while True:
                snapshot = await source.wait_for_change(source.snapshot.revision)
                manifest = manifest_in(snapshot, "skill://slow/SKILL.md")
                if manifest is not None:
                    published.append(manifest)

        group.start_soon(follow)
        (root / "slow").mkdir()
        with (root / "slow" / "SKILL.md").open("wb", buffering=0) as file:
            for part in parts:
                file.write(part)
                # Shorter than it takes to settle; a writer who pauses for longer seems to be done.
                await anyio.sleep(0.2)

        await until(source, publishes(root / "slow", "skill://slow/SKILL.md"))
        group.cancel_scope.cancel()

    assert published == [manifest_of(root / "slow", "skill://slow/SKILL.md")]


async def test_a_root_that_is_deleted_and_made_again_is_watched_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)

    async with watched(root) as source:
        shutil.rmtree(root)
        write_skill(root / "xls")
        await until(source, lambda snapshot: uris(snapshot) == ["skill://xls/SKILL.md"])
        write_files(root, {"xls/a.md": "x"})

        await until(source, publishes(root / "xls", "skill://xls/SKILL.md"))


async def test_a_root_that_is_swapped_for_another_is_watched_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)
    write_skill(tmp_path / "next" / "xls")

    async with watched(root) as source:
        move(root, tmp_path / "previous")
        move(tmp_path / "next", root)
        await until(source, lambda snapshot: uris(snapshot) == ["skill://xls/SKILL.md"])
        write_files(root, {"xls/a.md": "x"})

        await until(source, publishes(root / "xls", "skill://xls/SKILL.md"))


async def test_what_was_written_before_the_watch_was_in_place_is_found(root: Path) -> None:
    with anyio.fail_after(50):
        async with DirectorySource(root) as source:
            write_files(root, {"pdf/a.md": "written at once"})

            await until(source, publishes(root / "pdf"))


async def test_a_name_that_is_not_utf8_does_not_end_the_watch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)

    async with watched(root) as source:
        odd = root / os.fsdecode(b"pdf/caf\xe9.md")
        write_files(root, {str(odd): "x"})
        await until(source, lambda snapshot: held_back(snapshot) == {"pdf": ["unusable-path"]})
        delete(odd)
        await until(source, publishes(root / "pdf"))
        write_files(root, {"pdf/a.md": "later"})

        await until(source, publishes(root / "pdf"))


async def test_a_root_whose_own_name_is_not_utf8_is_kept_up_to_date_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)
    root = tmp_path / os.fsdecode(b"caf\xe9")
    write_skill(root / "pdf", {"a.md": "old"})

    with anyio.fail_after(50):
        async with DirectorySource(root) as source:
            write_files(root, {"pdf/a.md": "new!"})

            await until(source, publishes(root / "pdf"))


async def test_a_linked_folder_that_is_not_followed_is_left_alone_when_it_changes(
    root: Path, tmp_path: Path
) -> None:
    write_skill(tmp_path / "elsewhere" / "xls")

    async with watched(root) as source:
        link(root / "linked", tmp_path / "elsewhere")
        link(root / "xls", tmp_path / "elsewhere" / "xls")
        write_files(tmp_path, {"elsewhere/xls/a.md": "x"})
        write_files(root, {"pdf/a.md": "and then this"})
        await until(source, publishes(root / "pdf"))
        await source.refresh()

        assert uris(source.snapshot) == [PDF]
        assert codes(source.snapshot) == {"linked": ["linked-folder"], "xls": ["linked-folder"]}
        assert source.unsettled == frozenset()


async def test_where_watching_is_impossible_the_folder_is_looked_at_from_time_to_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_paths: object, **_options: object) -> Iterator[set[tuple[watchfiles.Change, str]]]:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", refuse)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)

    with anyio.fail_after(50):
        async with DirectorySource(root) as source:
            for text in ("one", "two", "three"):
                write_files(root, {"pdf/a.md": text})
                await until(source, publishes(root / "pdf"))


async def test_a_catalog_follows_its_folders(root: Path) -> None:
    with anyio.fail_after(50):
        async with CombinedSource([DirectorySource(root), MemorySource()]) as catalog:
            before = catalog.snapshot
            write_files(root, {"pdf/a.md": "new!"})

            after = await catalog.wait_for_change(before.revision)

            assert after.changes_since(before) == Changes((), (), (PDF,))
            assert await catalog.read_file("skill://pdf/a.md") == b"new!"


async def test_a_source_that_is_open_already_takes_part_in_a_catalog_and_stays_open(root: Path) -> None:
    async with watched(root) as source:
        async with CombinedSource([source]) as catalog:
            before = catalog.snapshot
            write_files(root, {"pdf/a.md": "new!"})
            after = await catalog.wait_for_change(before.revision)
            assert after.changes_since(before) == Changes((), (), (PDF,))
        write_files(root, {"pdf/a.md": "newer still"})

        await until(source, publishes(root / "pdf"))


# Ending


async def test_nothing_is_left_behind(root: Path) -> None:
    async def use() -> None:
        async with watched(root) as source:
            await source.read_file("skill://pdf/a.md")

    await use()
    threads, descriptors, tasks = threading.active_count(), open_descriptors(), len(anyio.get_running_tasks())

    for _ in range(3):
        await use()
        async with DirectorySource(root):
            pass  # Closed before the watch is in place.

    assert len(anyio.get_running_tasks()) == tasks
    with anyio.fail_after(20):
        # The thread behind the events closes its descriptors in its own time.
        while open_descriptors() > descriptors or threading.active_count() > threads:  # noqa: ASYNC110
            await anyio.sleep(0.01)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# What is served while it changes


class Recording(DirectorySource):
    """A source that remembers every snapshot it has published."""

    def __init__(self, root: Path, *, watch: bool) -> None:
        super().__init__(root, watch=watch)
        self.published: dict[int, Snapshot] = {}

    async def refresh(self, places: Iterable[str] | None = None) -> Snapshot:
        snapshot = await super().refresh(places)
        self.published[snapshot.revision] = snapshot
        return snapshot


@contextmanager
def in_the_background(work: Callable[[int], None]) -> Generator[None]:
    """Do something over and over in a thread, with a number that grows."""
    done = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for number in itertools.count():
                if done.is_set():
                    return
                work(number)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert failures == []


def complete(number: int) -> bytes:
    return b"%d begins\n" % number + b"x" * (number % 7 * 1000) + b"\n%d ends\n" % number


@pytest.mark.requirement("SDK-07")
@pytest.mark.parametrize("watching", [False, True])
async def test_bytes_and_digests_agree_while_files_are_rewritten_all_the_time(
    root: Path, watching: bool
) -> None:
    write_files(root, {"pdf/replaced.md": complete(0), "pdf/overwritten.md": complete(0)})
    write_skill(root / "pdf" / "inner", {"replaced.md": complete(0)})

    def rewrite(number: int) -> None:
        for path in ("pdf/replaced.md", "pdf/inner/replaced.md"):
            write_files(root, {"pdf/.next": complete(number)})
            (root / "pdf" / ".next").replace(root / path)
        write_files(root, {"pdf/overwritten.md": complete(number)})

    answers: list[tuple[str, bytes, range]] = []
    refusals = 0

    source = Recording(root, watch=watching)
    async with source:

        async def read(path: str, deadline: float) -> None:
            nonlocal refusals
            while anyio.current_time() < deadline:
                first = source.snapshot.revision
                try:
                    content = await source.read_file(f"skill://pdf/{path}")
                except SourceError:
                    refusals += 1
                    continue
                answers.append((path, content, range(first, source.snapshot.revision + 1)))

        with anyio.fail_after(50), in_the_background(rewrite):
            async with anyio.create_task_group() as group:
                for path in ("replaced.md", "overwritten.md", "inner/replaced.md", "a.md"):
                    for _ in range(3):
                        group.start_soon(read, path, anyio.current_time() + 2)

    published = source.published
    for path, content, revisions in answers:
        lines = {
            line
            for revision in revisions
            if revision in published
            for entry in published[revision].entries
            if entry.manifest is not None and (line := entry.manifest.find(f"skill://pdf/{path}")) is not None
        }
        assert ManifestFile.of(f"skill://pdf/{path}", content) in lines
        if path.endswith("replaced.md"):
            assert content == complete(int(content.split()[0]))
    for snapshot in published.values():
        assert_agreement(snapshot)
    assert {path for path, _, _ in answers} >= {"a.md"}
    assert len(answers) > refusals


def assert_agreement(snapshot: Snapshot) -> None:
    """All entries of a snapshot that list a file promise the same bytes for it."""
    promised: dict[str, ManifestFile] = {}
    for entry in snapshot.entries:
        for line in entry.manifest.files if entry.manifest else ():
            assert promised.setdefault(line.uri, line) == line


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("follow_links", [False, True])
async def test_nothing_from_outside_is_read_while_folders_turn_into_links_and_back(
    root: Path, tmp_path: Path, follow_links: bool
) -> None:
    write_files(root, {"pdf/sub/a.md": "inside"})
    write_files(tmp_path, {"outside/a.md": "SECRET"})
    folder, kept = root / "pdf" / "sub", tmp_path / "kept"

    def swap(number: int) -> None:
        if number % 2:
            folder.unlink()
            kept.rename(folder)
        else:
            folder.rename(kept)
            folder.symlink_to(tmp_path / "outside")

    read: set[bytes] = set()

    async with DirectorySource(root, watch=False, follow_links=follow_links) as source:
        with anyio.fail_after(50), in_the_background(swap):
            deadline = anyio.current_time() + 2
            while anyio.current_time() < deadline:
                try:
                    read.add(await source.read_file("skill://pdf/sub/a.md"))
                except SkillError:
                    await source.refresh()

    assert read <= {b"inside"}


@pytest.mark.requirement("SDK-07")
async def test_snapshots_stay_whole_while_skills_come_and_go(root: Path) -> None:
    def churn(number: int) -> None:
        folder = root / "churn" / f"s{number % 5}"
        shutil.rmtree(folder, ignore_errors=True)
        write_skill(folder, {f"{file}.md": str(number) for file in range(5)})

    async with DirectorySource(root, watch=False) as source:
        with anyio.fail_after(50), in_the_background(churn):
            deadline = anyio.current_time() + 2
            while anyio.current_time() < deadline:
                snapshot = await source.refresh()
                assert manifest_in(snapshot, PDF) == manifest_of(root / "pdf", PDF)
        last = await source.refresh()
        while source.unsettled:
            last = await source.refresh()

        assert (last.entries, last.reports) == (scan(root).entries, ())


# Permissions


LOOK = """
import json, os, sys
from pathlib import Path
import anyio
from skillwire.core import SkillError
from skillwire.sources import DirectorySource

async def look(root, forbidden):
    async with DirectorySource(root, watch=False, index=False) as source:
        snapshot = source.snapshot
        if forbidden:
            Path(forbidden).chmod(0o000)
        try:
            read = (await source.read_file("skill://good/a.md")).decode()
        except SkillError as error:
            read = type(error).__name__
        return {
            "uris": [entry.uri.text for entry in snapshot.entries],
            "reports": {
                report.place: [[found.code, found.file] for found in report.findings]
                for report in snapshot.reports
            },
            "read": read,
        }

async def main(root, forbidden=""):
    if os.getuid() == 0:
        await look(root, "")  # So that nothing is left to import, which may be forbidden soon.
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        return await look(root, forbidden)
    except SkillError as error:
        return {"error": [type(error).__name__, str(error)]}

print(json.dumps(anyio.run(main, *sys.argv[1:])))
"""


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A folder that every user can reach, unlike those pytest makes."""
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        yield Path(temporary)


def look_without_privileges(root: Path, *arguments: str) -> dict[str, object]:
    """Open the folder in a process that may not read what its permissions forbid, which root may."""
    if os.getuid() == 0:
        for directory, _, names in os.walk(root):
            for path in (directory, *(os.path.join(directory, name) for name in names)):  # noqa: PTH118
                os.chown(path, 65534, 65534, follow_symlinks=False)
    result = subprocess.run(
        [sys.executable, "-c", LOOK, str(root), *arguments],
        capture_output=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


def test_what_may_not_be_read_sets_only_its_own_skill_aside(open_root: Path) -> None:
    write_skill(open_root / "good", {"a.md": "fine"})
    for name in ("file", "skill-file", "subfolder", "folder"):
        write_skill(open_root / name, {"sub/a.md": "x"})
    write_skill(open_root / "group" / "hidden")
    forbidden = ["file/sub/a.md", "skill-file/SKILL.md", "subfolder/sub", "folder", "group"]
    for path in forbidden:
        (open_root / path).chmod(0o000)

    seen = look_without_privileges(open_root)

    for path in forbidden:
        (open_root / path).chmod(0o700)
    assert seen == {
        "uris": ["skill://good/SKILL.md"],
        "reports": {
            "file": [["unreadable", "sub/a.md"]],
            "folder": [["unreadable", ""]],
            "group": [["unreadable", ""]],
            "skill-file": [["unreadable", "SKILL.md"]],
            "subfolder": [["unreadable", "sub"]],
        },
        "read": "fine",
    }


def test_a_folder_that_may_be_listed_and_not_entered_sets_its_skill_aside(open_root: Path) -> None:
    write_skill(open_root / "good", {"a.md": "fine"})
    write_skill(open_root / "listed", {"sub/a.md": "x"})
    (open_root / "listed" / "sub").chmod(0o400)

    seen = look_without_privileges(open_root)

    (open_root / "listed" / "sub").chmod(0o700)
    assert seen["uris"] == ["skill://good/SKILL.md"]
    assert seen["reports"] == {"listed": [["unreadable", "sub/a.md"]]}


@pytest.mark.parametrize("place", ["", "inner"])
def test_a_root_that_may_not_be_read_is_refused_without_giving_its_place_away(
    open_root: Path, place: str
) -> None:
    write_skill(open_root / "skills" / "inner" / "pdf")
    (open_root / "skills").chmod(0o000)

    seen = look_without_privileges(open_root / "skills" / place)

    (open_root / "skills").chmod(0o700)
    assert list(seen) == ["error"]
    assert "SourceError" in str(seen)
    assert str(open_root) not in str(seen)


@pytest.mark.parametrize("path", ["good/a.md", "good"])
def test_a_file_whose_permission_is_taken_away_is_no_longer_served(open_root: Path, path: str) -> None:
    write_skill(open_root / "good", {"a.md": "fine"})

    seen = look_without_privileges(open_root, str(open_root / path))

    (open_root / path).chmod(0o700)
    assert seen["read"] == "NotFoundError"


async def test_a_hundred_thousand_folders_around_a_skill_are_survived(root: Path) -> None:
    for number in range(100):
        for inner in range(1000):
            (root / f"group-{number}" / f"folder-{inner}").mkdir(parents=inner == 0)
    write_skill(root / "group-50" / "folder-500" / "xls")

    with anyio.fail_after(60):
        async with DirectorySource(root, watch=False) as source:
            assert uris(source.snapshot) == ["skill://group-50/folder-500/xls/SKILL.md", PDF]
