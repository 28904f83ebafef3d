"""Skills for an agent that speaks OpenAI's chat format itself: tool schemas, and a loop.

    answer = await converse(
        client.chat.completions.create, Toolbox(Guard(host, kinds), own), messages, model=...
    )

Nothing is imported from a client library. `create` is
`client.chat.completions.create` of the official one, or whatever else takes
and returns such messages.
"""

from collections.abc import Sequence
from typing import Any, cast

from skillwire.errors import LimitError
from skillwire.host.adapters.formats import (
    LONGER,
    MAX_TURNS,
    Call,
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

# After these, the last call may have been cut off in the middle.
_CUT = ("length", "content_filter")


def tool_schemas(toolbox: Toolbox) -> list[Json]:
    """Return all tools as the format wants them."""
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
    """Let the model work until it calls no more tools; return its last answer.

    `messages` grows by all that is said, and nothing in it is changed later,
    so that prompt caches hold; it belongs to one conversation. The list of
    skills follows `system` in a message before them, and what changes in it
    comes as a message of its own, both from `role`: "system", which every
    server of this format knows, or "developer". `finish_reason` of the
    answer says why the model stopped. What raises leaves `messages` as they
    were before the turn, to go on from.

    `hosted_tools` run at the provider and cannot be asked about: the model
    has them only while no loaded skill restricts them. `options` are passed
    on to `create`.

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
        tools = offered(toolbox, schemas, hosted_tools)
        answer = plain(await create(model=model, messages=[*head, *messages], **options, **tools))
        message, reason = _message_in(answer)
        calls = cast("list[Json]", message.get("tool_calls") or [])
        with turn(messages):
            messages.append(_to_be_sent_back(message))
            if not calls:
                return answer
            results = await answers_to(toolbox, [_call(call) for call in calls], is_cut=reason in _CUT)
            for call, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": result.text})
            if changes := await conversation.listing_changes():
                messages.append({"role": role, "content": changes})
    raise LimitError(f"the model is not done after {max_turns} turns", fix=LONGER)


def _message_in(answer: Json) -> tuple[Json, object]:
    choices = answer.get("choices")
    if not choices or not choices[0].get("message"):
        raise ValueError("the answer of the model has no message in it")
    return choices[0]["message"], choices[0].get("finish_reason")


def _to_be_sent_back(message: Json) -> Json:
    """Return a message as it came, without what is empty: a list of no calls is an error in a request."""
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    return {"content": None if {"tool_calls", "refusal"} & kept.keys() else "", **kept}


def _call(call: Json) -> Call:
    """Return the name and the arguments of a call; one of another kind names a tool that is not there."""
    kind = str(call.get("type") or "function")
    called: Json = call.get(kind) or {}
    return str(called.get("name")), called.get("arguments" if kind == "function" else "input")
