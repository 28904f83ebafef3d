"""Skills for an agent that uses Anthropic's message format directly: tool schemas, and a loop.

    answer = await converse(client.messages.create, Toolbox(Guard(host, kinds), own), messages, model=...)

Nothing is imported from a client library. `create` is `client.messages.create`
of the official one, or any function that takes and returns such messages.
"""

from collections.abc import Sequence
from typing import Any, cast

from skillwire.core import LimitError
from skillwire.host.adapters.tools import (
    MAX_TURNS,
    MORE_TURNS_FIX,
    Create,
    Json,
    Toolbox,
    as_plain_data,
    available_tools,
    instructions_of,
    require_no_tools,
    results_of_calls,
    undo_on_error,
)
from skillwire.host.use.tools import ToolResult

# With these reasons, the last block may be truncated.
_CUT = ("max_tokens", "model_context_window_exceeded", "stop_sequence")
_PAUSED = ("pause_turn", "compaction")


def tool_schemas(toolbox: Toolbox) -> list[Json]:
    """Return all tools in the format's schema."""
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
    """Run the model until it calls no more tools; return its last answer.

    All messages are appended to `messages`, and none is changed later, so that
    prompt caches hold; it belongs to one conversation. The list of skills
    follows `system`; its changes come after the next results, or after the
    user's message. When `messages` were cut, or the provider compacted them,
    the texts of loaded skills are added again in a message of their own.
    `stop_reason` of the answer says why the model stopped. An answer with the
    reason "refusal" is not added to `messages`. After an exception, they are
    as before the turn, so that the conversation can continue.

    `hosted_tools` run at the provider, where the user cannot be asked: they
    are available only while no loaded skill restricts them. `options` are
    passed to `create`.

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
        if lost := conversation.restore(map(repr, [system, *_after_compaction(messages)])):
            messages.append({"role": "user", "content": lost})
        tools = available_tools(toolbox, schemas, hosted_tools)
        answer = as_plain_data(await create(**sent, **tools, messages=list(messages)))
        content, reason = _blocks(answer), answer.get("stop_reason")
        # A message must not be empty, and a refused answer must not be sent again.
        if not content or reason == "refusal":
            return answer
        calls = [block for block in content if block.get("type") == "tool_use"]
        with undo_on_error(messages):
            messages.append({"role": "assistant", "content": content})
            if calls:
                results = await results_of_calls(
                    toolbox,
                    [(str(call.get("name")), call.get("input")) for call in calls],
                    is_cut=reason in _CUT and content[-1] is calls[-1],
                )
                blocks = [_result(call, result) for call, result in zip(calls, results, strict=True)]
                if changes := await conversation.listing_changes():
                    blocks.append({"type": "text", "text": changes})
                messages.append({"role": "user", "content": blocks})
        # The provider may pause a long turn; it continues when the answer is sent back unchanged.
        if not calls and reason not in _PAUSED:
            return answer
    raise LimitError(f"the model has not finished after {max_turns} turns", fix=MORE_TURNS_FIX)


def _after_compaction(messages: Sequence[Json]) -> Sequence[Json]:
    """Return the messages that the model reads: the provider drops all before the last compaction."""
    for number in range(len(messages) - 1, -1, -1):
        content: object = messages[number].get("content")
        blocks = cast("list[Json]", content) if isinstance(content, list) else []
        if any(block.get("type") == "compaction" and block.get("content") for block in blocks):
            return messages[number:]
    return messages


def _blocks(answer: Json) -> list[Json]:
    content: object = answer.get("content") or []
    return cast("list[Json]", content) if isinstance(content, list) else [{"type": "text", "text": content}]


def _result(call: Json, result: ToolResult) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": call.get("id"), "content": result.text}
    return {**block, "is_error": True} if result.is_error else block
