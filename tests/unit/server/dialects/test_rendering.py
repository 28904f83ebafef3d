"""Instructions made with arguments: by a template, or by an author's function."""

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from skillwire.core import SkillArgument
from skillwire.core.errors import INVALID_PARAMS, SourceError
from skillwire.server.dialects import base
from skillwire.server.dialects.base import (
    MAX_VALUE_BYTES,
    MAX_VALUES,
    check_arguments,
    fill_placeholders,
    render_instructions,
)

REGION = SkillArgument("region", required=True)
CURRENCY = SkillArgument("currency")


@pytest.mark.requirement("P2076-12")
def test_declared_placeholders_are_filled_and_all_others_stay() -> None:
    body = "Rules of {{region}} and {{ region }}; {{other}}, {region}, {{ region.x }}, {{currency}}."

    assert fill_placeholders(body, (REGION, CURRENCY), {"region": "eu"}) == (
        "Rules of eu and eu; {{other}}, {region}, {{ region.x }}, ."
    )


@pytest.mark.requirement("P2076-12")
def test_a_body_whose_skill_declares_nothing_is_never_touched() -> None:
    body = "Write {{region}} into the template."

    assert fill_placeholders(body, (), {"region": "eu"}) is body


@pytest.mark.requirement("P2076-12")
def test_a_value_is_inserted_as_it_is_and_never_looked_at_again() -> None:
    value = r"{{currency}} \1 \g<0> {{region}}"

    assert (
        fill_placeholders("<{{region}}>", (REGION, CURRENCY), {"region": value, "currency": "x"})
        == f"<{value}>"
    )


@pytest.mark.requirement("P2076-12")
def test_arguments_cannot_blow_instructions_up() -> None:
    with pytest.raises(MCPError) as caught:
        fill_placeholders("{{region}}" * 1000, (REGION,), {"region": "x" * MAX_VALUE_BYTES})

    assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("P2076-12")
@pytest.mark.parametrize(
    "sent",
    [
        [],
        "region",
        {"region": 1},
        {"region": None},
        {"region": ["eu"]},
        {"region": "x" * (MAX_VALUE_BYTES + 1)},
        {"region": "ü" * (MAX_VALUE_BYTES // 2 + 1)},
        {"region": "half \udc00"},
        {str(number): "x" for number in range(MAX_VALUES + 1)},
    ],
    ids=repr,
)
def test_arguments_that_are_not_a_few_short_texts_are_refused(sent: object) -> None:
    with pytest.raises(MCPError) as caught:
        check_arguments(sent, (CURRENCY,))

    assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("P2076-04")
@pytest.mark.parametrize("sent", [None, {}, {"currency": "EUR"}])
def test_a_missing_required_argument_is_refused_by_name(sent: object) -> None:
    with pytest.raises(MCPError, match="region") as caught:
        check_arguments(sent, (REGION, CURRENCY))

    assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("P2076-12")
def test_optional_and_undeclared_arguments_may_be_sent_or_not() -> None:
    assert check_arguments({"region": "eu", "more": "x"}, (REGION, CURRENCY)) == {"region": "eu", "more": "x"}
    assert check_arguments(None, (CURRENCY,)) == {}


@pytest.mark.requirement("P2076-12")
async def test_a_plain_function_and_a_coroutine_function_both_make_instructions() -> None:
    def plain(body: str, arguments: Mapping[str, str]) -> str:
        return f"{body} for {arguments['region']}"

    async def slow(body: str, arguments: Mapping[str, str]) -> str:
        return plain(body, arguments)

    for render in (plain, slow):
        assert (
            await render_instructions(render, "Rules", {"region": "eu"}, "skill://x/SKILL.md")
            == "Rules for eu"
        )


@pytest.mark.requirement("P2076-12")
async def test_a_function_that_fails_or_makes_no_text_is_an_error_without_its_words() -> None:
    def fails(body: str, arguments: Mapping[str, str]) -> str:
        raise RuntimeError("/home/secret")

    def wrong(body: str, arguments: Mapping[str, str]) -> str:
        return 7  # pyright: ignore[reportReturnType]  # what an author may do

    def endless(body: str, arguments: Mapping[str, str]) -> str:
        return "x" * (16 * 1024 * 1024 + 1)

    for render in (fails, wrong, endless):
        with pytest.raises(SourceError) as caught:
            await render_instructions(render, "Rules", {}, "skill://x/SKILL.md")
        assert "secret" not in str(caught.value)


@pytest.mark.requirement("P2076-12")
async def test_a_function_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "RENDER_SECONDS", 0.05)

    given_up = threading.Event()

    def hangs(body: str, arguments: Mapping[str, str]) -> str:
        assert given_up.wait(30)
        return body

    with pytest.raises(SourceError):
        await render_instructions(hangs, "Rules", {}, "skill://x/SKILL.md")
    given_up.set()


@given(st.text(), st.text())
def test_filling_changes_nothing_but_the_placeholder(before: str, value: str) -> None:
    head = before.replace("{", "").replace("}", "")

    assert fill_placeholders(f"{head}{{{{region}}}}", (REGION,), {"region": value}) == head + value
