"""The models of the example: a real one when a key is set, and otherwise one that follows a script."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from skillwire.host.adapters.tools import Json

Create = Callable[..., Awaitable[Any]]


def say(text: str) -> Json:
    return {"type": "text", "text": text}


def use(tool: str, **arguments: object) -> Json:
    return {"type": "tool_use", "id": f"call-{tool}-{len(str(arguments))}", "name": tool, "input": arguments}


SCRIPT: list[list[Json]] = [
    [say("There may be a procedure for this."), use("search_skills", query="customer wants money back")],
    [say("The team has a skill for refunds. I load it first."), use("load_skill", skill="team/refunds")],
    [
        say("It says to read the policy before deciding, and we have a style for notes."),
        use("read_skill_file", skill="team/refunds", path="references/policy.md"),
        use("load_skill", skill="house-style"),
    ],
    [say("Perhaps a discount as well."), use("load_skill", skill="shop/discounts")],
    [
        say("I look at the order."),
        use("run_command", command="psql -c 'select * from orders where id = 1042'"),
    ],
    [
        say("I write the decision down."),
        use("write_note", text="Approve in part: 31.03 EUR, SERVICE_FAILURE."),
    ],
    [
        say(
            "Approved in part: 31.03 EUR for 19 unused days, code SERVICE_FAILURE. "
            "What I was refused on the way I left alone."
        )
    ],
]


class ScriptedModel:
    """Says its lines in turn, whatever it is told: enough to see what the host does."""

    def __init__(self) -> None:
        self._lines: Iterator[list[Json]] = iter(SCRIPT)

    async def create(self, **request: Any) -> Json:
        return {"role": "assistant", "content": next(self._lines)}


@asynccontextmanager
async def chosen_model() -> AsyncIterator[tuple[str, str, Create]]:
    """Give a format, a model's name and what to call: by the key that is set, or the script."""
    if os.environ.get("ANTHROPIC_API_KEY"):
        from anthropic import AsyncAnthropic  # pip install "skillwire[anthropic]"

        async with AsyncAnthropic() as client:
            yield "anthropic", os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-4-5"), client.messages.create
    elif os.environ.get("OPENAI_API_KEY"):
        from openai import AsyncOpenAI  # pip install "skillwire[openai]"

        async with AsyncOpenAI() as client:
            yield "openai", os.environ.get("OPENAI_MODEL", "gpt-5"), client.chat.completions.create
    else:
        yield "anthropic", "a script", ScriptedModel().create
