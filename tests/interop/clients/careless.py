"""A client that checks nothing: `python careless.py URL`.

It reads every file of every skill as soon as it is told of it, and believes
what it reads. The conformance suite has to object to it.
"""

import os
import sys

import anyio

from interop.python_client import ask, connected
from interop.serving import Endpoint


async def main(url: str) -> None:
    is_old = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"] < "2026"
    async with connected(Endpoint(url=url), "legacy" if is_old else "auto", {}) as client:
        for skill in (await ask(client, "skills/list"))["skills"]:
            for file in skill["resources"]:
                await client.read_resource(file["uri"])


if __name__ == "__main__":
    anyio.run(main, sys.argv[-1])
