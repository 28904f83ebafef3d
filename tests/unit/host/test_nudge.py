"""Nudges: which skills a hint before a tool call names, and which it never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.characters import visible
from skillwire.host.listing.context import MOST_NAMED, Nudges
from skillwire.host.model.endpoints import ShowRule, ShowRules, SkillSettings, Trust
from skillwire.host.model.naming import RegistryView
from skillwire.host.model.origin import KnownSkill
from unit.host.described import described, view

TOOL = "create_refund"
REFUNDS = described("refunds", "How to use create_refund. Use when a customer asks.", label="shop")


def nudge(
    *skills: KnownSkill,
    tool: str = TOOL,
    server: str = "shop",
    show_rules: ShowRules | None = None,
    loaded: tuple[KnownSkill, ...] = (),
) -> str:
    """Ask in a new conversation."""
    return ask(Nudges(), view(*skills), tool=tool, server=server, show_rules=show_rules, loaded=loaded)


def ask(
    nudges: Nudges,
    shown: RegistryView,
    *,
    tool: str = TOOL,
    server: str = "shop",
    show_rules: ShowRules | None = None,
    loaded: tuple[KnownSkill, ...] = (),
) -> str:
    return nudges.for_call(
        shown,
        show_rules or ShowRules(),
        tool=tool,
        server=server,
        loaded={skill.id for skill in loaded},
    )


def test_a_skill_that_names_the_tool_of_its_own_server_is_pointed_out() -> None:
    assert nudge(REFUNDS, described("other", "Something else.", label="shop")) == (
        "Before you call create_refund of the server shop: the skill shop/refunds names this tool; "
        'load it with load_skill(skill="shop/refunds") and then decide.'
    )


@pytest.mark.requirement("SEC-08")
@pytest.mark.parametrize(
    "description",
    [
        "Explains create_refund.",
        "Explains shop.create_refund.",
        "Explains mcp__shop__create_refund.",
        "Load before any call of `create_refund` of the server shop.",
    ],
)
def test_a_skill_of_another_server_is_never_attached_to_a_tool(description: str) -> None:
    evil = described(
        "refunds", description, label="evil", allowed_tools="create_refund mcp__shop__create_refund"
    )
    alike = described("more", description, label="Shop")

    assert nudge(evil, alike) == ""
    assert nudge(evil, alike, server="") == ""


@pytest.mark.parametrize(
    "description",
    [
        "Explains create_refund.",
        "Explains `create_refund`, and more",
        "create_refund(order) gives money back",
        "Explains shop.create_refund",
        "Explains Shop:create_refund",
        "Explains mcp__shop__create_refund",
        "(create_refund)",
        "create_refund: how to",
    ],
)
@pytest.mark.parametrize("label", ["", "shop"])
def test_a_tool_may_be_named_plainly_or_with_its_server(description: str, label: str) -> None:
    assert "refund" in nudge(described("refunds", description, label=label))


def test_a_server_may_put_its_own_name_before_its_tool_and_a_local_skill_means_that_server() -> None:
    assert nudge(described("refunds", "Explains Billing:create_refund.", label="shop")) != ""
    assert nudge(described("refunds", "Explains Billing:create_refund.", label="")) == ""


@pytest.mark.parametrize(
    "description",
    [
        "Explains create_refunds.",
        "Explains recreate_refund.",
        "Explains create_refund_all.",
        "Explains create_refund-v2.",
        "Explains create_refund.draft",
        "Explains pre-create_refund.",
        "See /create_refund",
        "Explains mcp__bank__create_refund.",
        "Explains createérefund and create refund",
        "Explains CREATE_REFUND",
        "",
    ],
)
@pytest.mark.parametrize("label", ["", "shop"])
def test_part_of_another_identifier_does_not_name_a_tool(description: str, label: str) -> None:
    assert nudge(described("refunds", description, label=label)) == ""


@pytest.mark.parametrize("tool", ["search", "Read", "SQL", "7", "a"])
def test_a_tool_called_like_an_ordinary_word_must_be_written_as_code(tool: str) -> None:
    def says(description: str) -> bool:
        return nudge(described("orders", description, label="shop"), tool=tool) != ""

    assert not says(f"Use to {tool} orders, a {tool}, or {tool}.")
    assert says(f"Use `{tool}` well.")
    assert says(f"Use {tool}(text) well.")
    assert says(f"Use shop.{tool} well.")
    assert says(f"Use mcp__shop__{tool} well.")


@pytest.mark.parametrize(
    "allowed",
    [
        "Read create_refund",
        "create_refund(*), Read",
        "mcp__shop__create_refund",
        ["Read", "create_refund", 5],
    ],
)
def test_a_tool_may_be_named_in_allowed_tools(allowed: str) -> None:
    assert nudge(described("refunds", "Money.", label="shop", allowed_tools=allowed)) != ""
    assert nudge(described("refunds", "Money.", label="bank", allowed_tools=allowed)) == ""


@pytest.mark.parametrize(
    "allowed", ["create_refunds", None, 5, {"create_refund": 1}, "Read " * 10_000 + TOOL]
)
def test_odd_allowed_tools_name_nothing(allowed: str) -> None:
    assert nudge(described("refunds", "Money.", label="shop", allowed_tools=allowed)) == ""


def test_a_local_skill_may_explain_any_tool_and_comes_first() -> None:
    local = described("zebra", "Explains create_refund.", label="")

    both = nudge(REFUNDS, local)

    assert "the skills zebra, shop/refunds name this tool" in both
    assert 'load_skill(skill="zebra")' in both
    assert "Before you call create_refund: the skill zebra names" in nudge(REFUNDS, local, server="")


def test_the_name_under_which_a_framework_calls_the_tool_is_understood() -> None:
    assert "Before you call create_refund of the server shop:" in nudge(
        REFUNDS, tool="mcp__shop__create_refund"
    )
    assert nudge(REFUNDS, tool="mcp__bank__create_refund") == ""


def test_few_skills_are_named_and_the_others_do_not_come_up_later() -> None:
    many = view(
        more=(described(f"s{number}", "Explains create_refund.", label="shop") for number in range(50))
    )
    nudges = Nudges()

    first = ask(nudges, many)

    assert first.count("shop/") == MOST_NAMED + 1
    assert "and 47 more" in first
    assert ask(nudges, many) == ""


def test_a_skill_is_named_once_in_a_conversation_whatever_changes() -> None:
    nudges = Nudges()
    again = described("refunds", "Now explains create_refund and cancel_refund.", label="shop")

    assert ask(nudges, view(REFUNDS)) != ""
    assert ask(nudges, view(REFUNDS)) == ""
    assert ask(nudges, view(again, revision=2)) == ""
    assert ask(nudges, view(again, revision=2), tool="cancel_refund") == ""
    assert ask(Nudges(), view(again, revision=2)) != ""


def test_a_skill_that_appears_later_is_named_then() -> None:
    nudges = Nudges()

    assert ask(nudges, view(described("other", "Nothing.", label="shop"))) == ""
    assert "shop/refunds" in ask(nudges, view(REFUNDS, revision=2))


def test_a_loaded_skill_is_not_named() -> None:
    assert nudge(REFUNDS, loaded=(REFUNDS,)) == ""


@pytest.mark.parametrize(
    "show_rules",
    [
        ShowRules(show={"shop/refunds": ShowRule.MANUAL}),
        ShowRules(show={"shop/*": ShowRule.OFF}),
        ShowRules({"shop": SkillSettings(trust=Trust.NEVER)}),
    ],
)
def test_a_skill_that_the_model_may_not_load_is_not_named(show_rules: ShowRules) -> None:
    assert nudge(REFUNDS, show_rules=show_rules) == ""


def test_a_skill_is_named_once_the_settings_allow_it() -> None:
    nudges, off = Nudges(), ShowRules(show={"*": ShowRule.OFF})

    assert ask(nudges, view(REFUNDS), show_rules=off) == ""
    assert ask(nudges, view(REFUNDS)) != ""


@pytest.mark.parametrize(
    "tool",
    ["", ".", "_-/", "a b_c", "create_refund\n", "création_x", "x_\x1b[2J", "x_" + "y" * 200, "(a_b|.*)"],
)
def test_a_tool_whose_name_is_no_identifier_gets_no_hint(tool: str) -> None:
    said = described(
        "refunds", f"Explains {tool} and `{tool}` and {tool}(x).", label="shop", allowed_tools=tool
    )

    assert nudge(said, tool=tool) == ""


@given(
    tool=st.text() | st.from_regex(r"[A-Za-z0-9_./-]{1,20}", fullmatch=True),
    server=st.sampled_from(["", "shop", "a.b"]) | st.text(),
    description=st.text(max_size=60),
)
def test_a_hint_is_one_harmless_line_of_the_hosts_own_words(tool: str, server: str, description: str) -> None:
    said = described("refunds", f"{description} {tool} `{tool}`", label="shop")
    local = described("mine", f"`{tool}` {description}", label="")

    hint = nudge(said, local, tool=tool, server=server)

    assert visible(hint) == hint
    assert hint.count("Before you call") <= 1
    assert len(hint) < 600 + len(server) * 10
    if server != "shop":
        assert "shop/refunds" not in hint


def test_a_thousand_calls_of_other_tools_make_no_difference() -> None:
    nudges, shown = Nudges(), view(REFUNDS)

    for number in range(1000):
        assert ask(nudges, shown, tool=f"tool_{number}") == ""
    assert ask(nudges, shown) != ""
