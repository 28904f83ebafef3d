"""`World`: what lies around a sandbox while it is attacked: files, listeners, victims, shared memory."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict

from escape.machine import Machine
from escape.watching import Process, left_over
from skillwire.runner.policy import DEFAULT_UID
from skillwire.runner.sandbox.command import found_interpreters

PYTHON = str(found_interpreters(DEFAULT_UID if os.geteuid() == 0 else None)[".py"].path)
"""The interpreter that scripts are run with, in a sandbox and without."""
_READY_SECONDS = 20
_IPC_CREAT, _IPC_RMID, _SETVAL, _GETVAL = 0o1000, 0, 16, 12

_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p

VICTIM = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # whoever has the same user may look
if sys.argv[2] == "namespaces":
    libc.unshare(0x10000000)
kept = ctypes.create_string_buffer(sys.argv[1].encode())
os.dup2(os.open(sys.argv[3], os.O_RDONLY), 33)
os.unlink(sys.argv[3])
print(ctypes.addressof(kept), flush=True)
time.sleep(600)
"""


def end_all(mark: str) -> None:
    """End whatever still runs of an attack."""
    for pid in left_over(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class Identity(TypedDict, total=False):
    """Whose a new process is to be."""

    user: int
    group: int
    extra_groups: list[str | int]


def become(uid: int) -> Identity:
    """Return what makes a new process another user's, as far as we can."""
    return {} if os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}


@dataclass(frozen=True, slots=True)
class Victim:
    """A process of the user that scripts run as: it has the token in its memory, and in a descriptor."""

    process: subprocess.Popen[bytes]
    address: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def state(self) -> Process | None:
        if self.process.poll() is not None:
            return None
        return Process(self.pid, Path(f"/proc/{self.pid}/stat").read_text("latin-1"))


