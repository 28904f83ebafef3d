"""`skillwire serve` as a process of its own: starting it, talking to it in plain bytes, seeing it end."""

import fcntl
import http.client
import os
import queue
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import orjson

import skillwire

COMMAND = (sys.executable, "-m", "skillwire", "serve")
MODERN = "2026-07-28"
LEGACY = "2025-11-25"

STARTED_WITHIN = 60.0
ANSWERED_WITHIN = 60.0
ENDED_WITHIN = 30.0
_WORDS_KEPT = 256 * 1024
_LINES_KEPT = 20_000

Json: TypeAlias = dict[str, Any]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return all that a server needs to know, with a home and a cache of its own."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        # Servers run in folders of their own, where a relative path leads nowhere.
        "PYTHONPATH": str(Path(skillwire.__file__).parents[1]),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        **more,
    }


def words_of(*args: str | Path) -> list[str]:
    """Return the whole command line of `skillwire serve`."""
    return [*COMMAND, *map(str, args)]


CommandLine: TypeAlias = Callable[..., list[str]]
"""Makes a whole command line of the arguments of `skillwire serve`."""


def modern(method: str, identifier: int | str = 1, **params: Any) -> Json:
    """Return a request of revision 2026-07-28, with the envelope every one of them carries."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {"jsonrpc": "2.0", "id": identifier, "method": method, "params": {**params, "_meta": meta}}


def legacy(method: str, identifier: int | str = 1, **params: Any) -> Json:
    """Return a request of the revisions that begin with a handshake."""
    return {"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}


def handshake(identifier: int | str = 0) -> Json:
    info = {"name": "tests", "version": "1"}
    return legacy("initialize", identifier, protocolVersion=LEGACY, capabilities={}, clientInfo=info)


INITIALIZED: Json = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def wait_until(condition: Callable[[], bool], within: float, what: str) -> float:
    """Wait for something to become true, and return how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within, f"not within {within} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start


