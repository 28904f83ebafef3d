"""`Runner`: run scripts, each in a sandbox of its own."""

import logging
import os
import secrets
import signal
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import TracebackType

import anyio
import anyio.lowlevel
import anyio.to_thread

from skillwire.core import RunnerBusyError, RunnerError, SkillEntry, digest_of, quoted
from skillwire.runner.interface import ScriptRun
from skillwire.runner.outcome import (
    Ending,
    LimitHit,
    Outcome,
    OutputFile,
    RawOutcome,
    Recorder,
    RunRecord,
    log_record,
)
from skillwire.runner.policy import MAX_SECRET_SIZE, Interpreter, Limits, Policy
from skillwire.runner.preparation import RunSlot, RunSlots, argv_for, bytes_to_hold, encode, held_bytes
from skillwire.runner.proxy import AllowListProxy
from skillwire.runner.redaction import Redactor, shown_text, structured_from
from skillwire.runner.sandbox.command import ENVIRONMENT, PYTHON_SUFFIX
from skillwire.runner.sandbox.conversation import Job, StoppedError, StopSignal
from skillwire.runner.sandbox.sandbox import (
    Availability,
    Pool,
    Sandbox,
    SandboxConfig,
    SandboxSetup,
    probe_sandbox,
)

# Build a sandbox job from a run and a policy, and an outcome from the sandbox's raw result.


logger = logging.getLogger(__name__)

