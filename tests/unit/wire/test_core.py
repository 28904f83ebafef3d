"""The `core` dialect: entries, resources and contents as they go over the wire."""

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry, parse_entry
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.core import directory_resource, file_contents, file_resource, skill_resource, write_entry

DIGEST = "sha256:" + "0" * 64

segments = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\.%", exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=8,
)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def entry_of(
    paths: list[list[str]], extra: dict[str, JsonValue], sizes: list[int], *, dynamic: bool = False
) -> SkillEntry:
    uri = SkillUri.build("acme/hello")
    fields: dict[str, JsonValue] = {**extra, "name": "hello", "description": "Use when testing."}
    files = {uri.text: 10}
    files |= {uri.join("/".join(path)): size for path, size in zip(paths, sizes, strict=False)}
    lines = [ManifestFile(file, DIGEST, size) for file, size in files.items()]
    return SkillEntry(uri, Frontmatter(fields), None if dynamic else Manifest.of(lines))


entries = st.builds(
    entry_of,
    st.lists(st.lists(segments, min_size=1, max_size=3), max_size=5),
    st.dictionaries(st.text(max_size=8), json_values, max_size=4),
    st.lists(st.integers(0, 2**53), min_size=5, max_size=5),
    dynamic=st.booleans(),
)


@pytest.mark.requirement("LIST-03", "LIST-04", "LIST-08")
@given(entries)
def test_an_entry_written_fast_says_what_the_entry_says(entry: SkillEntry) -> None:
    written = json.loads(write_entry(entry))

    assert written == entry.to_json()
    assert list(written) == ["uri", "frontmatter", "resources"]
    assert list(written["frontmatter"]) == list(entry.frontmatter.fields)


def test_an_entry_of_a_stranger_is_passed_on_with_spellings_and_unknown_fields() -> None:
    received = {
        "uri": "skill://%61cme/hello/SKILL.md",
        "frontmatter": {"name": "hello", "description": "Use when testing."},
        "resources": [{"uri": "skill://%61cme/hello/SKILL.md", "digest": DIGEST, "size": 3, "note": "n"}],
        "rank": 7,
    }

    assert json.loads(write_entry(parse_entry(received))) == received


def test_one_unusual_line_makes_no_other_line_unusual() -> None:
    received = {
        "uri": "skill://acme/hello/SKILL.md",
        "frontmatter": {"name": "hello", "description": "Use when testing."},
        "resources": [
            {"uri": "skill://acme/hello/SKILL.md", "digest": DIGEST, "size": 3},
            {"uri": "skill://acme/hello/a%2eb.md", "digest": DIGEST, "size": 3},
        ],
    }

    assert json.loads(write_entry(parse_entry(received))) == received


@pytest.mark.requirement("META-01", "META-05")
def test_a_skill_is_a_resource_with_its_own_name_and_description() -> None:
    entry = entry_of([], {}, [])

    assert skill_resource(entry, modified=1_700_000_000.9) == {
        "uri": "skill://acme/hello/SKILL.md",
        "name": "hello",
        "description": "Use when testing.",
        "mimeType": "text/markdown",
        "size": 10,
        "annotations": {"audience": ["assistant"], "priority": 0.8, "lastModified": "2023-11-14T22:13:20Z"},
    }


@pytest.mark.requirement("META-05")
def test_nothing_is_said_that_is_not_known() -> None:
    dynamic = skill_resource(entry_of([], {}, [], dynamic=True))

    assert "size" not in dynamic
    assert dynamic["annotations"] == {"audience": ["assistant"], "priority": 0.8}


@pytest.mark.requirement("META-02", "META-05", "DIR-01")
def test_files_and_directories_go_by_their_decoded_names() -> None:
    assert file_resource("skill://a/x%20y.md", media_type="text/markdown", size=0) == {
        "uri": "skill://a/x%20y.md",
        "name": "x y.md",
        "mimeType": "text/markdown",
        "size": 0,
        "annotations": {"audience": ["assistant"], "priority": 0.3},
    }
    assert directory_resource("skill://a/x%20y") == {
        "uri": "skill://a/x%20y",
        "name": "x y",
        "mimeType": "inode/directory",
    }


@pytest.mark.requirement("READ-08")
@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_every_content_survives_the_wire_and_is_text_when_it_can_be(content: bytes) -> None:
    item = json.loads(json.dumps(file_contents("skill://a/x", media_type="text/plain", content=content)))

    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        assert item.keys() == {"uri", "mimeType", "blob"}
        assert b64decode(item["blob"], validate=True) == content
    else:
        assert item.keys() == {"uri", "mimeType", "text"}
        assert item["text"].encode() == content
