"""The first answers of the bridge, written before the MCP SDK is imported or a server is asked.

Some agents send their first request to a model without the tools of a server
that takes longer than a second. So `initialize`, and the lists of tools,
prompts and resources that agents ask for next, are answered from the stored
overview by a thread, while the main thread imports the SDK and opens the host.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Final

from skillwire.bridge.overview import Overview, StoredOverview, known_client
from skillwire.core import JsonDict, __version__, encode
from skillwire.server.early import EarlyAnswers, is_usual_handshake, start_answering, usual_request

SERVER_NAME: Final = "skillwire"
CAPABILITIES: Final[JsonDict] = {
    "prompts": {"listChanged": True},
    "resources": {"subscribe": False, "listChanged": True},
    "tools": {"listChanged": True},
}
"""What the bridge declares to clients of the handshake era, in the SDK's order."""


class EarlyBridge:
    """Answers the first requests of one client from an overview."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._client: str | None = None

    def answer(self, line: bytes) -> bytes | None:
        """Return the answer to a request, or None if the SDK must answer it."""
        request = usual_request(line)
        result = None if request is None else self._result(request["method"], request["params"])
        if request is None or result is None:
            return None
        return encode({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def _result(self, method: object, params: JsonDict) -> JsonDict | None:
        if method == "initialize" and self._client is None and is_usual_handshake(params):
            self._client = known_client(params["clientInfo"]["name"])
            return {
                "capabilities": CAPABILITIES,
                "protocolVersion": params["protocolVersion"],
                "serverInfo": {"name": SERVER_NAME, "version": __version__},
                "instructions": self._overview.instructions(self._client),
            }
        if self._client is None or params.keys() - {"_meta"}:
            return None
        if method == "tools/list":
            return {"tools": self._overview.tools(self._client)}
        if method == "prompts/list":
            return {"prompts": list(self._overview.prompts)}
        return {"resources": []} if method == "resources/list" else None


def answer_early(args: Sequence[str]) -> None:
    """Answer the first requests on standard input, if `skillwire bridge` with `args` would serve it."""
    is_other = any(word == "--http" or word.startswith(("--http=", "-h", "--help")) for word in args)
    if is_other or sys.platform == "win32" or sys.stdin is None or sys.stdin.isatty():
        return
    # Until the command sets up logging, warnings would be printed as they are.
    logging.getLogger("skillwire").addHandler(logging.NullHandler())
    start_answering(EarlyAnswers(EarlyBridge(StoredOverview.of(args).overview).answer))
