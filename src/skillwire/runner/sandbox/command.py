"""How bubblewrap is called: what a sandbox sees of the machine, which is next to nothing."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from skillwire.runner.policy import Interpreter

SEARCH_PATH = "/usr/bin:/bin"
ENVIRONMENT = {
    "PATH": SEARCH_PATH,
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "SKILL_DIR": "/skill",
    "OUTPUT_DIR": "/out",
}
"""All that a script finds in its environment."""

_BOOT = 'import sys;exec(compile(sys.argv.pop(),"<skillwire>","exec"))'
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What is read from `full` is the same as from `zero`, which could also be had as memory that nobody counts.
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom"}
# Programs find their libraries, each other and the public certificate authorities through these.
_OF_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/pki/tls/certs")
# What tells of the machine, and no script needs.
_VEILED = (
    "/proc/cmdline",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/key-users",
    "/proc/modules",
    "/proc/timer_list",
)
_PLACES = ("/tmp", "/out", "/skill", "/run/secrets", "/work", "/hold")


def bubblewrap_command(
    bubblewrap: Path,
    python: Interpreter,
    trees: Iterable[Path],
    *,
    source: str,
    control: int,
    status: int,
) -> list[str]:
    """Return the command that starts a sandbox with `source` as its PID 1.

    Without `--die-with-parent`: bubblewrap killed while it starts leaves a
    process behind that waits forever. The init itself notices when we are gone.

    `control` and `status` are the descriptors it inherits. The init needs a few
    capabilities, inside only, to mount what is private and to keep the network small; it drops
    them before it reads a run.
    """
    return [
        str(bubblewrap),
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--as-pid-1", "--hostname", "sandbox"),
        *("--uid", "1000", "--gid", "1000"),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_NET_ADMIN"),
        *("--cap-add", "CAP_SETPCAP"),
        *_system(),
        *_trees(trees),
        *("--proc", "/proc"),
        *_veils(),
        *_devices(),
        *(word for place in _PLACES for word in ("--dir", place)),
        *("--remount-ro", "/", "--chdir", "/"),
        *("--json-status-fd", str(status)),
        "--",
        *(str(python.path), *python.arguments, "-I", "-B", "-c", _BOOT, str(control), source),
    ]


IN_ETC = frozenset(Path(place).parts[2] for place in _OF_ETC)
"""What there is in `/etc` of a sandbox, at most."""


def in_root(trees: Iterable[Path]) -> frozenset[str]:
    """Return what there is in the root of a sandbox, at most."""
    places = (*_PLACES, "/usr", "/etc", "/proc", "/dev", *map(str, trees))
    return frozenset((*_ROOT_LINKS, *(Path(place).parts[1] for place in places)))


def _system() -> list[str]:
    """Bind `/usr`, and what on this machine belongs to it."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for place in _OF_ETC:
        words += ["--ro-bind-try", place, place]
    return words


def _trees(trees: Iterable[Path]) -> list[str]:
    return [word for tree in sorted(set(trees)) for word in ("--ro-bind", str(tree), str(tree))]


def _veils() -> list[str]:
    return [word for path in _VEILED if Path(path).exists() for word in ("--ro-bind", "/dev/null", path)]


def _devices() -> Sequence[str]:
    bound = [
        word for name, real in _DEVICES.items() for word in ("--dev-bind", f"/dev/{real}", f"/dev/{name}")
    ]
    links = [
        word
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))
        for word in ("--symlink", f"/proc/self/{target}", f"/dev/{name}")
    ]
    return [*bound, *links, "--dir", "/dev/shm"]
