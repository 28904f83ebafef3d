"""`OutputStore`: output files of scripts, held in memory until they expire.

The files are not written to disk, unpacked or parsed. With several worker
processes, only the process that ran a script has its outputs.
"""

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

import skillwire.runner
from skillwire.core import (
    EXECUTION_FAILED,
    JsonDict,
    RunnerError,
    SandboxUnavailableError,
    SkillUri,
    encode,
    media_type_of,
    quoted,
    visible,
)
from skillwire.runner import LimitHit, Outcome, OutputFile, Policy
from skillwire.server.answers import FileContent
from skillwire.server.changes import connection_of
from skillwire.wire.core import file_contents

if TYPE_CHECKING:
    # It needs the sandbox, which a server without scripts does not load.
    from skillwire.runner import Runner

OUTPUT_SCHEME: Final = "skill-output"

_MIB = 1024 * 1024
_EXPIRE_SECONDS = 30.0

Caller: TypeAlias = tuple[str | None, ...]
"""The identity of a caller: session id and principal, as far as known."""


def caller_of(context: ServerRequestContext[Any, Any]) -> Caller:
    """Return the caller of a request: its session id and the principal of its token.

    Only sessions over HTTP have an id, and only a server that requires
    authorization gets tokens. Otherwise all callers are equal: stdio has only
    one, and over HTTP from revision 2026-07-28 on there are no sessions, so
    anyone who knows the URI of an output may read it.
    """
    token = get_access_token()
    principal = (None,) if token is None else principal_components(token)
    return connection_of(context).session_id, *principal


@dataclass(frozen=True, slots=True)
class OutputQuota:
    """How long outputs are stored, and limits of one run and of all runs together."""

    seconds: float = 15 * 60
    run_bytes: int = 64 * _MIB
    run_files: int = 256
    all_bytes: int = 256 * _MIB
    all_files: int = 1000


@dataclass(slots=True)
class _RunOutputs:
    """The output files of one run by URI, its caller, and when they expire."""

    files: dict[str, FileContent]
    size: int
    caller: Caller
    expires_at: float


