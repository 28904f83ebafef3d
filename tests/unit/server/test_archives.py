"""`ArchiveCache`: what it packs, what it remembers, and what it cannot pack."""

import hashlib
from base64 import b64decode
from pathlib import Path

import anyio
import pytest

from folders import skill_md, write_files
from skillwire.core.archive import unpack
from skillwire.core.errors import LimitError, NotFoundError, SourceError
from skillwire.core.media import ArchiveFormat
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server import archives
from skillwire.server.archives import Archive, ArchiveCache
from skillwire.sources import CombinedSource, DirectorySource, DynamicSkill, MemorySource
from skillwire.wire.core import file_contents

BOTH = tuple(ArchiveFormat)


def tea(path: str = "tea", body: str = "Tea.\n") -> Skill:
    return Skill("tea", path=path, description="Use when testing.", body=body).with_reference(
        "a b.md", b"\xff"
    )


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[ArchiveFormat]:
    """The formats in which something was really packed, in order."""
    noted: list[ArchiveFormat] = []
    real = archives.pack

    def pack(files: dict[str, bytes], format: ArchiveFormat) -> bytes:
        noted.append(format)
        return real(files, format)

    monkeypatch.setattr(archives, "pack", pack)
    return noted


@pytest.mark.requirement("ARC-01")
@pytest.mark.requirement("ARC-02")
@pytest.mark.parametrize("format", ArchiveFormat)
async def test_an_archive_holds_exactly_the_files_of_its_skill(format: ArchiveFormat) -> None:
    async with CombinedSource([MemorySource([tea()])]) as catalog:
        (entry,) = catalog.snapshot.entries
        archive = await ArchiveCache().archive(entry, format, catalog)

    assert archive.media_type == format.media_type
    assert (archive.size, archive.digest) == (
        len(archive.data),
        f"sha256:{hashlib.sha256(archive.data).hexdigest()}",
    )
    assert {file.path: file.content for file in unpack(archive.data, format)} == {
        "SKILL.md": tea().skill_md,
        "a b.md": b"\xff",
    }


@pytest.mark.requirement("ARC-01")
@pytest.mark.parametrize("format", ArchiveFormat)
async def test_an_archive_travels_as_base64_however_plain_its_files_are(format: ArchiveFormat) -> None:
    for number in range(40):
        skill = Skill("tea", description="Use when testing.", body=f"{number}\n")
        async with CombinedSource([MemorySource([skill])]) as catalog:
            archive = await ArchiveCache().archive(catalog.snapshot.entries[0], format, catalog)

        item = file_contents("skill://tea.zip", media_type=archive.media_type, content=archive.data)
        assert b64decode(item["blob"]) == archive.data


async def test_equal_skills_at_other_paths_are_packed_once(packed: list[ArchiveFormat]) -> None:
    cache = ArchiveCache()
    async with CombinedSource([MemorySource([tea("a/tea"), tea("b/tea")])]) as catalog:
        first, second = catalog.snapshot.entries
        labels = await cache.digests(first, BOTH, catalog)

        assert await cache.digests(second, BOTH, catalog) == labels
        assert cache.known_digests(second, BOTH) == labels

    assert packed == list(BOTH)


async def test_who_asks_at_the_same_time_shares_one_packing(packed: list[ArchiveFormat]) -> None:
    cache = ArchiveCache()
    found: list[Archive] = []
    async with CombinedSource([MemorySource([tea()])]) as catalog:
        (entry,) = catalog.snapshot.entries

        async def ask() -> None:
            found.append(await cache.archive(entry, ArchiveFormat.ZIP, catalog))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(ask)

    assert len(packed) == 1
    assert found == [found[0]] * 8


async def test_bytes_that_are_not_kept_are_packed_again_to_the_same_digest(
    packed: list[ArchiveFormat],
) -> None:
    cache = ArchiveCache(cached_bytes=0)
    async with CombinedSource([MemorySource([tea()])]) as catalog:
        (entry,) = catalog.snapshot.entries
        label = (await cache.digests(entry, [ArchiveFormat.ZIP], catalog))[ArchiveFormat.ZIP]
        archives_ = [await cache.archive(entry, ArchiveFormat.ZIP, catalog) for _ in range(2)]

    assert len(packed) == 3
    assert {(archive.digest, archive.size) for archive in archives_} == {(label.digest, label.size)}


async def test_an_archive_that_comes_out_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArchiveCache(cached_bytes=0)
    async with CombinedSource([MemorySource([tea()])]) as catalog:
        (entry,) = catalog.snapshot.entries
        await cache.archive(entry, ArchiveFormat.ZIP, catalog)
        monkeypatch.setattr(archives, "pack", lambda files, format: b"another compressor")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

        with pytest.raises(SourceError):
            await cache.archive(entry, ArchiveFormat.ZIP, catalog)


async def test_a_skill_that_moved_on_is_not_packed_under_its_old_entry(tmp_path: Path) -> None:
    write_files(tmp_path, {"tea/SKILL.md": skill_md("tea"), "tea/a.md": "a"})
    async with CombinedSource([DirectorySource(tmp_path, watch=False)]) as catalog:
        (entry,) = catalog.snapshot.entries
        write_files(tmp_path, {"tea/a.md": "b"})

        with pytest.raises(SourceError):
            await ArchiveCache().archive(entry, ArchiveFormat.ZIP, catalog)


async def test_a_dynamic_skill_has_no_archive() -> None:
    live = DynamicSkill("live", description="Use when testing.", body=lambda: "Now.\n")
    async with CombinedSource([MemorySource([live])]) as catalog:
        with pytest.raises(NotFoundError):
            await ArchiveCache().archive(catalog.snapshot.entries[0], ArchiveFormat.ZIP, catalog)


async def test_a_skill_that_no_host_would_unpack_is_not_packed() -> None:
    deep = tea().with_reference("/".join("abcdefghijklmnopqrstuvwxyz") + "/x.md", b"x")
    async with CombinedSource([MemorySource([deep])]) as catalog:
        entry = catalog.snapshot.get(SkillUri.parse("skill://tea/SKILL.md"))

        with pytest.raises(LimitError):
            await ArchiveCache().archive(entry, ArchiveFormat.ZIP, catalog)
