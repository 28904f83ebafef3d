"""A folder as a source: opened, read from its snapshot, never wrong about a byte. Nothing watches here."""

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from folders import manifest_of, move, scan, skill_md, write_files, write_skill
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError, SkillError, SourceError
from skillwire.core.manifest import ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources import Changes, DirectorySource, LiveSource
from skillwire.sources.directory.walk import FolderReader

SECRET = b"outside the skill"
PDF = SkillUri("skill://pdf/SKILL.md")


def folder(root: Path, *, follow_links: bool = False) -> DirectorySource:
    return DirectorySource(root, watch=False, follow_links=follow_links)


def line(entry: SkillEntry, uri: str) -> ManifestFile:
    assert entry.manifest is not None
    return entry.manifest.require(uri)


# Opening


async def test_an_open_source_lists_gets_and_reads_what_is_in_the_folder(root: Path) -> None:
    write_skill(root / "pdf", {"a/b.md": "text"})
    write_skill(root / "xls")

    async with folder(root) as source:
        listed = [entry async for entry in source.list_skills()]

        assert source.snapshot == scan(root)
        assert listed == list(source.snapshot.entries)
        assert await source.get_skill(PDF) == listed[0]
        assert await source.read_file("skill://pdf/a/b.md") == b"text"
        assert isinstance(source, LiveSource)


async def test_a_source_that_is_not_open_says_so(root: Path) -> None:
    write_skill(root / "pdf")
    source = folder(root)

    for use in (
        lambda: source.get_skill(PDF),
        lambda: source.read_file(PDF.text),
        lambda: source.wait_for_change(0),
        lambda: source.refresh(),
    ):
        with pytest.raises(SourceError):
            await use()
    for look in (
        lambda: source.snapshot,
        lambda: source.unsettled,
        lambda: source.start_for("pdf"),
        lambda: source.place_of(PDF),
        lambda: source.modified_at(PDF),
    ):
        with pytest.raises(SourceError):
            look()
    with pytest.raises(SourceError):
        [entry async for entry in source.list_skills()]


@pytest.mark.parametrize("kind", ["missing", "a file", "a dangling link", "below a file", "with a NUL"])
async def test_what_is_no_folder_is_refused_without_giving_its_place_away(root: Path, kind: str) -> None:
    write_files(root, {"file": "x"})
    (root / "dangling").symlink_to("nowhere")
    path = {
        "missing": root / "missing",
        "a file": root / "file",
        "a dangling link": root / "dangling",
        "below a file": root / "file" / "deeper",
        "with a NUL": root / "a\0b",
    }[kind]

    with pytest.raises(SourceError) as caught:
        async with folder(path):
            raise AssertionError("it must not open")

    assert str(root) not in str(caught.value)


async def test_a_root_that_is_a_link_is_followed(root: Path) -> None:
    write_skill(root / "real" / "pdf")
    (root / "link").symlink_to("real")

    async with folder(root / "link") as source:
        assert await source.read_file(PDF.text) == skill_md("pdf")


@pytest.mark.parametrize("prefix", ["acme/tools", "/acme/tools/", "Acme/tools"])
async def test_prefix_and_scheme_go_before_every_path(root: Path, prefix: str) -> None:
    write_skill(root / "pdf")

    async with DirectorySource(root, prefix=prefix, scheme="docs", watch=False) as source:
        assert [entry.uri.text for entry in source.snapshot.entries] == ["docs://acme/tools/pdf/SKILL.md"]
        assert await source.read_file("docs://acme/tools/pdf/SKILL.md") == skill_md("pdf")


