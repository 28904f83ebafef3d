"""The tables of system calls, compared with the kernel's own numbers."""

import re
from pathlib import Path

import pytest

from skillwire.runner.sandbox.seccomp import AARCH64, ABSENT, ALLOWED, X86_64
from unit.runner.machines import JUDGED, MACHINES, Machine, both

pytestmark = pytest.mark.requirement("EXEC-12")

KNOWN_NUMBERS = {
    "x86_64": {
        "read": 0,
        "mmap": 9,
        "ioctl": 16,
        "socket": 41,
        "clone": 56,
        "execve": 59,
        "ptrace": 101,
        "mknod": 133,
        "personality": 135,
        "mount": 165,
        "futex": 202,
        "keyctl": 250,
        "openat": 257,
        "unshare": 272,
        "prlimit64": 302,
        "seccomp": 317,
        "memfd_create": 319,
        "bpf": 321,
        "execveat": 322,
        "rseq": 334,
        "uretprobe": 335,
    },
    "aarch64": {
        "ioctl": 29,
        "mknodat": 33,
        "renameat": 38,
        "mount": 40,
        "openat": 56,
        "read": 63,
        "newfstatat": 79,
        "personality": 92,
        "unshare": 97,
        "futex": 98,
        "ptrace": 117,
        "socket": 198,
        "keyctl": 219,
        "clone": 220,
        "execve": 221,
        "mmap": 222,
        "recvmmsg": 243,
        "wait4": 260,
        "prlimit64": 261,
        "seccomp": 277,
        "memfd_create": 279,
        "bpf": 280,
        "execveat": 281,
        "rseq": 293,
        "kexec_file_load": 294,
    },
}
SHARED_NUMBERS = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
    "cachestat": 451,
    "statmount": 457,
    "mseal": 462,
    "setxattrat": 463,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
HEADERS = {
    "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h"],
    "aarch64": ["/usr/include/asm-generic/unistd.h", "/usr/include/aarch64-linux-gnu/asm/unistd_64.h"],
}
OTHER_NAMES = {"fstatat": "newfstatat"}
"""Names that the generic header gives to what goes by another name where words have 64 bits."""
NOT_CALLS = {"syscalls", "arch_specific_syscall", "sync_file_range2", "stat", "lstat"}
"""What it numbers besides: its own length, and calls of other architectures."""


def numbers_in(header: Path) -> dict[str, int]:
    """Read a header of the kernel, where there is one. Calls for words of 32 bits are left out."""
    text = header.read_text("utf-8") if header.exists() else ""
    found: list[tuple[str, str]] = re.findall(r"(?m)^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)\s*$", text)
    numbers = {OTHER_NAMES.get(name, name): int(number) for name, number in found if name not in NOT_CALLS}
    return {name: number for name, number in numbers.items() if not 403 <= number <= 423}


@both
def test_the_numbers_are_those_of_the_kernel(machine: Machine) -> None:
    newest = max(machine.numbers.values())
    expected = {**KNOWN_NUMBERS[machine.name], **SHARED_NUMBERS}
    for header in HEADERS[machine.name]:
        expected |= {name: number for name, number in numbers_in(Path(header)).items() if number <= newest}

    assert {name: machine.numbers.get(name) for name in expected} == expected


@both
def test_no_two_calls_have_one_number(machine: Machine) -> None:
    assert len(set(machine.numbers.values())) == len(machine.numbers)


@pytest.mark.parametrize(
    ("machine", "holes"),
    [
        (MACHINES[0], set(range(337, 424))),
        (MACHINES[1], set(range(244, 260)) | set(range(295, 424))),
    ],
    ids=["x86_64", "aarch64"],
)
def test_a_number_is_left_out_only_where_the_kernel_has_none(machine: Machine, holes: set[int]) -> None:
    assert set(range(470)) - set(machine.numbers.values()) == holes


def test_all_that_is_allowed_or_absent_is_a_call() -> None:
    assert X86_64.keys() >= ALLOWED | ABSENT
    assert ALLOWED & ABSENT == set()
    assert ALLOWED >= JUDGED


def test_aarch64_has_no_call_that_x86_64_does_not_have() -> None:
    assert AARCH64.keys() <= X86_64.keys()
