"""The filter that says which system calls a script may make.

It is a program for the kernel's small virtual machine (classic BPF), which
runs at each system call: it sees the architecture, the number and the six
arguments, and returns a verdict. Programs are built here from the tables of
`syscalls`, as a tree that finds the verdict on a number by halving.

What is not allowed is refused as the kernel itself would refuse it, so that
an ordinary program copes; only a call through another architecture's door,
which no ordinary program makes, is death.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from skillwire.core.characters import quoted
from skillwire.errors import SandboxUnavailableError
from skillwire.runner.sandbox.syscalls import AARCH64, ABSENT, ALLOWED, X86_64


class _Instruction(NamedTuple):
    """One `struct sock_filter`. `if_so` and `if_not` count the instructions to leap over."""

    code: int
    value: int
    if_so: int = 0
    if_not: int = 0


_Code = tuple[_Instruction, ...]
"""Instructions of which each way through ends with a verdict."""


class _Machine(NamedTuple):
    """An architecture, as the kernel's audit numbers it, and its calls."""

    audit: int
    numbers: Mapping[str, int]
    foreign_bit: int = 0
    """The bit in a call's number that makes it one of another set of calls."""


_MACHINES = {
    "x86_64": _Machine(0xC000003E, X86_64, foreign_bit=0x40000000),
    "aarch64": _Machine(0xC00000B7, AARCH64),
    "arm64": _Machine(0xC00000B7, AARCH64),
}


@cache
def filter_for(machine: str) -> bytes:
    """Return the filter for a machine that `platform.machine()` calls so, as the kernel takes it.

    That is an array of `struct sock_filter`, little-endian as both machines are.

    Raises:
        SandboxUnavailableError: Its system calls are not known here.
    """
    known = _MACHINES.get(machine)
    if known is None:
        raise SandboxUnavailableError(
            f"no filter of system calls is known for the architecture {quoted(machine)}",
            reason="architecture_unknown",
            fix="run scripts on a machine with x86_64 or aarch64 (arm64)",
        )
    code = (*_preamble(known), *_tree(_segments(known.numbers)))
    return b"".join(struct.pack("<HBBI", one.code, one.if_so, one.if_not, one.value) for one in code)


# -- Verdicts. Numbers of errors are Linux's, wherever this is built. --

_EPERM, _ENOMEM, _ENOSYS, _EPROTONOSUPPORT, _EAFNOSUPPORT = 1, 12, 38, 93, 97

_RETURN = 0x06
_ALLOW: _Code = (_Instruction(_RETURN, 0x7FFF0000),)
_KILL: _Code = (_Instruction(_RETURN, 0x80000000),)


def _error(number: int) -> _Code:
    return (_Instruction(_RETURN, 0x00050000 | number),)


_DENY = _error(_EPERM)
_UNKNOWN = _error(_ENOSYS)


# -- Instructions on the accumulator, a word of 32 bits. --

_LOAD, _MASK, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x54, 0x15, 0x35, 0x45

_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16


def _argument(place: int) -> _Instruction:
    """Load the low half of an argument. The kernel reads no more of any that is judged here."""
    return _Instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * place)


def _choose(code: int, value: int, then: _Code, otherwise: _Code) -> _Code:
    return (_Instruction(code, value, 0, len(then)), *then, *otherwise)


def _one_of(values: tuple[int, ...], then: _Code, otherwise: _Code) -> _Code:
    for value in reversed(values):
        otherwise = _choose(_IF_EQUAL, value, then, otherwise)
    return otherwise


# -- Calls that are judged by their arguments. --

_NEW_NAMESPACES = 0x7E020080
"""All of `CLONE_NEW*`."""

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 2, 5, 0xF
_ANY_PROTOCOL, _TCP, _UDP = 0, 6, 17
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_S_IFMT, _S_IFCHR, _S_IFBLK = 0xF000, 0x2000, 0x6000
_PER_LINUX, _PER_ASK = 0, 0xFFFFFFFF
_MAP_SHARED, _MAP_SHARED_VALIDATE, _MAP_TYPE, _MAP_ANONYMOUS = 0x01, 0x03, 0x0F, 0x20
_F_NOTIFY = 1026
_INIT = 1
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1


def _clone() -> _Code:
    return (_argument(0), *_choose(_IF_ANY_BIT, _NEW_NAMESPACES, _DENY, _ALLOW))


