"""A server on two pipes: our end of them, and the process at the other.

The SDK's own transport collects a line for as long as it grows; here nothing
is kept beyond the cap, and a line is parsed only when it is whole.
"""

import logging
import math
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, cast

import anyio
import mcp_types as types
import orjson
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from skillwire.core.characters import quoted
from skillwire.errors import LimitError
from skillwire.host.connections.endpoints import StdioEndpoint
from skillwire.host.connections.framing import LineBuffer
from skillwire.host.connections.link import WRITES_WAITING, Link, Streams
from skillwire.host.connections.parcels import SMALLEST
from skillwire.host.failures import MessageTooLargeError, UnavailableError
from skillwire.sources.garbage import collector_paused

_CHUNK = 64 * 1024
_WORDS_KEPT = 4 * 1024
_POLL = 0.02
_WATCH = 0.2
# How long an exit may take to be seen after the output ended, and the output to end after an exit.
_AFTERMATH = 0.5
_KILL_SECONDS = 2.0

logger = logging.getLogger(__name__)


@asynccontextmanager
async def stdio_transport(
    endpoint: StdioEndpoint, link: Link, *, write_seconds: float
) -> AsyncGenerator[Streams]:
    """Start the server and speak to it; when the block ends, nothing of it is left.

    Raises:
        UnavailableError: The command cannot be started.
    """
    child = _Child(await _spawn(endpoint), link, write_seconds)
    async with anyio.create_task_group() as tasks:
        for task in (child.read, child.write, child.listen, child.watch):
            tasks.start_soon(task)
        try:
            yield child.incoming, child.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()
            tasks.cancel_scope.cancel()


async def _spawn(endpoint: StdioEndpoint) -> Process:
    # A cancellation while a process starts would leave one that nobody knows.
    with anyio.CancelScope(shield=True):
        return await _opened(endpoint)
    raise AssertionError("a shielded scope does not end early")


async def _opened(endpoint: StdioEndpoint) -> Process:
    try:
        return await anyio.open_process(
            [endpoint.command, *endpoint.args],
            env=get_default_environment() | dict(endpoint.env),
            cwd=endpoint.cwd,
            # A session of its own: signals to our terminal do not reach it, and its children end with it.
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(
            f"the server's command cannot be started: {error.strerror or type(error).__name__}",
            fix="check the command and the folder in the configuration",
        ) from error
    except ValueError as error:
        raise UnavailableError("the server's command holds a character that none can have") from error


class _Child:
    """The process, its three pipes, and the tasks that serve them."""

    def __init__(self, process: Process, link: Link, write_seconds: float) -> None:
        self._process = process
        self._link = link
        self._write_seconds = write_seconds
        self._words = bytearray()
        self._read_over = anyio.Event()
        self._sends: MemoryObjectSendStream[SessionMessage | Exception]
        self.incoming: MemoryObjectReceiveStream[SessionMessage | Exception]
        self._sends, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing: MemoryObjectSendStream[SessionMessage]
        self._receives: MemoryObjectReceiveStream[SessionMessage]
        self.outgoing, self._receives = anyio.create_memory_object_stream[SessionMessage](WRITES_WAITING)

    async def read(self) -> None:
        """Hand on the messages on its output, until that ends or breaks a limit."""
        lines = LineBuffer(self._link.cap)
        try:
            async with self._sends:
                while data := await _received(self._process.stdout):
                    try:
                        await self._hand_on(lines, data)
                    except MessageTooLargeError as error:
                        self._link.end(error)
                    if self._link.is_over:
                        break
                else:
                    self._link.end(await self._end())
        finally:
            self._read_over.set()
        # Whoever is stopped while it writes could not end by itself.
        while await _received(self._process.stdout):
            pass

    async def _hand_on(self, lines: LineBuffer, data: bytes) -> None:
        for line in lines.feed(data):
            if not self._link.admit():
                return
            if (message := _message_of(line)) is not None:
                self._link.overhear(message)
                try:
                    await self._sends.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._link.end(_closed())

    async def write(self) -> None:
        """Write our messages to its input; a server that does not read them is given up."""
        stdin = cast(ByteSendStream, self._process.stdin)
        with self._receives:
            async for item in self._receives:
                try:
                    data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                except ValueError:
                    logger.warning("a message to a server could not be written as JSON and was not sent")
                    continue
                if isinstance(item.message, types.JSONRPCRequest):
                    self._link.expect()
                with anyio.move_on_after(self._write_seconds) as clock:
                    try:
                        await stdin.send(data)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                        self._link.end(await self._end())
                        return
                if clock.cancelled_caught:
                    self._link.end(UnavailableError("the server does not read its input"))
                    return

    async def listen(self) -> None:
        """Keep the last words on its standard error, for whoever wants to know why it ended."""
        while data := await _received(self._process.stderr):
            self._words += data
            del self._words[:-_WORDS_KEPT]

    async def watch(self) -> None:
        """Notice an exit even when a grandchild keeps the output open."""
        await _until(lambda: self._process.returncode is not None, math.inf, _WATCH)
        with anyio.move_on_after(_AFTERMATH):
            await self._read_over.wait()
        self._link.end(await self._end())

    async def stop(self) -> None:
        """End the process and its whole group, and reap it; every step is bounded."""
        self.incoming.close()
        self.outgoing.close()
        stdin = cast(ByteSendStream, self._process.stdin)
        with anyio.move_on_after(_KILL_SECONDS), suppress(anyio.BrokenResourceError, OSError):
            await stdin.aclose()
        # Whoever broke a limit gets no time to break another.
        if not isinstance(self._link.failure, LimitError):
            await self._exited(self._link.limits.exit_grace)
        for number in _SIGNALS:
            if not _signal_group(self._process, number):
                break
            await _until(lambda: not _signal_group(self._process, 0), _KILL_SECONDS)
        if not await self._exited(_KILL_SECONDS):
            logger.warning("a server's process is still there after it was killed: %d", self._process.pid)
        for stream in (self._process.stdout, self._process.stderr):
            with suppress(anyio.BrokenResourceError, OSError):
                await cast(ByteReceiveStream, stream).aclose()
        _close_transport(self._process)

    async def _end(self) -> UnavailableError:
        """Say how it ended, with its exit code if that is known soon."""
        await self._exited(_AFTERMATH)
        code = self._process.returncode
        if code is None:
            what = "closed its output"
        elif code < 0:
            what = f"was ended by signal {-code}"
        else:
            what = f"ended with exit code {code}"
        lines = self._words.decode(errors="replace").strip().splitlines()
        words = f"; its last words: {quoted(_telling(lines)[-110:])}" if lines else ""
        return UnavailableError(f"the server's process {what}{words}")

    async def _exited(self, seconds: float) -> bool:
        """Wait for the exit code. `Process.wait` would also wait for pipes that a grandchild may hold."""
        return await _until(lambda: self._process.returncode is not None, seconds)


def _telling(lines: list[str]) -> str:
    """Return the last line that names an error, since some say more after it; else the last of all."""
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1].strip()


