"""`Check`: the result of one check of `skillwire doctor`."""

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from skillwire.cli.command import plural
from skillwire.cli.states import is_used, place_of
from skillwire.core import SkillError
from skillwire.host import (
    MAX_CACHE_BYTES,
    ApprovalStore,
    ConfigError,
    ContentCache,
    FileTrust,
    FolderTrust,
    HttpEndpoint,
    LocalRoot,
    LocalSkills,
    LockReview,
    LockState,
    LockTrust,
    ServerConfig,
    Servers,
    SiteEndpoint,
    StdioEndpoint,
    Storage,
    SyncedFolders,
    UnsafePlaceError,
    find_config,
    read_servers,
)
from skillwire.host.connect.config_file import parse_json, read_bytes


class Status(StrEnum):
    """The severity of a check's result."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong; for information."""
    WARNING = "warning"
    """It works, but should be changed."""
    PROBLEM = "problem"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `fix` is empty when there is nothing to do."""

    area: str
    subject: str
    status: Status
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "area": self.area,
            "subject": self.subject,
            "status": self.status.value,
            "found": self.found,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Area:
    """A group of checks under one heading; creates their results."""

    name: str

    def ok(self, subject: str, found: str) -> Check:
        return Check(self.name, subject, Status.OK, found)

    def note(self, subject: str, found: str, fix: str = "") -> Check:
        return Check(self.name, subject, Status.NOTE, found, fix)

    def warning(self, subject: str, found: str, fix: str) -> Check:
        return Check(self.name, subject, Status.WARNING, found, fix)

    def problem(self, subject: str, found: str, fix: str) -> Check:
        return Check(self.name, subject, Status.PROBLEM, found, fix)


# Check the configuration: found, readable, complete, and private if it holds secrets.


_AREA = Area("configuration")
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|api.?key|auth|credential|cookie|private.?key")
_SECRET_ARGUMENT = re.compile(r"(?i)--?[\w-]*(?:token|secret|passw|api-?key|auth)[\w-]*=.")
_REFERENCE = re.compile(r"\$\{[^}]+\}")


@dataclass(frozen=True, slots=True)
class ConfigurationReport:
    """The checks of the configuration, and the servers that can be contacted."""

    checks: tuple[Check, ...] = ()
    usable: tuple[ServerConfig, ...] = ()


def check_configuration(named: Path | None) -> ConfigurationReport:
    """Read the named configuration, or the one found here, and check each server in it."""
    path = named or find_config(Path.cwd())
    if path is None:
        note = _AREA.note(
            "servers",
            "no .mcp.json, .cursor/mcp.json or .vscode/mcp.json here",
            "run `skillwire add LABEL URL`, or name a file with --config FILE",
        )
        return ConfigurationReport((note,))
    try:
        found = read_servers(path)
    except ConfigError as error:
        fix = error.fix or "correct the file"
        return ConfigurationReport((_AREA.problem(_shown(path), str(error), fix),))
    servers = [(server, _server(server)) for server in found.servers]
    checks = (*_checks(path, found), *(check for _, check in servers))
    if named is None and found.servers and not FileTrust(Storage().state).is_trusted(path, found.digest):
        words = "not trusted yet, so nothing in it is started or contacted"
        fix = f"run `skillwire trust`, or use --config {_shown(path)}"
        return ConfigurationReport((*checks, _AREA.warning(_shown(path), words, fix)))
    usable = [server for server, check in servers if check.status is not Status.PROBLEM and is_used(server)]
    return ConfigurationReport(checks, tuple(usable))


def _checks(path: Path, found: Servers) -> Iterator[Check]:
    yield _AREA.ok(_shown(path), plural(len(found.servers) + len(found.refused), "server"))
    yield from _privacy(path)
    for refusal in found.refused:
        yield _AREA.problem(refusal.subject, refusal.detail or refusal.sentence, refusal.remedy)


def _shown(path: Path) -> str:
    """Return a path as the user would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _server(server: ServerConfig) -> Check:
    if not is_used(server):
        return _AREA.note(server.label, "turned off")
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return _program(server.label, endpoint)
    if _is_unencrypted_remote(endpoint):
        return _AREA.warning(
            server.label,
            f"{endpoint.shown} is not encrypted, and is not on this machine",
            "use https, or anyone on the network path can read and change its messages",
        )
    return _AREA.ok(server.label, place_of(server))


def _program(label: str, endpoint: StdioEndpoint) -> Check:
    """Check that the program can be found in the way it will be started."""
    path = endpoint.env.get("PATH") or os.environ.get("PATH")
    command = endpoint.command
    if os.path.dirname(command) and endpoint.cwd is not None:  # noqa: PTH120 - Path drops a leading ./
        command = str(Path(endpoint.cwd, command))
    if endpoint.cwd is not None and not Path(endpoint.cwd).is_dir():
        return _AREA.problem(label, "its `cwd` is not a folder", "correct `cwd` in the configuration")
    if shutil.which(command, path=path) is None:
        return _AREA.problem(
            label,
            f"the program {endpoint.command} is not found",
            "install it, or write its full path in the configuration",
        )
    return _AREA.ok(label, f"program {endpoint.command} found")


