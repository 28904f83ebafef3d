"""A client that gets one skill in two ways, from `server.py` over stdio, and compares them byte for byte.

A client that knows skills reads `SKILL.md` and then each file as a resource; one that knows only prompts
gets the same text with a single `prompts/get`. The program fails if a single byte differs.
"""

import json
import sys
from pathlib import Path

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import TextContent, TextResourceContents

from skillwire.host import get_skill

SERVER = Path(__file__).parent / "server.py"
SKILL = "skill://code-mode/SKILL.md"


async def read(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


async def walk_resources(client: Client) -> str:
    """Read a skill's files one after the other, and put them together as the prompt has them."""
    listed = [resource.uri for resource in (await client.list_resources()).resources]
    print("resources/list:", *listed, sep="\n  ")
    index = json.loads(await read(client, "skill://index.json"))
    print("index:", ", ".join(skill["name"] for skill in index["skills"]))
    entry = await get_skill(client, SKILL)
    assert entry.manifest is not None
    parts = [ended(await read(client, SKILL))]
    for file in entry.manifest.files:  # Readable, and in no listing.
        if file.uri != SKILL:
            assert file.uri not in listed
            text = await read(client, file.uri)
            file.verify(text.encode())
            parts.append(f"\n--- {entry.uri.relative_path(file.uri)} ---\n{ended(text)}")
    return "".join(parts)


async def get_prompt(client: Client) -> str:
    """Get the same skill as the text of its prompt."""
    [message] = (await client.get_prompt("start_code_mode")).messages
    assert isinstance(message.content, TextContent)
    return message.content.text


def ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


async def main() -> None:
    async with Client(StdioServerParameters(command=sys.executable, args=[str(SERVER)])) as client:
        resources = await walk_resources(client)
        prompt = await get_prompt(client)
    if resources.encode() != prompt.encode():
        raise SystemExit("the two surfaces differ")
    print(f"Both surfaces gave the same {len(prompt.encode())} bytes.")


if __name__ == "__main__":
    anyio.run(main)
