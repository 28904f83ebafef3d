"""PID 1 of a sandbox. This file is sent into it as text and runs there; nothing imports it.

It mounts the private file systems of the run, drops all privileges, installs
the system call filter, and only then reports that it is ready. Then it takes
one job: it writes the skill's files, starts the script, monitors it, ends all
remaining processes, and sends the files of the output folder. It uses only the
standard library, and runs on any Python from 3.9 on.

Messages in both directions are a length in four bytes, that many bytes of
JSON, and the bytes that the JSON announces.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import sys
import time

TYPE_CHECKING = False  # Type checkers treat it as true; importing `typing` would slow down every run.
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

CONTROL = int(sys.argv[1])
KEPT = 3
FILTER_MODE = 2
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
CLONE_NEWNS = 0x20000
MS_BIND, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_PRIVATE, MS_REC = 4096, 2, 4, 8, 1 << 18, 16384
MAX_DEPTH = 8
OWN_FILES = 4
MAX_NAME = 1024
SAMPLE_SECONDS = 0.04
PROXY = ("127.0.0.1", 3128)
INIT_FILE = "<skillwire>"
# Shared memory is in files here, and is counted with them.
MEMORY = (b"RssAnon", b"VmSwap", b"VmPTE", b"HugetlbPages")
SOCKET_BYTES = 512 * 1024
# What the kernel holds for a process besides its memory. Each is overestimated: they are counted one by
# one, and the limit has to be reached before very many of them exist.
COUNT_SECONDS = 0.2
MAPPING_BYTES = 2 * 1024
LOCK_BYTES = 16 * 1024
EPOLL_BYTES = 4 * 1024
PIPE_BYTES = 64 * 1024
PROC_FILE_BYTES = 512 * 1024  # The text of such a file, which the kernel keeps for as long as it is open.
HIDDEN_BYTES = 64 * 1024 * 1024  # For a process that cannot be inspected.
TCP_BYTES = "4096 65536 131072"
MAX_SKIPPED = 100

libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def check_call(name: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, first: int = 0, second: object = None) -> None:
    none = ctypes.c_ulong(0)
    check_call(f"prctl {option}", libc.prctl(option, ctypes.c_ulong(first), second or none, none, none))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    check_call("mount " + target, libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None))


def only_connection() -> socket.socket:
    """Return the connection to the outside, after closing all descriptors but it and the standard streams."""
    if CONTROL != KEPT:
        os.dup2(CONTROL, KEPT)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > KEPT:
            try:
                os.close(int(name))
            except OSError:
                pass  # The descriptor of the listing itself.
    os.set_inheritable(KEPT, False)
    return socket.socket(fileno=KEPT)


def receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            os._exit(0)  # The process that started this sandbox no longer needs it.
        parts += part
    return bytes(parts)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    return json.loads(receive(connection, int.from_bytes(receive(connection, 4), "big")))


def is_orphaned(connection: socket.socket) -> bool:
    """Return whether the process that started this sandbox is gone; it sends nothing while a script runs."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    connection.sendall(len(text).to_bytes(4, "big") + text)


def mount_private(setup: dict[str, Any]) -> None:
    """Mount the writable file systems: one for what the script writes, one for what it is given."""
    check_call("unshare", libc.unshare(CLONE_NEWNS))
    mount("none", "/", "", MS_PRIVATE | MS_REC)
    for place, size, files in (
        ("/work", setup["disk_bytes"], setup["disk_files"]),
        ("/hold", setup["hold_bytes"], setup["hold_files"]),
    ):
        options = f"size={size},nr_inodes={files},mode=0755"
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for place, name, target in (
        ("/work", "tmp", "/tmp"),
        ("/work", "out", "/out"),
        ("/work", "shm", "/dev/shm"),
        ("/hold", "skill", "/skill"),
        ("/hold", "secrets", "/run/secrets"),
    ):
        folder = os.path.join(place, name)
        os.mkdir(folder, 0o700)
        mount(folder, target, "", MS_BIND)


def drop_privileges(program: bytes) -> None:
    """Drop every capability permanently, and install the system call filter."""
    prctl(PR_CAP_AMBIENT, 4)
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check_call("capset", libc.capset(header, (ctypes.c_uint32 * 6)()))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    code = Filter(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(code))


