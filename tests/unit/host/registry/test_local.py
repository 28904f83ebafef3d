"""Local folders of skills: found within bounds, read kindly, and nothing followed out of them."""

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import manifest_of, skill_md, write_files, write_skill
from skillwire.core.errors import (
    DigestMismatchError,
    InvalidUriError,
    NotFoundError,
    SizeMismatchError,
    SourceError,
    UnlistedFileError,
)
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.host.model.errors import Refusal
from skillwire.host.model.origin import KnownSkill, OriginKind
from skillwire.host.registry import local
from skillwire.host.registry.local import (
    MAX_DEPTH,
    MAX_FOLDERS,
    LocalRoot,
    LocalScan,
    LocalSkills,
    default_roots,
    read_local_file,
)
from skillwire.host.state.trust import FolderTrust
from skillwire.sources.directory.walk import FolderReader

NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / ".agents" / "skills"
    folder.mkdir(parents=True)
    return folder


def scan(*roots: Path) -> LocalScan:
    return LocalSkills([LocalRoot(root, "user") for root in roots]).scan()


def references(found: LocalScan) -> list[str]:
    return [skill.reference for skill in found.skills]


def refused(found: LocalScan) -> list[tuple[str, str]]:
    """Return the code and the folder's name of everything that is hidden."""
    return [(refusal.code, Path(refusal.subject).name) for refusal in found.hidden]


def only(found: LocalScan) -> KnownSkill:
    (skill,) = found.skills
    return skill


def fail_to_look(*_arguments: object) -> None:
    pytest.fail("nothing may be looked at here")


def codes(skill: KnownSkill) -> list[tuple[str, str]]:
    return [(finding.code, finding.file) for finding in skill.findings]


@pytest.mark.requirement("FS-01")
@pytest.mark.requirement("HOST-02")
def test_a_folder_becomes_a_record_with_the_digests_of_its_files(root: Path) -> None:
    folder = write_skill(root / "team" / "refunds", {"scripts/run.sh": "#!/bin/sh\n"})

    skill = only(scan(root))

    assert skill.reference == skill.name == "refunds"
    assert skill.id.uri == "local://user/team/refunds/SKILL.md"
    assert (skill.id.origin.kind, skill.id.origin.label) == (OriginKind.LOCAL, "user")
    assert not skill.is_remote
    assert skill.dialect == "local"
    assert skill.directory == folder
    assert skill.entry.manifest == manifest_of(folder, skill.id.uri)
    assert codes(skill) == [("unlinked-file", "scripts/run.sh")]


@pytest.mark.requirement("FS-01")
def test_the_usual_roots_are_two_of_the_project_and_two_of_the_user(tmp_path: Path, empty_home: Path) -> None:
    assert default_roots(tmp_path) == (
        LocalRoot(tmp_path / ".agents/skills", "project", tmp_path),
        LocalRoot(tmp_path / ".skillwire/skills", "project", tmp_path),
        LocalRoot(empty_home / ".agents/skills", "user"),
        LocalRoot(empty_home / ".skillwire/skills", "user"),
    )
    assert default_roots(home=tmp_path) == (
        LocalRoot(tmp_path / ".agents/skills", "user"),
        LocalRoot(tmp_path / ".skillwire/skills", "user"),
    )


def test_roots_that_do_not_exist_hold_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path / "gone") == LocalScan()


@pytest.mark.requirement("FS-01")
def test_hidden_vendored_and_generated_folders_are_not_searched(root: Path) -> None:
    for name in (".git", "node_modules", "__pycache__", ".hidden", "kept"):
        write_skill(root / "group" / name)

    assert references(scan(root)) == ["kept"]


@pytest.mark.requirement("FS-01")
def test_a_skill_inside_a_skill_is_a_part_of_it(root: Path) -> None:  # attack 82
    folder = write_skill(root / "outer")
    write_skill(folder / "vendor" / "inner")

    skill = only(scan(root))

    assert skill.reference == "outer"
    assert skill.entry.manifest is not None
    assert "local://user/outer/vendor/inner/SKILL.md" in skill.entry.manifest.uris


@pytest.mark.requirement("FS-01")
def test_the_search_goes_six_folders_deep(root: Path) -> None:
    write_skill(root.joinpath(*"abcde") / "deep")
    write_skill(root.joinpath(*"abcdef") / "too-deep")

    assert references(scan(root)) == ["deep"]
    assert MAX_DEPTH == 6


