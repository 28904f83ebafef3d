"""Servers that try to inherit, keep or farm a user's yes. The numbers are those of the threat model."""

from pathlib import Path

import pytest

from hostile.catalog import refunds
from hostile.hosting import (
    BODY_URI,
    LABEL,
    REFUNDS,
    ROOT,
    User,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.integrity import MARK
from hostile.running import WIRES, hostile
from skillwire.host import HostPolicy
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.model.errors import Refusal

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])


@everywhere
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("APPR-09")
async def test_content_rotated_after_an_approval_that_was_remembered_needs_another_one_for_good(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 18."""
    first, second, third = User(), User(Reply.DENY), User(Reply.DENY)
    async with hostile("honest", transport=transport, era=era) as peer:
        async with hosting(tmp_path, [config(peer)], user=first) as host:
            await host.refresh()
            await host.load(REFUNDS)
        peer.say(version=2)
        async with hosting(tmp_path, [config(peer)], user=second) as host:
            await host.refresh()
            denied = await refused(host.load(REFUNDS))
        peer.say(version=1)
        async with hosting(tmp_path, [config(peer)], user=third) as host:
            await host.refresh()
            still_denied = await refused(host.load(REFUNDS))
        reads = peer.reads()

    assert [user.occasions for user in (first, second)] == [[Occasion.FIRST], [Occasion.CHANGED]]
    assert second.questions[0].change is not None
    assert second.questions[0].change.modified == (BODY_URI,)
    assert len(third.questions) == 1
    assert (denied.refusal, still_denied.refusal) == ("approval-denied", "approval-denied")
    assert reads == [BODY_URI]


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("CACHE-01")
async def test_a_remembered_approval_of_unchanged_content_asks_nobody_and_reads_nothing_again(
    tmp_path: Path,
) -> None:
    later = User(Reply.DENY)
    async with hostile("honest", transport="http", era="modern") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.refresh()
            before = await host.load(REFUNDS)
        async with hosting(tmp_path, [config(peer)], user=later) as host:
            await host.refresh()
            after = await host.load(REFUNDS)
        reads = peer.reads()

    assert later.questions == []
    assert reads == [BODY_URI]
    assert before.text.replace(before.boundary, "") == after.text.replace(after.boundary, "")


@pytest.mark.parametrize(
    ("form", "added", "removed", "modified"),
    [
        ("added", ("scripts/extra.sh",), (), ()),
        ("removed", (), ("references/policy.md",), ()),
        ("renamed", ("references/rules.md",), ("references/policy.md",), ()),
        ("rotated", (), (), ("scripts/check.sh",)),
    ],
)
@pytest.mark.requirement("APPR-02")
async def test_a_file_added_removed_renamed_or_rotated_revokes_though_the_body_is_the_same(
    form: str, added: tuple[str, ...], removed: tuple[str, ...], modified: tuple[str, ...], tmp_path: Path
) -> None:
    """Attack 19."""
    async with visiting("reshaped", tmp_path, era="modern", form=form) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        visit.user.will(Reply.DENY)
        await visit.host.refresh(force=True)
        error = await refused(visit.host.load(REFUNDS))
        file = await refused(visit.host.read_skill_file(REFUNDS, "assets/logo.png"))

        assert (error.refusal, file.refusal) == ("approval-denied", "skill-changed")
        assert visit.user.occasions == [Occasion.FIRST, Occasion.CHANGED]
        change = visit.user.questions[1].change
        assert change is not None
        assert [change.added, change.removed, change.modified] == [
            tuple(f"{ROOT}/{path}" for path in paths) for paths in (added, removed, modified)
        ]
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.requirement("APPR-04")
@pytest.mark.requirement("APPR-02")
async def test_a_skill_that_stops_promising_digests_loses_its_approval_for_good(tmp_path: Path) -> None:
    """Attacks 12 and 19."""
    async with visiting("reshaped", tmp_path, transport="http", form="dynamic") as visit:
        await visit.host.load(REFUNDS)
        visit.user.will(Reply.DENY)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        dynamic = await refused(visit.host.load(REFUNDS))
        file = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))
        visit.peer.say(version=1)
        await visit.host.refresh(force=True)
        back = await refused(visit.host.load(REFUNDS))

        assert [error.refusal for error in (dynamic, file, back)] == [
            "dynamic-declined",
            "skill-changed",
            "approval-denied",
        ]
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_allows_exactly_what_it_holds_and_asks_nobody(tmp_path: Path) -> None:
    """Attacks 18 and 27."""
    lock, user = tmp_path / "skills.lock", User()
    async with hostile("honest", transport="http", era="modern") as peer:
        async with hosting(tmp_path / "one", [config(peer)], user=User(), lock=lock) as host:
            await host.load(REFUNDS)
            await host.write_lock()
        # Another machine, with nothing approved on it.
        async with hosting(
            tmp_path / "two", [config(peer)], user=user, lock=lock, policy=HostPolicy(frozen=True)
        ) as host:
            loaded = await host.load(REFUNDS)
            other = await refused(host.load(f"{LABEL}/reports"))
        peer.say(version=2)
        async with hosting(
            tmp_path / "two", [config(peer)], user=user, lock=lock, policy=HostPolicy(frozen=True)
        ) as host:
            changed = await refused(host.load(REFUNDS))

    assert "Read [the policy]" in loaded.text
    assert (other.refusal, changed.refusal) == ("not-in-lock", "not-in-lock")
    assert user.questions == []


@pytest.mark.requirement("APPR-10")
async def test_a_lock_that_was_edited_by_something_else_allows_nothing_new(tmp_path: Path) -> None:
    """Attack 25."""
    lock = tmp_path / "skills.lock"
    async with hostile("honest", era="legacy") as peer:
        async with hosting(tmp_path / "one", [config(peer)], user=User(), lock=lock) as host:
            await host.load(REFUNDS)
            await host.write_lock()
        before = lock.read_bytes()
        lock.write_bytes(before + b"# one more line\n")
        async with hosting(tmp_path / "two", [config(peer)], user=None, lock=lock) as host:
            problems = [refusal.code for refusal in host.problems]
            error = await refused(host.load(REFUNDS))
        reads = peer.reads()

    assert error.refusal == "lock-untrusted"
    assert "lock-untrusted" in problems
    assert reads == [BODY_URI]


@pytest.mark.requirement("APPR-09")
@pytest.mark.requirement("INT-05")
async def test_another_description_for_the_same_files_is_refused_when_the_skill_is_loaded(
    tmp_path: Path,
) -> None:
    """Attack 20."""
    async with visiting("description_only", tmp_path, transport="http", era="legacy") as visit:
        await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "frontmatter-mismatch"
        assert MARK not in str(error)
        assert visit.host.loaded == ()


@everywhere
@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("SEC-12")
async def test_content_that_changes_while_the_question_is_shown_is_not_what_the_yes_was_for(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 22."""
    user = User(Reply.ALWAYS, Reply.DENY)
    async with hostile("honest", transport=transport, era=era) as peer:
        user.meanwhile = lambda _question: peer.announce(version=2)
        async with hosting(tmp_path, [config(peer)], user=user) as host:
            await host.refresh()
            error = await refused(host.load(REFUNDS))
            loaded = host.loaded
        reads = peer.reads()

    shown = [question.skill.entry.to_json() for question in user.questions if question.skill is not None]
    assert shown == [refunds(1).entry, refunds(2).entry]
    assert error.refusal == "approval-denied"
    assert loaded == ()
    assert reads == [BODY_URI]


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("URI-08")
async def test_the_same_skill_from_another_server_needs_an_approval_of_its_own(tmp_path: Path) -> None:
    """Attacks 23 and 78."""
    user = User()
    async with (
        hostile("neighbour", transport="http", era="modern") as one,
        hostile("neighbour", transport="stdio", era="legacy") as two,
        hosting(tmp_path, [config(one, "one"), config(two, "two")], user=user) as host,
    ):
        await host.refresh()
        first = await host.load("one/refunds")
        user.will(Reply.DENY)
        error = await refused(host.load("two/refunds"))

        assert error.refusal == "approval-denied"
        assert user.occasions == [Occasion.FIRST, Occasion.FIRST]
        assert [question.skill.id.origin.label for question in user.questions if question.skill] == [
            "one",
            "two",
        ]
        assert (one.reads(), two.reads()) == ([BODY_URI], [])
        assert "MCP server one" in first.text and "MCP server two" not in first.text


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("NAME-05")
async def test_a_label_given_to_another_endpoint_carries_no_approval_along(tmp_path: Path) -> None:
    """Attack 24."""
    later = User(Reply.DENY)
    async with hostile("neighbour", transport="http") as one, hostile("neighbour", transport="http") as two:
        async with hosting(tmp_path, [config(one)], user=User()) as host:
            await host.refresh()
            await host.load(REFUNDS)
        async with hosting(tmp_path, [config(two)], user=later) as host:
            await host.refresh()
            error = await refused(host.load(REFUNDS))
        reads = two.reads()

    assert error.refusal == "approval-denied"
    assert later.occasions == [Occasion.FIRST]
    assert reads == []


@pytest.mark.requirement("APPR-01")
async def test_approvals_that_something_else_wrote_to_do_not_count(tmp_path: Path) -> None:
    """Attack 25."""
    later = User(Reply.DENY)
    async with hostile("honest", era="modern") as peer:
        async with hosting(tmp_path, [config(peer)], user=User(Reply.DENY)) as host:
            await host.refresh()
            await host.approve(await host.find("shop/reports"))
        for path in storage_in(tmp_path).state.rglob("*.json"):
            text = path.read_text("utf-8")
            path.write_text(text.replace("acme/reports", "acme/refunds"), "utf-8")
        async with hosting(tmp_path, [config(peer)], user=later) as host:
            await host.refresh()
            codes = [refusal.code for refusal in host.problems]
            refunds_error = await refused(host.load(REFUNDS))
            reports_error = await refused(host.load("shop/reports"))

    assert (refunds_error.refusal, reports_error.refusal) == ("approval-denied", "approval-denied")
    assert "state-tampered" in codes


@pytest.mark.requirement("APPR-10")
@pytest.mark.requirement("APPR-07")
async def test_where_nobody_can_be_asked_the_answer_is_no_with_a_reason_for_machines(tmp_path: Path) -> None:
    """Attack 27."""
    async with (
        hostile("honest", transport="http", era="legacy") as peer,
        hosting(tmp_path, [config(peer)], user=None) as host,
    ):
        await host.refresh()
        error = await refused(host.load(REFUNDS))

        told = Refusal.of(error).to_json()
        assert (told["code"], told["requirement"], told["subject"]) == (
            "approval-required",
            "APPR-10",
            REFUNDS,
        )
        assert told["remedy"]
        assert peer.reads() == []
        assert host.loaded == ()


@pytest.mark.requirement("SEC-12")
async def test_a_no_is_not_asked_about_again_until_a_person_wants_it(tmp_path: Path) -> None:
    async with visiting("honest", tmp_path, user=User(Reply.DENY)) as visit:
        for _ in range(3):
            assert (await refused(visit.host.load(REFUNDS))).refusal == "approval-denied"
        by_model = len(visit.user.questions)
        visit.user.will(Reply.ONCE)
        loaded = await visit.host.load(REFUNDS, actor="user")

        assert by_model == 1
        assert "Read [the policy]" in loaded.text


@pytest.mark.requirement("SEC-12")
async def test_a_server_with_many_skills_cannot_wear_the_user_out(tmp_path: Path) -> None:
    """Attack 26."""
    async with visiting("crowded", tmp_path, transport="http", user=User(Reply.DENY)) as visit:
        codes = [(await refused(visit.host.load(f"{LABEL}/crowd-{n:03}"))).refusal for n in range(30)]

        asked = len(visit.user.questions)
        assert codes == ["approval-denied"] * asked + ["too-many-prompts"] * (30 - asked)
        assert asked < 30
        assert visit.peer.reads() == []


@pytest.mark.requirement("NEST-02")
@pytest.mark.requirement("NEST-04")
@pytest.mark.requirement("APPR-06")
async def test_a_skill_inside_an_approved_one_is_plain_text_until_it_has_an_approval_of_its_own(
    tmp_path: Path,
) -> None:
    """Attacks 51 and 52."""
    async with visiting("nested", tmp_path, era="legacy") as visit:
        await visit.host.load(REFUNDS)
        as_file = await visit.host.read_skill_file(REFUNDS, "inner/SKILL.md")
        windows = [window.skill.reference for window in visit.host.loaded]
        visit.user.will(Reply.DENY)
        error = await refused(visit.host.load(f"{LABEL}/inner"))

        assert "not loaded" in as_file.text and "Inner. See notes.md." in as_file.text
        assert windows == [REFUNDS]
        assert error.refusal == "approval-denied"
        assert visit.user.occasions == [Occasion.FIRST, Occasion.FIRST]


@pytest.mark.requirement("NEST-03")
@pytest.mark.requirement("APPR-02")
async def test_a_change_of_the_inner_skill_revokes_the_outer_one(tmp_path: Path) -> None:
    """Attack 52."""
    async with visiting("nested", tmp_path, transport="http", era="modern") as visit:
        await visit.host.load(REFUNDS)
        visit.user.will(Reply.DENY)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "approval-denied"
        change = visit.user.questions[-1].change
        assert change is not None and change.modified == (f"{ROOT}/inner/SKILL.md",)


@everywhere
@pytest.mark.requirement("APPR-04")
@pytest.mark.requirement("LIST-09")
async def test_a_skill_without_digests_is_declined_unless_the_user_wants_such_skills(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 12."""
    async with visiting("dynamic", tmp_path, transport=transport, era=era) as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "dynamic-declined"
        assert visit.user.questions == []
        assert visit.peer.reads() == []


@pytest.mark.requirement("APPR-04")
@pytest.mark.requirement("CACHE-09")
async def test_a_yes_to_a_skill_without_digests_is_for_one_load(tmp_path: Path) -> None:
    """Attack 12."""
    async with visiting("dynamic", tmp_path, options={"policy": HostPolicy(dynamic="ask")}) as visit:
        first = await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        second = await visit.host.load(REFUNDS)

        assert visit.user.occasions == [Occasion.DYNAMIC, Occasion.DYNAMIC]
        assert visit.peer.reads() == [BODY_URI, BODY_URI]
        assert "no listing to verify it against" in first.text
        assert "matches the server's listing" not in first.text + second.text
        cached = [path for path in storage_in(tmp_path).cache.rglob("*") if path.is_file()]
        assert not any(b"Made" in path.read_bytes() for path in cached)


@pytest.mark.requirement("INT-05")
@pytest.mark.requirement("LIM-04")
async def test_a_skill_without_digests_still_has_to_be_the_one_that_was_listed_and_to_end(
    tmp_path: Path,
) -> None:
    """Attack 12."""
    async with visiting(
        "dynamic", tmp_path, options={"policy": HostPolicy(dynamic="ask")}, form="other-frontmatter"
    ) as visit:
        lie = await refused(visit.host.load(REFUNDS))
        visit.peer.say(form="huge")
        await visit.host.load(REFUNDS)
        sizes = [len(await visit.host.read_skill_bytes(REFUNDS, f"data/{n}.txt")) for n in range(4)]
        endless = await refused(visit.host.read_skill_bytes(REFUNDS, "data/4.txt"))

        assert lie.refusal == "frontmatter-mismatch" and MARK not in str(lie)
        assert sum(sizes) < 16 * 1024 * 1024
        assert endless.refusal == "over-limit"
