"""Attacks on files outside: reading them by every path there is, and writing where others look."""

import ctypes
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from escape.attack import Attack, Seen, held_descriptor, tells_the_token
from escape.world import World
from skillwire.core.yaml12 import JsonValue

HOSTNAME = socket.gethostname()
_libc = ctypes.CDLL(None, use_errno=True)


def _canary(world: World) -> Mapping[str, JsonValue]:
    return {"path": world.file()}


def _key_in_home(world: World) -> Mapping[str, JsonValue]:
    return {"path": world.file("home/.ssh/id_ed25519")}


def _of_system(path: str) -> Attack:
    """Read a file of the system that begins with a line whose end is known outside, too."""

    def judge(_: World, seen: Seen) -> str:
        with Path(path).open() as file:
            end = file.readline().split()[-1]
        return f"it read {path}" if end in seen.text else ""

    return Attack(f"reads {path}", f"tell(attempt(read, {path!r}))", judge)


def _told_the_name(_: World, seen: Seen) -> str:
    return "it knows the name of the machine" if f"<{HOSTNAME}>" in seen.text else ""


def _in_cwd(world: World, seen: Seen) -> str:
    return "it read what lies where the server was started" if world.machine.token in seen.text else ""


def _writable(world: World) -> Mapping[str, JsonValue]:
    folders = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/local/bin",
        "/etc",
        "/bin",
        "/lib",
        "/dev",
        "/proc",
        "/sys",
        "/var",
    ]
    return {"name": world.mark, "folders": [*folders, str(world.folder), world.place()]}


def _owned(world: World) -> Mapping[str, JsonValue]:
    return {"name": world.mark, "folders": [world.place()]}


def _appeared(world: World, _: Seen) -> str:
    for folder in ("/", "/usr", "/usr/bin", "/usr/local/bin", "/etc", "/bin", "/lib", "/dev", "/var"):
        if Path(folder, world.mark).exists():
            Path(folder, world.mark).unlink()
            return f"a file appeared in {folder}"
    return "a file appeared" if list(world.folder.rglob(world.mark)) else ""


def _handle(world: World) -> Mapping[str, JsonValue]:
    """Return the kernel's handle of the canary, and a folder on the same file system."""
    path = world.file()
    buffer = (ctypes.c_uint8 * 136)()
    ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))[0] = 128
    number = {"x86_64": 303}.get(os.uname().machine, 264)
    mount = ctypes.c_int()
    found = _libc.syscall(number, -100, path.encode(), buffer, ctypes.byref(mount), 0)
    assert found == 0
    return {"handle": bytes(buffer).hex()}


def _unlimited_mounts(_: World, seen: Seen) -> str:
    """Look at the mounts that a process sees: what it can write to must have a size."""
    for line in seen.watched.mounts:
        before, _dash, after = line.partition(" - ")
        place, options, kind, most = before.split()[4], before.split()[5], after.split()[0], after.split()[-1]
        is_writable = "rw" in options.split(",") and kind != "proc" and not place.startswith("/dev/")
        if is_writable and not ("size=" in most and "nr_inodes=" in most):
            return f"it could fill {place}, a {kind} without a limit"
    return ""


