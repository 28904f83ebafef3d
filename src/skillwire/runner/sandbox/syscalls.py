"""The system calls of Linux: their numbers on two architectures, and which of them a script may make.

Numbers never change once given. A call that is newer than these tables has
no number here, so a script is told that the kernel does not have it.
"""

from collections.abc import Mapping


def _numbered(*tables: Mapping[int, str]) -> dict[str, int]:
    """Read tables of names in the order of their numbers, each line with the number of its first name."""
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
    # Files: what may be reached at all is for the mounts to say.
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
    # No watching of files: those of `/usr` belong to everybody, so it tells what runs on the machine.
    "eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime",
    # Memory of one's own.
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
    # Who one is. A script has no capabilities, so it can become no one else.
    "getuid geteuid getgid getegid getresuid getresgid getgroups capget capset",
    "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups",
    # Time.
    "time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer",
    "timer_create timer_settime timer_gettime timer_getoverrun timer_delete",
    # Sockets: what can be reached is for the network namespace to say.
    "socket socketpair bind listen accept accept4 connect shutdown getsockname getpeername getsockopt",
    "setsockopt sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg",
    # The machine, as far as anyone may know it.
    "uname sysinfo getcpu getrandom",
    # Being stricter with oneself. Not with Landlock: its rules are memory that nobody counts.
    "seccomp",
    # The kernel itself puts these into a program that is being traced from outside.
    "uretprobe uprobe",
)

ALLOWED = frozenset(" ".join(_ALLOWED).split())
"""What a script may call; of some, `seccomp` also looks at the arguments."""

ABSENT = frozenset(
    (
        "clone3 cachestat statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules"
        " open_tree_attr file_getattr file_setattr"
    ).split()
)
"""What is denied by saying that it does not exist: a program then does the same with older calls.

The arguments of `clone3` lie in memory, where no filter can see them.
"""