async def test_the_index_lies_where_it_is_told_or_nowhere(
    root: Path, tmp_path: Path, empty_home: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")

    async with DirectorySource(root, watch=False, index=False):
        pass
    assert indexes(empty_home) == indexes(tmp_path) == 0
    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache"):
        pass
    assert (indexes(empty_home), indexes(tmp_path)) == (0, 1)
    async with DirectorySource(root, watch=False):
        pass
    assert (indexes(empty_home), indexes(tmp_path)) == (1, 1)


def indexes(folder: Path) -> int:
    return len(list(folder.rglob("*.json")))


async def test_what_was_found_while_open_is_in_the_index_at_the_end(
    root: Path, tmp_path: Path, patient_clock: None
) -> None:
    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache") as source:
        write_skill(root / "pdf")
        await source.refresh()

    (index,) = (tmp_path / "cache").iterdir()
    assert b"pdf" in index.read_bytes()


async def test_a_place_says_where_the_skill_comes_from(root: Path) -> None:
    write_skill(root / "old-pdf", name="pdf")

    async with folder(root) as source:
        assert source.place_of(PDF) == str(root / "old-pdf")


async def test_the_place_of_a_skill_that_is_gone_is_the_folder_of_all(root: Path) -> None:
    async with folder(root) as source:
        assert source.place_of(PDF) == str(root)


async def test_when_a_skill_was_modified_is_known_from_the_scan(root: Path) -> None:
    write_skill(root / "old-pdf", {"0.md": "x", "a.md": "x"}, name="pdf")
    write_skill(root / "old-pdf" / "inner")
    os.utime(root / "old-pdf" / "SKILL.md", ns=(1, 1_700_000_000_500_000_000))
    os.utime(root / "old-pdf" / "inner" / "SKILL.md", ns=(1, 1_600_000_000_000_000_000))

    async with folder(root) as source:
        shutil.rmtree(root)  # Whatever is said now comes from the scan.

        assert source.modified_at(PDF) == 1_700_000_000.5
        assert source.modified_at(SkillUri("skill://pdf/inner/SKILL.md")) == 1_600_000_000.0
        assert source.modified_at(SkillUri.build("none")) is None


async def test_an_edit_shows_in_when_the_skill_was_modified(
    root: Path, tmp_path: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    os.utime(root / "pdf" / "SKILL.md", ns=(1, 1_600_000_000_000_000_000))

    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache") as source:
        assert source.modified_at(PDF) == 1_600_000_000.0
        write_files(root, {"pdf/SKILL.md": skill_md("pdf", body="Edited.\n")})
        os.utime(root / "pdf" / "SKILL.md", ns=(1, 1_700_000_000_000_000_000))
        await source.refresh()
        assert source.modified_at(PDF) == 1_700_000_000.0

    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache") as source:
        assert source.modified_at(PDF) == 1_700_000_000.0


async def test_a_source_that_is_opened_again_goes_on_counting(root: Path) -> None:
    write_skill(root / "pdf")
    source = folder(root)
    async with source:
        first = source.snapshot
    write_skill(root / "xls")

    async with source:
        second = source.snapshot

    assert [entry.name for entry in second.entries] == ["pdf", "xls"]
    assert second.revision > first.revision


@pytest.mark.parametrize("watch", [False, True])
async def test_an_exception_of_the_caller_comes_out_as_it_went_in(root: Path, watch: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        async with DirectorySource(root, watch=watch):
            raise ZeroDivisionError


# Reading


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf/my%20notes/caf%C3%A9.md",
        "SKILL://pdf/my%20notes/caf%c3%a9.md",
        "skill://pdf/%6dy%20notes/café.md",
    ],
)
async def test_a_file_is_read_under_any_spelling_of_its_uri(root: Path, uri: str) -> None:
    write_skill(root / "pdf", {"my notes/café.md": "x"})

    async with folder(root) as source:
        assert await source.read_file(uri) == b"x"


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize(
    "path",
    [
        "pdf/.env",
        "pdf/.git/config",
        "secret.md",
        "pdf/../secret.md",
        "pdf/%2e%2e/secret.md",
        "pdf/..%2fsecret.md",
        "pdf/..%5csecret.md",
        "pdf//SKILL.md",
        "pdf/./SKILL.md",
        "pdf/%2Fetc%2Fpasswd",
        "pdf/skill.md",
        "pdf",
        "pdf/",
        "pdf/sub",
    ],
)
async def test_nothing_but_what_a_manifest_lists_is_read(root: Path, path: str) -> None:
    write_skill(root / "pdf", {".env": SECRET, ".git/config": SECRET, "sub/a.md": "x"})
    write_files(root, {"secret.md": SECRET})

    async with folder(root) as source:
        with pytest.raises(NotFoundError):
            await source.read_file(f"skill://{path}")


async def test_a_link_inside_a_skill_is_read_as_the_file_it_leads_to(root: Path) -> None:
    write_skill(root / "pdf", {"real/a.md": "x"})
    (root / "pdf" / "alias.md").symlink_to("real/a.md")

    async with folder(root) as source:
        entry = await source.get_skill(PDF)
        content = await source.read_file("skill://pdf/alias.md")

    line(entry, "skill://pdf/alias.md").verify(content)
    assert content == b"x"


async def test_a_file_of_a_nested_skill_and_of_a_renamed_one_is_read(root: Path) -> None:
    write_skill(root / "old", {"a.md": "1"}, name="outer")
    write_skill(root / "old" / "inner", {"b.md": "2"})

    async with folder(root) as source:
        assert await source.read_file("skill://outer/a.md") == b"1"
        assert await source.read_file("skill://outer/inner/b.md") == b"2"


async def test_files_of_a_linked_folder_are_read_when_links_are_followed(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf", {"sub/a.md": "x"})
    (tmp_path / "elsewhere" / "pdf" / "alias.md").symlink_to("sub/a.md")
    (root / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")

    async with folder(root, follow_links=True) as source:
        assert await source.read_file("skill://pdf/sub/a.md") == b"x"
        assert await source.read_file("skill://pdf/alias.md") == b"x"


@pytest.mark.requirement("SDK-07")
@pytest.mark.requirement("GET-04")
async def test_a_file_edited_since_the_snapshot_is_served_with_its_new_digest(root: Path) -> None:
    write_skill(root / "pdf", {"a.md": "old"})

    async with folder(root) as source:
        before = source.snapshot
        write_files(root, {"pdf/a.md": "new!"})
        stale = await source.get_skill(PDF)
        content = await source.read_file("skill://pdf/a.md")
        fresh = await source.get_skill(PDF)
        after = source.snapshot

    assert stale == before.get(PDF)
    assert content == b"new!"
    assert line(fresh, "skill://pdf/a.md") == ManifestFile.of("skill://pdf/a.md", b"new!")
    assert after.changes_since(before) == Changes((), (), (PDF.text,))


async def test_an_edit_that_keeps_the_size_is_noticed_by_the_digest(root: Path, patient_clock: None) -> None:
    write_skill(root / "pdf", {"a.md": "old"})

    async with folder(root) as source:
        write_files(root, {"pdf/a.md": "new"})

        assert await source.read_file("skill://pdf/a.md") == b"new"


async def test_a_file_that_has_grown_is_served_whole(root: Path) -> None:
    write_skill(root / "pdf", {"a.md": "short"})

    async with folder(root) as source:
        with (root / "pdf" / "a.md").open("a") as file:
            file.write(" and longer")

        assert await source.read_file("skill://pdf/a.md") == b"short and longer"


def delete_file(skill: Path, outside: Path) -> None:
    (skill / "sub" / "a.md").unlink()


def delete_skill(skill: Path, outside: Path) -> None:
    shutil.rmtree(skill)


def break_the_skill(skill: Path, outside: Path) -> None:
    (skill / "sub" / "a.md").unlink()
    (skill / "SKILL.md").write_bytes(b"broken")


def replace_by_a_fifo(skill: Path, outside: Path) -> None:
    (skill / "sub" / "a.md").unlink()
    os.mkfifo(skill / "sub" / "a.md")


def replace_by_a_folder(skill: Path, outside: Path) -> None:
    (skill / "sub" / "a.md").unlink()
    (skill / "sub" / "a.md").mkdir()


def replace_by_a_link(skill: Path, outside: Path) -> None:
    (skill / "sub" / "a.md").unlink()
    (skill / "sub" / "a.md").symlink_to(outside / "a.md")


def replace_the_folder_by_a_link(skill: Path, outside: Path) -> None:
    shutil.rmtree(skill / "sub")
    (skill / "sub").symlink_to(outside)


def replace_the_skill_by_a_link(skill: Path, outside: Path) -> None:
    shutil.rmtree(skill)
    write_skill(outside / "pdf", {"sub/a.md": SECRET})
    skill.symlink_to(outside / "pdf")


def move_the_skill_behind_a_link(skill: Path, outside: Path) -> None:
    skill.rename(outside / "pdf")
    skill.symlink_to(outside / "pdf")


CHANGES = [
    delete_file,
    delete_skill,
    break_the_skill,
    replace_by_a_fifo,
    replace_by_a_folder,
    replace_by_a_link,
    replace_the_folder_by_a_link,
    replace_the_skill_by_a_link,
    move_the_skill_behind_a_link,
]


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_file_that_is_gone_or_swapped_since_the_snapshot_is_not_served(
    root: Path, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    skill = write_skill(root / "pdf", {"sub/a.md": "inside"})
    write_files(tmp_path, {"outside/a.md": SECRET})

    async with folder(root) as source:
        change(skill, tmp_path / "outside")
        with anyio.fail_after(20), pytest.raises(NotFoundError):
            await source.read_file("skill://pdf/sub/a.md")


@pytest.mark.requirement("SDK-07")
async def test_a_root_that_is_taken_away_says_nothing_of_what_it_held(root: Path, tmp_path: Path) -> None:
    write_skill(root / "pdf", {"sub/a.md": "inside"})

    async with folder(root) as source:
        before = source.snapshot
        move(root, tmp_path / "away")
        with anyio.fail_after(20), pytest.raises(SourceError) as caught:
            await source.read_file("skill://pdf/sub/a.md")
        assert source.snapshot is before
        move(tmp_path / "away", root)

        assert await source.read_file("skill://pdf/sub/a.md") == b"inside"

    assert str(root) not in str(caught.value)


@pytest.mark.requirement("SDK-07")
async def test_bytes_that_changed_behind_their_times_are_served_as_they_are_now(
    root: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf", {"a.md": "one"})
    write_skill(root / "pdf" / "inner", {"b.md": "one"})
    path = root / "pdf" / "a.md"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:3] = (
            b"two"  # From here on the page is writable, and writing to it leaves no trace in the times.
        )
        before = path.stat()
        async with folder(root) as source:
            memory[:3] = b"six"
            assert path.stat() == before

            content = await source.read_file("skill://pdf/a.md")

            assert content == b"six"
            line(await source.get_skill(PDF), "skill://pdf/a.md").verify(content)


async def test_a_linked_skill_that_is_turned_elsewhere_is_served_as_what_it_is_now(
    root: Path, tmp_path: Path
) -> None:
    write_skill(tmp_path / "one" / "pdf", {"a.md": "one"})
    write_skill(tmp_path / "two" / "pdf", {"a.md": "two, and more"})
    (root / "pdf").symlink_to(tmp_path / "one" / "pdf")

    async with folder(root, follow_links=True) as source:
        (root / "pdf").unlink()
        (root / "pdf").symlink_to(tmp_path / "two" / "pdf")
        content = await source.read_file("skill://pdf/a.md")
        entry = await source.get_skill(PDF)

    assert content == b"two, and more"
    assert entry.manifest == manifest_of(tmp_path / "two" / "pdf", PDF.text)


@pytest.mark.requirement("SDK-07")
async def test_a_file_that_changes_at_every_look_is_refused_in_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf", {"a.md": "0"})

    async with folder(root) as source:
        number = 0
        scan_again = source.refresh

        async def change_and_scan(places: object = None) -> object:
            nonlocal number
            await scan_again()
            number += 1
            write_files(root, {"pdf/a.md": "x" * number})
            return source.snapshot

        monkeypatch.setattr(source, "refresh", change_and_scan)
        write_files(root, {"pdf/a.md": "changed"})
        with anyio.fail_after(20), pytest.raises(SourceError) as caught:
            await source.read_file("skill://pdf/a.md")

    assert str(root) not in str(caught.value)


async def test_a_wrong_digest_in_the_index_does_not_make_a_file_unreadable(
    root: Path, tmp_path: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache") as source:
        right = line(await source.get_skill(PDF), PDF.text).digest
    (index,) = (tmp_path / "cache").iterdir()
    index.write_bytes(index.read_bytes().replace(right.encode(), b"sha256:" + b"0" * 64))

    async with DirectorySource(root, watch=False, cache_dir=tmp_path / "cache") as source:
        assert await source.read_file(PDF.text) == skill_md("pdf")
        assert line(await source.get_skill(PDF), PDF.text).digest == right


@pytest.mark.requirement("SDK-07")
async def test_a_skill_that_is_being_written_at_the_start_is_waited_for_a_little(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf", {"a.md": "half"})
    read = FolderReader.read

    def read_and_change(
        reader: FolderReader, where: str, name: str, size: int
    ) -> tuple[bytes, os.stat_result]:
        if name == "a.md" and size == len("half"):
            write_files(root, {"pdf/a.md": "all of it"})
        return read(reader, where, name, size)

    monkeypatch.setattr(FolderReader, "read", read_and_change)

    async with folder(root) as source:
        assert source.snapshot.reports == ()
        assert source.unsettled == frozenset()
        assert await source.read_file("skill://pdf/a.md") == b"all of it"


async def test_a_skill_that_is_written_all_the_time_does_not_keep_the_others_from_being_served(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf")
    write_skill(root / "busy", {"log.md": "x"})
    read = FolderReader.read

    def read_and_change(
        reader: FolderReader, where: str, name: str, size: int
    ) -> tuple[bytes, os.stat_result]:
        if name == "log.md":
            write_files(root, {"busy/log.md": "x" * (size + 1)})
        return read(reader, where, name, size)

    monkeypatch.setattr(FolderReader, "read", read_and_change)

    with anyio.fail_after(20):
        async with folder(root) as source:
            assert [entry.name for entry in source.snapshot.entries] == ["pdf"]
            assert [(report.place, report.findings[0].code) for report in source.snapshot.reports] == [
                ("busy", "unsettled")
            ]
            assert source.unsettled == {"busy"}


# Refreshing


@pytest.mark.requirement("SDK-07")
async def test_a_refresh_publishes_one_new_snapshot_and_wakes_who_waits(root: Path) -> None:
    write_skill(root / "pdf")

    async with folder(root) as source:
        first = source.snapshot
        write_skill(root / "xls")
        write_files(root, {"pdf/a.md": "x"})
        woken: list[int] = []

        async def wait() -> None:
            woken.append((await source.wait_for_change(first.revision)).revision)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                group.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                await source.refresh()

        second = source.snapshot
        assert woken == [second.revision] * 2
        assert second.changes_since(first) == Changes(("skill://xls/SKILL.md",), (), (PDF.text,))
        assert (len(first.entries), len(second.entries)) == (1, 2)


async def test_a_refresh_that_finds_nothing_new_publishes_nothing(root: Path, patient_clock: None) -> None:
    write_skill(root / "pdf")

    async with folder(root) as source:
        first = source.snapshot
        (root / "unrelated.txt").touch()

        assert await source.refresh() is first
        assert await source.refresh(["pdf"]) is first


async def test_a_refresh_of_some_places_leaves_the_others_alone(root: Path) -> None:
    write_skill(root / "pdf")
    write_skill(root / "xls")

    async with folder(root) as source:
        first = source.snapshot
        write_files(root, {"pdf/a.md": "x", "xls/a.md": "x"})

        second = await source.refresh(["xls/a.md"])

        assert second.changes_since(first) == Changes((), (), ("skill://xls/SKILL.md",))


async def test_when_the_folder_is_gone_the_snapshot_stays_as_it_was(root: Path) -> None:
    write_skill(root / "pdf")

    async with folder(root) as source:
        first = source.snapshot
        shutil.rmtree(root)

        with pytest.raises(SourceError) as caught:
            await source.refresh()

        assert source.snapshot is first
        assert str(root) not in str(caught.value)


async def test_many_readers_at_once_are_served_while_files_change(root: Path) -> None:
    names = [f"{number}.md" for number in range(20)]
    write_skill(root / "pdf", {name: "old" for name in names})
    read: dict[str, bytes] = {}

    async with folder(root) as source:
        write_files(root, {f"pdf/{name}": "new!" for name in names})

        async def read_one(name: str) -> None:
            read[name] = await source.read_file(f"skill://pdf/{name}")

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(read_one, name)

    assert read == dict.fromkeys(names, b"new!")


async def test_every_failure_is_one_of_our_own(root: Path) -> None:
    write_skill(root / "pdf", {"a.md": "x"})

    async with folder(root) as source:
        shutil.rmtree(root)
        write_files(root.parent, {"skills": "a file now"})
        for uri in ("skill://pdf/a.md", "skill://pdf/SKILL.md", "skill://none/SKILL.md", "\ud800"):
            with pytest.raises(SkillError):
                await source.read_file(uri)


# Reading at once


def lines(source: DirectorySource) -> list[tuple[SkillEntry, ManifestFile]]:
    return [
        (entry, file) for entry in source.snapshot.entries if entry.manifest for file in entry.manifest.files
    ]


async def test_what_is_read_at_once_is_what_is_read_otherwise(root: Path) -> None:
    write_skill(root / "pdf", {"a b/é%.md": "text", "deep/er/x.bin": bytes(range(256)), "inner/f.md": "f"})
    write_skill(root / "pdf" / "inner")
    write_skill(root)
    (root / "pdf" / "link.md").symlink_to("deep/er/x.bin")

    async with folder(root) as source:
        found = {file.uri: source.read_now(entry, file) for entry, file in lines(source)}
        assert found == {uri: await source.read_file(uri) for uri in found}


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("follow_links", [True, False])
async def test_what_is_not_as_published_is_never_read_at_once(root: Path, follow_links: bool) -> None:
    files = {f"{name}/f.md": b"same" for name in ("edited", "longer", "gone", "linked", "folder", "special")}
    write_skill(root / "pdf", files)
    outside = root.parent / "outside"
    write_files(outside, {"f.md": b"same"})

    async with folder(root, follow_links=follow_links) as source:
        pdf = root / "pdf"
        (pdf / "edited" / "f.md").write_bytes(b"SAME")
        (pdf / "longer" / "f.md").write_bytes(b"same and more")
        (pdf / "gone" / "f.md").unlink()
        (pdf / "linked" / "f.md").unlink()
        (pdf / "linked" / "f.md").symlink_to(outside / "f.md")
        shutil.rmtree(pdf / "folder")
        (pdf / "folder").symlink_to(outside)
        (pdf / "special" / "f.md").unlink()
        os.mkfifo(pdf / "special" / "f.md")

        found = {file.uri: source.read_now(entry, file) for entry, file in lines(source)}

    assert {uri for uri, content in found.items() if content is not None} <= {PDF.text}
