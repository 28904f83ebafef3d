"""Manifests: what each line promises, and what breaks the promise."""

import dataclasses
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.errors import (
    DigestMismatchError,
    SizeMismatchError,
    SkillError,
    UnlistedFileError,
    VerificationError,
)
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile, digest_of, is_digest

properties = settings(deadline=None, max_examples=100)

URI = "skill://acme/demo/SKILL.md"
EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.requirement("INT-01")
def test_a_digest_is_the_sha256_of_the_raw_bytes_in_lowercase() -> None:
    assert digest_of(b"") == EMPTY
    assert digest_of(b"a\r\n\xff") == "sha256:" + hashlib.sha256(b"a\r\n\xff").hexdigest()


@pytest.mark.requirement("INT-01")
@pytest.mark.parametrize(
    "text",
    [
        *("", "sha256:", EMPTY.upper(), EMPTY.replace("e3b0", "E3b0"), EMPTY[:-1], EMPTY + "0", EMPTY + "\n"),
        *(
            EMPTY.replace("sha256:", ""),
            EMPTY.replace("sha256:", "SHA256:"),
            EMPTY.replace("sha256:", "sha256-"),
        ),
        *("sha512:" + "0" * 128, "sha512:" + "0" * 64, "sha1:" + "0" * 40, "md5:" + "0" * 32, " " + EMPTY),
        *("sha256:" + "g" * 64, "sha256:" + "٠" * 64, None, 0, True, b"sha256:" + b"0" * 64, [EMPTY]),
    ],
    ids=repr,
)
def test_any_other_form_is_no_digest(text: object) -> None:
    assert is_digest(EMPTY)
    assert not is_digest(text)


@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("FMT-11")
@pytest.mark.parametrize("content", [b"", b"text", b"\xef\xbb\xbf---\r\n", b"\x00\xff" * 1000])
def test_the_bytes_a_line_was_made_of_keep_its_promise(content: bytes) -> None:
    file = ManifestFile.of(URI, content)

    file.verify(content)

    assert file == ManifestFile(URI, digest_of(content), len(content))


@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-11")
@properties
@given(st.binary(min_size=1), st.data())
def test_one_flipped_bit_is_found(content: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(DigestMismatchError) as caught:
        ManifestFile.of(URI, content).verify(bytes(flipped))

    assert (caught.value.uri, caught.value.refusal) == (URI, "digest-mismatch")


@pytest.mark.requirement("INT-03")
@pytest.mark.requirement("INT-11")
@pytest.mark.parametrize("content", [b"", b"tex", b"text\n", b"text" * 2])
def test_another_length_is_named_as_such_before_any_digest(content: bytes) -> None:
    with pytest.raises(SizeMismatchError) as caught:
        ManifestFile(URI, digest_of(content), 4).verify(content)

    assert (caught.value.uri, caught.value.refusal) == (URI, "size-mismatch")


def test_every_broken_promise_is_a_verification_error() -> None:
    kinds = (SizeMismatchError, DigestMismatchError, UnlistedFileError)

    assert all(issubclass(kind, VerificationError) and issubclass(kind, SkillError) for kind in kinds)


def test_a_manifest_is_sorted_by_uri_whatever_order_the_files_came_in() -> None:
    files = [
        ManifestFile.of(f"skill://demo/{name}", name.encode()) for name in ("b", "SKILL.md", "a/z", "a-")
    ]

    manifest = Manifest.of(files)

    assert manifest == Manifest.of(reversed(files))
    assert [file.uri for file in manifest.files] == sorted(file.uri for file in files)
    assert set(manifest.files) == set(files)
    assert (len(manifest), manifest.total_size) == (4, sum(file.size for file in files))


@pytest.mark.requirement("INT-04")
def test_only_a_listed_file_is_part_of_the_skill() -> None:
    listed = [
        ManifestFile.of(f"skill://demo/{name}", name.encode()) for name in ("SKILL.md", "a.md", "b/c.md")
    ]
    manifest = Manifest.of(listed)

    found = [manifest.find(file.uri) for file in listed]

    assert found == listed
    assert [manifest.require(file.uri) for file in listed] == listed
    for unlisted in (
        "skill://demo/",
        "skill://demo/a",
        "skill://demo/a.md/",
        "skill://demo/z",
        "skill://demo/A.md",
        "",
    ):
        assert manifest.find(unlisted) is None
        with pytest.raises(UnlistedFileError) as caught:
            manifest.require(unlisted)
        assert (caught.value.uri, caught.value.refusal) == (unlisted, "unlisted-file")


def test_an_empty_manifest_has_no_files() -> None:
    manifest = Manifest.of([])

    assert (manifest.files, len(manifest), manifest.total_size) == ((), 0, 0)
    assert manifest.find(URI) is None


def test_the_publishers_spelling_and_unknown_fields_are_kept_but_are_no_part_of_the_identity() -> None:
    plain = ManifestFile.of("skill://demo/a%20b", b"x")
    spelled = dataclasses.replace(plain, spelling="skill://demo/%61%20b", extra={"_meta": {"x": 1}})
    other = ManifestFile.of("skill://demo/c", b"y")

    manifest = Manifest.of([other, spelled])

    assert manifest == Manifest.of([plain, other])
    assert hash(manifest) == hash(Manifest.of([plain, other]))
    assert [(file.published, file.extra) for file in manifest.files] == [
        ("skill://demo/%61%20b", {"_meta": {"x": 1}}),
        ("skill://demo/c", None),
    ]


def test_manifests_cannot_be_changed() -> None:
    manifest = Manifest.of([ManifestFile.of(URI, b"x")])

    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.base = ""  # pyright: ignore[reportAttributeAccessIssue]  # that is the point
    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.files[0].size = 2  # pyright: ignore[reportAttributeAccessIssue]  # that is the point


def test_the_limits_are_those_of_the_extension() -> None:
    assert (MAX_FILES, MAX_TOTAL_SIZE) == (512, 16_777_216)


@properties
@given(st.dictionaries(st.text("abc/", min_size=1, max_size=5), st.binary(max_size=5), max_size=8))
def test_a_manifest_finds_exactly_what_it_was_made_of(files: dict[str, bytes]) -> None:
    manifest = Manifest.of(ManifestFile.of(uri, content) for uri, content in files.items())

    assert {uri: manifest.find(uri) for uri in files} == {
        uri: ManifestFile.of(uri, content) for uri, content in files.items()
    }
    assert manifest.total_size == sum(map(len, files.values()))
