"""Walking: which folders are looked into, which of them are skills, and what is said about the rest."""

import os
from pathlib import Path

import pytest

from folders import (
    codes,
    file_uris,
    held_back,
    manifest_at,
    manifest_of,
    scan,
    skill_md,
    uris,
    write_files,
    write_skill,
)
from skillwire.core.finding import Finding
from skillwire.sources.directory.walk import MAX_DEPTH, Walk


def found(walk: Walk) -> list[str]:
    return sorted(skill.directory for skill in walk.skills)


# What is a skill


def test_only_a_file_named_exactly_skill_md_makes_a_skill(root: Path) -> None:
    write_skill(root / "exact")
    write_files(root, {"lower/skill.md": "x", "title/Skill.md": "x", "other/SKILL.txt": "x"})

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://exact/SKILL.md"]
    assert held_back(snapshot) == {"lower": ["skill-file-case"], "title": ["skill-file-case"]}
    assert [report.findings[0].file for report in snapshot.quarantined] == ["skill.md", "Skill.md"]


def test_a_near_miss_inside_a_skill_is_an_ordinary_file(root: Path) -> None:
    write_skill(root / "outer", {"inner/skill.md": "x"})

    snapshot = scan(root)

    assert file_uris(snapshot, "skill://outer/SKILL.md") == [
        "skill://outer/SKILL.md",
        "skill://outer/inner/skill.md",
    ]
    assert snapshot.reports == ()


def test_a_folder_named_skill_md_makes_no_skill(root: Path) -> None:
    write_files(root, {"odd/SKILL.md/notes.txt": "x"})
    write_skill(root / "odd" / "real")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://odd/real/SKILL.md"]
    assert "skill-file-case" not in codes(snapshot).get("odd", [])


# What is not looked at


@pytest.mark.requirement("FS-01")
def test_hidden_folders_and_generated_ones_are_not_entered(root: Path) -> None:
    for folder in (".git/hooks", ".venv", ".agents/skills", "node_modules/pkg", "group/node_modules/pkg"):
        write_skill(root / folder / "hidden")
    write_skill(root / "__pycache__" / "hidden")
    write_skill(root / "group" / "good")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://group/good/SKILL.md"]
    assert snapshot.reports == ()


def test_names_that_start_with_a_dot_are_no_part_of_a_skill(root: Path) -> None:
    write_skill(
        root / "pdf",
        {".env": "secret", ".git/config": "x", "a/.DS_Store": "x", "a/.hidden/b.md": "x", "a/b.md": "x"},
    )
    write_skill(root / "pdf" / ".nested" / "hidden")

    snapshot = scan(root)

    assert file_uris(snapshot, "skill://pdf/SKILL.md") == ["skill://pdf/SKILL.md", "skill://pdf/a/b.md"]
    assert uris(snapshot) == ["skill://pdf/SKILL.md"]


@pytest.mark.requirement("LIST-06")
def test_generated_folders_inside_a_skill_are_part_of_it(root: Path) -> None:
    write_skill(root / "web", {"node_modules/x/index.js": "x", "__pycache__/a.pyc": b"\0"})

    snapshot = scan(root)

    assert manifest_at(snapshot, "skill://web/SKILL.md") == manifest_of(root / "web", "skill://web/SKILL.md")
    assert len(file_uris(snapshot, "skill://web/SKILL.md")) == 3


# Depth and size


@pytest.mark.requirement("FS-01")
def test_folders_beyond_the_deepest_level_are_reported_and_hide_nothing(root: Path) -> None:
    deepest = root.joinpath(*["d"] * MAX_DEPTH)
    write_skill(deepest)
    (deepest / "x").mkdir()
    beyond = root.joinpath("e", *["d"] * MAX_DEPTH)
    write_skill(beyond)
    write_skill(root / "good")

    snapshot = scan(root)

    assert [entry.name for entry in snapshot.entries] == ["good"]
    assert held_back(snapshot) == {
        "/".join(["d"] * MAX_DEPTH): ["unreadable"],
        "/".join(["e", *["d"] * MAX_DEPTH]): ["unreadable"],
    }


def test_a_skill_with_a_folder_too_deep_to_look_into_is_set_aside(root: Path) -> None:
    write_skill(root / "deep")
    root.joinpath("deep", *["d"] * MAX_DEPTH).mkdir(parents=True)
    write_skill(root / "good")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert held_back(snapshot) == {"deep": ["unreadable"]}


def test_a_path_longer_than_the_system_allows_is_no_failure(root: Path) -> None:
    write_skill(root / "good")
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=descriptor)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = deeper
    os.close(descriptor)

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert list(held_back(snapshot).values()) == [["unreadable"]]


def test_thousands_of_folders_are_no_trouble(root: Path) -> None:
    for number in range(2000):
        (root / f"wide-{number % 50}" / f"folder-{number}").mkdir(parents=True)
    write_skill(root.joinpath(*["deep"] * (MAX_DEPTH - 2)) / "skill")
    write_skill(root / "wide-7" / "skill")

    walk = Walk(str(root)).run()

    assert found(walk) == ["/".join([*["deep"] * (MAX_DEPTH - 2), "skill"]), "wide-7/skill"]
    assert walk.directories == 1 + 50 + 2000 + MAX_DEPTH - 1 + 1


