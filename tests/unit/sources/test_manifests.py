"""Importing trees that were dumped from servers with a `_manifest` for each skill."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from folders import link, manifest_of, skill_md, write_files
from skillwire.core.errors import SourceError
from skillwire.sources.manifests import ImportedSkill, import_skills


def file_list(name: str, contents: Mapping[str, bytes], **changes: Any) -> bytes:
    """Write what a server would say about files."""
    lines = [
        {"path": path, "size": len(content), "hash": "sha256:" + hashlib.sha256(content).hexdigest()}
        for path, content in contents.items()
    ]
    return json.dumps({"skill": name, "files": lines, **changes}, indent=2).encode()


def dump(root: Path, directory: str, files: Mapping[str, bytes]) -> Path:
    """Write a skill as such a server gives it out."""
    folder = root / directory
    write_files(folder, {**files, "_manifest": file_list(folder.name, files)})
    return folder


def sample(name: str) -> dict[str, bytes]:
    return {
        "SKILL.md": skill_md(name),
        "references/Q&A notes é.md": b"Notes.\n",
        "assets/logo.png": bytes(range(256)),
    }


def only(root: Path) -> ImportedSkill:
    [imported] = import_skills(root)
    return imported


def codes(imported: ImportedSkill) -> list[tuple[str, str]]:
    return [(finding.code, finding.file) for finding in imported.findings]


@pytest.mark.requirement("DRAFT-11")
def test_a_dumped_tree_is_imported_with_the_very_files_it_promises(tmp_path: Path) -> None:
    dump(tmp_path, "acme/refunds", sample("refunds"))
    dump(tmp_path, "stock", {"SKILL.md": skill_md("stock")})
    write_files(tmp_path / "plain", {"SKILL.md": skill_md("plain")})

    refunds, stock = import_skills(tmp_path)

    assert refunds.skill is not None and stock.skill is not None
    assert (refunds.directory, refunds.skill.uri.text) == ("acme/refunds", "skill://acme/refunds/SKILL.md")
    assert {"SKILL.md": refunds.skill.skill_md} | {
        file.path: file.content for file in refunds.skill.files
    } == sample("refunds")
    (tmp_path / "stock" / "_manifest").unlink()
    assert stock.skill.entry().manifest == manifest_of(tmp_path / "stock", "skill://stock/SKILL.md")
    assert (refunds.findings, stock.findings) == ((), ())


@pytest.mark.requirement("DRAFT-11")
def test_the_root_itself_may_be_the_skill(tmp_path: Path) -> None:
    dump(tmp_path, "refunds", sample("refunds"))

    imported = only(tmp_path / "refunds")

    assert imported.skill is not None
    assert (imported.directory, imported.skill.uri.text) == ("", "skill://refunds/SKILL.md")


def test_a_skill_inside_a_skill_is_imported_and_part_of_the_other_only_if_listed(tmp_path: Path) -> None:
    dump(tmp_path, "outer", sample("outer"))
    dump(tmp_path, "outer/inner", {"SKILL.md": skill_md("inner")})

    outer, inner = import_skills(tmp_path)

    assert outer.skill is not None and inner.skill is not None
    assert codes(outer) == [
        ("file-list-unlisted", "inner/SKILL.md"),
        ("file-list-unlisted", "inner/_manifest"),
    ]
    assert "inner/SKILL.md" not in [file.path for file in outer.skill.files]


def test_a_text_that_lost_its_carriage_returns_on_the_way_is_restored(tmp_path: Path) -> None:
    files = sample("refunds") | {"SKILL.md": skill_md("refunds").replace(b"\n", b"\r\n")}
    folder = dump(tmp_path, "refunds", files)
    write_files(folder, {"SKILL.md": skill_md("refunds")})

    imported = only(tmp_path)

    assert imported.skill is not None
    assert imported.skill.skill_md == files["SKILL.md"]


@pytest.mark.requirement("DRAFT-11")
def test_every_file_that_is_not_as_promised_is_named_and_nothing_is_imported(tmp_path: Path) -> None:
    folder = dump(tmp_path, "refunds", sample("refunds") | {"gone.md": b"x", "linked.md": b"Notes.\n"})
    (folder / "gone.md").unlink()
    (folder / "linked.md").unlink()
    link(folder / "linked.md", folder / "references" / "Q&A notes é.md")
    write_files(folder, {"assets/logo.png": bytes(255), "references/Q&A notes é.md": b"Nates.\n"})

    imported = only(tmp_path)

    assert imported.skill is None
    assert sorted(codes(imported)) == [
        ("file-list-mismatch", "assets/logo.png"),
        ("file-list-mismatch", "gone.md"),
        ("file-list-mismatch", "linked.md"),
        ("file-list-mismatch", "references/Q&A notes é.md"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 300_000,
        file_list("other", {"SKILL.md": skill_md("refunds")}),
        file_list("refunds", {"a.md": b"a"}),
        file_list("refunds", {"SKILL.md": skill_md("refunds"), "../../secret": b"x"}),
        file_list("refunds", {"SKILL.md": skill_md("refunds"), "/etc/passwd": b"x"}),
        file_list("refunds", {}, files=[{"path": "SKILL.md", "size": 2**62, "hash": "sha256:" + "0" * 64}]),
        file_list("refunds", {}, files=[{"path": "SKILL.md", "size": 1, "hash": "md5:1"}]),
    ],
    ids=lambda content: content[:24],
)
def test_a_list_that_is_none_or_leads_out_of_the_folder_costs_only_its_skill(
    tmp_path: Path, content: bytes
) -> None:
    write_files(tmp_path / "refunds", {"SKILL.md": skill_md("refunds"), "_manifest": content})
    write_files(tmp_path, {"secret": "x"})
    dump(tmp_path, "stock", sample("stock"))

    refunds, stock = import_skills(tmp_path)

    assert refunds.skill is None
    assert codes(refunds) == [("file-list-invalid", "_manifest")]
    assert stock.skill is not None


def test_a_skill_file_without_frontmatter_is_said_in_the_words_of_the_format(tmp_path: Path) -> None:
    dump(tmp_path, "refunds", {"SKILL.md": b"# Refunds\n"})

    imported = only(tmp_path)

    assert imported.skill is None
    assert codes(imported) == [("frontmatter-missing", "SKILL.md")]


def test_a_folder_that_is_no_name_for_a_skill_is_not_imported(tmp_path: Path) -> None:
    dump(tmp_path, "My Refunds", {"SKILL.md": skill_md("refunds")})

    imported = only(tmp_path)

    assert imported.skill is None
    assert codes(imported) == [("file-list-invalid", "_manifest")]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"file": "x"})

    for place in ("file", "nowhere"):
        with pytest.raises(SourceError):
            list(import_skills(tmp_path / place))
