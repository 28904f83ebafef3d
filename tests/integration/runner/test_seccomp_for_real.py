"""The filter of system calls in this machine's kernel, attacked from inside."""

import platform
import signal
from errno import EAFNOSUPPORT, EBADF, EINVAL, ENOENT, ENOSYS, EPERM, EPROTONOSUPPORT
from pathlib import Path

import pytest

from integration.runner.filtering import NUMBERS, Shell, where_there_is_a_filter

pytestmark = [pytest.mark.requirement("EXEC-12"), where_there_is_a_filter]

on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has these doors")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


ATTACKS: dict[str, tuple[str, list[int | str], int]] = {
    "a namespace": ("unshare", [0x10000000], EPERM),
    "a namespace's files": ("unshare", [0x400], EPERM),
    "another's namespace": ("setns", [-1, 0], EPERM),
    "a process in a namespace": ("clone", [0x20200, 0, 0, 0, 0], EPERM),
    "a process the new way": ("clone3", [0, 0], ENOSYS),
    "memory that is a file": ("memfd_create", ["x", 0], EPERM),
    "memory that is secret": ("memfd_secret", [-1], EPERM),
    "memory by a key": ("shmget", [0x5CA1AB1E, 0, 0], EPERM),
    "messages by a key": ("msgget", [0x5CA1AB1E, 0], EPERM),
    "semaphores by a key": ("semget", [0x5CA1AB1E, 0, 0], EPERM),
    "a queue by name": ("mq_open", ["no-such-queue", 0], EPERM),
    "tracing": ("ptrace", [0], EPERM),
    "another's memory": ("process_vm_readv", [0, 0, 0, 0, 0, -1], EPERM),
    "writing another's memory": ("process_vm_writev", [0, 0, 0, 0, 0, -1], EPERM),
    "a handle on a process": ("pidfd_open", [1, 0], EPERM),
    "another's descriptor": ("pidfd_getfd", [-1, 0, 0], EPERM),
    "a signal by handle": ("pidfd_send_signal", [-1, 0, 0, 0], EPERM),
    "comparing processes": ("kcmp", [0, 0, -1, 0, 0], EPERM),
    "advice on another's memory": ("process_madvise", [-1, 0, 0, 0, 0], EPERM),
    "a keyring": ("keyctl", [0, -3, 0], EPERM),
    "a key": ("add_key", [0, 0, 0, 0, 0], EPERM),
    "asking for a key": ("request_key", [0, 0, 0, 0], EPERM),
    "page faults": ("userfaultfd", [0x7FFF0000], EPERM),
    "a ring": ("io_uring_setup", [0, 0], EPERM),
    "old asynchronous input": ("io_setup", [0, 0], EPERM),
    "performance counters": ("perf_event_open", [0, 0, -1, -1, -1], EPERM),
    "a program for the kernel": ("bpf", [-1, 0, 0], EPERM),
    "pages into a pipe": ("vmsplice", [-1, 0, 0, 0], EPERM),
    "a mount": ("mount", [0, 0, 0, 0, 0], EPERM),
    "no mount": ("umount2", [0, 0], EPERM),
    "another root": ("pivot_root", [0, 0], EPERM),
    "a root for oneself": ("chroot", [0], EPERM),
    "a tree of mounts": ("open_tree", [-1, 0, 0], EPERM),
    "moving a mount": ("move_mount", [-1, 0, -1, 0, 0], EPERM),
    "a file system": ("fsopen", [0, 0], EPERM),
    "a mount's facts": ("statmount", [0, 0, 0, 0], ENOSYS),
    "a file by its handle": ("open_by_handle_at", [-1, 0, 0], EPERM),
    "the handle of a file": ("name_to_handle_at", [-1, 0, 0, 0, 0], EPERM),
    "watching all files": ("fanotify_init", [-1, 0], EPERM),
    "a module": ("finit_module", [-1, 0, 0], EPERM),
    "the kernel's log": ("syslog", [10, 0, 0], EPERM),
    "the clock": ("clock_settime", [-1, 0], EPERM),
    "the host's name": ("sethostname", [0, -1], EPERM),
    "memory's place": ("set_mempolicy", [-1, 0, 0], EPERM),
    "moving another's pages": ("migrate_pages", [0, 0, 0, 0], EPERM),
    "executable memory": ("personality", [0x0400000], EPERM),
    "predictable memory": ("personality", [0x0040000], EPERM),
    "a device": ("mknodat", [-1, "x", 0o020600, 0], EPERM),
    "a disk": ("mknodat", [-1, "x", 0o060600, 0], EPERM),
    "typing into the terminal": ("ioctl", [-1, 0x5412, 0], EPERM),
    "typing, with high bits": ("ioctl", [-1, 0x7_0000_5412, 0], EPERM),
    "pasting into the terminal": ("ioctl", [-1, 0x541C, 0], EPERM),
    "a line discipline": ("ioctl", [-1, 0x5423, 0], EPERM),
    "netlink": ("socket", [16, 3, 0], EAFNOSUPPORT),
    "netlink, with high bits": ("socket", [0x1_0000_0010, 3, 0], EAFNOSUPPORT),
    "packets": ("socket", [17, 3, 0], EAFNOSUPPORT),
    "the kernel's cryptography": ("socket", [38, 5, 0], EAFNOSUPPORT),
    "the virtual machine's host": ("socket", [40, 1, 0], EAFNOSUPPORT),
    "a raw socket": ("socket", [2, 3, 255], EPERM),
    "a raw socket, with flags": ("socket", [2, 3 | 0o2000000, 1], EPERM),
    "a seldom protocol": ("socket", [2, 1, 262], EPROTONOSUPPORT),
    "the limits of init": ("prlimit64", [1, 7, 0, 0], EPERM),
    "a call that is not known": ("", [], ENOSYS),
}
"""The call, its arguments and the error. Were one let through, nothing would come of such arguments."""