def test_a_walk_tells_how_far_it_has_come(root: Path) -> None:
    write_skill(root / "a" / "b")
    write_skill(root / "c")

    assert list(Walk(str(root)).steps()) == [1, 2, 3, 4]


# Linked folders


def test_a_folder_that_is_a_link_is_not_entered_and_that_is_reported(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")
    (root / "file.txt").symlink_to(tmp_path / "elsewhere" / "pdf" / "SKILL.md")
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    write_skill(root / "good")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert codes(snapshot) == {"linked": ["linked-folder"], "pdf": ["linked-folder"]}


def test_linked_folders_are_entered_when_the_publisher_asks(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf", {"a/b.md": "x"})
    write_skill(tmp_path / "alone" / "xls")
    (root / "group").symlink_to(tmp_path / "elsewhere")
    (root / "xls").symlink_to(tmp_path / "alone" / "xls")

    snapshot = scan(root, follow_links=True)

    assert uris(snapshot) == ["skill://group/pdf/SKILL.md", "skill://xls/SKILL.md"]
    assert manifest_at(snapshot, "skill://group/pdf/SKILL.md") == manifest_of(
        tmp_path / "elsewhere" / "pdf", "skill://group/pdf/SKILL.md"
    )
    assert snapshot.reports == ()


def test_a_link_inside_a_linked_skill_may_lead_to_its_own_files_only(root: Path, tmp_path: Path) -> None:
    good = write_skill(tmp_path / "elsewhere" / "good", {"real.md": "x"})
    (good / "alias.md").symlink_to("real.md")
    bad = write_skill(tmp_path / "elsewhere" / "bad")
    (bad / "alias.md").symlink_to("../good/real.md")
    (root / "linked").symlink_to(tmp_path / "elsewhere")

    snapshot = scan(root, follow_links=True)

    assert uris(snapshot) == ["skill://linked/good/SKILL.md"]
    assert manifest_at(snapshot, "skill://linked/good/SKILL.md") == manifest_of(
        good, "skill://linked/good/SKILL.md"
    )
    assert held_back(snapshot) == {"linked/bad": ["link"]}


def test_a_folder_linked_from_inside_a_skill_sets_the_skill_aside_even_when_links_are_followed(
    root: Path, tmp_path: Path
) -> None:
    write_skill(root / "pdf")
    write_files(tmp_path, {"elsewhere/a.md": "x"})
    (root / "pdf" / "linked").symlink_to(tmp_path / "elsewhere")

    assert held_back(scan(root, follow_links=True)) == {"pdf": ["link"]}


def test_cycles_of_links_end(root: Path) -> None:
    write_skill(root / "group" / "pdf")
    (root / "group" / "up").symlink_to(root)
    (root / "group" / "self").symlink_to(".")
    (root / "a").mkdir()
    (root / "b").mkdir()
    (root / "a" / "to-b").symlink_to("../b")
    (root / "b" / "to-a").symlink_to("../a")
    (root / "loop").symlink_to("loop")

    walk = Walk(str(root), follow_links=True).run()

    assert "group/pdf" in found(walk)


def test_a_folder_inside_the_root_is_not_published_again_through_a_link_to_it(root: Path) -> None:
    write_skill(root / "group" / "pdf")
    (root / "again").symlink_to("group")
    (root / "group" / "up").symlink_to("..")

    assert found(Walk(str(root), follow_links=True).run()) == ["group/pdf"]


def test_of_two_links_to_one_folder_the_first_by_name_is_entered(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf")
    for name in ("m", "c", "z", "a", "k"):
        (root / name).symlink_to(tmp_path / "elsewhere")

    assert found(Walk(str(root), follow_links=True).run()) == ["a/pdf"]


def test_the_reason_for_an_unreadable_place_carries_no_path(root: Path) -> None:
    walk = Walk(str(root / "missing")).run()

    assert walk.skills == []
    assert walk.loose == [
        (
            "",
            Finding(
                "unreadable",
                "it cannot be read: No such file or directory",
                file="",
                fix="check its permissions",
            ),
        )
    ]


def test_a_place_that_vanished_is_no_finding(root: Path) -> None:
    (root / "file").touch()

    assert Walk(str(root)).run("gone").loose == []
    assert Walk(str(root)).run("file").loose == []


def test_each_skill_is_handed_out_once_all_its_files_are_known(root: Path) -> None:
    write_skill(root / "acme" / "outer", {"references/a.md": "a", "inner/SKILL.md": skill_md("inner")})
    write_skill(root / "acme" / "other", {"b.md": "b"})
    write_skill(root / "zoo")

    handed_out = {
        skill.directory: [file[0] for file in sorted(skill.files)] for skill in Walk(str(root)).finished()
    }

    assert handed_out == {
        "acme/outer": ["SKILL.md", "inner/SKILL.md", "references/a.md"],
        "acme/outer/inner": ["SKILL.md"],
        "acme/other": ["SKILL.md", "b.md"],
        "zoo": ["SKILL.md"],
    }
    assert handed_out == {
        skill.directory: [file[0] for file in sorted(skill.files)] for skill in Walk(str(root)).run().skills
    }
