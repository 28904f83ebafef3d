"""Where messages end, however the bytes are cut, and what becomes of those without an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.calls.session import MessageCap
from skillwire.host.connect.messages import EventMeter
from skillwire.host.connect.stdio import LineBuffer
from skillwire.host.model.errors import MessageTooLargeError


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, and one more with the rest."""
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


SIZES = st.lists(st.integers(0, 7), max_size=30)


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"."))), SIZES)
def test_lines_are_found_however_the_bytes_are_cut(lines: list[bytes], sizes: list[int]) -> None:
    buffer = LineBuffer(MessageCap(10))
    data = b"".join(line + b"\n" for line in lines) + b"rest"

    assert [line for piece in cut(data, sizes) for line in buffer.feed(piece)] == lines


@pytest.mark.requirement("LIM-06")
@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"ok\n" + b"x" * 11])
def test_a_line_longer_than_the_cap_is_never_given_out(data: bytes) -> None:
    buffer = LineBuffer(MessageCap(10))
    found: list[bytes] = []

    with pytest.raises(MessageTooLargeError):
        for number in range(len(data)):
            found.extend(buffer.feed(data[number : number + 1]))

    assert found in ([], [b"ok"])


def test_a_line_as_long_as_the_cap_is_given_out() -> None:
    assert list(LineBuffer(MessageCap(10)).feed(b"x" * 10 + b"\n")) == [b"x" * 10]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(sizes=SIZES)
def test_a_stream_may_go_on_for_ever_as_long_as_its_events_end(end: bytes, sizes: list[int]) -> None:
    meter = EventMeter(MessageCap(30))
    data = (b"event: a" + end + b"data: b" + end + end) * 50

    assert sum(meter.feed(piece) for piece in cut(data, sizes)) >= 45


@pytest.mark.requirement("LIM-06")
@pytest.mark.parametrize(
    "data", [b"data: " + b"x" * 40, b"data: x\n" * 10, b"data: x\r\n" * 10, b": x\n" * 20]
)
@given(sizes=SIZES)
def test_an_event_without_an_end_is_too_large(data: bytes, sizes: list[int]) -> None:
    meter = EventMeter(MessageCap(30))

    with pytest.raises(MessageTooLargeError):
        for piece in cut(data, sizes):
            meter.feed(piece)


def test_comments_and_empty_lines_count_as_events() -> None:
    meter = EventMeter(MessageCap(1000))

    assert meter.feed(b":\n:\n:\n\n" * 10) >= 20
    assert meter.feed(b"\n" * 20) >= 10
