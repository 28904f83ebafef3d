"""One run, seen from outside the sandbox: send the job, collect the output, and enforce limits."""

import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Protocol, cast

import orjson

from skillwire.core import RunnerError
from skillwire.runner.outcome import LimitHit, OutputFile, RawOutcome, SkippedOutput, Usage
from skillwire.runner.policy import Limits

# Messages to and from the init of a sandbox: a length, that much JSON, and the bytes it announces.


MAX_MESSAGE = 1024 * 1024


def message(content: dict[str, Any]) -> bytes:
    """Return a message as it is sent."""
    text = orjson.dumps(content)
    return len(text).to_bytes(4, "big") + text


def receive_message(connection: socket.socket) -> dict[str, Any] | None:
    """Wait for a message and return it; None when the connection is closed.

    Raises:
        RunnerError: It is not a valid message.
        TimeoutError: No message arrived in time.
    """
    head = receive(connection, 4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    if size > MAX_MESSAGE:
        raise RunnerError("the message of the sandbox is too large")
    text = receive(connection, size)
    return parse_message(text) if len(text) == size else None


def parse_message(text: bytes) -> dict[str, Any]:
    """Parse a message's JSON.

    Raises:
        RunnerError: It is not a JSON object.
    """
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RunnerError("the sandbox sent an invalid message") from error
    if not isinstance(content, dict):
        raise RunnerError("the sandbox sent an invalid message")
    return cast("dict[str, Any]", content)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer when the connection is closed."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)


SEND_SECONDS = 30.0
GRACE_SECONDS = 5.0
_CHUNK = 1 << 16
_NO_LIMIT = 1 << 62


class StoppedError(Exception):
    """The run was stopped by the caller."""


class StopSignal:
    """An event that can be set from any thread and waited for with a selector."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        os.write(self._write, b"s")

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Network(Protocol):
    """The server of the socket through which a script reaches the network."""

    def start(self, listener: socket.socket) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a sandbox runs. `command` precedes the script; empty runs it in the init's own Python.

    `is_counted_outside` is true when a control group counts memory and
    processes of the whole run, and the init need not.
    """

    script: str
    files: Mapping[str, bytes]
    stdin: bytes
    limits: Limits
    address_space: int
    environment: Mapping[str, str]
    command: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    secrets: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    network: Network | None = None
    is_counted_outside: bool = False

    @property
    def given_bytes(self) -> int:
        """The total size of the files that the script is given."""
        return sum(len(content) for content in (*self.files.values(), *self.secrets.values()))

    def message(self) -> bytes:
        """Return the job as a message to the init."""
        limits = self.limits
        return message(
            {
                "script": self.script,
                "command": list(self.command),
                "argv": list(self.argv),
                "environment": dict(self.environment),
                "files": [[path, len(content)] for path, content in self.files.items()],
                "secrets": [[name, len(content)] for name, content in self.secrets.items()],
                "proxy": self.network is not None,
                "limits": {
                    "wall_seconds": limits.wall_seconds,
                    "cpu_seconds": limits.cpu_seconds,
                    "memory_bytes": _NO_LIMIT if self.is_counted_outside else limits.memory_bytes,
                    # One more with a control group, so that its limit is reached first and reported.
                    "processes": limits.processes + self.is_counted_outside,
                    "open_files": limits.open_files,
                    "disk_bytes": limits.disk_bytes,
                    "output_files": limits.output_files,
                    "output_bytes": limits.output_bytes,
                    "address_space": self.address_space,
                    "count_kernel_memory": not self.is_counted_outside,
                },
            }
        )


class _CapturedStream:
    """The beginning of a stream, and its total length."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.content = bytearray()
        self.total = 0

    def take(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self.content += chunk[: self.most - len(self.content)]


class SandboxRun:
    """One run: sends a job into a sandbox and collects its output, within limits, until the sandbox ends."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        job: Job,
        stop: StopSignal,
        *,
        kill: Callable[[], None],
    ) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RunnerError("a sandbox without streams")
        self._stdin: IO[bytes] = process.stdin
        self._connection = connection
        self._job = job
        self._stop = stop
        self._kill = kill
        self._streams: dict[IO[bytes], _CapturedStream] = {
            process.stdout: _CapturedStream(job.limits.stdout_bytes),
            process.stderr: _CapturedStream(job.limits.stderr_bytes),
        }
        self._report = bytearray()
        self._most_report = 4 + MAX_MESSAGE + job.limits.output_bytes
        self._limit: LimitHit | None = None
        self._selector = selectors.DefaultSelector()
        self._started = time.monotonic()
        self._unsent = memoryview(job.stdin)

    def __enter__(self) -> "SandboxRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        if self._job.network is not None:
            self._job.network.close()

    def send(self) -> None:
        """Send the job and its files.

        Raises:
            RunnerError: The sandbox does not accept them.
        """
        connection = self._connection
        connection.settimeout(SEND_SECONDS)
        try:
            connection.sendall(self._job.message())
            for content in (*self._job.files.values(), *self._job.secrets.values()):
                connection.sendall(content)
            if self._job.network is not None:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                self._job.network.start(socket.socket(fileno=descriptors[0]))
        except (OSError, IndexError) as error:
            raise RunnerError("the sandbox did not accept the script") from error

    def relay(self) -> None:
        """Send standard input and read all output, until the init has reported and closed.

        Raises:
            Stopped: The stop signal was set.
        """
        connection, selector = self._connection, self._selector
        connection.setblocking(False)
        for stream in (*self._streams, self._stdin):
            os.set_blocking(stream.fileno(), False)
        for stream in self._streams:
            selector.register(stream, selectors.EVENT_READ, self._read_output)
        selector.register(self._stdin, selectors.EVENT_WRITE, self._send_input)
        selector.register(connection, selectors.EVENT_READ, self._read_report)
        selector.register(self._stop.fileno(), selectors.EVENT_READ, self._on_stop)
        deadline = self._started + self._job.limits.wall_seconds + GRACE_SECONDS
        while connection in selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                self._limit = self._limit or LimitHit(
                    "wall_seconds", self._job.limits.wall_seconds, time.monotonic() - self._started
                )
                self._kill()
                break
            for key, _ in selector.select(left):
                key.data(key.fileobj)

    def finish(self, hit: LimitHit | None = None) -> RawOutcome:
        """Read what is left in the pipes after the sandbox has ended, and return the result.

        `hit` is the limit at which the kernel killed the run before the init could report.

        Raises:
            RunnerError: The init ended without a report.
        """
        for stream, kept in self._streams.items():
            while kept.total <= self._job.limits.flood_bytes and (chunk := _chunk(stream)):
                kept.take(chunk)
        stdout, stderr = self._streams.values()
        self._limit = self._limit or hit
        report = self._parsed_report()
        if report is None and self._limit is None:
            raise RunnerError("the sandbox ended without a report; the machine may be out of memory")
        report = report or {}
        if "failed" in report:
            raise RunnerError(f"the script was not started: {report['failed']}")
        peak = report.get("peak", {})
        usage = Usage(
            wall_seconds=report.get("wall_seconds", time.monotonic() - self._started),
            cpu_seconds=report.get("cpu_seconds", 0.0),
            memory_bytes=peak.get("memory_bytes", 0),
            processes=peak.get("processes", 0),
            disk_bytes=peak.get("disk_bytes", 0),
            disk_files=peak.get("disk_files", 0),
            stdout_bytes=stdout.total,
            stderr_bytes=stderr.total,
        )
        reported = report.get("limit")
        limit = self._limit or (LimitHit(*reported) if reported else None)
        files, skipped = ((), ()) if limit else self._outputs(report)
        return RawOutcome(
            report.get("status"), limit, bytes(stdout.content), bytes(stderr.content), usage, files, skipped
        )

    def _read_output(self, stream: IO[bytes]) -> None:
        chunk = _chunk(stream)
        if chunk is None:
            return
        kept = self._streams[stream]
        kept.take(chunk)
        most = self._job.limits.flood_bytes
        if not chunk:
            self._selector.unregister(stream)
        elif kept.total > most and self._limit is None:
            self._limit = LimitHit("flood_bytes", most, kept.total)
            self._kill()

    def _send_input(self, stream: IO[bytes]) -> None:
        try:
            sent = os.write(stream.fileno(), self._unsent[:_CHUNK]) if self._unsent else 0
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = memoryview(b"")  # A script need not read its input.
        if not self._unsent:
            self._selector.unregister(stream)
            stream.close()

    def _read_report(self, connection: socket.socket) -> None:
        try:
            chunk = connection.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self._selector.unregister(connection)
            return
        self._report += chunk
        if len(self._report) > self._most_report:
            self._kill()
            raise RunnerError("the report of the sandbox is too large")

    def _on_stop(self, _: object) -> None:
        self._kill()
        raise StoppedError

    def _parsed_report(self) -> dict[str, Any] | None:
        size = int.from_bytes(self._report[:4], "big")
        if len(self._report) < 4 or len(self._report) < 4 + size:
            return None
        return parse_message(bytes(self._report[4 : 4 + size]))

    def _outputs(self, report: dict[str, Any]) -> tuple[tuple[OutputFile, ...], tuple[SkippedOutput, ...]]:
        place = 4 + int.from_bytes(self._report[:4], "big")
        files: list[OutputFile] = []
        for path, size in report.get("files", ()):
            content = bytes(self._report[place : place + size])
            if len(content) < size:
                raise RunnerError("the sandbox did not send all of its output")
            files.append(OutputFile(path, content))
            place += size
        return tuple(files), tuple(SkippedOutput(path, reason) for path, reason in report.get("skipped", ()))


def _chunk(stream: IO[bytes]) -> bytes | None:
    """Return the available bytes of a stream; None when there are none yet, empty at its end."""
    try:
        return os.read(stream.fileno(), _CHUNK)
    except BlockingIOError:
        return None