class Server:
    """A running `skillwire serve`: its words on standard error, and its end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._words = bytearray()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def words(self) -> str:
        """What it wrote to standard error so far."""
        return self._words.decode(errors="replace")

    def wait_for_words(self, pattern: str, within: float = STARTED_WITHIN) -> re.Match[str]:
        """Wait until it has written something to standard error."""

        def is_there() -> bool:
            ended = self.process.poll() is not None
            if ended:
                self._thread.join(ENDED_WITHIN)
            found = re.search(pattern, self.words)
            assert found or not ended, f"it ended with {self.process.returncode}:\n{self.words}"
            return found is not None

        wait_until(is_there, within, f"{pattern!r} in:\n{self.words}")
        found = re.search(pattern, self.words)
        assert found
        return found

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = ENDED_WITHIN) -> int:
        """Wait for its end, and return the exit code."""
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {within} s:\n{self.words}") from None
        self._thread.join(ENDED_WITHIN)
        return code

    def stop(self) -> int:
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def release(self) -> None:
        """Make sure that nothing of it is left, however the test ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(ENDED_WITHIN)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass  # What was written to it and not taken is nobody's loss.
        # Children that outlived it may hold the other end of this one, so nobody waits for its end here.
        self._thread.join(0.5)

    def _follow(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while data := os.read(stream.fileno(), 64 * 1024):
                if len(self._words) < _WORDS_KEPT:
                    self._words += data


class StdioServer(Server):
    """A server at the other end of two pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, reading: bool) -> None:
        super().__init__(process)
        self.lines: queue.Queue[bytes] = queue.Queue(_LINES_KEPT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reading:
            self._reader.start()

    def send(self, *messages: Json | bytes) -> None:
        """Write messages, one to a line; bytes go as they are, with nothing added."""
        assert self.process.stdin is not None
        data = b"".join(
            message if isinstance(message, bytes) else orjson.dumps(message) + b"\n" for message in messages
        )
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close_output(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def receive(self, within: float = ANSWERED_WITHIN) -> Json:
        """Return the next message."""
        try:
            line = self.lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"no message within {within} s:\n{self.words}") from None
        assert line, f"the output ended:\n{self.words}"
        return orjson.loads(line)

    def call(self, request: Json) -> Json:
        """Send a request and return its answer, which must be the next message."""
        self.send(request)
        answer = self.receive()
        assert answer.get("id") == request["id"], answer
        return answer

    def rest(self) -> list[Json]:
        """Wait for the end of its output, and return every message that came before; all must be JSON-RPC."""
        self._reader.join(ENDED_WITHIN)
        assert not self._reader.is_alive(), f"the output did not end:\n{self.words}"
        lines: list[bytes] = []
        while line := self.lines.get(timeout=1):
            lines.append(line)
        messages = [orjson.loads(line) for line in lines]
        assert all(message["jsonrpc"] == "2.0" for message in messages)
        return messages

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")


@contextmanager
def stdio_server(
    *args: str | Path,
    env: Mapping[str, str],
    ready: bool = True,
    reading: bool = True,
    command: CommandLine = words_of,
) -> Generator[StdioServer]:
    """Run `skillwire serve` on two pipes. With `ready`, wait until it says that it serves."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command(*args), env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    server = StdioServer(process, reading=reading)
    try:
        if ready:
            server.wait_for_words(r"serving .* over stdio\n")
        yield server
    finally:
        server.release()


class HttpServer(Server):
    """A server at a URL."""

    def __init__(self, process: "subprocess.Popen[bytes]", host: str) -> None:
        super().__init__(process)
        self.host = host
        self.port = 0
        self.url = ""

    def wait_for_url(self) -> None:
        found = self.wait_for_words(
            r"serving .* at (https?://\S+:(\d+)/mcp)\nopen .* in a browser to read them\n"
        )
        self.url, self.port = found[1], int(found[2])

    def connect(self) -> "Connection":
        """Return a new connection, which opens with the first request and belongs to the caller."""
        return Connection(self.host, self.port, ANSWERED_WITHIN)

    @contextmanager
    def connection(self) -> Generator["Connection"]:
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    def call(self, request: Json, **headers: str) -> Json:
        """Send a request on a connection of its own and return the answer."""
        with self.connection() as connection:
            return connection.call(request, **headers)


class Connection:
    """One connection to a server, kept open between requests."""

    def __init__(self, host: str, port: int, within: float) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=within)

    def close(self) -> None:
        self._connection.close()

    @property
    def local_port(self) -> int:
        return self._connection.sock.getsockname()[1]

    def post(self, message: Json, **headers: str) -> http.client.HTTPResponse:
        """Post a message and return the response, not yet read."""
        self.send(message, **headers)
        return self.response()

    def send(self, message: Json, **headers: str) -> None:
        """Post a message with the headers its revision asks for, and wait for nothing.

        `headers` come on top, with underscores for dashes.
        """
        every: dict[str, str] = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        if "_meta" in message.get("params", {}):
            every |= {"Mcp-Protocol-Version": MODERN, "Mcp-Method": message["method"]}
            if message["method"] == "resources/read":
                every["Mcp-Name"] = message["params"]["uri"]
        every |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", "/mcp", orjson.dumps(message), every)

    def response(self) -> http.client.HTTPResponse:
        """Wait for the response to what was sent."""
        return self._connection.getresponse()

    def get(self, **headers: str) -> http.client.HTTPResponse:
        """Open the stream of messages that an older client's session has."""
        every = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", "/mcp", headers={"Accept": "text/event-stream", **every})
        return self._connection.getresponse()

    def call(self, message: Json, **headers: str) -> Json:
        """Post a request and return the answer."""
        response = self.post(message, **headers)
        body = response.read()
        assert response.headers.get_content_type() == "application/json", (response.status, body)
        return orjson.loads(body)


def next_event(stream: http.client.HTTPResponse) -> Json | None:
    """Return the message of the next event of a stream, or None when the stream ended."""
    while line := stream.readline():
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        if name == b"data" and value.strip():
            return orjson.loads(value)
    return None


@contextmanager
def http_server(
    *args: str | Path,
    env: Mapping[str, str],
    bind: str = "127.0.0.1:0",
    host: str = "127.0.0.1",
    ready: bool = True,
    command: CommandLine = words_of,
) -> Generator[HttpServer]:
    """Run `skillwire serve --http`. With `ready`, wait until it says at which URL it serves."""
    words = command(*args, "--http", bind)
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    server = HttpServer(process, host)
    try:
        if ready:
            server.wait_for_url()
        yield server
    finally:
        server.release()


def listed_uris(answer: Json) -> list[str]:
    """Return the URIs that an answer to `skills/list` lists."""
    return [skill["uri"] for skill in answer["result"]["skills"]]


def cancelled(identifier: int | str) -> Json:
    """Return the notification that an answer is not wanted any more."""
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": identifier}}


def bytes_to_read(server: StdioServer) -> int:
    """Return how many bytes of its output wait to be read."""
    assert server.process.stdout is not None
    size = fcntl.ioctl(server.process.stdout.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


def hook(folder: Path, code: str) -> dict[str, str]:
    """Return the environment in which every Python process runs `code` before its program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{Path(skillwire.__file__).parents[1]}"}
