"""Skills held in memory: added all or none, one URI for one skill, and read as they were built."""

import logging

import anyio
import pytest

from skillwire.core.entry import SkillEntry
from skillwire.core.errors import DuplicateSkillError, InvalidSkillError, InvalidUriError, NotFoundError
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources import Changes, DynamicSkill, LiveSource, MemorySource
from talking import skill


def live(path: str) -> DynamicSkill:
    name = path.rpartition("/")[2]
    return DynamicSkill(name, path=path, description=f"Use when testing {name}.", body=lambda: "Now.\n")


async def entries(source: MemorySource) -> list[SkillEntry]:
    return [entry async for entry in source.list_skills()]


@pytest.mark.requirement("SDK-04")
async def test_a_skill_with_three_references_is_listed_got_and_read() -> None:
    built = (
        skill("acme/billing/refunds")
        .with_reference("references/policy.md", "# Policy\n")
        .with_reference("references/limits.md", "# Limits\n")
        .with_reference("assets/logo.bin", b"\x00\xff")
    )
    source = MemorySource([built])

    uri = SkillUri("skill://acme/billing/refunds/SKILL.md")
    assert await entries(source) == [built.entry()] == [await source.get_skill(uri)]
    assert {
        file.uri: await source.read_file(file.uri) for entry in await entries(source) for file in lines(entry)
    } == {
        "skill://acme/billing/refunds/SKILL.md": built.skill_md,
        "skill://acme/billing/refunds/assets/logo.bin": b"\x00\xff",
        "skill://acme/billing/refunds/references/limits.md": b"# Limits\n",
        "skill://acme/billing/refunds/references/policy.md": b"# Policy\n",
    }
    assert isinstance(source, LiveSource)


def lines(entry: SkillEntry) -> tuple[ManifestFile, ...]:
    assert entry.manifest is not None
    return entry.manifest.files


async def test_a_file_is_read_under_any_spelling_of_its_uri() -> None:
    source = MemorySource([skill("pdf").with_reference("my notes/é.md", "x")])

    assert await source.read_file("SKILL://pdf/%6Dy%20notes/%C3%A9.md") == b"x"


@pytest.mark.parametrize(
    "uri", ["skill://pdf/none.md", "skill://pdf/../pdf/SKILL.md", "skill://xls/SKILL.md", "nonsense"]
)
async def test_what_is_not_there_is_not_found(uri: str) -> None:
    source = MemorySource([skill("pdf")])

    with pytest.raises(NotFoundError):
        await source.read_file(uri)


async def test_an_empty_source_has_nothing() -> None:
    source = MemorySource()

    assert await entries(source) == []
    with pytest.raises(NotFoundError):
        await source.get_skill(SkillUri.build("pdf"))


@pytest.mark.requirement("LIST-16")
async def test_schemes_may_be_mixed() -> None:
    source = MemorySource([skill("pdf"), skill("pdf", scheme="docs")])

    assert [entry.uri.text for entry in await entries(source)] == [
        "docs://pdf/SKILL.md",
        "skill://pdf/SKILL.md",
    ]


# One URI, one skill


@pytest.mark.requirement("SDK-05")
def test_one_error_names_every_uri_that_would_be_served_twice() -> None:
    source = MemorySource([skill("a"), skill("b"), skill("c").with_reference("d/x.md", "1")])

    with pytest.raises(DuplicateSkillError) as caught:
        source.add(
            skill("e"), skill("b"), skill("a", body="Other.\n"), skill("c/d").with_reference("x.md", "2")
        )

    assert caught.value.uris == ("skill://a/SKILL.md", "skill://b/SKILL.md", "skill://c/d/x.md")
    for uri in caught.value.uris:
        assert uri in str(caught.value)


@pytest.mark.requirement("SDK-05")
def test_duplicates_within_one_call_are_found_too() -> None:
    with pytest.raises(DuplicateSkillError) as caught:
        MemorySource([skill("a"), skill("a")])

    assert caught.value.uris == ("skill://a/SKILL.md",)


@pytest.mark.requirement("SDK-05")
def test_the_very_same_skill_is_a_duplicate_too() -> None:
    built = skill("a")
    source = MemorySource([built])

    with pytest.raises(DuplicateSkillError):
        source.add(built)
    with pytest.raises(DuplicateSkillError):
        source.merge(source)


@pytest.mark.requirement("SDK-05")
def test_skills_made_on_demand_share_no_uri_either() -> None:
    outer = live("a").with_file("b/x.md", lambda: "1").with_file("c/SKILL.md", lambda: "2")

    with pytest.raises(DuplicateSkillError) as caught:
        MemorySource([outer, live("a/b").with_file("x.md", lambda: "3"), live("a/c"), live("a")])

    assert caught.value.uris == ("skill://a/SKILL.md", "skill://a/b/x.md", "skill://a/c/SKILL.md")


