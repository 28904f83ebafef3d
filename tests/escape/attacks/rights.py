"""Attacks on the kernel: rights that a script does not have, and doors that only few know."""

import platform
from collections.abc import Mapping

from escape.attack import Attack, Seen, entered_namespaces, held_descriptor
from escape.world import World
from skillwire.core.yaml12 import JsonValue


def _victim(world: World) -> Mapping[str, JsonValue]:
    return {"pid": world.victim().pid}


def _has_rights(_: World, seen: Seen) -> str:
    if seen.watched.capabilities:
        return f"it had capabilities: {seen.watched.capabilities:x}"
    return "it was root" if 0 in seen.watched.uids else ""


def _has_personality(_: World, seen: Seen) -> str:
    found = {one for one in seen.watched.personalities if one & 0x0440000}
    return f"it had the personality {found.pop():x}" if found else ""


RIGHTS = (
    Attack(
        "becomes root",
        """
for become in (os.setuid, os.setgid, os.seteuid, lambda one: os.setresuid(one, one, one)):
    attempt(become, 0)
attempt(os.setgroups, [0])
if 0 in os.getresuid():
    hold()
""",
        _has_rights,
        control="root",
    ),
    Attack(
        "takes capabilities",
        """
head = struct.pack("=II", 0x20080522, 0)
everything = struct.pack("=6I", *[0xFFFFFFFF] * 6)
for _ in range(2):
    attempt(call, "capset", ctypes.create_string_buffer(head), ctypes.create_string_buffer(everything))
    for number in range(41):
        libc.prctl(47, 2, number, 0, 0)
    attempt(call, "unshare", 0x10000000)
if b"CapEff:\\t0000000000000000" not in read("/proc/self/status"):
    hold()
""",
        _has_rights,
    ),
    Attack(
        "starts programs that have root's rights",
        """
import subprocess
kept = []
for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/openssh", "/usr/lib/dbus-1.0", "/usr/libexec"):
    for name in attempt(os.listdir, folder) or ():
        path = os.path.join(folder, name)
        how = attempt(os.lstat, path)
        if how and stat.S_ISREG(how.st_mode) and how.st_mode & stat.S_ISUID and how.st_uid == 0:
            kept.append(path)
started = []
for path in kept[:12]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    one = attempt(lambda: subprocess.Popen([path], start_new_session=True, **streams))
    started.append(one)
hold()
for one in started:
    if one:
        attempt(one.kill)
os._exit(0)
""",
        _has_rights,
    ),
    Attack(
        "gives a program of its own root's rights",
        """
import shutil, subprocess
made = OUT + "/program"
shutil.copy("/usr/bin/sleep", made)
attempt(os.chown, made, 0, 0)
attempt(os.chmod, made, 0o6755)
attempt(os.setxattr, made, "security.capability", struct.pack("=5I", 0x2000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))
attempt(lambda: subprocess.run([made, "1.5"], timeout=6))
if 0 in os.getresuid():
    hold()
""",
        _has_rights,
        control="root",
    ),
)

_MACHINE_CODE = """
code = bytes([0xB8]) + (310).to_bytes(4, "little") + bytes([0xBB]) + (0x10000000).to_bytes(4, "little")
code = bytes([0x53]) + code + bytes([0xCD, 0x80, 0x5B, 0xC3])  # push rbx; unshare(user) as i386; pop rbx; ret
place = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
place.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(place))
if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 0:
    hold()
"""
DOORS = (
    Attack(
        "makes memory that is a file",
        "kept = os.memfd_create('escape'); hold()",
        held_descriptor("/memfd:escape"),
    ),
    Attack(
        "runs a program out of memory that is a file",
        """
file = os.memfd_create("escape")
os.write(file, read("/usr/bin/sleep"))
if os.fork() == 0:
    words = (ctypes.c_char_p * 3)(b"sleep", b"0.4", None)
    libc.execveat(file, b"", words, (ctypes.c_char_p * 1)(None), 0x1000)
os.wait()
""",
        held_descriptor("/memfd:escape"),
    ),
    Attack(
        "handles page faults itself",
        "if attempt(call, 'userfaultfd', 1) is not None: hold()",
        held_descriptor("userfaultfd"),
    ),
    Attack(
        "opens a ring to the kernel",
        "if attempt(call, 'io_uring_setup', 4, ctypes.create_string_buffer(120)) is not None: hold()",
        held_descriptor("io_uring"),
    ),
    Attack(
        "loads a program into the kernel",
        """
words = struct.pack("=IIIII", 2, 4, 8, 1, 0) + bytes(100)
if attempt(call, "bpf", 0, ctypes.create_string_buffer(words), len(words)) is not None:
    hold()
""",
        held_descriptor("bpf"),
        control="root",
    ),
    Attack(
        "counts what the processor does",
        """
words = struct.pack("=IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6) + bytes(64)
if attempt(call, "perf_event_open", ctypes.create_string_buffer(words), 0, -1, -1, 0) is not None:
    hold()
""",
        held_descriptor("perf_event"),
        control="root",
    ),
    Attack(
        "watches who opens which file",
        "if attempt(call, 'fanotify_init', 0x200, 0) is not None: hold()",
        held_descriptor("fanotify"),
    ),
    Attack(
        "makes its memory predictable and executable",
        """
for how in (0x0040000, 0x0400000, 0x0440000):
    attempt(call, "personality", how)
hold()
""",
        _has_personality,
    ),
    Attack(
        "makes a handle on another process",
        "if attempt(call, 'pidfd_open', GIVEN['pid'], 0) or attempt(call, 'pidfd_open', 1, 0): hold()",
        held_descriptor("pidfd"),
        _victim,
    ),
    *(
        (
            Attack("calls the kernel as a program of 32 bits", _MACHINE_CODE, entered_namespaces),
            Attack(
                "calls the kernel by the numbers of x32",
                "if attempt(call, 0x40000000 | 272, 0x10000000) is not None: hold()",
                entered_namespaces,
                control="",
                because="most kernels have no such calls",
            ),
        )
        if platform.machine() == "x86_64"
        else ()
    ),
)
