"""What a server promises about a skill, and the words in which people are told."""

from dataclasses import replace

import pytest

from skillwire.core import Frontmatter
from skillwire.core.entry import (
    archive_format,
    archive_line,
    coverage_words,
    files_with_digests,
    frontmatter_differences,
    has_digest,
    packed_skill_file,
    path_in,
    require_listed_frontmatter,
    size_words,
    total_words,
)
from skillwire.core.errors import FrontmatterMismatchError
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile, digest_of
from skillwire.core.media import ArchiveFormat
from unit.host.covered import FILES, URL, archive, in_archive, unpacked, with_skill_file
from unit.host.known_skills import known

DIGEST = digest_of(b"")
URI = "skill://shop/refunds/SKILL.md"


def test_the_archive_is_the_line_that_is_not_the_skills_own() -> None:
    both = in_archive(archive(), skill_file=FILES["SKILL.md"]).entry.manifest
    alone = in_archive(archive()).entry.manifest
    assert both is not None and alone is not None

    assert archive_line(both, URI).uri == archive_line(alone, URI).uri == URL
    skill_file = packed_skill_file(both, URI)
    assert skill_file is not None and skill_file.digest == digest_of(FILES["SKILL.md"])
    assert packed_skill_file(alone, URI) is None


def test_an_archive_at_the_skills_own_address_is_an_archive_all_the_same() -> None:
    odd = Manifest.of([ManifestFile(URI, DIGEST, UNKNOWN_SIZE)], Coverage.ARCHIVE)

    assert archive_line(odd, URI).uri == URI
    assert packed_skill_file(odd, URI) is None


@pytest.mark.requirement("ARC-02")
@pytest.mark.parametrize(
    ("uri", "said", "format"),
    [
        ("skill://a/b.zip", "application/gzip", ArchiveFormat.TAR_GZ),
        ("skill://a/b.zip", "application/x-7z", None),
        ("skill://a/b.zip", None, ArchiveFormat.ZIP),
        ("skill://a/b.tgz", None, ArchiveFormat.TAR_GZ),
        ("skill://a/b", None, None),
    ],
)
def test_the_media_type_tells_the_format_and_the_name_only_without_one(
    uri: str, said: str | None, format: ArchiveFormat | None
) -> None:
    extra = None if said is None else {"mimeType": said}

    assert archive_format(ManifestFile(uri, DIGEST, UNKNOWN_SIZE, "", extra)) is format


@pytest.mark.requirement("ASK-21")
@pytest.mark.requirement("CONF-20")
def test_which_files_have_a_digest_follows_from_what_is_covered() -> None:
    policy = "skill://shop/refunds/references/policy.md"
    packed = in_archive(archive())
    whole, some, none = known(files={"references/policy.md": b""}), with_skill_file(), known(is_dynamic=True)

    assert [has_digest(each.entry, policy) for each in (whole, packed, some, none)] == [
        True,
        True,
        False,
        False,
    ]
    assert [has_digest(each.entry, URI) for each in (whole, packed, some, none)] == [True, True, True, False]
    assert files_with_digests(packed.entry) is None and files_with_digests(none.entry) is None
    assert files_with_digests(unpacked(packed).entry) == unpacked(packed).entry.unpacked
    assert files_with_digests(some.entry) == some.entry.manifest


def test_a_line_is_shown_by_its_path_and_an_archive_by_its_address() -> None:
    entry = in_archive(archive()).entry

    assert path_in(entry, URL) == URL
    assert path_in(entry, f"{entry.uri.root}/a%20b.md") == "a b.md"


@pytest.mark.requirement("DRAFT-03")
def test_of_a_summary_only_what_was_told_is_compared() -> None:
    entry = known().entry
    summary = replace(entry, frontmatter=Frontmatter({"name": "refunds"}), is_summary=True)
    own = Frontmatter({"name": "refunds", "description": "Anything.", "allowed-tools": "Bash"})

    assert frontmatter_differences(summary, own) == ()
    assert set(frontmatter_differences(entry, own)) == {"description", "allowed-tools"}
    with pytest.raises(FrontmatterMismatchError):
        require_listed_frontmatter(summary, Frontmatter({"name": "other"}))


def test_sizes_are_told_as_far_as_they_are_known() -> None:
    some = Manifest.of([ManifestFile("a", DIGEST, 1200), ManifestFile("b", DIGEST, UNKNOWN_SIZE)])
    none = Manifest.of([ManifestFile("a", DIGEST, UNKNOWN_SIZE)])

    assert (size_words(1200), size_words(None), size_words(UNKNOWN_SIZE)) == (
        "1,200 bytes",
        "size unknown",
        "size unknown",
    )
    assert (total_words(some), total_words(none)) == ("at least 1,200 bytes", "size unknown")


def test_what_is_covered_is_said_in_one_clause_each() -> None:
    data = archive()
    packed, some = in_archive(data).entry.manifest, with_skill_file().entry.manifest

    assert coverage_words(None) == "no digests"
    assert coverage_words(known(files={"a.md": b"12"}).entry.manifest).startswith("2 files, ")
    assert coverage_words(packed, URI) == (
        f"one archive, digest {digest_of(data)}; its files are known when it is unpacked"
    )
    assert coverage_words(some, URI).startswith("only SKILL.md has a digest")
    assert "verified" not in " ".join(coverage_words(each, URI) for each in (None, packed, some))
