"""Directories that exist only because files lie in them: their children, and completing a path."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.entry import SkillEntry
from skillwire.core.media import DIRECTORY_MEDIA_TYPE
from skillwire.server.browse import children_of, completions, schemes_of, skill_around
from skillwire.sources import Snapshot
from skillwire.sources.snapshot import complete_nested_manifests
from talking import entry_with_files, skill


def snapshot(*entries: SkillEntry, folders: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot.of(complete_nested_manifests(entries), folders=folders)


def kinds(found: Snapshot, directory: str) -> dict[str, bool] | None:
    """Return the children by URI, and whether each is a directory; None when there is no directory."""
    children = children_of(found, directory)
    if children is None:
        return None
    return {child["uri"]: child["mimeType"] == DIRECTORY_MEDIA_TYPE for child in children}


OUTER = entry_with_files("acme/outer", ["a.md", "b/c.md", "b/d/e.md"])
INNER = entry_with_files("acme/outer/b/inner", ["f.md"])
OTHER = entry_with_files("acme-two/other", [])


@pytest.mark.requirement("DIR-01", "DIR-02")
def test_a_skill_lists_its_direct_children_alone() -> None:
    found = snapshot(OUTER, INNER, OTHER)

    assert kinds(found, "skill://acme/outer") == {
        "skill://acme/outer/SKILL.md": False,
        "skill://acme/outer/a.md": False,
        "skill://acme/outer/b": True,
    }
    assert kinds(found, "skill://acme/outer/b") == {
        "skill://acme/outer/b/c.md": False,
        "skill://acme/outer/b/d": True,
        "skill://acme/outer/b/inner": True,
    }


@pytest.mark.requirement("DIR-03")
@pytest.mark.parametrize(
    "uri",
    [
        "skill://nope",
        "skill://acm",
        "skill://acme/out",
        "skill://acme/outer/a.md",
        "skill://acme/outer/b/x",
        "other://acme",
    ],
)
def test_what_is_no_directory_has_no_children(uri: str) -> None:
    assert children_of(snapshot(OUTER, INNER), uri) is None


@pytest.mark.requirement("DIR-04")
def test_an_empty_folder_is_a_directory_without_children_at_any_depth() -> None:
    found = snapshot(OTHER, folders=("skill://acme-two/other/x", "skill://acme-two/other/x/y"))

    assert kinds(found, "skill://acme-two/other/x/y") == {}
    assert kinds(found, "skill://acme-two/other/x") == {"skill://acme-two/other/x/y": True}
    assert kinds(found, "skill://acme-two/other") == {
        "skill://acme-two/other/SKILL.md": False,
        "skill://acme-two/other/x": True,
    }


@pytest.mark.requirement("META-01")
def test_a_skill_file_is_described_as_the_skill() -> None:
    [described, *_] = children_of(snapshot(OUTER), "skill://acme/outer") or []

    assert (described["name"], described["description"]) == ("outer", "Use when testing outer.")


@pytest.mark.requirement("META-02")
def test_a_media_type_the_publisher_gave_is_kept() -> None:
    built = skill("x").with_reference("a.txt", "a", media_type="application/graphql")
    found = Snapshot.of([built.entry()], media_types={"skill://x/a.txt": "application/graphql"})

    types = {child["name"]: child["mimeType"] for child in children_of(found, "skill://x") or []}

    assert types["a.txt"] == "application/graphql"


words = st.sampled_from(["a", "b", "ab", "a-b", "a.b", "c0"])
paths = st.lists(words, min_size=1, max_size=3).map("/".join)
folders = st.dictionaries(paths, st.sets(paths.map(lambda path: f"{path}.md"), max_size=4), max_size=5)


def model(files: set[str], directory: str) -> dict[str, bool] | None:
    """Say what a directory holds, from the files' URIs alone."""
    below = [uri.removeprefix(f"{directory}/") for uri in files if uri.startswith(f"{directory}/")]
    return {f"{directory}/{rest.partition('/')[0]}": "/" in rest for rest in below} or None


@pytest.mark.requirement("DIR-02", "DIR-06")
@given(folders)
def test_every_directory_holds_what_the_uris_of_all_files_imply(tree: dict[str, set[str]]) -> None:
    taken = {f"{path}/{file}" for path, files in tree.items() for file in files}
    usable = {path: sorted(files) for path, files in tree.items() if not {path, f"{path}.md"} & taken}
    entries = [entry_with_files(f"top/{path}/s", files) for path, files in usable.items()]
    found = snapshot(*entries)
    uris = {uri for entry in found.entries if entry.manifest for uri in entry.manifest.uris}
    directories = {uri.rsplit("/", up)[0] for uri in uris for up in range(1, uri.count("/") - 1)}

    for directory in directories:
        assert kinds(found, directory) == model(uris, directory)


def test_completing_goes_one_level_at_a_time() -> None:
    found = snapshot(OUTER, INNER, OTHER)

    assert completions(found, "skill", "") == ["acme/", "acme-two/"] or completions(found, "skill", "") == [
        "acme-two/",
        "acme/",
    ]
    assert completions(found, "skill", "acme") == completions(found, "skill", "")
    assert completions(found, "skill", "acme/") == ["acme/outer/"]
    assert completions(found, "skill", "acme/outer/") == [
        "acme/outer/SKILL.md",
        "acme/outer/a.md",
        "acme/outer/b/",
    ]
    assert completions(found, "skill", "acme/outer/b/i") == ["acme/outer/b/inner/"]


@pytest.mark.parametrize("typed", ["nope", "acme/nope/", "/", "//", "../", "acme//", "acme/outer/a.md/"])
def test_what_leads_nowhere_completes_to_nothing(typed: str) -> None:
    assert completions(snapshot(OUTER), "skill", typed) == []


@pytest.mark.requirement("URI-06")
def test_schemes_are_kept_apart() -> None:
    hello = skill("acme/hello", scheme="github").entry()
    found = snapshot(OUTER, hello)

    assert schemes_of(found) == ["github", "skill"]
    assert kinds(found, "github://acme") == {"github://acme/hello": True}
    assert completions(found, "github", "acme/") == ["acme/hello/"]
    assert schemes_of(snapshot()) == []


class CountingLookups(dict[str, SkillEntry]):
    """Entries by URI that count how often one is looked up."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("segment", ["a/", "b/", "a", "/"])
def test_the_skill_around_a_long_uri_is_found_at_a_cost_linear_in_its_length(segment: str) -> None:
    deep = entry_with_files("/".join(["a"] * 40), [])
    by_uri = CountingLookups({deep.uri.text: deep})
    found = replace(Snapshot.of([deep]), by_uri=by_uri)
    started = time.process_time()

    skill_around(found, "skill://" + segment * 240_000)

    # A walk through all folders makes 240,000 lookups, each of a text of up to 480,000 characters.
    assert by_uri.lookups <= 41
    assert time.process_time() - started < 1.0


@given(st.integers(30, 45), st.sets(st.integers(1, 50), max_size=5), st.sampled_from(["", "/b", "-", "/a.b"]))
def test_below_many_folders_the_innermost_skill_is_found(depth: int, roots: set[int], rest: str) -> None:
    found = Snapshot.of(entry_with_files("/".join(["a"] * root), []) for root in {*roots, 50})
    directory = "skill://" + "/".join(["a"] * depth) + rest

    around = skill_around(found, directory)

    innermost = max((root for root in roots if root < depth or (root == depth and rest != "-")), default=0)
    assert (around.uri.path.count("/") + 1 if around else 0) == innermost