@pytest.mark.requirement("FS-01")
def test_the_search_ends_after_two_thousand_folders_and_says_so(root: Path) -> None:
    write_skill(root / "0-first")
    for number in range(MAX_FOLDERS):
        (root / f"folder-{number:04}").mkdir()
    write_skill(root / "z-last")

    found = scan(root)

    assert references(found) == ["0-first"]
    assert refused(found) == [("over-limit", "skills")]


@pytest.mark.requirement("FS-01")
def test_a_skill_file_of_another_case_or_in_the_root_itself_is_reported(root: Path) -> None:
    write_files(
        root, {"one/skill.md": skill_md("one"), "two/Skill.MD": skill_md("two"), "SKILL.md": skill_md("x")}
    )
    write_skill(root / "good")

    found = scan(root)

    assert references(found) == ["good"]
    assert refused(found) == [("invalid-skill", "skills"), ("invalid-skill", "one"), ("invalid-skill", "two")]


@pytest.mark.requirement("FS-03")
@pytest.mark.parametrize(
    ("frontmatter", "reference", "code"),
    [
        ("name: other\ndescription: Use when asked.\n", "other", "name-differs-from-folder"),
        ("name: Code Review\ndescription: Use when asked.\n", "Code Review", "name-invalid"),
        (f"name: {'x' * 80}\ndescription: Use when asked.\n", "x" * 80, "name-invalid"),
        ("description: Use when asked.\n", "folder", "name-missing"),
        ("name: 7\ndescription: Use when asked.\n", "folder", "name-invalid"),
        ("name: acme/folder\ndescription: Use when asked.\n", "folder", "name-invalid"),
        ("name: folder\ndescription: Use when asked.\nhooks: x\n", "folder", "field-unknown"),
        ("name: folder\ndescription: Use when asked.\nmetadata:\n  n: 1\n", "folder", "metadata-invalid"),
        ("name: folder\ndescription: Use when: asked.\n", "folder", "yaml-syntax"),
        (f"name: folder\ndescription: Use when {'x' * 2000}\n", "folder", "description-too-long"),
    ],
)
def test_a_local_skill_that_breaks_a_rule_is_used_and_remarked_upon(
    root: Path, frontmatter: str, reference: str, code: str
) -> None:
    write_files(root, {"folder/SKILL.md": f"---\n{frontmatter}---\nDo it.\n"})

    found = scan(root)

    assert found.hidden == ()
    skill = only(found)
    assert skill.reference == reference
    assert code in [finding.code for finding in skill.findings]


@pytest.mark.requirement("FS-03")
@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("---\nname: folder\n---\n", "invalid-skill"),
        ("---\nname: folder\ndescription: ''\n---\n", "invalid-skill"),
        ("---\nname: folder\ndescription: [a]\n---\n", "invalid-skill"),
        ("---\nname: folder\ndescription: [a\n---\n", "invalid-frontmatter"),
        ("---\nname: folder\nname: folder\n---\n", "invalid-frontmatter"),
        ("no frontmatter", "invalid-frontmatter"),
        ("", "invalid-frontmatter"),
        (b"---\nname: folder\ndescription: \xff\n---\n", "invalid-frontmatter"),
    ],
)
def test_what_has_no_description_or_cannot_be_read_is_skipped(
    root: Path, content: str | bytes, code: str
) -> None:
    write_files(root, {"folder/SKILL.md": content})
    write_skill(root / "good")

    found = scan(root)

    assert references(found) == ["good"]
    assert refused(found) == [(code, "folder")]


@pytest.mark.requirement("FS-02")
def test_of_one_name_the_projects_skill_comes_first_then_the_first_by_path(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project / ".skillwire/skills/b", project / ".agents/skills/c", home / ".agents/skills/a"):
        write_skill(folder, name="same")
    write_skill(home / ".agents/skills/mine")
    trust = FolderTrust(tmp_path / "state")
    trust.trust(project)

    found = LocalSkills(default_roots(project, home=home), trust).scan()

    assert {skill.reference: skill.directory for skill in found.skills} == {
        "same": project / ".agents/skills/c",
        "mine": home / ".agents/skills/mine",
    }
    assert found.hidden == (
        Refusal(
            "shadowed", "same", f"{project}/.skillwire/skills/b is shadowed by {project}/.agents/skills/c"
        ),
        Refusal("shadowed", "same", f"{home}/.agents/skills/a is shadowed by {project}/.agents/skills/c"),
    )


@pytest.mark.requirement("FS-04")
def test_a_project_that_is_not_trusted_has_no_skills_and_nothing_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # attack 81
    project, home = tmp_path / "project", tmp_path / "home"
    write_skill(project / ".agents/skills/theirs")
    trust = FolderTrust(tmp_path / "state")
    skills = LocalSkills(default_roots(project, home=home), trust)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail_to_look)
        assert skills.scan() == LocalScan((), (Refusal("untrusted-folder", str(project)),))

    trust.trust(project)
    assert references(skills.scan()) == ["theirs"]
    trust.distrust(project)
    assert references(skills.scan()) == []