def write_files(folder: str, files: list[tuple[str, int]], connection: socket.socket) -> None:
    """Write the files of this run. The sender has checked their names."""
    for name, length in files:
        size, path = length, os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "wb") as file:
            while size:
                part = receive(connection, min(size, 1 << 20))
                file.write(part)
                size -= len(part)


def open_proxy(connection: socket.socket) -> None:
    """Listen on the script's proxy address, and send the listening socket to the outside."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(PROXY)
    listener.listen(64)
    socket.send_fds(connection, [b"p"], [listener.fileno()])
    listener.close()


def limit_process(limits: dict[str, Any]) -> None:
    pairs = (
        ("CORE", 0),
        (
            "CPU",
            int(limits["cpu_seconds"]) + 2,
        ),  # More than all processes may use: sampling stops them first.
        ("FSIZE", limits["disk_bytes"]),
        ("NOFILE", limits["open_files"]),
        ("NPROC", limits["processes"] + 1),  # This process is one, too.
        ("AS", limits["address_space"]),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
        ("SIGPENDING", 4096),  # Timers count as well.
        ("NICE", 0),
        ("RTPRIO", 0),
    )
    for name, value in pairs:
        number = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # If sampling does not, SIGXCPU at the soft limit shows the reason.
        resource.setrlimit(number, (value - 1 if name == "CPU" else value, value))


def limit_connections() -> None:
    """Reduce the buffers of connections in the sandbox: the kernel has one memory limit for all networks."""
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                file.write(TCP_BYTES)
        except OSError:
            pass  # Not writable on some systems.


def status_memory(lines: list[bytes]) -> int:
    """Return the memory, in kilobytes, of a process from the lines of its `status` file."""
    return sum(int(line.split()[1]) for line in lines if line.startswith(MEMORY))


def thread_memory(name: str) -> int:
    """Return the memory of a process whose first thread has ended, so that its `status` shows none."""
    try:
        for thread in os.listdir(f"/proc/{name}/task"):
            with open(f"/proc/{name}/task/{thread}/status", "rb") as file:
                if found := status_memory(file.read().split(b"\n")):
                    return found
    except OSError:
        pass  # It has just ended.
    return 0


def socket_memory() -> int:
    """Return the capacity of the buffers of all sockets; how full they are is not visible."""
    with open("/proc/net/sockstat", "rb") as file:
        return int(file.readline().split()[2]) * SOCKET_BYTES


def living_thread(name: str) -> str:
    """Return the folder of a thread of a process that has not ended (the first may have), or ""."""
    for thread in os.listdir(f"/proc/{name}/task"):
        place = f"/proc/{name}/task/{thread}"
        with open(place + "/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                return place
    return ""


def held_by_kernel(name: str, room: int, pipes: set[str]) -> int:
    """Return what the kernel holds for a process besides its memory; counting stops beyond `room` bytes."""
    held, place = 0, living_thread(name)
    if not place:
        return 0
    with open(place + "/maps", "rb", buffering=0) as file:
        while held <= room:
            part = file.read(1 << 16)
            if not part:
                break
            held += part.count(b"\n") * MAPPING_BYTES
    for descriptor in os.listdir(place + "/fd"):
        if held > room:
            break
        held += held_by_descriptor(place, descriptor, pipes)
    return held


def is_hidden(name: str) -> bool:
    """Return whether a process that cannot be inspected is still running."""
    try:
        return living_thread(name) != ""
    except OSError:
        return False


def held_by_descriptor(place: str, name: str, pipes: set[str]) -> int:
    """Return what the kernel holds for a descriptor; each pipe is counted once."""
    try:
        target = os.readlink(f"{place}/fd/{name}")
        with open(f"{place}/fdinfo/{name}", "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return 0  # It has just been closed.
    held = text.count(b"\nlock:") * LOCK_BYTES + text.count(b"\ntfd:") * EPOLL_BYTES
    if target.startswith("pipe:") and target not in pipes:
        pipes.add(target)
        held += PIPE_BYTES
    elif target.startswith("/proc/"):
        held += PROC_FILE_BYTES
    return held


class ProcessTree:
    """All processes of the sandbox except PID 1: what they use, and which limit they have reached."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.started = time.monotonic()
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.peak = {"memory_bytes": 0, "processes": 1, "disk_bytes": 0, "disk_files": 0}
        self.cpu = 0.0
        self.seen: dict[tuple[str, bytes], int] = {}
        self.ended = 0
        self.kernel = 0
        self.next_count = 0.0

    def note(self, name: str, value: int) -> None:
        self.peak[name] = max(self.peak[name], value)

    def sample(self) -> list[Any] | None:
        """Sample all processes, and return the limit that ends the run, if one does."""
        memory = processes = ticks = 0
        before, self.seen = self.seen, {}
        for name in os.listdir("/proc"):
            if name == "1" or not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                with open(f"/proc/{name}/status", "rb") as file:
                    lines = file.read().split(b"\n")
            except OSError:
                continue  # It has just ended.
            processes += int(fields[17])
            ticks += sum(int(field) for field in fields[11:15])
            self.seen[name, fields[19]] = int(fields[11]) + int(fields[12])
            memory += status_memory(lines) or thread_memory(name)
        self.count_kernel_memory([name for name, _ in self.seen], self.limits["memory_bytes"] - memory * 1024)
        used = os.statvfs("/work")
        disk = (used.f_blocks - used.f_bfree) * used.f_frsize
        self.note("disk_bytes", disk)
        self.note("disk_files", used.f_files - used.f_ffree - OWN_FILES)
        self.note("memory_bytes", memory * 1024 + disk + socket_memory() + self.kernel)
        self.note("processes", processes)
        self.count_gone(ticks / self.ticks)
        # Processes that nobody waits for are not counted when they end, so their last sample is kept.
        self.ended += sum(used for process, used in before.items() if process not in self.seen)
        self.cpu = max(self.cpu, (self.ended + sum(self.seen.values())) / self.ticks)
        return self.exceeded()

    def count_kernel_memory(self, processes: list[str], room: int) -> None:
        """Count, from time to time, what the kernel holds for all processes besides their memory."""
        started = time.monotonic()
        if started < self.next_count or not self.limits["count_kernel_memory"]:
            return
        held = 0
        pipes: set[str] = set()
        for name in processes:
            try:
                held += held_by_kernel(name, room - held, pipes)
            except PermissionError:
                held += HIDDEN_BYTES if is_hidden(name) else 0
            except OSError:
                continue  # It has just ended.
            if held > room:
                break
        self.kernel = held
        now = time.monotonic()
        self.next_count = now + max(COUNT_SECONDS, now - started)

    def count_gone(self, running: float = 0.0) -> None:
        """Add what ended processes have used to the usage of those that still run."""
        gone = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = max(self.cpu, gone.ru_utime + gone.ru_stime + running)
        self.note("memory_bytes", gone.ru_maxrss * 1024)

    def exceeded(self) -> list[Any] | None:
        wall = time.monotonic() - self.started
        found = (
            ("wall_seconds", wall),
            ("cpu_seconds", self.cpu),
            ("memory_bytes", self.peak["memory_bytes"]),
        )
        for name, used in found:
            if used > self.limits[name]:
                return [name, self.limits[name], used]
        return None

    def end(self) -> None:
        """Kill all processes, and wait until they have ended."""
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        self.count_gone()


