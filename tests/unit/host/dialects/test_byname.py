"""What a host makes up for skills that have only names: URIs, and files that say what the server said."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skillwire.core.dialects import Dialect
from skillwire.core.entry import check_entry
from skillwire.core.errors import LimitError, NotFoundError
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri
from skillwire.host.calls.listing import Listing, RefusedEntry
from skillwire.host.dialects import by_name, prompt
from skillwire.host.dialects.named_skills import (
    NamedSkill,
    NamedSkills,
    ParseNamedSkill,
    build_named_skill,
    joined,
    uri_for_name,
    without_nested,
)
from skillwire.host.model.errors import InvalidAnswerError

# Any text JSON can carry, among it half of a surrogate pair.
texts = st.text(st.characters(exclude_categories=()), max_size=60)
odd = st.sampled_from(
    ["---\n", "\n---\nx", "a: b", "\x00\x85\u2028\ufeff", "null", "'\"\\", "\r", "#", "\ud800"]
)
anything = st.one_of(texts, odd, st.tuples(odd, texts).map("".join))
names = st.one_of(
    st.from_regex(r"[a-z0-9]{1,5}(-[a-z0-9]{1,3}){0,2}(/[a-z0-9]{1,4}){0,2}", fullmatch=True), texts
)
items: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": names, "description": anything},
    optional={
        "title": anything,
        "version": anything,
        "tags": st.lists(anything, max_size=4),
        "keywords": st.lists(anything, max_size=4),
        "arguments": st.lists(st.fixed_dictionaries({"name": texts, "required": st.booleans()}), max_size=2),
        "uri": texts,
        "resources": texts,
    },
)


def card_called(name: str) -> NamedSkill:
    card, findings = build_named_skill(name, description="Use when asked.")
    assert card is not None and findings == []
    return card


def listing_of(*called: str) -> Listing:
    return Listing(tuple(card_called(name).entry() for name in called), dialect=Dialect.PRIMITIVE)


@given(item=items, instructions=anything)
@example(item={"name": "null", "description": "---"}, instructions="---\nname: other\n---\n")
@example(item={"name": "1e3", "description": "\x00", "title": "\ufffe"}, instructions="")
@example(
    item={"name": "a", "description": "x" * 1024, "tags": ["\x85" * 256] * 256}, instructions="\ufeff---"
)
@pytest.mark.parametrize(
    "read_card", [by_name.parse_primitive_skill, by_name.parse_exec_skill, prompt.parse_named_skill]
)
def test_a_composed_file_says_exactly_what_was_listed_whatever_a_stranger_sends(
    read_card: ParseNamedSkill, item: dict[str, Any], instructions: str
) -> None:
    card, findings = read_card(item)
    if card is None or any(finding.is_error for finding in findings):
        assert findings
        return
    try:
        content = card.skill_md(instructions, max_bytes=MAX_TOTAL_SIZE)
    except InvalidAnswerError:
        assert re.search("[\ud800-\udfff]", instructions)
        return

    document = parse_skill_md(content)

    assert card.frontmatter.differences(document.frontmatter) == []
    assert document.frontmatter == card.frontmatter
    assert document.body.encode() == instructions.encode()


@given(item=items)
def test_an_entry_that_is_listed_is_one_that_the_released_extension_allows_too(
    item: dict[str, Any],
) -> None:
    card, findings = by_name.parse_exec_skill(item)
    if card is None or any(finding.is_error for finding in findings):
        return

    entry, remarks = check_entry(card.entry().to_json())

    assert [remark for remark in remarks if remark.is_error] == []
    assert entry is not None and entry.is_dynamic and not entry.is_summary
    assert entry.uri == card.uri


@pytest.mark.requirement("CONF-12")
@pytest.mark.parametrize(
    ("name", "uri"),
    [("refunds", "skill://refunds/SKILL.md"), ("acme/refunds", "skill://acme/refunds/SKILL.md")],
)
def test_a_name_becomes_a_uri_and_the_uri_leads_back(name: str, uri: str) -> None:
    made = uri_for_name(name)

    assert made == SkillUri.parse(uri)
    assert NamedSkills().skill_at(SkillUri.parse(uri)).remote_name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "A",
        "a b",
        "a_b",
        "../a",
        "a/../b",
        "a//b",
        "-a",
        "a--b",
        "é",
        "a\n",
        "x" * 65,
        "a%2fb",
    ],
)
def test_a_name_no_skill_may_have_is_refused_with_a_finding(name: str) -> None:
    made = uri_for_name(name)

    assert isinstance(made, Finding)
    assert (made.code, made.is_error) == ("name-invalid", True)
    assert "\n" not in made.message and len(made.message) < 300


@pytest.mark.parametrize(
    "uri",
    ["skill://A/SKILL.md", "mcp://a/SKILL.md", "skill://a%20b/SKILL.md", "skill://a_b/SKILL.md"],
)
def test_a_uri_that_no_name_becomes_is_not_found(uri: str) -> None:
    with pytest.raises(NotFoundError):
        NamedSkills().skill_at(SkillUri.parse(uri))


def test_a_skill_whose_name_lies_inside_anothers_is_refused_in_its_own_place() -> None:
    refused = RefusedEntry(1, None, ())
    listing = listing_of("a/b", "a", "b", "a/b/c", "ab")
    with_refused = Listing(listing.entries, (refused,), dialect=Dialect.PRIMITIVE)

    found = without_nested(with_refused)

    assert [entry.uri.path for entry in found.entries] == ["a", "b", "ab"]
    assert [(entry.position, entry.uri) for entry in found.refused] == [
        (0, "skill://a/b/SKILL.md"),
        (1, None),
        (4, "skill://a/b/c/SKILL.md"),
    ]
    assert {finding.code for entry in found.refused for finding in entry.findings} == {"uri-overlap"}
    assert without_nested(listing_of("a", "b")) == listing_of("a", "b")


def test_a_composed_file_has_a_limit() -> None:
    card = card_called("refunds")
    size = len(card.skill_md("text", max_bytes=1000))

    assert card.skill_md("text", max_bytes=size)
    with pytest.raises(LimitError):
        card.skill_md("text", max_bytes=size - 1)


def test_a_description_may_be_missing_and_is_not_made_up() -> None:
    card, findings = build_named_skill("refunds", description="  \n")

    assert findings == []
    assert card is not None and card.frontmatter.fields == {"name": "refunds"}


def test_a_description_that_is_too_long_is_refused_and_a_long_title_left_out() -> None:
    _, findings = build_named_skill("refunds", description="x" * 1025)
    card, fine = build_named_skill(
        "refunds", description="x", metadata={"title": "x" * 1025, "tags": joined(["a", "b"])}
    )

    assert [finding.code for finding in findings] == ["description-too-long"]
    assert fine == []
    assert card is not None and card.frontmatter.fields["metadata"] == {"tags": "a, b"}


def test_what_an_item_says_never_replaces_a_member_of_its_entry() -> None:
    item: dict[str, Any] = {
        "name": "refunds",
        "description": "Use when asked.",
        "uri": "skill://evil/SKILL.md",
        "frontmatter": {"name": "evil"},
        "resources": [],
        "dependencies": {"tools": ["pay"]},
        "new": 1,
    }

    card, _ = by_name.parse_primitive_skill(item)

    assert card is not None
    entry = card.entry(["skill://refunds/a.md"])
    assert entry.to_json()["uri"] == "skill://refunds/SKILL.md"
    assert entry.to_json()["resources"] == "dynamic"
    assert entry.extra == {"dependencies": {"tools": ["pay"]}, "new": 1}
    assert entry.dynamic_files == ("skill://refunds/a.md",)