def test_a_file_that_two_nested_skills_have_alike_is_no_duplicate() -> None:
    outer = skill("a").with_reference("b/x.md", "same")
    inner = skill("a/b").with_reference("x.md", "same")

    assert len(MemorySource([outer, inner]).snapshot.entries) == 2


async def test_adding_is_all_or_none() -> None:
    source = MemorySource([skill("a")])
    before = source.snapshot

    for bad, error in (
        (skill("a"), DuplicateSkillError),
        (live("a/b"), InvalidSkillError),
        (DynamicSkill("x", "Use when x.", lambda: "", files={"../y": lambda: ""}), InvalidUriError),
    ):
        with pytest.raises(error):
            source.add(skill("new"), bad)
        assert source.snapshot is before

    with pytest.raises(NotFoundError):
        await source.read_file("skill://new/SKILL.md")


def test_a_dynamic_skill_inside_one_with_digests_is_refused() -> None:
    with pytest.raises(InvalidSkillError):
        MemorySource([skill("outer"), live("outer/inner")])


# Nesting


@pytest.mark.requirement("NEST-01")
@pytest.mark.requirement("NEST-03")
async def test_a_nested_skill_is_part_of_the_enclosing_one() -> None:
    outer = skill("outer").with_reference("a.md", "1")
    inner = skill("outer/inner").with_reference("b.md", "2")
    source = MemorySource([outer])
    before = await source.get_skill(outer.uri)
    source.add(inner)

    after = await source.get_skill(outer.uri)

    assert after.manifest != before.manifest
    assert after.manifest == Manifest.of([*lines(outer.entry()), *lines(inner.entry())])
    assert await source.read_file("skill://outer/inner/b.md") == b"2"


async def test_a_fixed_skill_may_lie_inside_one_made_on_demand() -> None:
    outer = live("outer").with_file("made.md", lambda: "made").with_file("inner/made.md", lambda: "also made")
    source = MemorySource([outer, skill("outer/inner").with_reference("fixed.md", "fixed")])

    assert [entry.is_dynamic for entry in await entries(source)] == [True, False]
    assert await source.read_file("skill://outer/made.md") == b"made"
    assert await source.read_file("skill://outer/inner/made.md") == b"also made"
    assert await source.read_file("skill://outer/inner/fixed.md") == b"fixed"


# Changing


async def test_every_change_is_a_new_snapshot_and_wakes_who_waits() -> None:
    source = MemorySource([skill("a")])
    first = source.snapshot
    seen: list[Changes] = []

    async def watch() -> None:
        seen.append((await source.wait_for_change(first.revision)).changes_since(first))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            source.add(skill("b"))

    assert seen == [Changes(("skill://b/SKILL.md",), (), ())]
    assert first.entries == (skill("a").entry(),)


async def test_a_change_that_has_happened_is_not_waited_for() -> None:
    source = MemorySource()
    before = source.snapshot.revision
    source.add(skill("a"))

    with anyio.fail_after(10):
        assert await source.wait_for_change(before) is source.snapshot


async def test_a_removed_skill_is_gone_from_everything() -> None:
    inner = skill("outer/inner")
    source = MemorySource([skill("outer"), inner])
    source.remove(inner.uri)

    assert [entry for entry in source.snapshot.entries] == [skill("outer").entry()]
    for uri in (inner.uri.text, "skill://never/SKILL.md"):
        with pytest.raises(NotFoundError):
            await source.read_file(uri)
        with pytest.raises(NotFoundError):
            source.remove(SkillUri(uri))


@pytest.mark.requirement("SDK-04")
def test_sources_are_merged_under_the_same_rules() -> None:
    source, other = MemorySource([skill("a")]), MemorySource([skill("b"), live("c")])

    source.merge(other)

    assert [entry.name for entry in source.snapshot.entries] == ["a", "b", "c"]
    with pytest.raises(DuplicateSkillError) as caught:
        source.merge(other)
    assert caught.value.uris == ("skill://b/SKILL.md", "skill://c/SKILL.md")


# What is reported


def test_findings_are_reported_with_the_uri_that_is_served() -> None:
    source = MemorySource([skill("my team/pdf"), skill("fine")])

    (report,) = source.snapshot.reports

    assert (report.place, report.uri) == ("my team/pdf", SkillUri.build("my team/pdf"))
    assert [finding.code for finding in report.findings] == ["uri-first-segment"]


