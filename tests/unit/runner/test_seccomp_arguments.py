"""Calls that the filter allows or not by their arguments, on each machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.runner.bpf import ALLOW, errno
from unit.runner.machines import EAFNOSUPPORT, EINVAL, EPERM, EPROTONOSUPPORT, Machine, both

pytestmark = pytest.mark.requirement("EXEC-12")

words = st.integers(0, 2**32 - 1)
halves = st.integers(0, 2**32 - 1).map(lambda half: half << 32)
"""What an attacker may put where the kernel does not look: the high half of an argument."""

NAMESPACES = [0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

FORK = 0x01200011
VFORK = 0x00004111
THREAD = 0x003D0F00
CLONE_FILES, CLONE_THREAD = 0x400, 0x10000


@both
@given(bits=st.sets(st.sampled_from(NAMESPACES), min_size=1), flags=words, high=halves)
def test_clone_makes_no_namespaces(machine: Machine, bits: set[int], flags: int, high: int) -> None:
    assert machine.verdict("clone", high | flags | sum(bits)) == EPERM


@both
@pytest.mark.parametrize(
    "flags", [FORK, VFORK, THREAD, 17, 0], ids=["fork", "vfork", "thread", "plain", "none"]
)
@given(high=halves, rest=st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_clone_makes_processes_and_threads(machine: Machine, flags: int, high: int, rest: list[int]) -> None:
    assert machine.verdict("clone", high | flags, *rest) == ALLOW


@both
@given(flags=words.map(lambda flags: flags & ~sum(NAMESPACES)))
def test_clone_is_free_in_all_else_if_threads_share_their_descriptors(machine: Machine, flags: int) -> None:
    assert machine.verdict("clone", flags & ~CLONE_THREAD) == ALLOW
    assert machine.verdict("clone", flags | CLONE_THREAD | CLONE_FILES) == ALLOW
    assert machine.verdict("clone", (flags | CLONE_THREAD) & ~CLONE_FILES) == EPERM


@both
@given(first=words, last=words, flags=words, high=halves)
def test_no_thread_gets_descriptors_of_its_own(
    machine: Machine, first: int, last: int, flags: int, high: int
) -> None:
    assert machine.verdict("close_range", first, last, high | flags | 2) == EINVAL
    assert machine.verdict("close_range", first, last, high | (flags & ~2)) == ALLOW


@both
@given(option=words, value=words, high=halves)
def test_no_process_hides_what_it_holds(machine: Machine, option: int, value: int, high: int) -> None:
    assert machine.verdict("prctl", high | 4, value) == (ALLOW if value == 1 else EPERM)
    assert machine.verdict("prctl", high | option, 0) == (EPERM if option == 4 else ALLOW)


def told_of_sockets(family: int, kind: int, protocol: int) -> int:
    """What becomes of a socket, said once more in other words."""
    if family not in (1, 2, 10):
        return EAFNOSUPPORT
    if family == 1:
        return ALLOW if kind & 15 in (1, 2, 5) else EPERM
    if kind & 15 > 2:
        return EPERM
    return ALLOW if protocol in (0, 6, 17) else EPROTONOSUPPORT


@both
@pytest.mark.parametrize("name", ["socket", "socketpair"])
@given(
    family=st.one_of(st.sampled_from([1, 2, 10, 16, 17, 38, 40]), st.integers(0, 50), words),
    kind=st.one_of(st.integers(0, 15), words),
    protocol=st.one_of(st.sampled_from([0, 1, 6, 17, 132, 136, 255, 262]), words),
    high=st.tuples(halves, halves, halves),
)
def test_sockets_are_local_or_tcp_or_udp(
    machine: Machine, name: str, family: int, kind: int, protocol: int, high: tuple[int, int, int]
) -> None:
    verdict = machine.verdict(name, high[0] | family, high[1] | kind, high[2] | protocol)

    assert verdict == told_of_sockets(family, kind, protocol)


CLOEXEC, NONBLOCK = 0o2000000, 0o4000


@both
@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [(1, 1, 0), (1, 2, 0), (1, 5, 0), (2, 1, 0), (2, 1, 6), (2, 2, 0), (2, 2, 17), (10, 1, 6), (10, 2, 17)],
)
def test_ordinary_sockets_are_allowed_with_their_flags(
    machine: Machine, family: int, kind: int, protocol: int
) -> None:
    for flags in (0, CLOEXEC, NONBLOCK, CLOEXEC | NONBLOCK):
        assert machine.verdict("socket", family, kind | flags, protocol) == ALLOW


@both
@pytest.mark.parametrize(
    ("family", "kind", "protocol", "verdict"),
    [
        (16, 3, 0, EAFNOSUPPORT),  # netlink
        (17, 3, 0x300, EAFNOSUPPORT),  # packets as they are on the wire
        (38, 5, 0, EAFNOSUPPORT),  # the kernel's cryptography
        (40, 1, 0, EAFNOSUPPORT),  # the host of a virtual machine
        (0xFFFFFFFF, 1, 0, EAFNOSUPPORT),
        (2, 3, 1, EPERM),  # raw
        (2, 3 | CLOEXEC, 255, EPERM),
        (10, 10 | NONBLOCK, 0, EPERM),  # packet, the old way
        (2, 5, 0, EPERM),  # SCTP, by its type
        (2, 1, 132, EPROTONOSUPPORT),  # SCTP, by its number
        (2, 1, 262, EPROTONOSUPPORT),  # multipath TCP
        (2, 2, 1, EPROTONOSUPPORT),  # ping
    ],
)
def test_unusual_sockets_are_refused(
    machine: Machine, family: int, kind: int, protocol: int, verdict: int
) -> None:
    assert machine.verdict("socket", family, kind, protocol) == verdict


@both
@pytest.mark.parametrize("request_number", [0x5412, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCLINUX", "TIOCSETD"])
@given(high=halves, descriptor=words)
def test_ioctl_does_not_type_into_a_terminal(
    machine: Machine, request_number: int, high: int, descriptor: int
) -> None:
    assert machine.verdict("ioctl", descriptor, high | request_number) == EPERM


@both
@given(request_number=words, high=halves)
def test_ioctl_is_free_in_all_else(machine: Machine, request_number: int, high: int) -> None:
    if request_number not in (0x5412, 0x541C, 0x5423):
        assert machine.verdict("ioctl", 0, high | request_number) == ALLOW


@both
@given(
    kind=st.integers(0, 15).map(lambda kind: kind << 12),
    rights=st.integers(0, 0o7777),
    above=st.integers(0, 2**48 - 1).map(lambda above: above << 16),
    device=st.integers(0, 2**64 - 1),
)
def test_no_device_is_made(machine: Machine, kind: int, rights: int, above: int, device: int) -> None:
    mode = above | kind | rights
    expected = EPERM if kind in (0o020000, 0o060000) else ALLOW

    assert machine.verdict("mknodat", 0, 0, mode, device) == expected
    if "mknod" in machine.numbers:
        assert machine.verdict("mknod", 0, mode, device) == expected


@both
@pytest.mark.parametrize("kind", [0o010000, 0o100000, 0o140000, 0], ids=["fifo", "file", "socket", "default"])
def test_fifos_and_files_are_made(machine: Machine, kind: int) -> None:
    assert machine.verdict("mknodat", 0, 0, kind | 0o600, 0) == ALLOW


@both
@given(persona=words, high=halves)
def test_a_process_stays_as_it_is(machine: Machine, persona: int, high: int) -> None:
    expected = ALLOW if persona in (0, 0xFFFFFFFF) else EPERM

    assert machine.verdict("personality", high | persona) == expected
    assert machine.verdict("personality", high) == machine.verdict("personality", 0xFFFFFFFF) == ALLOW


@both
@pytest.mark.parametrize("persona", [0x0400000, 0x0040000, 0x0020000, 8], ids=hex)
def test_memory_is_neither_executable_nor_predictable_on_demand(machine: Machine, persona: int) -> None:
    assert machine.verdict("personality", persona) == EPERM


@both
@given(process=words, high=halves)
def test_a_script_sets_no_limits_but_its_own(machine: Machine, process: int, high: int) -> None:
    assert machine.verdict("prlimit64", high | process, 7) == (ALLOW if process == 0 else EPERM)
    assert machine.verdict("prlimit64", high, 7) == ALLOW


@both
@given(process=words, high=halves)
@pytest.mark.parametrize(
    "name", ["sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"]
)
def test_a_script_does_not_say_when_init_gets_to_run(
    machine: Machine, name: str, process: int, high: int
) -> None:
    assert machine.verdict(name, high | process, 0) == (EPERM if process == 1 else ALLOW)
    assert machine.verdict(name, high | 1, 0) == EPERM


@both
@given(process=words, high=halves)
@pytest.mark.parametrize(("name", "of_a_process"), [("setpriority", 0), ("ioprio_set", 1)])
def test_priorities_are_set_for_single_processes_and_not_for_init(
    machine: Machine, name: str, of_a_process: int, process: int, high: int
) -> None:
    assert machine.verdict(name, of_a_process, high | process) == (EPERM if process == 1 else ALLOW)
    assert machine.verdict(name, of_a_process, 1) == EPERM
    assert machine.verdict(name, 1 - of_a_process, process) == EPERM
    assert machine.verdict(name, 2, 0) == EPERM or of_a_process == 2


@both
@given(flags=words, high=halves)
def test_memory_is_shared_only_with_a_file_behind_it(machine: Machine, flags: int, high: int) -> None:
    shared, validated, private, anonymous = 0x01, 0x03, 0x02, 0x20
    for kind in (shared, validated):
        assert machine.verdict("mmap", 0, 4096, 3, high | kind | anonymous | flags & ~0xF) == errno(12)
        assert machine.verdict("mmap", 0, 4096, 3, high | kind | flags & ~0x2F) == ALLOW
    assert machine.verdict("mmap", 0, 4096, 3, high | private | anonymous | flags & ~0xF) == ALLOW


@both
@given(descriptor=words, command=words, high=halves)
def test_no_folder_is_watched_and_no_pipe_is_resized(
    machine: Machine, descriptor: int, command: int, high: int
) -> None:
    watch, resize = 1026, 1031
    assert machine.verdict("fcntl", descriptor, high | watch) == EPERM
    assert machine.verdict("fcntl", descriptor, high | resize) == EPERM
    if command not in (36, 37, 38, watch, resize):
        assert machine.verdict("fcntl", descriptor, high | command) == ALLOW


@both
@pytest.mark.parametrize(
    ("command", "verdict"),
    [(36, EINVAL), (37, EINVAL), (38, EINVAL), (5, ALLOW), (6, ALLOW), (7, ALLOW), (1032, ALLOW)],
    ids=["OFD_GETLK", "OFD_SETLK", "OFD_SETLKW", "GETLK", "SETLK", "SETLKW", "GETPIPE_SZ"],
)
@given(descriptor=words, high=halves)
def test_locks_are_those_of_processes(
    machine: Machine, command: int, verdict: int, descriptor: int, high: int
) -> None:
    assert machine.verdict("fcntl", descriptor, high | command) == verdict
