"""The pointer to skills in a server's instructions: what it names, how long it gets, what it lets through."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.entry import SkillEntry
from skillwire.core.skill import Skill
from skillwire.server.visibility import SHORTEST_LENGTH, pointer_to


def entry(path: str, description: str) -> SkillEntry:
    return Skill(path.rpartition("/")[2], path=path, description=description, body="Do it.\n").entry()


@pytest.mark.requirement("ASK-16")
def test_each_skill_is_named_with_its_description_and_its_uri() -> None:
    skills = [entry("tea", "Brews tea. Use when thirsty."), entry("acme/refunds", "Pays back.")]

    lines = pointer_to(skills).split("\n")

    assert "2 Agent Skills" in lines[0]
    assert lines[1:] == [
        "- refunds: Pays back. (skill://acme/refunds/SKILL.md)",
        "- tea: Brews tea. Use when thirsty. (skill://tea/SKILL.md)",
    ]


@pytest.mark.requirement("ASK-16")
def test_without_skills_there_is_nothing_to_point_to() -> None:
    assert pointer_to([]) == ""


@pytest.mark.requirement("ASK-16")
def test_what_does_not_fit_is_counted() -> None:
    skills = [entry(f"skill-{number:03}", "Does something. " * 5) for number in range(300)]

    text = pointer_to(skills, most=1000)

    named = text.count("(skill://")
    assert len(text) <= 1000
    assert named > 3
    assert text.endswith(f"\n- and {300 - named} more: skills/list lists all of them.")


@pytest.mark.requirement("ASK-16")
@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=400).filter(str.strip),
        min_size=1,
        max_size=8,
    ),
    st.integers(SHORTEST_LENGTH, 3000),
)
def test_whatever_authors_write_takes_one_line_and_no_more_than_its_room(
    descriptions: list[str], most: int
) -> None:
    skills = [entry(f"skill-{number}", text[:1024]) for number, text in enumerate(descriptions)]

    text = pointer_to(skills, most=most)

    assert len(text) <= most
    assert len(text.split("\n")) == 1 + text.count("\n- ")
    assert not set(text) & set("\r\t\x1b\u202e\u200b\u2028")


@pytest.mark.requirement("ASK-16")
def test_a_uri_is_never_cut() -> None:
    text = pointer_to([entry("a" * 300 + "/tea", "Brews.")])

    assert text.endswith("- tea: Brews. (skills/list has the URI)")


def test_too_little_room_is_refused() -> None:
    with pytest.raises(ValueError, match="most"):
        pointer_to([], most=SHORTEST_LENGTH - 1)
