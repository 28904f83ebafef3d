"""Names of skills where a name is the key: unique, valid, and the same every time."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.fields import is_name
from skillwire.core.uri import SkillUri
from skillwire.server.dialects.base import SkillNames, names_of
from skillwire.sources import Snapshot

names = st.from_regex(r"[a-z0-9]{1,3}(-[a-z0-9]{1,2})?", fullmatch=True)
folders = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\", exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=5,
).filter(lambda text: text.strip(".") == text and bool(text))


def entry(path: str, scheme: str = "skill") -> SkillEntry:
    uri = SkillUri.build(path, scheme=scheme)
    return SkillEntry(uri, Frontmatter({"name": uri.name, "description": "Use when testing."}), None)


def named(*entries: SkillEntry) -> dict[str, str]:
    return {uri.removesuffix("/SKILL.md"): name for uri, name in names_of(Snapshot.of(entries)).items()}


@pytest.mark.requirement("P2076-11", "CONF-12")
def test_where_names_repeat_every_member_is_called_by_its_path() -> None:
    assert named(
        entry("acme/billing/refunds"), entry("acme/support/refunds"), entry("refunds"), entry("acme/tea")
    ) == {
        "skill://acme/billing/refunds": "acme-billing-refunds",
        "skill://acme/support/refunds": "acme-support-refunds",
        "skill://refunds": "refunds",
        "skill://acme/tea": "tea",
    }


@pytest.mark.requirement("P2076-11")
def test_paths_that_give_one_name_are_told_apart_by_their_uris() -> None:
    found = named(entry("a/b/tea"), entry("a-b/tea"))

    digits = {
        place: hashlib.sha256(f"0 {place}/SKILL.md".encode()).hexdigest()[:8]
        for place in ("skill://a/b/tea", "skill://a-b/tea")
    }
    assert found == {place: f"a-b-tea-{tail}" for place, tail in digits.items()}


@pytest.mark.requirement("P2076-11")
def test_a_path_never_takes_the_name_that_another_skill_has() -> None:
    found = named(entry("a/tea"), entry("b/tea"), entry("x/a-tea"))

    assert found["skill://x/a-tea"] == "a-tea"
    assert found["skill://b/tea"] == "b-tea"
    assert found["skill://a/tea"].startswith("a-tea-")


@pytest.mark.requirement("P2076-11", "EXEC-02")
def test_a_skill_cannot_be_named_after_the_hash_of_another() -> None:
    place = "skill://a/tea/SKILL.md"
    stolen = f"a-tea-{hashlib.sha256(f'0 {place}'.encode()).hexdigest()[:8]}"

    found = named(entry("a/tea"), entry("b/tea"), entry("x/a-tea"), entry(f"x/{stolen}"))

    assert found[f"skill://x/{stolen}"] == stolen
    assert len(set(found.values())) == 4


@pytest.mark.requirement("EXEC-02")
def test_a_long_or_unusual_path_still_gives_a_name_by_the_rules() -> None:
    found = named(entry(f"{'long-' * 20}x/tea"), entry("Ä ö/tea"), entry("!/tea"))

    assert all(is_name(name) for name in found.values())
    assert len(set(found.values())) == 3


def test_schemes_alone_are_enough_to_differ() -> None:
    found = named(entry("tea"), entry("tea", scheme="acme"))

    assert len(set(found.values())) == 2
    assert all(is_name(name) for name in found.values())


@pytest.mark.requirement("P2076-11", "CONF-12")
@given(st.lists(st.tuples(st.lists(folders, max_size=2), names), max_size=12), st.randoms())
def test_names_are_unique_valid_reversible_and_do_not_depend_on_order(
    paths: list[tuple[list[str], str]], shuffler: random.Random
) -> None:
    entries = list(
        {e.uri.text: e for e in (entry("/".join([*above, name])) for above, name in paths)}.values()
    )
    snapshot = Snapshot.of(entries)
    shuffler.shuffle(entries)

    known = SkillNames(snapshot)

    assert known.by_uri == names_of(Snapshot.of(entries))
    assert len(set(known.by_uri.values())) == len(entries)
    for one in snapshot.entries:
        assert is_name(known.of(one))
        assert known.find(known.of(one)) is one
    assert known.find("Nobody") is None
