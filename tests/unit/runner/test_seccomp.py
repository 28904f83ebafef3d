"""The filter of system calls, judged by an interpreter of its own: no kernel is needed here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import SandboxUnavailableError
from skillwire.runner.sandbox.seccomp import ABSENT, ALLOWED, filter_for
from unit.runner.bpf import (
    ALLOW,
    AUDIT_AARCH64,
    AUDIT_X86_64,
    JMP_JEQ_K,
    KILL_PROCESS,
    MOST_INSTRUCTIONS,
    RET_K,
    Call,
    Instruction,
    Program,
)
from unit.runner.machines import ENOSYS, EPERM, JUDGED, MACHINES, NAMES, Machine, both

pytestmark = pytest.mark.requirement("EXEC-12")


words = st.integers(0, 2**32 - 1)


def told_by_the_tables(machine: Machine, number: int) -> int:
    """What becomes of a call whose arguments do not matter."""
    name = NAMES[machine.name].get(number)
    if name is None or name in ABSENT:
        return ENOSYS
    return ALLOW if name in ALLOWED else EPERM


# -- The program --


@both
def test_the_kernel_would_take_the_program(machine: Machine) -> None:
    raw = filter_for(machine.name)

    program = Program.parse(raw)

    assert len(program.instructions) < MOST_INSTRUCTIONS // 8
    assert program.unreachable() == set()


def test_the_interpreter_refuses_a_program_with_a_jump_out_of_it() -> None:
    jumping = Instruction(JMP_JEQ_K, 0, 7, 1)
    ending = Instruction(RET_K, 0, 0, ALLOW)
    raw = b"".join(
        one.code.to_bytes(2, "little") + bytes([one.if_so, one.if_not]) + one.value.to_bytes(4, "little")
        for one in (jumping, ending, ending)
    )

    with pytest.raises(AssertionError, match="leaps out"):
        Program.parse(raw)


def test_arm64_is_another_name_for_aarch64() -> None:
    assert filter_for("arm64") == filter_for("aarch64") != filter_for("x86_64")


@pytest.mark.parametrize(
    "name", ["", "i686", "armv7l", "aarch64_be", "riscv64", "ppc64le", "X86_64", "\x1b[2J"]
)
def test_an_unknown_architecture_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        filter_for(name)

    assert caught.value.reason == "architecture_unknown"
    assert "x86_64" in caught.value.fix
    assert str(caught.value).isprintable()


@both
def test_every_number_gets_the_verdict_of_the_tables(machine: Machine) -> None:
    judged = {machine.numbers[name] for name in JUDGED if name in machine.numbers}

    numbers = [number for number in range(601) if number not in judged]
    verdicts = {number: machine.program.verdict(Call(machine.audit, number)) for number in numbers}

    assert verdicts == {number: told_by_the_tables(machine, number) for number in numbers}


@both
@given(number=st.integers(0, 0x3FFFFFFF), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_any_other_number_gets_the_verdict_of_the_tables_whatever_its_arguments(
    machine: Machine, number: int, arguments: list[int]
) -> None:
    if NAMES[machine.name].get(number) in JUDGED:
        return

    assert machine.program.verdict(Call(machine.audit, number, arguments)) == told_by_the_tables(
        machine, number
    )


@both
@given(number=st.integers(0, 600), pointer=st.integers(0, 2**64 - 1))
def test_the_place_a_call_comes_from_does_not_matter(machine: Machine, number: int, pointer: int) -> None:
    here = machine.program.verdict(Call(machine.audit, number))

    assert machine.program.verdict(Call(machine.audit, number, pointer=pointer)) == here


@both
@given(audit=words, number=words)
def test_a_call_of_another_architecture_is_death(machine: Machine, audit: int, number: int) -> None:
    if audit == machine.audit:
        return

    assert machine.program.verdict(Call(audit, number)) == KILL_PROCESS


@both
@pytest.mark.parametrize("audit", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0, 0x0000003E, 0x800000B7])
def test_no_door_of_another_architecture_is_open(machine: Machine, audit: int) -> None:
    verdicts = {machine.program.verdict(Call(audit, number)) for number in range(601)}

    assert (verdicts == {KILL_PROCESS}) == (audit != machine.audit)


@given(number=words)
def test_the_calls_of_x32_are_death(number: int) -> None:
    call = Call(AUDIT_X86_64, number | 0x40000000)

    assert MACHINES[0].program.verdict(call) == KILL_PROCESS


@given(number=st.integers(0x40000000, 2**32 - 1))
def test_numbers_with_high_bits_mean_nothing_on_aarch64(number: int) -> None:
    assert MACHINES[1].program.verdict(Call(AUDIT_AARCH64, number)) == ENOSYS


@both
def test_the_numbers_of_x32_without_its_bit_mean_nothing(machine: Machine) -> None:
    assert {machine.program.verdict(Call(machine.audit, number)) for number in range(512, 548)} == {ENOSYS}


@both
def test_no_call_costs_more_than_a_few_instructions(machine: Machine) -> None:
    plain = {
        number: machine.program.run(Call(machine.audit, number))[1]
        for number in range(601)
        if NAMES[machine.name].get(number) not in JUDGED
    }
    judged = {
        name: machine.program.run(Call(machine.audit, machine.numbers[name], [2, 2, 17]))[1]
        for name in JUDGED & machine.numbers.keys()
    }

    assert max(plain.values()) <= 12
    assert max(judged.values()) <= 24


# -- What is denied --

DENIED = """
    ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd pidfd_send_signal kcmp bpf
    perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key
    request_key mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr statmount listmount open_tree_attr unshare setns clone3 open_by_handle_at
    name_to_handle_at kexec_load kexec_file_load create_module init_module finit_module
    delete_module query_module acct swapon swapoff reboot settimeofday clock_settime adjtimex
    clock_adjtime iopl ioperm modify_ldt quotactl quotactl_fd syslog sethostname setdomainname
    vhangup nfsservctl lookup_dcookie fanotify_init fanotify_mark mbind migrate_pages move_pages
    set_mempolicy set_mempolicy_home_node memfd_create memfd_secret shmget shmat shmctl shmdt msgget
    msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open mq_unlink mq_timedsend
    mq_timedreceive mq_notify mq_getsetattr process_madvise process_mrelease vmsplice io_setup
    io_submit io_pgetevents remap_file_pages uselib ustat sysfs _sysctl sync cachestat
    lsm_get_self_attr lsm_set_self_attr file_setattr
