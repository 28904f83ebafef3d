"""Publishing a folder: which URI each skill gets, what its entry says, and what happens when two clash."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
from skillwire.core.entry import SkillEntry, entry_findings, parse_entry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.uri import MAX_URI_LENGTH, SkillUri
from skillwire.sources import Snapshot

properties = settings(deadline=None, max_examples=30)


# What an entry says


@pytest.mark.requirement("FMT-11")
def test_a_file_with_a_byte_order_mark_and_crlf_is_hashed_as_it_is(root: Path) -> None:
    crlf = b"\xef\xbb\xbf" + skill_md("windows").replace(b"\n", b"\r\n")
    write_files(root, {"windows/SKILL.md": crlf, "windows/notes.txt": b"a\r\nb\rc\n\xff\xfe"})

    snapshot = scan(root)

    manifest = manifest_at(snapshot, "skill://windows/SKILL.md")
    assert manifest == manifest_of(root / "windows", "skill://windows/SKILL.md")


def test_names_that_need_it_are_percent_encoded_and_sorted_as_they_are_then(root: Path) -> None:
    write_skill(root / "docs", {"my notes/50% café?.md": "x", "a#b.md": "y", "a-b.md": "", "aéb.md": ""})

    snapshot = scan(root)

    assert file_uris(snapshot, "skill://docs/SKILL.md") == [
        "skill://docs/SKILL.md",
        "skill://docs/a%23b.md",
        "skill://docs/a%C3%A9b.md",
        "skill://docs/a-b.md",
        "skill://docs/my%20notes/50%25%20caf%C3%A9%3F.md",
    ]


names = st.sampled_from(["a", "b", "c-1", "0"])
places = st.lists(names, min_size=1, max_size=4).map("/".join)
files = st.dictionaries(places.map(lambda path: path + ".md"), st.binary(max_size=40), max_size=4)


@pytest.mark.requirement("LIST-06", "LIST-07", "LIST-08", "NEST-01", "NEST-03", "NEST-05")
@given(skills=st.dictionaries(places, files, max_size=5))
@example(skills={})
@example(skills={"outer": {"a.md": b"1"}, "outer/x/middle": {"b.md": b"2"}, "outer/x/middle/inner": {}})
@example(skills={name: {} for name in ("zebra", "b/alpha", "b-side", "a1", "b", "a")})
@properties
def test_manifests_equal_a_walk_of_the_folder(skills: dict[str, dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for place, content in skills.items():
            write_skill(root / place, content)

        snapshot = scan(root)

        assert snapshot == Snapshot.of(
            [
                SkillEntry(
                    uri := SkillUri.build(place),
                    parse_skill_md(skill_md(uri.name)).frontmatter,
                    manifest_of(root / place, uri.text),
                )
                for place in skills
            ]
        )
        assert [parse_entry(entry.to_json()) for entry in snapshot.entries] == list(snapshot.entries)


# Which URI a skill gets


@pytest.mark.requirement("LIST-16")
def test_entries_look_alike_under_every_scheme_and_at_every_depth(root: Path) -> None:
    write_skill(root / "outer", {"a.md": "x"})
    write_skill(root / "outer" / "inner")

    listing = [entry.to_json() for scheme in ("skill", "docs") for entry in scan(root, scheme=scheme).entries]

    assert [entry["uri"] for entry in listing] == [
        "skill://outer/SKILL.md",
        "skill://outer/inner/SKILL.md",
        "docs://outer/SKILL.md",
        "docs://outer/inner/SKILL.md",
    ]
    assert {tuple(entry) for entry in listing} == {("uri", "frontmatter", "resources")}


@pytest.mark.requirement("URI-11")
def test_the_first_segment_is_published_in_lower_case_and_the_others_as_they_are(root: Path) -> None:
    write_skill(root / "Acme" / "Billing" / "refunds")

    assert uris(scan(root)) == ["skill://acme/Billing/refunds/SKILL.md"]
    assert uris(scan(root, prefix="Corp")) == ["skill://corp/Acme/Billing/refunds/SKILL.md"]


@pytest.mark.requirement("URI-04")
@pytest.mark.parametrize(("folder", "segment"), [("my team", "my%20team"), ("user@x", "user%40x")])
def test_a_first_segment_that_is_no_plain_name_is_encoded_and_flagged(
    root: Path, folder: str, segment: str
) -> None:
    write_skill(root / folder / "pdf")

    snapshot = scan(root)

    assert uris(snapshot) == [f"skill://{segment}/pdf/SKILL.md"]
    assert codes(snapshot) == {f"{folder}/pdf": ["uri-first-segment"]}


def test_the_root_itself_may_be_a_skill(root: Path) -> None:
    write_skill(root, {"notes.md": "x"})
    write_skill(root / "inner")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://skills/SKILL.md", "skill://skills/inner/SKILL.md"]
    for entry, folder in zip(snapshot.entries, (root, root / "inner"), strict=True):
        assert entry.manifest == manifest_of(folder, entry.uri.text)


def test_a_root_that_is_a_skill_is_published_under_its_name_and_the_prefix(root: Path) -> None:
    write_skill(root, name="pdf")

    snapshot = scan(root, prefix="acme")

    assert uris(snapshot) == ["skill://acme/pdf/SKILL.md"]
    assert codes(snapshot) == {"": ["name-differs-from-folder"]}


@pytest.mark.requirement("URI-02")
@pytest.mark.requirement("LIST-05")
def test_a_skill_whose_folder_has_another_name_is_published_under_its_name(root: Path) -> None:
    write_skill(root / "acme" / "my-pdf-copy", {"a.md": "x"}, name="pdf")

    snapshot = scan(root)

    uri = SkillUri("skill://acme/pdf/SKILL.md")
    assert [(entry.uri, entry.name, entry.manifest) for entry in snapshot.entries] == [
        (uri, "pdf", manifest_of(root / "acme" / "my-pdf-copy", uri.text))
    ]
    assert [(report.place, report.uri) for report in snapshot.reports] == [("acme/my-pdf-copy", uri)]
    assert codes(snapshot) == {"acme/my-pdf-copy": ["name-differs-from-folder"]}
    assert snapshot.quarantined == ()


def test_a_folder_whose_name_cannot_be_in_a_uri_is_set_aside_alone(root: Path) -> None:
    write_skill(root / "good")
    write_skill(root / "back\\slash" / "pdf")
    write_skill(root / "new\nline" / "pdf")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert held_back(snapshot) == {
        "back\\slash/pdf": ["unusable-path"],
        "new\nline/pdf": ["unusable-path"],
    }


def test_a_path_too_long_for_a_uri_is_set_aside_alone(root: Path) -> None:
    write_skill(root / "good")
    # Every such letter takes six characters in a URI, so this prefix leaves no room for ten folders of them.
    write_skill(root.joinpath(*["é" * 100] * 10) / "deep")

    snapshot = scan(root, prefix="p" * (MAX_URI_LENGTH - 5000))

    assert [entry.name for entry in snapshot.entries] == ["good"]
    assert list(held_back(snapshot).values()) == [["unusable-path"]]


# Skills inside skills


def test_a_nested_skill_under_another_name_is_only_a_part_of_the_enclosing_one(root: Path) -> None:
    write_skill(root / "outer")
    write_skill(root / "outer" / "inner", name="other")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://outer/SKILL.md"]
    assert manifest_at(snapshot, "skill://outer/SKILL.md") == manifest_of(
        root / "outer", "skill://outer/SKILL.md"
    )
    assert held_back(snapshot) == {"outer/inner": ["name-differs-from-folder"]}


def test_a_skill_inside_a_renamed_one_follows_its_name(root: Path) -> None:
    write_skill(root / "copy", name="outer")
    write_skill(root / "copy" / "inner")

    assert uris(scan(root)) == ["skill://outer/SKILL.md", "skill://outer/inner/SKILL.md"]


def test_a_skill_inside_one_that_cannot_be_published_is_published_all_the_same(root: Path) -> None:
    write_files(root, {"broken/SKILL.md": "no frontmatter"})
    write_skill(root / "broken" / "inner")
    write_skill(root / "broken" / "copy", name="named")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://broken/inner/SKILL.md", "skill://broken/named/SKILL.md"]
    assert codes(snapshot) == {
        "broken": ["frontmatter-missing"],
        "broken/copy": ["name-differs-from-folder"],
    }


# Two folders, one URI


def test_of_two_folders_with_one_name_the_one_that_bears_it_is_published(root: Path) -> None:
    write_skill(root / "pdf", {"mine.md": "x"})
    write_skill(root / "pdf-old", name="pdf")

    snapshot = scan(root)

    uri = SkillUri("skill://pdf/SKILL.md")
    assert [(entry.uri, entry.manifest) for entry in snapshot.entries] == [
        (uri, manifest_of(root / "pdf", uri.text))
    ]
    assert held_back(snapshot) == {"pdf-old": ["duplicate-uri", "name-differs-from-folder"]}


def test_when_no_folder_bears_the_name_none_is_published(root: Path) -> None:
    write_skill(root / "copy-1", name="pdf")
    write_skill(root / "copy-2", name="pdf")
    write_skill(root / "good")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert held_back(snapshot) == {
        "copy-1": ["duplicate-uri", "name-differs-from-folder"],
        "copy-2": ["duplicate-uri", "name-differs-from-folder"],
    }


@pytest.mark.requirement("URI-11")
def test_when_two_folders_bear_the_name_none_is_published_and_each_is_told_of_the_other(root: Path) -> None:
    write_skill(root / "Acme" / "pdf")
    write_skill(root / "acme" / "pdf")

    snapshot = scan(root)

    assert uris(snapshot) == []
    assert held_back(snapshot) == {"Acme/pdf": ["duplicate-uri"], "acme/pdf": ["duplicate-uri"]}
    first, second = snapshot.quarantined
    assert "'acme/pdf'" in first.findings[0].message
    assert "'Acme/pdf'" in second.findings[0].message


# A skill inside the loser of a clash is not slipped into the winner; one that lower case moves into another,
# or onto a file of another, is neither left out of its manifest nor published beside it.
@pytest.mark.requirement("NEST-03")
@example(skills={"pdf": "pdf", "pdf-old": "pdf", "pdf-old/forms": "forms"})
@example(skills={"acme": "acme", "Acme/pdf": "pdf"})
@example(skills={"acme": "acme", "acme/pdf": "other", "Acme/pdf": "pdf"})
@example(skills={"acme": "acme", "Acme/pdf": "pdf", "Acme/pdf/forms": "forms"})
@given(
    skills=st.dictionaries(
        st.lists(st.sampled_from(["a", "A", "b"]), min_size=1, max_size=3).map("/".join),
        st.sampled_from(["a", "b"]),
        max_size=6,
    )
)
@properties
def test_whatever_names_folders_and_skills_have_entries_agree_and_nothing_is_passed_over(
    skills: dict[str, str],
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for place, name in skills.items():
            write_skill(Path(temporary) / place, {"x.md": place}, name=name)

        snapshot = scan(Path(temporary))

    assert_enclosing_manifests_are_complete(snapshot)
    assert uris(snapshot) == sorted(set(uris(snapshot)))
    assert len(snapshot.entries) + len(snapshot.quarantined) == len(skills)
    assert {report.place for report in snapshot.quarantined} <= set(skills)


def assert_enclosing_manifests_are_complete(snapshot: Snapshot) -> None:
    """Every published skill whose URI lies inside another's has all its files in that one's manifest."""
    for outer in snapshot.entries:
        for inner in snapshot.entries:
            if inner is not outer and outer.uri.contains(inner.uri.text):
                assert outer.manifest is not None and inner.manifest is not None
                assert set(inner.manifest.files) <= set(outer.manifest.files), (outer.uri, inner.uri)


# One bad skill never hides the others


BROKEN = {
    "empty": b"",
    "not-utf8": b"---\nname: not-utf8\ndescription: Use when \xff.\n---\n",
    "bad-yaml": b"---\nname: [bad\n---\n",
    "bad-name": b"---\nname: Bad_Name\ndescription: Use when bad.\n---\n",
    "unicode-name": "---\nname: \u00fcber\ndescription: Use when over.\n---\n".encode(),
    "undescribed": b"---\nname: undescribed\n---\n",
    "nul": b"\0" * 5000,
}


def test_broken_skills_are_set_aside_with_an_error_each_and_hide_nothing(root: Path) -> None:
    for folder, content in BROKEN.items():
        write_files(root, {f"{folder}/SKILL.md": content})
    write_skill(root / "good")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert [report.place for report in snapshot.quarantined] == sorted(BROKEN)
    for report in snapshot.reports:
        assert any(finding.is_error for finding in report.findings), report


@given(
    content=st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"---\n" + data + b"\n---\n")
)
@properties
def test_whatever_a_skill_file_holds_the_others_are_published(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        write_files(Path(temporary), {"odd/SKILL.md": content})
        write_skill(Path(temporary) / "good")

        snapshot = scan(Path(temporary))

    assert SkillUri("skill://good/SKILL.md").text in uris(snapshot)
    for entry in snapshot.entries:
        assert not [finding for finding in entry_findings(entry) if finding.is_error]


def test_warnings_are_reported_with_the_uri_of_the_skill_that_is_published(root: Path) -> None:
    write_files(root, {"pdf/SKILL.md": skill_md("pdf", extra="allowed-tools: [Read]\n")})

    snapshot = scan(root)

    uri = SkillUri("skill://pdf/SKILL.md")
    assert [(report.place, report.uri) for report in snapshot.reports] == [("pdf", uri)]
    assert codes(snapshot) == {"pdf": ["allowed-tools-invalid"]}