PROXY_URL = "http://127.0.0.1:3128"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_TOLERANCE = 4096


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that is ready for a sandbox, with its granted limits, secrets and hosts."""

    run: ScriptRun
    run_id: str
    job: Job
    redactor: Redactor
    network: tuple[str, ...]
    proxy: AllowListProxy | None

    def outcome(self, raw: RawOutcome) -> Outcome:
        """Return the outcome of the raw result, redacted and safe to show."""
        limits = self.job.limits
        exit_code = None if raw.status is None else os.waitstatus_to_exitcode(raw.status)
        number = -exit_code if exit_code is not None and exit_code < 0 else None
        limit = raw.limit or _limit_of_signal(number, raw, limits)
        is_whole = raw.usage.stdout_bytes == len(raw.stdout)
        return Outcome(
            run_id=self.run_id,
            ending=Ending.LIMIT if limit else Ending.SIGNALLED if number else Ending.EXITED,
            exit_code=None if number or limit else exit_code,
            signal=number,
            limit=limit,
            reached=tuple(_reached(raw, limits)),
            stdout=self._text(raw.stdout, raw.usage.stdout_bytes, limits.stdout_bytes),
            stderr=self._text(raw.stderr, raw.usage.stderr_bytes, limits.stderr_bytes),
            structured=structured_from(raw.stdout, redactor=self.redactor) if is_whole else None,
            files=tuple(
                OutputFile(self.redactor.redact_text(file.path), self.redactor.redact(file.content))
                for file in raw.files
            ),
            skipped=tuple(replace(one, path=self.redactor.redact_text(one.path)) for one in raw.skipped),
            usage=raw.usage,
            limits=limits,
        )

    def record(
        self,
        outcome: str,
        detail: str = "",
        *,
        raw: RawOutcome | None = None,
        seconds: float,
        is_pooled: bool = False,
    ) -> RunRecord:
        """Return the audit record of this run."""
        return RunRecord(
            run_id=self.run_id,
            origin=self.run.origin,
            skill=self.run.skill,
            script=self.run.script,
            script_digest=self.run.digest,
            arguments_digest=digest_of(self.job.stdin),
            approval=self.run.approval,
            limits=_limits_line(self.job.limits),
            secrets=tuple(sorted(self.job.secrets)),
            network=self.network,
            traffic=str(self.proxy.traffic) if self.proxy else "",
            outcome=outcome,
            detail=detail,
            duration_seconds=round(seconds, 6),
            cpu_seconds=round(raw.usage.cpu_seconds, 6) if raw else 0.0,
            memory_bytes=raw.usage.memory_bytes if raw else 0,
            is_pooled=is_pooled,
        )

    def _text(self, raw: bytes, total: int, keep: int) -> str:
        return shown_text(raw, total=total, keep=keep, redactor=self.redactor)


def assemble(run: ScriptRun, policy: Policy, interpreters: Mapping[str, Interpreter]) -> PreparedRun:
    """Build the sandbox job: granted limits, secrets and hosts, and the files.

    Raises:
        RunnerError: There is no interpreter, or a secret is not available.
    """
    suffix = PurePosixPath(run.script).suffix
    interpreter = interpreters.get(suffix)
    if interpreter is None:
        raise RunnerError(
            f"there is no interpreter for {quoted(run.script)}",
            script=run.script,
            fix=f"scripts may end in {', '.join(sorted(interpreters))}",
        )
    limits = policy.limits.with_requested(run.interface.limits, policy.most)
    rule = policy.rule_for(origin=run.origin, skill=run.skill, script=run.script, digest=run.digest)
    granted: dict[str, bytes] = {}
    network: tuple[str, ...] = ()
    if rule is not None:
        granted = {
            name: _value(name, run.script, rule.secrets[name]())
            for name in run.interface.secrets
            if name in rule.secrets
        }
        network = tuple(host for host in run.interface.network if host in rule.network)
    environment = dict(ENVIRONMENT)
    if network:
        environment |= dict.fromkeys(_PROXY_VARIABLES, PROXY_URL)
    proxy = AllowListProxy(network) if network else None
    job = Job(
        script=f"/skill/{run.script}",
        files=run.files,
        stdin=encode(run.arguments),
        limits=limits,
        address_space=max(interpreter.address_space, 2 * limits.memory_bytes),
        environment=environment,
        command=() if suffix == PYTHON_SUFFIX else (str(interpreter.path), *interpreter.arguments),
        argv=argv_for(run.arguments, run.interface),
        secrets=granted,
        network=proxy,
    )
    redactor = Redactor(granted)
    if redactor.too_short:
        logger.warning(
            "secrets too short to be redacted from script output: %s", ", ".join(redactor.too_short)
        )
    return PreparedRun(run, secrets.token_urlsafe(16), job, redactor, network, proxy)


def record_of_refusal(run: ScriptRun, error: RunnerError) -> RunRecord:
    """Return the audit record of a run that was refused."""
    return RunRecord(
        run_id=secrets.token_urlsafe(16),
        origin=run.origin,
        skill=run.skill,
        script=run.script,
        # The files of a run that was not admitted were not read.
        script_digest=run.digest if run.files else "",
        arguments_digest=digest_of(encode(run.arguments)) if run.files else "",
        approval=run.approval,
        limits="",
        secrets=(),
        network=(),
        outcome=error.refusal,
        detail=str(error),
        duration_seconds=0.0,
        cpu_seconds=0.0,
        memory_bytes=0,
        is_pooled=False,
    )


def _value(name: str, script: str, value: bytes) -> bytes:
    if len(value) > MAX_SECRET_SIZE:
        raise RunnerError(f"the secret {quoted(name)} is larger than {MAX_SECRET_SIZE} bytes", script=script)
    return value


def _limit_of_signal(number: int | None, raw: RawOutcome, limits: Limits) -> LimitHit | None:
    """Return the limit that the kernel enforces with this signal."""
    if number == signal.SIGXCPU:
        return LimitHit("cpu_seconds", limits.cpu_seconds, raw.usage.cpu_seconds)
    if number == signal.SIGXFSZ:
        return LimitHit("disk_bytes", limits.disk_bytes, raw.usage.disk_bytes)
    return None


def _reached(raw: RawOutcome, limits: Limits) -> list[LimitHit]:
    """Return the limits that a run reached without being stopped."""
    used = raw.usage
    least = {
        "processes": limits.processes,
        "disk_bytes": limits.disk_bytes - _TOLERANCE + 1,
        "disk_files": limits.disk_files,
        "stdout_bytes": limits.stdout_bytes + 1,
        "stderr_bytes": limits.stderr_bytes + 1,
    }
    found = [
        LimitHit(name, getattr(limits, name), getattr(used, name))
        for name, amount in least.items()
        if getattr(used, name) >= amount
    ]
    reasons = {skipped.reason for skipped in raw.skipped}
    if "there are more files than may be returned" in reasons:
        found.append(LimitHit("output_files", limits.output_files, limits.output_files + len(raw.skipped)))
    if "there are more bytes than may be returned" in reasons:
        found.append(LimitHit("output_bytes", limits.output_bytes, used.disk_bytes))
    return found


def _limits_line(limits: Limits) -> str:
    return (
        f"wall={limits.wall_seconds:g}s cpu={limits.cpu_seconds:g}s memory={limits.memory_bytes} "
        f"processes={limits.processes} disk={limits.disk_bytes}/{limits.disk_files} "
        f"output={limits.output_bytes}/{limits.output_files}"
    )


_NOT_OPEN = SandboxSetup(Availability(False, detail="the runner is not open", fix="use it with `async with`"))


class Runner:
    """Runs scripts, each in a new sandbox that is used once.

        async with Runner(Policy()) as runner:
            outcome = await runner.run(await prepare(entry, "profile.py", {"csv": text}, read))

    Entering the context tests whether a sandbox can be started; `availability`
    has the result. If not, no script is run. `record` is called once for each
    run, and for each run that was refused.

    A server of many callers takes a slot before it reads the skill:

        with runner.admit(entry, "profile.py", arguments) as slot:
            outcome = await runner.run(await prepare(entry, "profile.py", arguments, read), slot)
    """

    def __init__(self, policy: Policy | None = None, *, record: Recorder = log_record) -> None:
        self.policy = policy or Policy()
        self._record = record
        self._setup = _NOT_OPEN
        self._stack = ExitStack()
        self._pool: Pool | None = None
        self._slots: anyio.Semaphore | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._run_slots = RunSlots(max(1, self.policy.concurrent) + self.policy.queue)

    async def __aenter__(self) -> "Runner":
        self._slots = anyio.Semaphore(max(1, self.policy.concurrent))
        self._threads = anyio.CapacityLimiter(max(1, self.policy.concurrent))
        self._setup = await anyio.to_thread.run_sync(probe_sandbox, self.policy)
        if self._setup.recipe is not None:
            size = min(self.policy.pool, self.policy.concurrent)
            self._pool = self._stack.enter_context(Pool(self._setup.recipe, self.policy.limits, size))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._setup, self._pool = _NOT_OPEN, None
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stack.close)

    @property
    def availability(self) -> Availability:
        """Whether scripts can be run here; if not, why, and what to do."""
        return self._setup.availability

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The file name suffixes of scripts that can be run."""
        return tuple(suffix for suffix, _ in self._setup.interpreters)

    def has_interpreter(self, path: str) -> bool:
        """Return whether there is an interpreter for a script, by its suffix."""
        return PurePosixPath(path).suffix in self.suffixes

    async def wait_until_ready(self, seconds: float) -> bool:
        """Wait until all sandboxes that are started in advance are ready, and return False on timeout."""
        return self._pool is not None and await anyio.to_thread.run_sync(self._pool.wait_until_full, seconds)

    @contextmanager
    def admit(
        self, entry: SkillEntry, script: object, arguments: object, *, origin: str = ""
    ) -> Generator[RunSlot]:
        """Take a slot for a run before its skill is read, for the duration of the context.

        Never waits. `script` is the name that the caller requested, and is only recorded.

        Raises:
            RunnerBusyError: Too many scripts run or wait, or they hold too much memory.
        """
        wanted = ScriptRun(entry.uri.text, script if isinstance(script, str) else "", {}, origin=origin)
        with self._take_slot(wanted, bytes_to_hold(entry, arguments)) as slot:
            yield slot

    async def run(self, run: ScriptRun, slot: RunSlot | None = None) -> Outcome:
        """Run a script, and return after all its processes have ended.

        `slot` is what `admit` yielded; without it, a slot is taken now.
        Cancelling the caller stops the script and waits until it has ended.

        Raises:
            SandboxUnavailableError: There is no sandbox.
            RunnerBusyError: Too many scripts run or wait, or they hold too much memory.
            RunnerError: It could not be started.
        """
        if slot is not None:
            return await self._run(run)
        with self._take_slot(run, held_bytes(run)):
            return await self._run(run)

    @contextmanager
    def _take_slot(self, run: ScriptRun, size: int) -> Generator[RunSlot]:
        with ExitStack() as stack:
            try:
                slot = stack.enter_context(self._run_slots.admit(run.script, size))
            except RunnerBusyError as error:
                self._record(record_of_refusal(run, error))
                raise
            yield slot

    async def _run(self, run: ScriptRun) -> Outcome:
        try:
            self.availability.require()
            assembled = await anyio.to_thread.run_sync(
                assemble, run, self.policy, dict(self._setup.interpreters)
            )
        except RunnerError as error:
            self._record(record_of_refusal(run, error))
            raise
        started = time.monotonic()
        try:
            raw, is_pooled = await self._run_queued(assembled)
        except RunnerError as error:
            self._record(assembled.record(error.refusal, str(error), seconds=time.monotonic() - started))
            raise
        except anyio.get_cancelled_exc_class():
            self._record(assembled.record("cancelled", seconds=time.monotonic() - started))
            raise
        except StoppedError:
            self._record(assembled.record("cancelled", seconds=time.monotonic() - started))
            await anyio.lowlevel.checkpoint()
            raise RunnerError("the run was stopped", script=run.script) from None
        outcome = await anyio.to_thread.run_sync(assembled.outcome, raw)
        seconds = time.monotonic() - started
        self._record(
            assembled.record(outcome.ending, outcome.verdict, raw=raw, seconds=seconds, is_pooled=is_pooled)
        )
        return outcome

    async def _run_queued(self, assembled: PreparedRun) -> tuple[RawOutcome, bool]:
        slots, recipe = self._slots, self._setup.recipe
        if slots is None or recipe is None:
            raise RunnerError("the runner is not open")
        try:
            with anyio.fail_after(self.policy.queue_seconds):
                await slots.acquire()
        except TimeoutError:
            raise RunnerBusyError(
                f"no running script ended within {self.policy.queue_seconds:g} seconds",
                script=assembled.run.script,
                fix="try again later",
            ) from None
        try:
            return await self._in_thread(assembled, recipe)
        finally:
            slots.release()
            if self._pool is not None:
                self._pool.replenish()

    async def _in_thread(self, assembled: PreparedRun, recipe: SandboxConfig) -> tuple[RawOutcome, bool]:
        """Run in a thread, which is stopped when the caller is cancelled, and always waited for."""
        stop = StopSignal()
        is_over = False
        results: list[tuple[RawOutcome, bool] | Exception] = []

        async def stop_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                if not is_over:
                    stop.set()

        async def use() -> None:
            nonlocal is_over
            # In a task of its own: asyncio cancels the caller's task itself after Ctrl-C, ignores
            # shields, and would leave the thread running.
            with anyio.CancelScope(shield=True):
                try:
                    results.append(
                        await anyio.to_thread.run_sync(
                            self._run_in_sandbox, assembled, recipe, stop, limiter=self._threads
                        )
                    )
                except (RunnerError, StoppedError) as error:
                    results.append(error)
            is_over = True
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop_when_cancelled)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(use)
        finally:
            stop.close()
        result = results[0] if results else StoppedError()
        if isinstance(result, Exception):
            raise result
        return result

    def _run_in_sandbox(
        self, assembled: PreparedRun, recipe: SandboxConfig, stop: StopSignal
    ) -> tuple[RawOutcome, bool]:
        """Run in a sandbox from the pool if one is ready, else in a new one."""
        limits = assembled.job.limits
        ready = None if self._pool is None else self._pool.take(limits)
        sandbox = ready or Sandbox.start(recipe, limits)
        return sandbox.run(assembled.job, stop), ready is not None
