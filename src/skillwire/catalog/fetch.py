"""Fetching the skills of managed sources: folders, archives, git repositories and web sites.

Archives and repositories are written into a temporary folder, with the limits
below, and then read as any folder is.
"""

import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from skillwire.catalog.model import CatalogError
from skillwire.core import InvalidArchiveError, InvalidUriError, LimitError, quoted
from skillwire.core.archive import read_tar_gz, read_zip
from skillwire.core.archive_tree import ArchiveLimits, ExpansionMeter, Member, MemberKind
from skillwire.core.uri import check_segment
from skillwire.sources import DirectorySource, LiveSource
from skillwire.sources.wellknown import WellKnownSource
from skillwire.sources.wellknown.web import SiteAddress, WebClient

LIMITS: Final = ArchiveLimits(max_files=50_000, max_total_size=256 * 1024 * 1024, max_depth=32)
"""The limits of a repository or an archive with many skills."""
GIT_SECONDS: Final = 300.0
"""How long git may take to fetch a repository."""

_DOWNLOAD_SECONDS = 120.0
_MAX_ARCHIVE_BYTES = 128 * 1024 * 1024
_MAX_ERRORS = 2_000
_MAX_FILE_BLOCKS = 4 * 1024 * 1024  # Of 512 bytes: no file that git writes is larger than 2 GiB.
_GIT = re.compile(
    r"(?P<url>(?:https|ssh|file)://[^\s#\x00-\x1f\x7f]{1,2000})"
    r"(?:#(?P<ref>[A-Za-z0-9][\w./-]{0,199})?(?::(?P<folder>[\w][\w./ -]{0,499}))?)?",
    re.ASCII,
)
_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]*@")
_REF = "refs/heads/fetched"
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "credential.helper=",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=30",
)


class ManagedKind(StrEnum):
    """Where the skills of a managed source are."""

    FOLDER = "folder"
    GIT = "git"
    ARCHIVE = "archive"
    WELL_KNOWN = "well-known"


@asynccontextmanager
async def fetched(kind: ManagedKind, location: str, prefix: str) -> AsyncGenerator[LiveSource]:
    """Fetch the skills at a location, and return a source whose snapshot has them.

    Raises:
        SkillError: They cannot be fetched, or exceed a limit.
    """
    if kind is ManagedKind.WELL_KNOWN:
        site = WellKnownSource(location, prefix=prefix)
        # Without being entered, it does not poll.
        await site.refresh()
        yield site
        return
    if kind is ManagedKind.FOLDER:
        async with DirectorySource(location, prefix=prefix, watch=False) as source:
            yield source
        return
    folder = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp))
    try:
        data = await (_from_git(location, folder) if kind is ManagedKind.GIT else _archive(location))
        strip = kind is ManagedKind.ARCHIVE
        try:
            root = await anyio.to_thread.run_sync(_write_tree, data, folder / "tree", strip)
        except OSError as error:
            raise CatalogError(f"the files of a source cannot be written: {error.strerror}") from error
        async with DirectorySource(root, prefix=prefix, watch=False, index=False) as source:
            yield source
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))


def check_location(kind: ManagedKind, location: str) -> None:
    """Check the form of a location.

    Raises:
        CatalogError: No source of this kind can be there.
    """
    if _PASSWORD.search(location):
        raise CatalogError("the location has a password", fix="use a key or a token of the machine instead")
    if kind is ManagedKind.GIT:
        _git_location(location)
    elif kind is ManagedKind.WELL_KNOWN or "://" in location:
        SiteAddress.parse(location)
    elif not Path(location).is_absolute():
        raise CatalogError("the path of a managed source is not absolute", fix="write the whole path")


# Archives


async def _archive(location: str) -> bytes:
    """Return the bytes of an archive at a path or URL."""
    if "://" not in location:
        return await anyio.to_thread.run_sync(_read_archive, Path(location))
    client = WebClient(SiteAddress.parse(location), seconds=_DOWNLOAD_SECONDS)
    answer = await client.get(location, max_bytes=_MAX_ARCHIVE_BYTES, raw=True)
    if answer.status != 200:
        raise CatalogError(f"the archive cannot be downloaded: the answer has the status {answer.status}")
    return answer.body


