"""How a skill differs from what was approved: files, lines, fields, and what cannot be told."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from skillwire.cli.render import comparison_lines
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest, ManifestFile, digest_of
from skillwire.host.approval.lock_trust import LockTrust, ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model.approval import Approval, Grant, now
from skillwire.host.model.comparison import (
    MOST_FILE_BYTES,
    Basis,
    Comparison,
    FieldChange,
    FileState,
    OmissionReason,
)
from skillwire.host.model.errors import UnavailableError
from skillwire.host.model.origin import KnownSkill
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import ContentCache, UnpackedArchives
from skillwire.host.use.diff import MOST_FILES, compare, previous_of
from skillwire.host.use.fetch import ArchivePolicy, Archives, Files
from unit.host.covered import FILES as COVERED
from unit.host.covered import URL, archive, in_archive, with_skill_file
from unit.host.known_skills import LOCAL, known, skill_md

SCRIPT = b"echo 1\n"
POLICY = b"one\ntwo\nthree\n"


class Bench:
    """Approvals, a lock and a cache in a folder. What a server would send is in the cache already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ApprovalStore(folder / "state")
        self.lock = ProjectLock()
        self.cache = ContentCache(folder / "cache")
        audit = self.audit = AuditLog(folder / "state" / "audit.jsonl")
        self.trees = UnpackedArchives(folder / "cache" / "trees")
        self.archives = Archives(ArchivePolicy(), self.trees, audit)
        self.files = Files({}, self.cache, self.archives, audit)

    def keep(self, skill: KnownSkill, files: Mapping[str, bytes], *, body: str = "Do it.\n") -> None:
        """Put the bytes of a skill's files into the cache."""
        assert skill.entry.manifest is not None
        for path, content in {**files, "SKILL.md": skill_md(body=body)}.items():
            line = skill.entry.manifest.require(skill.entry.uri.join(path))
            assert self.cache.put(skill.id.origin, line, content)

    def approve(self, skill: KnownSkill) -> None:
        assert skill.entry.manifest is not None
        self.store.grant(Approval(skill.id, skill.entry.manifest, frozenset({Grant.LOAD}), now()))

    async def compare(self, skill: KnownSkill, *, full: bool = False) -> Comparison:
        if skill.is_remote:
            self.store.observe(skill.id, skill.entry)
        previous = previous_of(skill, self.store, self.lock)
        return await compare(self.files, self.cache, self.audit, skill, previous, full=full)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def changes(comparison: Comparison) -> dict[str, str]:
    return {file.path: file.state.value for file in comparison.files}


async def test_what_was_approved_and_is_the_same_has_no_difference(bench: Bench) -> None:
    skill = known(files={"references/policy.md": POLICY})
    bench.approve(skill)
    bench.keep(skill, {"references/policy.md": POLICY})

    found = await bench.compare(skill)

    assert found.is_same
    assert (found.basis, found.files, found.frontmatter) == (Basis.APPROVED, (), ())


@pytest.mark.requirement("APPR-02")
async def test_added_removed_and_modified_files_are_told_with_skill_md_and_scripts_first(
    bench: Bench,
) -> None:
    before = {"a.md": b"gone\n", "references/policy.md": POLICY, "z.sh": SCRIPT}
    old = known(files=before)
    after = {"references/policy.md": b"one\n2\nthree\n", "new.md": b"x\n", "z.sh": b"echo 2\n"}
    new = known(body="Do more.\n", files=after)
    bench.keep(old, before)
    bench.keep(new, after, body="Do more.\n")
    bench.approve(old)

    found = await bench.compare(new)

    assert not found.is_same
    assert found.basis is Basis.ENDED
    assert [file.path for file in found.files] == [
        "SKILL.md",
        "z.sh",
        "a.md",
        "new.md",
        "references/policy.md",
    ]
    assert changes(found) == {
        "SKILL.md": "modified",
        "z.sh": "modified",
        "a.md": "removed",
        "new.md": "added",
        "references/policy.md": "modified",
    }
    assert [file.is_script for file in found.files] == [False, True, False, False, False]
    policy = found.files[-1]
    assert policy.lines is not None and (policy.lines.added, policy.lines.removed) == (1, 1)
    assert policy.old is not None and policy.new is not None
    assert (policy.old.size, policy.new.digest) == (14, digest_of(b"one\n2\nthree\n"))