WITHOUT_THE_FILTER = {
    "a namespace's files": 0,
    "memory that is a file": 0,
    "a handle on a process": 0,
    "predictable memory": 0,
    "netlink": 0,
    "netlink, with high bits": 0,
    "memory by a key": ENOENT,
    "messages by a key": ENOENT,
    "semaphores by a key": ENOENT,
    "a queue by name": ENOENT,
    "a process in a namespace": EINVAL,
    "a process the new way": EINVAL,
    "another's memory": EINVAL,
    "pages into a pipe": EBADF,
    "another's namespace": EBADF,
    "a signal by handle": EBADF,
    "a device": EBADF,
    "typing into the terminal": EBADF,
    "typing, with high bits": EBADF,
    "pasting into the terminal": EBADF,
    "a line discipline": EBADF,
}
"""What the kernel says to anyone, so that one sees the filter at work and nothing else."""

REFUSED_AS_BEFORE = 0.5
"""The share of attacks that may well fail the same way without it, where one has no rights to begin with."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, int]]:
    """What came of each attack, with the filter and without."""
    calls = [(NUMBERS.get(name, 600), arguments) for name, arguments, _ in ATTACKS.values()]
    found: dict[bool, dict[str, int]] = {}
    for is_filtered in (True, False):
        folder = tmp_path_factory.mktemp("filtered")
        found[is_filtered] = dict(zip(ATTACKS, Shell(folder, is_filtered).call(calls), strict=True))
    return found


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_kernel_refuses(attack: str, outcomes: dict[bool, dict[str, int]]) -> None:
    assert outcomes[True][attack] == ATTACKS[attack][2]


def test_without_the_filter_the_same_calls_are_made(outcomes: dict[bool, dict[str, int]]) -> None:
    plain = outcomes[False]

    same = [attack for attack in ATTACKS if plain[attack] == outcomes[True][attack]]

    assert {attack: plain[attack] for attack in WITHOUT_THE_FILTER} == WITHOUT_THE_FILTER
    assert len(same) < REFUSED_AS_BEFORE * len(ATTACKS), same


@on_x86_64
@pytest.mark.parametrize("number", [39, 0x40000000 + 39, 0x40000000 + 512], ids=["x86_64", "x32", "x32_only"])
def test_a_call_through_the_door_of_x32_kills_the_process(number: int, shell: Shell) -> None:
    assert shell.call([(number, [])]) == [0 if number == 39 else -signal.SIGSYS]


THROUGH_THE_OLD_GATE = """
import ctypes, mmap

code = bytes.fromhex("b814000000cd80c3")  # mov eax, 20 (getpid of i386); int 0x80; ret
memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
memory.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print("still alive", ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0)
"""


@on_x86_64
def test_a_call_through_the_door_of_i386_kills_the_process(shell: Shell, tmp_path: Path) -> None:
    killed = shell.python(THROUGH_THE_OLD_GATE)
    control = Shell(tmp_path, is_filtered=False).python(THROUGH_THE_OLD_GATE)

    assert (killed.returncode, killed.stdout) == (-signal.SIGSYS, "")
    assert control.returncode != -signal.SIGSYS


MORE_GENEROUS = """
import ctypes, struct

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

libc = ctypes.CDLL(None, use_errno=True)
everything = Program(1, struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
none = ctypes.c_ulong(0)
print(libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(everything), none, none))
print(libc.memfd_create(b"x", 0), ctypes.get_errno())
print(libc.prctl(22, none, none, none, none))
"""


def test_a_script_cannot_make_the_filter_more_generous(shell: Shell) -> None:
    done = shell.python(MORE_GENEROUS)

    assert done.stdout.split("\n")[:3] == ["0", f"-1 {EPERM}", "-1"], done.stderr


def test_the_filter_holds_for_all_that_a_program_starts(shell: Shell) -> None:
    done = shell.run("/bin/sh", "-c", "grep Seccomp: /proc/self/status; unshare -U true || echo refused")

    assert done.stdout == "Seccomp:\t2\nrefused\n"
