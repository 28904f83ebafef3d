"""`skills/execute`: one request, from the skill it names to what became of the script."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.errors import (
    InvalidScriptArgumentsError,
    LimitError,
    NotFoundError,
    RunnerBusyError,
    RunnerError,
    SandboxUnavailableError,
    ScriptNotFoundError,
    SourceError,
    VerificationError,
)
from skillwire.runner import Outcome, Runner, ScriptRun, find_script, prepare, scripts_of
from skillwire.server.changes import connection_of
from skillwire.server.dialects.compat import Context
from skillwire.server.dialects.outcomes import result_of, stopped
from skillwire.server.outputs import caller_of
from skillwire.server.results import is_modern
from skillwire.server.scripts import Scripts
from skillwire.sources import Catalog
from skillwire.wire.core import JsonDict

MAX_ECHO = 256

_ATTEMPTS = 3
_MAX_CANDIDATES = 10
_PROGRESS_SECONDS = 1.0
_TELLING_SECONDS = 5.0


class ExecuteParams(types.RequestParams):
    """Anything goes here, so that our own words can say what is wrong with it."""

    name: Any = None
    script: Any = None
    arguments: Any = None


@dataclass(frozen=True, slots=True)
class Execution:
    """A script of a skill that was found, to be run for one request.

    `name` is how the client called the skill, and `aliases` are the other
    names of its scripts, by path.
    """

    scripts: Scripts
    catalog: Catalog
    name: str
    aliases: Mapping[str, Sequence[str]]

    async def result(self, context: Context, entry: SkillEntry, params: ExecuteParams) -> JsonDict:
        """Run the script, and make the result of what became of it.

        Raises:
            MCPError: It was stopped at a limit.
            RunnerError: It could not be run.
            ScriptNotFoundError: The skill has no such script.
            InvalidScriptArgumentsError: It cannot be given this.
            NotFoundError: The skill is not served any more.
            SourceError: It keeps changing, or cannot be read.
        """
        runner = self.scripts.required_runner()
        run = await self._prepared(runner, entry, params)
        outcome = await _followed(context, runner, run)
        if outcome.limit is not None:
            raise stopped(outcome, outcome.limit, {"name": self.name, "script": run.script})
        return result_of(outcome, self.scripts.outputs, caller_of(context))

    async def _prepared(self, runner: Runner, entry: SkillEntry, params: ExecuteParams) -> ScriptRun:
        """Read the skill as it is listed; when it changed meanwhile, as it is listed then."""
        arguments: object = params.arguments if "arguments" in params.model_fields_set else {}
        for _ in range(_ATTEMPTS):
            entry = self.catalog.snapshot.get(entry.uri)
            path = find_script(scripts_of(entry), params.script, self.aliases)
            if not runner.takes(path):
                raise RunnerError(f"nothing here runs {quoted(path)}", script=path)
            try:
                return await prepare(entry, path, arguments, self.catalog.read_file)
            except (VerificationError, NotFoundError):
                await self.catalog.refresh()
        raise SourceError(f"{entry.uri} is changing and cannot be run as published")


async def _followed(context: Context, runner: Runner, run: ScriptRun) -> Outcome:
    """Run a script, and tell the client every second how long it has been at it, if it wants to know."""
    limits = runner.policy.limits.asked(run.interface.limits, runner.policy.most)
    start, outcome, failure = time.monotonic(), None, None

    def elapsed() -> float:
        return round(time.monotonic() - start, 3)

    async with anyio.create_task_group() as group:
        group.start_soon(_keep_telling, context, elapsed, limits.wall_seconds)
        try:
            outcome = await runner.run(run)
        except RunnerError as error:  # A group would wrap it.
            failure = error
        group.cancel_scope.cancel()
    if outcome is None:
        raise failure or RunnerError("it did not run", script=run.script)
    await _tell(context, elapsed(), limits.wall_seconds, outcome.verdict)
    return outcome


async def _keep_telling(context: Context, elapsed: Callable[[], float], total: float) -> None:
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        await _tell(context, elapsed(), total)


async def _tell(context: Context, progress: float, total: float, message: str | None = None) -> None:
    """Send `notifications/progress`, if the client asked for it; who does not listen is not waited for."""
    token = (context.meta or {}).get("progress_token")
    session, connection = context.session, connection_of(context)
    if not is_modern(context) and not session.can_send_request and connection.has_standalone_channel:
        # A session over HTTP whose requests are answered with nothing but JSON has one stream for the rest.
        with anyio.move_on_after(_TELLING_SECONDS):
            if token is not None:
                await session.send_progress_notification(token, progress, total, message)
        return
    with anyio.move_on_after(_TELLING_SECONDS):
        await session.report_progress(progress, total, message)


@contextmanager
def script_errors(params: ExecuteParams) -> Generator[None]:
    """Translate why a script was not run to what the wire has for it, and name it (EXEC-07)."""
    asked: dict[str, object] = {"name": params.name, "script": params.script}
    culprit: JsonDict = {key: value[:MAX_ECHO] for key, value in asked.items() if isinstance(value, str)}
    try:
        yield
    except SandboxUnavailableError as error:
        found: JsonDict = {"reason": "sandbox_unavailable", "cause": error.reason, "backend": error.backend}
        found |= {"detail": str(error), "fix": error.fix}
        raise MCPError(error.code, f"scripts cannot be run here: {error}", found) from error
    except ScriptNotFoundError as error:
        culprit["candidates"] = list(error.candidates[:_MAX_CANDIDATES])
        raise MCPError(error.code, str(error), culprit) from error
    except InvalidScriptArgumentsError as error:
        raise MCPError(error.code, str(error), culprit) from error
    except LimitError as error:
        raise MCPError(RunnerError.code, str(error), {**culprit, "reason": "too_large"}) from error
    except RunnerError as error:
        reason = "busy" if isinstance(error, RunnerBusyError) else "not_run"
        data = {**culprit, **({"script": error.script} if error.script else {}), "reason": reason}
        raise MCPError(error.code, str(error), data) from error
