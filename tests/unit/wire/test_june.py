"""The `index-june` dialect: entries that strangers wrote, and entries of our own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.wire.index import JuneArchive, JuneEntry, parse_june_entry
from unit.wire.payloads import golden, is_valid

INDEX = golden("index-june-index")

DIGEST = "sha256:" + "a" * 64
ARCHIVE = {"url": "skill://tea.zip", "mimeType": "application/zip", "digest": DIGEST}
ENTRY = {
    "url": "skill://tea/SKILL.md",
    "digest": DIGEST,
    "frontmatter": {"name": "tea", "description": "Use when testing."},
    "archives": [ARCHIVE],
}

keys = st.sampled_from([*ENTRY, "mimeType", "name", "description", "resources", "size"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from([DIGEST, "skill://tea/SKILL.md", "skill://tea.zip", "tea", "file:///x", "\ud800"])
)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=20,
)


def changed(**fields: object) -> dict[str, object]:
    return {**ENTRY, **fields}


def without(*names: str) -> dict[str, object]:
    return {key: value for key, value in ENTRY.items() if key not in names}


@pytest.mark.requirement("IDX-02")
@pytest.mark.requirement("IDX-06")
@pytest.mark.requirement("NEG-19")
def test_the_golden_index_is_read_and_written_back_as_it_was() -> None:
    for item in INDEX["skills"]:
        entry, findings = parse_june_entry(item)

        assert entry is not None
        assert [finding for finding in findings if finding.is_error] == []
        assert entry.to_json() == item


@pytest.mark.requirement("IDX-12")
def test_our_additions_are_kept_beside_what_the_dialect_defines() -> None:
    entry, _ = parse_june_entry(changed(size=3, resources=[{"uri": "skill://tea/SKILL.md"}]))

    assert entry is not None
    assert entry.extra == {"size": 3, "resources": [{"uri": "skill://tea/SKILL.md"}]}
    assert entry.archives == (JuneArchive("skill://tea.zip", "application/zip", DIGEST),)


@pytest.mark.requirement("IDX-02")
@pytest.mark.parametrize("fields", [("url", "digest"), ("archives",)])
def test_one_of_url_and_archives_is_enough(fields: tuple[str, ...]) -> None:
    entry, findings = parse_june_entry(without(*fields))

    assert entry is not None
    assert findings == []


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param(None, "index-entry-invalid", marks=pytest.mark.requirement("IDX-02")),
        pytest.param([], "index-entry-invalid", marks=pytest.mark.requirement("IDX-02")),
        pytest.param(without("frontmatter"), "entry-invalid", marks=pytest.mark.requirement("IDX-02")),
        pytest.param(
            without("url", "digest", "archives"),
            "index-entry-invalid",
            marks=pytest.mark.requirement("IDX-02"),
        ),
        pytest.param(
            {**without("url", "digest"), "archives": []},
            "index-entry-invalid",
            marks=pytest.mark.requirement("IDX-02"),
        ),
        pytest.param(without("digest"), "index-digest-invalid", marks=pytest.mark.requirement("IDX-03")),
        pytest.param(without("url"), "index-digest-invalid", marks=pytest.mark.requirement("IDX-03")),
        pytest.param(
            changed(digest=DIGEST.upper()), "index-digest-invalid", marks=pytest.mark.requirement("IDX-03")
        ),
        pytest.param(changed(archives={}), "index-archive-invalid", marks=pytest.mark.requirement("IDX-04")),
        pytest.param(changed(archives=[7]), "index-archive-invalid", marks=pytest.mark.requirement("IDX-04")),
        pytest.param(
            changed(url="skill://coffee/SKILL.md"),
            "uri-name-mismatch",
            marks=pytest.mark.requirement("IDX-05"),
        ),
        pytest.param(changed(url="file:///tea/SKILL.md"), "uri-invalid"),
        pytest.param(changed(url="skill://tea/README.md"), "uri-invalid"),
        pytest.param(changed(url=7), "index-entry-invalid"),
        pytest.param(changed(frontmatter={"name": "tea"}), "description-missing"),
        pytest.param(changed(frontmatter={"name": "Tea", "description": "x"}), "name-invalid"),
        pytest.param(changed(archives=[ARCHIVE, {**ARCHIVE, "url": "file:///x.zip"}]), "uri-invalid"),
    ],
)
def test_what_is_wrong_with_an_entry_makes_it_unusable(value: object, code: str) -> None:
    entry, findings = parse_june_entry(value)

    assert entry is None
    assert code in [finding.code for finding in findings if finding.is_error]


@pytest.mark.requirement("IDX-04")
@pytest.mark.parametrize("field", ARCHIVE)
def test_an_archive_lacks_nothing_or_the_entry_is_not_used(field: str) -> None:
    broken = {key: value for key, value in ARCHIVE.items() if key != field}

    entry, findings = parse_june_entry(changed(archives=[ARCHIVE, broken]))

    assert entry is None
    assert findings[0].is_error
    assert not is_valid("index-june", {"skills": [changed(archives=[broken])]})


def test_a_strangers_words_are_quoted_and_cut_short() -> None:
    _, findings = parse_june_entry(changed(digest=None, url="skill://" + "\u202eevil" * 2000 + "/SKILL.md"))

    assert findings
    assert all(len(finding.message) < 400 and finding.message.isascii() for finding in findings)


@given(json_values)
def test_no_json_makes_reading_an_entry_fail(value: object) -> None:
    entry, findings = parse_june_entry(value)

    assert (entry is None) == any(finding.is_error for finding in findings)
    assert all(len(finding.message) < 1000 for finding in findings)


@given(st.dictionaries(keys, json_values, max_size=6))
def test_what_is_read_is_what_is_written(fields: dict[str, Any]) -> None:
    entry, _ = parse_june_entry({**ENTRY, **fields})

    if entry is not None:
        again, _ = parse_june_entry(entry.to_json())
        assert again == entry
        assert is_valid("index-june", {"skills": [known(entry)]})


def known(entry: JuneEntry) -> dict[str, object]:
    """Return an entry without what strangers may add, which no schema can describe."""
    archives = tuple(JuneArchive(item.url, item.media_type, item.digest) for item in entry.archives)
    return JuneEntry(entry.frontmatter, entry.url, entry.digest, archives).to_json()
