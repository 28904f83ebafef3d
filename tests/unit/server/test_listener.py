"""What a supervisor gets to hear before the server is ready, and what is left for the server."""

import socket
from collections.abc import Generator

import pytest

from skillwire.server import listener as subject
from skillwire.server.listener import EarlyHealth, listen_on

POST = b"POST /mcp HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\n{}"
WITHIN = 30.0


@pytest.fixture
def listener() -> Generator[socket.socket]:
    with listen_on("127.0.0.1", 0) as bound:
        yield bound


def connect(listener: socket.socket, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(listener.getsockname(), WITHIN)
    client.sendall(sent)
    return client


def answer_to(listener: socket.socket, request: str) -> tuple[bytes, bytes]:
    """Return the status line and the body of the answer, after which the connection must end."""
    with connect(listener, f"{request} HTTP/1.1\r\nhost: here\r\n\r\n".encode()) as client:
        received = b"".join(iter(lambda: client.recv(4096), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body


def test_a_process_that_starts_is_alive_and_not_ready(listener: socket.socket) -> None:
    with EarlyHealth(listener) as health:
        health.start()

        assert answer_to(listener, "GET /healthz") == (b"HTTP/1.1 200 OK", b"ok\n")
        assert answer_to(listener, "GET /readyz") == (b"HTTP/1.1 503 Service Unavailable", b"starting\n")
        assert answer_to(listener, "HEAD /readyz") == (b"HTTP/1.1 503 Service Unavailable", b"")


@pytest.mark.parametrize(
    "sent",
    [
        POST,
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n",
        b"POST /readyz HTTP/1.1\r\nhost: here\r\n\r\n",
        b"GET /readyz HTTP/1.0\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nhost:",
        b"GET /readyz HTTP/1.1\r\nhost: here\r\n\r\n" * 2,
        b"GET /readyz HTTP/1.1\r\nhost: here\r\nx: " + b"x" * 8000 + b"\r\n\r\n",
        b"\x16\x03\x01 no HTTP",
    ],
)
def test_any_other_request_is_left_to_the_server_unread(listener: socket.socket, sent: bytes) -> None:
    with EarlyHealth(listener) as health:
        health.start()
        with connect(listener, sent) as client, connect(listener) as silent:
            answer_to(listener, "GET /healthz")  # Clients are accepted in the order in which they came.
            left = {one.getpeername(): one for one in health.stop()}
            silent.sendall(b"late")

            assert left.keys() == {client.getsockname(), silent.getsockname()}
            assert read(left[client.getsockname()], len(sent)) == sent
            assert read(left[silent.getsockname()], 4) == b"late"


def read(connection: socket.socket, count: int) -> bytes:
    """Return the next bytes that were sent, however many pieces they come in."""
    connection.settimeout(WITHIN)
    with connection, connection.makefile("rb") as file:
        return file.read(count)


def test_a_client_that_has_gone_is_forgotten(listener: socket.socket) -> None:
    with EarlyHealth(listener) as health:
        health.start()
        connect(listener).close()
        answer_to(listener, "GET /healthz")
        answer_to(listener, "GET /healthz")  # By then the end of the first was seen.

        assert health.stop() == []


def test_more_connections_than_can_wait_stay_in_the_queue(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST_WAITING", 2)
    with EarlyHealth(listener) as health:
        health.start()
        assert answer_to(listener, "GET /healthz")[1] == answer_to(listener, "GET /healthz")[1] == b"ok\n"
        clients = [connect(listener, POST) for _ in range(5)]
        left = health.stop()
        listener.settimeout(WITHIN)
        queued = [listener.accept()[0] for _ in range(len(clients) - len(left))]

        assert len(left) <= 2
        assert {one.getpeername() for one in (*left, *queued)} == {one.getsockname() for one in clients}
        for one in (*clients, *left, *queued):
            one.close()


def test_room_for_one_connection_is_room_for_one_question_after_the_other(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST_WAITING", 1)
    with EarlyHealth(listener) as health:
        health.start()

        assert [answer_to(listener, "GET /healthz")[1] for _ in range(3)] == [b"ok\n"] * 3


def test_what_was_never_started_has_nothing_to_hand_over(listener: socket.socket) -> None:
    with EarlyHealth(listener) as health:
        assert health.stop() == []
