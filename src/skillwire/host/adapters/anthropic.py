"""Skills for an agent that speaks Anthropic's message format itself: tool schemas, and a loop.

    answer = await converse(client.messages.create, Toolbox(Guard(host, kinds), own), messages, model=...)

Nothing is imported from a client library. `create` is `client.messages.create`
of the official one, or whatever else takes and returns such messages.
"""

from collections.abc import Sequence
from typing import Any, cast

from skillwire.errors import LimitError
from skillwire.host.adapters.formats import (
    LONGER,
    MAX_TURNS,
    Create,
    Json,
    answers_to,
    instructions_of,
    offered,
    plain,
    require_no_tools,
    turn,
)
from skillwire.host.toolbox import Toolbox
from skillwire.host.tools import ToolResult

# After these, the last block may have been cut off in the middle.
_CUT = ("max_tokens", "model_context_window_exceeded", "stop_sequence")


def tool_schemas(toolbox: Toolbox) -> list[Json]:
    """Return all tools as the format wants them."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in toolbox.tools
    ]


async def converse(
    create: Create,
    toolbox: Toolbox,
    messages: list[Json],
    *,
    model: str,
    system: str = "",
    max_tokens: int = 4096,
    max_turns: int = MAX_TURNS,
    hosted_tools: Sequence[Json] = (),
    **options: Any,
) -> Json:
    """Let the model work until it calls no more tools; return its last answer.

    `messages` grows by all that is said, and nothing in it is changed later,
    so that prompt caches hold; it belongs to one conversation. The list of
    skills follows `system`; what changes in it comes after the next results,
    or after the user's message. `stop_reason` of the answer says why the
    model stopped. What it refused, by "refusal", is no part of `messages`;
    and what raises leaves them as they were before the turn, to go on from.

    `hosted_tools` run at the provider and cannot be asked about: the model
    has them only while no loaded skill restricts them. `options` are passed
    on to `create`.

    Raises:
        LimitError: The model still calls tools after `max_turns` turns.
    """
    require_no_tools(options)
    conversation = toolbox.guard.conversation
    sent: Json = {"model": model, "max_tokens": max_tokens, **options}
    if instructions := instructions_of(toolbox, system):
        sent["system"] = instructions
    schemas = tool_schemas(toolbox)
    if changes := await conversation.listing_changes():
        messages.append({"role": "user", "content": changes})
    for _ in range(max_turns):
        tools = offered(toolbox, schemas, hosted_tools)
        answer = plain(await create(**sent, **tools, messages=list(messages)))
        content, reason = _blocks(answer), answer.get("stop_reason")
        # A message must not be empty, and what was refused must not be sent again.
        if not content or reason == "refusal":
            return answer
        calls = [block for block in content if block.get("type") == "tool_use"]
        with turn(messages):
            messages.append({"role": "assistant", "content": content})
            if calls:
                results = await answers_to(
                    toolbox,
                    [(str(call.get("name")), call.get("input")) for call in calls],
                    is_cut=reason in _CUT and content[-1] is calls[-1],
                )
                said = [_result(call, result) for call, result in zip(calls, results, strict=True)]
                if changes := await conversation.listing_changes():
                    said.append({"type": "text", "text": changes})
                messages.append({"role": "user", "content": said})
        # The provider lets a long turn of its own tools pause: it goes on when it is sent back as it is.
        if not calls and reason != "pause_turn":
            return answer
    raise LimitError(f"the model is not done after {max_turns} turns", fix=LONGER)


def _blocks(answer: Json) -> list[Json]:
    content: object = answer.get("content") or []
    return cast("list[Json]", content) if isinstance(content, list) else [{"type": "text", "text": content}]


def _result(call: Json, result: ToolResult) -> Json:
    said: Json = {"type": "tool_result", "tool_use_id": call.get("id"), "content": result.text}
    return {**said, "is_error": True} if result.is_error else said
