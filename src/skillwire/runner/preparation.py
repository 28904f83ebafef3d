"""`prepare`: build a run from a skill's entry and a request, with every file verified."""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, cast

import anyio
import anyio.to_thread
import orjson

from skillwire.core import (
    MAX_TOTAL_SIZE,
    Coverage,
    InvalidScriptArgumentsError,
    InvalidSkillError,
    JsonValue,
    LimitError,
    NotFoundError,
    RunnerBusyError,
    ScriptNotFoundError,
    SkillEntry,
    StrictJsonError,
    folders_of,
    parse_strictly,
    quoted,
    size_findings,
)
from skillwire.core import uri as lookup
from skillwire.runner.interface import (
    FOLDER,
    MANIFEST_PATH,
    ScriptInterface,
    ScriptRun,
    interface_of,
    parse_interfaces,
)
from skillwire.runner.schema import CostlyCheckError, first_failure, schema_problem

# Check a script's arguments against its declared schema, and encode them for it.


MAX_ARGUMENTS_SIZE: Final = 1024 * 1024
MAX_OPTION_SIZE: Final = 100 * 1024
"""The most bytes of one option; the kernel's limit is 128 KiB."""
MAX_OPTIONS: Final = 1024

_OPTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_arguments(value: object, interface: ScriptInterface, *, script: str) -> Mapping[str, JsonValue]:
    """Return a checked copy of a script's arguments.

    This may take seconds for very large arguments: call it in a thread.

    Raises:
        InvalidScriptArgumentsError: The value is not a JSON object, is too large,
            does not match the declared schema, or the schema cannot be used.
    """
    if interface.problem:
        raise _refused(f"its declaration is invalid: {interface.problem}", script)
    if not isinstance(value, dict):
        raise _refused("the arguments are not a JSON object", script)
    arguments = _plain(cast("dict[str, JsonValue]", value), script)
    schema = interface.arguments
    if schema is not None:
        problem = schema_problem(schema)
        if problem:
            raise _refused(f"its declaration is invalid: `arguments` {problem}", script)
        try:
            failure = first_failure(schema, arguments)
        except CostlyCheckError:
            raise _refused("checking the arguments against its schema takes too long", script) from None
        if failure is not None:
            place = quoted(failure.pointer) if failure.pointer else "the object"
            raise _refused(f"{place} {failure.problem}", script)
    argv_for(arguments, interface, script=script)
    return arguments


def argv_for(
    arguments: Mapping[str, JsonValue], interface: ScriptInterface, *, script: str = ""
) -> tuple[str, ...]:
    """Return the arguments as options `--name=value` in declared order, for a script that asks for it.

    A list becomes one option for each item, and null none. Nothing is split,
    joined or passed to a shell. For other scripts the result is empty.

    Raises:
        InvalidScriptArgumentsError: An argument is not declared, or cannot be an option.
    """
    if not interface.takes_argv:
        return ()
    properties = (interface.arguments or {}).get("properties")
    declared = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in declared:
            raise _refused(f"{quoted('/' + name)} is not declared, so it cannot become an option", script)
    options: list[str] = []
    for name in declared:
        value = arguments.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if values and not _OPTION_NAME.fullmatch(name):
            raise _refused(f"{quoted('/' + name)} is not a valid name of an option", script)
        options += [_option(name, item, script) for item in values]
        if len(options) > MAX_OPTIONS:
            raise _refused(f"the arguments become more than {MAX_OPTIONS} options", script)
    return tuple(options)


def encode(arguments: Mapping[str, JsonValue]) -> bytes:
    """Return the arguments as the JSON object that a script reads from its standard input."""
    return orjson.dumps(arguments)


def _plain(value: dict[str, JsonValue], script: str) -> dict[str, JsonValue]:
    """Return a copy that went through JSON, so that every JSON parser reads the same values."""
    try:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if len(content) > MAX_ARGUMENTS_SIZE:
            raise StrictJsonError(f"has {len(content)} bytes; the limit is {MAX_ARGUMENTS_SIZE}")
        arguments = parse_strictly(content)
        encode(cast("dict[str, JsonValue]", arguments))
    except StrictJsonError as error:
        raise _refused(f"the object with the arguments {error}", script) from None
    except (TypeError, ValueError, RecursionError):
        raise _refused(
            "the object with the arguments holds a value that JSON cannot represent", script
        ) from None
    return cast("dict[str, JsonValue]", arguments)


def _option(name: str, value: JsonValue, script: str) -> str:
    if isinstance(value, dict | list | None):
        raise _refused(f"{quoted('/' + name)} has a value that cannot be an option", script)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if "\0" in text:
        raise _refused(f"{quoted('/' + name)} holds a NUL, which an option cannot", script)
    option = f"--{name}={text}"
    if len(option.encode()) > MAX_OPTION_SIZE:
        raise _refused(
            f"{quoted('/' + name)} is longer than the {MAX_OPTION_SIZE} bytes of an option", script
        )
    return option


def _refused(problem: str, script: str) -> InvalidScriptArgumentsError:
    subject = f"{quoted(script)} was not run" if script else "the script was not run"
    return InvalidScriptArgumentsError(f"{subject}: {problem}", script=script)


ReadFile: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a file of the skill by its canonical URI."""

CONCURRENT_READS: Final = 8

logger = logging.getLogger(__name__)

_MAX_ECHO = 256
_MAX_CANDIDATES = 10


def scripts_of(entry: SkillEntry) -> tuple[str, ...]:
    """Return the paths of a skill's scripts: the files directly in `scripts/`, except the manifest."""
    return tuple(path for path in _files_of(entry) if path != MANIFEST_PATH and _is_in_folder(path))


