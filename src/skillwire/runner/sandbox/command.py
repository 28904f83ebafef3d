"""Build the bubblewrap command: what a sandbox can see of the machine, which is almost nothing."""

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from skillwire.runner.policy import MIB, Interpreter

SEARCH_PATH = "/usr/bin:/bin"
ENVIRONMENT = {
    "PATH": SEARCH_PATH,
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "SKILL_DIR": "/skill",
    "OUTPUT_DIR": "/out",
}
"""The complete environment of a script."""

_BOOT = 'import sys;exec(compile(sys.argv.pop(),"<skillwire>","exec"))'
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# `full` reads like `zero`, but cannot be mapped as memory that is not counted.
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom"}
# Programs need these to find their libraries, alternatives and public certificate authorities.
_OF_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/pki/tls/certs")
# Files that describe the machine and that no script needs.
_MASKED = (
    "/proc/cmdline",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/key-users",
    "/proc/modules",
    "/proc/timer_list",
)
_MOUNT_POINTS = ("/tmp", "/out", "/skill", "/run/secrets", "/work", "/hold")


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

    `--die-with-parent` is not used: bubblewrap killed while it starts leaves a
    process behind that waits forever. The init itself ends when its connection closes.

    `control` and `status` are the descriptors it inherits. The init needs a few
    capabilities, only inside the sandbox, to mount private file systems and to limit the network;
    it drops them before it reads a job.
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
        *_masks(),
        *_devices(),
        *(word for place in _MOUNT_POINTS for word in ("--dir", place)),
        *("--remount-ro", "/", "--chdir", "/"),
        *("--json-status-fd", str(status)),
        "--",
        *(str(python.path), *python.arguments, "-I", "-B", "-c", _BOOT, str(control), source),
    ]


IN_ETC = frozenset(Path(place).parts[2] for place in _OF_ETC)
"""The names that may exist in `/etc` of a sandbox."""


def in_root(trees: Iterable[Path]) -> frozenset[str]:
    """Return the names that may exist in the root of a sandbox."""
    places = (*_MOUNT_POINTS, "/usr", "/etc", "/proc", "/dev", *map(str, trees))
    return frozenset((*_ROOT_LINKS, *(Path(place).parts[1] for place in places)))


def _system() -> list[str]:
    """Return the options that bind `/usr` and the folders that belong to it."""
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


def _masks() -> list[str]:
    return [word for path in _MASKED if Path(path).exists() for word in ("--ro-bind", "/dev/null", path)]


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


# Find the interpreters of this machine, by suffix. The first line of a script is ignored.


PYTHON_SUFFIX = ".py"
_SHELLS = ("/usr/bin/bash", "/bin/bash", "/usr/bin/sh", "/bin/sh")
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_NODES = ("/usr/bin/node", "/usr/local/bin/node", "/usr/bin/nodejs")
# V8 reserves much more address space than it uses.
_NODE_SPACE = 16 * 1024 * MIB
_SYSTEM_TREE = "/usr"


def found_interpreters(uid: int | None) -> dict[str, Interpreter]:
    """Return the interpreters of this machine that user `uid` can read; None means the current user."""
    found: dict[str, Interpreter] = {}
    python = _first(_python_candidates(), uid)
    if python is not None:
        found[PYTHON_SUFFIX] = python
    shell = _first((Interpreter(Path(path)) for path in _SHELLS), uid)
    if shell is not None:
        found[".sh"] = shell
    node = _first(
        (
            Interpreter(Path(path), trees=_interpreter_trees(Path(path)), address_space=_NODE_SPACE)
            for path in _NODES
        ),
        uid,
    )
    if node is not None:
        found |= {".js": node, ".mjs": node, ".cjs": node}
    return found


def is_reachable(path: Path, uid: int | None) -> bool:
    """Return whether a user can reach and read a file, without becoming that user.

    For another user only the permissions of everybody are considered.
    """
    if uid is None:
        return os.access(path, os.R_OK | os.X_OK)
    try:
        real = Path(os.path.realpath(path, strict=True))
        ways = [folder.stat().st_mode & stat.S_IXOTH for folder in real.parents]
        return all(ways) and bool(real.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _python_candidates() -> Iterable[Interpreter]:
    """Yield this program's own Python first, without its virtual environment, then those of the system."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    if base:
        real = Path(os.path.realpath(base))
        prefix = Path(os.path.realpath(sys.base_prefix))
        yield Interpreter(real, trees=() if _is_in_system_tree(prefix) else (prefix,))
    for path in _PYTHONS:
        yield Interpreter(Path(path))


def _first(candidates: Iterable[Interpreter], uid: int | None) -> Interpreter | None:
    for candidate in candidates:
        if all(is_reachable(path, uid) for path in (candidate.path, *candidate.trees)):
            return candidate
    return None


def _interpreter_trees(program: Path) -> tuple[Path, ...]:
    """Return the real folder tree of a program, if it is outside `/usr`."""
    real = Path(os.path.realpath(program))
    return () if _is_in_system_tree(real) else (real.parent.parent,)


def _is_in_system_tree(path: Path) -> bool:
    return path.is_relative_to(_SYSTEM_TREE)


def find_bubblewrap(configured: Path | None) -> Path | None:
    """Return the path of bubblewrap; it is never searched in PATH, which others may set."""
    for path in (
        (configured,) if configured is not None else (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"))
    ):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