@pytest.mark.requirement("LIM-03")
@pytest.mark.parametrize("over", ["files", "bytes"])
async def test_a_skill_beyond_the_limits_is_not_served_and_that_is_said(
    over: str, caplog: pytest.LogCaptureFixture
) -> None:
    big = skill("big")
    for number in range(MAX_FILES if over == "files" else 1):
        big = big.with_reference(f"{number}.bin", b"" if over == "files" else b"\0" * MAX_TOTAL_SIZE)

    with caplog.at_level(logging.WARNING):
        source = MemorySource([big, skill("good")])

    assert await entries(source) == [skill("good").entry()]
    code = {"files": "too-many-files", "bytes": "too-large"}[over]
    assert [(report.place, report.uri, report.findings[0].code) for report in source.snapshot.reports] == [
        ("big", None, code)
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(NotFoundError):
        await source.read_file("skill://big/SKILL.md")
    source.remove(big.uri)
    assert source.snapshot.reports == ()


@pytest.mark.requirement("LIM-01")
async def test_a_skill_of_exactly_512_files_is_served() -> None:
    full = skill("full")
    for number in range(MAX_FILES - 1):
        full = full.with_reference(f"{number}.md", "")

    assert await entries(MemorySource([full])) == [full.entry()]


def test_a_nested_skill_that_makes_the_enclosing_one_too_large_is_served_alone() -> None:
    outer = skill("outer").with_reference("a.bin", b"\0" * (MAX_TOTAL_SIZE // 2))
    inner = skill("outer/inner").with_reference("b.bin", b"\0" * (MAX_TOTAL_SIZE // 2))

    snapshot = MemorySource([outer, inner]).snapshot

    assert [entry.uri.path for entry in snapshot.entries] == ["outer/inner"]
    assert [report.place for report in snapshot.quarantined] == ["outer"]


def test_a_place_says_where_the_skill_comes_from() -> None:
    assert MemorySource([skill("a/b")]).place_of(SkillUri.build("a/b")) == "a/b (built in code)"


# Media types


def test_media_types_are_kept_where_the_name_does_not_tell_them() -> None:
    built = (
        skill("a")
        .with_reference("plain.md", "x")
        .with_reference("said.md", "x", media_type="text/markdown")
        .with_reference("my notes/data", "x", media_type="application/x-notes")
        .with_reference("odd.md", "x", media_type="text/x-odd")
    )
    inner = skill("a/b").with_reference("inner.json", "{}", media_type="application/schema+json")

    assert MemorySource([built, inner, live("c")]).snapshot.media_types == {
        "skill://a/my%20notes/data": "application/x-notes",
        "skill://a/odd.md": "text/x-odd",
        "skill://a/b/inner.json": "application/schema+json",
    }


def test_the_innermost_skill_says_of_which_type_a_shared_file_is() -> None:
    outer = (
        skill("a")
        .with_reference("b/x.md", "same", media_type="text/x-outer")
        .with_reference("b/y.md", "same")
        .with_reference("b/z.md", "only here", media_type="text/x-outer")
    )
    inner = (
        skill("a/b").with_reference("x.md", "same").with_reference("y.md", "same", media_type="text/x-inner")
    )

    for skills in ([outer, inner], [inner, outer]):
        assert MemorySource(skills).snapshot.media_types == {
            "skill://a/b/y.md": "text/x-inner",
            "skill://a/b/z.md": "text/x-outer",
        }


def test_a_skill_that_is_not_served_has_no_media_types() -> None:
    big = skill("big").with_reference("a.bin", b"\0" * MAX_TOTAL_SIZE, media_type="text/x-big")
    source = MemorySource([big, skill("a").with_reference("b", "", media_type="text/x-b")])

    assert source.snapshot.media_types == {"skill://a/b": "text/x-b"}
    source.remove(SkillUri.build("a"))
    assert source.snapshot.media_types == {}


# What stays the same


def test_entries_of_skills_that_did_not_change_are_the_same_objects() -> None:
    source = MemorySource([skill("a"), skill("outer"), skill("outer/inner"), live("made")])
    before = source.snapshot.by_uri
    source.add(skill("b"))
    source.remove(SkillUri.build("a"))

    after = source.snapshot.by_uri

    for uri in ("skill://outer/SKILL.md", "skill://outer/inner/SKILL.md", "skill://made/SKILL.md"):
        assert after[uri] is before[uri]


def test_a_skill_that_is_replaced_is_served_as_it_is_now() -> None:
    source = MemorySource([skill("outer"), skill("outer/inner", body="Old.\n")])
    before = source.snapshot
    source.remove(SkillUri.build("outer/inner"))
    source.add(skill("outer/inner", body="New.\n"))

    assert source.snapshot.changes_since(before).changed == (
        "skill://outer/SKILL.md",
        "skill://outer/inner/SKILL.md",
    )
