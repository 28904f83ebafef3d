"""A host that wants only skills at the top: what lies inside others is left out, and said so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.entry import SkillEntry
from skillwire.host.model.errors import NestedSkillError, UnknownReferenceError
from skillwire.host.model.naming import enclosing, top_level
from skillwire.host.registry.registry import Registry
from unit.host.registry.remotes import MemoryRemote
from unit.host.registry.test_registry import opened, references

OUTER, INNER, DEEP = "skill://acme/refunds", "skill://acme/refunds/eu", "skill://acme/refunds/eu/vat"
BESIDE = "skill://acme/refunds-old"

PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.requirement("ASK-02")
async def test_skills_inside_others_are_used_unless_somebody_does_not_want_them() -> None:
    remote = MemoryRemote("shop", OUTER, INNER, DEEP, BESIDE)

    async with opened(Registry([remote])) as registry:
        everything = await registry.refresh()
    async with opened(Registry([remote], top_level_only=True)) as registry:
        some = await registry.refresh()

    assert references(everything) == ["shop/eu", "shop/refunds", "shop/refunds-old", "shop/vat"]
    assert everything.hidden == ()
    assert references(some) == ["shop/refunds", "shop/refunds-old"]
    assert [(hidden.code, hidden.subject) for hidden in some.hidden] == [
        ("nested-skill", f"shop/{INNER}/SKILL.md"),
        ("nested-skill", f"shop/{DEEP}/SKILL.md"),
    ]
    assert all(OUTER in hidden.detail for hidden in some.hidden)


@pytest.mark.requirement("ASK-02")
async def test_a_nested_skill_is_not_had_by_its_uri_either() -> None:
    remote = MemoryRemote("shop", OUTER, INNER, unlisted=[DEEP, "skill://acme/free"])

    async with opened(Registry([remote], top_level_only=True)) as registry:
        await registry.refresh()
        for reference in (f"shop/{INNER}", f"shop/{DEEP}/SKILL.md"):
            with pytest.raises(NestedSkillError) as caught:
                await registry.resolve(reference)
            assert caught.value.refusal == "nested-skill"
        with pytest.raises(UnknownReferenceError):
            await registry.resolve("shop/eu")
        free = await registry.resolve("shop/skill://acme/free")
        view = registry.view

    assert free.reference == "shop/skill://acme/free"
    assert references(view) == ["shop/refunds", "shop/skill://acme/free"]


@pytest.mark.requirement("ASK-02")
async def test_what_is_left_out_makes_no_reference_longer() -> None:
    remote = MemoryRemote("shop", OUTER, f"{OUTER}/refunds")

    async with opened(Registry([remote], top_level_only=True)) as registry:
        view = await registry.refresh()

    assert references(view) == ["shop/refunds"]
    assert view.collisions == ()


@given(st.lists(PATHS, unique=True, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_a_listing_plays_no_part(paths: list[str], random: object) -> None:
    listed = {f"skill://{path}/SKILL.md": path for path in paths}

    kept, nested = top_level(listed)

    assert {**kept, **dict.fromkeys(nested, "")}.keys() == listed.keys()
    assert top_level(dict(reversed(listed.items()))) == (kept, nested)
    for path in kept.values():
        assert not any(path.startswith(f"{other}/") for other in paths)
    for uri, around in nested.items():
        assert listed[uri].startswith(f"{listed[around]}/")
        assert enclosing(around, listed) is None


def test_nothing_is_inside_itself() -> None:
    entries: dict[str, SkillEntry | None] = {f"{OUTER}/SKILL.md": None}

    assert top_level(entries) == (entries, {})
