"""Which program runs which script: a fixed table by suffix. What a script's first line says is ignored."""

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from skillwire.runner.policy import MIB, Interpreter

PYTHON_SUFFIX = ".py"
_SHELLS = ("/usr/bin/bash", "/bin/bash", "/usr/bin/sh", "/bin/sh")
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_NODES = ("/usr/bin/node", "/usr/local/bin/node", "/usr/bin/nodejs")
# What V8 reserves and never uses counts as address space.
_NODE_SPACE = 16 * 1024 * MIB
_IN_SIGHT = "/usr"


def found_interpreters(uid: int | None) -> dict[str, Interpreter]:
    """Return the interpreters of this machine that user `uid` can reach; None means the present user."""
    found: dict[str, Interpreter] = {}
    python = _first(_python_candidates(), uid)
    if python is not None:
        found[PYTHON_SUFFIX] = python
    shell = _first((Interpreter(Path(path)) for path in _SHELLS), uid)
    if shell is not None:
        found[".sh"] = shell
    node = _first(
        (Interpreter(Path(path), trees=_trees(Path(path)), address_space=_NODE_SPACE) for path in _NODES), uid
    )
    if node is not None:
        found |= {".js": node, ".mjs": node, ".cjs": node}
    return found


def is_reachable(path: Path, uid: int | None) -> bool:
    """Tell whether a user can get to a file and read it, without becoming that user.

    For another user only what everybody may do counts.
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
    """Begin with the Python this program runs on, without what is installed in its virtual environment."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    if base:
        real = Path(os.path.realpath(base))
        prefix = Path(os.path.realpath(sys.base_prefix))
        yield Interpreter(real, trees=() if _is_in_sight(prefix) else (prefix,))
    for path in _PYTHONS:
        yield Interpreter(Path(path))


def _first(candidates: Iterable[Interpreter], uid: int | None) -> Interpreter | None:
    for candidate in candidates:
        if all(is_reachable(path, uid) for path in (candidate.path, *candidate.trees)):
            return candidate
    return None


def _trees(program: Path) -> tuple[Path, ...]:
    """Return where a program really lies, if that is not where everything lies."""
    real = Path(os.path.realpath(program))
    return () if _is_in_sight(real) else (real.parent.parent,)


def _is_in_sight(path: Path) -> bool:
    return path.is_relative_to(_IN_SIGHT)


def find_bubblewrap(configured: Path | None) -> Path | None:
    """Return bubblewrap from where systems install it; never from a search path, which others may set."""
    for path in (
        (configured,) if configured is not None else (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"))
    ):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
