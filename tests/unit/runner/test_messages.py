"""Messages between the program and the init of a sandbox: whoever is at the other end may lie."""

import socket
from collections.abc import Generator

import pytest

from skillwire.core.errors import RunnerError
from skillwire.runner.sandbox.conversation import (
    MAX_MESSAGE,
    message,
    parse_message,
    receive,
    receive_message,
)

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Generator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        yield ours, theirs


def test_a_message_arrives_as_it_was_sent_and_leaves_what_follows_it(ends: Ends) -> None:
    ours, theirs = ends
    theirs.sendall(message({"ready": True, "name": "grün"}) + b"rest")

    assert receive_message(ours) == {"ready": True, "name": "grün"}
    assert receive(ours, 4) == b"rest"


def test_a_message_may_come_in_pieces(ends: Ends) -> None:
    ours, theirs = ends
    whole = message({"text": "x" * 100})
    for byte in whole:
        theirs.sendall(bytes([byte]))

    assert receive_message(ours) == {"text": "x" * 100}


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x05", b"\0\0\0\x05{}"])
def test_a_message_that_breaks_off_is_none(ends: Ends, sent: bytes) -> None:
    ours, theirs = ends
    theirs.sendall(sent)
    theirs.close()

    assert receive_message(ours) is None


def test_a_message_that_announces_too_much_is_refused_before_it_is_read(ends: Ends) -> None:
    ours, theirs = ends
    theirs.sendall((MAX_MESSAGE + 1).to_bytes(4, "big"))

    with pytest.raises(RunnerError, match="too large"):
        receive_message(ours)


def test_a_message_that_does_not_come_is_not_waited_for_without_end(ends: Ends) -> None:
    ours, theirs = ends
    ours.settimeout(0.05)
    theirs.sendall(b"\0\0")

    with pytest.raises(TimeoutError):
        receive_message(ours)


@pytest.mark.parametrize(
    "text",
    [b"", b"no", b"[]", b"1", b"null", b'"ready"', b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":NaN}'],
    ids=["empty", "word", "list", "number", "null", "text", "half", "no UTF-8", "deep", "not a number"],
)
def test_what_is_no_json_object_is_no_message(text: bytes) -> None:
    with pytest.raises(RunnerError, match="invalid message"):
        parse_message(text)


def test_fewer_bytes_come_back_when_the_other_side_is_gone(ends: Ends) -> None:
    ours, theirs = ends
    theirs.sendall(b"abc")
    theirs.close()

    assert receive(ours, 10) == b"abc"
