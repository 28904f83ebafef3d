"""What an entry of a site becomes: made-up URIs, and exactly the promise that was made."""

import hashlib
from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, ManifestFile
from skillwire.sources.wellknown.client import archive_uri, name_in, path_in, skill_entry
from skillwire.wire.wellknown import (
    ArtifactType,
    FilesEntry,
    SiteEntry,
    SiteFile,
    artifact_url,
    file_url,
    files_digest,
)

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
INDEX_URL = "https://example.org/.well-known/agent-skills/index.json"


@pytest.mark.requirement("CONF-20")
@pytest.mark.requirement("DISC-07")
def test_a_single_file_with_a_digest_is_the_whole_skill() -> None:
    entry = skill_entry(SiteEntry("tea", ArtifactType.SKILL_MD, "Tea.", "x", DIGEST))

    assert entry.uri.text == "skill://tea/SKILL.md"
    assert entry.coverage is Coverage.FILES
    assert entry.manifest is not None
    assert entry.manifest.files == (ManifestFile("skill://tea/SKILL.md", DIGEST, UNKNOWN_SIZE),)
    assert entry.is_summary
    assert dict(entry.frontmatter.fields) == {"name": "tea", "description": "Tea."}


@pytest.mark.requirement("CONF-20")
@pytest.mark.requirement("DISC-07")
def test_the_digest_of_an_archive_covers_everything_wherever_the_archive_is() -> None:
    here = skill_entry(SiteEntry("tea", ArtifactType.ARCHIVE, "Tea.", "tea.zip", DIGEST))
    there = skill_entry(SiteEntry("tea", ArtifactType.ARCHIVE, "Tea.", "https://cdn.example/t.tgz", DIGEST))

    assert here.coverage is Coverage.ARCHIVE
    assert here.manifest is not None
    assert here.manifest.files == (ManifestFile(archive_uri("tea"), DIGEST, UNKNOWN_SIZE),)
    assert here == there


@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("CONF-20")
def test_files_without_digests_are_promised_by_nobody() -> None:
    entry = skill_entry(FilesEntry("tea", "Tea.", (SiteFile("SKILL.md"), SiteFile("references/a b.md"))))

    assert entry.manifest is None
    assert entry.dynamic_files == ("skill://tea/references/a%20b.md",)


@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("DISC-12")
@pytest.mark.requirement("CONF-22")
def test_files_with_digests_are_each_held_to_their_own() -> None:
    files = (SiteFile("SKILL.md", DIGEST), SiteFile("a.md", OTHER))
    entry = skill_entry(FilesEntry("tea", "Tea.", files, files_digest(files)))

    assert entry.coverage is Coverage.FILES
    assert entry.manifest is not None
    assert {line.uri: line.digest for line in entry.manifest.files} == {
        "skill://tea/SKILL.md": DIGEST,
        "skill://tea/a.md": OTHER,
    }


@pytest.mark.requirement("DISC-12")
def test_the_digest_of_a_skill_in_the_interim_form_is_over_sorted_lines() -> None:
    files = (SiteFile("b.md", OTHER), SiteFile("SKILL.md", DIGEST))
    lines = b"SKILL.md\0" + b"a" * 64 + b"\n" + b"b.md\0" + b"b" * 64 + b"\n"

    assert files_digest(files) == f"sha256:{hashlib.sha256(lines).hexdigest()}"


@pytest.mark.requirement("DISC-04")
@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("tea/SKILL.md", "https://example.org/.well-known/agent-skills/tea/SKILL.md"),
        ("/files/tea.zip", "https://example.org/files/tea.zip"),
        ("../tea.zip?v=2#top", "https://example.org/.well-known/tea.zip?v=2"),
        ("//cdn.example.net/tea.zip", "https://cdn.example.net/tea.zip"),
        ("https://cdn.example.net/tea.zip", "https://cdn.example.net/tea.zip"),
    ],
)
def test_a_url_is_resolved_against_that_of_the_index(reference: str, url: str) -> None:
    assert artifact_url(INDEX_URL, reference) == url


@given(
    st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,3}", fullmatch=True),
    st.sampled_from(["SKILL.md", "a/b c.md", "ä"]),
)
def test_a_uri_leads_back_to_the_name_and_the_path_it_was_made_of(name: str, path: str) -> None:
    uri = skill_entry(SiteEntry(name, ArtifactType.SKILL_MD, "d", "u", DIGEST)).uri.join(path)

    assert (name_in(uri), path_in(uri)) == (name, path)
    assert name_in(archive_uri(name)) == name
    assert file_url(INDEX_URL, name, "SKILL.md") == urljoin(INDEX_URL, f"{name}/SKILL.md")
