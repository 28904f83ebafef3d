"""A real pseudo-terminal with a person's eyes: what a program draws there, as the screen shows it."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pyte
from jsonschema import Draft202012Validator
from pyte import modes

from agreeing import agree_to
from commands import Outcome
from hostile.running import Peer
from programs import skillwire_command
from serving import environment

COMMAND = (sys.executable, "-m", "skillwire")
SEEN_WITHIN = 120.0
ENDED_WITHIN = 120.0
PROMPT = "means no:"
"""How every question ends."""
SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas" / "cli"
_HISTORY = 2000


class Window:
    """A program in a terminal of so many columns and lines.

    `screen` is what stands there now, and `everything` also what scrolled
    away: both as a person sees them, not as bytes.
    """

    def __init__(
        self, words: list[str], *, cwd: Path, env: Mapping[str, str], columns: int = 80, lines: int = 40
    ) -> None:
        self._screen: Any = pyte.HistoryScreen(columns, lines, history=_HISTORY, ratio=0.5)
        self._stream: Any = pyte.ByteStream(self._screen)
        self.raw = b""
        self._child: Any = pexpect.spawn(
            words[0], words[1:], cwd=str(cwd), env={**env}, dimensions=(lines, columns), timeout=SEEN_WITHIN
        )
        # The library waits before each write, for programs that need it; ours say when they listen.
        self._child.delaybeforesend = None

    @property
    def screen(self) -> str:
        """The lines on the screen, without the empty ones below."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def everything(self) -> str:
        """All lines since the start, those that scrolled away first."""
        above = [_text_of(row, self._screen.columns) for row in self._screen.history.top]
        return "\n".join([*above, self.screen]).rstrip()

    @property
    def title(self) -> str:
        """The window's title, which nobody here should ever set."""
        return self._screen.title

    @property
    def wraps(self) -> bool:
        """Whether long lines go on below, as they do in every terminal that nobody has changed."""
        return modes.DECAWM in self._screen.mode

    def style_of(self, text: str) -> Any:
        """Return the look of the first character of a text on the screen."""
        for number, line in enumerate(self._screen.display):
            if (place := line.find(text)) >= 0:
                return self._screen.buffer[number][place]
        raise AssertionError(f"{text!r} is not on the screen:\n{self.screen}")

    def wait_for(self, text: str, *, times: int = 1, within: float = SEEN_WITHIN) -> str:
        """Wait until a text was shown so often, and return the screen."""
        deadline = time.monotonic() + within
        while self.everything.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.everything}"
            assert self._read(0.2), f"it ended without {text!r}:\n{self.everything}"
        return self.screen

    def wait_for_any(
        self, texts: Sequence[str], *, times: Sequence[int], within: float = SEEN_WITHIN
    ) -> None:
        """Wait until one of some texts was shown as often as its number says."""
        deadline = time.monotonic() + within
        while all(self.everything.count(text) < count for text, count in zip(texts, times, strict=True)):
            assert time.monotonic() < deadline, f"none of {texts!r} was shown:\n{self.everything}"
            assert self._read(0.2), f"it ended without any of {texts!r}:\n{self.everything}"

    def type(self, text: str) -> None:
        """Type a line and press Enter."""
        self._child.send(f"{text}\r")

    def press(self, key: str) -> None:
        """Press a key together with Ctrl."""
        self._child.sendcontrol(key)

    def wait_for_end(self, within: float = ENDED_WITHIN) -> int:
        """Read until the program is over, and return its exit code; of a signal, what a shell says."""
        deadline = time.monotonic() + within
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it does not end:\n{self.everything}"
        self._child.wait()
        code, number = self._child.exitstatus, self._child.signalstatus
        return code if code is not None else 128 + number

    def close(self) -> None:
        self._child.close(force=True)

    def _read(self, seconds: float) -> bool:
        """Take over what was written meanwhile; False when the program has closed the terminal."""
        try:
            data: bytes = self._child.read_nonblocking(64 * 1024, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True


class Desk:
    """A user's desk: a project folder with a configuration, a home, and commands run there."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.env = environment(home)
        self.servers: dict[str, dict[str, Any]] = {}
        folder.mkdir(exist_ok=True)

    def serve(self, label: str, skills: Path) -> None:
        """Configure `skillwire serve` for a folder of skills."""
        program, *words = skillwire_command("serve", skills, "--stdio", "--no-watch")
        self.configure(label, {"command": program, "args": words, "env": self._python()})

    def invite(self, label: str, scenario: str, **control: Any) -> Peer:
        """Configure a server that can be made to lie, and return it."""
        place = self.folder.parent / f"peer-{label}"
        place.mkdir()
        peer = Peer(scenario, "stdio", "both", place)
        peer.say(**control)
        program, *words = peer.command
        self.configure(label, {"command": program, "args": words, "env": peer.environment})
        return peer

    def configure(self, label: str, server: dict[str, Any]) -> None:
        self.servers[label] = server
        path = self.folder / ".mcp.json"
        path.write_text(json.dumps({"mcpServers": self.servers}))
        agree_to(path, self.home)

    def run(self, *args: str | Path, typed: bytes = b"") -> Outcome:
        """Run a command away from any terminal; `typed` comes through a pipe."""
        done = subprocess.run(
            skillwire_command(*args),
            cwd=self.folder,
            env=self.env,
            input=typed,
            capture_output=True,
            timeout=ENDED_WITHIN,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def window(
        self,
        *args: str | Path,
        columns: int = 80,
        lines: int = 40,
        shell: str = "",
        more: Mapping[str, str] | None = None,
    ) -> Generator[Window]:
        """Run a command in a terminal until the block ends.

        `shell` is a line for a shell instead, in which `skillwire` means ours.
        """
        words = skillwire_command(*args)
        if shell:
            words = ["/bin/sh", "-c", f'skillwire() {{ {shlex.join(COMMAND)} "$@"; }}; {shell}']
        look = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **(more or {})}
        opened = Window(words, cwd=self.folder, env={**self.env, **look}, columns=columns, lines=lines)
        try:
            yield opened
        finally:
            opened.close()

    def answer(self, *args: str | Path, typed: str, columns: int = 80, lines: int = 40) -> tuple[str, int]:
        """Run a command that asks once, answer it, and return what was on the screen then, and the end."""
        with self.window(*args, columns=columns, lines=lines) as shown:
            screen = shown.wait_for(PROMPT)
            shown.type(typed)
            return screen, shown.wait_for_end()

    def _python(self) -> dict[str, str]:
        return {"PYTHONPATH": self.env["PYTHONPATH"], "HOME": str(self.home)}


def check_document(command: str, document: object) -> None:
    """Hold a command's JSON against the schema that is published for it."""
    schema = json.loads((SCHEMAS / f"{command}.json").read_bytes())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)  # pyright: ignore[reportUnknownMemberType] - it has no types


def _text_of(row: Any, columns: int) -> str:
    return "".join(row[number].data for number in range(columns)).rstrip()
