"""The `list-march` dialect: skills among resources, and the lists of their files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.entry import check_entry
from skillwire.core.errors import InvalidEntryError
from skillwire.core.manifest import ManifestFile, digest_of
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.resources import (
    MAX_FILE_LIST,
    ResourceSkill,
    parse_file_list,
    parse_resource,
    restore_line_ends,
    skills_among,
)
from unit.wire.payloads import ANY_JSON, golden, is_valid

REFUNDS = SkillUri.parse("skill://acme/refunds/SKILL.md")
DIGEST = digest_of(b"x")
PATHS = st.sampled_from(
    ("SKILL.md", "a.md", "a/b.md", "../x", "/etc/passwd", "a\\b", "a//b", "%2e%2e/x", "é.md")
)
LINES = st.fixed_dictionaries(
    {},
    optional={
        "path": PATHS | ANY_JSON,
        "size": st.just(1) | ANY_JSON,
        "hash": st.just(DIGEST) | ANY_JSON,
        "more": ANY_JSON,
    },
)
FILE_LISTS = st.fixed_dictionaries(
    {},
    optional={"skill": st.just("refunds") | ANY_JSON, "files": st.lists(LINES, max_size=4) | ANY_JSON},
)
SEGMENTS = st.sampled_from(
    ("skill:", "repo:", "file:", "a", "b", "refunds", "SKILL.md", "_manifest", "..", "", "é")
)


def among(*items: object) -> list[ResourceSkill]:
    parsed = [parse_resource(position, item) for position, item in enumerate(items)]
    return skills_among([item for item in parsed if item is not None])


def resource(uri: str, **more: object) -> dict[str, object]:
    return {"uri": uri, "name": "x", "description": "Use when testing.", "mimeType": "text/markdown", **more}


def uris(skills: list[ResourceSkill]) -> list[str]:
    return [skill.uri.text for skill in skills]


def file_list(*lines: dict[str, object], skill: object = "refunds") -> bytes:
    return json.dumps({"skill": skill, "files": lines}).encode()


@pytest.mark.requirement("DRAFT-07")
def test_the_skills_of_a_listing_are_its_skill_files_and_nothing_else() -> None:
    skills = among(
        resource("skill://acme/refunds/SKILL.md"),
        resource("skill://index.json"),
        resource("skill://acme/refunds/skill.md"),
        resource("skill://SKILL.md"),
        resource("docs://readme"),
        resource("skill://acme/SKILL.md.bak"),
        resource("skill://stock/SKILL.md"),
    )

    assert uris(skills) == ["skill://acme/refunds/SKILL.md", "skill://stock/SKILL.md"]


@pytest.mark.requirement("CONF-07")
def test_a_scheme_makes_no_skill_and_keeps_none_from_being_one() -> None:
    skills = among(
        resource("skill://notes/today.md"),
        resource("skill://plain", mimeType="text/plain"),
        resource("repo://acme/refunds/SKILL.md"),
        resource("file://home/refunds/SKILL.md"),
    )

    assert uris(skills) == ["repo://acme/refunds/SKILL.md"]


@pytest.mark.requirement("ASK-31")
@pytest.mark.parametrize(
    "media_type", ["text/plain", "text/x-skill; charset=utf-8", "application/zip", None, 7]
)
def test_a_skill_file_is_one_whatever_its_media_type(media_type: object) -> None:
    assert uris(among(resource("skill://refunds/SKILL.md", mimeType=media_type))) == [
        "skill://refunds/SKILL.md"
    ]


def test_an_early_server_leaves_the_name_of_the_file_out() -> None:
    skills = among(
        resource("skill://refunds", mimeType="Text/Markdown; charset=utf-8"),
        resource("skill://refunds/notes.md"),
        resource("skill://Not-A-Name"),
        resource("docs://stock"),
        resource("skill://both"),
        resource("skill://both/SKILL.md"),
    )

    assert uris(skills) == ["skill://refunds/SKILL.md", "skill://both/SKILL.md"]
    assert skills[0].resource.spelling == "skill://refunds"
    assert [file.uri for file in skills[0].files] == ["skill://refunds/notes.md"]
    assert skills[1].resource.spelling == "skill://both/SKILL.md"


@pytest.mark.requirement("CONF-13")
def test_a_listed_file_belongs_to_the_innermost_skill_around_it() -> None:
    skills = among(
        resource("skill://outer/inner/notes.md"),
        resource("skill://outer/inner/SKILL.md"),
        resource("skill://outer/SKILL.md"),
        resource("skill://outer/z.md"),
        resource("skill://outer/_manifest"),
        resource("skill://outer/inner-not/a.md"),
        resource("skill://outsider/a.md"),
    )

    assert {skill.uri.name: [file.uri for file in skill.files] for skill in skills} == {
        "inner": ["skill://outer/inner/notes.md"],
        "outer": ["skill://outer/inner-not/a.md", "skill://outer/z.md"],
    }
    assert [skill.file_list is not None for skill in skills] == [False, True]


def test_a_skill_that_is_listed_twice_comes_twice() -> None:
    skills = among(resource("skill://a/SKILL.md"), resource("SKILL://%61/SKILL.md"))

    assert uris(skills) == ["skill://a/SKILL.md"] * 2


@pytest.mark.requirement("ASK-30")
@pytest.mark.parametrize(
    ("name", "told", "believed"),
    [
        ("refunds/SKILL.md", "Skill: refunds", None),
        ("refunds", "Skill: refunds", "Skill: refunds"),
        ("refunds/SKILL.md", "Skill: other", "Skill: other"),
        ("refunds/SKILL.md", "  ", None),
        ("refunds", 7, None),
    ],
)
def test_a_description_that_a_framework_made_up_is_none(
    name: str, told: object, believed: str | None
) -> None:
    [skill] = among(resource("skill://refunds/SKILL.md", name=name, description=told))

    assert skill.description == believed


@given(st.lists(st.tuples(SEGMENTS, SEGMENTS, SEGMENTS, SEGMENTS).map("/".join) | ANY_JSON, max_size=8))
def test_any_listing_gives_only_skills_with_files_of_their_own(values: list[Any]) -> None:
    items = [{"uri": value} for value in values]

    for skill in among(*items, *values):
        assert SkillUri.parse(skill.uri.text) == skill.uri
        assert all(skill.uri.contains(file.uri) for file in skill.files)


def test_a_file_list_becomes_the_resources_of_an_entry_in_the_spelling_of_its_server() -> None:
    content = file_list(
        {"path": "SKILL.md", "size": 1, "hash": DIGEST},
        {"path": "references/Q&A notes.md", "size": 2, "hash": DIGEST, "more": 1},
        {"path": "50% (é).md", "size": 3, "hash": DIGEST},
    )
    spelling = "skill://acme/refunds/references/Q&A%20notes.md"

    lines = parse_file_list(REFUNDS, content, {spelling: spelling})

    assert lines == [
        {"uri": "skill://acme/refunds/SKILL.md", "digest": DIGEST, "size": 1},
        {"uri": spelling, "digest": DIGEST, "size": 2},
        {"uri": "skill://acme/refunds/50%25%20%28%C3%A9%29.md", "digest": DIGEST, "size": 3},
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 200_000,
        b'{"skill": "refunds"}',
        b'{"skill": "refunds", "files": {}}',
        file_list(skill="other"),
        file_list(skill=None),
        file_list({"path": 7}),
        file_list({"path": "../stock/SKILL.md", "size": 1, "hash": DIGEST}),
        file_list({"path": "/etc/passwd", "size": 1, "hash": DIGEST}),
        file_list({"path": "a\\..\\b", "size": 1, "hash": DIGEST}),
        file_list({"path": "%2e%2e/b", "size": 1, "hash": DIGEST}),
        file_list({"path": "", "size": 1, "hash": DIGEST}),
        b'{"skill": "refunds", "files": []}' + b" " * MAX_FILE_LIST,
    ],
    ids=lambda content: content[:40],
)
def test_a_file_list_that_is_none_or_leads_elsewhere_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        parse_file_list(REFUNDS, content)

    assert len(str(caught.value)) < 600


@given(FILE_LISTS | ANY_JSON)
def test_whatever_a_file_list_says_an_entry_made_of_it_stays_inside_its_skill(value: JsonValue) -> None:
    try:
        lines = parse_file_list(REFUNDS, json.dumps(value).encode())
    except InvalidEntryError:
        return
    frontmatter = {"name": "refunds", "description": "Use when testing."}

    entry, findings = check_entry({"uri": REFUNDS.text, "frontmatter": frontmatter, "resources": lines})

    assert (entry is None) == any(finding.is_error for finding in findings)
    if entry is not None and entry.manifest is not None:
        assert entry.manifest.find(REFUNDS.text) is not None
        assert all(REFUNDS.contains(uri) for uri in entry.manifest.uris)


@given(st.binary(max_size=40) | st.text(alphabet="a\r\n", max_size=12).map(str.encode))
def test_bytes_are_only_ever_replaced_by_those_that_were_promised(content: bytes) -> None:
    translated = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    promise = ManifestFile.of("skill://a/b.md", content)

    assert restore_line_ends(content, promise) == content
    assert restore_line_ends(translated, promise) in (content, translated)


def test_a_text_that_lost_its_carriage_returns_gets_them_back() -> None:
    whole = b"One.\r\n\r\nTwo.\r\n"

    assert restore_line_ends(b"One.\n\nTwo.\n", ManifestFile.of("skill://a/b.md", whole)) == whole
    assert restore_line_ends(b"One.\n\nTwx.\n", ManifestFile.of("skill://a/b.md", whole)) == b"One.\n\nTwx.\n"


def test_golden_payloads_keep_to_the_schema_and_are_understood() -> None:
    listing, page, manifest = (golden(f"list-march-{what}") for what in ("list", "page", "manifest"))

    assert is_valid("list-march", listing) and is_valid("list-march", page)
    items = [*listing["resources"], *page["resources"]]
    assert [is_valid("list-march", item, "skill") for item in items] == [
        *(True, True, True),
        *(True, False),
    ]
    assert is_valid("list-march", manifest, "fileList")
    assert uris(among(*listing["resources"])) == [
        "skill://acme/refunds/SKILL.md",
        "skill://stock/SKILL.md",
        "skill://letters/SKILL.md",
    ]
    assert len(parse_file_list(REFUNDS, json.dumps(manifest).encode())) == 2
    assert not is_valid("list-march", {"skill": "refunds", "files": [{"path": "SKILL.md"}]}, "fileList")