def _is_unencrypted_remote(endpoint: HttpEndpoint | SiteEndpoint) -> bool:
    parts = urlsplit(endpoint.shown)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def _privacy(path: Path) -> Iterator[Check]:
    """Yield a warning when a file that others can read holds secrets; the secrets are not repeated."""
    holders = sorted(_secret_holders(path))
    if not holders:
        return
    mode = stat.S_IMODE(path.stat().st_mode) if hasattr(os, "geteuid") else 0
    named = ", ".join(holders[:5]) + (", …" if len(holders) > 5 else "")
    if mode & 0o077:
        yield _AREA.warning(
            _shown(path),
            f"it seems to hold secrets ({named}), and other users here may read it (mode {mode:o})",
            f"run chmod 600 {_shown(path)}, or write ${{VARIABLE}} in their place",
        )
    else:
        yield _AREA.note(
            _shown(path),
            f"it seems to hold secrets ({named})",
            "write ${VARIABLE} in their place to share the file",
        )


def _secret_holders(path: Path) -> Iterator[str]:
    """Yield where literal secrets seem to be: the server and the name, never a value."""
    try:
        document = parse_json(read_bytes(path), path.name)
    except ConfigError:
        return
    whole = _table(document)
    for key, value in (_table(whole.get("mcpServers")) | _table(whole.get("servers"))).items():
        server = _table(value)
        for kind in ("env", "headers"):
            for name, content in _table(server.get(kind)).items():
                if _SECRET_NAME.search(name) and _is_literal(content):
                    yield f"{key}: {name}"
        arguments = server.get("args")
        for argument in cast(list[object], arguments) if isinstance(arguments, list) else []:
            if isinstance(argument, str) and _SECRET_ARGUMENT.match(argument) and _is_literal(argument):
                yield f"{key}: {argument.partition('=')[0]}"
        url = server.get("url")
        if isinstance(url, str) and _has_password(url):
            yield f"{key}: url"


def _table(value: object) -> dict[str, object]:
    return dict(cast(Mapping[str, object], value)) if isinstance(value, dict) else {}


def _is_literal(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not _REFERENCE.search(value)


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password) and not _REFERENCE.search(url)
    except ValueError:
        return False


# Check the host's own storage: state, approvals, cache and audit log.


_PLACES_AREA = Area("places")
_HAS_OWNERS = hasattr(os, "geteuid")
_MOST_NAMED = 3


def check_places(places: Storage, roots: Iterable[LocalRoot]) -> Iterator[Check]:
    """Check the host's folders without creating any."""
    try:
        places.check([root.path for root in roots])
    except UnsafePlaceError as error:
        yield _PLACES_AREA.problem("folders", f"{error}: {error.reference}", error.fix)
    for name, path in (("state", places.state), ("cache", places.cache)):
        yield _folder(name, path)
    if places.state.is_dir():
        yield from _files(places.state)
        yield _approvals(places)
        yield from _tampered_files(places.state)
        yield _audit(places.audit)
    if places.cache.is_dir():
        yield _cache(places)


