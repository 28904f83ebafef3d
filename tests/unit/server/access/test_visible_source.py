"""Of everything that is served, what someone may see: a source of its own."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError
from skillwire.core.manifest import ManifestFile
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server.access.visibility import VisibleSource, VisibleUnlistedSource
from skillwire.server.visibility import ALL, Visibility, merge_prefixes, parse_prefix
from skillwire.sources import CombinedSource, MemorySource
from talking import PlainSource, skill

SEGMENTS = st.sampled_from(["acme", "acme-two", "billing", "a", "b"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)


def visibility(*paths: str) -> Visibility:
    return Visibility(merge_prefixes(map(parse_prefix, paths)))


def seen(source: VisibleSource) -> list[str]:
    return [entry.uri.path for entry in source.snapshot.entries]


@pytest.mark.requirement("SEC-14")
@settings(max_examples=40)
@example({"acme/a", "acme-two/a"}, {"acme", "acme-two"})  # These sort differently with what is below them.
@given(st.sets(PATHS, max_size=8), st.sets(PATHS, max_size=4))
async def test_a_snapshot_holds_what_is_in_sight_and_nothing_else(paths: set[str], places: set[str]) -> None:
    async with CombinedSource([MemorySource([skill(path) for path in paths])]) as catalog:
        wanted = visibility(*places)
        source = VisibleSource(catalog, wanted)

        expected = [entry for entry in catalog.snapshot.entries if wanted.includes(entry.uri)]
        assert list(source.snapshot.entries) == expected
        assert source.snapshot.by_uri == {entry.uri.text: entry for entry in expected}


async def test_a_file_out_of_sight_is_no_file_and_the_catalog_is_not_even_asked() -> None:
    class Asked(MemorySource):
        reads: Sequence[str] = ()

        def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
            self.reads = (*self.reads, line.uri)
            return super().read_now(entry, line)

        async def read_file(self, uri: str) -> bytes:
            self.reads = (*self.reads, uri)
            return await super().read_file(uri)

    memory = Asked([skill("acme/open"), skill("secret/plan")])
    async with CombinedSource([memory]) as catalog:
        source = VisibleSource(catalog, visibility("acme"))

        assert await source.read_file("skill://acme/open/SKILL.md")
        for uri in ("skill://secret/plan/SKILL.md", "skill://secret/nothing/SKILL.md"):
            with pytest.raises(NotFoundError):
                await source.read_file(uri)

    assert memory.reads == ("skill://acme/open/SKILL.md",)


async def test_a_file_out_of_sight_is_not_read_at_once_either() -> None:
    async with CombinedSource([MemorySource([skill("acme/open"), skill("secret/plan")])]) as catalog:
        source = VisibleSource(catalog, visibility("acme"))
        lines = [catalog.snapshot.locate(f"skill://{path}/SKILL.md") for path in ("acme/open", "secret/plan")]
        found = [source.read_now(entry, line) for entry, line in lines if line is not None]

    assert found == [skill("acme/open").skill_md, None]


async def test_a_change_out_of_sight_is_none() -> None:
    memory = MemorySource([skill("acme/open"), skill("secret/plan")])
    async with CombinedSource([memory]) as catalog:
        source = VisibleSource(catalog, visibility("acme"))
        before = source.snapshot

        memory.add(skill("secret/other"))
        memory.remove(SkillUri.build("secret/plan"))
        await catalog.refresh()

        assert source.snapshot is before


async def test_waiting_ends_with_a_change_in_sight_and_with_no_other() -> None:
    memory = MemorySource([skill("acme/open")])
    heard: list[list[str]] = []
    unheard: list[list[str]] = []
    async with CombinedSource([memory]) as catalog, anyio.create_task_group() as group:
        source = VisibleSource(catalog, visibility("acme"))

        async def wait() -> None:
            await source.wait_for_change(source.snapshot.revision)
            heard.append(seen(source))

        group.start_soon(wait)
        memory.add(skill("secret/plan"))
        await catalog.wait_for_change(catalog.snapshot.revision - 1)
        await catalog.refresh()
        await anyio.wait_all_tasks_blocked()
        unheard += heard
        memory.add(skill("acme/more"))

    assert unheard == []
    assert heard == [["acme/more", "acme/open"]]


async def test_a_nested_skill_is_in_sight_with_the_one_around_it_or_alone() -> None:
    async with CombinedSource([MemorySource([skill("acme/outer"), skill("acme/outer/inner")])]) as catalog:
        assert seen(VisibleSource(catalog, visibility("acme/outer"))) == ["acme/outer", "acme/outer/inner"]
        assert seen(VisibleSource(catalog, visibility("acme/outer/inner"))) == ["acme/outer/inner"]


async def test_who_may_see_everything_shares_what_there_is() -> None:
    async with CombinedSource([MemorySource([skill("acme/open")])]) as catalog:
        source = VisibleSource(catalog, ALL)

        assert source.snapshot.entries is catalog.snapshot.entries
        assert source.snapshot.by_uri is catalog.snapshot.by_uri


class Asking(PlainSource):
    """A source that notes what it was asked for."""

    def __init__(self, *, unlisted: Sequence[Skill]) -> None:
        super().__init__(unlisted=unlisted)
        self.asked: list[str] = []

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        self.asked.append(uri.text)
        return await super().get_skill(uri)

    async def read_file(self, uri: str) -> bytes:
        self.asked.append(uri)
        return await super().read_file(uri)


async def test_what_is_not_listed_is_asked_for_only_in_sight() -> None:
    stranger = Asking(unlisted=[skill("acme/hidden"), skill("secret/plan")])
    async with CombinedSource([stranger]) as catalog:
        source = VisibleUnlistedSource(catalog, visibility("acme"))

        found = await source.get_skill(SkillUri.build("acme/hidden"))
        content = await source.read_file("skill://acme/hidden/SKILL.md")
        asked = len(stranger.asked)
        for path in ("secret/plan", "secret/nothing", "acme-two/hidden"):
            with pytest.raises(NotFoundError):
                await source.get_skill(SkillUri.build(path))
            with pytest.raises(NotFoundError):
                await source.read_file(f"skill://{path}/SKILL.md")

    assert found.uri.path == "acme/hidden"
    assert content
    assert len(stranger.asked) == asked
    assert [entry async for entry in source.list_skills()] == []