async def test_bytes_that_are_not_cached_any_more_are_said_to_be_missing(bench: Bench) -> None:
    old, new = known(files={"z.sh": SCRIPT}), known(files={"z.sh": b"echo 2\n"})
    bench.keep(new, {"z.sh": b"echo 2\n"})
    bench.approve(old)

    [file] = (await bench.compare(new)).files

    assert (file.lines, file.omission) == (None, OmissionReason.NOT_CACHED)
    assert OmissionReason.NOT_CACHED.words.startswith("the approved file is not cached")


@pytest.mark.requirement("CACHE-01")
async def test_cached_bytes_that_something_changed_are_not_taken_for_the_approved_ones(
    bench: Bench,
) -> None:
    old, new = known(files={"z.sh": SCRIPT}), known(files={"z.sh": b"echo 2\n"})
    bench.keep(old, {"z.sh": SCRIPT})
    bench.keep(new, {"z.sh": b"echo 2\n"})
    bench.approve(old)
    [kept] = bench.cache._root.rglob(digest_of(SCRIPT).removeprefix("sha256:"))  # pyright: ignore[reportPrivateUsage]
    kept.write_bytes(b"echo X\n")

    [file] = (await bench.compare(new)).files

    assert file.omission is OmissionReason.NOT_CACHED


async def test_binary_files_are_named_and_not_shown(bench: Bench) -> None:
    old, new = known(files={"logo.png": b"\xff\x00"}), known(files={"logo.png": b"\xff\x01"})
    bench.keep(old, {"logo.png": b"\xff\x00"})
    bench.keep(new, {"logo.png": b"\xff\x01"})
    bench.approve(old)

    [file] = (await bench.compare(new)).files

    assert (file.path, file.lines, file.omission) == ("logo.png", None, OmissionReason.NOT_TEXT)


async def test_a_file_at_another_path_with_approved_bytes_has_moved(bench: Bench) -> None:
    old, new = known(files={"a.md": POLICY}), known(files={"scripts/a.sh": POLICY})
    bench.approve(old)

    found = await bench.compare(new)

    moved = next(file for file in found.files if file.state is FileState.ADDED)
    assert (moved.moved_from, moved.omission, moved.is_script) == ("a.md", OmissionReason.MOVED, True)


async def test_changed_fields_are_told_by_name_with_both_values(bench: Bench) -> None:
    old = known(extra="license: MIT\nmetadata:\n  a: '1'\n")
    new = known(extra="metadata:\n  a: '2'\nallowed-tools: Bash(*)\n")
    assert old.entry.manifest is not None
    content = skill_md(extra="license: MIT\nmetadata:\n  a: '1'\n")
    bench.cache.put(old.id.origin, old.entry.manifest.require(old.id.uri), content)
    bench.approve(old)

    found = await bench.compare(new)

    assert found.frontmatter == (
        FieldChange("allowed-tools", None, "Bash(*)", had=False),
        FieldChange("license", "MIT", None, has=False),
        FieldChange("metadata", {"a": "1"}, {"a": "2"}),
    )
    assert json.loads(json.dumps(found.to_json()))["frontmatter"][0] == {
        "name": "allowed-tools",
        "new": "Bash(*)",
    }


@pytest.mark.requirement("INT-05")
async def test_a_listing_that_describes_the_same_files_otherwise_is_a_difference(bench: Bench) -> None:
    old, liar = known(), known(extra="allowed-tools: Bash(*)\n")
    bench.keep(old, {})
    bench.approve(old)
    entry = SkillEntry(old.entry.uri, liar.entry.frontmatter, old.entry.manifest)
    said = KnownSkill(old.id, old.reference, entry)

    found = await bench.compare(said)

    assert found.files == ()
    assert not found.is_same
    assert [changed.name for changed in found.frontmatter or ()] == ["allowed-tools"]


async def test_a_skill_that_was_never_approved_is_all_new_and_read_only_when_wanted(bench: Bench) -> None:
    skill = known(files={"z.sh": SCRIPT})
    bench.keep(skill, {"z.sh": SCRIPT})

    found, full = await bench.compare(skill), await bench.compare(skill, full=True)

    assert (found.basis, found.is_same) == (Basis.NOTHING, False)
    assert {file.omission for file in found.files} == {OmissionReason.NOT_WANTED}
    assert [file.lines.added for file in full.files if file.lines is not None] == [5, 1]