def find_script(
    paths: Sequence[str], wanted: object, aliases: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return the path of a script found by name, path, or unique stem or alias (EXEC-06, EXEC-15).

    `aliases` are other names, by path.

    Raises:
        ScriptNotFoundError: There is none, or more than one.
    """
    if not isinstance(wanted, str):
        raise ScriptNotFoundError("the name of a script must be a string", script="")
    named = aliases or {}
    hits = lookup.matching(paths, wanted, path_of=str, aliases_of=lambda path: named.get(path, ()))
    if len(hits) == 1:
        return hits[0]
    script = wanted[:_MAX_ECHO]
    if hits:
        raise ScriptNotFoundError(
            f"{quoted(script)} matches {len(hits)} scripts",
            script=script,
            candidates=hits[:_MAX_CANDIDATES],
            fix="use the path of the script",
        )
    raise ScriptNotFoundError(f"the skill has no script {quoted(script)}", script=script)


async def interfaces_of(entry: SkillEntry, read: ReadFile) -> dict[str, ScriptInterface]:
    """Return what a skill declares about its scripts, by path; what is malformed is left out and logged.

    Raises:
        VerificationError: The bytes do not match the manifest.
        SkillError: They cannot be read.
    """
    uri = _files_of(entry).get(MANIFEST_PATH)
    if uri is None:
        return {}
    try:
        content = await read(uri)
    except NotFoundError:
        return {}  # It was just removed.
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
    """Find a script, read and verify every file of its skill, and check the arguments.

    Bytes are verified against the manifest where it has a line for them. A
    skill without a manifest is not verified; the caller decides whether to allow that.

    Raises:
        ScriptNotFoundError: The skill has no such script.
        InvalidScriptArgumentsError: The script does not accept the arguments.
        VerificationError: The bytes do not match the manifest.
        LimitError: The skill is too large.
        SkillError: A file cannot be read, or two paths conflict.
    """
    listed = _files_of(entry)
    path = find_script(scripts_of(entry), script, aliases)
    _check_paths(listed)
    files = await _SkillFilesReader(entry, read).all(listed)
    interface, problems = interface_of(files.get(MANIFEST_PATH), path)
    if problems:
        _log(listed[MANIFEST_PATH], problems)
    checked = await anyio.to_thread.run_sync(
        partial(check_arguments, arguments, interface, script=path), abandon_on_cancel=True
    )
    return ScriptRun(entry.uri.text, path, files, checked, interface, origin, approval)


class _SkillFilesReader:
    """Reads all files of a skill, a few at a time, and stops at the first failure."""

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
                except Exception as error:  # Raised below, outside an exception group.
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
    """Return the URIs of all known files of the skill, by path."""
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
    """Check that no file has the path of another file's folder."""
    for path in sorted(folders_of(paths) & paths.keys()):
        raise InvalidSkillError(f"{quoted(path)} is both a file and a folder of the skill")


def _is_in_folder(path: str) -> bool:
    return path.startswith(FOLDER) and "/" not in path[len(FOLDER) :]


def _log(uri: str, problems: Sequence[str]) -> None:
    for problem in problems:
        logger.info("%s: %s", uri, problem)


# `RunSlots`: limits how many runs are pending at once, and how much memory they hold together.


MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""How much memory the files and arguments of all admitted runs may take together."""

ARGUMENTS_WEIGHT: Final = 32
"""How many times the size of its JSON text a parsed value takes at most; `{},` takes 72 bytes in a list."""


@dataclass(frozen=True, slots=True)
class RunSlot:
    """A slot of one pending or active run, and the memory counted for it."""

    held_bytes: int


class RunSlots:
    """The slots of pending and active runs. A run holds one from before its skill is read until it ends."""

    def __init__(self, places: int, *, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._places = places
        self._max_bytes = max_bytes
        self._taken = 0
        self._held_bytes = 0

    @contextmanager
    def admit(self, script: str, size: int) -> Generator[RunSlot]:
        """Take a slot for the duration of the context, without waiting for one.

        A run of any size is admitted when there is no other.

        Raises:
            RunnerBusyError: All slots are taken, or the runs hold too much memory.
        """
        self._require_capacity(script, size)
        self._taken += 1
        self._held_bytes += size
        try:
            yield RunSlot(size)
        finally:
            self._taken -= 1
            self._held_bytes -= size

    def _require_capacity(self, script: str, size: int) -> None:
        if self._taken >= self._places:
            problem = f"{self._taken} scripts are already running or waiting"
        elif self._taken and self._held_bytes + size > self._max_bytes:
            problem = f"the {self._taken} scripts running or waiting already hold {self._held_bytes} bytes"
        else:
            return
        raise RunnerBusyError(problem, script=script[:_MAX_ECHO], fix="try again later")


def bytes_to_hold(entry: SkillEntry, arguments: object) -> int:
    """Return how much memory a run will hold, from the skill's entry and before a file is read.

    A skill without known sizes is counted with the largest size a skill may have.
    """
    files = entry.files
    skill = MAX_TOTAL_SIZE if files is None else min(files.total_size, MAX_TOTAL_SIZE)
    return skill + _arguments_memory(arguments)


def held_bytes(run: ScriptRun) -> int:
    """Return how much memory a run holds after its skill was read."""
    return sum(map(len, run.files.values())) + _arguments_memory(run.arguments)


def _arguments_memory(arguments: object) -> int:
    """Return an upper bound of the memory of arguments, from the size of their JSON text."""
    try:
        size = len(orjson.dumps(arguments))
    except TypeError:  # Not JSON: they will be refused, but are held until then.
        size = MAX_ARGUMENTS_SIZE
    return ARGUMENTS_WEIGHT * size
