"""JSON-RPC messages from HTTP or stdio: the size limit, parsing, and errors for malformed ones."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from skillwire.core import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    JsonDict,
    NotFoundError,
    SkillError,
    SourceError,
    visible,
)
from skillwire.sources.background import LogFilter

# Translates internal errors to errors that a peer may read.


MAX_ECHO: Final = 256
"""The maximum length of a peer's text that is repeated in the data of an error."""
MAX_MESSAGE: Final = 1_000
"""The maximum length of an error message."""

# A source that cannot be read fails every request, so only one warning in ten seconds is logged.
_warnings = LogFilter(10.0)

logger = logging.getLogger(__name__)


@contextmanager
def wire_errors() -> Generator[None]:
    """Send only our own error messages to the peer, in both protocol generations.

    On older revisions the SDK would send the text of any exception.
    """
    try:
        yield
    except MCPError:
        raise
    except NotFoundError as error:
        raise peer_error(error.code, str(error), uri=error.uri) from error
    except SkillError as error:
        if isinstance(error, SourceError):
            _log_source(error)
        elif error.code == INTERNAL_ERROR:
            logger.warning("a request failed: %s", error, exc_info=error)
        raise peer_error(error.code, str(error)) from error
    except Exception as error:
        logger.exception("unexpected failure while answering a request")
        raise MCPError(INTERNAL_ERROR, "Internal error") from error


def _log_source(error: SourceError) -> None:
    """Log why a source cannot be read, as a warning only now and then."""
    level = logging.WARNING if _warnings.admits() else logging.INFO
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    logger.log(level, "a request failed: %s%s", error, cause)


def peer_error(code: int, message: str, **data: object) -> MCPError:
    """Return an error whose texts are cut and have their hidden characters escaped."""
    return MCPError(code, visible(message, most=MAX_MESSAGE), escaped_error_data(data) if data else None)


def escaped_error_data(value: object) -> Any:
    """Return data for an error with every text on one line, cut, and with hidden characters escaped."""
    if isinstance(value, str):
        return visible(value, most=MAX_ECHO)
    if isinstance(value, list):
        return [escaped_error_data(item) for item in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {key: escaped_error_data(item) for key, item in cast("Mapping[str, object]", value).items()}
    return value


def invalid_params(message: str) -> MCPError:
    """Return the error for invalid parameters."""
    return peer_error(INVALID_PARAMS, message)


_NOT_JSON: Final = "Parse error: the message is not JSON in UTF-8, or is nested too deeply"


class MalformedMessageError(ValueError):
    """A message that is not JSON-RPC; `response` is the error to send back.

    With `is_response`, it looks like a malformed response, which is not answered on a stream.
    """

    def __init__(self, code: int, message: str, content: object = None) -> None:
        super().__init__(message)
        fields = cast(dict[str, Any], content) if isinstance(content, dict) else {}
        self.is_response = "method" not in fields and not fields.keys().isdisjoint({"result", "error"})
        identifier = fields.get("id")
        if not isinstance(identifier, str) and type(identifier) is not int:
            identifier = None
        self.response: JsonDict = {
            "jsonrpc": "2.0",
            "id": identifier,
            "error": {"code": code, "message": message},
        }


def parse_message(data: bytes) -> JSONRPCMessage:
    """Parse one JSON-RPC message.

    Raises:
        MalformedMessageError: It is not JSON (-32700), or not one message (-32600).
    """
    try:
        content = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedMessageError(PARSE_ERROR, _NOT_JSON) from error
    try:
        message = jsonrpc_message_adapter.validate_python(content, by_name=False)
    except ValidationError as error:
        raise _invalid(content) from error
    # The SDK's model of notifications ignores an id that no request may have.
    if isinstance(message, JSONRPCNotification) and "id" in content:
        raise _invalid(content)
    return message


def not_initialized(method: str) -> str:
    """Return the error message for a request that was sent before `initialize`."""
    return (
        f"{visible(method, most=MAX_ECHO)} was sent before initialize. Send an initialize request first, "
        "or a request of revision 2026-07-28, which needs none."
    )


def too_large(most: int) -> JsonDict:
    """Return the error for a message of more than `most` bytes, whose id is unknown."""
    text = f"Invalid request: the message is larger than {most // 1024} KiB"
    return MalformedMessageError(INVALID_REQUEST, text).response


def _invalid(content: object) -> MalformedMessageError:
    text = f"Invalid request: {_reason(content)}"
    return MalformedMessageError(INVALID_REQUEST, text, content)


def _reason(content: object) -> str:
    if isinstance(content, list):
        return "batches are not supported; send one message at a time"
    if not isinstance(content, dict):
        return "a JSON-RPC message is an object"
    fields = cast(dict[str, object], content)
    identifier = fields.get("id", 0)
    if fields.get("jsonrpc") != "2.0":
        return '`jsonrpc` must be "2.0"'
    if not isinstance(identifier, str) and type(identifier) is not int:
        return "`id` must be a string or an integer"
    if "method" in fields and not isinstance(fields["method"], str):
        return "`method` must be a string"
    if not isinstance(fields.get("params") or {}, dict):
        return "`params` must be an object"
    return "the message is not a JSON-RPC 2.0 request, notification or response"
