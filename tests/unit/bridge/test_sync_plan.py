"""The plan of a sync: what becomes of each folder, from approvals, the record and what is on disk."""

from pathlib import Path

import pytest

from approving import approval, skill_id
from skillwire.bridge.folders import FolderContent
from skillwire.bridge.sync import SyncAction, SyncPlanner, SyncStep
from skillwire.core import digest_of
from skillwire.host import ApprovalValidity, Refusal, SkillId, binding_of
from skillwire.host.approval.synced import SyncedFolder, SyncRecord, SyncTarget
from skillwire.host.use.export import ApprovedSkill

NAME = "acme--refunds"
FILES = {"SKILL.md": digest_of(b"Do it.\n"), "scripts/run.sh": digest_of(b"echo\n")}
SAME = FolderContent(FILES)
APPROVED = ApprovedSkill(approval(), "acme/refunds")
CHANGED = ApprovedSkill(approval(files={"SKILL.md": b"Changed.\n"}), "acme/refunds")
AWAY = ApprovedSkill(approval(), "acme/refunds", Refusal("server-unavailable", "acme/refunds"))
UNLISTED = ApprovedSkill(approval(), "acme/refunds", Refusal("not-found", "acme/refunds"))
MANUAL = Refusal("manual-only", "acme/refunds")


def row(project: str, target: str, name: str = NAME, skill: SkillId | None = None) -> SyncedFolder:
    binding = binding_of(approval().manifest)
    return SyncedFolder(target, name, project, skill or skill_id(), binding, FILES)


@pytest.fixture
def target(tmp_path: Path) -> SyncTarget:
    return SyncTarget(str(tmp_path / "skills"), str(tmp_path))


def planned(
    target: SyncTarget,
    *,
    wanted: ApprovedSkill | None = None,
    recorded: SyncedFolder | None = None,
    found: FolderContent | None = None,
    validity: ApprovalValidity = ApprovalValidity.ENDED,
    barred: Refusal | None = None,
) -> list[SyncStep]:
    planner = SyncPlanner(
        target,
        {} if wanted is None else {NAME: wanted},
        {} if barred is None else {skill_id(): barred},
        lambda _skill, _binding: validity,
        lambda _skill: "acme/refunds",
    )
    record = SyncRecord(folders={} if recorded is None else {recorded.key: recorded})
    name = NAME if recorded is None else recorded.name
    return planner.plan(record, {} if found is None else {name: found})


def outcome(steps: list[SyncStep]) -> list[tuple[SyncAction, str]]:
    return [(step.action, step.reason.code if step.reason else "") for step in steps]


@pytest.mark.parametrize(
    ("wanted", "is_recorded", "found", "expected"),
    [
        (APPROVED, False, None, [(SyncAction.WRITE, "")]),
        (APPROVED, True, SAME, [(SyncAction.KEEP, "")]),
        (APPROVED, True, None, [(SyncAction.WRITE, "")]),
        (CHANGED, True, SAME, [(SyncAction.REPLACE, "")]),
        (APPROVED, False, SAME, [(SyncAction.REFUSE, "foreign-folder")]),
        (AWAY, False, None, [(SyncAction.REFUSE, "server-unavailable")]),
        (AWAY, True, SAME, [(SyncAction.OUTDATED, "server-unavailable")]),
        (UNLISTED, False, None, []),
        (UNLISTED, True, SAME, [(SyncAction.OUTDATED, "not-found")]),
    ],
)
def test_an_approved_skill_is_written_replaced_or_kept(
    target: SyncTarget,
    wanted: ApprovedSkill,
    is_recorded: bool,
    found: FolderContent | None,
    expected: list[tuple[SyncAction, str]],
) -> None:
    recorded = row(target.project, target.path) if is_recorded else None

    assert outcome(planned(target, wanted=wanted, recorded=recorded, found=found)) == expected