def watch(
    main: int, limits: dict[str, Any], connection: socket.socket
) -> tuple[int | None, list[Any] | None, float, ProcessTree]:
    """Wait for the script and reap its processes; return its status, the limit it hit, time, and tree."""
    tree = ProcessTree(limits)
    status: int | None = None
    hit: list[Any] | None = None
    while status is None and hit is None:
        left = limits["wall_seconds"] - (time.monotonic() - tree.started)
        signal.sigtimedwait([signal.SIGCHLD], max(0.001, min(SAMPLE_SECONDS, left)))
        while True:
            try:
                process, how = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            if process == main:
                status = how
        if status is None:
            hit = tree.sample()
            if is_orphaned(connection):
                os._exit(0)  # The kernel kills the other processes together with PID 1.
    wall = time.monotonic() - tree.started
    tree.sample()
    tree.end()
    return status, hit, wall, tree


def collect(limits: dict[str, Any]) -> tuple[list[tuple[str, int]], list[tuple[str, str]]]:
    """Return the regular files in the output folder, and what is skipped and why.

    All other processes have ended, so the files cannot change.
    """
    found: list[tuple[str, int]] = []
    skipped: list[tuple[str, str]] = []
    total = 0
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            names = sorted(os.listdir(os.path.join("/out", folder)), reverse=True)
        except OSError as error:
            if len(skipped) < MAX_SKIPPED:
                skipped.append((folder, f"cannot be read: {error.strerror}"))
            continue
        inner: list[tuple[str, int]] = []
        for name in reversed(names):
            path = os.path.join(folder, name)
            reason = ""
            try:
                how = os.lstat("/out/" + path)
            except OSError:
                how, reason = os.stat("/"), "it cannot be read"
            try:
                path.encode("utf-8")
            except UnicodeEncodeError:
                path, reason = ascii(path), "its name is not UTF-8"
            if len(path) > MAX_NAME:
                path, reason = path[:MAX_NAME], "its name is too long"
            if reason:
                pass
            elif stat.S_ISDIR(how.st_mode):
                if depth + 1 >= MAX_DEPTH:
                    reason = "it is nested too deeply"
                else:
                    inner.append((path, depth + 1))
                    continue
            elif stat.S_ISLNK(how.st_mode):
                reason = "it is a link"
            elif not stat.S_ISREG(how.st_mode):
                reason = "it is not a regular file"
            elif how.st_nlink != 1:
                reason = "it has more than one hard link"
            elif not os.access("/out/" + path, os.R_OK):
                reason = "it cannot be read"
            elif len(found) >= limits["output_files"]:
                reason = "there are more files than may be returned"
            elif total + how.st_size > limits["output_bytes"]:
                reason = "there are more bytes than may be returned"
            if reason:
                if len(skipped) < MAX_SKIPPED:
                    skipped.append((path, reason))
                continue
            total += how.st_size
            found.append((path, how.st_size))
        folders.extend(reversed(inner))
    return found, skipped


