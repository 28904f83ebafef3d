"""A web site behind a server of ours: served again, kept up to date, and kept when the site is away."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.server.mcpserver import MCPServer

from folders import skill_md
from integration.web_sites import (
    INDEX,
    OLD_INDEX,
    TEA,
    Page,
    WebSite,
    archive,
    digest,
    packed,
    single,
    web_site,
)
from skillwire.core.errors import InvalidUriError, NotFoundError, SkillError, SourceError
from skillwire.core.manifest import ManifestFile
from skillwire.gateway.gateway import Upstream
from skillwire.host import get_skill, list_skills
from skillwire.host.calls.exchange import read_skill_uri
from skillwire.host.model.endpoints import ServerConfig, SiteEndpoint
from skillwire.host.state.content import ContentCache
from skillwire.server import add_skills
from skillwire.sources.wellknown.source import WellKnownSource

BELOW = "/.well-known/agent-skills/"
BAG = {"references/a.md": b"things\n"}


@pytest.fixture
def site() -> Iterator[WebSite]:
    data = archive(files=BAG)
    with web_site() as found:
        found.index(single(), packed(data), ETag='"1"')
        found.put(f"{BELOW}tea/SKILL.md", TEA)
        found.put(f"{BELOW}bag.tar.gz", data)
        yield found


def uris(source: WellKnownSource) -> list[str]:
    return [entry.uri.text for entry in source.snapshot.entries]


def reported(source: WellKnownSource) -> list[str]:
    return [finding.code for report in source.snapshot.reports for finding in report.findings]


async def test_a_server_serves_a_site_again_with_a_digest_for_every_file(site: WebSite) -> None:
    server = MCPServer("relay")
    add_skills(server, WellKnownSource(site.url))

    async with Client(server) as client:
        listing = await list_skills(client)
        bag = await get_skill(client, "skill://bag/SKILL.md")
        content = await read_skill_uri(client, "skill://bag/references/a.md")

    assert [entry.uri.text for entry in listing.entries] == ["skill://bag/SKILL.md", "skill://tea/SKILL.md"]
    assert bag.manifest is not None
    assert bag.manifest.require("skill://bag/references/a.md") == ManifestFile.of(
        "skill://bag/references/a.md", b"things\n"
    )
    assert content == b"things\n"


@pytest.mark.requirement("DISC-09")
async def test_only_what_has_another_digest_is_fetched_again(site: WebSite) -> None:
    later = skill_md("tea", body="Brew it twice.\n")
    async with WellKnownSource(site.url, prefix="web") as source:
        assert uris(source) == ["skill://web/bag/SKILL.md", "skill://web/tea/SKILL.md"]
        assert sorted(site.paths) == [f"{BELOW}bag.tar.gz", INDEX, f"{BELOW}tea/SKILL.md"]
        before = source.snapshot
        await source.refresh()
        assert source.snapshot is before

        site.asked.clear()
        site.index(single(later), packed(archive(files=BAG), url="/elsewhere.tar.gz"), ETag='"2"')
        site.put(f"{BELOW}tea/SKILL.md", later)
        after = await source.refresh()

        assert site.paths == [INDEX, f"{BELOW}tea/SKILL.md"]
        assert after.changes_since(before).changed == ("skill://web/tea/SKILL.md",)
        assert await source.read_file("skill://web/tea/SKILL.md") == later


async def test_what_was_known_stays_while_the_site_is_in_trouble(site: WebSite) -> None:
    good = site.pages[INDEX]
    async with WellKnownSource(site.url) as source:
        for page in (Page(status=500), Page(b"{"), Page(status=404), Page(b'{"$schema": "x", "skills": []}')):
            site.pages[INDEX] = page
            with pytest.raises(SkillError):
                await source.refresh()
            assert uris(source) == ["skill://bag/SKILL.md", "skill://tea/SKILL.md"]
            assert reported(source) == ["upstream-failed"]
            assert await source.read_file("skill://tea/SKILL.md") == TEA

        site.pages[INDEX] = good
        await source.refresh()
        assert reported(source) == []

        site.index(single())
        await source.refresh()
        assert uris(source) == ["skill://tea/SKILL.md"]
        with pytest.raises(NotFoundError):
            await source.read_file("skill://bag/SKILL.md")


@pytest.mark.requirement("DISC-07")
async def test_a_skill_that_is_not_what_the_index_says_is_not_served(site: WebSite) -> None:
    liar, big = skill_md("cup"), skill_md("pot", body="x" * 5000)
    site.index(
        single(),
        {**single(liar, "cup", "cup.md"), "description": "Another."},
        single(skill_md("mug"), "mug", "mug.md"),
        single(big, "pot", "pot.md"),
    )
    site.put(f"{BELOW}cup.md", liar)
    site.put(f"{BELOW}mug.md", b"something else")
    site.put(f"{BELOW}pot.md", big)

    async with WellKnownSource(site.url, max_bytes=2000) as source:
        assert uris(source) == ["skill://tea/SKILL.md"]
        assert reported(source) == ["upstream-entry"] * 3


@pytest.mark.requirement("DISC-03")
async def test_a_site_of_the_oldest_form_is_copied_and_the_copy_has_digests() -> None:
    with web_site() as site:
        listed = {"name": "tea", "description": "Use when testing tea.", "files": ["SKILL.md", "a.md"]}
        site.put(OLD_INDEX, {"skills": [listed]})
        site.put("/.well-known/skills/tea/SKILL.md", TEA)
        site.put("/.well-known/skills/tea/a.md", b"things\n")

        async with WellKnownSource(site.url) as source:
            [entry] = source.snapshot.entries

        assert entry.manifest is not None
        assert entry.manifest.require("skill://tea/a.md").digest == digest(b"things\n")


async def test_a_site_that_is_away_at_first_is_no_reason_not_to_start() -> None:
    async with WellKnownSource("http://127.0.0.1:1") as source:
        assert uris(source) == []
        assert reported(source) == ["upstream-failed"]


def test_what_is_no_site_is_refused_at_once() -> None:
    with pytest.raises(SourceError):
        WellKnownSource("http://example.org")
    with pytest.raises(InvalidUriError):
        WellKnownSource("https://example.org", prefix="a/../b")


async def test_a_gateway_passes_a_site_on_archives_and_all(site: WebSite, tmp_path: Path) -> None:
    server = ServerConfig("web", SiteEndpoint(site.url))

    async with Upstream(server, ContentCache(tmp_path), archives=True) as upstream:
        assert [entry.uri.text for entry in upstream.snapshot.entries] == [
            "skill://web/bag/SKILL.md",
            "skill://web/tea/SKILL.md",
        ]
        assert await upstream.read_file("skill://web/bag/references/a.md") == b"things\n"
        assert await upstream.read_file("skill://web/tea/SKILL.md") == TEA
