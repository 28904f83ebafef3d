"""Parses requests of the usual form, which the SDK would accept unchanged."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast

import orjson

from skillwire.wire.core import GET_SKILL, LIST_SKILLS, READ_DIRECTORY, READ_RESOURCE

METHODS: Final = frozenset({LIST_SKILLS, GET_SKILL, READ_RESOURCE, READ_DIRECTORY})

_MAX_INTEGER_ID = 2**53
_REQUEST_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = {
    LIST_SKILLS: frozenset({"_meta", "cursor"}),
    GET_SKILL: frozenset({"_meta", "uri"}),
    READ_RESOURCE: frozenset({"_meta", "uri"}),
    READ_DIRECTORY: frozenset({"_meta", "uri", "cursor"}),
}

# Most clients put the id at the beginning of a request, others at the end.
_BEGINNING = b'{"jsonrpc":"2.0","id":'
_BEGINNINGS = (_BEGINNING, b'{"jsonrpc": "2.0", "id": ')
_START = len(_BEGINNING)
_ENDING = b',"id":'
_LONGEST_NUMBER = 15
_LARGEST_KNOWN = 2048
_MAX_KNOWN = 1024
_LARGEST_REPLY = 256 * 1024
_REPLY_BYTES = 1024 * 1024

Parts: TypeAlias = tuple[bytes, ...]
"""Pieces of a JSON text, to be joined once."""


class FastRequest(NamedTuple):
    """A well-formed request: its id as JSON, its method, its parameters.

    With `has_envelope`, it has a modern envelope that the SDK accepts.
    """

    id: bytes
    method: str
    params: dict[str, Any]
    has_envelope: bool = False


class CachedReply(NamedTuple):
    """The answer to a request, after the id."""

    request: FastRequest
    rest: bytes


class RequestReader:
    """Parses requests, and caches requests and answers that differ only in the id.

    Clients repeat requests. The bytes around the id are the cache key of the
    parsed request, and, until the snapshot changes, of the answer.
    """

    def __init__(self, is_valid_envelope: Callable[[object], bool]) -> None:
        self._is_valid_envelope = is_valid_envelope
        self._known: dict[bytes, FastRequest] = {}
        self._replies: dict[bytes, CachedReply] = {}
        self._room = _REPLY_BYTES
        self._state: object = None

    @property
    def cached_bytes(self) -> int:
        """The size of the cached answers in bytes."""
        return _REPLY_BYTES - self._room

    def cached_reply(self, body: bytes, state: object) -> tuple[bytes, "CachedReply"] | None:
        """Return the beginning of the answer to a request and the cached rest; None if not cached.

        `state` is the object that answers depend on; another one clears the cache.
        """
        if state is not self._state:
            self._clear_replies()
            self._state = state
        elif body.startswith(_BEGINNING):
            end = body.find(b",", _START, _START + _LONGEST_NUMBER + 1)
            reply = self._replies.get(body[end:])
            # An answer begins with the same bytes as its request.
            if reply is not None and _is_number(body[_START:end]):
                return body[:end], reply
        return None

    def cache_reply(self, body: bytes, request: FastRequest, answer: bytes, state: object) -> None:
        """Cache an answer, if it is not too large, for requests that differ only in the id."""
        end = _START + len(request.id)
        is_usual = body.startswith(_BEGINNING) and body[end:] in self._known
        if state is not self._state or len(answer) > _LARGEST_REPLY or not is_usual:
            return
        self._room -= len(body) + len(answer)
        if self._room < 0:
            self._clear_replies()
        self._replies[body[end:]] = CachedReply(request, answer[end:])

    def _clear_replies(self) -> None:
        self._replies.clear()
        self._room = _REPLY_BYTES

    def read(self, body: bytes) -> FastRequest | None:
        """Return the request, or None when it does not have the usual form."""
        if body.startswith(_BEGINNING):  # The most common form.
            end = body.find(b",", _START, _START + _LONGEST_NUMBER + 1)
            number, known = body[_START:end], self._known.get(body[end:])
            if known is not None and _is_number(number):
                return known._replace(id=number)
        return self._parse_and_cache(body)

    def _parse_and_cache(self, body: bytes) -> FastRequest | None:
        before, number, after = _around_id(body)
        known = self._known.get(_key(before, after)) if number else None
        if known is not None:
            return known._replace(id=number)
        request = parse_request(body)
        if request is None:
            return None
        request = request._replace(has_envelope=self._is_valid_envelope(request.params.get("_meta")))
        if number and len(body) <= _LARGEST_KNOWN and _is_the_id(before, after, request):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[_key(before, after)] = request
        return request


def parse_request(body: bytes) -> FastRequest | None:
    """Parse a request of the usual form; return None for any other."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict):
        return None
    fields = cast(dict[str, Any], message)
    method = fields.get("method")
    if fields.keys() != _REQUEST_KEYS or fields["jsonrpc"] != "2.0":
        return None
    if not isinstance(method, str) or method not in METHODS:
        return None
    identifier, params = fields["id"], fields["params"]
    if not _is_plain_id(identifier) or not isinstance(params, dict):
        return None
    arguments = cast(dict[str, Any], params)
    if not arguments.keys() <= _PARAMS[method]:
        return None
    if not isinstance(arguments.get("cursor", ""), str) or not isinstance(arguments.get("uri", ""), str):
        return None
    if method != LIST_SKILLS and "uri" not in arguments:
        return None
    return FastRequest(orjson.dumps(identifier), method, arguments)


def response(request: FastRequest, result: Parts) -> Parts:
    """Return the pieces of a whole response."""
    return b'{"jsonrpc":"2.0","id":', request.id, b',"result":', *result, b"}"


def _around_id(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a request at its presumed id: the bytes before it, the number, the bytes after it.

    The number is empty when there is none at the usual positions.
    """
    for beginning in _BEGINNINGS:
        if body.startswith(beginning):
            start = len(beginning)
            end = body.find(b",", start, start + _LONGEST_NUMBER + 1)
            break
    else:
        start = body.rfind(_ENDING, -(_LONGEST_NUMBER + len(_ENDING) + 1)) + len(_ENDING)
        end = len(body) - 1
        if start < len(_ENDING) or body[end:] != b"}":
            return body, b"", b""
    number = body[start:end]
    if end < 0 or not _is_number(number):
        return body, b"", b""
    return body[:start], number, body[end:]


def _is_number(text: bytes) -> bool:
    """Return whether `text` is a JSON integer without leading zeros."""
    return text.isdigit() and (text[0] != 0x30 or len(text) == 1)


def _key(before: bytes, after: bytes) -> bytes:
    """Return the cache key of a request: the bytes on the side of the id that varies."""
    return before if after == b"}" else after


def _is_the_id(before: bytes, after: bytes, request: FastRequest) -> bool:
    """Check that the number between two pieces is the request's id and changes nothing else."""
    return all(
        parse_request(before + number + after) == (number, request.method, request.params, False)
        for number in (b"1", b"2")
    )


def _is_plain_id(value: object) -> TypeGuard[int | str]:
    if isinstance(value, str):
        return True
    return type(value) is int and -_MAX_INTEGER_ID < value < _MAX_INTEGER_ID


# `FastPath`: an ASGI application in front of the SDK's, which answers the most common requests.


Message: TypeAlias = MutableMapping[str, Any]


Scope: TypeAlias = MutableMapping[str, Any]


Receive: TypeAlias = Callable[[], Awaitable[Message]]


Send: TypeAlias = Callable[[Message], Awaitable[None]]


App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
