"""A host as the conformance suite's client: `python conformance_host.py URL`.

The suite starts it with the address of a server of its own as the last
argument, and says in the environment which scenario and which revision of the
protocol it is about. It lists what the server has; where the scenario is about
a skill that breaks its promise, it then loads that skill and reads one of its
files, as an agent would. What is refused goes to standard output, with the
code of the refusal, and makes it exit with 1.
"""

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl

from interop.clients.older import older_server
from skillwire.core.errors import SkillError
from skillwire.host import HostLimits
from skillwire.host.connect.oauth import FileTokenStorage, free_port, oauth_for, redirect_uri
from skillwire.host.host import Host
from skillwire.host.model.approval import Question, Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig
from skillwire.host.model.errors import Refusal
from skillwire.host.state.places import Storage

SECONDS = 20.0
LABEL = "suite"
SKILL = f"{LABEL}/pdf-processing"
FILE = "references/FORMS.md"
# Scenarios that look at a request after the first, and a resource to ask for.
READS = {
    "http-standard-headers": "file:///path/to/file%20name.txt",
    "auth/authorization-server-migration": "test://resource",
}


async def say_yes(_question: Question) -> Reply:
    return Reply.ALWAYS


async def browse(page: str) -> None:
    """Be the browser and its user: open the page, agree to everything, and go where one is sent."""
    async with httpx2.AsyncClient(follow_redirects=True, timeout=SECONDS) as browser:
        await browser.get(page)


async def signed_in(server: ServerConfig, folder: Path, context: dict[str, Any]) -> ServerConfig:
    """Let the host sign in, as a client that the scenario has registered already if it says so."""
    storage = FileTokenStorage(folder / "tokens", server.origin)
    if "client_id" in context:
        port = await anyio.to_thread.run_sync(free_port)
        known = OAuthClientInformationFull(
            client_id=context["client_id"],
            client_secret=context["client_secret"],
            redirect_uris=[AnyUrl(redirect_uri(port))],
            token_endpoint_auth_method="client_secret_basic",
            issuer=context.get("issuer"),
        )
        await storage.set_client_info(known, port=port)
    return replace(server, auth=oauth_for(server, storage=storage, open_browser=browse))


async def use(host: Host, scenario: str) -> list[Refusal]:
    """Do what an agent would do in the scenario, and return what was refused."""
    view = await host.refresh()
    print("listed:", *(skill.reference for skill in view.skills))  # noqa: T201
    refused = [status.problem for status in view.servers if status.problem is not None]
    for step in steps(host, scenario):
        try:
            print(await step)  # noqa: T201
        except SkillError as error:
            refused.append(Refusal.of(error))
    return refused


def steps(host: Host, scenario: str) -> Sequence[Awaitable[object]]:
    """Return what an agent would do after it has seen the listing."""
    if scenario.startswith("sep-2640-client-verify-"):
        return [host.load(SKILL), host.read_skill_file(SKILL, FILE)]
    return [host.read_resource(LABEL, READS[scenario])] if scenario in READS else []


async def main(url: str) -> int:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    revision = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as name, anyio.fail_after(2 * SECONDS):
        folder = Path(name)
        async with AsyncExitStack() as stack:
            if scenario.startswith("sep-2640-") and revision < "2026":
                # The suite's servers for the extension speak every revision, and a host takes the newest.
                url = await stack.enter_async_context(older_server(url))
            server = ServerConfig(LABEL, HttpEndpoint(url), seconds=SECONDS)
            if scenario.startswith("auth/"):
                server = await signed_in(server, folder, context)
            places = Storage(folder / "state", folder / "cache")
            host = Host(
                [server], approve=say_yes, storage=places, roots=(), limits=HostLimits(wait_seconds=SECONDS)
            )
            await stack.enter_async_context(host)
            refused = await use(host, scenario)
    for refusal in refused:
        print(f"refused [{refusal.code}]: {refusal}")  # noqa: T201
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[-1]))