""".split()


@both
@pytest.mark.parametrize("name", DENIED)
def test_a_script_cannot_call(name: str, machine: Machine) -> None:
    number = machine.numbers.get(name)

    verdicts = {
        machine.program.verdict(Call(machine.audit, -1 if number is None else number, [argument] * 6))
        for argument in (0, 1, 2**31, 2**64 - 1)
    }

    if number is None:
        assert machine.name == "aarch64" and verdicts == {ENOSYS}
    else:
        assert verdicts == {ENOSYS if name in ABSENT else EPERM}


@both
def test_a_program_that_tries_clone3_is_told_to_use_clone(machine: Machine) -> None:
    assert machine.verdict("clone3", 0x7F0000000000, 88) == ENOSYS


@both
def test_a_call_newer_than_the_tables_does_not_exist(machine: Machine) -> None:
    newest = max(machine.numbers.values())

    assert {machine.program.verdict(Call(machine.audit, newest + n)) for n in range(1, 400)} == {ENOSYS}


NEEDED = """
    read write openat close newfstatat statx mmap munmap mprotect madvise brk clone execve execveat
    exit_group wait4 futex futex_waitv set_robust_list rseq getrandom rt_sigaction rt_sigprocmask
    epoll_create1 epoll_pwait eventfd2 timerfd_create signalfd4 pipe2 dup3 getdents64
    sendfile copy_file_range splice tee sendmsg recvmsg bind listen accept4 connect
    sched_setaffinity sched_setscheduler sched_setattr setuid setgid setgroups capset prctl seccomp
    pkey_alloc membarrier statfs
    close_range faccessat2 openat2 epoll_pwait2 setrlimit getrlimit flock fallocate uname
    sysinfo mseal
""".split()


@both
@pytest.mark.parametrize("name", NEEDED)
def test_an_ordinary_program_can_call(name: str, machine: Machine) -> None:
    assert machine.verdict(name) == ALLOW
