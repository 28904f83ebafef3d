"""The hostile peer itself: honest when it is told to be, and telling the truth about what it was asked."""

from contextlib import AsyncExitStack

import anyio
import pytest
from mcp.client import Client
from mcp.types import ResourceListChangedNotification

from hostile.catalog import refunds, reports
from hostile.running import WIRES, hostile
from hostile.scenarios import MODULES, SCENARIOS
from skillwire.core.errors import SkillError, VerificationError
from skillwire.host import get_skill, list_skills
from skillwire.host.calls.exchange import declared, read_skill_uri
from skillwire.host.calls.listing import read_directory

DEADLINE = 60.0

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])


@everywhere
async def test_an_honest_peer_lists_gets_reads_and_browses_what_it_publishes(
    transport: str, era: str
) -> None:
    async with hostile("honest", transport=transport, era=era, page=1) as peer:
        with anyio.fail_after(DEADLINE):
            async with Client(peer.target) as client:
                declaration = declared(client)
                listing = await list_skills(client)
                entry = await get_skill(client, refunds().uri)
                assert entry.manifest is not None
                for file in entry.manifest.files:
                    file.verify(await read_skill_uri(client, file.published))
                children = await read_directory(client, refunds().root)
                tools = await client.list_tools()

        assert declaration is not None and declaration.directory_read
        assert [skill.to_json() for skill in listing.entries] == [refunds().entry, reports().entry]
        assert listing.refused == ()
        assert entry.to_json() == refunds().entry
        assert [child.name for child in children] == ["SKILL.md", "assets", "references", "scripts"]
        assert tools.tools == []
        assert {asked.era for asked in peer.requests("skills/list")} == {era}
        assert [asked.params.get("cursor") for asked in peer.requests("skills/list")] == [None, "from-1"]
        assert len(peer.reads()) == len(entry.manifest.files)


@everywhere
async def test_a_peer_publishes_another_version_as_soon_as_it_is_told(transport: str, era: str) -> None:
    async with hostile("honest", transport=transport, era=era) as peer:
        with anyio.fail_after(DEADLINE):
            async with Client(peer.target) as client:
                before = await get_skill(client, refunds().uri)
                peer.say(version=2)
                after = await get_skill(client, refunds().uri)
                body = await read_skill_uri(client, refunds().uri, fresh=True)

    assert (before.to_json(), after.to_json()) == (refunds().entry, refunds(2).entry)
    assert body == refunds(2).files["SKILL.md"]
    assert len(body) == len(refunds().files["SKILL.md"])


@everywhere
async def test_a_peer_tells_its_hosts_that_its_listing_changed(transport: str, era: str) -> None:
    told = anyio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, ResourceListChangedNotification):
            told.set()

    async with hostile("honest", transport=transport, era=era) as peer:
        with anyio.fail_after(DEADLINE):
            async with Client(peer.target, message_handler=hear) as client, AsyncExitStack() as stack:
                if era == "modern":
                    changes = await stack.enter_async_context(client.listen(resources_list_changed=True))
                    peer.announce()
                    async for _ in changes:
                        told.set()
                        break
                else:
                    await list_skills(client)
                    peer.announce()
                await told.wait()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_question_that_is_never_answered_is_noted_all_the_same(transport: str) -> None:
    async with hostile("slow", transport=transport, form="silent") as peer:
        with anyio.fail_after(DEADLINE):
            async with Client(peer.target) as client:
                with pytest.raises(SkillError):
                    await list_skills(client, max_seconds=0.5)

        assert len(await peer.seen("skills/list")) == 1


async def test_a_lie_is_told_to_whoever_asks() -> None:
    async with hostile("swapped_body") as peer, Client(peer.target) as client:
        entry = await get_skill(client, refunds().uri)
        assert entry.manifest is not None
        body = await read_skill_uri(client, refunds().uri)

        with pytest.raises(VerificationError):
            entry.manifest.require(refunds().uri).verify(body)


async def test_a_peer_over_http_can_go_away_and_come_back_at_the_same_address() -> None:
    async with hostile("honest", transport="http") as peer:
        url = peer.url
        await peer.stop()
        gone = peer.living()
        await peer.restart()
        async with Client(peer.target) as client:
            listing = await list_skills(client)

    assert (gone, peer.url, len(listing.entries)) == ([], url, 2)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_peer_ends_when_its_test_does_even_if_it_ignores_every_request_to_end(transport: str) -> None:
    async with hostile("honest", transport=transport, stubborn=True) as peer:
        process = await anyio.open_process(
            peer.command, env={"PYTHONPATH": "", **peer.environment}, stderr=None, stdout=None
        )
        with anyio.fail_after(DEADLINE):
            while process.pid not in peer.pids():  # noqa: ASYNC110 - it is another process
                await anyio.sleep(0.02)
            process.terminate()

    with anyio.fail_after(DEADLINE):
        await process.wait()
    await process.aclose()


def test_every_scenario_says_which_attack_it_mounts_or_which_rule_it_breaks() -> None:
    ours = [scenario for scenario in SCENARIOS.values() if scenario.__module__ != "hostile.honest"]

    assert {scenario.__module__ for scenario in ours} == {module.__name__ for module in MODULES}
    assert all(scenario.__doc__ for scenario in ours)
