"""Attacks on other processes: their memory, and the namespaces that part them from us."""

import os
from collections.abc import Mapping

from escape.attack import Attack, Seen, entered_namespaces, held_descriptor, tells_the_token
from escape.world import World
from skillwire.core.yaml12 import JsonValue

_NEW_USER, _ALL_NEW = 0x10000000, 0x7E020080


def _victim(world: World) -> Mapping[str, JsonValue]:
    victim = world.victim()
    return {"pid": victim.pid, "address": victim.address, "size": len(world.token)}


def _namespaced(world: World) -> Mapping[str, JsonValue]:
    return {"pid": world.victim(has_namespaces=True).pid}


def _canary(world: World) -> Mapping[str, JsonValue]:
    return {"path": world.file()}


def _token(world: World) -> Mapping[str, JsonValue]:
    return {"token": world.token}


def _mounted(world: World, seen: Seen) -> str:
    return "it has mounted something" if any(world.token in line for line in seen.watched.mounts) else ""


def _other_root(_: World, seen: Seen) -> str:
    found = seen.watched.roots - {"/"}
    return f"it had another root: {sorted(found)}" if found else ""


def _logged(world: World) -> Mapping[str, JsonValue]:
    if os.geteuid() == 0:
        with open("/dev/kmsg", "w") as file:  # noqa: PTH123
            file.write(f"escape: {world.token}\n")
    return {}


MEMORY = (
    Attack(
        "reads the memory of another process",
        """
for name in (GIVEN["pid"], 1, os.getppid()):
    file = attempt(os.open, "/proc/%s/mem" % name, os.O_RDONLY)
    if file is not None:
        tell(attempt(os.pread, file, GIVEN["size"], GIVEN["address"]))
        for start, end in attempt(lambda: list(mappings(name))) or ():
            tell(attempt(os.pread, file, 4096, start))
""",
        tells_the_token,
        _victim,
    ),
    Attack(
        "copies the memory of another process",
        """
class Piece(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("size", ctypes.c_size_t)]

buffer = ctypes.create_string_buffer(64)
for name in (GIVEN["pid"], 1, os.getppid()):
    here = Piece(ctypes.addressof(buffer), GIVEN["size"])
    there = Piece(GIVEN["address"], GIVEN["size"])
    if attempt(call, "process_vm_readv", name, ctypes.byref(here), 1, ctypes.byref(there), 1, 0):
        tell(buffer.value)
""",
        tells_the_token,
        _victim,
    ),
    Attack(
        "traces another process",
        """
libc.ptrace.restype = ctypes.c_long
for name in (GIVEN["pid"], 1, os.getppid()):
    if libc.ptrace(16, name, None, None) == 0:
        os.waitpid(name, 0)
        words = [
            libc.ptrace(2, name, ctypes.c_void_p(GIVEN["address"] + place), None) & (2**64 - 1)
            for place in range(0, 24, 8)
        ]
        tell(b"".join(word.to_bytes(8, "little") for word in words) + read("/proc/%d/environ" % name))
        libc.ptrace(17, name, None, None)
""",
        tells_the_token,
        _victim,
    ),
    Attack(
        "reads the kernel's log",
        """
buffer = ctypes.create_string_buffer(1 << 20)
if attempt(call, "syslog", 3, buffer, 1 << 20):
    tell(buffer.value[-65536:])
for path in ("/dev/kmsg", "/proc/kmsg"):
    file = attempt(os.open, path, os.O_RDONLY | os.O_NONBLOCK)
    while file is not None:
        line = attempt(os.read, file, 8192)
        if not line:
            break
        tell(line)
""",
        tells_the_token,
        _logged,
        control="root",
    ),
    Attack(
        "opens the memory of the kernel",
        """
places = ("/proc/kcore", "/dev/mem", "/dev/kmem", "/proc/vmcore")
if any(attempt(os.open, path, os.O_RDONLY) for path in places):
    hold()
""",
        held_descriptor("kcore", "/dev/mem", "/dev/kmem"),
        control="",
        because="many kernels give it to nobody",
    ),
)

