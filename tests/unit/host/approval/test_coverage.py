"""Approvals of skills whose digests cover an archive, or `SKILL.md` alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from skillwire.core.manifest import Coverage, Manifest, ManifestFile, digest_of
from skillwire.host.approval.consent import Consent, DynamicPolicy, PromptLimits
from skillwire.host.approval.lock import lock_bytes, parse_lock
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.approval.store import ApprovalStore, parse_files
from skillwire.host.model.approval import Approval, Grant, Occasion, Question, Reply, binding_of, now
from skillwire.host.model.errors import ApprovalDeniedError, UnverifiedFileError
from skillwire.host.model.origin import KnownSkill
from skillwire.host.state.audit import AuditLog
from unit.host.covered import FILES, URL, archive, in_archive, with_skill_file
from unit.host.known_skills import known, skill_md

SKILL_FILE = FILES["SKILL.md"]
OTHER = skill_md(body="Other.\n")


def approved(skill: KnownSkill) -> Approval:
    assert skill.entry.manifest is not None
    return Approval(skill.id, skill.entry.manifest, frozenset({Grant.LOAD}), now())


BOTH = in_archive(archive(), skill_file=SKILL_FILE)
OTHERS = {
    "another archive": in_archive(archive({"SKILL.md": SKILL_FILE}), skill_file=SKILL_FILE),
    "another skill file": in_archive(archive(), skill_file=OTHER),
    "another address": in_archive(archive(), url=f"{URL}.zip", skill_file=SKILL_FILE),
    "the archive alone": in_archive(archive()),
    "the skill file alone": with_skill_file(),
    "every file": known(extra="allowed-tools: Read\n"),
}


@pytest.mark.requirement("APPR-08")
@pytest.mark.requirement("CONF-11")
@pytest.mark.parametrize("other", OTHERS)
def test_an_approval_is_bound_to_both_digests_and_to_what_they_cover(other: str) -> None:
    approval = approved(BOTH)

    assert approval.covers(BOTH.id, BOTH.entry)
    assert not approval.covers(BOTH.id, OTHERS[other].entry)


@pytest.mark.requirement("APPR-08")
@pytest.mark.parametrize("skill", [BOTH, OTHERS["the archive alone"], OTHERS["the skill file alone"]])
def test_such_approvals_are_written_down_and_read_again(tmp_path: Path, skill: KnownSkill) -> None:
    approval = approved(skill)

    ApprovalStore(tmp_path).grant(approval)

    assert ApprovalStore(tmp_path).find(skill.id) == approval
    assert parse_lock(lock_bytes([approval])).approvals == (approval,)


def test_a_file_of_approvals_cannot_claim_more_lines_than_are_covered() -> None:
    line = {"uri": URL, "digest": digest_of(b"")}
    own = {**line, "uri": BOTH.id.uri}
    outside = {**line, "uri": "skill://elsewhere/x"}

    assert len(parse_files([line, own], BOTH.id.uri, Coverage.ARCHIVE)) == 2
    for rows, coverage in (
        ([], Coverage.ARCHIVE),
        ([line, outside], Coverage.ARCHIVE),
        ([line, own, outside], Coverage.ARCHIVE),
        ([line], Coverage.SKILL_FILE),
        ([own, line], Coverage.SKILL_FILE),
    ):
        with pytest.raises(ValueError):
            parse_files(rows, BOTH.id.uri, coverage)


@pytest.mark.requirement("APPR-08")
@pytest.mark.parametrize(
    ("before", "after", "is_ended"),
    [
        (BOTH, OTHERS["the skill file alone"], False),
        (OTHERS["the skill file alone"], BOTH, False),
        (OTHERS["the skill file alone"], OTHERS["another skill file"], True),
        (OTHERS["another skill file"], OTHERS["the skill file alone"], True),
        (OTHERS["the archive alone"], OTHERS["the skill file alone"], True),
        (BOTH, OTHERS["another archive"], True),
        (BOTH, OTHERS["every file"], True),
        (OTHERS["the skill file alone"], OTHERS["every file"], True),
        (BOTH, known(is_dynamic=True), True),
    ],
)
def test_looking_at_a_skill_without_its_archive_ends_nothing_unless_its_skill_file_changed(
    tmp_path: Path, before: KnownSkill, after: KnownSkill, is_ended: bool
) -> None:
    store = ApprovalStore(tmp_path)
    store.grant(approved(before))

    assert store.observe(before.id, after.entry) is is_ended
    assert (store.find(before.id) is None) is is_ended


def test_one_line_of_many_is_another_promise_than_the_only_one() -> None:
    line = ManifestFile.of("skill://shop/refunds/SKILL.md", SKILL_FILE)

    assert len({binding_of(Manifest.of([line], coverage)) for coverage in Coverage}) == 3


def consent(
    folder: Path, *replies: Reply, dynamic: DynamicPolicy = "ask", is_frozen: bool = False
) -> tuple[Consent, list[Question]]:
    asked: list[Question] = []

    async def ask(question: Question) -> Reply:
        asked.append(question)
        return replies[len(asked) - 1]

    made = Consent(
        ApprovalStore(folder / "state"),
        ProjectLock(is_frozen=is_frozen),
        AuditLog(folder / "state" / "audit.jsonl"),
        ask=ask,
        dynamic=dynamic,
        granted_by="",
        limits=PromptLimits(),
    )
    return made, asked


@pytest.mark.requirement("IDX-10")
async def test_a_file_without_a_digest_is_asked_about_and_nothing_is_remembered(tmp_path: Path) -> None:
    made, asked = consent(tmp_path, Reply.ALWAYS, Reply.DENY)
    skill = with_skill_file()

    await made.require_unverified(skill, f"{skill.entry.uri.root}/references/policy.md")
    with pytest.raises(ApprovalDeniedError):
        await made.require_unverified(skill, f"{skill.entry.uri.root}/references/policy.md")

    assert [question.occasion for question in asked] == [Occasion.UNVERIFIED, Occasion.UNVERIFIED]
    assert not asked[0].may_be_remembered
    assert ApprovalStore(tmp_path / "state").approvals() == {}


@pytest.mark.requirement("IDX-10")
@pytest.mark.parametrize("dynamic", ["decline", "ask"])
async def test_where_content_without_digests_is_not_wanted_nobody_is_asked(
    tmp_path: Path, dynamic: DynamicPolicy
) -> None:
    made, asked = consent(tmp_path, dynamic=dynamic, is_frozen=dynamic == "ask")

    with pytest.raises(UnverifiedFileError) as caught:
        await made.require_unverified(with_skill_file(), "skill://shop/refunds/a.md")

    assert (caught.value.refusal, asked) == ("unverified-file", [])


@pytest.mark.requirement("IDX-10")
def test_a_yes_to_a_script_without_a_digest_cannot_be_remembered() -> None:
    skill = with_skill_file()
    question = Question(Occasion.SCRIPTS, skill, script="scripts/check.sh")

    assert not question.may_be_remembered
    assert replace(question, script_digest=digest_of(b"")).may_be_remembered
