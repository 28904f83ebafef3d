"""Limits of request parameters, checked before any lookup."""

from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.methods import SPEC_CLIENT_METHODS

from skillwire.core import visible
from skillwire.server.changes import connection_of
from skillwire.server.dialects.base import Context, is_modern
from skillwire.server.messages import MAX_ECHO, MAX_MESSAGE, echoed, not_initialized, peer_error

MAX_PARAMETER: Final = 24 * 1024
"""The maximum length of a URI, name, cursor or value. A cursor of the longest URI is shorter."""

# Data for a tool, a prompt or a script, which has its own limits.
_DATA: Final = frozenset({"arguments", "_meta", "inputResponses", "requestState"})
# Methods with other prefixes belong to the server's author.
_NAMESPACES: Final = ("skills/", "resources/")
_BEFORE_INITIALIZE: Final = frozenset({"initialize", "ping"})


class RequestCheck:
    """Middleware that refuses requests with too long parameters, or before `initialize`.

    It runs before every other middleware and handler that reads parameters.
    """

    def __init__(self, server: Server[Any]) -> None:
        self._server = server

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is not None:
            if len(ctx.method) > MAX_ECHO:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", visible(ctx.method, most=MAX_ECHO))
            self._check_initialized(ctx)
            if ctx.method in SPEC_CLIENT_METHODS or ctx.method.startswith(_NAMESPACES):
                check_parameters(ctx.params or {})
        try:
            return await call_next(ctx)
        except MCPError as error:
            # The error of a tool is the tool's own text; others repeat parameters, and are cut.
            if len(error.message) <= MAX_MESSAGE or ctx.method == "tools/call":
                raise
            raise MCPError(
                error.code, visible(error.message, most=MAX_MESSAGE), echoed(error.data)
            ) from error

    def _check_initialized(self, ctx: Context) -> None:
        if is_modern(ctx) or connection_of(ctx).initialize_accepted or ctx.method in _BEFORE_INITIALIZE:
            return
        # An unknown method gets "method not found": clients detect features that way.
        if self._server.get_request_handler(ctx.method) is not None:
            raise MCPError(INVALID_REQUEST, not_initialized(ctx.method))


def check_parameters(params: Mapping[str, Any]) -> None:
    """Check the length of every string among a request's parameters, except in data for a handler.

    Raises:
        MCPError: One is too long (-32602).
    """
    meta: object = params.get("_meta")
    token = cast(dict[str, object], meta).get("progressToken") if isinstance(meta, dict) else None
    if isinstance(token, str) and len(token) > MAX_PARAMETER:
        raise _too_long("_meta.progressToken", token)
    for name, value in params.items():
        if name not in _DATA:
            _check(name, value)


def _check(name: str, value: object) -> None:
    if isinstance(value, str):
        if len(value) > MAX_PARAMETER:
            raise _too_long(name, value)
    elif isinstance(value, dict | list):
        pending: list[object] = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                members = cast(dict[str, object], item)
                pending += members
                pending += [inner for key, inner in members.items() if key not in _DATA]
            elif isinstance(item, list):
                pending += cast(list[object], item)
            elif isinstance(item, str) and len(item) > MAX_PARAMETER:
                raise _too_long(name, item)


def _too_long(name: str, value: str) -> MCPError:
    # Errors about a URI have it in their data.
    culprit = {"uri": value} if name == "uri" else {}
    return peer_error(INVALID_PARAMS, f"`{name}` is longer than {MAX_PARAMETER} characters", **culprit)


# The extension's methods on the SDK's lowlevel `Server`, and skills in the base protocol's methods.


class ListSkillsRequestParams(types.RequestParams):
    """Accepts any value, so that the handler can return its own error message."""

    cursor: Any = None