def _socket() -> _Code:
    """Local sockets, TCP and UDP: other families and protocols only make more of the kernel reachable."""
    protocol = (_argument(2), *_one_of((_ANY_PROTOCOL, _TCP, _UDP), _ALLOW, _error(_EPROTONOSUPPORT)))
    kind = (_argument(1), _Instruction(_MASK, _SOCK_TYPE_MASK))
    internet = (*kind, *_choose(_IF_AT_LEAST, _SOCK_DGRAM + 1, _DENY, protocol))
    local = (*kind, *_one_of((_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET), _ALLOW, _DENY))
    others = _one_of((_AF_INET, _AF_INET6), internet, _error(_EAFNOSUPPORT))
    return (_argument(0), *_choose(_IF_EQUAL, _AF_UNIX, local, others))


def _ioctl() -> _Code:
    """No typing into a terminal for its owner, and no other line discipline for it."""
    return (_argument(1), *_one_of((_TIOCSTI, _TIOCLINUX, _TIOCSETD), _DENY, _ALLOW))


def _mknod(mode: int) -> _Code:
    return (
        _argument(mode),
        _Instruction(_MASK, _S_IFMT),
        *_one_of((_S_IFCHR, _S_IFBLK), _DENY, _ALLOW),
    )


def _personality() -> _Code:
    return (_argument(0), *_one_of((_PER_LINUX, _PER_ASK), _ALLOW, _DENY))


def _prlimit64() -> _Code:
    """One's own limits only: those of init, which has the same user, are not a script's to lower."""
    return (_argument(0), *_choose(_IF_EQUAL, 0, _ALLOW, _DENY))


def _schedule() -> _Code:
    """Init watches the run, so nobody but itself says when it gets to run."""
    return (_argument(0), *_choose(_IF_EQUAL, _INIT, _DENY, _ALLOW))


def _priority(of_a_process: int) -> _Code:
    """The same; and groups or all of a user's processes would include init."""
    who = (_argument(1), *_choose(_IF_EQUAL, _INIT, _DENY, _ALLOW))
    return (_argument(0), *_choose(_IF_EQUAL, of_a_process, who, _DENY))


def _fcntl() -> _Code:
    """No watching of folders: those of `/usr` belong to everybody."""
    return (_argument(1), *_choose(_IF_EQUAL, _F_NOTIFY, _DENY, _ALLOW))


def _mmap() -> _Code:
    """No shared memory without a file: nobody could count what its processes have let go of."""
    return (
        _argument(3),
        _Instruction(_MASK, _MAP_TYPE | _MAP_ANONYMOUS),
        *_one_of(
            (_MAP_SHARED | _MAP_ANONYMOUS, _MAP_SHARED_VALIDATE | _MAP_ANONYMOUS), _error(_ENOMEM), _ALLOW
        ),
    )


_JUDGED: dict[str, Callable[[], _Code]] = {
    "clone": _clone,
    "socket": _socket,
    "socketpair": _socket,
    "ioctl": _ioctl,
    "mknod": lambda: _mknod(1),
    "mknodat": lambda: _mknod(2),
    "personality": _personality,
    "prlimit64": _prlimit64,
    "fcntl": _fcntl,
    "mmap": _mmap,
    "sched_setaffinity": _schedule,
    "sched_setattr": _schedule,
    "sched_setparam": _schedule,
    "sched_setscheduler": _schedule,
    "setpriority": lambda: _priority(_PRIO_PROCESS),
    "ioprio_set": lambda: _priority(_IOPRIO_WHO_PROCESS),
}


# -- The program. --


def _preamble(machine: _Machine) -> _Code:
    """Let only calls of this architecture's own set pass, and load their number."""
    load_number = _Instruction(_LOAD, _NUMBER_OFFSET)
    guard: _Code = (load_number,)
    if machine.foreign_bit:
        guard = (load_number, _Instruction(_IF_ANY_BIT, machine.foreign_bit, 0, 1), *_KILL)
    return (
        _Instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _Instruction(_IF_EQUAL, machine.audit, 1, 0),
        *_KILL,
        *guard,
    )


def _verdict(name: str) -> _Code:
    if name in ABSENT:
        return _UNKNOWN
    if name not in ALLOWED:
        return _DENY
    return _JUDGED[name]() if name in _JUDGED else _ALLOW


def _segments(numbers: Mapping[str, int]) -> list[tuple[int, _Code]]:
    """Divide all numbers from 0 on into runs with one verdict: the first number of each, and that verdict."""
    verdicts = {number: _verdict(name) for name, number in numbers.items()}
    segments: list[tuple[int, _Code]] = []
    for number in range(max(verdicts) + 2):
        verdict = verdicts.get(number, _UNKNOWN)
        if not segments or segments[-1][1] != verdict:
            segments.append((number, verdict))
    return segments


def _tree(segments: list[tuple[int, _Code]]) -> _Code:
    """Find the run a number is in by halving, so that no call costs many instructions."""
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, from_there = _tree(segments[:middle]), _tree(segments[middle:])
    return _choose(_IF_AT_LEAST, segments[middle][0], from_there, below)
