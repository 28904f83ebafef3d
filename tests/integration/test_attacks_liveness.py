"""Servers that never end, never begin, or end too early. The numbers are those of the threat model."""

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from hostile.catalog import DESCRIPTION, SKILL_FILE, skill
from hostile.hosting import BODY_URI, LABEL, REFUNDS, REPORTS, User, config, hosting, refused, visiting
from hostile.integrity import MARK
from hostile.liveness import MAX_BYTES
from hostile.running import WIRES, Peer, hostile
from skillwire.host import HostLimits
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.connect.connection import Connection
from skillwire.host.host import Host

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

HONEST = "honest"
OWN = [f"{HONEST}/refunds", f"{HONEST}/reports"]


def codes(host: Host) -> dict[str, str]:
    """Return what is wrong with each server."""
    return {
        status.origin.label: status.problem.code if status.problem is not None else ""
        for status in host.view.servers
    }


def references(host: Host) -> list[str]:
    return [skill.reference for skill in host.view.skills]


async def ended(peer: Peer) -> list[int]:
    """Wait a moment for the peer's processes to be gone, and return those that are not."""
    with anyio.move_on_after(10):
        while peer.living():  # noqa: ASYNC110 - they are other processes
            await anyio.sleep(0.05)
    return peer.living()


@everywhere
@pytest.mark.requirement("LIST-18")
async def test_a_listing_that_repeats_itself_is_given_up_and_what_came_is_kept(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 53."""
    expected = {
        "same": "endless-listing",
        "cycle": "endless-listing",
        "own-cursor": "endless-listing",
        "blank": "endless-listing",
        "number": "invalid-answer",
        "long": "invalid-answer",
    }
    outcome: dict[str, tuple[str, list[str]]] = {}
    async with visiting("endless_listing", tmp_path, transport=transport, era=era, form="same") as visit:
        for form in expected:
            visit.peer.say(form=form)
            visit.peer.forget()
            await visit.host.refresh(force=True)
            outcome[form] = (visit.problem(), visit.references())
            assert len(visit.peer.requests("skills/list")) <= 6, form
        loaded = await visit.host.load(REFUNDS)

        assert outcome == {form: (code, [REFUNDS, REPORTS]) for form, code in expected.items()}
        assert "Read [the policy]" in loaded.text


@pytest.mark.parametrize("form", ["fresh", "empty"])
@pytest.mark.requirement("LIST-18")
@pytest.mark.requirement("LIM-05")
async def test_a_listing_with_ever_new_pages_ends_at_a_limit_and_what_came_is_kept(
    form: str, tmp_path: Path
) -> None:
    """Attack 53."""
    user = User()
    async with (
        hostile("endless_listing", era="modern", form=form) as endless,
        hostile("honest", transport="http") as honest,
        hosting(tmp_path, [config(endless, seconds=4.0), config(honest, HONEST)], user=user) as host,
    ):
        early = await host.refresh(wait_seconds=2.0)
        await host.refresh()

        assert {*OWN} <= {skill.reference for skill in early.skills}
        assert codes(host)[LABEL] in ("endless-listing", "too-slow")
        assert {*OWN, REFUNDS, REPORTS} <= {*references(host)}
        assert len(endless.requests("skills/list")) <= 1001
        assert endless.reads() == []


@pytest.mark.requirement("LIST-18")
async def test_a_directory_with_ever_new_pages_ends_at_a_limit(tmp_path: Path) -> None:
    """Attack 53."""
    async with visiting("endless_directory", tmp_path, transport="http", era="modern", seconds=3.0) as visit:
        await visit.host.load(REFUNDS)
        error = await refused(visit.host.read_skill_directory(REFUNDS))

        assert error.refusal in ("endless-listing", "too-slow")
        assert len(visit.peer.requests("resources/directory/read")) <= 1001


@pytest.mark.requirement("LIM-05")
async def test_a_very_long_listing_is_known_in_full_without_a_single_read(tmp_path: Path) -> None:
    """Attack 54."""
    async with (
        hostile("huge_listing", era="modern", entries=20_000, page=2000) as huge,
        hosting(tmp_path, [config(huge)], user=User(), limits=HostLimits(wait_seconds=60)) as host,
    ):
        assert len(host.view.skills) == 20_000
        assert codes(host) == {LABEL: ""}
        assert len(huge.requests("skills/list")) == 10
        assert huge.reads() == []


@pytest.mark.parametrize(
    "limits",
    [
        ConnectionLimits(max_entries=500),
        ConnectionLimits(max_pages=5),
        ConnectionLimits(max_listing_bytes=100_000),
    ],
    ids=["entries", "pages", "bytes"],
)
@pytest.mark.requirement("LIST-18")
async def test_a_listing_that_passes_a_limit_ends_there_and_what_came_is_kept(
    limits: ConnectionLimits,
) -> None:
    """Attack 54."""
    async with hostile("huge_listing", transport="http", entries=100_000, page=100) as huge:
        with anyio.fail_after(60):
            async with Connection(config(huge), limits=limits) as connection:
                listing = await connection.list_skills()

        assert listing.problem is not None and listing.problem.refusal == "endless-listing"
        assert 100 <= len(listing.entries) <= 500
        assert len(huge.requests("skills/list")) <= 7


@pytest.mark.parametrize("at", ["skills/list", "resources/read", "server/discover"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.requirement("LIM-06")
async def test_a_message_of_hundreds_of_megabytes_is_never_held(
    transport: str, at: str, tmp_path: Path
) -> None:
    """Attack 54."""
    before = most_memory()
    async with (
        hostile("huge_message", transport=transport, era="modern", at=at, bytes=400_000_000) as huge,
        hostile("honest") as honest,
        hosting(
            tmp_path, [config(huge), config(honest, HONEST)], user=User(), limits=HostLimits(wait_seconds=20)
        ) as host,
    ):
        problem = codes(host)[LABEL]
        error = await refused(host.load(REFUNDS))
        mine = await host.load(f"{HONEST}/refunds")

        assert "message-too-large" in (problem, error.refusal)
        assert "Read [the policy]" in mine.text
        assert most_memory() - before < 200_000_000


def most_memory() -> int:
    """Return the most memory this process ever held, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@everywhere
@pytest.mark.requirement("LIM-01")
async def test_a_skill_as_large_as_one_may_be_is_loaded_and_read(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 55."""
    async with visiting("at_the_limit", tmp_path, transport=transport, era=era, form="files") as visit:
        await visit.host.load(REFUNDS)
        files = visit.host.list_skill_files(REFUNDS)
        last = await visit.host.read_skill_bytes(REFUNDS, files[-1].path)
        visit.host.close(REFUNDS)
        visit.peer.say(form="bytes")
        await visit.host.refresh(force=True)
        await visit.host.load(REFUNDS)
        large = await visit.host.read_skill_bytes(REFUNDS, "data/all.bin")

        assert len(files) == 511 and last == b"510\n"
        assert len(large) + len(skill("acme/refunds", description=DESCRIPTION).files[SKILL_FILE]) == MAX_BYTES


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.requirement("LIM-01")
async def test_the_largest_file_there_may_be_arrives_as_an_event_too(era: str, tmp_path: Path) -> None:
    """Attack 55."""
    async with visiting(
        "at_the_limit", tmp_path, transport="http", era=era, form="bytes", events=True
    ) as visit:
        await visit.host.load(REFUNDS)
        large = await visit.host.read_skill_bytes(REFUNDS, "data/all.bin")

        assert len(large) > MAX_BYTES - 1000


@pytest.mark.parametrize(
    ("scenario", "form"),
    [
        ("at_the_limit", "files-over"),
        ("at_the_limit", "bytes-over"),
        ("claims", "files"),
        ("claims", "bytes"),
    ],
)
@pytest.mark.requirement("LIM-02")
async def test_a_skill_beyond_a_limit_is_declined_before_anyone_is_asked_or_anything_is_read(
    scenario: str, form: str, tmp_path: Path
) -> None:
    """Attack 55."""
    async with visiting(scenario, tmp_path, form=form, era="modern") as visit:
        error = await refused(visit.host.load(REFUNDS))
        chain = await visit.host.explain(REFUNDS)

        assert error.refusal == "over-limit"
        assert not chain.can_be_loaded
        assert visit.peer.reads() == []
        assert visit.user.questions == []


@pytest.mark.parametrize(
    ("transport", "at", "form"),
    [
        ("stdio", "skills/list", "silent"),
        ("stdio", "server/discover", "drops"),
        ("stdio", "initialize", "silent"),
        ("http", "skills/list", "drops"),
        ("http", "server/discover", "silent"),
        ("http", "initialize", "comments"),
    ],
)
@pytest.mark.requirement("LIST-18")
@pytest.mark.requirement("HOST-01")
async def test_a_server_that_hangs_costs_its_own_deadline_and_nobody_elses_time(
    transport: str, at: str, form: str, tmp_path: Path
) -> None:
    """Attack 56."""
    era = "legacy" if at == "initialize" else "modern"
    async with (
        hostile("slow", transport=transport, era=era, at=at, form=form) as slow,
        hostile("honest") as honest,
    ):
        start = time.monotonic()
        async with hosting(
            tmp_path,
            [config(slow, seconds=2.0), config(honest, HONEST)],
            user=User(),
            limits=HostLimits(wait_seconds=1.0),
        ) as host:
            opened = time.monotonic() - start
            mine = await host.load(f"{HONEST}/refunds")
            loaded = time.monotonic() - start
            await host.refresh()

            assert references(host) == OWN
            assert codes(host) == {LABEL: "too-slow", HONEST: ""}
            assert "Read [the policy]" in mine.text
        assert opened < 8 and loaded < 10
        assert len(slow.requests(at)) <= 2


@everywhere
@pytest.mark.requirement("LIST-18")
async def test_a_read_that_is_never_answered_is_given_up_and_the_server_stays_usable(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 56."""
    async with visiting(
        "slow", tmp_path, transport=transport, era=era, at="resources/read", form="silent", seconds=1.5
    ) as visit:
        error = await refused(visit.host.load(REFUNDS))
        visit.peer.say(quick=True)
        loaded = await visit.host.load(REFUNDS)

        assert error.refusal == "too-slow"
        assert "Read [the policy]" in loaded.text


@pytest.mark.parametrize("at", ["skills/list", "server/discover"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.requirement("HOST-01")
async def test_a_server_that_keeps_leaving_is_not_chased(transport: str, at: str, tmp_path: Path) -> None:
    """Attack 57."""
    async with (
        hostile("leaves", transport=transport, at=at) as flapping,
        hostile("honest") as honest,
        hosting(tmp_path, [config(flapping), config(honest, HONEST)], user=User()) as host,
    ):
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            await host.refresh(force=True)
            await refused(host.load(REFUNDS))
            await anyio.sleep(0.01)

        attempts = max(len(flapping.requests("initialize")), len(flapping.requests(at)))
        assert attempts <= 6
        assert references(host) == OWN
        assert codes(host)[LABEL] in ("server-unavailable", "server-error")
    assert await ended(flapping) == []


@everywhere
@pytest.mark.requirement("HOST-01")
async def test_a_server_that_left_during_a_read_is_found_again_when_a_person_asks(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 57."""
    async with visiting("leaves", tmp_path, transport=transport, era=era, at="resources/read") as visit:
        error = await refused(visit.host.load(REFUNDS))
        visit.peer.say(stay=True)
        await visit.host.refresh(by_user=True)
        loaded = await visit.host.load(REFUNDS)

        assert error.refusal in ("server-unavailable", "server-error")
        assert "Read [the policy]" in loaded.text
        assert visit.references() == [REFUNDS, REPORTS]


@pytest.mark.requirement("HOST-01")
async def test_a_child_that_ignores_every_request_to_end_is_gone_with_its_host(tmp_path: Path) -> None:
    """Attack 57."""
    async with hostile("honest", era="legacy", stubborn=True) as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.refresh()
            started = peer.pids()
        left = await ended(peer)

    assert len(started) == 1
    assert left == []


@everywhere
@pytest.mark.requirement("LIST-15")
async def test_lifetimes_that_are_none_are_bounded_at_both_ends(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 60."""
    forms = (
        "zero",
        "eternal",
        "negative",
        "beyond",
        "text",
        "true",
        "half",
        "null",
        "scope",
        "scope-number",
    )
    async with visiting("odd_ttl", tmp_path, transport=transport, era=era, form="zero") as visit:
        for form in forms:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            visit.peer.forget()
            for _ in range(5):
                await visit.host.refresh()
            [status] = visit.host.view.servers
            assert status.fresh_until is not None and status.listed_at is not None, form
            lifetime = status.fresh_until - status.listed_at
            # The difference of two times, so not to the last digit.
            assert 4.999 <= lifetime <= 3600.001, form
            assert visit.references() == [REFUNDS, REPORTS], form
            assert visit.peer.requests("skills/list") == [], form


@pytest.mark.parametrize("form", ["not-a-number", "infinite"])
@pytest.mark.requirement("LIST-15")
async def test_a_lifetime_that_is_no_json_does_no_more_harm_than_any_other_broken_answer(
    form: str, tmp_path: Path
) -> None:
    """Attack 60."""
    async with visiting("odd_ttl", tmp_path, form=form, era="modern", seconds=2.0) as visit:
        [status] = visit.host.view.servers

        lifetime = (status.fresh_until or 0) - (status.listed_at or 0)
        assert lifetime <= 3600
        assert visit.references() == [REFUNDS, REPORTS] or visit.problem() in ("invalid-answer", "too-slow")


@pytest.mark.parametrize("form", ["log", "answers", "changes", "questions"])
@pytest.mark.requirement("LIST-18")
async def test_a_server_that_floods_is_cut_off_and_starves_nobody(form: str, tmp_path: Path) -> None:
    """Attack 57."""
    # Questions are answered one by one, and a busy machine may not come to more than the usual 500 a second.
    usual = ConnectionLimits()
    connections = replace(usual, messages_per_second=50) if form == "questions" else usual
    limits = HostLimits(wait_seconds=20, connections=connections)
    async with (
        hostile("floods", era="modern", form=form) as flooding,
        hostile("honest", transport="http") as honest,
        hosting(tmp_path, [config(flooding), config(honest, HONEST)], user=User(), limits=limits) as host,
    ):
        mine = await host.load(f"{HONEST}/refunds")

        assert codes(host) == {LABEL: "flooding", HONEST: ""}
        assert "Read [the policy]" in mine.text
    assert await ended(flooding) == []


async def test_a_server_that_asks_the_host_for_something_gets_nothing(tmp_path: Path) -> None:
    async with visiting("asks_back", tmp_path, era="legacy") as visit:
        loaded = await visit.host.load(REFUNDS)

        assert visit.references() == [REFUNDS, REPORTS]
        assert MARK not in loaded.text


@pytest.mark.parametrize(("at", "transport"), [("skills/list", "stdio"), ("resources/read", "http")])
@pytest.mark.requirement("NEG-18")
async def test_a_request_for_input_is_never_taken_for_an_answer(
    at: str, transport: str, tmp_path: Path
) -> None:
    async with visiting(
        "wants_input", tmp_path, transport=transport, era="modern", at=at, seconds=4.0
    ) as visit:
        error = await refused(visit.host.load(REFUNDS))

        if at == "skills/list":
            assert (visit.problem(), visit.references()) == ("invalid-answer", [])
        else:
            assert error.refusal == "invalid-answer"
        assert MARK not in str(error)
        assert visit.host.loaded == ()


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.requirement("SDK-03")
async def test_an_answer_that_is_none_costs_only_the_server_that_gave_it(
    transport: str, tmp_path: Path
) -> None:
    forms = (
        "words",
        "half",
        "deep",
        "other-id",
        "list",
        "bytes",
        "surrogate",
        "both",
        "result-is-list",
        "result-is-text",
    )
    found: dict[str, str] = {}
    async with hostile("honest") as honest:
        for form in forms:
            async with (
                hostile("not_json", transport=transport, era="modern", form=form) as odd,
                hosting(tmp_path, [config(odd, seconds=1.0), config(honest, HONEST)], user=User()) as host,
            ):
                found[form] = codes(host)[LABEL]
                if form != "both":
                    assert references(host) == OWN, form
                assert codes(host)[HONEST] == "", form

    allowed = {"too-slow", "invalid-answer", "server-error", "server-unavailable"}
    assert {form: code for form, code in found.items() if form != "both" and code not in allowed} == {}


@pytest.mark.requirement("HOST-13")
async def test_a_server_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    async with (
        hostile("honest", transport="http") as elsewhere,
        hostile("redirects", transport="http", era="modern", target=elsewhere.url) as pointing,
        hosting(tmp_path, [config(pointing)], user=User()) as host,
    ):
        await host.refresh()

        assert references(host) == []
        assert codes(host)[LABEL]
        assert elsewhere.requests() == []


@everywhere
@pytest.mark.requirement("HOST-19")
@pytest.mark.requirement("APPR-03")
async def test_an_announced_change_is_looked_at_when_someone_asks_and_never_before(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("honest", tmp_path, transport=transport, era=era) as visit:
        await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        if era == "modern":
            await visit.peer.seen("subscriptions/listen")
        visit.peer.forget()
        visit.peer.announce(version=2)
        with anyio.fail_after(15):
            while visit.host.view.servers[0].state != "stale":  # noqa: ASYNC110 - the view is looked at
                await anyio.sleep(0.05)
        untouched = visit.peer.requests("skills/list")
        loaded = await visit.host.load(REFUNDS)

        assert untouched == []
        assert "later, v02X" in loaded.text
        assert len(visit.user.questions) == 2
        assert visit.peer.reads() == [BODY_URI]
