"""Content that is almost what the user agreed to. The numbers are those of the threat model."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from hostile.catalog import SCRIPT, SKILL_FILE, Published, digest, refunds
from hostile.hosting import (
    BODY_URI,
    REFUNDS,
    REPORTS,
    ROOT,
    User,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.persistence import AGREED, HARMLESS, collision, nearly
from hostile.running import WIRES, hostile
from skillwire.core.entry import check_entry
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Reply, binding_of
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

WHOLE = re.compile(r"sha256:[0-9a-f]{64}")
PATIENT = {"limits": HostLimits(prompts=PromptLimits(contents_per_skill=100, questions_per_server=100))}
CHECK = ToolCall(
    "run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/check.sh", script_digest=digest(SCRIPT)
)


def bindings(skills: Iterable[Published]) -> list[str]:
    """Return what approvals of these skills are bound to."""
    entries = [check_entry(skill.entry)[0] for skill in skills]
    return [binding_of(entry.manifest) for entry in entries if entry is not None and entry.manifest]


@everywhere
@pytest.mark.parametrize("form", ["file", "set"])
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-02")
async def test_content_whose_digest_begins_like_the_approved_one_was_not_approved(
    form: str, transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 21."""
    both = [collision(form, version) for version in (1, 2)]
    digests = [digest(skill.files[SKILL_FILE]) for skill in both] if form == "file" else bindings(both)
    assert len({found[: len("sha256:") + AGREED] for found in digests}) == 1 and len({*digests}) == 2
    assert len({len(skill.files[SKILL_FILE]) for skill in both}) == 1

    async with visiting("collides", tmp_path, transport=transport, era=era, form=form) as visit:
        first = await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        visit.user.will(Reply.DENY)
        await visit.host.refresh(force=True)
        file = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))
        again = await refused(visit.host.load(REFUNDS))
        change = visit.user.questions[-1].change

        assert HARMLESS in first.text
        assert (file.refusal, again.refusal) == ("skill-changed", "approval-denied")
        assert visit.user.occasions == [Occasion.FIRST, Occasion.CHANGED]
        assert change is not None and change.modified == (BODY_URI,)
        assert visit.host.approvals == ()
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.parametrize("form", ["file", "set"])
@pytest.mark.requirement("APPR-02")
async def test_neither_a_yes_for_one_run_nor_a_no_covers_a_colliding_skill(form: str, tmp_path: Path) -> None:
    """Attack 21."""
    async with visiting("collides", tmp_path, era="modern", form=form, user=User(Reply.ONCE)) as visit:
        await visit.host.load(REFUNDS)
        visit.user.will(Reply.DENY)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        after_yes = await refused(visit.host.load(REFUNDS))
        visit.peer.say(version=1)
        await visit.host.refresh(force=True)
        after_no = await refused(visit.host.load(REFUNDS))

        # The yes did not cover version 2, and the no to version 2 did not answer for version 1.
        assert (after_yes.refusal, after_no.refusal) == ("approval-denied", "approval-denied")
        assert len(visit.user.questions) == 3
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.parametrize(("transport", "era"), [("stdio", "modern"), ("http", "legacy")])
@pytest.mark.parametrize("near", [SKILL_FILE, "scripts/check.sh"])
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-02")
async def test_a_digest_that_differs_in_one_character_anywhere_is_another_one(
    near: str, transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 21."""
    places_of_it = (0, 11, 12, 13, 16, 20, 31, 32, 40, 48, 62, 63)
    asked: dict[int, tuple[str, tuple[str, ...]]] = {}
    async with visiting("nearly_the_same", tmp_path, transport=transport, era=era, options=PATIENT) as visit:
        for digit in places_of_it:
            visit.peer.say(near=None, digit=None)
            visit.user.will(Reply.ALWAYS)
            await visit.host.refresh(force=True)
            await visit.host.load(REFUNDS)
            before = len(visit.user.questions)
            visit.peer.say(near=near, digit=digit)
            visit.user.will(Reply.DENY)
            await visit.host.refresh(force=True)
            error = await refused(visit.host.load(REFUNDS))
            [question] = visit.user.questions[before:]
            assert question.change is not None
            asked[digit] = (error.refusal, question.change.modified)

        assert asked == {digit: ("approval-denied", (f"{ROOT}/{near}",)) for digit in places_of_it}
        assert {*visit.peer.reads()} == {BODY_URI}
        assert visit.host.approvals == ()


@pytest.mark.parametrize("length", [0, 12, 32, 40, 63, 65, 128])
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("INT-01")
async def test_a_digest_of_another_length_is_none_however_well_it_begins(length: int, tmp_path: Path) -> None:
    """Attack 21."""
    async with visiting("nearly_the_same", tmp_path, transport="http", era="modern") as visit:
        await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        visit.user.will(Reply.DENY)
        visit.peer.say(near="scripts/check.sh", length=length)
        await visit.host.refresh(force=True)
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal in ("invalid-entry", "unknown-reference")
        assert visit.references() == [REPORTS] and "invalid-entry" in visit.codes()
        assert visit.user.occasions == [Occasion.FIRST]
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-07")
async def test_a_script_is_the_agreed_one_only_by_its_whole_digest(tmp_path: Path) -> None:
    """Attack 21."""
    whole = digest(SCRIPT)
    others = [
        *(nearly(whole, {"digit": digit}) for digit in (0, 12, 31, 63)),
        *(nearly(whole, {"length": length}) for length in (0, 12, 63, 65)),
        whole.upper(),
        "",
    ]
    async with visiting("honest", tmp_path, era="legacy") as visit:
        await visit.host.load(REFUNDS)
        await visit.host.request_scripts(REFUNDS, "scripts/check.sh")
        calls = [
            ToolCall("run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/check.sh", script_digest=found)
            for found in others
        ]

        assert visit.host.gate(CHECK).verdict is Verdict.ALLOW
        assert [visit.host.gate(call).verdict for call in calls] == [Verdict.ASK] * len(others)


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("CACHE-02")
async def test_what_is_kept_on_disk_binds_every_file_by_its_whole_digest(tmp_path: Path) -> None:
    """Attack 21."""
    lock = tmp_path / "skills.lock"
    async with visiting("honest", tmp_path, options={"lock": lock}) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.request_scripts(REFUNDS, "scripts/check.sh")
        await visit.host.write_lock()
        origin = visit.host.view.servers[0].origin
    kept = storage_in(tmp_path)
    sealed = (kept.state / "approvals.json").read_bytes().split(b"\n", 1)[1]
    [approval] = json.loads(sealed)["approvals"]
    audit = [json.loads(line) for line in kept.audit.read_bytes().splitlines()]
    files = {(line["uri"], line["digest"]) for line in refunds().resources}
    locked = lock.read_text("utf-8")

    assert {(file["uri"], file["digest"]) for file in approval["files"]} == files
    assert approval["fingerprint"] == origin.fingerprint and WHOLE.fullmatch(origin.fingerprint)
    assert all(uri in locked and found in locked for uri, found in files) and origin.fingerprint in locked
    assert {found for line in audit for found in [line.get("binding")] if found} == {*bindings([refunds()])}
    assert {path.name for path in kept.cache.rglob("*") if path.is_file()} == {
        "origin.json",
        digest(refunds().files[SKILL_FILE]).removeprefix("sha256:"),
        digest(SCRIPT).removeprefix("sha256:"),
    }


@pytest.mark.parametrize("length", [12, 16, 63])
@pytest.mark.requirement("APPR-10")
async def test_a_lock_with_shortened_digests_pins_nothing(length: int, tmp_path: Path) -> None:
    """Attack 21."""
    lock, user = tmp_path / "skills.lock", User()
    async with hostile("honest", transport="http", era="modern") as peer:
        async with hosting(tmp_path / "one", [config(peer)], user=User(), lock=lock) as host:
            await host.load(REFUNDS)
            await host.write_lock()
        peer.forget()
        text = lock.read_text("utf-8")
        found = {line["digest"] for line in refunds().resources}
        for whole in found:
            text = text.replace(whole, whole[: len("sha256:") + length])
        assert not any(whole in text for whole in found)
        lock.write_text(text, "utf-8")
        host = Host(
            [config(peer)],
            roots=(),
            storage=storage_in(tmp_path / "two"),
            approve=user,
            lock=lock,
            policy=HostPolicy(frozen=True),
        )
        error = await refused(host.__aenter__())
        reads = peer.reads()

    assert error.refusal == "lock-invalid"
    assert (user.questions, reads) == ([], [])