_HELD = """
def held(*action):
    child = os.fork()
    if child == 0:
        if attempt(*action) is not None:
            hold()
        os._exit(0)
    return child

"""
NAMESPACES = (
    Attack(
        "makes a user namespace",
        f"if attempt(call, 'unshare', {_NEW_USER}) is not None: hold()",
        entered_namespaces,
    ),
    Attack(
        "makes every other namespace",
        _HELD
        + """
for flag in (0x20000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80, 0x20000000):
    held(call, "unshare", flag)
    held(call, "unshare", 0x10000000 | flag)
while attempt(os.wait):
    pass
""",
        lambda _, seen: f"it made {sorted(more)}" if (more := seen.watched.namespaces - {"user"}) else "",
    ),
    Attack(
        "starts a process in a user namespace",
        """
child = attempt(call, "clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    hold()
    os._exit(0)
attempt(os.wait)
""",
        entered_namespaces,
    ),
    Attack(
        "starts a process in a user namespace, the new way",
        """
words = struct.pack("=8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
child = attempt(call, "clone3", ctypes.create_string_buffer(words), 64)
if child == 0:
    hold()
    os._exit(0)
attempt(os.wait)
""",
        entered_namespaces,
    ),
    Attack(
        "enters the namespace of another process",
        """
for name in (GIVEN["pid"], 1, os.getppid()):
    for kind in ("user", "mnt", "net", "pid", "ipc"):
        file = attempt(os.open, "/proc/%s/ns/%s" % (name, kind), os.O_RDONLY)
        if file is not None and attempt(call, "setns", file, 0) is not None:
            hold()
            os._exit(0)
    handle = attempt(call, "pidfd_open", name, 0)
    if handle is not None and attempt(call, "setns", handle, 0x10000000) is not None:
        hold()
        os._exit(0)
""",
        entered_namespaces,
        _namespaced,
    ),
    Attack(
        "reads a file in a sandbox of its own making",
        """
import subprocess
for words in (["bwrap", "--bind", "/", "/", "cat"], ["unshare", "-Ur", "cat"],
              ["nsenter", "-t", "1", "-a", "cat"]):
    done = attempt(lambda: subprocess.run([*words, GIVEN["path"]], capture_output=True, timeout=5))
    if done:
        tell(done.stdout)
""",
        tells_the_token,
        _canary,
    ),
    Attack(
        "mounts something",
        """
source = GIVEN["token"].encode()
attempt(call, "unshare", 0x10020000)
for place in ("/tmp", "/out", "/skill", os.getcwd()):
    if attempt(call, "mount", source, place.encode(), b"tmpfs", 0, None) is not None:
        hold()
        break
""",
        _mounted,
        _token,
    ),
    Attack(
        "gets another root, and gets out of it",
        """
os.mkdir(OUT + "/root")
attempt(call, "unshare", 0x10000000)
if attempt(os.chroot, OUT + "/root") is not None or os.path.exists("/proc") is False:
    hold()
""",
        _other_root,
    ),
    Attack(
        "uncovers what is mounted over",
        """
attempt(call, "unshare", 0x10020000)
for place in (b"/proc", b"/tmp", b"/out", b"/dev/shm", b"/skill", b"/proc/keys", b"/proc/cmdline"):
    attempt(call, "umount2", place, 2)
if attempt(call, "mount", GIVEN["token"].encode(), b"/tmp", b"tmpfs", 0, None) is not None:
    hold()
tell(attempt(call, "mount", None, b"/", None, 0x1020, None))
tell(attempt(read, "/proc/cmdline"))
""",
        lambda world, seen: (
            _mounted(world, seen) or ("it read what was covered" if "BOOT_IMAGE" in seen.text else "")
        ),
        _token,
    ),
)
