"""Tools of servers: what is taken of them, and under which names."""

import re

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import SkillError
from skillwire.host.adapters.fastmcp import ServerTool, text_of, with_unique_names
from skillwire.host.use.tools import Arguments

PROVIDERS = re.compile("[A-Za-z0-9_-]{1,64}")


async def nothing(arguments: Arguments) -> str:
    return ""


def tool(label: str, name: str) -> ServerTool:
    return ServerTool.of(types.Tool(name=name, input_schema={"type": "object"}), label, nothing)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "string"}, {"type": ["object"]}, {"type": "object", "properties": []}, {"properties": {}}],
)
def test_a_tool_that_takes_no_object_is_not_taken(schema: dict[str, object]) -> None:
    with pytest.raises(SkillError) as caught:
        ServerTool.of(types.Tool(name="x", input_schema=schema), "shop", nothing)
    assert caught.value.refusal == "invalid-answer"


@given(st.lists(st.tuples(st.sampled_from(["a", "a__b", "a_b", "é.b"]), st.text(max_size=70)), unique=True))
def test_whatever_servers_call_their_tools_names_are_distinct_and_suit_providers(
    pairs: list[tuple[str, str]],
) -> None:
    taken = {"load_skill", "mcp__a__mine"}

    named = with_unique_names([tool(label, name) for label, name in pairs], taken)

    names = [tool.name for tool in named]
    assert len(set(names)) == len(names) == len(pairs)
    assert all(map(PROVIDERS.fullmatch, names)) and not taken & set(names)
    assert [(tool.label, tool.title) for tool in named] == pairs


def test_a_name_does_not_depend_on_who_else_is_there_unless_they_would_share_it() -> None:
    alone = with_unique_names([tool("a", "x")], ())
    beside = with_unique_names([tool("a", "x"), tool("b", "x")], ())
    rivals = with_unique_names([tool("a", "b__x"), tool("a__b", "x")], ())

    assert [tool.name for tool in alone + beside] == ["mcp__a__x", "mcp__a__x", "mcp__b__x"]
    assert all(tool.name != "mcp__a__b__x" for tool in rivals) and len(rivals) == 2


def test_a_result_without_anything_is_an_empty_text() -> None:
    assert text_of(types.CallToolResult(content=[])) == ""