ATTACKS = (
    Attack(
        "reads a file that everybody may read", "tell(attempt(read, GIVEN['path']))", tells_the_token, _canary
    ),
    Attack(
        "reads a key in a home folder", "tell(attempt(read, GIVEN['path']))", tells_the_token, _key_in_home
    ),
    _of_system("/etc/passwd"),
    _of_system("/proc/cmdline"),
    _of_system("/proc/kallsyms"),
    Attack(
        "asks for the name of the machine",
        "tell('<%s>' % socket.gethostname())\n"
        "tell('<%s>' % (attempt(read, '/etc/hostname') or b'').decode().strip())",
        _told_the_name,
    ),
    Attack(
        "reads what lies in the folder the server was started in",
        """
for base in ("", "/proc/self/cwd/", "/proc/1/cwd/", "/proc/%d/cwd/" % os.getppid(), "../"):
    tell(attempt(read, base + "canary"))
""",
        _in_cwd,
    ),
    Attack(
        "reads through the roots of processes",
        """
for name in ("self", "1", *others()):
    tell(attempt(read, "/proc/%s/root%s" % (name, GIVEN["path"])))
    for thread in attempt(os.listdir, "/proc/%s/task" % name) or ():
        tell(attempt(read, "/proc/%s/task/%s/root%s" % (name, thread, GIVEN["path"])))
""",
        tells_the_token,
        _canary,
    ),
    Attack(
        "climbs up with two dots",
        """
place = os.open(".", os.O_RDONLY)
for _ in range(64):
    place = os.open("..", os.O_RDONLY, dir_fd=place) if _ < 63 else place
    file = attempt(os.open, GIVEN["path"].lstrip("/"), os.O_RDONLY, 0o777)
    if file is None:
        os.fchdir(place)
    else:
        tell(os.read(file, 4096))
        break
""",
        tells_the_token,
        _canary,
    ),
    Attack(
        "searches all folders for it",
        """
for top in ("/tmp", "/home", "/root", "/var", "/run", "/mnt", "/srv", "/opt", "/oldroot", "/newroot"):
    for folder, inner, names in os.walk(top):
        if folder.count("/") > 2:
            del inner[:]
        if "canary" in names:
            tell(attempt(read, folder + "/canary"))
""",
        tells_the_token,
        _canary,
    ),
    Attack(
        "reads it through a link in its own folder",
        """
link = os.path.join(OUT, "link")
os.symlink(GIVEN["path"], link)
tell(attempt(read, link))
os.unlink(link)
""",
        tells_the_token,
        _canary,
    ),
    Attack(
        "opens devices",
        """
kept = []
harmless = ("null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "fd", "tty")
for folder in ("/dev", "/dev/pts", "/dev/input", "/dev/mapper", "/dev/net", "/dev/disk", "/dev/block"):
    for name in attempt(os.listdir, folder) or ():
        if name not in harmless:
            kept.append(attempt(os.open, folder + "/" + name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "dm-0", "loop0", "kvm", "fuse", "ptmx"):
    kept.append(attempt(os.open, "/dev/" + name, os.O_RDONLY | os.O_NONBLOCK))
if any(kept):
    hold()
""",
        held_descriptor(
            "ptmx", "/dev/pts", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/kvm", "/dev/mem"
        ),
    ),
    Attack(
        "writes where programs and settings lie",
        """
for folder in GIVEN["folders"]:
    for base in ("", "/proc/self/root", "/proc/1/root"):
        attempt(lambda: open(os.path.join(base + folder, GIVEN["name"]), "w").close())
""",
        _appeared,
        _writable,
        control_plant=_owned,
    ),
    Attack(
        "opens the switches of the kernel for writing",
        """
kept = []
for name in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sysrq-trigger",
             "sys/vm/drop_caches", "sys/fs/binfmt_misc/register", "sys/net/ipv4/ip_forward",
             "1/oom_score_adj", "1/mem", "1/attr/current", "1/uid_map", "1/autogroup"):
    kept.append(attempt(os.open, "/proc/" + name, os.O_WRONLY))
for name in ("kernel/uevent_helper", "power/state", "fs/cgroup/cgroup.procs", "kernel/mm/ksm/run"):
    kept.append(attempt(os.open, "/sys/" + name, os.O_WRONLY))
if any(kept):
    hold()
""",
        held_descriptor(
            "core_pattern", "sysrq", "modprobe", "hostname", "/sys/", "oom_score", "/mem", "autogroup"
        ),
        control="root",
    ),
    Attack(
        "looks at the hardware under /sys",
        "tell(attempt(os.listdir, '/sys/class/net') or attempt(os.listdir, '/sys'))",
        lambda _, seen: "it sees /sys" if "'lo'" in seen.text or "'kernel'" in seen.text else "",
    ),
    Attack("sees a file system that it could fill", "hold()", _unlimited_mounts),
    Attack(
        "opens a file by the kernel's handle of it",
        """
handle = ctypes.create_string_buffer(bytes.fromhex(GIVEN["handle"]))
for place in ("/", "/tmp", "/usr", "/out", "/skill", "/dev/shm"):
    base = attempt(os.open, place, os.O_RDONLY)
    file = None if base is None else attempt(call, "open_by_handle_at", base, handle, os.O_RDONLY)
    if file is not None:
        tell(os.read(file, 4096))
""",
        tells_the_token,
        _handle,
        control="root",
    ),
    Attack(
        "makes a device and opens it",
        """
made = os.path.join(OUT, "device")
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    attempt(os.mknod, made, kind | 0o666, os.makedev(1, 3))
if attempt(os.open, made, os.O_RDONLY) is not None:
    hold()
""",
        held_descriptor("(a device)"),
        control="root",
    ),
)
