"""Approved skills in folders where other agents look for them: what to write, keep and remove, and doing it.

The plan is a pure function of approvals, the record and what is on disk. A
folder is touched only if the record has it with exactly the files it has now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio.to_thread

from skillwire.bridge.folder_names import folder_names, needs_own_name, with_name
from skillwire.bridge.folders import (
    IS_SUPPORTED,
    FolderChanges,
    FolderContent,
    content_of,
    opened_target,
    read_file,
    require_writable_paths,
)
from skillwire.core import SKILL_FILE, UNKNOWN_SIZE, ManifestFile, SkillError, SourceError, as_text, digest_of
from skillwire.host import (
    MOST_FILE_BYTES,
    ApprovalValidity,
    FileChange,
    FileState,
    OmissionReason,
    Refusal,
    RefusedError,
    SkillId,
    Storage,
    SyncedFolder,
    SyncedFolders,
    SyncRecord,
    SyncTarget,
    with_lines,
)

if TYPE_CHECKING:
    from skillwire.host import ApprovedSkill, Host, SkillExport

MOST_COMPARED: Final = 50
"""How many changed files of one folder are read to show their lines."""


class SyncAction(StrEnum):
    """What becomes of one folder."""

    WRITE = "write"
    REPLACE = "replace"
    REMOVE = "remove"
    KEEP = "keep"
    OUTDATED = "outdated"
    """It is kept as it was approved, though its server has other content, or none."""
    REFUSE = "refuse"
    """It is left as it is, and differs from what it should be."""


CHANGES = frozenset({SyncAction.WRITE, SyncAction.REPLACE, SyncAction.REMOVE})


@dataclass(frozen=True, slots=True)
class SyncStep:
    """One folder of a plan: of which skill, what becomes of it, and why.

    `folder` is its row of the record, `approved` what should be in it, and
    `files` how it differs from what was written, for one that was changed.
    """

    target: str
    name: str
    reference: str
    action: SyncAction
    reason: Refusal | None = None
    folder: SyncedFolder | None = None
    approved: ApprovedSkill | None = None
    original_name: str = ""
    files: tuple[FileChange, ...] = ()

    @property
    def is_fine(self) -> bool:
        return self.action is not SyncAction.REFUSE


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What was done, or would be; `notes` are approved skills that are not for other agents."""

    steps: tuple[SyncStep, ...]
    notes: tuple[Refusal, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether every folder is as it should be, or may stay as it is."""
        return all(step.is_fine for step in self.steps)

    @property
    def has_changes(self) -> bool:
        return any(step.action in CHANGES for step in self.steps)


@dataclass(frozen=True, slots=True)
class SyncPlanner:
    """Plans the folders of one target, from what is approved and recorded.

    `wanted` are the skills by the names of their folders, `barred` those that
    models may not load, `validity` whether an approval holds, and `reference`
    what a skill is called here. Folders of other projects that exist are left
    alone.
    """

    target: SyncTarget
    wanted: Mapping[str, ApprovedSkill]
    barred: Mapping[SkillId, Refusal]
    validity: Callable[[SkillId, str], ApprovalValidity]
    reference: Callable[[SkillId], str]

    def plan(self, record: SyncRecord, disk: Mapping[str, FolderContent]) -> list[SyncStep]:
        """Return a step for each folder, those that are removed first."""
        rows = {row.name: row for row in record.folders.values() if row.target == self.target.path}
        gone = (row for name, row in rows.items() if name not in self.wanted and self._is_ours(row))
        steps = [self._unwanted(row, disk.get(row.name)) for row in gone]
        for name, approved in self.wanted.items():
            step = self._wanted(name, approved, rows.get(name), disk.get(name))
            steps += [] if step is None else [step]
        return sorted(steps, key=lambda step: (step.action is not SyncAction.REMOVE, step.name))

    def _wanted(
        self, name: str, approved: ApprovedSkill, row: SyncedFolder | None, found: FolderContent | None
    ) -> SyncStep | None:
        refusal = approved.refusal
        step = SyncStep(self.target.path, name, approved.reference, SyncAction.KEEP, refusal, row, approved)
        if row is None and found is not None:
            return replace(step, action=SyncAction.REFUSE, reason=Refusal("foreign-folder", name))
        if row is None or found is None:
            if refusal is None:
                return replace(step, action=SyncAction.WRITE)
            return replace(step, action=SyncAction.REFUSE) if refusal.code != "not-found" else None
        step = replace(step, original_name=row.original_name)
        if not found.matches(row.files):
            return _changed(step, found)
        is_same = row.binding == approved.binding and row.skill == approved.id
        if not is_same and not self._is_ours(row):
            detail = f"it was synced for the project {row.project}"
            return replace(step, action=SyncAction.REFUSE, reason=Refusal("foreign-folder", name, detail))
        if refusal is not None:
            return replace(step, action=SyncAction.OUTDATED)
        return step if is_same else replace(step, action=SyncAction.REPLACE)

    def _unwanted(self, row: SyncedFolder, found: FolderContent | None) -> SyncStep:
        reference = self.reference(row.skill)
        step = SyncStep(row.target, row.name, reference, SyncAction.REMOVE, folder=row)
        step = replace(step, original_name=row.original_name)
        if found is None:
            return step
        if not found.matches(row.files):
            return _changed(step, found)
        if row.skill in self.barred:
            return replace(step, reason=self.barred[row.skill])
        if any(approved.id == row.skill for approved in self.wanted.values()):
            return step  # It has another name now.
        match self.validity(row.skill, row.binding):
            case ApprovalValidity.APPROVED:
                return replace(step, action=SyncAction.KEEP)
            case ApprovalValidity.ENDED:
                return step
            case ApprovalValidity.CHANGED:
                fix = f"review it with `skillwire diff {reference}`, then run `skillwire approve {reference}`"
                refusal = Refusal("skill-changed", reference, fix=fix)
            case ApprovalValidity.UNTRUSTED:
                refusal = Refusal("lock-untrusted", reference)
        return replace(step, action=SyncAction.OUTDATED, reason=refusal)

    def _is_ours(self, row: SyncedFolder) -> bool:
        return row.project == self.target.project or not os.path.isdir(row.project)  # noqa: PTH112


def _changed(step: SyncStep, found: FolderContent) -> SyncStep:
    """Return the step for a folder that another program changed: which files differ, and what is odd."""
    assert step.folder is not None, "only a recorded folder can have changed"
    before = step.folder.files
    detail = "; ".join(
        f"{as_text(path) or step.name}: {reason}" for path, reason in sorted(found.odd.items())
    )
    changes: list[FileChange] = []
    for path in sorted(before.keys() | found.files.keys()):
        old, new = before.get(path), found.files.get(path)
        if old != new:
            kept = FileState.MODIFIED if old is not None else FileState.ADDED
            state = FileState.REMOVED if new is None else kept
            change = FileChange(as_text(path), state, _line(path, old), _line(path, new))
            changes.append(replace(change, omission=OmissionReason.NOT_CACHED))
    refusal = Refusal("folder-changed", step.name, detail)
    return replace(step, action=SyncAction.REFUSE, reason=refusal, files=tuple(changes))


def _line(path: str, digest: str | None) -> ManifestFile | None:
    return None if digest is None else ManifestFile(quote(os.fsencode(path)), digest, UNKNOWN_SIZE)


class SkillSync:
    """Writes the approved skills of a host into folders, for one project.

    `project` is its real path. All methods wait for another sync to end, for
    a bounded time.
    """

    def __init__(self, host: Host, storage: Storage, project: Path) -> None:
        self._host = host
        self._storage = storage
        self._project = Path(os.path.realpath(project))
        self._store = SyncedFolders(storage.state, key=storage.state_key)
        self._changes = FolderChanges(self._store)

    def targets(self) -> tuple[Path, ...]:
        """Return the folders that were synced for this project, sorted."""
        found = self._store.read().targets
        return tuple(sorted(Path(one.path) for one in found if one.project == str(self._project)))

    def resolved(self, target: Path) -> Path:
        """Return the real path of a folder to write to; inside the project, links stay and are refused later.

        Raises:
            UnsafePlaceError: It overlaps with the host's state or cache.
        """
        path = Path(os.path.abspath(target))  # noqa: PTH100 - links must stay
        above = next((each for each in path.parents if os.path.realpath(each) == str(self._project)), None)
        path = Path(os.path.realpath(path)) if above is None else self._project / path.relative_to(above)
        self._storage.check([path])
        return path

    async def run(self, targets: Sequence[Path], *, writes: bool) -> SyncReport:
        """Sync folders, given as `resolved` returns them; without `writes` only report what would be done.

        Raises:
            SourceError: Another sync is running, or the record cannot be read or written.
            UnsafePlaceError: A folder is a link, or cannot be opened.
            RefusedError: The record was tampered with, or this system is not supported.
        """
        if not IS_SUPPORTED:
            raise RefusedError(
                "this system cannot write folders safely", fix="use `skillwire bridge` instead"
            )
        with ExitStack() as stack:
            await anyio.to_thread.run_sync(stack.enter_context, self._store.locked())
            record = await anyio.to_thread.run_sync(
                self._changes.recover if writes else self._changes.expected
            )
            if (tampering := self._store.tampering) is not None:
                raise RefusedError(
                    f"the record of synced folders cannot be used: {tampering.detail}",
                    fix="delete the folders that were synced, then sync again",
                )
            export = self._host.export
            skills = export.skills()
            barred = {skill.id: skill.refusal for skill in skills if skill.refusal and skill.is_barred}
            usable = [skill for skill in skills if skill.id not in barred]
            names = folder_names([skill.id for skill in usable])
            wanted = {names[skill.id]: skill for skill in usable}
            steps: list[SyncStep] = []
            for path in targets:
                target = SyncTarget(str(path), str(self._project))
                planner = SyncPlanner(target, wanted, barred, export.validity, export.reference)
                steps += await self._sync(planner, record, export, writes=writes)
            return SyncReport(tuple(steps), tuple(barred.values()))

    async def _sync(
        self, planner: SyncPlanner, record: SyncRecord, export: SkillExport, *, writes: bool
    ) -> list[SyncStep]:
        target, path = planner.target, Path(planner.target.path)
        rows = (row.name for row in record.folders.values() if row.target == target.path)
        with opened_target(path, self._project) as above:
            disk = await anyio.to_thread.run_sync(_contents, above, {*planner.wanted, *rows})
            steps = planner.plan(record, disk)
            own = [await self._examined(above, step, disk.get(step.name), export) for step in steps]
        if not writes:
            return own
        if target not in record.targets:
            await anyio.to_thread.run_sync(self._store.change, partial(SyncRecord.with_target, target=target))
        makes = any(step.action is SyncAction.WRITE for step in own)
        with opened_target(path, self._project, make=makes) as above:
            return [await self._applied(above, step, export) for step in own]

    async def _examined(
        self, above: int | None, step: SyncStep, found: FolderContent | None, export: SkillExport
    ) -> SyncStep:
        """Return a step with what only the approved bytes can tell: the changed lines, or equal content."""
        if step.reason is None or step.action is not SyncAction.REFUSE or above is None or found is None:
            return step
        approved, row = step.approved, step.folder
        if approved is None or (row is not None and row.binding != approved.binding):
            return step
        try:
            files, original = await _prepared(export, step)
        except SkillError:
            return step
        if row is None and found.matches({path: digest_of(content) for path, content in files.items()}):
            return replace(step, action=SyncAction.KEEP, reason=None, original_name=original)
        return await anyio.to_thread.run_sync(_with_differences, above, step, files)

    async def _applied(self, above: int | None, step: SyncStep, export: SkillExport) -> SyncStep:
        """Do what a step says; return it with what came of it."""
        try:
            if step.action is SyncAction.REMOVE and step.folder is not None:
                await anyio.to_thread.run_sync(self._changes.remove, above, step.folder)
            elif step.action in CHANGES and above is not None:
                files, original = await _prepared(export, step)
                await anyio.to_thread.run_sync(self._write, above, step, files, original)
                return replace(step, original_name=original)
        except (SkillError, OSError) as error:
            return _failed(step, error)
        return step

    def _write(self, above: int, step: SyncStep, files: Mapping[str, bytes], original_name: str) -> None:
        assert step.approved is not None, "only an approved skill is written"
        digests = {path: digest_of(content) for path, content in files.items()}
        skill, binding = step.approved.id, step.approved.binding
        after = SyncedFolder(
            step.target, step.name, str(self._project), skill, binding, digests, original_name
        )
        before = step.folder if step.action is SyncAction.REPLACE else None
        self._changes.write(above, before, after, files)


def _contents(above: int | None, names: set[str]) -> dict[str, FolderContent]:
    if above is None:
        return {}
    found = {name: content_of(above, name) for name in sorted(names)}
    return {name: content for name, content in found.items() if content is not None}


async def _prepared(export: SkillExport, step: SyncStep) -> tuple[dict[str, bytes], str]:
    """Return the files to write for a skill, and the name in its frontmatter if that is adapted.

    Raises:
        SkillError: They are not to be had, or cannot be written on every file system.
    """
    assert step.approved is not None, "only an approved skill has files"
    files = await export.files(step.approved)
    require_writable_paths(files.keys())
    if not needs_own_name(Path(step.target)):
        return files, ""
    content, original = with_name(files[SKILL_FILE], step.name)
    return {**files, SKILL_FILE: content}, original


def _failed(step: SyncStep, error: SkillError | OSError) -> SyncStep:
    """Return the step that failed: a folder that exists stays as it was approved."""
    if isinstance(error, OSError):
        error = SourceError(f"the folder cannot be written: {error.strerror or type(error).__name__}")
    refusal = Refusal.of(error, step.reference)
    is_kept = step.action is SyncAction.REPLACE and refusal.code not in (
        "folder-changed",
        "source-unreadable",
    )
    return replace(step, action=SyncAction.OUTDATED if is_kept else SyncAction.REFUSE, reason=refusal)


def _with_differences(above: int, step: SyncStep, files: Mapping[str, bytes]) -> SyncStep:
    """Return a step with the lines that differ in its files, up to a limit."""
    changes: list[FileChange] = []
    for number, file in enumerate(step.files):
        old = files.get(file.path, b"") if file.old is not None else b""
        new: bytes | None = b""
        if file.new is not None:
            is_read = number < MOST_COMPARED
            new = read_file(above, step.name, file.path, MOST_FILE_BYTES) if is_read else None
        if new is None or len(old) > MOST_FILE_BYTES:
            changes.append(replace(file, omission=OmissionReason.TOO_LARGE))
        else:
            sized = replace(file, old=_sized(file.old, old), new=_sized(file.new, new), omission=None)
            changes.append(with_lines(sized, old, new))
    return replace(step, files=tuple(changes))


def _sized(line: ManifestFile | None, content: bytes) -> ManifestFile | None:
    return None if line is None else replace(line, size=len(content))
