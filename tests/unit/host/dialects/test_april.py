"""`index-april`: summaries, digests that may be missing, archives by suffix, and templates."""

from typing import Any

import pytest

from skillwire.core.dialects import Dialect
from skillwire.core.entry import SkillEntry, archive_format, packed_skill_file
from skillwire.core.errors import InvalidUriError
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.model.errors import InvalidAnswerError
from unit.host.dialects.indexed import (
    BOTH,
    TEA,
    TEA_FIELDS,
    TEA_URI,
    april,
    codes,
    in_april,
    read_index,
)

PINNED = DialectOptions(dialect=Dialect.INDEX_APRIL)
PRODUCTS = "skill://docs/{product}/SKILL.md"


def one(entry: dict[str, Any], options: DialectOptions | None = None) -> SkillEntry:
    listing = read_index(in_april(entry), options)
    assert codes(listing) == []
    [found] = listing.entries
    return found


@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("CONF-20")
def test_a_digest_promises_the_skill_file_and_its_absence_promises_nothing() -> None:
    promised, plain = one(april()), one(april(digest=None))

    assert promised.manifest is not None
    assert (promised.coverage, promised.manifest.uris) == (Coverage.SKILL_FILE, (TEA_URI,))
    assert (promised.manifest.digests, promised.manifest.sizes) == ((digest_of(TEA),), (UNKNOWN_SIZE,))
    assert plain.is_dynamic
    for entry in (promised, plain):
        assert entry.is_summary and dict(entry.frontmatter.fields) == TEA_FIELDS


@pytest.mark.requirement("DRAFT-01")
@pytest.mark.parametrize(
    "schema", ["https://schemas.agentskills.io/discovery/9.9.9/schema.json", 7, None, ""]
)
def test_an_index_with_an_unknown_schema_is_not_processed(schema: object) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        read_index(in_april(april(), schema=schema))

    assert caught.value.violates == "DRAFT-01"


@pytest.mark.requirement("DRAFT-02")
def test_an_entry_of_an_unknown_type_is_skipped_with_a_warning() -> None:
    listing = read_index(in_april(april(type="x", url="skill://x/tea/SKILL.md"), april()))

    assert [entry.uri.text for entry in listing.entries] == [TEA_URI]
    assert codes(listing) == [["index-type-unknown"]]
    assert not listing.refused[0].findings[0].is_error


@pytest.mark.requirement("CONF-03")
@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (april(name=None), "name-missing"),
        (april(name="Tea Time"), "name-invalid"),
        (april(description=None), "description-missing"),
        (april(url=None, uri=TEA_URI), "index-entry-invalid"),
        (april(url="https://user@x/tea/SKILL.md"), "uri-invalid"),
        (april(digest="sha1:00"), "index-digest-invalid"),
        (april(type=None), "index-entry-invalid"),
    ],
)
def test_one_bad_entry_is_refused_and_its_neighbour_is_not(entry: dict[str, Any], code: str) -> None:
    listing = read_index(in_april(entry, april(url="skill://x/tea/SKILL.md")))

    assert [found.uri.text for found in listing.entries] == ["skill://x/tea/SKILL.md"]
    assert codes(listing)[0][0] == code


@pytest.mark.requirement("NEG-19")
def test_unknown_fields_are_kept_and_none_takes_the_place_of_a_known_one() -> None:
    entry = one(april(color="green", uri="skill://evil/SKILL.md", frontmatter=None, resources="dynamic"))

    assert dict(entry.extra) == {"color": "green"}
    assert entry.to_json()["uri"] == TEA_URI and isinstance(entry.to_json()["resources"], list)


@pytest.mark.requirement("DRAFT-09")
def test_a_path_that_does_not_end_in_the_name_needs_a_user_who_chose_the_dialect() -> None:
    data = in_april(april(url="skill://acme/drinks/SKILL.md"))

    strict, lenient = read_index(data), read_index(data, PINNED)

    assert (strict.entries, codes(strict)) == ((), [["uri-name-mismatch"]])
    [entry] = lenient.entries
    assert (entry.uri.text, entry.name, entry.coverage) == (
        "skill://acme/drinks/SKILL.md",
        "tea",
        Coverage.SKILL_FILE,
    )
    [(uri, remark)] = lenient.remarks
    assert (uri, remark.code, remark.is_error) == (entry.uri.text, "path-differs", False)


