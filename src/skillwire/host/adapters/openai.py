"""Skills for an agent that uses OpenAI's chat format directly: tool schemas, and a loop.

    answer = await converse(
        client.chat.completions.create, Toolbox(Guard(host, kinds), own), messages, model=...
    )

Nothing is imported from a client library. `create` is
`client.chat.completions.create` of the official one, or any function that
takes and returns such messages.
"""

from collections.abc import Sequence
from typing import Any, cast

from skillwire.core import LimitError
from skillwire.host.adapters.tools import (
    MAX_TURNS,
    MORE_TURNS_FIX,
    Call,
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

# With these reasons, the last call may be truncated.
_CUT = ("length", "content_filter")


def tool_schemas(toolbox: Toolbox) -> list[Json]:
    """Return all tools in the format's schema."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in toolbox.tools
    ]


async def converse(
    create: Create,
    toolbox: Toolbox,
    messages: list[Json],
    *,
    model: str,
    system: str = "",
    role: str = "system",
    max_turns: int = MAX_TURNS,
    hosted_tools: Sequence[Json] = (),
    **options: Any,
) -> Json:
    """Run the model until it calls no more tools; return its last answer.

    All messages are appended to `messages`, and none is changed later, so that
    prompt caches hold; it belongs to one conversation. The list of skills
    follows `system` in a first message, and its changes are messages of their
    own, both with `role`: "system", which every server of this format
    supports, or "developer". When `messages` were cut, the texts of loaded
    skills are added again, in a message from "user". `finish_reason` of the
    answer says why the model stopped. After an exception, `messages` are as
    before the turn, so that the conversation can continue.

    `hosted_tools` run at the provider, where the user cannot be asked: they
    are available only while no loaded skill restricts them. `options` are
    passed to `create`.

    Raises:
        LimitError: The model still calls tools after `max_turns` turns.
        ValueError: An answer has no message in it.
    """
    require_no_tools(options)
    conversation = toolbox.guard.conversation
    instructions = instructions_of(toolbox, system)
    head: list[Json] = [{"role": role, "content": instructions}] if instructions else []
    schemas = tool_schemas(toolbox)
    if changes := await conversation.listing_changes():
        messages.append({"role": role, "content": changes})
    for _ in range(max_turns):
        if lost := conversation.restore(map(repr, [system, *messages])):
            messages.append({"role": "user", "content": lost})  # Never as a system message (SEC-11).
        tools = available_tools(toolbox, schemas, hosted_tools)
        answer = as_plain_data(await create(model=model, messages=[*head, *messages], **options, **tools))
        message, reason = _message_in(answer)
        calls = cast("list[Json]", message.get("tool_calls") or [])
        with undo_on_error(messages):
            messages.append(_for_history(message))
            if not calls:
                return answer
            results = await results_of_calls(toolbox, [_call(call) for call in calls], is_cut=reason in _CUT)
            for call, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": result.text})
            if changes := await conversation.listing_changes():
                messages.append({"role": role, "content": changes})
    raise LimitError(f"the model has not finished after {max_turns} turns", fix=MORE_TURNS_FIX)


def _message_in(answer: Json) -> tuple[Json, object]:
    choices = answer.get("choices")
    if not choices or not choices[0].get("message"):
        raise ValueError("the answer of the model has no message")
    return choices[0]["message"], choices[0].get("finish_reason")


def _for_history(message: Json) -> Json:
    """Return a message without empty members: an empty list of calls is an error in a request."""
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    return {"content": None if {"tool_calls", "refusal"} & kept.keys() else "", **kept}


def _call(call: Json) -> Call:
    """Return the name and arguments of a call; calls of unknown kinds get the name of no tool."""
    kind = str(call.get("type") or "function")
    called: Json = call.get(kind) or {}
    return str(called.get("name")), called.get("arguments" if kind == "function" else "input")