@pytest.mark.requirement("FS-04")
def test_without_a_record_of_trust_no_project_is_trusted(tmp_path: Path) -> None:
    write_skill(tmp_path / ".agents/skills/theirs")

    found = LocalSkills([LocalRoot(tmp_path / ".agents/skills", "project")]).scan()

    assert refused(found) == [("untrusted-folder", "skills")]
    assert found.skills == ()


def test_a_project_that_is_the_users_home_needs_no_trust(tmp_path: Path) -> None:
    write_skill(tmp_path / ".agents/skills/mine")

    found = LocalSkills(default_roots(tmp_path, home=tmp_path)).scan()

    assert only(found).id.origin.label == "user"
    assert found.hidden == ()


def test_roots_that_are_links_to_one_folder_are_searched_once(root: Path, tmp_path: Path) -> None:
    write_skill(root / "mine")
    link = tmp_path / "link"
    link.symlink_to(root)

    found = scan(root, link)

    assert only(found).directory == root / "mine"
    assert found.hidden == ()


@pytest.mark.requirement("FS-01")
def test_a_root_and_a_skills_folder_that_are_links_are_followed(tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "real", {"a.md": "a"}, name="mine")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "mine").symlink_to(tmp_path / "elsewhere" / "real")
    (tmp_path / "root").symlink_to(tmp_path / "skills")

    skill = only(scan(tmp_path / "root"))

    assert skill.directory == tmp_path / "root" / "mine"
    assert skill.id.uri == "local://user/mine/SKILL.md"
    assert ("name-differs-from-folder", "SKILL.md") not in codes(skill)
    assert read_local_file(skill, "local://user/mine/a.md") == b"a"


def test_links_in_a_circle_and_to_nowhere_do_no_harm(root: Path) -> None:
    write_skill(root / "group" / "mine")
    (root / "group" / "again").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "nowhere").symlink_to(root / "gone")
    (root / "twin").symlink_to(root / "group")

    found = scan(root)

    assert only(found).directory == root / "group" / "mine"
    assert found.hidden == ()


def test_a_link_out_of_a_skill_is_left_out_and_reported(root: Path, tmp_path: Path) -> None:  # attack 80
    write_files(tmp_path, {"secret/id_rsa": "secret", "secret/more/a.md": "secret"})
    folder = write_skill(root / "mine", {"real.md": "real"})
    (folder / "key.md").symlink_to(tmp_path / "secret" / "id_rsa")
    (folder / "more").symlink_to(tmp_path / "secret" / "more")
    (folder / "alias.md").symlink_to("real.md")

    skill = only(scan(root))

    assert skill.entry.manifest is not None
    assert [uri.rpartition("/")[2] for uri in skill.entry.manifest.uris] == [
        "SKILL.md",
        "alias.md",
        "real.md",
    ]
    assert {code for code in codes(skill) if code[0] == "link"} == {("link", "key.md"), ("link", "more")}
    assert read_local_file(skill, "local://user/mine/alias.md") == b"real"
    for path in ("key.md", "more/a.md"):
        with pytest.raises(UnlistedFileError):
            read_local_file(skill, f"local://user/mine/{path}")


def test_a_skill_file_that_is_a_link_out_of_the_skill_is_no_skill(
    root: Path, tmp_path: Path
) -> None:  # attack 80
    write_files(tmp_path, {"outside.md": skill_md("mine")})
    (root / "mine").mkdir()
    (root / "mine" / "SKILL.md").symlink_to(tmp_path / "outside.md")

    assert refused(scan(root)) == [("invalid-skill", "mine")]


@pytest.mark.requirement("FS-01")
def test_a_fifo_stops_nobody_whatever_it_is_called(root: Path) -> None:  # attack 84
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "SKILL.md")
    folder = write_skill(root / "mine")
    os.mkfifo(folder / "pipe.md")
    started = time.monotonic()

    found = scan(root)

    assert time.monotonic() - started < 10
    assert refused(found) == [("invalid-skill", "pipe")]
    assert ("special-file", "pipe.md") in codes(only(found))


