"""A skill whose scripts try many things, and clients of both generations that run them."""

import http.client
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from folders import skill_md, write_files
from serving import (
    INITIALIZED,
    LEGACY,
    Connection,
    HttpServer,
    Server,
    StdioServer,
    cancelled,
    environment,
    handshake,
    http_server,
    legacy,
    modern,
    next_event,
    stdio_server,
)

Json: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[..., Json]

WAYS = ("stdio-modern", "stdio-legacy", "http-modern", "http-legacy")
LARGE = 400 * 1024

SCRIPTS: dict[str, str] = {
    "echo.py": "import json, sys\nprint('echo', json.dumps(json.load(sys.stdin), sort_keys=True))\n",
    "argv.py": "import sys\nprint(sys.argv[1:], len(sys.stdin.read()))\n",
    "pipe.sh": "sort | head -n 1 | tr a-z A-Z\n",
    "fail.py": "import sys\nprint('half')\nprint('bad luck', file=sys.stderr)\nsys.exit(3)\n",
    "crash.py": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "slow.py": "import time\nprint('begun', flush=True)\ntime.sleep(60)\n",
    "hog.py": "import time\nkept = [bytearray(8 << 20) for _ in range(100)]\ntime.sleep(60)\n",
    "long.py": "import json, subprocess, sys\nsubprocess.run(['sleep', json.load(sys.stdin)['seconds']])\n",
    "ansi.py": (
        "import sys\n"
        "sys.stdout.buffer.write(b'\\x1b[31mred\\x1b]52;c;eHg=\\x07\\xff\\x00 \\xe2\\x80\\xaeend')\n"
    ),
    "env.py": "import json, os\nprint(json.dumps(dict(os.environ)))\n",
    "content.py": 'print(\'{"content": [{"type": "image"}], "isError": true}\')\n',
    "files.py": (
        "import os\nfrom pathlib import Path\n"
        "out = Path(os.environ['OUTPUT_DIR'])\n"
        "(out / 'plots').mkdir()\n"
        "(out / 'plots/grün 1.txt').write_text('Grün', 'utf-8')\n"
        "(out / 'dot.png').write_bytes(b'\\x89PNG\\xff')\n"
        f"(out / 'large.csv').write_bytes(b'a,b\\n' * {LARGE // 4})\n"
        "(out / 'link').symlink_to('/etc/passwd')\n"
    ),
    "escape.py": (
        "for path in ('/usr/x', '/x', '/etc/x', '../x', '/dev/x', '/proc/x'):\n"
        "    try:\n        open(path, 'w')\n        print('wrote', path)\n"
        "    except OSError as error:\n        print('denied', path)\n"
    ),
    "old.rb": "puts 'hello'\n",
    "twin.py": "print('py')\n",
    "twin.sh": "echo sh\n",
}
MANIFEST: Json = {
    "scripts": {
        "echo.py": {
            "description": "Says what it is given.",
            "arguments": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
        "slow.py": {"limits": {"wall_seconds": 1}},
        "hog.py": {"limits": {"memory_mib": 64, "wall_seconds": 20}},
    }
}
NOTES = (
    "metadata:\n  skillwire/files: |\n    scripts/pipe.sh (first-line): Shows the first line in capitals.\n"
)


def write_lab(folder: Path) -> Path:
    """Write the skill `lab` and return the folder that has it."""
    files = {f"lab/scripts/{name}": code for name, code in SCRIPTS.items()}
    write_files(
        folder,
        {
            **files,
            "lab/SKILL.md": skill_md("lab", extra=NOTES),
            "lab/scripts/manifest.json": json.dumps(MANIFEST),
            "lab/references/a.md": "a\n",
            "plain/SKILL.md": skill_md("plain"),
        },
    )
    return folder


def texts(result: Json) -> list[str]:
    return [item["text"] for item in result["content"] if item["type"] == "text"]


class Peer(Protocol):
    """A client that has said hello. What it is told meanwhile is in `told`."""

    server: Server
    told: list[Json]

    def ask(self, method: str, **params: Any) -> Json:
        """Return the whole answer."""
        ...

    def start(self, identifier: int, method: str, **params: Any) -> None:
        """Ask without waiting for the answer."""
        ...

    def wait_for(self, identifier: int) -> Json:
        """Return the whole answer to what was started, noting what comes before it."""
        ...

    def cancel(self, identifier: int) -> None:
        """Say, in the way of this transport, that the answer is not wanted."""
        ...


class StdioPeer:
    def __init__(self, server: StdioServer, make: Make) -> None:
        self.server: Server = server
        self.told: list[Json] = []
        self._stdio = server
        self._make = make
        self._answers: dict[int, Json] = {}
        self._next = 1000
        if make is legacy:
            self.hello = self._call(handshake(999))
            server.send(INITIALIZED)
        else:
            self.hello = self.ask("server/discover")

    def ask(self, method: str, **params: Any) -> Json:
        self._next += 1
        return self._call(self._make(method, self._next, **params))

    def start(self, identifier: int, method: str, **params: Any) -> None:
        self._stdio.send(with_token(self._make(method, identifier, **params), identifier))

    def wait_for(self, identifier: int) -> Json:
        while identifier not in self._answers:
            answer = self.next_answer()
            self._answers[answer["id"]] = answer
        return self._answers.pop(identifier)

    def next_answer(self) -> Json:
        """Return the next whole answer, to whichever request, noting what comes before it."""
        while "id" not in (message := self._stdio.receive()):
            self.told.append(message)
        return message

    def cancel(self, identifier: int) -> None:
        self._stdio.send(cancelled(identifier))

    def _call(self, request: Json) -> Json:
        self._stdio.send(request)
        return self.wait_for(request["id"])


class HttpPeer:
    """A client that gives each request a connection of its own."""

    def __init__(self, server: HttpServer, make: Make) -> None:
        self.server: Server = server
        self.told: list[Json] = []
        self._http = server
        self._make = make
        self._headers: dict[str, str] = {}
        self._open: dict[int, Connection] = {}
        self._stream: http.client.HTTPResponse | None = None
        self._listening: Connection | None = None
        self._next = 1000
        if make is modern:
            self.hello = self.ask("server/discover")
            return
        with server.connection() as connection:
            response = connection.post(handshake(999))
            self.hello = json.loads(response.read())
            self._headers = {
                "Mcp_Session_Id": response.headers["mcp-session-id"],
                "Mcp_Protocol_Version": LEGACY,
            }
        self._notify(INITIALIZED)

    def ask(self, method: str, **params: Any) -> Json:
        self._next += 1
        return self._http.call(self._make(method, self._next, **params), **self._headers)

    def start(self, identifier: int, method: str, **params: Any) -> None:
        if self._make is legacy and self._listening is None:
            self._listening = self._http.connect()
            self._stream = self._listening.get(**self._headers)
        connection = self._open[identifier] = self._http.connect()
        connection.send(with_token(self._make(method, identifier, **params), identifier), **self._headers)

    def wait_for(self, identifier: int) -> Json:
        connection = self._open.pop(identifier)
        try:
            response = connection.response()
            if response.headers.get_content_type() == "application/json":
                answer = json.loads(response.read())
                self._take_what_was_told(identifier)
                return answer
            while (message := next_event(response)) is not None:
                if message.get("id") == identifier:
                    return message
                self.told.append(message)
        finally:
            connection.close()
        raise AssertionError("the stream ended without an answer")

    def cancel(self, identifier: int) -> None:
        if self._make is legacy:
            self._notify(cancelled(identifier))
        else:
            self._open.pop(identifier).close()

    def close(self) -> None:
        for connection in (*self._open.values(), *filter(None, [self._listening])):
            connection.close()

    def _take_what_was_told(self, identifier: int) -> None:
        """Read the stream of the session up to the last word about a request, which has a message."""
        while self._stream is not None:
            message = next_event(self._stream)
            assert message is not None, "the stream of the session ended"
            self.told.append(message)
            params = message.get("params", {})
            if params.get("progressToken") == identifier and "message" in params:
                return

    def _notify(self, message: Json) -> None:
        with self._http.connection() as connection:
            assert connection.post(message, **self._headers).status == 202


def with_token(request: Json, token: int) -> Json:
    """Ask for progress, under the id of the request."""
    request["params"].setdefault("_meta", {})["progressToken"] = token
    return request


@contextmanager
def peer(
    way: str, *args: str | Path, home: Path, more: Mapping[str, str] | None = None
) -> Generator[StdioPeer | HttpPeer]:
    """Start `skillwire serve` with these arguments, and connect in one of `WAYS`."""
    transport, _, era = way.partition("-")
    make: Make = modern if era == "modern" else legacy
    env = environment(home, **(more or {}))
    if transport == "stdio":
        with stdio_server(*args, env=env) as server:
            yield StdioPeer(server, make)
        return
    with http_server(*args, env=env) as server:
        client = HttpPeer(server, make)
        try:
            yield client
        finally:
            client.close()


def processes_with(word: str) -> list[int]:
    """Return the processes of this machine that have `word` among the words of their command lines."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # It ended meanwhile.
    return found
