"""The host's own places: state, approvals, cache and audit log."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from skillwire.cli.answer import plural
from skillwire.cli.checkup.check import Area, Check
from skillwire.errors import SkillError
from skillwire.host import LocalRoot, Places, UnsafePlaceError
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.state.cache import MAX_BYTES, ContentCache
from skillwire.host.state.trust import FolderTrust

_AREA = Area("places")
_HAS_OWNERS = hasattr(os, "geteuid")
_MOST_NAMED = 3


def check_places(places: Places, roots: Iterable[LocalRoot]) -> Iterator[Check]:
    """Look at the folders without making any."""
    try:
        places.check([root.path for root in roots])
    except UnsafePlaceError as error:
        yield _AREA.problem("folders", f"{error}: {error.reference}", error.fix)
    for name, path in (("state", places.state), ("cache", places.cache)):
        yield _folder(name, path)
    if places.state.is_dir():
        yield from _files(places.state)
        yield _approvals(places)
        yield from _set_aside(places.state)
        yield _audit(places.audit)
    if places.cache.is_dir():
        yield _cache(places)


def _folder(name: str, path: Path) -> Check:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return _AREA.note(name, f"{path} is made when it is first needed")
    except OSError as error:
        return _AREA.problem(name, f"{path}: {error.strerror}", "choose a folder of this user")
    if not stat.S_ISDIR(found.st_mode):
        return _AREA.problem(name, f"{path} is a link, or no folder", "move it away; a new one is made")
    if _HAS_OWNERS and found.st_uid != os.geteuid():
        return _AREA.problem(name, f"{path} belongs to another user", "choose a folder of this user")
    if _HAS_OWNERS and stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return _AREA.warning(name, f"{path} is open to other users (mode {mode:o})", f"run chmod 700 {path}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return _AREA.problem(name, f"{path} cannot be written", f"run chmod 700 {path}")
    return _AREA.ok(name, f"{path}, private")


def _files(state: Path) -> Iterator[Check]:
    """Say which files others may read or change."""
    if not _HAS_OWNERS:
        return
    open_ones: list[str] = []
    for path in sorted(state.iterdir()):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
            open_ones.append(path.name)
    if open_ones:
        more = ", …" if len(open_ones) > _MOST_NAMED else ""
        yield _AREA.warning(
            "state files",
            f"open to other users: {', '.join(open_ones[:_MOST_NAMED])}{more}",
            f"run chmod 600 on the files in {state}",
        )


def _approvals(places: Places) -> Check:
    store, trust = ApprovalStore(places.state), FolderTrust(places.state)
    approvals, folders = store.approvals(), trust.folders()
    tampering = store.tampering or trust.tampering
    if tampering is not None:
        return _AREA.problem("approvals", f"{tampering.sentence} {tampering.detail}", tampering.remedy)
    return _AREA.ok(
        "approvals", f"{plural(len(approvals), 'skill')} approved, {plural(len(folders), 'folder')} trusted"
    )


def _set_aside(state: Path) -> Iterator[Check]:
    found = sorted(path.name for path in state.iterdir() if ".tampered-" in path.name)
    if found:
        yield _AREA.warning(
            "tampering",
            f"something else changed the state; {plural(len(found), 'file')} set aside, last {found[-1]}",
            "find out what wrote to it, then remove the files",
        )


def _audit(path: Path) -> Check:
    try:
        found = path.lstat()
    except OSError:
        return _AREA.note("audit log", "empty so far")
    if not stat.S_ISREG(found.st_mode):
        return _AREA.problem("audit log", f"{path} is no plain file", "move it away; a new one is begun")
    if not os.access(path, os.W_OK):
        return _AREA.problem("audit log", f"{path} cannot be written", f"run chmod 600 {path}")
    return _AREA.ok("audit log", f"{path}, {found.st_size:,} bytes")


def _cache(places: Places) -> Check:
    try:
        usage = ContentCache(places.cache).usage()
    except SkillError as error:
        return _AREA.problem("cached files", str(error), "run skillwire cache clear")
    found = f"{plural(usage.files, 'file')}, {usage.size:,} bytes, of {plural(len(usage.origins), 'server')}"
    if usage.size > MAX_BYTES:
        return _AREA.warning("cached files", f"{found}; that is over the quota", "run skillwire cache gc")
    return _AREA.ok("cached files", found)
