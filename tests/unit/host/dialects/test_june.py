"""`index-june`: what each entry promises, and what becomes of it."""

from typing import Any

import pytest

from skillwire.core.entry import SkillEntry, archive_format, archive_line, packed_skill_file, parse_entry
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.host.dialects.base import DialectOptions
from unit.host.dialects.indexed import (
    BOTH,
    TEA,
    TEA_FIELDS,
    TEA_URI,
    archive,
    codes,
    in_june,
    june,
    read_index,
)

GUIDE_URI = "skill://tea/references/guide.md"
LINES = [
    {"uri": TEA_URI, "digest": digest_of(TEA), "size": len(TEA)},
    {"uri": GUIDE_URI, "digest": digest_of(b"guide"), "size": 5},
]
ZIP = "application/zip"
TAR = "application/gzip"


def one(entry: dict[str, Any], options: DialectOptions | None = None) -> SkillEntry:
    listing = read_index(in_june(entry), options)
    assert codes(listing) == []
    [found] = listing.entries
    return found


def packed(name: str, *archives: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a skill that comes in archives alone."""
    fields = {"name": name, "description": "Use when asked."}
    return june(url=None, digest=None, frontmatter=fields, archives=list(archives))


@pytest.mark.requirement("CONF-03")
@pytest.mark.requirement("IDX-02")
@pytest.mark.requirement("IDX-03")
@pytest.mark.requirement("IDX-10")
def test_a_digest_of_the_skill_file_promises_that_file_and_no_other() -> None:
    entry = one(june())

    assert entry.manifest is not None
    assert (entry.coverage, entry.manifest.uris) == (Coverage.SKILL_FILE, (TEA_URI,))
    assert (entry.manifest.digests, entry.manifest.sizes) == ((digest_of(TEA),), (UNKNOWN_SIZE,))
    assert (entry.files, entry.is_summary) == (None, False)
    assert dict(entry.frontmatter.fields) == TEA_FIELDS


@pytest.mark.requirement("IDX-12")
def test_a_size_beside_the_digest_is_used() -> None:
    sized = one(june(size=len(TEA))).manifest

    assert sized is not None and sized.sizes == (len(TEA),)
    for size in (-1, True, "7", 2**63, 1.0):
        manifest = one(june(size=size)).manifest
        assert manifest is not None and manifest.sizes == (UNKNOWN_SIZE,)


@pytest.mark.requirement("IDX-12")
def test_lines_as_in_the_released_extension_promise_every_file() -> None:
    entry = one(june(resources=LINES), BOTH)

    assert entry == parse_entry({"uri": TEA_URI, "frontmatter": TEA_FIELDS, "resources": LINES})
    assert entry.coverage is Coverage.FILES


@pytest.mark.requirement("IDX-12")
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "resource-self-missing"),
        ([{**LINES[0], "digest": digest_of(b"other")}], "resource-invalid"),
        ([LINES[0], {**LINES[1], "uri": "skill://other/guide.md"}], "resource-outside"),
        ([LINES[0], {"uri": GUIDE_URI}], "resource-invalid"),
        (["guide.md"], "resource-invalid"),
    ],
)
def test_lines_that_break_the_rules_or_contradict_the_entry_cost_the_skill(lines: object, code: str) -> None:
    listing = read_index(in_june(june(resources=lines)))

    assert (listing.entries, codes(listing)) == ((), [[code]])
    assert listing.refused[0].uri == TEA_URI


@pytest.mark.requirement("IDX-06")
@pytest.mark.parametrize("strange", ["dynamic", {"count": 3}, 7, None])
def test_a_field_of_that_name_with_another_meaning_is_ignored(strange: object) -> None:
    entry = one(june(resources=strange))

    assert entry.coverage is Coverage.SKILL_FILE and "resources" not in entry.extra


@pytest.mark.requirement("IDX-06")
@pytest.mark.requirement("NEG-19")
def test_unknown_fields_are_kept_and_none_takes_the_place_of_a_known_one() -> None:
    entry = one(june(color="green", _meta={"a": [1]}, uri="skill://evil/SKILL.md", resources="dynamic"))

    assert dict(entry.extra) == {"color": "green", "_meta": {"a": [1]}}
    assert entry.to_json()["uri"] == TEA_URI
    assert entry.to_json()["color"] == "green"
    assert isinstance(entry.to_json()["resources"], list)


@pytest.mark.requirement("IDX-02")
@pytest.mark.requirement("IDX-03")
@pytest.mark.requirement("IDX-04")
@pytest.mark.requirement("IDX-05")
@pytest.mark.requirement("CONF-03")
@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("tea", "index-entry-invalid"),
        (june(url=None, digest=None), "index-entry-invalid"),
        (june(digest=None), "index-digest-invalid"),
        (june(url=None, archives=[archive("skill://tea.zip")]), "index-digest-invalid"),
        (june(url=None, digest=None, uri=TEA_URI), "index-entry-invalid"),
        (june(url="skill://coffee/SKILL.md"), "uri-name-mismatch"),
        (june(url="file:///etc/tea/SKILL.md"), "uri-invalid"),
        (june(frontmatter=None), "entry-invalid"),
        (june(frontmatter={"name": "tea"}), "description-missing"),
        (june(archives=[{"url": "skill://tea.zip", "mimeType": ZIP}]), "index-digest-invalid"),
    ],
)
def test_one_bad_entry_is_refused_and_its_neighbour_is_not(entry: object, code: str) -> None:
    listing = read_index(in_june(entry, june(url="skill://x/tea/SKILL.md")))

    assert [found.uri.text for found in listing.entries] == ["skill://x/tea/SKILL.md"]
    assert [refused.position for refused in listing.refused] == [0]
    assert code in codes(listing)[0]


@pytest.mark.requirement("DRAFT-09")
@pytest.mark.requirement("IDX-05")
def test_even_for_those_who_chose_this_dialect_the_path_ends_in_the_name() -> None:
    pinned = DialectOptions(dialect=read_index(in_june()).dialect)

    assert codes(read_index(in_june(june(url="skill://coffee/SKILL.md")), pinned)) == [["uri-name-mismatch"]]


@pytest.mark.requirement("IDX-09")
def test_a_skill_under_another_scheme_is_one_because_it_is_listed() -> None:
    assert one(june(url="github://acme/tools/tea/SKILL.md")).uri.text == "github://acme/tools/tea/SKILL.md"


def test_a_uri_is_asked_for_as_the_server_spells_it() -> None:
    entry = one(june(url="SKILL://acm%65/tea/SKILL.md"))

    assert (entry.uri.text, entry.uri.published) == (
        "skill://acme/tea/SKILL.md",
        "SKILL://acm%65/tea/SKILL.md",
    )
    assert entry.manifest is not None
    assert entry.manifest.files[0].published == "SKILL://acm%65/tea/SKILL.md"


# Archives


@pytest.mark.requirement("ARC-01")
@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("ARC-16")
def test_an_archive_of_a_kind_that_policy_allows_is_preferred_to_single_files() -> None:
    tar, zipped = archive("skill://tea.tar.gz", TAR, size=77), archive("skill://tea.zip")
    listed = june(archives=[archive("skill://tea.7z", "application/x-7z-compressed"), tar, zipped])

    held: list[tuple[str, ArchiveFormat | None, int]] = []
    for formats in ([ArchiveFormat.TAR_GZ], [ArchiveFormat.ZIP], list(ArchiveFormat)):
        entry = one(listed, DialectOptions(formats=frozenset(formats)))
        assert entry.coverage is Coverage.ARCHIVE and entry.manifest is not None
        line = archive_line(entry.manifest, TEA_URI)
        held.append((line.uri, archive_format(line), line.size))
        inside = packed_skill_file(entry.manifest, TEA_URI)
        assert inside is not None and inside.digest == digest_of(TEA)

    assert held == [
        ("skill://tea.tar.gz", ArchiveFormat.TAR_GZ, 77),
        ("skill://tea.zip", ArchiveFormat.ZIP, UNKNOWN_SIZE),
        ("skill://tea.tar.gz", ArchiveFormat.TAR_GZ, 77),
    ]


@pytest.mark.requirement("ARC-18")
def test_without_a_usable_archive_the_single_files_do() -> None:
    for listed, options in (
        (june(archives=[archive("skill://tea.zip")]), DialectOptions()),
        (june(archives=[archive("skill://tea.rar", "application/vnd.rar")]), BOTH),
        (june(archives=[archive(TEA_URI)]), BOTH),
    ):
        assert one(listed, options).coverage is Coverage.SKILL_FILE


@pytest.mark.requirement("ARC-18")
@pytest.mark.requirement("ARC-02")
def test_a_skill_in_archives_alone_is_refused_where_none_may_or_can_be_unpacked() -> None:
    alone = packed("tea", archive("skill://tea.zip"))
    only_tar = DialectOptions(formats=frozenset([ArchiveFormat.TAR_GZ]))
    strange = packed("tea", archive("skill://tea.rar", "application/vnd.rar"))

    for entry, options, code in (
        (alone, DialectOptions(), "archives-off"),
        (alone, only_tar, "archives-off"),
        (strange, BOTH, "archive-unsupported"),
    ):
        listing = read_index(in_june(entry), options)
        assert (listing.entries, codes(listing)) == ((), [[code]])
        assert listing.refused[0].findings[0].fix
    assert read_index(in_june(alone)).refused[0].uri == TEA_URI


@pytest.mark.requirement("ARC-02")
def test_the_media_type_decides_and_not_the_suffix() -> None:
    entry = one(packed("tea", archive("skill://tea.tar.gz", "Application/ZIP; v=1")), BOTH)

    assert entry.manifest is not None
    assert archive_format(entry.manifest.files[0]) is ArchiveFormat.ZIP


@pytest.mark.requirement("ARC-14")
@pytest.mark.requirement("ASK-24")
@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("skill://tea.zip", "skill://tea/SKILL.md"),
        ("skill://tea.TGZ", "skill://tea/SKILL.md"),
        ("skill://a/b/tea.tar.gz", "skill://a/b/tea/SKILL.md"),
        ("pack://a/tea.zip", "pack://a/tea/SKILL.md"),
        ("skill://a/bundle-7.zip", "skill://a/bundle-7.zip/tea/SKILL.md"),
        ("skill://a/tea", "skill://a/tea/tea/SKILL.md"),
        ("skill://a/tea/SKILL.md", "skill://a/tea/SKILL.md/tea/SKILL.md"),
    ],
)
def test_a_skill_in_an_archive_gets_a_uri_that_follows_from_the_archives(url: str, uri: str) -> None:
    assert one(packed("tea", archive(url)), BOTH).uri.text == uri


@pytest.mark.requirement("ARC-14")
@pytest.mark.requirement("ASK-24")
def test_two_skills_of_one_name_in_archives_stay_apart() -> None:
    east, west = (
        packed("tea", archive("skill://east/tea.zip")),
        packed("tea", archive("skill://west/tea.zip")),
    )

    listing = read_index(in_june(east, west), BOTH)

    assert [entry.uri.text for entry in listing.entries] == [
        "skill://east/tea/SKILL.md",
        "skill://west/tea/SKILL.md",
    ]


@pytest.mark.requirement("ARC-14")
def test_skills_that_would_share_a_path_get_one_below_their_archives() -> None:
    zipped, tarred = (
        packed("tea", archive("skill://tea.zip")),
        packed("tea", archive("skill://tea.tar.gz", TAR)),
    )
    below = ["skill://tea.zip/tea/SKILL.md", "skill://tea.tar.gz/tea/SKILL.md"]

    assert [entry.uri.text for entry in read_index(in_june(zipped, tarred), BOTH).entries] == below
    assert [entry.uri.text for entry in read_index(in_june(june(), zipped), BOTH).entries] == [
        TEA_URI,
        below[0],
    ]


def test_the_archive_that_is_named_after_its_skill_gives_it_its_path_wherever_it_stands() -> None:
    strange, zipped = archive("skill://a/7.7z", "application/x-7z-compressed"), archive("skill://b/tea.zip")

    assert one(packed("tea", strange, zipped), BOTH).uri.text == "skill://b/tea/SKILL.md"


def test_one_archive_that_is_listed_twice_is_refused_twice() -> None:
    alone = packed("tea", archive("skill://tea.zip"))

    assert codes(read_index(in_june(alone, alone), BOTH)) == [["duplicate-uri"], ["duplicate-uri"]]
