"""Publishing a folder: which URI each skill gets, what its entry says, and what happens when two clash."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
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
from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry, entry_findings, parse_entry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.uri import MAX_URI_LENGTH, SkillUri
from skillwire.sources import Report, Snapshot

properties = settings(deadline=None, max_examples=30)


# What an entry says


def test_an_entry_has_the_uri_the_frontmatter_and_the_manifest_of_the_folder(root: Path) -> None:
    write_skill(root / "pdf", {"references/forms.md": "# Forms\n", "scripts/fill.py": "print()\n"})

    snapshot = scan(root)

    uri = SkillUri("skill://pdf/SKILL.md")
    frontmatter = Frontmatter({"name": "pdf", "description": "Use when testing pdf."})
    assert snapshot == Snapshot.of([SkillEntry(uri, frontmatter, manifest_of(root / "pdf", uri.text))])


def test_entries_are_sorted_by_uri_whatever_the_order_on_disk(root: Path) -> None:
    for name in ("zebra", "b/alpha", "b-side", "a1", "b", "a"):
        write_skill(root / name)

    snapshot = scan(root)

    assert uris(snapshot) == sorted(uris(snapshot))
    assert len(snapshot.entries) == 6


@pytest.mark.requirement("LIST-04")
def test_every_authored_field_is_published_as_it_stands_in_the_file(root: Path) -> None:
    text = (
        b"---\nname: odd\ndescription: Use when odd.\nlicense: MIT\nmetadata:\n  version: '1.0'\n"
        b"x-unknown: [1, 2.5, true, null, {deep: [yes, 'no']}]\n---\n\nBody.\n"
    )
    write_files(root, {"odd/SKILL.md": text})

    entry = scan(root).get(SkillUri("skill://odd/SKILL.md"))

    assert entry.frontmatter == parse_skill_md(text).frontmatter
    assert dict(entry.frontmatter.fields) == {
        "name": "odd",
        "description": "Use when odd.",
        "license": "MIT",
        "metadata": {"version": "1.0"},
        "x-unknown": [1, 2.5, True, None, {"deep": ["yes", "no"]}],
    }


@pytest.mark.requirement("FMT-11")
def test_a_file_with_a_byte_order_mark_and_crlf_is_hashed_as_it_is(root: Path) -> None:
    crlf = b"\xef\xbb\xbf" + skill_md("windows").replace(b"\n", b"\r\n")
    write_files(root, {"windows/SKILL.md": crlf, "windows/notes.txt": b"a\r\nb\rc\n\xff\xfe"})

    snapshot = scan(root)

    manifest = manifest_at(snapshot, "skill://windows/SKILL.md")
    assert manifest == manifest_of(root / "windows", "skill://windows/SKILL.md")


def test_names_that_need_it_are_percent_encoded_in_resource_uris(root: Path) -> None:
    write_skill(root / "docs", {"my notes/50% café?.md": "x", "a#b.md": "y"})

    snapshot = scan(root)

    assert file_uris(snapshot, "skill://docs/SKILL.md") == [
        "skill://docs/SKILL.md",
        "skill://docs/a%23b.md",
        "skill://docs/my%20notes/50%25%20caf%C3%A9%3F.md",
    ]


def test_resources_are_sorted_by_uri_even_where_encoding_changes_the_order(root: Path) -> None:
    write_skill(root / "docs", {"a b.md": "", "a-b.md": "", "aéb.md": "", "azb.md": "", "a/b.md": ""})

    listed = file_uris(scan(root), "skill://docs/SKILL.md")

    assert listed == sorted(listed)
    assert len(listed) == 6


names = st.sampled_from(["a", "b", "c-1", "0"])
places = st.lists(names, min_size=1, max_size=4).map("/".join)
files = st.dictionaries(places.map(lambda path: path + ".md"), st.binary(max_size=40), max_size=4)


@pytest.mark.requirement("LIST-06")
@pytest.mark.requirement("LIST-07")
@pytest.mark.requirement("LIST-08")
@given(skills=st.dictionaries(places, files, max_size=5))
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


def test_folders_above_a_skill_become_its_prefix(root: Path) -> None:
    write_skill(root / "acme" / "billing" / "refunds")

    assert uris(scan(root)) == ["skill://acme/billing/refunds/SKILL.md"]


def test_a_prefix_and_a_scheme_of_the_publisher_go_before_every_path(root: Path) -> None:
    write_skill(root / "pdf", {"a.md": "x"})
    write_skill(root / "deep" / "xls")

    snapshot = scan(root, prefix="acme/tools", scheme="docs")

    assert uris(snapshot) == ["docs://acme/tools/deep/xls/SKILL.md", "docs://acme/tools/pdf/SKILL.md"]
    assert manifest_at(snapshot, "docs://acme/tools/pdf/SKILL.md") == manifest_of(
        root / "pdf", "docs://acme/tools/pdf/SKILL.md"
    )


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


@pytest.mark.requirement("NEST-01")
@pytest.mark.requirement("NEST-03")
@pytest.mark.requirement("NEST-05")
def test_a_nested_skill_has_its_own_entry_and_is_part_of_every_enclosing_one(root: Path) -> None:
    write_skill(root / "outer", {"a.md": "1"})
    write_skill(root / "outer" / "parts" / "middle", {"b.md": "2"})
    write_skill(root / "outer" / "parts" / "middle" / "inner", {"c.md": "3"})

    snapshot = scan(root)

    assert uris(snapshot) == [
        "skill://outer/SKILL.md",
        "skill://outer/parts/middle/SKILL.md",
        "skill://outer/parts/middle/inner/SKILL.md",
    ]
    for entry in snapshot.entries:
        assert entry.manifest == manifest_of(root / entry.uri.path, entry.uri.text)
    assert file_uris(snapshot, "skill://outer/SKILL.md") == [
        "skill://outer/SKILL.md",
        "skill://outer/a.md",
        "skill://outer/parts/middle/SKILL.md",
        "skill://outer/parts/middle/b.md",
        "skill://outer/parts/middle/inner/SKILL.md",
        "skill://outer/parts/middle/inner/c.md",
    ]


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


@pytest.mark.requirement("NEST-03")
def test_a_skill_inside_the_loser_of_a_clash_is_not_slipped_into_the_winner(root: Path) -> None:
    write_skill(root / "pdf")
    write_skill(root / "pdf-old", name="pdf")
    write_skill(root / "pdf-old" / "forms")

    assert_enclosing_manifests_are_complete(scan(root))


@pytest.mark.requirement("NEST-03")
def test_a_skill_that_lower_case_moves_into_another_is_not_left_out_of_its_manifest(root: Path) -> None:
    write_skill(root / "acme")
    write_skill(root / "Acme" / "pdf")

    assert_enclosing_manifests_are_complete(scan(root))


@pytest.mark.requirement("NEST-03")
def test_a_skill_that_lower_case_moves_onto_a_file_of_another_is_not_published_beside_it(root: Path) -> None:
    write_skill(root / "acme")
    write_skill(root / "acme" / "pdf", name="other")
    write_skill(root / "Acme" / "pdf")

    assert_enclosing_manifests_are_complete(scan(root))


@pytest.mark.requirement("NEST-03")
def test_a_skill_inside_one_that_lower_case_moves_is_not_left_out_of_the_manifest_around_both(
    root: Path,
) -> None:
    write_skill(root / "acme")
    write_skill(root / "Acme" / "pdf")
    write_skill(root / "Acme" / "pdf" / "forms")

    assert_enclosing_manifests_are_complete(scan(root))


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
    "no-frontmatter": b"# Just text\n",
    "unclosed": b"---\nname: unclosed\n",
    "not-utf8": b"---\nname: not-utf8\ndescription: Use when \xff.\n---\n",
    "bad-yaml": b"---\nname: [bad\n---\n",
    "nameless": b"---\ndescription: Use when nameless.\n---\n",
    "bad-name": b"---\nname: Bad_Name\ndescription: Use when bad.\n---\n",
    "unicode-name": "---\nname: \u00fcber\ndescription: Use when over.\n---\n".encode(),
    "undescribed": b"---\nname: undescribed\n---\n",
    "bomb": b"---\nname: bomb\na: &a [x]\nb: *a\n---\n",
    "numeric": b"---\nname: 12\ndescription: Use when 12.\n---\n",
    "list": b"---\n- a\n- b\n---\n",
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


def test_an_empty_folder_is_an_empty_snapshot(root: Path) -> None:
    assert scan(root) == Snapshot.of([])


def test_reports_are_sorted_by_place(root: Path) -> None:
    for folder in ("z", "a", "m/n"):
        write_files(root, {f"{folder}/SKILL.md": ""})

    reports: tuple[Report, ...] = scan(root).reports

    assert [report.place for report in reports] == ["a", "m/n", "z"]
