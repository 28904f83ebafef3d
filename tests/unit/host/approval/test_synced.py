"""The record of synced folders: written without loss, parsed strictly, of no effect once tampered with."""

import json
from pathlib import Path
from typing import Any

import pytest

from approving import skill_id
from folders import skill_md, write_files
from skillwire.core import digest_of
from skillwire.host import LocalRoot, LocalSkills
from skillwire.host.approval.synced import (
    FILE,
    FolderChange,
    SyncedFolder,
    SyncedFolders,
    SyncRecord,
    SyncTarget,
)

TEMPORARY = ".skillwire-0000000000000000.tmp"


def folder(target: str = "/p/.agents/skills", name: str = "acme--refunds") -> SyncedFolder:
    return SyncedFolder(
        target, name, "/p", skill_id(), digest_of(b"b"), {"SKILL.md": digest_of(b"x")}, "refunds"
    )


def record() -> SyncRecord:
    change = FolderChange("/p/.agents/skills", "acme--triage", TEMPORARY, None, folder(name="acme--triage"))
    return SyncRecord().with_target(SyncTarget("/p/\udcff", "/p")).ending(change, folder()).beginning(change)


def test_a_record_is_read_as_it_was_written_by_another_process(tmp_path: Path) -> None:
    SyncedFolders(tmp_path).change(lambda _: record())

    found = SyncedFolders(tmp_path).read()

    assert found == record()
    assert found.places == {"/p/.agents/skills/acme--refunds", "/p/.agents/skills/acme--triage"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("folders", 0, "target"), "relative"),
        (("folders", 0, "name"), "../x"),
        (("folders", 0, "name"), ".hidden"),
        (("folders", 0, "binding"), "sha256:short"),
        (("folders", 0, "files"), {}),
        (("folders", 0, "files"), {"SKILL.md": 1}),
        (("folders", 0, "uri"), "skill://x"),
        (("changes", 0, "temporary"), "team--refunds"),
        (("changes", 0, "after"), {}),
        (("targets", 0, "project"), ""),
    ],
)
def test_a_record_that_this_program_would_not_write_is_refused(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(record().to_bytes())
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value

    with pytest.raises(ValueError):
        SyncRecord.parse(json.dumps(document).encode())


def test_a_record_that_was_tampered_with_counts_as_empty_and_is_reported(tmp_path: Path) -> None:
    SyncedFolders(tmp_path).change(lambda _: record())
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b"acme--refunds", b"acme--refundz"))

    store = SyncedFolders(tmp_path)

    assert store.read() == SyncRecord()
    assert store.tampering is not None


def test_recorded_folders_are_left_out_of_local_skills_under_any_path(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    write_files(root, {"acme--refunds/SKILL.md": skill_md("refunds"), "mine/SKILL.md": skill_md("mine")})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "linked").symlink_to(root / "acme--refunds")
    store = SyncedFolders(tmp_path / "state")
    store.change(lambda record: SyncRecord(folders={("x", "y"): folder(str(root))}))
    roots = [LocalRoot(root, "user"), LocalRoot(tmp_path / "more", "user")]

    scan = LocalSkills(roots, None, store).scan()

    assert [skill.reference for skill in scan.skills] == ["mine"]
    assert [(refusal.code, Path(refusal.subject).name) for refusal in scan.hidden] == [
        ("synced-folder", "acme--refunds"),
        ("synced-folder", "linked"),
    ]
