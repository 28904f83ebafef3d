"""Recognising requests that are plainly good: what the SDK would take without a remark."""

from collections.abc import Callable
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

# How most clients begin a request, and how the others end it.
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


class Request(NamedTuple):
    """A request that is plainly well-formed: its id as JSON, its method, its parameters.

    `has_envelope` says that it carries the modern envelope, in a form the SDK accepts.
    """

    id: bytes
    method: str
    params: dict[str, Any]
    has_envelope: bool = False


class Reply(NamedTuple):
    """What was answered to a request, from its id on."""

    request: Request
    rest: bytes


class RequestReader:
    """Reads requests, and knows those again that differ in nothing but their id.

    A client asks for the same things over and over. What stands around the id
    is kept with what it means, so that the next such request needs no parsing;
    and, as long as nothing changes, with what was answered.
    """

    def __init__(self, knows_envelope: Callable[[object], bool]) -> None:
        self._knows_envelope = knows_envelope
        self._known: dict[bytes, Request] = {}
        self._replies: dict[bytes, Reply] = {}
        self._room = _REPLY_BYTES
        self._state: object = None

    def recall(self, body: bytes, state: object) -> tuple[bytes, "Reply"] | None:
        """Return how to begin the answer to a request, and the rest of it, if it was answered before.

        `state` is what answers depend on; with another one, all are forgotten.
        """
        if state is not self._state:
            self._forget_replies()
            self._state = state
        elif body.startswith(_BEGINNING):
            end = body.find(b",", _START, _START + _LONGEST_NUMBER + 1)
            reply = self._replies.get(body[end:])
            # An answer begins like its request.
            if reply is not None and _is_number(body[_START:end]):
                return body[:end], reply
        return None

    def remember(self, body: bytes, request: Request, answer: bytes, state: object) -> None:
        """Keep a whole answer, if it is not too large, for the next request that differs in its id alone."""
        end = _START + len(request.id)
        is_usual = body.startswith(_BEGINNING) and body[end:] in self._known
        if state is not self._state or len(answer) > _LARGEST_REPLY or not is_usual:
            return
        self._room -= len(body) + len(answer)
        if self._room < 0:
            self._forget_replies()
        self._replies[body[end:]] = Reply(request, answer[end:])

    def _forget_replies(self) -> None:
        self._replies.clear()
        self._room = _REPLY_BYTES

    def read(self, body: bytes) -> Request | None:
        """Return the request, or None when it is not plainly a good one."""
        if body.startswith(_BEGINNING):  # The commonest form, and so the shortest way.
            end = body.find(b",", _START, _START + _LONGEST_NUMBER + 1)
            number, known = body[_START:end], self._known.get(body[end:])
            if known is not None and _is_number(number):
                return known._replace(id=number)
        return self._learn(body)

    def _learn(self, body: bytes) -> Request | None:
        before, number, after = _around_id(body)
        known = self._known.get(_key(before, after)) if number else None
        if known is not None:
            return known._replace(id=number)
        request = parse_request(body)
        if request is None:
            return None
        request = request._replace(has_envelope=self._knows_envelope(request.params.get("_meta")))
        if number and len(body) <= _LARGEST_KNOWN and _is_the_id(before, after, request):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[_key(before, after)] = request
        return request


def parse_request(body: bytes) -> Request | None:
    """Read a request that is plainly good, by looking at all of it."""
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
    return Request(orjson.dumps(identifier), method, arguments)


def response(request: Request, result: Parts) -> Parts:
    """Return the pieces of a whole response."""
    return b'{"jsonrpc":"2.0","id":', request.id, b',"result":', *result, b"}"


def _around_id(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut a request where its id seems to be: what is before it, the number, what is after it.

    The number is empty when there is none in the usual places.
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
    """Tell whether `text` is a number as JSON writes it: nothing begins with a zero, but zero."""
    return text.isdigit() and (text[0] != 0x30 or len(text) == 1)


def _key(before: bytes, after: bytes) -> bytes:
    """Return what tells a request from others: the id stands at one end, and the other side never differs."""
    return before if after == b"}" else after


def _is_the_id(before: bytes, after: bytes, request: Request) -> bool:
    """Prove that the number between two pieces is the request's id, and nothing else changes with it."""
    return all(
        parse_request(before + number + after) == (number, request.method, request.params, False)
        for number in (b"1", b"2")
    )


def _is_plain_id(value: object) -> TypeGuard[int | str]:
    if isinstance(value, str):
        return True
    return type(value) is int and -_MAX_INTEGER_ID < value < _MAX_INTEGER_ID
