"""Looking up what somebody asks for: by name, then path, then stem or alias; never by joining paths."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.uri import last_segment, matching, stem_of

PATHS = [
    "scripts/plot.py",
    "scripts/plot.sh",
    "scripts/load.py",
    "scripts/sub/load.py",
    "references/guide.md",
]


def look_up(wanted: str, aliases: dict[str, Sequence[str]] | None = None) -> list[str]:
    return matching(PATHS, wanted, path_of=str, aliases_of=lambda path: (aliases or {}).get(path, ()))


@pytest.mark.requirement("EXEC-06")
@pytest.mark.parametrize(
    ("wanted", "hits"),
    [
        ("plot.py", ["scripts/plot.py"]),
        ("scripts/plot.py", ["scripts/plot.py"]),
        ("guide", ["references/guide.md"]),
        ("plot", ["scripts/plot.py", "scripts/plot.sh"]),
        ("load.py", ["scripts/load.py", "scripts/sub/load.py"]),
        ("scripts/sub/load.py", ["scripts/sub/load.py"]),
        ("scripts/../scripts/plot.py", []),
        ("./scripts/plot.py", []),
        ("/scripts/plot.py", []),
        ("Plot.py", []),
        ("plot.p", []),
        ("", []),
    ],
)
def test_a_name_comes_before_a_path_and_a_path_before_a_stem(wanted: str, hits: list[str]) -> None:
    assert look_up(wanted) == hits


@pytest.mark.requirement("EXEC-06")
def test_an_alias_counts_like_a_stem_and_never_shadows_a_name() -> None:
    aliases: dict[str, Sequence[str]] = {"scripts/plot.sh": ["draw", "plot.py"], "scripts/load.py": ["guide"]}

    assert look_up("draw", aliases) == ["scripts/plot.sh"]
    assert look_up("plot.py", aliases) == ["scripts/plot.py"]
    assert look_up("guide", aliases) == ["scripts/load.py", "references/guide.md"]


def test_names_can_be_told_apart_from_paths() -> None:
    items = [("first", "a/1"), ("second", "a/2")]

    hits = matching(items, "second", path_of=lambda item: item[1], name_of=lambda item: item[0])

    assert hits == [("second", "a/2")]


@pytest.mark.parametrize(
    ("name", "stem"), [("a.py", "a"), ("a.b.py", "a.b"), ("run", "run"), (".env", ".env"), ("a.", "a")]
)
def test_a_stem_is_a_name_without_its_last_suffix(name: str, stem: str) -> None:
    assert stem_of(name) == stem
    assert last_segment(f"scripts/{name}") == name


@given(st.text(max_size=30))
def test_only_listed_items_are_ever_found(wanted: str) -> None:
    assert set(look_up(wanted)) <= set(PATHS)
