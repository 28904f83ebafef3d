"""The first messages on standard input, answered before the server behind them is ready.

Some clients send their first request to a model without a server that takes a
second to answer. So a thread reads and answers what can be answered at once,
while the main thread imports the MCP SDK and opens everything. What it did not
answer is passed on to the connection that takes over.
"""

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from skillwire.core import JsonDict

MOST_UNREAD: Final = 64 * 1024
"""How many bytes are read of messages that wait for the server; more stays in the pipe."""

_CHUNK = 4 * 1024


@dataclass(frozen=True, slots=True)
class Opening:
    """What was read from the client before the server was ready.

    `request` is the first message if it was answered, and `answer` what was
    written; `unread` are later messages that were not answered.
    """

    unread: bytes = b""
    request: bytes = b""
    answer: bytes = b""


NOTHING_READ: Final = Opening()


class EarlyAnswers:
    """Answers messages on standard input in a thread.

    `answer` returns the answer to a message, or None if the server must answer
    it. It is called with each one until the first is not answered, or, with
    `only_first`, with that one alone.
    """

    def __init__(self, answer: Callable[[bytes], bytes | None], *, only_first: bool = False) -> None:
        self._answer = answer
        self._only_first = only_first
        self._opening = NOTHING_READ

    def start(self) -> None:
        """Start to wait for the first message."""
        # Descriptors of its own, because the standard ones are replaced meanwhile.
        self._incoming, self._outgoing = os.dup(0), os.dup(1)
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True, name="handshake")
        self._thread.start()

    def stop(self) -> Opening:
        """Read no more, and return what was read and answered."""
        os.close(self._stop)
        self._thread.join()
        for descriptor in (self._stopped, self._incoming, self._outgoing):
            os.close(descriptor)
        return self._opening

    def _run(self) -> None:
        received, waiting = b"", b""
        with suppress(OSError):  # Whoever reads next, or writes, reports it.
            while len(waiting) + len(received) <= MOST_UNREAD:
                ready, _, _ = select.select([self._incoming, self._stopped], [], [])
                chunk = b"" if self._stopped in ready else os.read(self._incoming, _CHUNK)
                if not chunk:
                    return
                received += chunk
                self._keep(waiting + received)
                while b"\n" in received:
                    line, _, received = received.partition(b"\n")
                    answer = self._answer(line)
                    if answer is None:
                        waiting += line + b"\n"
                    else:
                        self._write(answer + b"\n")
                        if not self._opening.request:
                            self._opening = Opening(b"", line, answer)
                    self._keep(waiting + received)
                    if self._only_first or not self._opening.request:
                        return

    def _keep(self, unread: bytes) -> None:
        self._opening = Opening(unread, self._opening.request, self._opening.answer)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._outgoing, data) :]


_early: EarlyAnswers | None = None


def start_answering(early: EarlyAnswers) -> None:
    """Start to answer early in this process, until `take_opening`."""
    global _early
    early.start()
    _early = early


def take_opening() -> Opening:
    """End the early answering of this process, and return what came of it."""
    global _early
    early, _early = _early, None
    return NOTHING_READ if early is None else early.stop()


# Messages of the usual form: every client of the SDKs and agents that were tried sends them so.


_HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_REQUEST_KEYS: Final = frozenset({"jsonrpc", "id", "method", "params"})
_INITIALIZE_KEYS: Final = frozenset({"protocolVersion", "capabilities", "clientInfo"})
_CAPABILITIES: Final = frozenset({"roots", "sampling", "elicitation", "experimental", "extensions"})
_LARGEST_ID: Final = 2**53
_LARGEST_MESSAGE: Final = 8 * 1024
# Every JSON parser accepts this nesting.
_MOST_BRACKETS: Final = 100


def usual_request(line: bytes) -> JsonDict | None:
    """Return a request of the usual form, with `params` if it has none; None for any other message."""
    if len(line) > _LARGEST_MESSAGE or line.count(b"{") + line.count(b"[") > _MOST_BRACKETS:
        return None
    try:
        message: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict):
        return None
    fields: JsonDict = {"params": {}, **cast(JsonDict, message)}
    identifier = fields.get("id")
    if fields.keys() != _REQUEST_KEYS or fields["jsonrpc"] != "2.0" or not isinstance(fields["params"], dict):
        return None
    is_number = type(identifier) is int and -_LARGEST_ID < identifier < _LARGEST_ID
    return fields if is_number or isinstance(identifier, str) else None


def is_usual_handshake(params: JsonDict) -> bool:
    """Return whether the parameters of `initialize` are of the usual form."""
    return (
        params.keys() == _INITIALIZE_KEYS
        and params["protocolVersion"] in _HANDSHAKE_VERSIONS
        and are_usual_capabilities(params["capabilities"])
        and is_usual_info(params["clientInfo"])
    )


def is_usual_info(info: object) -> bool:
    """Return whether a client describes itself with texts, its name and version among them."""
    if not isinstance(info, dict):
        return False
    fields = cast(JsonDict, info)
    return "name" in fields and "version" in fields and all(isinstance(one, str) for one in fields.values())


def are_usual_capabilities(capabilities: object) -> bool:
    """Return whether all capabilities are objects of objects; of `roots`, the only member is a flag."""
    if not isinstance(capabilities, dict):
        return False
    fields = cast(JsonDict, capabilities)
    if not fields.keys() <= _CAPABILITIES or not all(isinstance(one, dict) for one in fields.values()):
        return False
    roots = fields.get("roots", {})
    others = [member for name, members in fields.items() if name != "roots" for member in members.values()]
    return (
        roots.keys() <= {"listChanged"}
        and all(isinstance(flag, bool) for flag in roots.values())
        and all(isinstance(member, dict) for member in others)
    )
