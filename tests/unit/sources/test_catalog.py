"""Catalogs: several sources as one, in any order, and no source ever in front of another."""

import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import write_files, write_skill
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import DuplicateSkillError, InvalidSkillError, NotFoundError, SourceError
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_TOTAL_SIZE, Manifest, ManifestFile
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.sources import (
    CombinedSource,
    DirectorySource,
    DynamicSkill,
    LiveSource,
    MemorySource,
    Report,
    Snapshot,
    Source,
)
from skillwire.sources import combined as catalog_module
from skillwire.sources.combined import MergedSnapshots, merge, merge_changes
from talking import PlainSource, skill


def live(path: str) -> DynamicSkill:
    name = path.rpartition("/")[2]
    return DynamicSkill(name, path=path, description=f"Use when testing {name}.", body=lambda: "Now.\n")


async def next_change(catalog: CombinedSource, revision: int) -> Snapshot:
    with anyio.fail_after(10):
        return await catalog.wait_for_change(revision)


async def contents(catalog: CombinedSource) -> dict[str, bytes]:
    """Read every file of every skill the catalog lists."""
    return {
        file.uri: await catalog.read_file(file.uri)
        for entry in catalog.snapshot.entries
        if entry.manifest is not None
        for file in entry.manifest.files
    }


# Several as one


async def test_all_skills_are_listed_sorted_and_read_from_where_they_are(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "m", {"a.md": "from a folder"})
    memory = MemorySource([skill("z").with_reference("a.md", "from memory"), live("b")])
    plain = PlainSource(skill("a").with_reference("a.md", "from a stranger"))

    async with CombinedSource([DirectorySource(tmp_path / "skills", watch=False), memory, plain]) as catalog:
        listed = [entry async for entry in catalog.list_skills()]

        assert [entry.name for entry in listed] == ["a", "b", "m", "z"]
        assert [await catalog.get_skill(entry.uri) for entry in listed] == listed
        assert await catalog.read_file("skill://m/a.md") == b"from a folder"
        assert await catalog.read_file("skill://z/a.md") == b"from memory"
        assert await catalog.read_file("skill://a/%61.md") == b"from a stranger"
        assert (await catalog.read_file("skill://b/SKILL.md")).endswith(b"Now.\n")
        assert isinstance(catalog, LiveSource)


@pytest.mark.parametrize(
    "uri", ["skill://none/SKILL.md", "skill://a/none.md", "skill://a/../a/SKILL.md", "nonsense"]
)
async def test_what_no_source_has_is_not_found(uri: str) -> None:
    async with CombinedSource([MemorySource([skill("a")]), PlainSource(skill("b"))]) as catalog:
        with pytest.raises(NotFoundError):
            await catalog.read_file(uri)
        with pytest.raises(NotFoundError):
            await catalog.get_skill(SkillUri.build("none"))


async def test_a_catalog_without_sources_is_empty() -> None:
    async with CombinedSource([]) as catalog:
        assert catalog.snapshot == Snapshot.of(())


async def test_a_catalog_may_be_part_of_another() -> None:
    memory = MemorySource([skill("a")])

    async with CombinedSource([CombinedSource([memory]), MemorySource([skill("b")])]) as catalog:
        before = catalog.snapshot
        memory.add(skill("c"))
        after = await next_change(catalog, before.revision)

    assert [entry.name for entry in after.entries] == ["a", "b", "c"]


async def test_a_catalog_that_is_not_open_says_so() -> None:
    catalog = CombinedSource([MemorySource([skill("a")])])

    with pytest.raises(SourceError):
        _ = catalog.snapshot
    with pytest.raises(SourceError):
        await catalog.read_file("skill://a/SKILL.md")
    with pytest.raises(SourceError):
        await catalog.wait_for_change(0)


