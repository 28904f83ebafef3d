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
_START = len(_BEGINNING)
_ENDING = b',"id":'
_LONGEST_NUMBER = 15
_LARGEST_REPLY = 256 * 1024
_REPLY_BYTES = 1024 * 1024
_MAX_ASKED = 4096

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
    """Parses requests, and caches answers to requests that differ only in the id.

    Clients repeat requests. The bytes of a request without its id are the key
    of the answer, until the snapshot changes. An answer is cached when its
    request comes for the second time, because most files are read once. A
    cached answer costs 0.4 us; to read a file of 4 KB again costs 47 us, and
    the budget of a repeated read would be missed.
    """

    def __init__(self, is_valid_envelope: Callable[[object], bool]) -> None:
        self._is_valid_envelope = is_valid_envelope
        self._replies: dict[bytes, CachedReply] = {}
        self._asked: set[int] = set()
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
        else:
            start = body.rfind(_ENDING, -_LONGEST_NUMBER - len(_ENDING) - 1) + len(_ENDING)
            reply, number = self._replies.get(body[:start]), body[start:-1]
            if reply is not None and _is_number(number) and body.endswith(b"}"):
                return _BEGINNING + number, reply
        return None

    def cache_reply(self, body: bytes, request: FastRequest, answer: bytes, state: object) -> None:
        """Cache an answer that is given again, if it is not too large, whatever the id of the request."""
        if state is not self._state or len(answer) > _LARGEST_REPLY:
            return
        key = _without_id(body, request.id)
        mark = hash(key)
        if mark not in self._asked:
            if len(self._asked) >= _MAX_ASKED:
                self._asked.clear()
            self._asked.add(mark)
            return
        # Without escapes, a second key of this name is visible.
        if not key or b"\\" in body or body.count(b'"id"') != 1:
            return
        self._room -= len(body) + len(answer)
        if self._room < 0:
            self._clear_replies()
        self._replies[key] = CachedReply(request, answer[_START + len(request.id) :])

    def _clear_replies(self) -> None:
        self._replies.clear()
        self._room = _REPLY_BYTES

    def read(self, body: bytes) -> FastRequest | None:
        """Return the request, or None when it does not have the usual form."""
        request = parse_request(body)
        if request is None or not self._is_valid_envelope(request.params.get("_meta")):
            return request
        return FastRequest(request.id, request.method, request.params, has_envelope=True)


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


def _without_id(body: bytes, identifier: bytes) -> bytes:
    """Return the bytes of a request on the side of its id that varies; empty if the id is elsewhere."""
    if body.startswith(_BEGINNING):
        return body[_START + len(identifier) :]
    end = len(identifier) + 1
    return body[:-end] if body.endswith(_ENDING + identifier + b"}") else b""


def _is_number(text: bytes) -> bool:
    """Return whether `text` is a JSON integer without leading zeros."""
    return text.isdigit() and (text[0] != 0x30 or len(text) == 1)


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