class World:
    """Things outside that are worth reaching, each with a random token, gone when it is closed."""

    def __init__(self, machine: Machine, uid: int) -> None:
        self.machine = machine
        self.uid = uid
        self.token = "t" + secrets.token_hex(12)
        self.mark = "e" + secrets.token_hex(6)
        self.folder = Path(tempfile.mkdtemp(prefix="escape-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.victims: list[Victim] = []
        self._listeners: list[socket.socket] = []
        self._stack = ExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(end_all, self.mark)

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def file(self, name: str = "canary", *, mode: int = 0o644) -> str:
        """Put a file with the token where everybody may read it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.token)
        path.chmod(mode)
        return str(path)

    def place(self, name: str = "place") -> str:
        """Make a folder that the script's user owns."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.uid)
        return str(path)

    def shared_file(self) -> str:
        """Put a file with the token into the machine's shared memory."""
        path = Path("/dev/shm", self.mark)
        path.write_text(self.token)
        path.chmod(0o644)
        self._stack.callback(path.unlink, missing_ok=True)
        return path.name

    def tcp(self, kind: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> int:
        """Listen, and return the port."""
        return self._listen(socket.socket(kind, socket.SOCK_STREAM), (host, 0))

    def udp(self) -> int:
        return self._listen(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), ("127.0.0.1", 0))

    def unix(self, *, is_abstract: bool = False) -> str:
        """Listen at a path, or at a name that is none."""
        name = f"escape-{self.mark}" if is_abstract else str(self.folder / "socket")
        self._listen(socket.socket(socket.AF_UNIX), f"\0{name}" if is_abstract else name)
        if not is_abstract:
            Path(name).chmod(0o666)
        return name

    def giver(self) -> str:
        """Listen at a path, and give a descriptor of the canary to whoever comes."""
        name = self.unix()
        path = self.file()

        def give() -> None:
            with suppress(OSError):
                connection, _ = self._listeners[-1].accept()
                with connection, Path(path).open("rb") as file:
                    socket.send_fds(connection, [b"f"], [file.fileno()])

        self._listeners[-1].settimeout(10)
        thread = threading.Thread(target=give, daemon=True)
        thread.start()
        return name

    def chatter(self) -> int:
        """Say the token again and again on the loopback interface."""
        port = self.udp()
        speaker = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._again_and_again(lambda: speaker.sendto(self.token.encode(), ("127.0.0.1", port)))
        return port

    def visitor(self) -> str:
        """Open one file of the system again and again, and return its name."""
        path = secrets.choice(
            [one for one in Path("/usr/bin").iterdir() if one.is_file() and not one.is_symlink()]
        )

        def visit() -> None:
            with suppress(OSError), path.open("rb") as file:
                file.read(1)

        self._again_and_again(visit)
        return path.name

    def heard(self) -> bool:
        """Tell whether anybody has come to a listener or sent it something."""
        for one in self._listeners:
            one.setblocking(False)
            with suppress(BlockingIOError):
                if one.type == socket.SOCK_DGRAM:
                    if self.token.encode() in one.recv(4096):
                        return True
                else:
                    one.accept()[0].close()
                    return True
        return False

    def victim(self, *, has_namespaces: bool = False) -> Victim:
        """Start a process that belongs to the script's user, and has the token."""
        path = self.place("victim") + "/open"
        Path(path).write_text(self.token)
        kind = "namespaces" if has_namespaces else "plain"
        process = subprocess.Popen(
            [PYTHON, "-I", "-c", VICTIM, self.token, kind, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"VICTIM": self.token},
            **become(self.uid),
        )
        self._stack.callback(self._end, process)
        watchdog = threading.Timer(_READY_SECONDS, process.kill)
        watchdog.start()
        assert process.stdout is not None
        address = int(process.stdout.readline())
        watchdog.cancel()
        self.victims.append(Victim(process, address))
        return self.victims[-1]

    def hurt(self) -> str:
        """Say what has happened to a victim."""
        for victim in self.victims:
            state = victim.state
            if state is None or state.state in "TtZX":
                return "the victim does not run any more"
            if state.nice != os.getpriority(os.PRIO_PROCESS, 0) or state.policy:
                return "the victim does not run as before"
        return ""

    def segment(self) -> int:
        """Make a System V segment with the token, and return its key."""
        key = secrets.randbelow(2**30) + 1
        number = _libc.shmget(key, 4096, _IPC_CREAT | 0o666)
        assert number >= 0
        self._stack.callback(_libc.shmctl, number, _IPC_RMID, None)
        place = _libc.shmat(number, None, 0)
        ctypes.memmove(place, self.token.encode(), len(self.token))
        _libc.shmdt(ctypes.c_void_p(place))
        return key

    def messages(self) -> int:
        """Make a System V queue with the token as a message, and return its key."""
        key = secrets.randbelow(2**30) + 1
        number = _libc.msgget(key, _IPC_CREAT | 0o666)
        assert number >= 0
        self._stack.callback(_libc.msgctl, number, _IPC_RMID, None)
        text = ctypes.c_long(1).value.to_bytes(8, "little") + self.token.encode()
        assert _libc.msgsnd(number, text, ctypes.c_size_t(len(self.token)), 0) == 0
        return key

    def semaphore(self) -> tuple[int, Callable[[], int]]:
        """Make a System V semaphore of the value 1; return its key, and what tells its value."""
        key = secrets.randbelow(2**30) + 1
        number = _libc.semget(key, 1, _IPC_CREAT | 0o666)
        assert number >= 0
        _libc.semctl(number, 0, _SETVAL, 1)
        self._stack.callback(_libc.semctl, number, 0, _IPC_RMID)
        return key, lambda: _libc.semctl(number, 0, _GETVAL)

    def queue(self) -> str:
        """Make a POSIX message queue with the token, and return its name."""
        name = f"/{self.mark}".encode()
        before = os.umask(0)
        try:
            number = _libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o666, None)
        finally:
            os.umask(before)
        assert number >= 0
        self._stack.callback(_libc.mq_unlink, name)
        self._stack.callback(os.close, number)
        assert _libc.mq_send(number, self.token.encode(), ctypes.c_size_t(len(self.token)), 0) == 0
        return name.decode()

    def _again_and_again(self, action: Callable[[], object]) -> None:
        is_over = threading.Event()

        def repeat() -> None:
            while not is_over.wait(0.01):
                action()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(is_over.set)

    def _listen(self, one: socket.socket, address: tuple[str, int] | str) -> int:
        self._stack.callback(one.close)
        one.bind(address)
        if one.type != socket.SOCK_DGRAM:
            one.listen(8)
        self._listeners.append(one)
        return one.getsockname()[1] if isinstance(address, tuple) else 0

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
