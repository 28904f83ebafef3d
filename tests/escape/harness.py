"""Runs attacks: in a sandbox, owned by a process of root or of an ordinary user, and without one."""

import json
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from escape.attack import Attack, Seen, source_of
from escape.machine import Machine, Terminal
from escape.watching import Watch, inhabitants, left_over
from escape.worker import KEEPER, SKILL, Answer, receive, send
from escape.world import PYTHON, Identity, World, become, end_all
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.interface import ScriptInterface, ScriptRun
from skillwire.runner.outcome import Outcome
from skillwire.runner.policy import DEFAULT_UID

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
USER = 12345 if IS_ROOT else os.getuid()
ARENAS = ("root", "user") if IS_ROOT else ("user",)
START_SECONDS = 60.0
MOST_RSS = 200 * 1024 * 1024
_CONTROL_SECONDS = 30.0
_SETTLE_SECONDS = 0.3


class Arena:
    """A process of its own that runs scripts in sandboxes, and can be looked at from here."""

    def __init__(self, who: str, machine: Machine) -> None:
        self.who = who
        self.machine = machine
        self.uid = DEFAULT_UID if who == "root" else USER
        """Whom scripts run as here, seen from outside."""
        self._process = self._started()
        problem = self._answer(START_SECONDS)
        assert problem == "", problem

    def __enter__(self) -> "Arena":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._incoming.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._outgoing.close()

    def _started(self) -> subprocess.Popen[bytes]:
        settings = {
            "uid": USER if IS_ROOT and self.who == "user" else 0,
            "terminal": self.machine.terminal(self.who).path,
            "descriptors": [self.machine.descriptor],
            "environment": self.machine.environment,
            "secret": self.machine.secret,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "escape.worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self.machine.descriptor,),
            cwd=self.machine.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _incoming(self) -> BinaryIO:
        return cast(BinaryIO, self._process.stdin)

    @property
    def _outgoing(self) -> BinaryIO:
        return cast(BinaryIO, self._process.stdout)

    def run(self, runs: Sequence[ScriptRun], *, seconds: float) -> Answer:
        """Run scripts at the same time; fails when they have not ended after so long."""
        send(self._incoming, list(runs))
        return self._answer(seconds)

    def attack(self, attack: Attack, world: World) -> Seen:
        """Run an attack in a sandbox, watch it from outside, and look around when it is over."""
        run = run_of(attack, world.mark, attack.plant(world))
        started = time.monotonic()
        with Watch(world.mark) as watched:
            (answer,) = self.run([run], seconds=attack.seconds)
        seconds = time.monotonic() - started
        left = (*left_over(world.mark).values(), *inhabitants(self.pid))
        if isinstance(answer, str):
            return Seen(answer, None, seconds, watched, left, error=answer)
        names = (*(file.path for file in answer.files), *(skipped.path for skipped in answer.skipped))
        text = text_of(answer) + self.machine.terminal(self.who).shown()
        return Seen(text, answer.exit_code, seconds, watched, left, names=names, outcome=answer)

    def most_memory(self) -> int:
        """Return the most memory that the process had at any time."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    def _answer(self, seconds: float) -> Answer:
        if not select.select([self._outgoing], [], [], seconds)[0]:
            self._process.kill()
            raise AssertionError(f"no answer after {seconds:g} seconds")
        return receive(self._outgoing)


def run_of(attack: Attack, mark: str, arguments: Mapping[str, JsonValue]) -> ScriptRun:
    """Return an attack as a run. Each has a name of its own; only one script is granted a secret."""
    script = KEEPER if attack.secrets else f"scripts/{mark}{attack.suffix}"
    interface = ScriptInterface(
        arguments=attack.schema,
        limits={"wall_seconds": 10, **attack.limits},
        secrets=attack.secrets,
        takes_argv=attack.schema is not None,
    )
    return ScriptRun(SKILL, script, {**attack.files, script: source_of(attack, mark)}, arguments, interface)


def text_of(outcome: Outcome) -> str:
    """Return all that a run brought out, in one text."""
    parts = [outcome.stdout, outcome.stderr, repr(outcome.structured)]
    parts += [f"{file.path}\n{file.content.decode('latin-1')}" for file in outcome.files]
    parts += [skipped.path for skipped in outcome.skipped]
    return "\n".join(parts)


def without_sandbox(attack: Attack, world: World) -> Seen:
    """Run an attack as a careless server would: as a child process, and take what it leaves."""
    skill, out = world.folder / "skill", Path(world.place("out"))
    script = skill / "scripts" / f"{world.mark}{attack.suffix}"
    for name, content in {**attack.files, f"scripts/{script.name}": source_of(attack, world.mark)}.items():
        (skill / name).parent.mkdir(parents=True, exist_ok=True)
        (skill / name).write_bytes(content)
    arguments = (attack.control_plant or attack.plant)(world)
    machine, terminal = world.machine, Terminal()
    # Without a secret of its own, a script that is given one finds it in its environment.
    secret = {"KEY": machine.secret} if attack.secrets else {}

    def take_terminal() -> None:
        os.setsid()
        os.open(terminal.path, os.O_RDWR)

    started = time.monotonic()
    with Watch(world.mark) as watched:
        process = subprocess.Popen(
            ["/bin/sh" if attack.suffix == ".sh" else PYTHON, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(machine.descriptor,),
            preexec_fn=take_terminal,
            cwd=machine.folder,
            env={
                **{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(world.folder)},
                **{"OUTPUT_DIR": str(out), "SKILL_DIR": str(skill), "ESCAPE_MARK": world.mark},
                **machine.environment,
                **secret,
            },
            **(Identity() if attack.control == "root" else become(world.uid)),
        )
        stdout, stderr = _talked(process, json.dumps(arguments).encode())
    seconds = time.monotonic() - started
    text, names, hung = _taken(out, within=world.folder)
    left = _left_after(world.mark)
    everything = "\n".join((stdout.decode("latin-1"), stderr.decode("latin-1"), text, terminal.shown()))
    terminal.close()
    return Seen(everything, process.returncode, seconds, watched, left, hung, names)


def _talked(process: subprocess.Popen[bytes], given: bytes) -> tuple[bytes, bytes]:
    """Give a process its input and take its output, as long as it runs itself; those it leaves may go on."""
    with suppress(BrokenPipeError):
        cast(BinaryIO, process.stdin).write(given)
        cast(BinaryIO, process.stdin).close()
    streams = {cast(BinaryIO, process.stdout): bytearray(), cast(BinaryIO, process.stderr): bytearray()}
    deadline = time.monotonic() + _CONTROL_SECONDS
    open_streams = list(streams)
    while time.monotonic() < deadline and (open_streams or process.poll() is None):
        # Asked before looking: what it wrote until it ended is then there to be seen.
        ended = process.poll() is not None
        ready = select.select(open_streams, [], [], 0.02)[0]
        for stream in ready:
            chunk = os.read(stream.fileno(), 1 << 16)
            streams[stream] += chunk
            if not chunk:
                open_streams.remove(stream)
        if not ready and ended:
            break
    process.kill()
    process.wait()
    for stream in streams:
        stream.close()
    stdout, stderr = streams.values()
    return bytes(stdout), bytes(stderr)


def _left_after(mark: str) -> tuple[str, ...]:
    """Return what still runs a moment after the script has ended, and end it."""
    time.sleep(_SETTLE_SECONDS if left_over(mark) else 0)
    left = left_over(mark)
    end_all(mark)
    return tuple(left.values())


def _taken(folder: Path, *, within: Path) -> tuple[str, tuple[str, ...], bool]:
    """Read everything in a folder without a thought: what is linked to, and what is no file.

    Only what this test has made itself is really read.
    """
    parts: list[str] = []
    names: list[str] = []
    hung = False
    for root, folders, files in os.walk(folder, followlinks=True):
        names += folders
        folders[:] = [name for name in folders if _is_within(Path(root, name), within)]
        if len(names) > 2000 or len(root) > 4000 or root.count("/loop") > 2:
            break
        for path in (Path(root, name) for name in files):
            names.append(path.name)
            with suppress(OSError):
                if stat.S_ISFIFO(path.stat().st_mode):
                    hung = hung or _hangs(path)
                elif path.is_file() and _is_within(path, within):
                    with path.open("rb") as file:
                        parts.append(file.read(1 << 20).decode("latin-1"))
    return "\n".join((*names, *parts)), tuple(names), hung


def _is_within(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder)
    except OSError:
        return False  # It went away this moment.


def _hangs(path: Path) -> bool:
    """Tell whether reading a file takes longer than anyone would wait."""
    try:
        subprocess.run(["cat", path], timeout=0.3, check=False)
    except subprocess.TimeoutExpired:
        return True
    return False
