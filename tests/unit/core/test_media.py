"""Media types: fitting, and the same on every machine."""

import mimetypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.media import DEFAULT_MEDIA_TYPE, DIRECTORY_MEDIA_TYPE, media_type_of


@pytest.mark.requirement("META-02")
@pytest.mark.parametrize("path", ["SKILL.md", "skill.MD", "nested/SKILL.md", "README.markdown"])
def test_markdown_is_text_markdown(path: str) -> None:
    assert media_type_of(path) == "text/markdown"


@pytest.mark.requirement("META-02")
@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("schema.graphql", "application/graphql"),
        ("scripts/extract.py", "text/x-python"),
        ("scripts/run.sh", "application/x-sh"),
        ("scripts/index.mjs", "text/javascript"),
        ("data/rows.csv", "text/csv"),
        ("data/config.yaml", "application/yaml"),
        ("data/config.toml", "application/toml"),
        ("data/settings.JSON", "application/json"),
        ("assets/logo.svg", "image/svg+xml"),
        ("assets/logo.PNG", "image/png"),
        ("assets/form.pdf", "application/pdf"),
        ("assets/page.html", "text/html"),
        ("notes.txt", "text/plain"),
        ("fix.patch", "text/x-diff"),
        ("archive.tar.gz", "application/gzip"),
        ("v1.2/notes.txt", "text/plain"),
        ("é.md", "text/markdown"),
        ("LICENSE", "text/plain"),
        ("docs/Makefile", "text/plain"),
        ("docker/Dockerfile", "text/plain"),
    ],
)
def test_a_file_has_the_media_type_its_name_suggests(path: str, media_type: str) -> None:
    assert media_type_of(path) == media_type


@pytest.mark.requirement("META-02")
@pytest.mark.parametrize(
    "path",
    ["", "/", ".", "..", "unknown", "a.unknown", "a.", "a.b/c", "md", ".md", "dir/.json", "x.md/", "a.md~"],
)
def test_a_name_that_says_nothing_means_plain_bytes(path: str) -> None:
    assert media_type_of(path) == DEFAULT_MEDIA_TYPE == "application/octet-stream"


def test_a_directory_has_a_media_type_no_file_has() -> None:
    assert DIRECTORY_MEDIA_TYPE == "inode/directory"
    assert media_type_of("directory") != DIRECTORY_MEDIA_TYPE


@pytest.mark.requirement("META-02")
def test_the_machines_own_type_database_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in (".md", ".graphql"):
        monkeypatch.setitem(mimetypes.types_map, suffix, "application/x-surprise")

    assert media_type_of("SKILL.md") == "text/markdown"
    assert media_type_of("schema.graphql") == "application/graphql"


@given(st.text(st.characters()))
def test_any_name_has_a_media_type(path: str) -> None:
    kind, slash, subtype = media_type_of(path).partition("/")

    assert (bool(kind), slash, bool(subtype)) == (True, "/", True)