class OutputStore:
    """Files of recent runs, by unguessable `skill-output://` URIs.

    When the store is full, the oldest runs are dropped. Outputs are readable
    only by the caller that ran the script, until they expire.
    """

    def __init__(
        self, quota: OutputQuota | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.quota = quota or OutputQuota()
        self._clock = clock
        self._runs: OrderedDict[str, _RunOutputs] = OrderedDict()
        self._size = 0
        self._count = 0

    def put(self, files: Sequence[OutputFile], caller: Caller) -> dict[str, str]:
        """Store the files of one run and return their URIs by path; skip files beyond the quota."""
        self.expire()
        # In lower case, because some clients treat this part as a host name.
        key, room = secrets.token_hex(16), min(self.quota.run_bytes, self.quota.all_bytes)
        most = min(self.quota.run_files, self.quota.all_files)
        run = _RunOutputs({}, 0, caller, self._clock() + self.quota.seconds)
        uris: dict[str, str] = {}
        for file in files:
            if len(uris) == most or run.size + len(file.content) > room:
                continue
            uri = uris[file.path] = f"{OUTPUT_SCHEME}://{key}/{quote(file.path, errors='surrogateescape')}"
            run.files[uri] = FileContent(uri, media_type_of(file.path), file.content, "", is_private=True)
            run.size += len(file.content)
        if run.files:
            self._runs[key] = run
            self._size += run.size
            self._count += len(run.files)
            while self._size > self.quota.all_bytes or self._count > self.quota.all_files:
                self._drop(next(iter(self._runs)))
        return uris

    def read(self, uri: str, caller: Caller) -> FileContent | None:
        """Return an output of a run of this caller; None for any other URI."""
        scheme, _, rest = uri.partition("://")
        run = self._runs.get(rest.partition("/")[0]) if scheme == OUTPUT_SCHEME else None
        if run is None or run.caller != caller or run.expires_at <= self._clock():
            return None
        return run.files.get(uri)

    def expire(self) -> None:
        """Drop expired runs."""
        now = self._clock()
        for key in [key for key, run in self._runs.items() if run.expires_at <= now]:
            self._drop(key)

    def clear(self) -> None:
        """Drop all runs."""
        self._runs.clear()
        self._size = self._count = 0

    async def expire_forever(self) -> None:
        """Drop expired runs until cancelled."""
        while True:
            await anyio.sleep(min(_EXPIRE_SECONDS, self.quota.seconds))
            self.expire()

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return self._size

    def __len__(self) -> int:
        return self._count

    def _drop(self, key: str) -> None:
        run = self._runs.pop(key)
        self._size -= run.size
        self._count -= len(run.files)


# `Scripts`: the runner and the output store of a server that runs scripts.


logger = logging.getLogger(__name__)

RunsScripts: TypeAlias = "Runner | Policy"
"""A runner that is opened and closed elsewhere, or the policy for an own runner."""


def _always(uri: SkillUri) -> bool:
    return True


class Scripts:
    """The runner of a server's scripts and their outputs. The runner of a policy is open while this is.

    `may_run` returns whether scripts of a skill may be run.
    """

    def __init__(self, how: RunsScripts, *, may_run: Callable[[SkillUri], bool] = _always) -> None:
        self.outputs = OutputStore()
        self.may_run = may_run
        self._configured = how
        self._own_runner: Runner | None = None

    @property
    def runner(self) -> "Runner | None":
        """The runner; None while the server is not running."""
        return self._own_runner if isinstance(self._configured, Policy) else self._configured

    @property
    def is_available(self) -> bool:
        """Whether scripts can be run."""
        return self.runner is not None and self.runner.availability.is_available

    def require_allowed(self, uri: SkillUri) -> None:
        """Check that scripts of a skill may be run.

        Raises:
            RunnerError: They may not be run.
        """
        if not self.may_run(uri):
            raise RunnerError("you may not run scripts of this skill")

    def required_runner(self) -> "Runner":
        """Return the runner.

        Raises:
            SandboxUnavailableError: There is no sandbox, or the server is not running.
        """
        runner = self.runner
        if runner is None:
            raise SandboxUnavailableError("the server is not running", reason="closed")
        runner.availability.require()
        return runner

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Run scripts while the context is open; log a warning if no sandbox is available."""
        async with AsyncExitStack() as stack:
            stack.callback(self._reset)
            if isinstance(self._configured, Policy):
                self._own_runner = await stack.enter_async_context(skillwire.runner.Runner(self._configured))
            self._warn()
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self.outputs.expire_forever)
            yield
            group.cancel_scope.cancel()

    def _reset(self) -> None:
        self._own_runner = None
        self.outputs.clear()

    def _warn(self) -> None:
        if self.runner is not None and not self.is_available:
            availability = self.runner.availability
            fix = f"; {availability.fix}" if availability.fix else ""
            logger.warning("scripts are not run or listed: %s%s", availability.detail, fix)


# The result of `skills/execute`, or the error when a limit stopped the run.


RUN: Final = "skillwire/run"
"""The `_meta` key of a run's limits and usage."""

MAX_EMBEDDED: Final = 256 * 1024
"""The maximum size of an embedded file or text; larger ones are linked."""
MAX_TAIL: Final = 16 * 1024
"""How many characters from the end of a failed script's standard error are returned."""
MAX_NAME: Final = 255
"""The maximum length of a file name, which the script chose."""

# Some clients refuse events of more than 1 MiB, and the result of a run is one event.
_BUDGET = 900 * 1024
_MAX_NAMED = 10
_WHOLE_OUTPUT = "stdout.txt"


def result_of(outcome: Outcome, store: OutputStore, caller: Caller) -> JsonDict:
    """Return the result of a run that ended by itself, and store its files."""
    files, text = outcome.files, outcome.stdout
    is_long = len(text.encode()) > MAX_EMBEDDED
    if is_long:
        whole = OutputFile(_free_name(files), text.encode())
        files, text = (whole, *files), _head(text)
    uris = store.put(files, caller)
    content: list[JsonDict] = [_text(text)] if text else []
    if outcome.is_error:
        content.append(_text("\n".join(filter(None, (outcome.verdict, _tail(outcome.stderr))))))
    result: JsonDict = {"content": content, "isError": outcome.is_error}
    remarks = _remarks(outcome, files, uris, store.quota.seconds, is_long=is_long)
    room = _BUDGET - len(encode(result)) - len(encode(_text(remarks)))
    if outcome.structured is not None and not is_long:
        structured = dict(outcome.structured)
        room -= len(encode(structured))
        result["structuredContent"] = structured
    items = _items(files, uris, room, linked=files[:1] if is_long else ())
    if all(item["type"] != "resource_link" for item in items):
        remarks = _remarks(outcome, files, uris, None, is_long=is_long)
    content += [_text(remarks), *items] if remarks else items
    result["_meta"] = {RUN: _run_meta(outcome, round(store.quota.seconds * 1000) if uris else None)}
    return result


def limit_error(outcome: Outcome, limit: LimitHit, names: Mapping[str, str]) -> MCPError:
    """Return the error for a run that a limit stopped, with its output so far."""
    data: JsonDict = {
        **names,
        "reason": "limit",
        **_limit_json(limit),
        "stdout": _tail(outcome.stdout),
        "stderr": _tail(outcome.stderr),
        "runId": outcome.run_id,
    }
    return MCPError(EXECUTION_FAILED, f"{quoted(names['script'])} was {outcome.verdict}", data)


def _items(
    files: Sequence[OutputFile], uris: Mapping[str, str], room: int, *, linked: Sequence[OutputFile]
) -> list[JsonDict]:
    """Return the stored files: small ones embedded, and links to the others."""
    items: list[JsonDict] = []
    for file in files:
        uri = uris.get(file.path)
        if uri is None:
            continue
        media_type = media_type_of(file.path)
        if len(file.content) <= MAX_EMBEDDED and file not in linked:
            resource = file_contents(uri, media_type=media_type, content=file.content)
            resource["name"] = visible(file.path, most=MAX_NAME)
            item: JsonDict = {"type": "resource", "resource": resource}
            size = len(encode(item))
            if size <= room:
                room -= size
                items.append(item)
                continue
        name = visible(file.path, most=MAX_NAME)
        described = {"uri": uri, "name": name, "mimeType": media_type, "size": len(file.content)}
        items.append({"type": "resource_link", **described})
    return items


def _remarks(
    outcome: Outcome,
    files: Sequence[OutputFile],
    uris: Mapping[str, str],
    seconds: float | None,
    *,
    is_long: bool,
) -> str:
    """Return one line about what is missing from the result, and how long links can be read."""
    remarks: list[str] = []
    if is_long:
        remarks.append("The output is cut here, and linked as a whole.")
    if uris and seconds is not None:
        remarks.append(f"Files can be read for {_duration(seconds)}.")
    missing = [f"{quoted(one.path)}: {one.reason}" for one in outcome.skipped]
    missing += [f"{quoted(file.path)}: beyond the output quota" for file in files if file.path not in uris]
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        remarks.append(f"Not returned: {'; '.join(missing[:_MAX_NAMED])}{more}.")
    if outcome.reached:
        remarks.append(f"Limits reached: {'; '.join(map(str, outcome.reached))}.")
    return " ".join(remarks)


def _run_meta(outcome: Outcome, ttl_ms: int | None) -> JsonDict:
    account: JsonDict = {"runId": outcome.run_id, "ending": outcome.ending.value}
    if outcome.exit_code is not None:
        account["exitCode"] = outcome.exit_code
    if outcome.signal is not None:
        account["signal"] = outcome.signal
    account |= {"limits": asdict(outcome.limits), "usage": asdict(outcome.usage)}
    if outcome.reached:
        account["reached"] = [_limit_json(hit) for hit in outcome.reached]
    if ttl_ms is not None:
        account["outputTtlMs"] = ttl_ms
    return account


def _limit_json(hit: LimitHit) -> JsonDict:
    return {"limit": hit.name, "allowed": _number(hit.allowed), "used": _number(hit.used)}


def _number(value: float) -> float:
    return int(value) if value == int(value) else round(value, 3)


def _text(text: str) -> JsonDict:
    return {"type": "text", "text": text}


def _head(text: str) -> str:
    return text.encode()[:MAX_EMBEDDED].decode("utf-8", "ignore")


def _tail(text: str) -> str:
    return text if len(text) <= MAX_TAIL else "…" + text[-MAX_TAIL:]


def _free_name(files: Sequence[OutputFile]) -> str:
    name, taken = _WHOLE_OUTPUT, {file.path for file in files}
    while name in taken:
        name = f"_{name}"
    return name


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} seconds"