async def test_a_local_skill_has_nothing_to_differ_from(bench: Bench) -> None:
    found = await bench.compare(known(origin=LOCAL))

    assert (found.basis, found.is_same, found.files) == (Basis.LOCAL, True, ())


@pytest.mark.requirement("APPR-04")
async def test_a_skill_that_lost_its_digests_differs_without_any_file(bench: Bench) -> None:
    old = known(files={"z.sh": SCRIPT})
    bench.approve(old)

    found = await bench.compare(known(is_dynamic=True))

    assert (found.is_same, found.is_dynamic, found.files) == (False, True, ())


async def test_a_cached_copy_is_not_compared_with_itself(bench: Bench) -> None:
    skill = known(offline_since="2026-09-08")
    bench.approve(skill)

    with pytest.raises(UnavailableError):
        await bench.compare(skill)


async def test_a_pin_of_a_trusted_lock_is_what_a_skill_is_compared_with(bench: Bench, tmp_path: Path) -> None:
    old, new = known(files={"z.sh": SCRIPT}), known(files={"z.sh": b"echo 2\n"})
    assert old.entry.manifest is not None
    pin = Approval(old.id, old.entry.manifest, frozenset({Grant.LOAD}), now())
    path = tmp_path / "skills.lock"
    LockTrust(tmp_path / "state").write(path, [pin])

    for is_frozen in (False, True):
        bench.lock = ProjectLock(path, is_frozen=is_frozen)
        bench.lock.open(LockTrust(tmp_path / "state"))
        same, changed = await bench.compare(old), await bench.compare(new)

        assert (same.basis, same.is_same) == (Basis.LOCKED, True)
        assert (changed.basis, changes(changed)) == (Basis.LOCKED, {"z.sh": "modified"})


@pytest.mark.parametrize("is_lock_newer", [True, False])
async def test_the_newest_yes_is_what_a_change_is_measured_against(
    bench: Bench, tmp_path: Path, is_lock_newer: bool
) -> None:
    own, pinned, new = (known(files={"z.sh": content}) for content in (b"own\n", b"pinned\n", b"new\n"))
    assert pinned.entry.manifest is not None
    when = now() + timedelta(hours=1 if is_lock_newer else -1)
    pin = Approval(pinned.id, pinned.entry.manifest, frozenset({Grant.LOAD}), when)
    path = tmp_path / "skills.lock"
    LockTrust(tmp_path / "state").write(path, [pin])
    bench.lock = ProjectLock(path)
    bench.lock.open(LockTrust(tmp_path / "state"))
    bench.approve(own)

    found = await bench.compare(new)

    newest, basis = (pinned, Basis.LOCKED) if is_lock_newer else (own, Basis.ENDED)
    assert (found.basis, found.previous.manifest) == (basis, newest.entry.manifest)
    assert not found.is_approved


async def test_the_same_files_as_once_are_no_difference_and_no_approval(bench: Bench, tmp_path: Path) -> None:
    skill = known(files={"z.sh": SCRIPT})
    bench.approve(skill)
    assert (await bench.compare(skill)).is_approved
    bench.store.observe(skill.id, known().entry)
    came_back = await bench.compare(skill)

    assert (came_back.basis, came_back.is_same, came_back.is_approved) == (Basis.ENDED, True, False)


async def test_a_frozen_lock_is_all_there_is(bench: Bench, tmp_path: Path) -> None:
    skill, other = known(), known("reports")
    assert other.entry.manifest is not None
    path = tmp_path / "skills.lock"
    pin = Approval(other.id, other.entry.manifest, frozenset({Grant.LOAD}), now())
    LockTrust(tmp_path / "elsewhere").write(path, [pin])
    bench.approve(skill)
    bench.lock = ProjectLock(path, is_frozen=True)
    bench.lock.open(LockTrust(tmp_path / "state"))

    assert (await bench.compare(skill)).basis is Basis.NOTHING


async def test_what_a_server_does_not_hand_out_is_said_with_the_reason(bench: Bench) -> None:
    old, new = known(files={"z.sh": SCRIPT}), known(files={"z.sh": b"echo 2\n"})
    bench.keep(old, {"z.sh": SCRIPT})
    bench.approve(old)

    [file] = (await bench.compare(new)).files

    assert file.omission is OmissionReason.REFUSED
    assert file.refusal is not None and file.refusal.code == "unknown-reference"