def _read_archive(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CatalogError("the archive of a managed source is not a file")
            data = file.read(_MAX_ARCHIVE_BYTES + 1)
    except OSError as error:
        raise CatalogError(f"the archive of a managed source cannot be read: {error.strerror}") from error
    if len(data) > _MAX_ARCHIVE_BYTES:
        raise LimitError(f"the archive has more than {_MAX_ARCHIVE_BYTES} bytes")
    return data


def _write_tree(data: bytes, root: Path, strip: bool) -> Path:
    """Write the files of an archive below a new folder, and return the folder of the skills.

    Links are written last, so that nothing is written through one; the reader
    of the folder decides which to follow. With `strip`, a single folder at the
    top, as in downloads from forges, is not part of paths, unless it is a skill.

    Raises:
        InvalidArchiveError: It is damaged, or has a name that is not a plain relative path.
        LimitError: It is too large.
    """
    meter = ExpansionMeter(LIMITS)
    read = read_zip if data[:2] == b"PK" else read_tar_gz
    links: list[Member] = []
    root.mkdir()
    for member in read(data, meter):
        if member.kind is MemberKind.DIRECTORY and member.name in (".", ""):
            continue
        path = root / _checked(member.name)
        if member.kind is MemberKind.DIRECTORY:
            _make_folder(path)
        elif member.kind is MemberKind.FILE:
            _make_folder(path.parent)
            _create(path, member)
        else:
            links.append(member)
    linked = {link.name for link in links}
    for link in links:
        path = root / link.name
        if any(parent.as_posix() in linked for parent in PurePosixPath(link.name).parents):
            raise InvalidArchiveError(
                f"the link {quoted(link.name)} is below another one", requirement="ARC-07"
            )
        _make_folder(path.parent)
        if link.kind is MemberKind.SYMBOLIC_LINK and link.target and "\0" not in link.target:
            with suppress(FileExistsError):
                path.symlink_to(link.target)
    tops = list(root.iterdir())
    if strip and len(tops) == 1 and not tops[0].is_symlink() and tops[0].is_dir():
        return root if (tops[0] / "SKILL.md").exists() else tops[0]
    return root


def _checked(name: str) -> str:
    segments = name.split("/")
    lengths = [len(segment.encode("utf-8", "replace")) for segment in segments]
    if (
        len(segments) > LIMITS.max_depth
        or sum(lengths) > LIMITS.max_path_length
        or max(lengths) > LIMITS.max_segment_length
    ):
        raise LimitError(f"the path {quoted(name)} is too long or too deep")
    try:
        for segment in segments:
            check_segment(segment)
    except InvalidUriError as error:
        raise InvalidArchiveError(f"the name {quoted(name)} is not a plain relative path") from error
    return name


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArchiveError("the archive has a file and a folder of the same name") from error


def _create(path: Path, member: Member) -> None:
    try:
        with path.open("xb") as file:
            file.write(member.content)
            os.utime(file.fileno(), (0, 0))
    except FileExistsError as error:
        raise InvalidArchiveError(
            f"the name {quoted(member.name)} is there twice", requirement="ARC-09"
        ) from error


# git


@dataclass(frozen=True, slots=True)
class GitLocation:
    """A repository, and the branch, tag or commit and the folder to use of it."""

    url: str
    ref: str = "HEAD"
    folder: str = ""


def _git_location(location: str) -> GitLocation:
    """Parse `https://host/repository.git#ref:folder`; the part after `#` may be missing.

    Raises:
        CatalogError: It has another form.
    """
    found = _GIT.fullmatch(location)
    folder = (found["folder"] or "").strip("/") if found else ""
    if found is None or ".." in (found["ref"] or "") or ".." in folder.split("/"):
        raise CatalogError(
            "this is not the location of a git repository",
            fix="write https://HOST/PATH, ssh://USER@HOST/PATH or file:///PATH, then #REF or #REF:FOLDER",
        )
    return GitLocation(found["url"], found["ref"] or "HEAD", folder)


async def _from_git(location: str, folder: Path) -> bytes:
    """Fetch one commit into a temporary bare repository, and return an archive of its files."""
    place = _git_location(location)
    tree = f"{_REF}:{place.folder}" if place.folder else f"{_REF}^{{tree}}"
    fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-auto-gc")
    try:
        with anyio.fail_after(GIT_SECONDS):
            await _git(folder, "init", "--quiet", "--bare", "--template=")
            await _git(folder, *fetch, "--", place.url, f"+{place.ref}:{_REF}")
            return await _git(folder, "archive", "--format=tar.gz", tree)
    except TimeoutError:
        raise CatalogError(f"git did not fetch the repository within {GIT_SECONDS:.0f} seconds") from None


async def _git(folder: Path, *arguments: str) -> bytes:
    """Run git in the bare repository of a folder, and return its output.

    It asks nothing, runs no hooks, and reads no configuration but its own. No
    file that it writes is larger than a limit.

    Raises:
        CatalogError: It is not installed, or it fails; the error has its last line.
        LimitError: Its output is too large.
    """
    command = ["/bin/sh", "-c", 'ulimit -f "$0" && exec git "$@"', str(_MAX_FILE_BLOCKS)]
    settings = [part for one in _SETTINGS for part in ("-c", one)]
    process = await anyio.open_process(
        [*command, *settings, "--git-dir", str(folder / "repository"), *arguments],
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        env=_git_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    errors = bytearray()
    output: bytes | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_drain, process.stderr, errors)
            output = await _read(process.stdout)
            if output is None:
                _kill(process)
            await process.wait()
    finally:
        _kill(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if output is None:
        raise LimitError(f"the files of the repository have more than {_MAX_ARCHIVE_BYTES} bytes, compressed")
    if process.returncode != 0:
        lines = _PASSWORD.sub("://", bytes(errors).decode("utf-8", "replace")).strip().splitlines()
        raise CatalogError(
            f"git {arguments[0]} failed: {quoted(lines[-1]) if lines else 'no reason is given'}",
            fix="check the location; repositories that need a password are fetched by ssh with a key",
        )
    return output


def _kill(process: Process) -> None:
    """End a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _read(stream: ByteReceiveStream) -> bytes | None:
    """Read to the end; None when there is more than an archive may have."""
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        size += len(part)
        if size > _MAX_ARCHIVE_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


async def _drain(stream: ByteReceiveStream, kept: bytearray) -> None:
    """Read to the end, and keep the last part."""
    async for part in stream:
        kept += part
        del kept[:-_MAX_ERRORS]


def _git_environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return own | {
        "GIT_ALLOW_PROTOCOL": "https:ssh:file",
        "GIT_ASKPASS": "",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20 -oStrictHostKeyChecking=yes",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "SSH_ASKPASS": "",
    }
