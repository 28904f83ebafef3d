"""One request and its answer: deadlines, and the translation of errors.

All answers pass through here, so this is where error messages of servers are
quoted and incomplete results are refused.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import anyio
from mcp.client import Client, InputRequiredRoundsExceededError
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams, Request, RequestParams
from pydantic import RootModel, ValidationError

from skillwire.core import INVALID_PARAMS, NotFoundError, encode, quoted
from skillwire.host.model import (
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    PeerError,
    TooSlowError,
)
from skillwire.wire.core import EXTENSION, GET_SKILL, LIST_SKILLS, READ_DIRECTORY

DEFAULT_SECONDS: Final = 60.0
RESOURCE_NOT_FOUND: Final = -32002
"""The code for an unknown resource before revision 2026-07-28."""

Answer: TypeAlias = dict[str, Any]

_MAX_MESSAGE_LENGTH = 500


class _Result(RootModel[Answer]):
    """Any JSON object; the callers check its members."""


class UriParams(RequestParams):
    """Parameters that name one skill."""

    uri: str


class DirectoryParams(PaginatedRequestParams):
    """Parameters that name a directory and a page of it."""

    uri: str


class ListSkillsRequest(Request[PaginatedRequestParams, Literal["skills/list"]]):
    method: Literal["skills/list"] = LIST_SKILLS


class GetSkillRequest(Request[UriParams, Literal["skills/get"]]):
    """A request that also has its skill in the `Mcp-Name` header, for routing by gateways."""

    method: Literal["skills/get"] = GET_SKILL

    name_param = "uri"


class ReadDirectoryRequest(Request[DirectoryParams, Literal["resources/directory/read"]]):
    method: Literal["resources/directory/read"] = READ_DIRECTORY


async def send_request(client: Client, request: Request[Any, Any]) -> Answer:
    """Send one request and return its complete result.

    Raises:
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The result is not an object, or not complete.
    """
    with peer_errors(request.method):
        answer = (await client.session.send_request(request, _Result)).root
    require_complete(request.method, answer.get("resultType", "complete"))
    return answer


def require_complete(method: str, result_type: object) -> None:
    """Check the type of a result: a request for input, for example, is not a final result.

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
    """Limit all requests in the block to `seconds`; None waits as long as the client does.

    Raises:
        TooSlowError: The time is over. The request is cancelled, if the protocol supports it.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        limit = "" if seconds is None else f": more than {seconds:g} seconds"
        raise TooSlowError(f"the server took too long to answer {method}{limit}") from error


@contextmanager
def peer_errors(method: str, uri: str = "", codes: tuple[int, ...] = ()) -> Generator[None]:
    """Translate the exceptions of the MCP SDK; errors with one of `codes` mean that `uri` does not exist.

    Raises:
        NotFoundError: The server answered with such an error.
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The answer does not match the protocol.
    """
    try:
        yield
    except MCPError as error:
        text = quoted(error.message[:_MAX_MESSAGE_LENGTH])
        message = f"{method} failed with error {error.code}: {text}"
        fix = "continue without it: this server does not support it" if error.code == METHOD_NOT_FOUND else ""
        failure = PeerError(message, method=method, peer_code=error.code, fix=fix)
        if error.code in codes:
            raise _not_found(uri, failure) from error
        raise failure from error
    except InputRequiredRoundsExceededError as error:
        message = f"the server keeps asking for input instead of answering {method}"
        raise InvalidAnswerError(message, violates="NEG-18") from error
    except ValidationError as error:
        message = f"the server's answer to {method} does not match the protocol"
        raise InvalidAnswerError(message) from error


@contextmanager
def not_found_errors(uri: str, *, codes: tuple[int, ...] = (INVALID_PARAMS,)) -> Generator[None]:
    """Translate errors with one of `codes` to `NotFoundError`.

    Raises:
        NotFoundError: The server answered with such an error.
    """
    try:
        yield
    except PeerError as error:
        if error.peer_code not in codes:
            raise
        raise _not_found(uri, error) from error


def _not_found(uri: str, error: PeerError) -> NotFoundError:
    return NotFoundError(f"nothing is served at {quoted(uri)}: {error}", uri=uri)


# Walking the pages of an untrusted listing, with limits for one that does not end.


DEFAULT_PAGES = 1000
DEFAULT_ENTRIES = 100_000
DEFAULT_BYTES = 128 * 1024 * 1024
MAX_CURSOR_LENGTH = 65_536


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """Limits for one listing, beyond which it counts as endless; `max_bytes` is its size as JSON."""

    max_pages: int = DEFAULT_PAGES
    max_entries: int = DEFAULT_ENTRIES
    max_bytes: int = DEFAULT_BYTES


@dataclass(frozen=True, slots=True)
class ResultPage:
    """One page: its items, and the whole result around them.

    `is_first` is also true when the walk started again; then earlier pages are
    to be discarded.
    """

    items: list[object]
    answer: Answer
    is_first: bool


class Pager:
    """One walk through a paginated method.

    `member` is the member of the result that holds the items. If the server
    refuses a cursor, the walk starts again once, because the listing changed
    meanwhile (LIST-13). The limits include the pages before that.
    """

    def __init__(
        self,
        client: Client,
        request_for: Callable[[str | None], Request[Any, Any]],
        *,
        member: str,
        limits: ListingLimits,
    ) -> None:
        self._client = client
        self._request_for = request_for
        self._member = member
        self._limits = limits
        self._method = str(request_for(None).method)
        self._cursor: str | None = None
        self._used: set[str] = set()
        self._pages = self._entries = self._bytes = 0
        self._has_restarted = self._is_over = False
        self._problem: EndlessListingError | None = None

    async def next_page(self) -> ResultPage | None:
        """Fetch the next page; None after the last.

        Raises:
            EndlessListingError: A cursor was repeated, or a limit is reached.
            InvalidAnswerError: The page is invalid.
            PeerError: The server answered with an error, or the connection ended.
        """
        if self._is_over:
            return None
        if self._problem is not None:
            raise self._problem
        answer = await self._fetch()
        page = ResultPage(self._items_of(answer), answer, self._cursor is None)
        self._set_cursor(answer.get("nextCursor"))
        return page

    async def _fetch(self) -> Answer:
        try:
            return await self._ask()
        except PeerError as error:
            if error.peer_code != INVALID_PARAMS or self._cursor is None:
                raise
            if self._has_restarted:
                message = f"the server refuses its own cursors for {self._method}"
                raise InvalidAnswerError(message, violates="LIST-13") from error
        self._has_restarted = True
        self._cursor = None
        self._used.clear()
        return await self._ask()

    async def _ask(self) -> Answer:
        if self._pages >= self._limits.max_pages:
            raise self._endless(f"more than {self._limits.max_pages} pages")
        self._pages += 1
        return await send_request(self._client, self._request_for(self._cursor))

    def _items_of(self, answer: Answer) -> list[object]:
        value = answer.get(self._member)
        if not isinstance(value, list):
            raise InvalidAnswerError(f"the server's answer to {self._method} has no list `{self._member}`")
        items = cast(list[object], value)
        self._entries += len(items)
        if self._entries > self._limits.max_entries:
            raise self._endless(f"more than {self._limits.max_entries} entries")
        self._bytes += _size_of(items)
        if self._bytes > self._limits.max_bytes:
            raise self._endless(f"more than {self._limits.max_bytes} bytes")
        return items

    def _set_cursor(self, cursor: object) -> None:
        if cursor is None:
            self._is_over = True
            return
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_LENGTH:
            raise InvalidAnswerError(
                f"the server's answer to {self._method} has a cursor that is not a short text"
            )
        if cursor in self._used:
            # This page is still valid; only the next one is not fetched.
            self._problem = self._endless("a repeated cursor")
        self._used.add(cursor)
        self._cursor = cursor

    def _endless(self, what: str) -> EndlessListingError:
        return EndlessListingError(f"the server's answer to {self._method} has {what}")


def _size_of(items: list[object]) -> int:
    """Return the size of items as JSON; those without a JSON form count as 0 and are refused later."""
    try:
        return len(encode(items))
    except (TypeError, ValueError, RecursionError):
        return sum(_size_of([item]) for item in items) if len(items) > 1 else 0


# The declaration of the skills extension in a server's capabilities.


@dataclass(frozen=True, slots=True)
class Declaration:
    """A server's settings for the extension.

    `settings` holds all of them unparsed, unknown ones included.
    """

    directory_read: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


def declared(client: Client) -> Declaration | None:
    """Return the server's declaration; None if it did not declare the extension.

    Revision 2026-07-28 declares in `server/discover` and earlier ones in
    `initialize`; the client stores both in one place. A client with a fixed
    revision, which does not ask the server, has no declaration.
    """
    settings = (client.server_capabilities.extensions or {}).get(EXTENSION)
    if settings is None:
        return None
    return Declaration(settings.get("directoryRead") is True, settings)


def require_skills(client: Client, method: str) -> Declaration:
    """Return the server's declaration, which is required for sending `method`.

    Raises:
        NotDeclaredError: It did not declare the extension.
    """
    declaration = declared(client)
    if declaration is None:
        raise NotDeclaredError(
            f"{method} was not sent: the server has not declared {EXTENSION}",
            violates="NEG-05",
            fix='create the client with mode "auto" or "legacy", so that it requests the capabilities',
        )
    return declaration


def require_directory_read(client: Client) -> None:
    """Check that the server declared `directoryRead` as true.

    Raises:
        NotDeclaredError: It did not.
    """
    if not require_skills(client, READ_DIRECTORY).directory_read:
        raise NotDeclaredError(
            f"{READ_DIRECTORY} was not sent: the server has not declared directoryRead",
            violates="NEG-06",
            fix="use the files in the skill's manifest",
        )
