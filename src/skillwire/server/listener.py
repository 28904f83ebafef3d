"""The socket of an HTTP server, and the health of the process before the server behind it is ready.

To import the MCP SDK and scan many skills takes seconds, and a supervisor must
not take that for a failure. So a thread answers at `/healthz` and `/readyz`
meanwhile. It reads nothing of any other request: the server takes over those
connections when it is ready.
"""

import selectors
import socket
import threading
import time
from http import HTTPStatus
from types import TracebackType
from typing import Final

from skillwire.server.limits import limit_malloc_arenas

ALIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
HEALTH_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

MOST_WAITING: Final = 256
"""With so many connections that wait for the server, others stay in the queue of the system."""

_LONGEST_HEAD: Final = 4 * 1024
_PAUSE_SECONDS: Final = 0.1
_ANSWERS: Final = {ALIVE_PATH: (200, "ok\n"), READY_PATH: (503, "starting\n")}


def listen_on(host: str, port: int) -> socket.socket:
    """Open the socket that clients connect to; port 0 takes any free port.

    Raises:
        OSError: The address is not available.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener


class EarlyHealth:
    """Answers at `/healthz` and `/readyz` in a thread, until `stop` or the end of the context."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._silent: set[socket.socket] = set()
        self._waiting: list[socket.socket] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "EarlyHealth":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self.stop():
            connection.close()

    def start(self) -> None:
        """Start to answer."""
        limit_malloc_arenas()  # Before there is a thread, which would get an arena of its own.
        self._listener.setblocking(False)
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True, name="health")
        self._thread.start()

    def stop(self) -> list[socket.socket]:
        """Answer no more, and return the connections whose requests were not answered; none of it is read."""
        thread, self._thread = self._thread, None
        if thread is None:
            return []
        self._stop.close()
        thread.join()
        self._stopped.close()
        return [*self._waiting, *self._silent]

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                self._accept_if_room(selector)
                for key, _ in selector.select():
                    ready = key.fileobj
                    if ready is self._stopped:
                        return
                    if ready is self._listener:
                        self._accept(selector)
                    elif isinstance(ready, socket.socket):
                        selector.unregister(ready)
                        self._silent.remove(ready)
                        self._answer(ready)

    def _accept_if_room(self, selector: selectors.BaseSelector) -> None:
        has_room = len(self._waiting) + len(self._silent) < MOST_WAITING
        is_accepting = self._listener in selector.get_map()
        if has_room and not is_accepting:
            selector.register(self._listener, selectors.EVENT_READ)
        elif is_accepting and not has_room:
            selector.unregister(self._listener)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # The client has gone.
        except OSError:  # Too many files are open.
            time.sleep(_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        self._silent.add(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _answer(self, connection: socket.socket) -> None:
        """Answer if the connection has one whole request about health; else leave it unread."""
        try:
            head = connection.recv(_LONGEST_HEAD, socket.MSG_PEEK)
            answer = _answer_to(head)
            if answer is None and head:
                self._waiting.append(connection)
                return
            with connection:
                if answer is not None:
                    connection.recv(len(head))
                    connection.send(answer)
                    connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()


def _answer_to(head: bytes) -> bytes | None:
    """Return the answer to a whole request at one of these paths; None for anything else."""
    method, _, rest = head.partition(b" ")
    target, _, version = rest.partition(b"\r\n")[0].partition(b" ")
    found = _ANSWERS.get(target.decode("latin-1"))
    is_whole = head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1
    if found is None or not is_whole or method not in (b"GET", b"HEAD") or version != b"HTTP/1.1":
        return None
    status, text = found
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in HEALTH_HEADERS.items()),
        f"content-length: {len(text)}",
        f"content-type: {PLAIN_TEXT}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", text if method == b"GET" else ""]).encode()
