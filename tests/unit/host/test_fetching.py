"""Files whose size nobody told: held against their digests, and against what a whole skill may cost."""

from pathlib import Path
from typing import cast

import pytest

from skillwire.core.entry import SkillEntry
from skillwire.core.errors import DigestMismatchError, LimitError, SizeMismatchError, UnlistedFileError
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_TOTAL_SIZE, UNKNOWN_SIZE, Manifest, ManifestFile, digest_of
from skillwire.core.uri import SkillUri
from skillwire.host.connect.connection import Connection
from skillwire.host.model.approval import DynamicFiles
from skillwire.host.model.origin import KnownSkill, SkillId
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import ContentCache, UnpackedArchives
from skillwire.host.use.fetch import NO_ARCHIVES, Archives, Files
from unit.host.known_skills import server, skill_md

URI = SkillUri.build("shop/refunds")
DATA = URI.join("data.bin")


class Server:
    """A server that sends what it has, and notes how much it was allowed to send."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.allowed: list[int] = []

    async def read_file(self, uri: str, *, max_bytes: int) -> bytes:
        self.allowed.append(max_bytes)
        if len(self.content) > max_bytes:
            raise LimitError("it is larger than was asked for")
        return self.content


def fetcher(folder: Path, peer: Server) -> Files:
    audit = AuditLog(folder / "audit.jsonl")
    archives = Archives(NO_ARCHIVES, UnpackedArchives(folder / "trees"), audit)
    connections = {"acme": cast(Connection, peer)}
    return Files(connections, ContentCache(folder / "cache"), archives, audit)


def skill(content: bytes, size: int = UNKNOWN_SIZE) -> KnownSkill:
    own = skill_md()
    lines = [
        ManifestFile(URI.text, digest_of(own), UNKNOWN_SIZE),
        ManifestFile(DATA, digest_of(content), size),
    ]
    entry = SkillEntry(URI, parse_skill_md(own).frontmatter, Manifest.of(lines))
    return KnownSkill(SkillId(server(), URI.text), "acme/refunds", entry)


@pytest.mark.requirement("DRAFT-10")
async def test_without_a_size_the_digest_alone_decides_and_the_cache_is_filled(tmp_path: Path) -> None:
    peer = Server(b"some bytes")
    fetched = DynamicFiles()
    files = fetcher(tmp_path, peer)

    first = await files.file(skill(b"some bytes"), DATA, fetched)
    second = await files.file(skill(b"some bytes"), DATA, fetched)

    assert first == second == b"some bytes"
    assert peer.allowed == [MAX_TOTAL_SIZE]
    assert fetched.remaining_bytes == MAX_TOTAL_SIZE - len(first)
    with pytest.raises(DigestMismatchError):
        await files.file(skill(b"other bytes"), DATA, fetched)


@pytest.mark.requirement("LIM-06")
async def test_files_without_sizes_cost_no_more_together_than_a_skill_may(tmp_path: Path) -> None:
    fetched = DynamicFiles()
    fetched.count("skill://shop/refunds/other.bin", MAX_TOTAL_SIZE - 4)

    with pytest.raises(LimitError) as caught:
        await fetcher(tmp_path, Server(b"12345")).file(skill(b"12345"), DATA, fetched)
    assert caught.value.refusal == "over-limit"

    fetched.count("skill://shop/refunds/more.bin", 4)
    peer = Server(b"1")
    with pytest.raises(LimitError):
        await fetcher(tmp_path, peer).file(skill(b"1"), DATA, fetched)
    assert peer.allowed == []


@pytest.mark.requirement("INT-03")
async def test_with_a_size_more_bytes_are_a_broken_promise(tmp_path: Path) -> None:
    with pytest.raises(SizeMismatchError):
        await fetcher(tmp_path, Server(b"12345")).file(skill(b"12345", 4), DATA, DynamicFiles())


@pytest.mark.requirement("INT-04")
@pytest.mark.parametrize(
    "uri", ["skill://shop/payments/SKILL.md", "skill://shop/refunds-2/a.md", "file:///etc/passwd"]
)
async def test_a_file_outside_a_skill_without_digests_is_not_even_asked_for(uri: str, tmp_path: Path) -> None:
    peer = Server(b"secret")
    entry = SkillEntry(URI, parse_skill_md(skill_md()).frontmatter, None)
    dynamic = KnownSkill(SkillId(server(), URI.text), "acme/refunds", entry)

    with pytest.raises(UnlistedFileError):
        await fetcher(tmp_path, peer).file(dynamic, uri, DynamicFiles())

    assert peer.allowed == []
