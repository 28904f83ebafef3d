"""The machines there are filters for, each with its filter ready to be asked."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from skillwire.runner.sandbox.seccomp import AARCH64, X86_64, filter_for
from unit.runner.bpf import AUDIT_AARCH64, AUDIT_X86_64, Call, Program, errno


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    audit: int
    numbers: Mapping[str, int]
    program: Program

    def verdict(self, name: str, *arguments: int) -> int:
        return self.program.verdict(Call(self.audit, self.numbers[name], arguments))


MACHINES = [
    Machine("x86_64", AUDIT_X86_64, X86_64, Program.parse(filter_for("x86_64"))),
    Machine("aarch64", AUDIT_AARCH64, AARCH64, Program.parse(filter_for("aarch64"))),
]
NAMES = {machine.name: {number: name for name, number in machine.numbers.items()} for machine in MACHINES}

both = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)

EPERM, EINVAL, ENOSYS, EPROTONOSUPPORT, EAFNOSUPPORT = map(errno, (1, 22, 38, 93, 97))

JUDGED = {"clone", "socket", "socketpair", "ioctl", "mknod", "mknodat", "personality", "prlimit64"} | {
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "setpriority",
    "ioprio_set",
    "mmap",
    "fcntl",
    "prctl",
    "close_range",
}
"""What is allowed or not by its arguments."""
