"""Looking at processes from outside while an attack goes on: what they are, and what they hold."""

import ctypes
import os
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

NAMESPACES = ("user", "net", "mnt", "pid", "ipc", "uts", "cgroup", "time")
_INTERVAL = 0.01
_PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """One process as `/proc/PID/stat` describes it."""

    def __init__(self, pid: int, text: str) -> None:
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        self.pid = pid
        self.name = name
        self.state = fields[0]
        self.parent = int(fields[1])
        self.nice = int(fields[16])
        self.threads = int(fields[17])
        self.policy = int(fields[38])


def processes() -> dict[int, Process]:
    """Return all processes of the machine."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 — many times a second
        if name.isdigit():
            with suppress(OSError, IndexError):
                found[int(name)] = Process(int(name), Path("/proc", name, "stat").read_text("latin-1"))
    return found


def family(everyone: dict[int, Process], mark: str) -> dict[int, Process]:
    """Return the processes that have the mark as their name, and all that descend from them."""
    found = {pid: one for pid, one in everyone.items() if one.name == mark}
    while True:
        more = {p: one for p, one in everyone.items() if one.parent in found and p not in found}
        if not more:
            return found
        found |= more


def left_over(mark: str) -> dict[int, str]:
    """Return what still runs of an attack, found by its mark."""
    found: dict[int, str] = {}
    needle = f"ESCAPE_MARK={mark}".encode()
    everyone = processes()
    ours = family(everyone, mark)
    for pid, one in everyone.items():
        if one.state in "ZX":
            continue
        environ = b""
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        if pid in ours or needle in environ:
            found[pid] = f"{one.name} ({pid}, {one.state})"
    return found


def inhabitants(owner: int) -> list[str]:
    """Return the processes in the sandboxes of a process, except the inits that wait for a run."""
    everyone = processes()
    below = {owner}
    while True:
        more = {pid for pid, one in everyone.items() if one.parent in below and pid not in below}
        if not more:
            break
        below |= more
    found: list[str] = []
    for pid in below:
        with suppress(OSError, StopIteration, IndexError):
            lines = Path(f"/proc/{pid}/status").read_text("latin-1").splitlines()
            inner = next(line for line in lines if line.startswith("NSpid:")).split()[2:]
            if inner and inner[-1] != "1":
                found.append(f"{everyone[pid].name} ({pid})")
    return found


class Watched:
    """What was seen of an attack's processes over time, all together."""

    def __init__(self) -> None:
        self.count = 0
        self.threads = 0
        self.namespaces: set[str] = set()
        self.descriptors: set[str] = set()
        self.families: set[int] = set()
        self.uids: set[int] = set()
        self.capabilities = 0
        self.personalities: set[int] = set()
        self.policies: set[int] = set()
        self.keepers: set[tuple[int, int, int]] = set()
        self.mounts: set[str] = set()
        self.roots: set[str] = set()
        self.statuses: list[dict[str, str]] = []
        self.limits = ""
        self.worlds: dict[str, str] = {}

    def note(self, everyone: dict[int, Process], mark: str) -> None:
        ours = family(everyone, mark)
        alive = {pid: one for pid, one in ours.items() if one.state not in "ZX"}
        self.count = max(self.count, len(ours))
        self.threads = max(self.threads, sum(one.threads for one in ours.values()))
        for pid, one in list(alive.items())[:8]:
            with suppress(OSError):
                self._note_one(pid, one)
            keeper = everyone.get(one.parent)
            if keeper is not None and one.parent not in ours:
                with suppress(ProcessLookupError):  # It ended this moment.
                    self.keepers.add((keeper.nice, keeper.policy, len(os.sched_getaffinity(one.parent))))

    def _note_one(self, pid: int, one: Process) -> None:
        folder = Path(f"/proc/{pid}")
        self.policies.add(one.policy)
        lines = (folder / "status").read_text("latin-1").splitlines()
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if status["State"][0] in "ZX":
            return
        self.statuses.append(status)
        self.uids |= {int(word) for word in status["Uid"].split()}
        self.capabilities |= int(status["CapEff"], 16) | int(status["CapPrm"], 16)
        for name in NAMESPACES:
            with suppress(OSError):
                own, parents = (
                    os.readlink(f"/proc/{who}/ns/{name}")  # noqa: PTH115 — these are no paths
                    for who in (pid, one.parent)
                )
                self.worlds[name] = own
                if own != parents:
                    self.namespaces.add(name)
        with suppress(OSError):
            self.personalities.add(int((folder / "personality").read_text(), 16))
        with suppress(OSError):
            self.roots.add(os.readlink(folder / "root"))  # noqa: PTH115
            self.descriptors.add(os.readlink(folder / "exe"))  # noqa: PTH115
        with suppress(OSError):
            self.mounts |= set((folder / "mountinfo").read_text("utf-8", "replace").splitlines())
        with suppress(OSError):
            self.limits = (folder / "limits").read_text()
        self._note_descriptors(pid, folder / "fd")

    def _note_descriptors(self, pid: int, folder: Path) -> None:
        for name in os.listdir(folder)[:300]:  # noqa: PTH208
            with suppress(OSError):
                target = os.readlink(folder / name)  # noqa: PTH115
                if target.startswith("/"):
                    target += _kind((folder / name).stat().st_mode)
                elif target.startswith("socket:") and len(self.families) < 20:
                    self.families.add(_family_of(pid, int(name)))
                self.descriptors.add(target)


def _kind(mode: int) -> str:
    return " (a device)" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else ""


def _family_of(pid: int, number: int) -> int:
    """Return the address family of a socket that another process holds."""
    pidfd = os.pidfd_open(pid)
    try:
        taken = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    finally:
        os.close(pidfd)
    if taken < 0:
        return 0
    try:
        with socket.socket(fileno=os.dup(taken)) as one:
            return one.getsockopt(socket.SOL_SOCKET, 39)  # SO_DOMAIN
    finally:
        os.close(taken)


class Watch:
    """Watches for as long as it is open."""

    def __init__(self, mark: str) -> None:
        self.watched = Watched()
        self._mark = mark
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self.watched

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_INTERVAL):
            self.watched.note(processes(), self._mark)
