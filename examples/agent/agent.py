"""A small agent that uses skills of two servers and of a local folder, and is refused something.

Run it with ./run. On a terminal you are asked; anywhere else a made-up user
answers, who says yes to the team's skills and to notes, and no to the rest.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio

from model import chosen_model
from skillwire.core import visible
from skillwire.host import (
    Guard,
    Host,
    LocalRoot,
    Question,
    Reply,
    Tool,
    Toolbox,
    ToolKind,
    ask_in_terminal,
    text_of_question,
)
from skillwire.host.adapters import anthropic, openai
from skillwire.host.adapters.tools import Json

HERE = Path(__file__).parent
TASK = (
    "Order 1042: the service failed on 11 April and the customer wants money back. Decide, and note it down."
)


async def ask_user(question: Question) -> Reply:
    """Ask the person at the terminal; without one, answer like a careful user and show it."""
    if sys.stdin.isatty():
        return await ask_in_terminal(question)
    is_welcome = "write_note" in question.call or (
        not question.call and question.skill is not None and question.skill.id.origin.label == "team"
    )
    reply = Reply.ONCE if is_welcome else Reply.DENY
    print(f"\n{text_of_question(question)}\n  the user answers: {reply.value}")
    return reply


async def write_note(arguments: Mapping[str, object]) -> str:
    print(f"  (a note is written: {visible(str(arguments['text']))})")
    return "noted"


async def run_command(arguments: Mapping[str, object]) -> str:
    return "this example has no shell"  # It only gets here when the user allowed the call.


def text_argument(name: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


OWN_TOOLS = (
    Tool("write_note", "Write a note to the ticket.", text_argument("text"), write_note),
    Tool("run_command", "Run a command on this machine.", text_argument("command"), run_command),
)
KINDS = {"write_note": ToolKind.WRITE, "run_command": ToolKind.EXECUTE}


class Transcript(list[Json]):
    """What was said so far, printed as it is said."""

    def append(self, message: Json) -> None:
        super().append(message)
        for line in spoken(message):
            print(line)


def spoken(message: Json) -> Iterator[str]:
    """Put one message of either format into short lines."""
    content = message.get("content") or ""
    for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        if block["type"] == "tool_use":
            yield f"  calls {visible(block['name'])}({json.dumps(block['input'])})"
        elif block["type"] == "tool_result" or message["role"] == "tool":
            lines = str(block.get("content") or block.get("text")).splitlines()
            yield from (f"  | {visible(line)[:110]}" for line in lines[:12])
        elif block.get("text"):  # A model's thoughts, and blocks of other kinds, have none.
            yield f"\n{message['role']}: {visible(block['text'])}"
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield f"  calls {visible(str(function.get('name')))}({visible(str(function.get('arguments')))})"


async def main() -> None:
    os.environ.setdefault("PYTHON", sys.executable)  # For mcp.json.
    skills = LocalRoot(HERE / "skills", "user")
    async with (
        Host.from_config(HERE / "mcp.json", roots=[skills], approve=ask_user) as host,
        chosen_model() as (form, name, create),
    ):
        print(f"The list of skills for the model:\n\n{host.listing(budget_tokens=1200)}")
        toolbox = Toolbox(Guard(host, KINDS), OWN_TOOLS)
        converse = anthropic.converse if form == "anthropic" else openai.converse
        messages = Transcript()
        messages.append({"role": "user", "content": TASK})
        await converse(create, toolbox, messages, model=name, system="You handle support tickets.")
        print("\nLoaded at the end:", ", ".join(window.skill.reference for window in host.loaded))


if __name__ == "__main__":
    anyio.run(main)