def send_outputs(connection: socket.socket, files: list[tuple[str, int]]) -> None:
    """Send the files, each with exactly the announced length."""
    for name, size in files:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open("/out/" + name, flags), "rb") as file:
                content = file.read(size)
        except OSError:
            content = b""
        connection.sendall(content + b"\0" * (size - len(content)))


def hide_init_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception without the frames of this file."""
    frame = trace
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == INIT_FILE:
            trace = frame.tb_next
        frame = frame.tb_next
    error.__traceback__ = trace
    sys.__excepthook__(kind, error, trace)


def run_in_process(job: dict[str, Any]) -> None:
    """Run the script in this process, which saves starting another interpreter."""
    path = job["script"]
    main = type(sys)("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.argv[:] = [path, *job["argv"]]
    sys.path.insert(0, os.path.dirname(path))
    sys.excepthook = hide_init_frames
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def start(job: dict[str, Any]) -> None:
    """Prepare this new process for the script; return only if the script runs in this interpreter."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()  # A process group of its own, so that it cannot signal bubblewrap through the old one.
    os.close(KEPT)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.umask(0o077)
    os.chdir("/skill")
    prctl(PR_SET_DUMPABLE, 1)
    limit_process(job["limits"])
    if job["command"]:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        command = [*job["command"], job["script"], *job["argv"]]
        try:
            os.execve(command[0], command, job["environment"])
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)


def serve() -> dict[str, Any]:
    """Set up the sandbox, run one job and report the result. In the script's process, return the job."""
    os.setsid()
    connection = only_connection()
    setup = receive_message(connection)
    program = receive(connection, setup["filter_bytes"])
    mount_private(setup)
    limit_connections()
    drop_privileges(program)
    # SIGINT is the only signal from a script that would reach PID 1, because Python handles it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGINT])
    send_message(connection, {"ready": True})

    job = receive_message(connection)
    try:
        write_files("/skill", job.pop("files"), connection)
        write_files("/run/secrets", job.pop("secrets"), connection)
    except OSError as error:
        send_message(connection, {"failed": f"its files cannot be written: {error.strerror}"})
        os._exit(0)
    if job["proxy"]:
        open_proxy(connection)
    main = os.fork()
    if main == 0:
        start(job)
        return job
    for standard in (0, 1, 2):
        os.close(standard)
    status, hit, wall, tree = watch(main, job["limits"], connection)
    files, skipped = collect(job["limits"]) if hit is None else ([], [])
    report = {
        "status": status,
        "limit": hit,
        "wall_seconds": wall,
        "cpu_seconds": tree.cpu,
        "peak": tree.peak,
        "files": files,
        "skipped": skipped,
    }
    send_message(connection, report)
    send_outputs(connection, files)
    os._exit(0)


run = serve()
run_in_process(run)