async def _until(condition: Callable[[], bool], seconds: float, pause: float = _POLL) -> bool:
    """Wait for something that gives no sign when it happens."""
    deadline = anyio.current_time() + seconds
    while not condition():
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(pause)
    return True


_SIGNALS = (signal.SIGTERM, signal.SIGKILL) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,)


def _signal_group(process: Process, number: int) -> bool:
    """Send a signal to the whole group, which is named after its leader; false when nobody is left.

    The leader's id still names the group after its exit was seen, and is given
    to no other process while the group has members.
    """
    if not hasattr(os, "killpg"):
        if process.returncode is None and number:
            process.send_signal(signal.Signals(number))
        return process.returncode is None
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Someone is there who may not be signalled; macOS says so of the dead as well.
        return True
    return True


async def _received(stream: ByteReceiveStream | None) -> bytes:
    """Return the next bytes; none when there will not be any."""
    assert stream is not None
    try:
        return await stream.receive(_CHUNK)
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        return b""


def _message_of(line: bytes) -> SessionMessage | None:
    """Parse a line; None for what is no message, as a greeting on standard output is none."""
    if not line.strip():
        return None
    try:
        return SessionMessage(_parsed(line))
    except ValueError:
        return _broken_answer(line)


def _parsed(line: bytes) -> types.JSONRPCMessage:
    """Parse a line; four times faster than the SDK alone, which is asked about all that is unusual."""
    adapter = types.jsonrpc_message_adapter
    try:
        with collector_paused() if len(line) >= SMALLEST else nullcontext():
            return adapter.validate_python(orjson.loads(line), by_name=False)
    except ValueError:
        return adapter.validate_json(line, by_name=False)


def _broken_answer(line: bytes) -> SessionMessage | None:
    """Turn what should have been an answer into an error, so that nobody waits for a better one."""
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    identifier = cast(dict[str, Any], value).get("id") if isinstance(value, dict) else None
    if isinstance(identifier, bool) or not isinstance(identifier, int | str) or "method" in value:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="the answer is no JSON-RPC response")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=identifier, error=error))


def _close_transport(process: Process) -> None:
    """Close what asyncio keeps of a process: it stays open while a survivor holds a pipe, and warns later.

    There is no public way to it.
    """
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError, ProcessLookupError):
            transport.close()


def _closed() -> UnavailableError:
    return UnavailableError("the connection was closed")
