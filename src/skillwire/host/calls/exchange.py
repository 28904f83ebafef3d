"""One request and its answer: deadlines, and what becomes of errors.

Everything a server says passes through here, so this is where its words are
quoted and where an answer that is not complete is turned away.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import anyio
from mcp.client import Client, InputRequiredRoundsExceededError
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams, Request, RequestParams
from pydantic import RootModel, ValidationError

from skillwire.core.characters import quoted
from skillwire.errors import INVALID_PARAMS, NotFoundError
from skillwire.host.failures import InvalidAnswerError, PeerError, TooSlowError
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, READ_DIRECTORY

DEFAULT_SECONDS: Final = 60.0
RESOURCE_NOT_FOUND: Final = -32002
"""The code for an unknown resource before revision 2026-07-28."""

Answer: TypeAlias = dict[str, Any]

_LONGEST_MESSAGE = 500


class _Result(RootModel[Answer]):
    """Any JSON object: what is in it is checked by hand, to the letter."""


class UriParams(RequestParams):
    """Parameters that name one skill."""

    uri: str


class DirectoryParams(PaginatedRequestParams):
    """Parameters that name a directory and a page of it."""

    uri: str


class ListSkillsRequest(Request[PaginatedRequestParams, Literal["skills/list"]]):
    method: Literal["skills/list"] = LIST_SKILLS


class GetSkillRequest(Request[UriParams, Literal["skills/get"]]):
    """Names its skill in the `Mcp-Name` header as well, so that gateways can route it unread."""

    method: Literal["skills/get"] = GET_SKILL

    name_param = "uri"


class ReadDirectoryRequest(Request[DirectoryParams, Literal["resources/directory/read"]]):
    method: Literal["resources/directory/read"] = READ_DIRECTORY


async def ask(client: Client, request: Request[Any, Any]) -> Answer:
    """Send one request and return its complete result.

    Raises:
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The result is not an object, or not a complete one.
    """
    with peer_errors(request.method):
        answer = (await client.session.send_request(request, _Result)).root
    require_complete(request.method, answer.get("resultType", "complete"))
    return answer


def require_complete(method: str, result_type: object) -> None:
    """Check the type of a result: a request for input, say, is no listing, entry or file.

    Raises:
        InvalidAnswerError: It is not "complete".
    """
    if result_type != "complete":
        shown = quoted(result_type[:200]) if isinstance(result_type, str) else "no text"
        raise InvalidAnswerError(
            f"the server answered {method} with a result whose type is {shown}, not 'complete'",
            violates="NEG-18",
        )


@contextmanager
def within(seconds: float | None, method: str) -> Generator[None]:
    """Give the exchanges inside `seconds` altogether; None waits as long as the client does.

    Raises:
        TooSlowError: The time is over. The server is told to stop, where the protocol can.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        limit = "" if seconds is None else f": more than {seconds:g} seconds"
        raise TooSlowError(f"the server took too long over {method}{limit}") from error


@contextmanager
def peer_errors(method: str) -> Generator[None]:
    """Translate what the MCP SDK raises while it waits for an answer.

    Raises:
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The answer does not have the shape the protocol gives it.
    """
    try:
        yield
    except MCPError as error:
        words = quoted(error.message[:_LONGEST_MESSAGE])
        message = f"{method} failed with error {error.code}: {words}"
        fix = "do without it: this server does not offer it" if error.code == METHOD_NOT_FOUND else ""
        raise PeerError(message, method=method, peer_code=error.code, fix=fix) from error
    except InputRequiredRoundsExceededError as error:
        message = f"the server keeps asking for input instead of answering {method}"
        raise InvalidAnswerError(message, violates="NEG-18") from error
    except ValidationError as error:
        message = f"the server's answer to {method} does not have the shape the protocol gives it"
        raise InvalidAnswerError(message) from error


@contextmanager
def looking_for(uri: str, *, codes: tuple[int, ...] = (INVALID_PARAMS,)) -> Generator[None]:
    """Read an error with one of `codes` as "there is nothing at `uri`".

    Raises:
        NotFoundError: The server says so.
    """
    try:
        yield
    except PeerError as error:
        if error.peer_code not in codes:
            raise
        raise NotFoundError(f"nothing is served at {quoted(uri)}: {error}", uri=uri) from error