def _folder(name: str, path: Path) -> Check:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return _PLACES_AREA.note(name, f"{path} is created when it is first needed")
    except OSError as error:
        return _PLACES_AREA.problem(name, f"{path}: {error.strerror}", "choose a folder of this user")
    if not stat.S_ISDIR(found.st_mode):
        return _PLACES_AREA.problem(
            name, f"{path} is a link, or not a folder", "move it away; a new one is created"
        )
    if _HAS_OWNERS and found.st_uid != os.geteuid():
        return _PLACES_AREA.problem(name, f"{path} belongs to another user", "choose a folder of this user")
    if _HAS_OWNERS and stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return _PLACES_AREA.warning(
            name, f"{path} is accessible to other users (mode {mode:o})", f"run chmod 700 {path}"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return _PLACES_AREA.problem(name, f"{path} cannot be written", f"run chmod 700 {path}")
    return _PLACES_AREA.ok(name, f"{path}, private")


def _files(state: Path) -> Iterator[Check]:
    """Yield a warning that names the files other users can read or change."""
    if not _HAS_OWNERS:
        return
    open_ones: list[str] = []
    for path in sorted(state.iterdir()):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
            open_ones.append(path.name)
    if open_ones:
        more = ", …" if len(open_ones) > _MOST_NAMED else ""
        yield _PLACES_AREA.warning(
            "state files",
            f"accessible to other users: {', '.join(open_ones[:_MOST_NAMED])}{more}",
            f"run chmod 600 on the files in {state}",
        )


def _approvals(places: Storage) -> Check:
    store, trust = ApprovalStore(places.state), FolderTrust(places.state)
    approvals, folders = store.approvals(), trust.folders()
    tampering = store.tampering or trust.tampering
    if tampering is not None:
        return _PLACES_AREA.problem("approvals", f"{tampering.sentence} {tampering.detail}", tampering.remedy)
    return _PLACES_AREA.ok(
        "approvals", f"{plural(len(approvals), 'skill')} approved, {plural(len(folders), 'folder')} trusted"
    )


def _tampered_files(state: Path) -> Iterator[Check]:
    found = sorted(path.name for path in state.iterdir() if ".tampered-" in path.name)
    if found:
        yield _PLACES_AREA.warning(
            "tampering",
            f"another program changed the state; {plural(len(found), 'file')} moved aside, last {found[-1]}",
            "find out what wrote to it, then remove the files",
        )


def _audit(path: Path) -> Check:
    try:
        found = path.lstat()
    except OSError:
        return _PLACES_AREA.note("audit log", "empty so far")
    if not stat.S_ISREG(found.st_mode):
        return _PLACES_AREA.problem(
            "audit log", f"{path} is not a regular file", "move it away; a new one is created"
        )
    if not os.access(path, os.W_OK):
        return _PLACES_AREA.problem("audit log", f"{path} cannot be written", f"run chmod 600 {path}")
    return _PLACES_AREA.ok("audit log", f"{path}, {found.st_size:,} bytes")


def _cache(places: Storage) -> Check:
    try:
        usage = ContentCache(places.cache).usage()
    except SkillError as error:
        return _PLACES_AREA.problem("cached files", str(error), "run `skillwire cache clear`")
    found = f"{plural(usage.files, 'file')}, {usage.size:,} bytes, of {plural(len(usage.origins), 'server')}"
    if usage.size > MAX_CACHE_BYTES:
        return _PLACES_AREA.warning("cached files", f"{found}; over the quota", "run `skillwire cache gc`")
    return _PLACES_AREA.ok("cached files", found)


# Check the current project: its lock, its own skills, and the user's.


_LOCK = Area("lock")
_FOLDERS = Area("local skills")


def check_lock(path: Path, state: Path, *, is_named: bool, frozen: bool) -> Check:
    """Check whether the lock can be read and is trusted."""
    try:
        review = LockTrust(state).review(path)
    except SkillError as error:
        return _LOCK.problem(path.name, str(error), error.fix or "restore it, or write it again")
    return _reviewed(path, review, is_named=is_named, frozen=frozen)


def _reviewed(path: Path, review: LockReview, *, is_named: bool, frozen: bool) -> Check:
    if review.lock is None:
        if is_named or frozen:
            return _LOCK.problem(path.name, "there is no such file", "write it with `skillwire lock --write`")
        return _LOCK.note(path.name, "this folder has none")
    pins = plural(len(review.lock.approvals), "skill")
    if frozen:
        return _LOCK.ok(path.name, f"frozen, {pins} pinned")
    if review.state is LockState.TRUSTED:
        ended = f", {len(review.revoked)} of them revoked" if review.revoked else ""
        return _LOCK.ok(path.name, f"trusted, {pins} pinned{ended}")
    words = "changed outside skillwire" if review.state is LockState.CHANGED else "never trusted here"
    command = f"skillwire lock --lock {shlex.quote(str(path))}" if is_named else "skillwire lock"
    fix = f"review it with `{command}`, then run `{command} --trust`"
    return _LOCK.warning(path.name, f"{pins} pinned, {words}, so it is not used", fix)


def check_folders(roots: Sequence[LocalRoot], state: Path) -> Iterator[Check]:
    """Check each folder of local skills, and whether a project's is trusted."""
    trust, synced = (FolderTrust(state), SyncedFolders(state)) if state.is_dir() else (None, None)
    existing = [root for root in roots if root.path.is_dir()]
    if not existing:
        yield _FOLDERS.note("folders", f"none of {', '.join(str(root.path) for root in roots)} exists")
    for root in existing:
        yield _folder_check(root, trust, synced)


def _folder_check(root: LocalRoot, trust: FolderTrust | None, synced: SyncedFolders | None) -> Check:
    place = str(root.path)
    scan = LocalSkills([root], trust, synced).scan()
    if any(refusal.code == "untrusted-folder" for refusal in scan.hidden):
        return _FOLDERS.warning(
            place,
            "not used, because this project's folder is not trusted",
            "review it, then run `skillwire trust`",
        )
    found = plural(len(scan.skills), "skill")
    if hidden := [refusal for refusal in scan.hidden if refusal.code != "synced-folder"]:
        return _FOLDERS.warning(
            place,
            f"{found}, {len(hidden):,} more not used",
            "see `skillwire list -v` for what is wrong with them",
        )
    return _FOLDERS.ok(place, found)