@pytest.mark.requirement("LIM-02")
async def test_nothing_is_read_of_a_skill_that_is_over_a_limit(bench: Bench) -> None:
    files = {f"{number}.md": b"x" for number in range(512)}
    old, new = known(files={"a.sh": SCRIPT}), known(files={**files, "a.sh": b"echo 2\n"})
    bench.keep(old, {"a.sh": SCRIPT})
    bench.keep(new, {**files, "a.sh": b"echo 2\n"})
    bench.approve(old)

    found = await bench.compare(new)

    assert [problem.code for problem in found.problems] == ["over-limit"]
    assert all(file.lines is None for file in found.files)


async def test_files_beyond_what_one_comparison_reads_are_named_all_the_same(bench: Bench) -> None:
    files = {f"{number:03}.md": b"%d\n" % number for number in range(MOST_FILES + 5)}
    huge = {"huge.txt": b"x" * (MOST_FILE_BYTES + 1)}
    old, new = known(), known(files={**files, **huge})
    bench.keep(new, {**files, **huge})
    bench.approve(old)

    found = await bench.compare(new)

    lacks = [file.omission for file in found.files]
    assert len(found.files) == MOST_FILES + 6
    assert (
        lacks.count(OmissionReason.TOO_MUCH),
        lacks.count(OmissionReason.TOO_LARGE),
        lacks.count(None),
    ) == (5, 1, MOST_FILES)


async def test_a_new_skill_md_that_is_not_what_the_listing_says_is_a_problem(bench: Bench) -> None:
    old = known()
    content = skill_md(body="Do more.\n", extra="allowed-tools: Bash(*)\n")
    line = ManifestFile.of(old.id.uri, content)
    new = known(body="Do more.\n")
    lying = KnownSkill(
        new.id,
        new.reference,
        SkillEntry(new.entry.uri, new.entry.frontmatter, Manifest.of([line])),
    )
    bench.keep(old, {})
    bench.cache.put(new.id.origin, line, content)
    bench.approve(old)

    found = await bench.compare(lying)

    assert [problem.code for problem in found.problems] == ["frontmatter-mismatch"]


async def test_odd_paths_are_shown_as_one_word(bench: Bench) -> None:
    odd = "a  modified: SKILL.md.md"
    new = known(files={odd: b"x", "plain.md": b"x", "\u202efdp.md": b"x"})
    bench.approve(known())

    shown = {file.path: file.shown for file in (await bench.compare(new)).files}

    assert shown[odd] == "a%20%20modified:%20SKILL.md.md"
    assert shown["plain.md"] == "plain.md"
    assert shown["\u202efdp.md"] == "%E2%80%AEfdp.md"


@pytest.mark.requirement("APPR-08")
async def test_an_archive_whose_approved_bytes_are_gone_is_compared_by_its_digest(bench: Bench) -> None:
    old, new = in_archive(archive()), in_archive(archive({"SKILL.md": COVERED["SKILL.md"]}))
    bench.approve(old)

    found = await bench.compare(new)

    [file] = found.files
    assert (file.path, file.state, file.omission) == (URL, FileState.MODIFIED, OmissionReason.PACKED)
    assert found.frontmatter is None and not found.is_same
    assert json.loads(json.dumps(found.to_json()))["files"][0]["old"]["size"] is None
    assert f"modified: {URL} (? to ? bytes)" in "\n".join(map(str, comparison_lines(found)))


async def test_how_to_read_unread_files_is_suggested_with_the_options_that_find_the_skill(
    bench: Bench,
) -> None:
    old, new = known(files={"a.md": b"one\n"}), known(files={"a.md": b"two\n"})
    bench.approve(old)
    bench.keep(new, {"a.md": b"two\n"})

    found = await bench.compare(new)

    lines = "\n".join(map(str, comparison_lines(found, options=("--config", "my servers.json"))))
    assert found.unread
    assert f"skillwire approve {new.reference} --review --config 'my servers.json'" in lines


async def test_a_skill_whose_digests_cover_something_else_is_not_the_same(bench: Bench) -> None:
    old, new = with_skill_file(), known(extra="allowed-tools: Read\n")
    bench.approve(old)

    found = await bench.compare(new)

    assert (found.files, found.is_coverage_changed, found.is_same) == ((), True, False)
    lines = "\n".join(map(str, comparison_lines(found)))
    assert "changed: what its digests cover" in lines
    assert "Approved: only SKILL.md has a digest" in lines and "Now: 1 file, " in lines
