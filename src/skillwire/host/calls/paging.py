"""Walking the pages of a listing that a stranger keeps, and stopping when it does not end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from mcp.client import Client
from mcp.types import Request

from skillwire.errors import INVALID_PARAMS
from skillwire.host.calls.exchange import Answer, ask
from skillwire.host.failures import EndlessListingError, InvalidAnswerError, PeerError
from skillwire.wire.encoding import encode

DEFAULT_PAGES = 1000
DEFAULT_ENTRIES = 100_000
DEFAULT_BYTES = 128 * 1024 * 1024
MAX_CURSOR_LENGTH = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a listing is taken before it counts as endless; `max_bytes` is its size as JSON."""

    max_pages: int = DEFAULT_PAGES
    max_entries: int = DEFAULT_ENTRIES
    max_bytes: int = DEFAULT_BYTES


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its items, and the whole result around them.

    `is_first` is also true when the walk had to start again, and then what
    earlier pages held no longer counts.
    """

    items: list[object]
    answer: Answer
    is_first: bool


class Pager:
    """One walk through a paginated method.

    `member` is the field of the result that holds the items. A cursor the
    server no longer knows sends the walk back to the start, once: the listing
    changed under way (LIST-13). The limits count what was fetched before that.
    """

    def __init__(
        self,
        client: Client,
        request_for: Callable[[str | None], Request[Any, Any]],
        *,
        member: str,
        limits: Limits,
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

    async def next_page(self) -> Page | None:
        """Fetch the next page; None when there is none.

        Raises:
            EndlessListingError: A cursor came again, or a limit is reached.
            InvalidAnswerError: The page is not one.
            PeerError: The server answered with an error, or the connection ended.
        """
        if self._is_over:
            return None
        if self._problem is not None:
            raise self._problem
        answer = await self._fetch()
        page = Page(self._items_of(answer), answer, self._cursor is None)
        self._move_on(answer.get("nextCursor"))
        return page

    async def _fetch(self) -> Answer:
        try:
            return await self._ask()
        except PeerError as error:
            if error.peer_code != INVALID_PARAMS or self._cursor is None:
                raise
            if self._has_restarted:
                message = f"the server does not take the cursors it gives out for {self._method}"
                raise InvalidAnswerError(message, violates="LIST-13") from error
        self._has_restarted = True
        self._cursor = None
        self._used.clear()
        return await self._ask()

    async def _ask(self) -> Answer:
        if self._pages >= self._limits.max_pages:
            raise self._endless(f"more than {self._limits.max_pages} pages")
        self._pages += 1
        return await ask(self._client, self._request_for(self._cursor))

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

    def _move_on(self, cursor: object) -> None:
        if cursor is None:
            self._is_over = True
            return
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_LENGTH:
            raise InvalidAnswerError(
                f"the server's answer to {self._method} has a cursor that is no short text"
            )
        if cursor in self._used:
            # The page that closes the loop is a page all the same; the next one is not fetched.
            self._problem = self._endless("a cursor that comes again")
        self._used.add(cursor)
        self._cursor = cursor

    def _endless(self, what: str) -> EndlessListingError:
        return EndlessListingError(f"the server's answer to {self._method} has {what}")


def _size_of(items: list[object]) -> int:
    """Return how large items are as JSON; those that have no JSON form are refused one by one later."""
    try:
        return len(encode(items))
    except (TypeError, ValueError, RecursionError):
        return sum(_size_of([item]) for item in items) if len(items) > 1 else 0