@pytest.mark.parametrize(
    ("validity", "expected"),
    [
        (ApprovalValidity.ENDED, (SyncAction.REMOVE, "")),
        (ApprovalValidity.CHANGED, (SyncAction.OUTDATED, "skill-changed")),
        (ApprovalValidity.UNTRUSTED, (SyncAction.OUTDATED, "lock-untrusted")),
        (ApprovalValidity.APPROVED, (SyncAction.KEEP, "")),
    ],
)
def test_what_is_not_approved_any_more_is_removed_or_stays_as_it_was_approved(
    target: SyncTarget, validity: ApprovalValidity, expected: tuple[SyncAction, str]
) -> None:
    recorded = row(target.project, target.path)

    assert outcome(planned(target, recorded=recorded, found=SAME, validity=validity)) == [expected]
    gone = planned(target, recorded=recorded, validity=validity)
    assert outcome(gone) == [(SyncAction.REMOVE, "")]


@pytest.mark.parametrize(
    "found",
    [
        FolderContent({**FILES, "SKILL.md": digest_of(b"other")}),
        FolderContent({**FILES, "more.md": digest_of(b"more")}),
        FolderContent({"SKILL.md": FILES["SKILL.md"]}),
        FolderContent(FILES, {"scripts/run.sh": "it is executable"}),
        FolderContent(odd={"": "it is a link or a file"}),
        FolderContent(),
    ],
)
@pytest.mark.parametrize("wanted", [APPROVED, CHANGED, AWAY, None])
def test_a_folder_that_differs_from_its_record_is_always_left_alone(
    target: SyncTarget, wanted: ApprovedSkill | None, found: FolderContent
) -> None:
    [step] = planned(target, wanted=wanted, recorded=row(target.project, target.path), found=found)

    assert outcome([step]) == [(SyncAction.REFUSE, "folder-changed")]
    assert step.files or found.odd


def test_a_skill_that_models_may_not_load_is_removed_with_the_reason(target: SyncTarget) -> None:
    steps = planned(
        target,
        recorded=row(target.project, target.path),
        found=SAME,
        validity=ApprovalValidity.APPROVED,
        barred=MANUAL,
    )

    assert outcome(steps) == [(SyncAction.REMOVE, "manual-only")]


def test_a_skill_that_has_another_name_now_is_removed_under_the_old_one_first(target: SyncTarget) -> None:
    recorded = row(target.project, target.path, "acme--billing--refunds")

    steps = planned(
        target, wanted=APPROVED, recorded=recorded, found=SAME, validity=ApprovalValidity.APPROVED
    )

    assert [(step.name, step.action) for step in steps] == [
        ("acme--billing--refunds", SyncAction.REMOVE),
        (NAME, SyncAction.WRITE),
    ]


def test_the_folders_of_another_project_are_left_alone_while_that_project_exists(
    target: SyncTarget, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    recorded = row(str(other), target.path)

    assert outcome(planned(target, recorded=recorded, found=SAME)) == []
    assert outcome(planned(target, wanted=APPROVED, recorded=recorded, found=SAME)) == [(SyncAction.KEEP, "")]
    refused = planned(target, wanted=CHANGED, recorded=recorded, found=SAME)
    assert outcome(refused) == [(SyncAction.REFUSE, "foreign-folder")]
    other.rmdir()
    assert outcome(planned(target, recorded=recorded, found=SAME)) == [(SyncAction.REMOVE, "")]
    replaced = planned(target, wanted=CHANGED, recorded=recorded, found=SAME)
    assert outcome(replaced) == [(SyncAction.REPLACE, "")]


def test_a_row_of_another_skill_under_the_same_name_is_replaced(target: SyncTarget) -> None:
    recorded = row(target.project, target.path, skill=skill_id("billing"))

    assert outcome(planned(target, wanted=APPROVED, recorded=recorded, found=SAME)) == [
        (SyncAction.REPLACE, "")
    ]
