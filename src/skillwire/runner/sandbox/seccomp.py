"""The seccomp filter of the system calls that a script may make.

It is a program for the kernel's small virtual machine (classic BPF), which
runs at each system call: it sees the architecture, the number and the six
arguments, and returns a verdict. Programs are built here from the tables of
`syscalls`, as a tree that finds the verdict on a number by halving.

A call that is not allowed fails with an error that ordinary programs handle;
only a call of another architecture, which no ordinary program makes, kills the
process.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from skillwire.core import SandboxUnavailableError, quoted

# The system calls of Linux: their numbers on two architectures, and which of them a script may make.


def _numbered(*tables: Mapping[int, str]) -> dict[str, int]:
    """Return the number of each call, from tables of names keyed by the number of the first name."""
    return {
        name: first + place
        for table in tables
        for first, names in table.items()
        for place, name in enumerate(names.split())
    }


_SINCE_5_1 = {
    424: "pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen",
    431: "fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2",
    440: "process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule",
    446: "landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node",
    451: "cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount",
    459: "lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat",
    466: "removexattrat open_tree_attr file_getattr file_setattr",
}
"""Since Linux 5.1 a new call gets the same number on all architectures; this is up to Linux 6.18."""

X86_64: Mapping[str, int] = _numbered(
    {
        0: "read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction",
        14: "rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select",
        24: "sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep",
        36: "getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg",
        47: "recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt clone",
        57: "fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl",
        72: "fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir",
        84: "rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday",
        97: "getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid",
        109: "setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid",
        119: "setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending",
        128: "rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality",
        136: "ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam",
        144: "sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min",
        148: "sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root",
        156: "_sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2",
        167: "swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module",
        176: "delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall",
        184: "tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr",
        194: "listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex",
        203: "sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents",
        209: "io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old",
        216: "remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64",
        222: "timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime",
        228: "clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes",
        236: "vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive",
        244: "mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get",
        253: "inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat",
        260: "fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat",
        269: "faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range",
        278: "vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create eventfd fallocate",
        286: "timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2",
        294: "inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init",
        301: "fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg",
        308: "setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr",
        315: "sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat",
        323: "userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc",
        331: "pkey_free statx io_pgetevents rseq",
        335: "uretprobe uprobe",
    },
    _SINCE_5_1,
)

AARCH64: Mapping[str, int] = _numbered(
    {
        0: "io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr",
        9: "lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr",
        17: "getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl",
        26: "inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat",
        34: "mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs",
        45: "truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown",
        56: "openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64",
        69: "preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat",
        80: "fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime",
        88: "utimensat acct capget capset personality exit exit_group waitid set_tid_address unshare futex",
        99: "set_robust_list get_robust_list nanosleep getitimer setitimer kexec_load init_module",
        106: "delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete",
        112: "clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam",
        119: "sched_setscheduler sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity",
        124: "sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval",
        128: "restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask",
        136: "rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot",
        143: "setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid",
        153: "times setpgid getpgid getsid setsid getgroups setgroups uname sethostname setdomainname",
        163: "getrlimit setrlimit getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid",
        173: "getppid getuid geteuid getgid getegid gettid sysinfo mq_open mq_unlink mq_timedsend",
        183: "mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl semtimedop",
        193: "semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect getsockname",
        205: "getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk",
        215: "munmap mremap add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect",
        227: "msync mlock munlock mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy",
        237: "set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open accept4 recvmmsg",
        260: "wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at",
        266: "clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module",
        274: "sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat",
        282: "userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc",
        290: "pkey_free statx io_pgetevents rseq kexec_file_load",
    },
    _SINCE_5_1,
)

_ALLOWED = (
    # Files: the mounts decide what can be reached.
    "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile copy_file_range",
    "splice tee open openat openat2 creat close close_range dup dup2 dup3 fcntl flock ioctl pipe pipe2",
    "stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat",
    "getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2",
    "link linkat symlink symlinkat mknod mknodat chmod fchmod fchmodat fchmodat2 umask",
    "chown fchown lchown fchownat utime utimes futimesat utimensat truncate ftruncate fallocate",
    "fadvise64 readahead fsync fdatasync syncfs sync_file_range",
    "setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat",
    "listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat",
    # Waiting for files and events.
    "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2",
    # No inotify: `/usr` is shared with the machine, so it would reveal what runs there.
    "eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime",
    # Private memory.
    "mmap munmap mremap mprotect msync madvise mincore brk mlock mlock2 munlock mlockall munlockall mseal",
    "pkey_alloc pkey_free pkey_mprotect map_shadow_stack get_mempolicy membarrier",
    # Processes and threads.
    "clone fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill",
    "getpid getppid gettid getpgid getpgrp getsid setpgid setsid set_tid_address set_robust_list rseq",
    "futex futex_waitv futex_wake futex_wait futex_requeue prctl arch_prctl personality",
    "rt_sigaction rt_sigprocmask rt_sigpending rt_sigreturn rt_sigsuspend rt_sigtimedwait",
    "rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause restart_syscall",
    "sched_yield sched_setaffinity sched_getaffinity sched_setparam sched_getparam sched_setscheduler",
    "sched_getscheduler sched_setattr sched_getattr sched_get_priority_max sched_get_priority_min",
    "sched_rr_get_interval getpriority setpriority ioprio_get ioprio_set",
    "getrlimit setrlimit prlimit64 getrusage times",
    # Identity. A script has no capabilities, so it cannot become another user.
    "getuid geteuid getgid getegid getresuid getresgid getgroups capget capset",
    "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups",
    # Time.
    "time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer",
    "timer_create timer_settime timer_gettime timer_getoverrun timer_delete",
    # Sockets: the network namespace decides what can be reached.
    "socket socketpair bind listen accept accept4 connect shutdown getsockname getpeername getsockopt",
    "setsockopt sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg",
    # Public information about the machine.
    "uname sysinfo getcpu getrandom",
    # Further self-restriction. Not Landlock: its rules use memory that is not counted.
    "seccomp",
    # The kernel inserts these into a program that is traced from outside.
    "uretprobe uprobe",
)

ALLOWED = frozenset(" ".join(_ALLOWED).split())
"""The calls that a script may make; for some, `seccomp` also checks the arguments."""

ABSENT = frozenset(
    (
        "clone3 cachestat statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules"
        " open_tree_attr file_getattr file_setattr"
    ).split()
)
"""The calls that are denied as if they did not exist, so that programs fall back to older calls.