@contextmanager
def as_nobody() -> Generator[None]:
    """Give up root's power to read everything, if the tests run as root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def open_root() -> Generator[Path]:
    """A folder that any user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_what_may_not_be_read_is_reported_and_costs_only_itself(open_root: Path) -> None:
    write_skill(open_root / "good", {"closed.md": "x", "open.md": "x"})
    write_skill(open_root / "shut")
    write_skill(open_root / "group" / "inside")
    skill = scan(open_root).skills[0]
    for path, mode in (("good/closed.md", 0), ("shut/SKILL.md", 0), ("group", 0)):
        (open_root / path).chmod(mode)

    with as_nobody():
        found = scan(open_root)
        with pytest.raises(SourceError):
            read_local_file(skill, "local://user/good/closed.md")

    (open_root / "group").chmod(0o700)
    assert refused(found) == [("source-unreadable", "group"), ("invalid-skill", "shut")]
    assert ("unreadable", "closed.md") in codes(only(found))
    manifest = only(found).entry.manifest
    assert manifest is not None
    assert manifest.uris == ("local://user/good/SKILL.md", "local://user/good/open.md")


@pytest.mark.requirement("FS-01")
def test_a_folder_with_too_many_names_is_looked_at_in_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillwire.host.registry.local.MAX_NAMES", 5)
    for number in range(6):
        write_skill(root / f"skill-{number}")
    found = scan(root)
    assert len(found.skills) == 5
    assert refused(found) == [("over-limit", "skills")]


@pytest.mark.requirement("LIM-02")
def test_a_skill_of_too_many_folders_is_refused(root: Path) -> None:
    folder = write_skill(root / "wide")
    for number in range(MAX_FOLDERS):
        (folder / f"{number}").mkdir()

    assert refused(scan(root)) == [("over-limit", "wide")]


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.requirement("LIM-02")
def test_a_skill_that_is_too_large_is_refused_without_reading_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # attack 84
    (root / "huge").mkdir()
    sparse(root / "huge" / "SKILL.md", 2**40)
    write_skill(root / "many", {f"{number}.md": "" for number in range(MAX_FILES)})
    folder = write_skill(root / "heavy")
    sparse(folder / "data.bin", MAX_TOTAL_SIZE)
    monkeypatch.setattr(FolderReader, "read", fail_to_look)

    found = scan(root)

    assert refused(found) == [("over-limit", "heavy"), ("over-limit", "huge"), ("over-limit", "many")]


@pytest.mark.requirement("LIM-01")
def test_a_skill_of_exactly_the_limits_is_used(root: Path) -> None:
    folder = write_skill(root / "full", {f"{number}.md": "" for number in range(MAX_FILES - 2)})
    sparse(folder / "data.bin", MAX_TOTAL_SIZE - len(skill_md("full")))

    skill = only(scan(root))

    assert skill.entry.manifest is not None
    assert len(skill.entry.manifest) == MAX_FILES
    assert skill.entry.manifest.total_size == MAX_TOTAL_SIZE


def test_files_that_no_uri_can_name_are_left_out_and_reported(root: Path) -> None:
    write_skill(root / "mine", {"a%2e%2fb": "x", "ok é.md": "x"})

    skill = only(scan(root))

    assert skill.entry.manifest is not None
    assert skill.entry.manifest.uris == ("local://user/mine/SKILL.md", "local://user/mine/ok%20%C3%A9.md")
    assert ("unusable-path", "a%2e%2fb") in codes(skill)
    assert read_local_file(skill, "local://user/mine/ok%20%C3%A9.md") == b"x"


def test_a_folder_that_no_uri_can_name_is_refused(root: Path) -> None:
    write_skill(root / "%2e%2e", name="mine")

    assert refused(scan(root)) == [("invalid-uri", "%2e%2e")]


def test_names_of_folders_are_shown_without_what_they_hide(root: Path) -> None:
    write_files(root, {"evil\x1b[2J\nname/SKILL.md": "broken"})

    (refusal,) = scan(root).hidden

    assert refusal.subject.endswith("/evil<U+001B>[2J name")
    assert str(refusal).isprintable()


@pytest.mark.requirement("INT-02")
def test_a_file_that_changed_since_it_was_listed_is_not_read(root: Path, tmp_path: Path) -> None:  # attack 83
    folder = write_skill(root / "mine", {"a.md": "one", "b.md": "one", "c.md": "one", "d/e.md": "one"})
    (tmp_path / "secret").write_text("one")
    skill = only(scan(root))
    (folder / "a.md").write_text("two")
    (folder / "b.md").write_text("longer")
    (folder / "c.md").unlink()
    (folder / "c.md").symlink_to(tmp_path / "secret")
    (folder / "d" / "e.md").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to(tmp_path)

    expected = {
        "a.md": DigestMismatchError,
        "b.md": SizeMismatchError,
        "c.md": NotFoundError,
        "d/e.md": NotFoundError,
    }
    for path, error in expected.items():
        with pytest.raises(error) as caught:
            read_local_file(skill, f"local://user/mine/{path}")
        assert str(tmp_path) not in str(caught.value)