# Archives


@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("DRAFT-08")
@pytest.mark.parametrize(
    ("url", "format", "uri"),
    [
        ("skill://tea.zip", ArchiveFormat.ZIP, TEA_URI),
        ("skill://acme/tea.tar.gz", ArchiveFormat.TAR_GZ, "skill://acme/tea/SKILL.md"),
        ("skill://acme/tea.tgz", ArchiveFormat.TAR_GZ, "skill://acme/tea/SKILL.md"),
        ("skill://acme/v1.zip", ArchiveFormat.ZIP, "skill://acme/v1.zip/tea/SKILL.md"),
    ],
)
def test_the_suffix_of_an_archive_tells_its_kind_and_the_path_of_its_skill(
    url: str, format: ArchiveFormat, uri: str
) -> None:
    entry = one(april(type="archive", url=url), BOTH)

    assert (entry.uri.text, entry.coverage, entry.is_summary) == (uri, Coverage.ARCHIVE, True)
    assert entry.manifest is not None
    [line] = entry.manifest.files
    assert (line.uri, line.digest, archive_format(line)) == (url, digest_of(TEA), format)
    assert packed_skill_file(entry.manifest, uri) is None


@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("ARC-05")
@pytest.mark.requirement("ARC-18")
def test_an_archive_that_may_not_or_cannot_be_unpacked_is_refused() -> None:
    for entry, options, code in (
        (april(type="archive", url="skill://tea.zip"), DialectOptions(), "archives-off"),
        (april(type="archive", url="skill://tea.rar"), BOTH, "archive-unsupported"),
        (april(type="archive", url="skill://tea.zip", digest=None), BOTH, "archive-unverifiable"),
    ):
        listing = read_index(in_april(entry), options)

        assert (listing.entries, codes(listing)) == ((), [[code]])


# Templates


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("DRAFT-06")
def test_templates_are_kept_apart_from_skills_in_both_spellings() -> None:
    listing = read_index(
        in_april(
            {"type": "mcp-resource-template", "description": "By product.", "url": PRODUCTS},
            {"type": "skill-md", "description": "By team.", "urlTemplate": "skill://{team}/{+path}/SKILL.md"},
            {"type": "mcp-resource-template", "description": "Again.", "url": PRODUCTS},
            april(),
        )
    )

    assert [entry.uri.text for entry in listing.entries] == [TEA_URI]
    assert listing.refused == ()
    assert [(made.template.text, made.description) for made in listing.templates] == [
        (PRODUCTS, "By product."),
        ("skill://{team}/{+path}/SKILL.md", "By team."),
    ]
    by_product, by_team = (made.template for made in listing.templates)
    assert by_product.expand({"product": "x y"}).text == "skill://docs/x%20y/SKILL.md"
    assert by_team.expand({"team": "a", "path": "b/c"}).text == "skill://a/b/c/SKILL.md"
    for value in ("..", "a/b", ""):
        with pytest.raises(InvalidUriError):
            by_product.expand({"product": value})


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("DRAFT-06")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": TEA_URI, "urlTemplate": PRODUCTS}, "index-template-invalid"),
        ({"url": None, "urlTemplate": "skill://docs/SKILL.md"}, "index-template-invalid"),
        ({"url": None, "urlTemplate": "skill://{a}/other.md"}, "index-template-invalid"),
        ({"url": PRODUCTS, "type": "mcp-resource-template"}, "index-digest-invalid"),
    ],
)
def test_a_template_that_is_none_is_refused(fields: dict[str, Any], code: str) -> None:
    listing = read_index(in_april(april(**fields)))

    assert (listing.entries, listing.templates) == ((), ())
    assert code in codes(listing)[0]
