"""Files that a server declares by URIs of its own: their places inside a skill, and the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.uri import SkillUri, path_findings
from skillwire.host.dialects.named_skills import assign_uris
from skillwire.wire.by_name import PrimitiveFile

SKILL = SkillUri.parse("skill://refunds/SKILL.md")

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
paths = st.sampled_from(
    ["a.md", "A.md", "files", "files/a.md", "files/a.md/b", "SKILL.md", "skill.md", "../x"]
)
uris = st.one_of(words, paths.map("skill://refunds/{}".format), paths.map("https://x/{}".format))
files = st.lists(st.builds(PrimitiveFile, st.one_of(words, paths), uris), max_size=20)


def where(*declared: tuple[str, str]) -> list[tuple[str, str]]:
    found = assign_uris(SKILL, [PrimitiveFile(name, uri) for name, uri in declared])
    return [(SKILL.relative_path(uri), original) for uri, original in found.items()]


@pytest.mark.requirement("P2076-13")
def test_a_file_in_the_skills_own_directory_keeps_its_path() -> None:
    inside = "skill://refunds/references/a%20b.md"
    elsewhere = "skill://acme/billing/refunds/references/policy.md"

    assert where(("notes", inside), ("references/policy.md", elsewhere)) == [
        ("references/a b.md", inside),
        ("references/policy.md", elsewhere),
    ]


@pytest.mark.parametrize(
    ("name", "uri", "path"),
    [
        ("notes", "file:///inv/notes.md", "files/notes"),
        ("../../etc/passwd", "file:///etc/passwd", "files/etc-passwd"),
        ("C:\\x\\y.md", "skill://elsewhere/a.md", "files/C-x-y.md"),
        ("\u202e\x00", "http://127.0.0.1/", "files/file"),
        ("..", "ftp://x", "files/file"),
        ("x" * 300, "urn:x", "files/" + "x" * 64),
        ("Käse.md", "urn:y", "files/Kase.md"),
        ("anything", "skill://refunds/SKILL.md", "files/anything"),
        ("anything", "skill://refunds/skill.MD", "files/anything"),
        ("files", "skill://refunds/files", "files/files"),
        ("../b.md", "skill://refunds/../b.md", "files/b.md"),
    ],
)
def test_any_other_file_gets_a_path_made_of_its_name(name: str, uri: str, path: str) -> None:
    assert where((name, uri)) == [(path, uri)]


def test_files_of_one_name_are_told_apart_and_one_uri_is_one_file() -> None:
    found = where(("a.md", "urn:1"), ("A.md", "urn:2"), ("a.md", "urn:3"), ("again", "urn:1"), ("a", "urn:4"))

    assert found == [
        ("files/a.md", "urn:1"),
        ("files/A-2.md", "urn:2"),
        ("files/a-3.md", "urn:3"),
        ("files/a", "urn:4"),
    ]


@given(declared=files)
def test_every_declared_file_has_one_place_that_no_other_is_in_the_way_of(
    declared: list[PrimitiveFile],
) -> None:
    found = assign_uris(SKILL, declared)

    inside = [SKILL.relative_path(uri) for uri in found]
    assert sorted(found.values()) == sorted({file.uri for file in declared})
    assert SKILL.text not in found
    assert [finding for finding in path_findings(["SKILL.md", *inside]) if finding.is_error] == []
