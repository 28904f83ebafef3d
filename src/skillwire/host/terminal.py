"""The user's own terminal: what is written there is seen, and what is typed there came afterwards."""

import os
import select
import sys
import threading
import time
from contextlib import suppress
from typing import Final, TextIO

import anyio.to_thread

try:
    import termios
except ImportError:  # Windows has none, so nobody is asked there.
    termios = None

USUAL_SIZE: Final = os.terminal_size((80, 24))
LONGEST_ANSWER: Final = 4096

_CONTROLLING = "/dev/tty"
_POLL_SECONDS = 0.2
_LINE_ENDS = (b"\n", b"\r")


class Terminal:
    """A terminal with a person at it, by the descriptors for reading and writing.

    `find` gives the one this program was started from. Nothing here goes
    through standard input or output, so neither a pipe nor a file can answer
    in a person's place or hide a question from them.
    """

    def __init__(
        self, reading: int, writing: int, *, encoding: str = "utf-8", is_owner: bool = False
    ) -> None:
        self._reading = reading
        self._writing = writing
        self._is_owner = is_owner
        # A terminal that reads no UTF-8 could take parts of a letter for commands.
        self._encoding = "utf-8" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else "ascii"

    @classmethod
    def find(cls) -> "Terminal | None":
        """Return the terminal this program was started from; None when nobody sits there.

        Who feeds standard input from somewhere else does not expect to be asked.
        """
        if termios is None or not _is_terminal(sys.stdin):
            return None
        encoding = sys.stdin.encoding or "ascii"
        try:
            both = os.open(_CONTROLLING, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            if not _is_terminal(sys.stderr):
                return None
            return cls(sys.stdin.fileno(), sys.stderr.fileno(), encoding=encoding)
        return cls(both, both, encoding=encoding, is_owner=True)

    def close(self) -> None:
        """Let go of what `find` opened."""
        if self._is_owner:
            self._is_owner = False
            os.close(self._writing)

    @property
    def size(self) -> os.terminal_size:
        """How many columns and lines there are now."""
        try:
            found = os.get_terminal_size(self._writing)
        except OSError:
            return USUAL_SIZE
        return os.terminal_size((found.columns or USUAL_SIZE.columns, found.lines or USUAL_SIZE.lines))

    def write(self, text: str) -> None:
        """Write a text as it is: the caller has made it harmless. A terminal that is gone is no failure."""
        data = text.encode(self._encoding, "backslashreplace")
        with suppress(OSError):
            while data:
                data = data[os.write(self._writing, data) :]

    def forget_typed(self) -> None:
        """Throw away what was typed so far: it was no answer to what is asked next."""
        if termios is not None:
            with suppress(OSError, termios.error):
                termios.tcdrain(self._writing)
                termios.tcflush(self._reading, termios.TCIFLUSH)

    async def read_line(self, seconds: float) -> str | None:
        """Wait for a line to be typed; None when the input ends, or the time is over, before it does."""
        stop = threading.Event()
        deadline = time.monotonic() + seconds
        # A thread that is left behind goes on for a moment, so it has a descriptor of its own.
        own = os.dup(self._reading)
        try:
            return await anyio.to_thread.run_sync(_read_line, own, deadline, stop, abandon_on_cancel=True)
        finally:
            stop.set()


def _read_line(descriptor: int, deadline: float, stop: threading.Event) -> str | None:
    typed = b""
    try:
        while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], min(left, _POLL_SECONDS))[0]:
                continue
            data = os.read(descriptor, LONGEST_ANSWER)
            typed += data
            if not data or len(typed) > LONGEST_ANSWER:
                return None
            if typed.endswith(_LINE_ENDS):
                return typed.decode("utf-8", "replace").rstrip("\r\n")
    except (OSError, ValueError):
        return None  # The terminal is gone.
    finally:
        os.close(descriptor)
    return None


def _is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is one a person sees; it may be closed, or missing altogether."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
