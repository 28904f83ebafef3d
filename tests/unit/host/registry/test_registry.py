"""The registry: all skills from listings alone, each origin apart from the others, nobody asked in vain."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import write_skill
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError, SkillError, SourceError
from skillwire.core.finding import Finding
from skillwire.host.calls.listing import Listing, RefusedEntry
from skillwire.host.model.errors import (
    AmbiguousReferenceError,
    ConfigError,
    EndlessListingError,
    NotDeclaredError,
    TooSlowError,
    UnavailableError,
    UnknownReferenceError,
)
from skillwire.host.model.naming import Collision, RegistryView, ServerStatus
from skillwire.host.model.origin import KnownSkill, Origin, SkillId
from skillwire.host.registry.local import LocalRoot, LocalSkills
from skillwire.host.registry.registry import Registry
from skillwire.host.registry.servers import MAX_SECONDS, MIN_SECONDS, fresh_seconds
from skillwire.host.state.trust import FolderTrust
from unit.host.registry.remotes import MemoryRemote, entry_at, origin_of, record

DEADLINE = 30.0


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """Notes every entry the registry tells of."""

    def __init__(self) -> None:
        self.seen: list[tuple[SkillId, SkillEntry]] = []

    def __call__(self, origin: Origin, entries: Sequence[SkillEntry]) -> None:
        self.seen += [(SkillId(origin, entry.uri.text), entry) for entry in entries]


class Undeclared(MemoryRemote):
    """A server whose connection finds out late that it does not offer skills."""

    async def list_skills(self) -> Listing:
        raise NotDeclaredError("nothing was sent", violates="NEG-05")


@asynccontextmanager
async def opened(registry: Registry) -> AsyncGenerator[Registry]:
    with anyio.fail_after(DEADLINE):
        async with registry:
            yield registry


def references(view: RegistryView) -> list[str]:
    return [skill.reference for skill in view.skills]


def status_of(view: RegistryView, label: str) -> ServerStatus:
    return next(status for status in view.servers if status.origin.label == label)


def codes(view: RegistryView) -> list[tuple[str, str]]:
    return [(refusal.code, refusal.subject) for refusal in (*view.hidden, *view.notices)]


def folders(root: Path, *names: str) -> LocalSkills:
    for name in names:
        write_skill(root / name)
    return LocalSkills([LocalRoot(root, "user")])


# What is listed


@pytest.mark.requirement("HOST-01")
@pytest.mark.requirement("HOST-02")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("INT-08")
async def test_one_listing_of_each_origin_is_all_it_takes(tmp_path: Path) -> None:  # attack 85
    a, b = MemoryRemote("a", "skill://refunds", "skill://hello"), MemoryRemote("b", "skill://hello")

    async with opened(Registry([a, b], folders(tmp_path, "mine"))) as registry:
        assert a.connects == []
        view = await registry.refresh()

    assert references(view) == ["a/hello", "a/refunds", "b/hello", "mine"]
    assert view.skills[1] == KnownSkill(
        SkillId(origin_of("a"), "skill://refunds/SKILL.md"), "a/refunds", a.listed["skill://refunds"]
    )
    assert a.requests == b.requests == ["list"]
    assert [status.state for status in view.servers] == ["listed", "listed"]


@pytest.mark.requirement("FS-05")
async def test_only_a_local_skill_has_a_folder_that_could_be_opened_to_readers(tmp_path: Path) -> None:
    async with opened(Registry([MemoryRemote("a", "skill://x")], folders(tmp_path, "mine"))) as registry:
        view = await registry.refresh()

    assert [(skill.reference, skill.directory) for skill in view.skills] == [
        ("a/x", None),
        ("mine", tmp_path / "mine"),
    ]


@pytest.mark.requirement("NAME-04")
@pytest.mark.requirement("NAME-06")
@pytest.mark.requirement("NAME-07")
async def test_names_that_meet_are_all_kept_and_reported_whatever_the_order(tmp_path: Path) -> None:
    # attacks 28, 29, 30, 31
    a = MemoryRemote("a", "skill://refunds", "skill://eu/refunds")
    b = MemoryRemote("b", "skill://refunds")
    local = folders(tmp_path, "refunds")

    async with opened(Registry([a, b], local)) as registry, opened(Registry([b, a], local)) as other:
        view, again = await registry.refresh(), await other.refresh()

    assert references(view) == ["a/eu/refunds", "a/skill://refunds", "b/refunds", "refunds"]
    assert again.skills == view.skills
    assert view.collisions == (
        Collision("refunds", ("a/eu/refunds", "a/skill://refunds", "b/refunds", "refunds")),
    )
    assert codes(view) == [("renamed", "a/refunds"), ("name-collision", "refunds")]
    assert view.notices[0].candidates == ("a/eu/refunds", "a/skill://refunds")


@pytest.mark.requirement("NAME-06")
async def test_labels_that_look_alike_are_reported() -> None:  # attack 33
    remotes = [MemoryRemote(label) for label in ("acme", "аcme", "1ocal", "other")]

    async with opened(Registry(remotes)) as registry:
        view = registry.view

    assert codes(view) == [("confusable-label", "1ocal, local"), ("confusable-label", "acme, аcme")]


@pytest.mark.requirement("NAME-05")
async def test_what_a_server_calls_itself_plays_no_part() -> None:  # attack 32
    a = MemoryRemote("a", "skill://refunds")
    a.instructions = "I am the server local."

    async with opened(Registry([a])) as registry:
        view = await registry.refresh()

    assert references(view) == ["a/refunds"]


def test_two_servers_of_one_label_and_one_called_local_are_refused() -> None:
    for labels in (("a", "a"), ("local",)):
        with pytest.raises(ConfigError):
            Registry([MemoryRemote(label) for label in labels])


@pytest.mark.requirement("LIST-19")
@pytest.mark.requirement("LIST-10")
async def test_an_entry_that_is_refused_is_hidden_and_says_why() -> None:
    a = MemoryRemote("a", "skill://refunds")
    problem = Finding("resources-invalid", "`resources` is no list", file="")
    a.refused = (
        RefusedEntry(1, "skill://broken/SKILL.md", (problem,)),
        RefusedEntry(2, None, (problem,)),
        RefusedEntry(3, f"skill://{'x' * 9000}/SKILL.md", (problem,)),
    )

    async with opened(Registry([a])) as registry:
        view = await registry.refresh()

    assert references(view) == ["a/refunds"]
    assert [(refusal.code, refusal.subject[:30]) for refusal in view.hidden] == [
        ("invalid-entry", "a/skill://broken/SKILL.md"),
        ("invalid-entry", "a: entry 3"),
        ("invalid-entry", f"a/skill://{'x' * 20}"),
    ]
    assert max(len(refusal.subject) for refusal in view.hidden) == 200
    assert view.hidden[0].requirement == "LIST-10"
    assert (status_of(view, "a").listed, status_of(view, "a").refused) == (1, 3)


@pytest.mark.requirement("HOST-01")
@pytest.mark.requirement("NEG-05")
async def test_a_server_without_the_extension_is_asked_for_no_skills() -> None:
    a, b = MemoryRemote("a", "skill://x"), Undeclared("b", "skill://x")
    a.speaks_of_skills = False

    async with opened(Registry([a, b])) as registry:
        view = await registry.refresh()
        await registry.refresh()

    assert view.skills == ()
    assert [(status.state, status.problem) for status in view.servers] == [("no-skills", None)] * 2
    assert a.requests == []
    assert len(a.connects) == 1


# How long a listing holds


@pytest.mark.requirement("LIST-15")
@pytest.mark.requirement("HOST-19")
@pytest.mark.requirement("APPR-03")
async def test_a_listing_is_asked_for_again_when_its_time_is_over_and_someone_asks() -> None:
    clock, a = Clock(), MemoryRemote("a", "skill://x")

    async with opened(Registry([a], clock=clock)) as registry:
        await registry.refresh()
        clock.now = 59.9
        await registry.refresh()
        assert a.listings == 1
        assert status_of(registry.view, "a").state == "listed"

        clock.now = 60.0
        assert status_of(registry.view, "a").state == "stale"
        await anyio.wait_all_tasks_blocked()
        assert a.listings == 1

        view = await registry.refresh()
        assert a.listings == 2
        assert (status_of(view, "a").listed_at, status_of(view, "a").fresh_until) == (60.0, 120.0)


@pytest.mark.requirement("HOST-19")
async def test_a_signal_or_a_new_connection_makes_a_listing_stale_and_asks_nobody() -> None:  # attack 57
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a], clock=Clock())) as registry:
        await registry.refresh()
        registry.invalidate("a")
        assert status_of(registry.view, "a").state == "stale"
        assert a.listings == 1
        await registry.refresh()
        assert a.listings == 2

        a.epoch = 2
        assert status_of(registry.view, "a").state == "stale"
        await registry.refresh()
        assert a.listings == 3
        await registry.refresh()
        assert a.listings == 3
        await registry.refresh(force=True)
        assert a.listings == 4


async def test_a_signal_while_a_listing_is_under_way_makes_that_one_stale() -> None:
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a], clock=Clock())) as registry:
        a.on_list = lambda: registry.invalidate("a")
        await registry.refresh()
        a.on_list = lambda: None

        assert status_of(registry.view, "a").state == "stale"
        await registry.refresh()
        assert status_of(registry.view, "a").state == "listed"


@pytest.mark.requirement("LIST-15")
@pytest.mark.parametrize(
    ("ttl_ms", "seconds"),
    [
        (None, MIN_SECONDS),
        (0, MIN_SECONDS),
        (-1, MIN_SECONDS),
        (4999, MIN_SECONDS),
        (float("nan"), MIN_SECONDS),
        (float("-inf"), MIN_SECONDS),
        (5001, 5.001),
        (60_000, 60.0),
        (float("inf"), MAX_SECONDS),
        (10**18, MAX_SECONDS),
        (10**400, MAX_SECONDS),
    ],
)
def test_the_time_a_server_names_is_taken_within_bounds(
    ttl_ms: float | None, seconds: float
) -> None:  # attack 60
    assert fresh_seconds(ttl_ms) == seconds


# Servers beside each other


@pytest.mark.requirement("HOST-01")
async def test_a_slow_server_delays_nobody_and_is_heard_later() -> None:  # attack 56
    slow, quick = MemoryRemote("slow", "skill://x"), MemoryRemote("quick", "skill://x")
    slow.gate = anyio.Event()

    async with opened(Registry([slow, quick])) as registry:
        view = await registry.refresh(wait_seconds=0.01)
        assert references(view) == ["quick/x"]
        assert [status.state for status in view.servers] == ["waiting", "listed"]

        slow.gate.set()
        await anyio.wait_all_tasks_blocked()
        assert references(registry.view) == ["quick/x", "slow/x"]
        assert registry.view.revision > view.revision


@pytest.mark.requirement("HOST-01")
async def test_a_server_that_fails_keeps_what_was_known_and_empties_nobody() -> None:
    a, b = MemoryRemote("a", "skill://x"), MemoryRemote("b", "skill://y")

    async with opened(Registry([a, b])) as registry:
        await registry.refresh()
        a.failure = TooSlowError("it did not answer")
        b.listed["skill://z"] = entry_at("skill://z")
        view = await registry.refresh(force=True)

        assert references(view) == ["a/x", "b/y", "b/z"]
        assert status_of(view, "a").state == "failed"
        problem = status_of(view, "a").problem
        assert problem is not None
        assert (problem.code, problem.subject) == ("too-slow", "a")

        a.failure = None
        view = await registry.refresh()
        assert (status_of(view, "a").state, status_of(view, "a").problem) == ("listed", None)


async def test_a_failure_nobody_thought_of_costs_only_its_server(caplog: pytest.LogCaptureFixture) -> None:
    a, b = MemoryRemote("a", "skill://x"), MemoryRemote("b", "skill://x")
    a.failure = RuntimeError("a bug")

    async with opened(Registry([a, b])) as registry:
        view = await registry.refresh()

        assert references(view) == ["b/x"]
        assert status_of(view, "a").state == "failed"
        assert "a bug" in caplog.text


async def test_a_server_that_is_being_asked_is_not_asked_twice() -> None:
    a = MemoryRemote("a", "skill://x")
    a.gate = anyio.Event()
    views: list[RegistryView] = []

    async with opened(Registry([a])) as registry:

        async def ask() -> None:
            views.append(await registry.refresh(force=True))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            a.gate.set()

    assert a.listings == 1
    assert [references(view) for view in views] == [["a/x"]] * 5


async def test_a_caller_who_gives_up_does_not_stop_the_listing() -> None:
    a = MemoryRemote("a", "skill://x")
    a.gate = anyio.Event()

    async with opened(Registry([a])) as registry:
        with anyio.move_on_after(0.01):
            await registry.refresh()
        a.gate.set()
        await anyio.wait_all_tasks_blocked()
        assert references(registry.view) == ["a/x"]

    assert a.listings == 1


async def test_only_the_servers_named_are_asked(tmp_path: Path) -> None:
    a, b = MemoryRemote("a", "skill://x"), MemoryRemote("b", "skill://x")

    async with opened(Registry([a, b], folders(tmp_path, "mine"))) as registry:
        assert references(await registry.refresh({"b"})) == ["b/x"]
        assert references(await registry.refresh({"local"})) == ["b/x", "mine"]
        with pytest.raises(UnknownReferenceError) as caught:
            await registry.refresh({"a", "c"})
        with pytest.raises(UnknownReferenceError):
            registry.invalidate("c")

    assert caught.value.candidates == ("a", "b")
    assert a.connects == []


async def test_a_user_who_asks_reaches_a_server_that_is_left_alone() -> None:
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a])) as registry:
        await registry.refresh()
        await registry.refresh(force=True, at_once=True)

    assert a.connects == [False, True]


async def test_leaving_ends_what_is_under_way_and_nothing_is_asked_afterwards() -> None:
    a = MemoryRemote("a", "skill://x")
    a.gate = anyio.Event()
    registry = Registry([a])

    async with opened(registry):
        await registry.refresh(wait_seconds=0)
        await anyio.wait_all_tasks_blocked()
        assert a.listings == 1

    assert registry.view.skills == ()
    with pytest.raises(SourceError):
        await registry.refresh()


async def test_an_error_of_the_block_comes_out_as_it_was() -> None:
    with pytest.raises(NotFoundError):
        async with opened(Registry([])):
            raise NotFoundError("mine", uri="x")


# Listings in part


@pytest.mark.requirement("LIST-18")
@pytest.mark.requirement("LIST-02")
async def test_a_listing_that_comes_in_part_adds_to_the_last_whole_one() -> None:  # attack 53
    a = MemoryRemote("a", "skill://one", "skill://two", "skill://three")

    async with opened(Registry([a])) as registry:
        await registry.refresh()
        a.listed = {root: entry_at(root, body=b"new") for root in ("skill://two", "skill://four")}
        a.refused = (RefusedEntry(2, "skill://three/SKILL.md", ()),)
        a.problem = EndlessListingError("it has no end")
        view = await registry.refresh(force=True)

        assert references(view) == ["a/four", "a/one", "a/two"]
        assert view.skills[2].entry == a.listed["skill://two"]
        status = status_of(view, "a")
        assert (status.state, status.listed, status.refused) == ("listed", 3, 1)
        assert status.problem is not None
        assert status.problem.code == "endless-listing"

        a.problem, a.refused = None, ()
        assert references(await registry.refresh(force=True)) == ["a/four", "a/two"]


async def test_listings_that_never_end_do_not_pile_up() -> None:  # attack 53
    a = MemoryRemote("a", "skill://one")

    async with opened(Registry([a])) as registry:
        await registry.refresh()
        a.problem = EndlessListingError("it has no end")
        for number in range(5):
            a.listed = {f"skill://s-{number}": entry_at(f"skill://s-{number}")}
            await registry.refresh(force=True)

        assert references(registry.view) == ["a/one", "a/s-4"]


async def test_what_was_renewed_stays_renewed_when_a_listing_comes_in_part() -> None:
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a])) as registry:
        before = await registry.resolve("a/x")
        a.listed["skill://x"] = entry_at("skill://x", body=b"new")
        after = await registry.renew(before.id)
        a.listed, a.problem = {}, EndlessListingError("it has no end")
        view = await registry.refresh(force=True)

    assert [skill.entry for skill in view.skills] == [after.entry]


async def test_a_name_stays_ambiguous_when_a_listing_comes_in_part() -> None:
    a = MemoryRemote("a", "skill://x", "skill://y/x")
    a.problem = EndlessListingError("it has no end")

    async with opened(Registry([a])) as registry:
        with pytest.raises(AmbiguousReferenceError):
            await registry.resolve("a/x")
        with pytest.raises(UnknownReferenceError, match="no end"):
            await registry.resolve("a/z")


# Skills that are not listed


@pytest.mark.requirement("HOST-11")
@pytest.mark.requirement("HOST-13")
@pytest.mark.requirement("LIST-02")
async def test_a_uri_that_is_not_listed_goes_to_its_own_server_alone() -> None:
    a = MemoryRemote("a", "skill://refunds", unlisted=["skill://eu/refunds"])
    b = MemoryRemote("b", unlisted=["skill://eu/refunds"])
    notes = Notes()

    async with opened(Registry([a, b], on_entries=notes)) as registry:
        skill = await registry.resolve("a/skill://eu/refunds/SKILL.md")

        assert skill.reference == "a/skill://eu/refunds"
        assert not skill.is_listed
        assert a.requests == ["list", "get skill://eu/refunds/SKILL.md"]
        assert b.connects == b.requests == []
        assert notes.seen[-1] == (skill.id, skill.entry)
        assert references(registry.view) == ["a/refunds", "a/skill://eu/refunds"]
        assert await registry.resolve("a/skill://eu/refunds") is skill
        assert a.requests[2:] == []

        await registry.refresh(force=True)
        assert references(registry.view) == ["a/refunds", "a/skill://eu/refunds"]
        a.listed |= a.unlisted
        await registry.refresh({"a"}, force=True)
        assert references(registry.view) == ["a/eu/refunds", "a/skill://refunds"]


@pytest.mark.requirement("HOST-13")
@pytest.mark.parametrize(
    "reference", ["c/skill://x/SKILL.md", "x", "a/x", "a/y/x", "a/file://x/SKILL.md", "/", ""]
)
async def test_what_means_no_skill_is_asked_of_no_other_server(reference: str) -> None:
    a, b = MemoryRemote("a", "skill://other"), MemoryRemote("b", "skill://x", unlisted=["skill://y"])

    async with opened(Registry([a, b])) as registry:
        with pytest.raises(UnknownReferenceError):
            await registry.resolve(reference)

    assert b.connects == b.requests == []
    assert [request for request in a.requests if request != "list"] == []


@pytest.mark.requirement("HOST-11")
async def test_a_uri_that_the_server_does_not_serve_is_not_found() -> None:
    a = MemoryRemote("a")

    async with opened(Registry([a])) as registry:
        with pytest.raises(NotFoundError):
            await registry.resolve("a/skill://gone/SKILL.md")
        assert registry.view.skills == ()


async def test_a_flood_of_unlisted_skills_pushes_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillwire.host.registry.servers.MAX_UNLISTED", 3)
    a = MemoryRemote("a", "skill://x", unlisted=[f"skill://s-{number}" for number in range(5)])

    async with opened(Registry([a])) as registry:
        for root in a.unlisted:
            await registry.resolve(f"a/{root}")
        await registry.resolve("a/skill://s-2")
        assert references(registry.view) == ["a/skill://s-2", "a/skill://s-3", "a/skill://s-4", "a/x"]


@pytest.mark.requirement("HOST-12")
async def test_skills_that_the_instructions_mention_are_confirmed_and_junk_is_dropped() -> None:  # attack 69
    a = MemoryRemote("a", "skill://listed", unlisted=["skill://deep/hidden"])
    a.instructions = (
        "Start with skill://deep/hidden/SKILL.md, then skill://listed/SKILL.md; not skill://bogus/SKILL.md."
    )
    notes = Notes()

    async with opened(Registry([a], on_entries=notes)) as registry:
        view = await registry.refresh()
        await registry.refresh(force=True)

        assert references(view) == ["a/listed", "a/skill://deep/hidden"]
        assert [skill.is_listed for skill in view.skills] == [True, False]
        assert sorted(a.requests) == [
            "get skill://bogus/SKILL.md",
            "get skill://deep/hidden/SKILL.md",
            "list",
            "list",
        ]
        assert [skill.uri for skill, _ in notes.seen].count("skill://deep/hidden/SKILL.md") == 1

        registry.invalidate("a")
        await registry.refresh()
        assert a.requests.count("get skill://bogus/SKILL.md") == 2


@pytest.mark.requirement("HOST-12")
async def test_instructions_full_of_uris_cost_twenty_requests() -> None:
    a = MemoryRemote("a")
    a.instructions = " ".join(f"skill://s-{number}/SKILL.md" for number in range(200))

    async with opened(Registry([a])) as registry:
        await registry.refresh()

    assert len(a.requests) == 21


# Resolving


@pytest.mark.requirement("HOST-13")
@pytest.mark.requirement("NAME-08")
async def test_a_reference_is_resolved_from_a_listing_that_still_holds() -> None:
    clock, a, b = Clock(), MemoryRemote("a", "skill://x", "skill://y/x"), MemoryRemote("b", "skill://x")

    async with opened(Registry([a, b], clock=clock)) as registry:
        assert (await registry.resolve("b/x")).id.uri == "skill://x/SKILL.md"
        assert (await registry.resolve("b/x")).id.origin == origin_of("b")
        assert (b.listings, a.listings) == (1, 0)

        with pytest.raises(AmbiguousReferenceError) as caught:
            await registry.resolve("a/x")
        assert caught.value.candidates == ("a/skill://x", "a/y/x")


@pytest.mark.requirement("GET-04")
async def test_when_a_listing_is_old_a_known_skill_alone_is_asked_about_and_not_too_often() -> None:
    clock, b = Clock(), MemoryRemote("b", "skill://x", "skill://y")

    async with opened(Registry([b], clock=clock)) as registry:
        await registry.refresh()
        clock.now = 61.0
        b.listed = {**b.listed, "skill://x": entry_at("skill://x", body=b"new")}
        assert (await registry.resolve("b/x")).entry == b.listed["skill://x"]
        assert (await registry.resolve("b/x")).entry == b.listed["skill://x"]
        assert b.requests == ["list", "get skill://x/SKILL.md"]

        clock.now = 67.0
        await registry.resolve("b/x")
        assert b.requests == ["list", *["get skill://x/SKILL.md"] * 2]

        # What the server has no more, or never had, is settled by a whole listing.
        b.listed = {"skill://z": entry_at("skill://z")}
        with pytest.raises(UnknownReferenceError):
            await registry.resolve("b/y")
        assert (await registry.resolve("b/z")).id.uri == "skill://z/SKILL.md"
        assert b.requests[3:] == ["get skill://y/SKILL.md", "list"]


@pytest.mark.requirement("NAME-04")
async def test_a_bare_name_asks_no_server_and_means_the_local_skill(tmp_path: Path) -> None:  # attack 28
    a = MemoryRemote("a", "skill://mine", "skill://theirs")

    async with opened(Registry([a], folders(tmp_path, "mine"))) as registry:
        skill = await registry.resolve("mine")
        assert not skill.is_remote
        assert a.connects == []

        await registry.refresh()
        assert (await registry.resolve("mine")).id == skill.id
        with pytest.raises(UnknownReferenceError) as caught:
            await registry.resolve("theirs")

    assert caught.value.candidates == ("a/theirs",)


async def test_a_server_that_failed_a_moment_ago_is_not_asked_for_every_reference() -> None:
    clock, a = Clock(), MemoryRemote("a", "skill://x")
    a.failure = UnavailableError("connection refused")

    async with opened(Registry([a], clock=clock)) as registry:
        for _ in range(3):
            with pytest.raises(UnknownReferenceError, match="connection refused"):
                await registry.resolve("a/x")
        assert len(a.connects) == 1

        a.failure = None
        clock.now = MIN_SECONDS
        assert (await registry.resolve("a/x")).reference == "a/x"


# Renewing


@pytest.mark.requirement("INT-07")
async def test_renewing_asks_once_and_replaces_the_record() -> None:  # attack 14
    a, b = MemoryRemote("a", "skill://x", "skill://y"), MemoryRemote("b", "skill://x")
    notes = Notes()

    async with opened(Registry([a, b], on_entries=notes)) as registry:
        before = await registry.resolve("a/x")
        a.listed["skill://x"] = entry_at("skill://x", body=b"new")
        after = await registry.renew(before.id)

        assert after == replace(before, entry=a.listed["skill://x"])
        assert registry.view.skills[0] is after
        assert a.requests == ["list", "get skill://x/SKILL.md"]
        assert notes.seen[-1] == (after.id, after.entry)
        assert b.connects == []


@pytest.mark.requirement("INT-07")
async def test_a_skill_that_is_gone_is_forgotten_when_it_is_renewed() -> None:
    a = MemoryRemote("a", "skill://x", "skill://y/x", unlisted=["skill://z"])

    async with opened(Registry([a])) as registry:
        view = await registry.refresh()
        found = await registry.resolve("a/skill://z")
        a.listed.pop("skill://x")
        a.unlisted.clear()

        for skill in (view.skills[0], found):
            with pytest.raises(NotFoundError):
                await registry.renew(skill.id)

        assert references(registry.view) == ["a/x"]
        assert registry.view.skills[0].id.uri == "skill://y/x/SKILL.md"
        assert status_of(registry.view, "a").listed == 1


async def test_a_failure_to_renew_keeps_the_record() -> None:
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a])) as registry:
        skill = await registry.resolve("a/x")
        a.failure = TooSlowError("it did not answer")
        with pytest.raises(TooSlowError):
            await registry.renew(skill.id)
        assert references(registry.view) == ["a/x"]


async def test_a_skill_of_an_endpoint_that_had_the_label_before_is_not_renewed_here() -> None:  # attack 24
    a = MemoryRemote("a", "skill://x")
    before = replace(origin_of("a"), fingerprint="sha256:other")

    async with opened(Registry([a])) as registry:
        for origin in (before, origin_of("gone")):
            with pytest.raises(NotFoundError):
                await registry.renew(SkillId(origin, "skill://x/SKILL.md"))

    assert a.requests == []


async def test_a_local_skill_is_renewed_from_its_folder(tmp_path: Path) -> None:  # attack 83
    async with opened(Registry([], folders(tmp_path, "mine"), clock=Clock())) as registry:
        before = await registry.resolve("mine")
        write_skill(tmp_path / "mine", {"a.md": "new"})
        after = await registry.renew(before.id)

        assert after.id == before.id
        assert after.entry.manifest != before.entry.manifest
        (tmp_path / "mine" / "SKILL.md").unlink()
        with pytest.raises(NotFoundError):
            await registry.renew(before.id)
        assert registry.view.skills == ()


async def test_a_local_skill_is_renewed_by_a_look_that_began_after_it_was_asked_for(tmp_path: Path) -> None:
    local = folders(tmp_path, "mine", "other")

    async with opened(Registry([], local, clock=Clock())) as registry:
        before = await registry.resolve("mine")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(registry.refresh, force=True))
            await anyio.lowlevel.checkpoint()
            write_skill(tmp_path / "mine", {"a.md": "new"})
            after = await registry.renew(before.id)
            assert after.entry.manifest is not None
            assert len(after.entry.manifest) == 2


@pytest.mark.requirement("INT-07")
async def test_a_listing_under_way_does_not_undo_what_was_asked_for_meanwhile() -> None:
    a = MemoryRemote("a", "skill://x")
    notes = Notes()

    async with opened(Registry([a], on_entries=notes)) as registry:
        await registry.refresh()
        old, new = a.listed["skill://x"], entry_at("skill://x", body=b"new")
        skill = registry.view.skills[0].id
        a.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(registry.refresh, force=True))
            await anyio.wait_all_tasks_blocked()
            a.listed = {"skill://x": new}
            assert (await registry.renew(skill)).entry == new
            a.listed = {"skill://x": old}
            a.gate.set()

        assert registry.view.skills[0].entry == new
        assert [entry for _, entry in notes.seen] == [old, new, new]

        a.gate = None
        await registry.refresh(force=True)
        assert registry.view.skills[0].entry == old


# Who hears of entries, and what is there without a server


@pytest.mark.requirement("APPR-02")
async def test_every_entry_is_told_before_it_can_be_seen() -> None:
    a = MemoryRemote("a", "skill://x", "skill://y")
    seen: list[tuple[str, int]] = []
    registry: Registry

    def note(_origin: Origin, entries: Sequence[SkillEntry]) -> None:
        seen.extend((entry.uri.text, len(registry.view.skills)) for entry in entries)

    registry = Registry([a], on_entries=note)

    async with opened(registry):
        await registry.refresh()

    assert seen == [("skill://x/SKILL.md", 0), ("skill://y/SKILL.md", 0)]


async def test_entries_that_could_not_be_told_are_not_used() -> None:
    def refuse(_origin: Origin, _entries: Sequence[SkillEntry]) -> None:
        raise SourceError("the approvals cannot be written")

    a = MemoryRemote("a", "skill://x", unlisted=["skill://y"])

    async with opened(Registry([a], on_entries=refuse)) as registry:
        view = await registry.refresh()
        with pytest.raises(SourceError):
            await registry.resolve("a/skill://y")

        assert registry.view.skills == ()
        assert status_of(view, "a").state == "failed"


@pytest.mark.requirement("CACHE-05")
async def test_a_server_that_is_away_is_stood_in_for_by_what_was_approved_of_it() -> None:
    a = MemoryRemote("a", "skill://x", "skill://z")
    a.failure = UnavailableError("connection refused")
    kept = replace(record("a", "skill://x"), offline_since="2026-01-02")
    foreign = replace(record("b", "skill://y"), offline_since="2026-01-02")
    asked: list[Origin] = []

    async def offline(origin: Origin) -> Sequence[KnownSkill]:
        asked.append(origin)
        return [kept, foreign]

    async with opened(Registry([a], offline=offline)) as registry:
        view = await registry.refresh()
        assert view.skills == (replace(kept, reference="a/x"),)
        assert view.skills[0].is_remote
        assert status_of(view, "a").state == "failed"
        assert (await registry.resolve("a/x")).offline_since == "2026-01-02"

        a.failure = None
        view = await registry.refresh()
        assert [(skill.reference, skill.offline_since) for skill in view.skills] == [
            ("a/x", None),
            ("a/z", None),
        ]

        a.failure = UnavailableError("connection refused")
        assert references(await registry.refresh(force=True)) == ["a/x", "a/z"]
        assert asked == [origin_of("a")]


@pytest.mark.requirement("FS-04")
async def test_local_folders_are_looked_at_whenever_someone_asks(tmp_path: Path) -> None:
    project, trust = tmp_path / "project", FolderTrust(tmp_path / "state")
    write_skill(project / "one")
    local = LocalSkills([LocalRoot(project, "project")], trust)

    async with opened(Registry([], local, clock=Clock())) as registry:
        view = await registry.refresh()
        assert codes(view) == [("untrusted-folder", str(project))]
        trust.trust(project)
        assert (await registry.resolve("one")).reference == "one"

        before = registry.view
        assert await registry.refresh() is before
        write_skill(project / "two")
        assert references(await registry.refresh()) == ["one", "two"]


async def test_a_view_never_changes() -> None:
    a = MemoryRemote("a", "skill://x")

    async with opened(Registry([a])) as registry:
        before = await registry.refresh()
        kept = (before.skills, before.servers, before.revision)
        a.listed.clear()
        after = await registry.refresh(force=True)

    assert (before.skills, before.servers, before.revision) == kept
    assert after.skills == ()
    assert after.revision > before.revision


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["list", "fail", "get", "renew", "signal", "connect"]),
            st.sets(st.sampled_from(["skill://x", "skill://y/x", "skill://z", "github://z"])),
        ),
        max_size=12,
    )
)
def test_whatever_happens_a_view_holds_each_skill_once_under_a_reference_that_resolves(
    steps: list[tuple[str, set[str]]],
) -> None:
    async def run() -> None:
        a = MemoryRemote("a")
        async with opened(Registry([a], clock=Clock())) as registry:
            for step, roots in steps:
                a.failure = TooSlowError("no") if step == "fail" else None
                a.listed = {root: entry_at(root) for root in roots}
                a.epoch += step == "connect"
                if step == "signal":
                    registry.invalidate("a")
                if step == "get":
                    for root in sorted(roots):
                        await registry.resolve(f"a/{root}")
                elif step == "renew":
                    for skill in registry.view.skills:
                        try:
                            await registry.renew(skill.id)
                        except NotFoundError:
                            assert skill.id.uri.removesuffix("/SKILL.md") not in roots
                else:
                    await registry.refresh(force=step == "list")
                skills = registry.view.skills
                assert len({skill.id for skill in skills}) == len(skills)
                assert references(registry.view) == sorted({skill.reference for skill in skills})
                a.failure = TooSlowError("nothing may be asked for what is known")
                for skill in skills:
                    assert await resolved(registry, skill) is skill

    anyio.run(run)


async def resolved(registry: Registry, skill: KnownSkill) -> KnownSkill | None:
    try:
        return await registry.resolve(skill.reference)
    except SkillError:
        return None


async def test_a_name_that_is_listed_and_not_used_is_answered_with_the_reason() -> None:
    shop = MemoryRemote("shop", "skill://tea")
    finding = Finding("archives-off", "the skill comes only as an archive", file="", fix="allow archives")
    shop.refused = (RefusedEntry(1, "skill://acme/packed/SKILL.md", (finding,)),)

    async with opened(Registry([shop])) as registry:
        await registry.refresh()
        with pytest.raises(UnknownReferenceError) as packed:
            await registry.resolve("shop/packed")
        with pytest.raises(UnknownReferenceError) as other:
            await registry.resolve("shop/other")

    assert "the skill comes only as an archive" in str(packed.value)
    assert (packed.value.refusal, packed.value.fix) == ("archives-off", "allow archives")
    assert "archive" not in str(other.value)