The arguments of `clone3` are in memory, where a filter cannot read them.
"""


class _Instruction(NamedTuple):
    """One `struct sock_filter`. `if_so` and `if_not` are the number of instructions to skip."""

    code: int
    value: int
    if_so: int = 0
    if_not: int = 0


_Code = tuple[_Instruction, ...]
"""Instructions in which every path ends with a verdict."""


class _Machine(NamedTuple):
    """An architecture: its audit number, and its system calls."""

    audit: int
    numbers: Mapping[str, int]
    foreign_bit: int = 0
    """The bit that marks a call number of another set of calls."""


_MACHINES = {
    "x86_64": _Machine(0xC000003E, X86_64, foreign_bit=0x40000000),
    "aarch64": _Machine(0xC00000B7, AARCH64),
    "arm64": _Machine(0xC00000B7, AARCH64),
}


@cache
def filter_for(machine: str) -> bytes:
    """Return the filter for a machine as named by `platform.machine()`.

    It is an array of `struct sock_filter`, little-endian as both machines are.

    Raises:
        SandboxUnavailableError: The machine is not supported.
    """
    known = _MACHINES.get(machine)
    if known is None:
        raise SandboxUnavailableError(
            f"there is no system call filter for the architecture {quoted(machine)}",
            reason="architecture_unknown",
            fix="run scripts on a machine with x86_64 or aarch64 (arm64)",
        )
    code = (*_preamble(known), *_tree(_segments(known.numbers)))
    return b"".join(struct.pack("<HBBI", one.code, one.if_so, one.if_not, one.value) for one in code)


# -- Verdicts. The error numbers are those of Linux. --

_EPERM, _ENOMEM, _EINVAL, _ENOSYS, _EPROTONOSUPPORT, _EAFNOSUPPORT = 1, 12, 22, 38, 93, 97

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
    """Load the low half of an argument. The kernel reads no more of those that are checked here."""
    return _Instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * place)


def _choose(code: int, value: int, then: _Code, otherwise: _Code) -> _Code:
    return (_Instruction(code, value, 0, len(then)), *then, *otherwise)


def _one_of(values: tuple[int, ...], then: _Code, otherwise: _Code) -> _Code:
    for value in reversed(values):
        otherwise = _choose(_IF_EQUAL, value, then, otherwise)
    return otherwise


# -- Calls that are allowed or denied by their arguments. --

_NEW_NAMESPACES = 0x7E020080
"""All of `CLONE_NEW*`."""

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 2, 5, 0xF
_ANY_PROTOCOL, _TCP, _UDP = 0, 6, 17
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_S_IFMT, _S_IFCHR, _S_IFBLK = 0xF000, 0x2000, 0x6000
_PER_LINUX, _PER_ASK = 0, 0xFFFFFFFF
_MAP_SHARED, _MAP_SHARED_VALIDATE, _MAP_TYPE, _MAP_ANONYMOUS = 0x01, 0x03, 0x0F, 0x20
_F_NOTIFY, _F_SETPIPE_SZ = 1026, 1031
_F_OFD_GETLK, _F_OFD_SETLK, _F_OFD_SETLKW = 36, 37, 38
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 0x2
_PR_SET_DUMPABLE, _DUMPABLE = 4, 1
_INIT = 1
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1


def _clone() -> _Code:
    """Deny new namespaces, and threads with descriptors of their own, which init could not count."""
    thread = _choose(_IF_ANY_BIT, _CLONE_FILES, _ALLOW, _DENY)
    kind = _choose(_IF_ANY_BIT, _CLONE_THREAD, thread, _ALLOW)
    return (_argument(0), *_choose(_IF_ANY_BIT, _NEW_NAMESPACES, _DENY, kind))


def _close_range() -> _Code:
    """Deny descriptors of one thread alone, for the same reason as in `_clone`."""
    return (_argument(2), *_choose(_IF_ANY_BIT, _CLOSE_RANGE_UNSHARE, _error(_EINVAL), _ALLOW))


def _prctl() -> _Code:
    """Deny making a process uninspectable for init."""
    value = (_argument(1), *_choose(_IF_EQUAL, _DUMPABLE, _ALLOW, _DENY))
    return (_argument(0), *_choose(_IF_EQUAL, _PR_SET_DUMPABLE, value, _ALLOW))


def _socket() -> _Code:
    """Allow local sockets, TCP and UDP; others would only expose more of the kernel."""
    protocol = (_argument(2), *_one_of((_ANY_PROTOCOL, _TCP, _UDP), _ALLOW, _error(_EPROTONOSUPPORT)))
    kind = (_argument(1), _Instruction(_MASK, _SOCK_TYPE_MASK))
    internet = (*kind, *_choose(_IF_AT_LEAST, _SOCK_DGRAM + 1, _DENY, protocol))
    local = (*kind, *_one_of((_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET), _ALLOW, _DENY))
    others = _one_of((_AF_INET, _AF_INET6), internet, _error(_EAFNOSUPPORT))
    return (_argument(0), *_choose(_IF_EQUAL, _AF_UNIX, local, others))


def _ioctl() -> _Code:
    """Deny injecting input into a terminal, and changing its line discipline."""
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
    """Allow changing only one's own limits: init has the same user, and its limits must not be lowered."""
    return (_argument(0), *_choose(_IF_EQUAL, 0, _ALLOW, _DENY))


