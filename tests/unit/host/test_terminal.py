"""The user's terminal: a line is an answer only when it was typed after the question, and in time."""

import os
import pty
import termios
from collections.abc import Generator
from dataclasses import dataclass

import anyio
import pytest

from skillwire.host.use.question import DEFAULT_SIZE, LONGEST_ANSWER, Terminal

pytestmark = pytest.mark.anyio

ENOUGH = 10.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A terminal, and the place of the person in front of it."""

    terminal: Terminal
    person: int
    inner: int

    def type(self, text: str) -> None:
        os.write(self.person, text.encode())

    def seen(self, size: int) -> bytes:
        """Return so many bytes of what was written; they may come in pieces."""
        data = b""
        while len(data) < size:
            data += os.read(self.person, size - len(data))
        return data


@pytest.fixture
def seat() -> Generator[Seat]:
    person, inner = pty.openpty()
    # Without echo, so that what is seen is what was written.
    state = termios.tcgetattr(inner)
    state[3] &= ~termios.ECHO
    termios.tcsetattr(inner, termios.TCSANOW, state)
    yield Seat(Terminal(inner, inner), person, inner)
    os.close(person)
    os.close(inner)


async def test_a_line_that_is_typed_is_the_answer(seat: Seat) -> None:
    seat.type("yes\r")

    assert await seat.terminal.read_line(ENOUGH) == "yes"


async def test_what_was_typed_before_is_thrown_away(seat: Seat) -> None:
    seat.type("yes\nye")
    seat.terminal.flush_input()
    seat.type("no\n")

    assert await seat.terminal.read_line(ENOUGH) == "no"


async def test_the_end_of_input_is_no_answer_even_behind_half_a_line(seat: Seat) -> None:
    seat.type("\x04")
    assert await seat.terminal.read_line(ENOUGH) is None

    seat.type("yes\x04\x04")
    assert await seat.terminal.read_line(ENOUGH) is None


async def test_nobody_is_waited_for_longer_than_said(seat: Seat) -> None:
    seat.type("yes")  # And no Enter.

    with anyio.fail_after(ENOUGH):
        assert await seat.terminal.read_line(0.3) is None


async def test_waiting_can_be_cancelled(seat: Seat) -> None:
    with anyio.fail_after(ENOUGH), anyio.move_on_after(0.2) as scope:
        await seat.terminal.read_line(3600)

    assert scope.cancelled_caught


async def test_an_answer_longer_than_any_is_none(seat: Seat) -> None:
    state = termios.tcgetattr(seat.inner)
    state[3] &= ~termios.ICANON
    termios.tcsetattr(seat.inner, termios.TCSANOW, state)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, seat.type, "y" * (LONGEST_ANSWER + 10))
        assert await seat.terminal.read_line(ENOUGH) is None


def test_a_terminal_that_reads_no_utf8_gets_ascii(seat: Seat) -> None:
    Terminal(seat.inner, seat.inner, encoding="iso8859-1").write("Û\n")
    seat.terminal.write("Û\n")

    expected = b"\\xdb\r\n\xc3\x9b\r\n"
    assert seat.seen(len(expected)) == expected


def test_the_size_is_the_terminals_own_and_the_usual_one_when_it_has_none(seat: Seat) -> None:
    assert seat.terminal.size == DEFAULT_SIZE

    termios.tcsetwinsize(seat.inner, (30, 40))

    assert seat.terminal.size == os.terminal_size((40, 30))


def test_nobody_is_found_where_standard_input_is_no_terminal() -> None:
    assert Terminal.find() is None
