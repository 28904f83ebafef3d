"""Names of synced folders: with the origin, within the rules of agents, and never two alike."""

import re
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.bridge.folder_names import MAX_NAME, agent_of, folder_names, needs_own_name, with_name
from skillwire.core import InvalidSkillError, parse_skill_md
from skillwire.host import Origin, OriginKind, SkillId

RULES = re.compile(r"[a-z0-9]+(-{1,2}[a-z0-9]+)*")


def skill(path: str, label: str = "team") -> SkillId:
    return SkillId(Origin(OriginKind.SERVER, label, "sha256:" + "0" * 64), f"skill://{path}/SKILL.md")


def names(*skills: SkillId) -> list[str]:
    found = folder_names(skills)
    return [found[each] for each in skills]


def test_a_name_is_the_label_and_the_skills_name_or_its_path_where_a_name_repeats() -> None:
    assert names(skill("acme/refunds")) == ["team--refunds"]
    assert names(skill("billing/refunds"), skill("shop/refunds"), skill("triage")) == [
        "team--billing--refunds",
        "team--shop--refunds",
        "team--triage",
    ]
    assert names(skill("refunds"), skill("refunds", "other")) == ["team--refunds", "other--refunds"]


@pytest.mark.parametrize(
    ("path", "start"),
    [("Refunds", "team--refunds-"), ("a--b", "team--a-b-"), ("a_b", "team--a-b-"), ("l" * 80, "team--lll")],
)
def test_what_an_agent_would_not_accept_is_replaced_or_cut_and_marked(path: str, start: str) -> None:
    [name] = names(skill(path))

    assert name.startswith(start) and len(name) <= MAX_NAME
    assert re.search(r"-[0-9a-f]{8}$", name)
    assert names(skill(path)) == [name]


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[A-Za-z0-9_-]{1,6}(/[A-Za-z0-9_.-]{1,70}){0,2}", fullmatch=True),
            st.sampled_from(["team", "Team", "a--b"]),
        ),
        max_size=8,
        unique=True,
    )
)
def test_names_differ_and_follow_the_rules_whatever_servers_call_their_skills(
    found: list[tuple[str, str]],
) -> None:
    skills = [skill(path, label) for path, label in found]
    by_skill = folder_names(skills)

    assert len(set(by_skill.values())) == len(set(skills))
    assert all(RULES.fullmatch(name) and len(name) <= MAX_NAME for name in by_skill.values())
    assert by_skill == folder_names(list(reversed(skills)))


@pytest.mark.parametrize(
    ("path", "agent", "own"),
    [
        ("/p/.claude/skills", "claude", False),
        ("/home/u/.agents/skills", "agents", True),
        ("/p/.codex/skills", "codex", True),
        ("/p/.cursor/skills", "cursor", True),
        ("/p/.gemini/skills", "gemini", True),
        ("/p/skills", "", True),
    ],
)
def test_claude_code_alone_shows_the_folders_name_so_that_its_files_stay_exact(
    path: str, agent: str, own: bool
) -> None:
    assert (agent_of(PurePath(path)), needs_own_name(PurePath(path))) == (agent, own)


FRONTMATTERS = {
    "plain": b"---\nname: refunds\ndescription: Use.\n---\n\nBody: name: refunds\n",
    "quoted": b"---\ndescription: 'Use.'\nname: \"refunds\" # the name\n---\nBody\n",
    "crlf": b"---\r\nname: refunds\r\ndescription: Use.\r\n---\r\nBody\r\n",
    "byte-order-mark": b"\xef\xbb\xbf---\nname: refunds\ndescription: \xc3\xa4\xf0\x9f\x98\x80\n---\nBody",
    "folded": b"---\nname: >-\n  refunds\ndescription: Use.\n---\nBody",
    "flow": b'---\n{"name": "refunds", description: Use.}\n---\nBody',
    "nested": b"---\nmetadata:\n  name: inner\nname: refunds\ndescription: Use.\n---\nBody",
}


@pytest.mark.parametrize("form", FRONTMATTERS)
def test_only_the_value_of_the_name_is_replaced_however_it_is_written(form: str) -> None:
    content = FRONTMATTERS[form]
    before = parse_skill_md(content)

    changed, original = with_name(content, "team--refunds")

    after = parse_skill_md(changed)
    assert original == "refunds"
    assert after.body == before.body
    assert dict(after.frontmatter.fields) == {**before.frontmatter.fields, "name": "team--refunds"}
    assert with_name(changed, "team--refunds") == (changed, "")


def test_a_file_without_a_name_gets_one() -> None:
    assert with_name(b"---\ndescription: Use.\n---\nBody", "team--refunds") == (
        b"---\nname: team--refunds\ndescription: Use.\n---\nBody",
        "team--refunds",
    )


def test_a_name_that_cannot_be_replaced_alone_is_refused() -> None:
    with pytest.raises(InvalidSkillError):
        with_name(b"---\n{description: Use.}\n---\nBody", "team--refunds")