def _schedule() -> _Code:
    """Deny changing the scheduling of init, which monitors the run."""
    return (_argument(0), *_choose(_IF_EQUAL, _INIT, _DENY, _ALLOW))


def _priority(of_a_process: int) -> _Code:
    """Deny changing the priority of init, and of groups or users, which would include it."""
    who = (_argument(1), *_choose(_IF_EQUAL, _INIT, _DENY, _ALLOW))
    return (_argument(0), *_choose(_IF_EQUAL, of_a_process, who, _DENY))


def _fcntl() -> _Code:
    """Deny watching folders: those of `/usr` are shared with the machine.

    Also deny locks of open file descriptions: a file in transit through a
    socket keeps them, and they cannot be counted. Programs use process locks instead.
    A pipe is counted with its initial size, so it cannot be made larger.
    """
    denied = (_F_NOTIFY, _F_SETPIPE_SZ)
    locks = (_F_OFD_GETLK, _F_OFD_SETLK, _F_OFD_SETLKW)
    return (_argument(1), *_one_of(denied, _DENY, _one_of(locks, _error(_EINVAL), _ALLOW)))


def _mmap() -> _Code:
    """Deny anonymous shared memory: it could not be counted after its processes have unmapped it."""
    return (
        _argument(3),
        _Instruction(_MASK, _MAP_TYPE | _MAP_ANONYMOUS),
        *_one_of(
            (_MAP_SHARED | _MAP_ANONYMOUS, _MAP_SHARED_VALIDATE | _MAP_ANONYMOUS), _error(_ENOMEM), _ALLOW
        ),
    )


_CONDITIONAL: dict[str, Callable[[], _Code]] = {
    "clone": _clone,
    "close_range": _close_range,
    "prctl": _prctl,
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
    """Kill calls of other architectures, and load the number of the call."""
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
    return _CONDITIONAL[name]() if name in _CONDITIONAL else _ALLOW


def _segments(numbers: Mapping[str, int]) -> list[tuple[int, _Code]]:
    """Divide the numbers from 0 on into ranges of one verdict, each given by its first number."""
    verdicts = {number: _verdict(name) for name, number in numbers.items()}
    segments: list[tuple[int, _Code]] = []
    for number in range(max(verdicts) + 2):
        verdict = verdicts.get(number, _UNKNOWN)
        if not segments or segments[-1][1] != verdict:
            segments.append((number, verdict))
    return segments


def _tree(segments: list[tuple[int, _Code]]) -> _Code:
    """Return a binary search over the ranges, so that no call costs many instructions."""
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, from_there = _tree(segments[:middle]), _tree(segments[middle:])
    return _choose(_IF_AT_LEAST, segments[middle][0], from_there, below)
