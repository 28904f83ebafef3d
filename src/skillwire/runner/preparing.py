"""`prepare`: from a skill's entry and a request to a run whose every byte is checked."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from skillwire.core import lookup
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry, size_findings
from skillwire.core.manifest import Coverage
from skillwire.core.paths import folders_of
from skillwire.errors import InvalidSkillError, LimitError, NotFoundError, ScriptNotFoundError
from skillwire.runner.arguments import check_arguments
from skillwire.runner.interface import (
    FOLDER,
    MANIFEST_PATH,
    ScriptInterface,
    interface_of,
    parse_interfaces,
)
from skillwire.runner.run import ScriptRun

ReadFile: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Gets the bytes of a file of the skill by its canonical URI."""

CONCURRENT_READS: Final = 8

logger = logging.getLogger(__name__)

_MAX_ECHO = 256
_MAX_CANDIDATES = 10


def scripts_of(entry: SkillEntry) -> tuple[str, ...]:
    """Return the paths of a skill's scripts: files right under `scripts/`, except what describes them."""
    return tuple(path for path in _files_of(entry) if path != MANIFEST_PATH and _is_in_folder(path))


def find_script(
    paths: Sequence[str], wanted: object, aliases: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Find a script among those listed, by name, path, or unique stem or alias (EXEC-06, EXEC-15).

    `aliases` are other names, by path.

    Raises:
        ScriptNotFoundError: There is none, or more than one.
    """
    if not isinstance(wanted, str):
        raise ScriptNotFoundError("a script is asked for by its name", script="")
    named = aliases or {}
    hits = lookup.found(paths, wanted, path_of=str, aliases_of=lambda path: named.get(path, ()))
    if len(hits) == 1:
        return hits[0]
    script = wanted[:_MAX_ECHO]
    if hits:
        raise ScriptNotFoundError(
            f"{quoted(script)} may be any of {len(hits)} scripts",
            script=script,
            candidates=hits[:_MAX_CANDIDATES],
            fix="ask by path",
        )
    raise ScriptNotFoundError(f"the skill has no script {quoted(script)}", script=script)


async def interfaces_of(entry: SkillEntry, read: ReadFile) -> dict[str, ScriptInterface]:
    """Return what a skill declares about its scripts, by path; what is malformed is left out and logged.

    Raises:
        VerificationError: The bytes are not those of the listing.
        SkillError: They cannot be read.
    """
    uri = _files_of(entry).get(MANIFEST_PATH)
    if uri is None:
        return {}
    try:
        content = await read(uri)
    except NotFoundError:
        return {}  # It went away this very moment.
    _verify(entry, uri, content)
    interfaces, problems = parse_interfaces(content)
    _log(uri, problems)
    return interfaces


async def prepare(
    entry: SkillEntry,
    script: object,
    arguments: object,
    read: ReadFile,
    *,
    origin: str = "",
    approval: str = "",
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> ScriptRun:
    """Look a script up, read and check every file of its skill, and check the arguments.

    Bytes are held against the listing where it has a line for them; a skill
    whose listing has none is taken as it is, and whether that is wanted is the caller's to know.

    Raises:
        ScriptNotFoundError: The skill has no such script.
        InvalidScriptArgumentsError: The arguments are not what the script takes.
        VerificationError: The bytes are not those of the listing.
        LimitError: The skill is too large.
        SkillError: A file cannot be read, or they cannot all lie in one folder.
    """
    listed = _files_of(entry)
    path = find_script(scripts_of(entry), script, aliases)
    _check_paths(listed)
    files = await _Gathering(entry, read).all(listed)
    interface, problems = interface_of(files.get(MANIFEST_PATH), path)
    if problems:
        _log(listed[MANIFEST_PATH], problems)
    checked = await anyio.to_thread.run_sync(
        partial(check_arguments, arguments, interface, script=path), abandon_on_cancel=True
    )
    return ScriptRun(entry.uri.text, path, files, checked, interface, origin, approval)


class _Gathering:
    """Reads all files of a skill, a few at a time, and stops at the first that is wrong."""

    def __init__(self, entry: SkillEntry, read: ReadFile) -> None:
        self._entry = entry
        self._read = read
        self._found: dict[str, bytes] = {}
        self._total = 0
        self._error: Exception | None = None

    async def all(self, listed: Mapping[str, str]) -> dict[str, bytes]:
        known = self._entry.files
        _check_size(len(listed), known.total_size if known is not None else 0)
        waiting = iter(listed.items())

        async def work() -> None:
            for path, uri in waiting:
                try:
                    await self._one(path, uri)
                except Exception as error:  # Told below, by itself: a group of one would surprise callers.
                    self._error = self._error or error
                    group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for _ in range(min(CONCURRENT_READS, len(listed))):
                group.start_soon(work)
        if self._error is not None:
            raise self._error
        return {path: self._found[path] for path in listed}

    async def _one(self, path: str, uri: str) -> None:
        content = await self._read(uri)
        self._total += len(content)
        _check_size(0, self._total)
        _verify(self._entry, uri, content)
        self._found[path] = content


def _files_of(entry: SkillEntry) -> dict[str, str]:
    """Return the URIs of all files that are known to be the skill's, by path."""
    known = entry.files
    uris = (entry.uri.text, *entry.dynamic_files) if known is None else known.uris
    return {entry.uri.relative_path(uri): uri for uri in uris}


def _verify(entry: SkillEntry, uri: str, content: bytes) -> None:
    lines = entry.files
    if lines is None and entry.coverage is Coverage.SKILL_FILE:
        lines = entry.manifest
    line = lines.find(uri) if lines is not None else None
    if line is not None:
        line.verify(content)


def _check_size(count: int, total: int) -> None:
    for finding in size_findings(count, total):
        raise LimitError(finding.message, fix=finding.fix)


def _check_paths(paths: Mapping[str, str]) -> None:
    """Refuse a file where another one needs a folder: they cannot both be written."""
    for path in sorted(folders_of(paths) & paths.keys()):
        raise InvalidSkillError(f"{quoted(path)} is a file of the skill, and a folder of it too")


def _is_in_folder(path: str) -> bool:
    return path.startswith(FOLDER) and "/" not in path[len(FOLDER) :]


def _log(uri: str, problems: Sequence[str]) -> None:
    for problem in problems:
        logger.info("%s: %s", uri, problem)
