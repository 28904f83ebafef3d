"""Limits of request parameters, checked before any lookup, and of what errors repeat of them."""

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.methods import SPEC_CLIENT_METHODS
from pydantic import ValidationError

from skillwire.core import visible
from skillwire.server.changes import connection_of
from skillwire.server.dialects.base import Context, as_json, is_modern
from skillwire.server.messages import MAX_ECHO, MAX_MESSAGE, escaped_error_data, not_initialized, peer_error
from skillwire.wire.core import JsonDict

MAX_PARAMETER: Final = 24 * 1024
"""The maximum length of a URI, name, cursor or value. A cursor of the longest URI is shorter."""

# Data for a tool, a prompt or a script, which has its own limits.
_DATA: Final = frozenset({"arguments", "_meta", "inputResponses", "requestState"})
# Methods with other prefixes belong to the server's author.
_NAMESPACES: Final = ("skills/", "resources/")
_CALL_TOOL: Final = "tools/call"
# Errors about a request, or without a code. Authors use other codes, whose data has a structure of its own.
_REPEATING: Final = frozenset({INVALID_PARAMS, INVALID_REQUEST, INTERNAL_ERROR, -32002, 0})
_BEFORE_INITIALIZE: Final = frozenset({"initialize", "ping"})

logger = logging.getLogger(__name__)


class RequestCheck:
    """Middleware that refuses requests with too long parameters, or before `initialize`.

    It runs before every other middleware and handler that reads parameters.
    Errors that repeat a parameter, by whichever handler, repeat it escaped and cut.
    """

    def __init__(self, server: Server[Any]) -> None:
        self._server = server

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is not None:
            if len(ctx.method) > MAX_ECHO:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", visible(ctx.method, most=MAX_ECHO))
            self._check_initialized(ctx)
            if _is_checked(ctx.method):
                check_parameters(ctx.params or {})
        try:
            result = await call_next(ctx)
        except MCPError as error:
            if not _may_repeat(ctx, error.code, error.message):
                raise
            text = visible(error.message, most=MAX_MESSAGE)
            raise MCPError(error.code, text, escaped_error_data(error.data)) from error
        except ValidationError:
            raise
        except Exception as error:
            # Before 2026-07-28 the SDK sends the text of any exception, as an error with the code 0.
            if is_modern(ctx) or not _may_repeat(ctx, 0, str(error)):
                raise
            logger.exception("the handler of %s failed", ctx.method)
            raise MCPError(0, visible(str(error), most=MAX_MESSAGE)) from error
        if ctx.method == _CALL_TOOL and not _is_plain(ctx):
            return _with_visible_error(as_json(result))
        return result

    def _check_initialized(self, ctx: Context) -> None:
        if is_modern(ctx) or connection_of(ctx).initialize_accepted or ctx.method in _BEFORE_INITIALIZE:
            return
        # An unknown method gets "method not found": clients detect features that way.
        if self._server.get_request_handler(ctx.method) is not None:
            raise MCPError(INVALID_REQUEST, not_initialized(ctx.method))


def _may_repeat(ctx: Context, code: int, message: str) -> bool:
    """Return whether an error may repeat text of the request; others are texts of the server's author."""
    if ctx.method == _CALL_TOOL:
        return not _is_plain(ctx)
    if code == METHOD_NOT_FOUND or len(message) > MAX_MESSAGE:
        return True
    return code in _REPEATING and _is_checked(ctx.method)


def _is_checked(method: str) -> bool:
    return method in SPEC_CLIENT_METHODS or method.startswith(_NAMESPACES)


def _is_plain(ctx: Context) -> bool:
    """Return whether the name of a requested tool can be repeated as it is. The names of tools can."""
    name = (ctx.params or {}).get("name")
    return not isinstance(name, str) or visible(name, most=MAX_ECHO) == name


def _with_visible_error(result: JsonDict) -> JsonDict:
    """Return a tool's result; the texts of an error are cut and have their hidden characters escaped."""
    if result.get("isError"):
        result["content"] = [
            {**block, "text": visible(block["text"], most=MAX_MESSAGE)} if "text" in block else block
            for block in result.get("content", ())
        ]
    return result


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
