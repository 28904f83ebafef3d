"""Large answers, parsed once and quickly on their way through the SDK.

The SDK reads every answer as one of four kinds of message, which parses it
about twice. A large answer that is plainly a result is parsed here instead;
the SDK sees a slip in its place, and the result is put back behind it. What
is unusual in any way goes through as it is, and the SDK decides.
"""

import secrets
from typing import Any, cast

import orjson
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

from skillwire.sources.garbage import collector_paused

SMALLEST = 16 * 1024
"""The size from which an answer is large."""

_RESPONSE = frozenset({"jsonrpc", "id", "result"})


class Parcels:
    """The results that are on their way past the SDK, by slips that no server can guess."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._results: dict[str, dict[str, Any]] = {}

    def pack(self, body: bytes) -> bytes:
        """Return the answer for the SDK to read: a slip, or the body itself."""
        if len(body) < SMALLEST:
            return body
        try:
            with collector_paused():
                value: Any = orjson.loads(body)
        except ValueError:
            return body
        if not isinstance(value, dict) or value.keys() != _RESPONSE or value["jsonrpc"] != "2.0":
            return body
        message = cast(dict[str, Any], value)
        identifier, result = message["id"], message["result"]
        if (
            isinstance(identifier, bool)
            or not isinstance(identifier, int | str)
            or not isinstance(result, dict)
        ):
            return body
        slip = str(len(self._results)) + secrets.token_hex(8)
        self._results[slip] = cast(dict[str, Any], result)
        return orjson.dumps({"jsonrpc": "2.0", "id": identifier, "result": {self._mark: slip}})

    def unpack(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Put the result back in place of its slip."""
        if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCResponse):
            return item
        result = self._results.pop(str(item.message.result.get(self._mark)), None)
        if result is not None:
            item.message = item.message.model_copy(update={"result": result})
        return item