def test_a_fifo_that_took_a_files_place_stops_nobody(root: Path) -> None:  # attack 84
    folder = write_skill(root / "mine", {"a.md": "one"})
    skill = only(scan(root))
    (folder / "a.md").unlink()
    os.mkfifo(folder / "a.md")

    with pytest.raises(NotFoundError):
        read_local_file(skill, "local://user/mine/a.md")


@pytest.mark.requirement("INT-04")
@pytest.mark.parametrize(
    "uri", ["local://user/mine/../x", "x", "", "local://user/mine/\x00", "file:///etc/passwd"]
)
def test_a_uri_that_no_file_may_have_is_not_looked_for(root: Path, uri: str) -> None:
    write_skill(root / "mine")

    with pytest.raises(InvalidUriError):
        read_local_file(only(scan(root)), uri)


def test_an_unchanged_skill_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "RACY_NS", 0)
    write_skill(root / "mine", {"a.md": "one"})
    write_skill(root / "other")
    skills = LocalSkills([LocalRoot(root, "user")])
    first = skills.scan()
    read: list[str] = []
    real_read = FolderReader.read

    def read_and_note(
        reader: FolderReader, folder: str, name: str, size: int
    ) -> tuple[bytes, os.stat_result]:
        read.append(name)
        return real_read(reader, folder, name, size)

    monkeypatch.setattr(FolderReader, "read", read_and_note)

    assert skills.scan() == first
    assert read == []

    (root / "mine" / "a.md").write_text("two")
    second = skills.scan()
    assert sorted(read) == ["SKILL.md", "a.md"]
    assert second.skills[1] is first.skills[1]
    assert second.skills[0].entry.manifest != first.skills[0].entry.manifest


def test_a_link_that_is_added_to_an_unchanged_skill_is_reported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RACY_NS", 0)
    folder = write_skill(root / "mine")
    skills = LocalSkills([LocalRoot(root, "user")])
    assert codes(only(skills.scan())) == []

    (folder / "out").symlink_to(tmp_path)
    assert codes(only(skills.scan())) == [("link", "out")]
    (folder / "out").unlink()
    assert codes(only(skills.scan())) == []


@pytest.mark.requirement("FS-04")
def test_a_root_of_a_trusted_project_may_be_a_link(tmp_path: Path) -> None:
    write_skill(tmp_path / "shared" / "ours")
    (tmp_path / "project" / ".agents").mkdir(parents=True)
    (tmp_path / "project" / ".agents" / "skills").symlink_to(tmp_path / "shared")
    trust = FolderTrust(tmp_path / "state")
    trust.trust(tmp_path / "project")

    found = LocalSkills(default_roots(tmp_path / "project", home=tmp_path / "home"), trust).scan()

    assert references(found) == ["ours"]


def test_a_change_that_hides_behind_its_old_time_is_seen(root: Path) -> None:
    folder = write_skill(root / "mine", {"a.md": "one"})
    skills = LocalSkills([LocalRoot(root, "user")])
    before = only(skills.scan())
    status = (folder / "a.md").stat()

    (folder / "a.md").write_text("two")
    os.utime(folder / "a.md", ns=(status.st_atime_ns, status.st_mtime_ns))

    after = only(skills.scan())
    assert after.entry.manifest != before.entry.manifest


def test_a_skill_that_is_gone_is_forgotten(root: Path) -> None:
    folder = write_skill(root / "mine")
    skills = LocalSkills([LocalRoot(root, "user")])
    assert references(skills.scan()) == ["mine"]

    (folder / "SKILL.md").unlink()

    assert skills.scan() == LocalScan()


def test_two_roots_of_one_scope_are_two_origins(tmp_path: Path) -> None:
    roots = default_roots(home=tmp_path)
    for number, root in enumerate(roots):
        write_skill(root.path / "same", name=f"skill-{number}")

    first, second = LocalSkills(roots).scan().skills

    assert first.id.uri == second.id.uri
    assert first.id != second.id
    assert first.id.origin.label == second.id.origin.label == "user"


def test_findings_say_what_was_overlooked(root: Path) -> None:
    write_files(
        root, {"mine/SKILL.md": "---\nname: mine\ndescription: Use when: asked.\n---\nSee [a](a.md).\n"}
    )

    skill = only(scan(root))

    assert skill.description == "Use when: asked."
    assert codes(skill) == [("yaml-syntax", "SKILL.md"), ("broken-link", "SKILL.md")]
    assert isinstance(skill.findings[0], Finding)