class Door(MemorySource):
    """A source that must be opened and closed, and notes when it is."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__([skill(name)])
        self._name = name
        self._notes = notes

    async def __aenter__(self) -> "Door":
        self._notes.append(f"open {self._name}")
        return self

    async def __aexit__(self, *_trouble: object) -> None:
        self._notes.append(f"close {self._name}")


async def test_sources_are_opened_and_closed_with_the_catalog() -> None:
    notes: list[str] = []

    async with CombinedSource([Door("a", notes), MemorySource(), Door("b", notes)]):
        notes.append("use")

    assert notes[2] == "use"
    assert sorted(notes[:2]) == ["open a", "open b"]
    assert sorted(notes[3:]) == ["close a", "close b"]


class Meeting(MemorySource):
    """A source that is open once as many of them as `expected` are being opened."""

    def __init__(self, name: str, expected: int, arrived: list[str], complete: anyio.Event) -> None:
        super().__init__([skill(name)])
        self._name = name
        self._expected = expected
        self._arrived = arrived
        self._complete = complete

    async def __aenter__(self) -> "Meeting":
        self._arrived.append(self._name)
        if len(self._arrived) == self._expected:
            self._complete.set()
        await self._complete.wait()
        return self

    async def __aexit__(self, *_trouble: object) -> None:
        self._arrived.remove(self._name)


async def test_sources_are_opened_at_the_same_time() -> None:
    arrived: list[str] = []
    complete = anyio.Event()

    with anyio.fail_after(30):
        async with CombinedSource([Meeting(name, 3, arrived, complete) for name in "abc"]) as catalog:
            names = [entry.name for entry in catalog.snapshot.entries]

    assert names == ["a", "b", "c"]
    assert arrived == []


async def test_a_source_that_cannot_be_opened_is_reported_while_others_are_still_opening(
    tmp_path: Path,
) -> None:
    never = Meeting("a", 2, [], anyio.Event())

    with anyio.fail_after(30), pytest.raises(SourceError):
        async with CombinedSource([never, DirectorySource(tmp_path / "missing")]):
            raise AssertionError("it must not open")


async def test_when_one_source_cannot_be_opened_the_others_are_closed_again(tmp_path: Path) -> None:
    notes: list[str] = []
    catalog = CombinedSource([Door("a", notes), DirectorySource(tmp_path / "missing"), Door("b", notes)])

    with pytest.raises(SourceError):
        async with catalog:
            raise AssertionError("it must not open")

    assert notes.count("open a") == notes.count("close a") and notes.count("open b") == notes.count("close b")
    with pytest.raises(SourceError):
        _ = catalog.snapshot


async def test_when_two_sources_clash_all_are_closed_again() -> None:
    notes: list[str] = []

    with pytest.raises(DuplicateSkillError):
        async with CombinedSource([Door("a", notes), Door("a", notes)]):
            raise AssertionError("it must not open")

    assert notes == ["open a", "open a", "close a", "close a"]


async def test_an_exception_of_the_caller_comes_out_as_it_went_in() -> None:
    with pytest.raises(ZeroDivisionError):
        async with CombinedSource([CombinedSource([MemorySource([skill("a")])])]):
            raise ZeroDivisionError


async def test_changes_of_every_source_are_followed(tmp_path: Path) -> None:
    first, second = MemorySource([skill("a")]), MemorySource([skill("b")])

    async with CombinedSource([first, second]) as catalog:
        start = catalog.snapshot
        second.add(skill("c"))
        one = await next_change(catalog, start.revision)
        first.remove(SkillUri.build("a"))
        two = await next_change(catalog, one.revision)

        assert one.changes_since(start).added == ("skill://c/SKILL.md",)
        assert two.changes_since(one).removed == ("skill://a/SKILL.md",)
        assert [entry.name for entry in start.entries] == ["a", "b"]


async def test_a_source_that_stops_telling_of_changes_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(MemorySource):
        async def wait_for_change(self, revision: int) -> Snapshot:
            raise ConnectionError("gone")

    good = MemorySource([skill("b")])

    with caplog.at_level(logging.ERROR):
        async with CombinedSource([Failing([skill("a")]), good]) as catalog:
            revision = catalog.snapshot.revision
            good.add(skill("c"))
            after = await next_change(catalog, revision)

    assert [entry.name for entry in after.entries] == ["a", "b", "c"]
    assert len(caplog.records) == 1


# Strangers' sources


async def test_what_a_plain_source_has_changed_is_served_after_a_refresh() -> None:
    plain = PlainSource(skill("a"))

    async with CombinedSource([plain]) as catalog:
        plain.skills.append(skill("b"))
        assert [entry.name for entry in catalog.snapshot.entries] == ["a"]

        after = await catalog.refresh()

        assert [entry.name for entry in after.entries] == ["a", "b"]


async def test_a_file_that_changed_in_a_plain_source_is_served_with_its_new_digest() -> None:
    plain = PlainSource(skill("a").with_reference("x.md", "old"))

    async with CombinedSource([plain]) as catalog:
        plain.skills = [skill("a").with_reference("x.md", "new!")]
        content = await catalog.read_file("skill://a/x.md")
        entry = await catalog.get_skill(SkillUri.build("a"))

    assert content == b"new!"
    assert entry.manifest is not None
    assert entry.manifest.require("skill://a/x.md") == ManifestFile.of("skill://a/x.md", b"new!")


@pytest.mark.requirement("SDK-07")
async def test_a_plain_source_that_never_serves_what_it_lists_is_refused() -> None:
    class Lying(PlainSource):
        async def read_file(self, uri: str) -> bytes:
            return b"something else"

    async with CombinedSource([Lying(skill("a"))]) as catalog:
        with pytest.raises(SourceError):
            await catalog.read_file("skill://a/SKILL.md")


async def test_a_plain_source_is_asked_under_its_own_spelling() -> None:
    asked: list[str] = []

    class Particular(PlainSource):
        async def list_skills(self) -> AsyncIterator[SkillEntry]:
            async for entry in super().list_skills():
                assert entry.manifest is not None
                spelled = [
                    ManifestFile(file.uri, file.digest, file.size, file.uri.replace("a", "%61"))
                    for file in entry.manifest.files
                ]
                yield SkillEntry(entry.uri, entry.frontmatter, Manifest.of(spelled))

        async def read_file(self, uri: str) -> bytes:
            asked.append(uri)
            return await super().read_file(uri)

    async with CombinedSource([Particular(skill("b").with_reference("a.md", "x"))]) as catalog:
        assert await catalog.read_file("skill://b/a.md") == b"x"

    assert asked == ["skill://b/%61.md"]


async def test_a_plain_source_that_lists_a_skill_twice_is_refused() -> None:
    with pytest.raises(DuplicateSkillError) as caught:
        async with CombinedSource([PlainSource(skill("a"), skill("a", body="Other.\n"), skill("b"))]):
            raise AssertionError("it must not open")

    assert caught.value.claims == {"skill://a/SKILL.md": ("source 1",)}


async def test_a_change_of_a_live_source_is_not_lost_while_a_plain_one_is_listed() -> None:
    memory = MemorySource([skill("b")])
    listing = anyio.Event()
    go_on = anyio.Event()

    class Slow(PlainSource):
        async def list_skills(self) -> AsyncIterator[SkillEntry]:
            listing.set()
            await go_on.wait()
            async for entry in super().list_skills():
                yield entry

    go_on.set()
    with anyio.fail_after(10):
        async with CombinedSource([memory, Slow(skill("a"))]) as catalog, anyio.create_task_group() as group:
            listing, go_on = anyio.Event(), anyio.Event()
            group.start_soon(catalog.refresh)
            await listing.wait()
            revision = catalog.snapshot.revision
            memory.add(skill("c"))
            await catalog.wait_for_change(revision)
            revision = catalog.snapshot.revision
            go_on.set()
            after = await catalog.wait_for_change(revision)

            assert [entry.name for entry in after.entries] == ["a", "b", "c"]


# One URI, two sources


@pytest.mark.requirement("SDK-05")
async def test_opening_names_every_uri_that_is_served_twice_and_by_whom(tmp_path: Path) -> None:
    for root in ("one", "two"):
        write_skill(tmp_path / root / "a")
    write_skill(tmp_path / "two" / "old-b", name="b")
    write_skill(tmp_path / "two" / "own")
    sources: list[Source] = [
        DirectorySource(tmp_path / "one", watch=False),
        DirectorySource(tmp_path / "two", watch=False),
        MemorySource([skill("b"), skill("c")]),
        PlainSource(skill("c")),
    ]

    with pytest.raises(DuplicateSkillError) as caught:
        async with CombinedSource(sources):
            raise AssertionError("it must not open")

    assert caught.value.uris == ("skill://a/SKILL.md", "skill://b/SKILL.md", "skill://c/SKILL.md")
    assert caught.value.claims == {
        "skill://a/SKILL.md": (str(tmp_path / "one" / "a"), str(tmp_path / "two" / "a")),
        "skill://b/SKILL.md": (str(tmp_path / "two" / "old-b"), "b (built in code)"),
        "skill://c/SKILL.md": ("c (built in code)", "source 4"),
    }
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.requirement("SDK-05")
async def test_a_clash_that_comes_later_takes_both_away_until_it_is_resolved() -> None:
    first = MemorySource([skill("a"), skill("both", body="First.\n")])
    second = MemorySource([skill("b")])

    async with CombinedSource([first, second]) as catalog:
        start = catalog.snapshot
        second.add(skill("both", body="Second.\n"))
        clash = await next_change(catalog, start.revision)

        assert [entry.name for entry in clash.entries] == ["a", "b"]
        both = ("both (built in code)", None)
        assert [(report.place, report.uri) for report in clash.reports] == [both, both]
        assert {finding.code for report in clash.reports for finding in report.findings} == {"duplicate-uri"}
        with pytest.raises(NotFoundError):
            await catalog.read_file("skill://both/SKILL.md")

        first.remove(SkillUri.build("both"))
        after = await next_change(catalog, clash.revision)

        assert [entry.name for entry in after.entries] == ["a", "b", "both"]
        assert after.reports == ()
        assert (await catalog.read_file("skill://both/SKILL.md")).endswith(b"Second.\n")


async def test_a_clash_is_logged_when_it_arises_and_not_at_every_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = MemorySource([skill("both")]), MemorySource()

    with caplog.at_level(logging.WARNING):
        async with CombinedSource([first, second]) as catalog:
            for path in ("both", "a", "b"):
                revision = catalog.snapshot.revision
                second.add(skill(path))
                await next_change(catalog, revision)

    assert len(caplog.records) == 1
    assert "skill://both/SKILL.md" in caplog.text


async def test_a_report_on_a_skill_that_clashes_no_longer_names_a_uri() -> None:
    first, second = MemorySource([skill("my team/pdf")]), MemorySource()

    async with CombinedSource([first, second]) as catalog:
        (before,) = catalog.snapshot.reports
        second.add(skill("my team/pdf", body="Other.\n"))
        after = await next_change(catalog, catalog.snapshot.revision)

    assert before.uri == SkillUri.build("my team/pdf")
    assert {report.uri for report in after.reports} == {None}
    assert after.quarantined == after.reports


@pytest.mark.requirement("SDK-05")
async def test_a_file_that_two_nested_skills_have_with_different_bytes_is_a_clash_too() -> None:
    outer = MemorySource([skill("a").with_reference("b/x.md", "1")])
    inner = MemorySource([skill("a/b").with_reference("x.md", "2")])

    for sources in ([outer, inner], [inner, outer]):
        with pytest.raises(DuplicateSkillError) as caught:
            async with CombinedSource(sources):
                raise AssertionError("it must not open")

        assert caught.value.uris == ("skill://a/b/x.md",)
        assert caught.value.claims == {"skill://a/b/x.md": ("a (built in code)", "a/b (built in code)")}


async def test_a_file_that_differs_later_takes_both_skills_away_until_it_is_resolved() -> None:
    outer = MemorySource([skill("a").with_reference("b/x.md", "1"), skill("other")])
    inner = MemorySource()

    async with CombinedSource([outer, inner]) as catalog:
        start = catalog.snapshot
        inner.add(skill("a/b").with_reference("x.md", "2"))
        clash = await next_change(catalog, start.revision)

        assert [entry.uri.path for entry in clash.entries] == ["other"]
        assert [(report.place, report.findings[0].code) for report in clash.quarantined] == [
            ("a (built in code)", "duplicate-uri"),
            ("a/b (built in code)", "duplicate-uri"),
        ]

        inner.remove(SkillUri.build("a/b"))
        after = await next_change(catalog, clash.revision)

        assert after.entries == start.entries


# Skills inside those of another source


@pytest.mark.requirement("NEST-03")
async def test_a_skill_of_one_source_completes_the_enclosing_one_of_another(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "outer", {"a.md": "outer"})
    inner = skill("outer/parts/inner").with_reference("b.md", "inner")
    folder, memory = DirectorySource(tmp_path / "skills", watch=False), MemorySource([inner])

    for sources in itertools.permutations([folder, memory]):
        async with CombinedSource(sources) as catalog:
            read = await contents(catalog)
            entry = await catalog.get_skill(SkillUri.build("outer"))

        assert read == {
            "skill://outer/SKILL.md": (tmp_path / "skills" / "outer" / "SKILL.md").read_bytes(),
            "skill://outer/a.md": b"outer",
            "skill://outer/parts/inner/SKILL.md": inner.skill_md,
            "skill://outer/parts/inner/b.md": b"inner",
        }
        assert entry.manifest == Manifest.of(ManifestFile.of(uri, content) for uri, content in read.items())


@pytest.mark.requirement("NEST-03")
async def test_a_change_in_the_nested_skill_changes_the_enclosing_one() -> None:
    inner = MemorySource([skill("outer/inner")])

    async with CombinedSource([MemorySource([skill("outer")]), inner]) as catalog:
        start = catalog.snapshot
        inner.remove(SkillUri.build("outer/inner"))
        after = await next_change(catalog, start.revision)

    changes = after.changes_since(start)
    assert changes.removed == ("skill://outer/inner/SKILL.md",)
    assert changes.changed == ("skill://outer/SKILL.md",)


async def test_a_fixed_skill_inside_a_dynamic_one_of_another_source_is_read_from_its_own() -> None:
    outer = MemorySource([live("outer").with_file("made.md", lambda: "made")])
    inner = MemorySource([skill("outer/inner").with_reference("fixed.md", "fixed")])

    for sources in itertools.permutations([outer, inner]):
        async with CombinedSource(sources) as catalog:
            assert await catalog.read_file("skill://outer/made.md") == b"made"
            assert await catalog.read_file("skill://outer/inner/fixed.md") == b"fixed"


async def test_a_dynamic_skill_inside_one_with_digests_of_another_source_is_refused_at_opening() -> None:
    with pytest.raises(InvalidSkillError):
        async with CombinedSource([MemorySource([skill("outer")]), MemorySource([live("outer/inner")])]):
            raise AssertionError("it must not open")


async def test_a_dynamic_skill_that_gets_there_later_is_set_aside_alone() -> None:
    fixed, made = MemorySource([skill("a")]), MemorySource([live("outer/inner")])

    async with CombinedSource([fixed, made]) as catalog:
        start = catalog.snapshot
        fixed.add(skill("outer"))
        after = await next_change(catalog, start.revision)

        assert [entry.uri.path for entry in after.entries] == ["a", "outer"]
        assert after.reports == (
            Report(
                "outer/inner (built in code)",
                (
                    Finding(
                        "dynamic-inside-static",
                        "the skill is dynamic and inside skill://outer, which has digests of all its files",
                        fix="move it out, or make the enclosing skill dynamic",
                    ),
                ),
            ),
        )
        with pytest.raises(NotFoundError):
            await catalog.read_file("skill://outer/inner/SKILL.md")


@pytest.mark.requirement("LIM-03")
async def test_a_skill_that_becomes_too_large_by_what_lies_inside_it_is_not_served() -> None:
    half = b"\0" * (MAX_TOTAL_SIZE // 2)
    outer = MemorySource([skill("outer").with_reference("a.bin", half)])
    inner = MemorySource([skill("outer/inner").with_reference("b.bin", half)])

    async with CombinedSource([outer, inner]) as catalog:
        snapshot = catalog.snapshot

    assert [entry.uri.path for entry in snapshot.entries] == ["outer/inner"]
    assert [(report.place, report.findings[0].code) for report in snapshot.quarantined] == [
        ("outer (built in code)", "too-large")
    ]


# The order of sources


PARTS: Mapping[str, Sequence[Skill | DynamicSkill]] = {
    "one": [skill("a"), skill("outer").with_reference("x.md", "1"), skill("clash", body="1\n")],
    "two": [skill("b"), skill("outer/inner"), live("made")],
    "three": [skill("made/fixed").with_reference("y.md", "2"), skill("c", scheme="docs")],
}


async def test_the_order_of_sources_does_not_change_what_is_served() -> None:
    states: list[object] = []
    for order in itertools.permutations(PARTS):
        sources = {name: MemorySource(skills) for name, skills in PARTS.items()}
        async with CombinedSource([sources[name] for name in order]) as catalog:
            revision = catalog.snapshot.revision
            sources["two"].add(skill("clash", body="2\n"))
            snapshot = await next_change(catalog, revision)
            states.append((snapshot.entries, snapshot.reports, await contents(catalog)))

    assert states == [states[0]] * 6


async def test_prefixes_keep_two_folders_apart(tmp_path: Path) -> None:
    for root in ("one", "two"):
        write_skill(tmp_path / root / "pdf")
        write_files(tmp_path, {f"{root}/pdf/a.md": root})

    async with CombinedSource(
        [DirectorySource(tmp_path / root, prefix=root, watch=False) for root in ("one", "two")]
    ) as catalog:
        assert await catalog.read_file("skill://one/pdf/a.md") == b"one"
        assert await catalog.read_file("skill://two/pdf/a.md") == b"two"


async def test_what_a_plain_source_serves_without_listing_it_is_found() -> None:
    listed, unlisted = skill("listed"), skill("unlisted")

    async with CombinedSource(
        [MemorySource([skill("memory")]), PlainSource(listed, unlisted=[unlisted])]
    ) as catalog:
        assert [entry.name for entry in catalog.snapshot.entries] == ["listed", "memory"]
        assert await catalog.get_skill(unlisted.uri) == unlisted.entry()
        assert await catalog.read_file(unlisted.uri.text) == unlisted.skill_md
        with pytest.raises(NotFoundError):
            await catalog.get_skill(SkillUri.build("nowhere"))
        with pytest.raises(NotFoundError):
            await catalog.read_file("skill://nowhere/SKILL.md")


async def test_a_skill_that_is_refused_is_not_found_by_asking_a_plain_source_for_it() -> None:
    live, plain = MemorySource(), PlainSource(skill("twice"))

    async with CombinedSource([live, plain]) as catalog:
        revision = catalog.snapshot.revision
        live.add(skill("twice"))
        await next_change(catalog, revision)

        with pytest.raises(NotFoundError):
            await catalog.get_skill(SkillUri.build("twice"))
        with pytest.raises(NotFoundError):
            await catalog.read_file("skill://twice/SKILL.md")


# Media types, empty folders, times


async def test_media_types_and_empty_folders_of_all_sources_are_told(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "m")
    (tmp_path / "skills" / "m" / "empty").mkdir()
    memory = MemorySource([skill("z").with_reference("data", "x", media_type="text/x-data")])

    async with CombinedSource([DirectorySource(tmp_path / "skills", watch=False), memory]) as catalog:
        assert catalog.snapshot.folders == {"skill://m/empty"}
        assert catalog.snapshot.media_types == {"skill://z/data": "text/x-data"}

        memory.add(skill("m", body="Other.\n"))
        after = await next_change(catalog, catalog.snapshot.revision)

        assert [entry.name for entry in after.entries] == ["z"]
        assert after.folders == frozenset()


async def test_when_a_skill_was_modified_is_asked_of_its_source(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "m")
    write_skill(tmp_path / "skills" / "both")
    for name in ("m", "both"):
        os.utime(tmp_path / "skills" / name / "SKILL.md", ns=(1, 1_700_000_000_000_000_000))
    folder, memory = DirectorySource(tmp_path / "skills", watch=False), MemorySource([skill("z")])

    async with CombinedSource([CombinedSource([folder]), memory, PlainSource(skill("p"))]) as catalog:
        assert catalog.modified_at(SkillUri.build("m")) == 1_700_000_000.0
        assert catalog.modified_at(SkillUri.build("z")) is None
        assert catalog.modified_at(SkillUri.build("p")) is None
        assert catalog.modified_at(SkillUri.build("none")) is None
        assert catalog.modified_at(SkillUri.build("both")) == 1_700_000_000.0

        memory.add(skill("both"))
        await next_change(catalog, catalog.snapshot.revision)

        assert catalog.modified_at(SkillUri.build("both")) is None


# One source, or as good as one


@pytest.mark.parametrize("others", [0, 2])
async def test_the_snapshot_of_a_single_source_is_shared_and_not_copied(others: int) -> None:
    source = MemorySource([skill("a").with_reference("x", "", media_type="text/x-x"), skill("my team/b")])

    async with CombinedSource([source, *(MemorySource() for _ in range(others))]) as catalog:
        first = catalog.snapshot
        assert shared(first, source.snapshot)
        source.add(skill("c"))
        second = await next_change(catalog, first.revision)
        assert shared(second, source.snapshot)

    assert second.revision > first.revision
    assert [entry.name for entry in second.entries] == ["a", "c", "b"]


def shared(snapshot: Snapshot, part: Snapshot) -> bool:
    return (
        snapshot.entries is part.entries
        and snapshot.by_uri is part.by_uri
        and snapshot.reports is part.reports
        and snapshot.media_types is part.media_types
        and snapshot.folders is part.folders
    )


async def test_reports_of_all_sources_are_told_even_where_one_has_all_skills(tmp_path: Path) -> None:
    write_files(tmp_path, {"skills/broken/SKILL.md": "no frontmatter"})
    memory = MemorySource([skill("my team/a")])

    async with CombinedSource([memory, DirectorySource(tmp_path / "skills", watch=False)]) as catalog:
        assert [report.place for report in catalog.snapshot.reports] == ["broken", "my team/a"]


class Raw:
    """A live source by a stranger, whose snapshots nobody put in order."""

    def __init__(self, *entries: SkillEntry) -> None:
        self.snapshot = Snapshot.of(entries)
        self._changed = anyio.Event()

    def become(self, *entries: SkillEntry) -> None:
        self.snapshot = Snapshot.of(entries, revision=self.snapshot.revision + 1)
        self._changed.set()

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for entry in self.snapshot.entries:
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        return self.snapshot.get(uri)

    async def read_file(self, uri: str) -> bytes:
        raise NotFoundError("no such file", uri=uri)

    async def wait_for_change(self, revision: int) -> Snapshot:
        if self.snapshot.revision <= revision:
            self._changed = anyio.Event()
            await self._changed.wait()
        return self.snapshot


@pytest.mark.requirement("NEST-03")
async def test_the_snapshot_of_a_strangers_source_is_put_in_order_even_when_it_is_alone() -> None:
    outer, inner = skill("outer"), skill("outer/inner")
    source = Raw(outer.entry(), inner.entry())

    async with CombinedSource([source]) as catalog:
        first = catalog.snapshot
        source.become(outer.entry(), live("outer/made").entry())
        second = await next_change(catalog, first.revision)

    assert first.get(outer.uri) == MemorySource([outer, inner]).snapshot.get(outer.uri)
    assert [entry.uri.path for entry in second.entries] == ["outer"]
    assert [report.place for report in second.quarantined] == ["source 1"]


# Merging


async def test_merging_happens_in_a_thread_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most = 0

    def merge_and_note(before: MergedSnapshots, parts: Sequence[Snapshot]) -> MergedSnapshots:
        nonlocal most
        assert threading.current_thread() is not threading.main_thread()
        running.append(1)
        most = max(most, len(running))
        merged = merge_changes(before, parts)
        running.pop()
        return merged

    monkeypatch.setattr(catalog_module, "merge_changes", merge_and_note)
    sources = [MemorySource([skill(f"start-{number}")]) for number in range(4)]

    async with CombinedSource(sources) as catalog:
        for number, source in enumerate(sources):
            source.add(skill(f"more-{number}"))
        with anyio.fail_after(10):
            while len(catalog.snapshot.entries) < 8:
                await catalog.wait_for_change(catalog.snapshot.revision)

    assert most == 1


async def test_what_a_refresh_has_seen_is_not_published_a_second_time() -> None:
    first, second = MemorySource([skill("a")]), MemorySource([skill("b")])

    async with CombinedSource([first, second]) as catalog:
        revision = catalog.snapshot.revision
        first.add(skill("c"))
        await catalog.refresh()
        second.add(skill("d"))
        after = await next_change(catalog, revision + 1)

    assert [entry.name for entry in after.entries] == ["a", "b", "c", "d"]
    assert after.revision == revision + 2


steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["a", "a/b", "a/b/c", "a-b", "b"]),
        st.sampled_from(["add", "add again", "add dynamic", "remove"]),
    ),
    min_size=1,
    max_size=10,
)


def change(source: MemorySource, path: str, kind: str) -> None:
    with suppress(DuplicateSkillError, InvalidSkillError, NotFoundError):
        if kind == "remove":
            source.remove(SkillUri.build(path))
        elif kind == "add dynamic":
            source.add(live(path))
        else:
            typed = {"add": None, "add again": "text/x-other"}[kind]
            source.add(skill(path).with_reference("b/x.md", kind, media_type=typed))


@given(steps, st.lists(st.booleans(), min_size=10, max_size=10))
@settings(deadline=None, max_examples=40)
def test_after_any_changes_a_catalog_serves_what_merging_all_sources_at_once_gives(
    changes: list[tuple[int, str, str]], waits: list[bool]
) -> None:
    async def run() -> None:
        sources = [MemorySource(), MemorySource(), MemorySource([skill("z")])]
        revisions: list[int] = []
        async with CombinedSource(sources) as catalog:
            for (position, path, kind), wait in zip(changes, waits, strict=False):
                change(sources[position], path, kind)
                if wait:
                    await until_merged(catalog, sources)
                revisions.append(catalog.snapshot.revision)
            await until_merged(catalog, sources)
            assert revisions == sorted(revisions)

    anyio.run(run)


async def until_merged(catalog: CombinedSource, sources: Sequence[MemorySource]) -> None:
    """Wait for the catalog to serve exactly what a plain merge of its sources gives."""
    with anyio.fail_after(10):
        while True:
            now, expected = catalog.snapshot, merge([source.snapshot for source in sources])
            if (
                now.entries == expected.entries
                and now.by_uri == expected.by_uri
                and list(now.by_uri) == list(expected.by_uri)
                and now.media_types == expected.media_types
                and len(now.quarantined) >= len(expected.refused)
            ):
                return
            await catalog.wait_for_change(now.revision)
