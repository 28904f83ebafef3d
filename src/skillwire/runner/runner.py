"""`Runner`: runs scripts, each in a sandbox of its own."""

import time
from contextlib import ExitStack
from pathlib import PurePosixPath
from types import TracebackType

import anyio
import anyio.lowlevel
import anyio.to_thread

from skillwire.errors import RunnerBusyError, RunnerError
from skillwire.runner.assembly import Assembled, assemble, record_of_refusal
from skillwire.runner.audit import Recorder, log_record
from skillwire.runner.availability import Availability, Equipment, equip
from skillwire.runner.outcome import Outcome
from skillwire.runner.policy import Policy
from skillwire.runner.run import ScriptRun
from skillwire.runner.sandbox.conversing import Raw, Stop, Stopped
from skillwire.runner.sandbox.pool import Pool
from skillwire.runner.sandbox.sandbox import Recipe, Sandbox

_NOT_OPEN = Equipment(Availability(False, detail="the runner is not open", fix="use it with `async with`"))


class Runner:
    """Runs scripts, each in a sandbox of its own that is thrown away.

        async with Runner(Policy()) as runner:
            outcome = await runner.run(await prepare(entry, "profile.py", {"csv": text}, read))

    Entering starts a sandbox to see whether that works; `availability` says
    what came of it. Where it does not, nothing is ever run. `record` gets one
    line for each run, and for each that was wanted and could not be.
    """

    def __init__(self, policy: Policy | None = None, *, record: Recorder = log_record) -> None:
        self.policy = policy or Policy()
        self._record = record
        self._equipment = _NOT_OPEN
        self._stack = ExitStack()
        self._pool: Pool | None = None
        self._slots: anyio.Semaphore | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._waiting = 0

    async def __aenter__(self) -> "Runner":
        self._slots = anyio.Semaphore(max(1, self.policy.concurrent))
        self._threads = anyio.CapacityLimiter(max(1, self.policy.concurrent))
        self._equipment = await anyio.to_thread.run_sync(equip, self.policy)
        if self._equipment.recipe is not None:
            size = min(self.policy.pool, self.policy.concurrent)
            self._pool = self._stack.enter_context(Pool(self._equipment.recipe, self.policy.limits, size))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._equipment, self._pool = _NOT_OPEN, None
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stack.close)

    @property
    def availability(self) -> Availability:
        """Whether scripts can be run here; if not, why, and what to do."""
        return self._equipment.availability

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of the names of scripts that can be run."""
        return tuple(suffix for suffix, _ in self._equipment.interpreters)

    def takes(self, path: str) -> bool:
        """Tell whether there is an interpreter for a script, by the end of its name."""
        return PurePosixPath(path).suffix in self.suffixes

    async def run(self, run: ScriptRun) -> Outcome:
        """Run a script, and return once nothing of it is left.

        Cancelling the caller stops the script and waits until it is gone.

        Raises:
            SandboxUnavailableError: Nothing here can hold it.
            RunnerBusyError: Too many run and wait already.
            RunnerError: It could not be started.
        """
        try:
            self.availability.require()
            assembled = await anyio.to_thread.run_sync(
                assemble, run, self.policy, dict(self._equipment.interpreters)
            )
        except RunnerError as error:
            self._record(record_of_refusal(run, error))
            raise
        started = time.monotonic()
        try:
            raw, is_pooled = await self._in_turn(assembled)
        except RunnerError as error:
            self._record(assembled.record(error.refusal, str(error), seconds=time.monotonic() - started))
            raise
        except anyio.get_cancelled_exc_class():
            self._record(assembled.record("cancelled", seconds=time.monotonic() - started))
            raise
        except Stopped:
            self._record(assembled.record("cancelled", seconds=time.monotonic() - started))
            await anyio.lowlevel.checkpoint()
            raise RunnerError("the run was stopped", script=run.script) from None
        outcome = await anyio.to_thread.run_sync(assembled.outcome, raw)
        seconds = time.monotonic() - started
        self._record(
            assembled.record(outcome.ending, outcome.verdict, raw=raw, seconds=seconds, is_pooled=is_pooled)
        )
        return outcome

    async def _in_turn(self, assembled: Assembled) -> tuple[Raw, bool]:
        slots, recipe = self._slots, self._equipment.recipe
        if slots is None or recipe is None:
            raise RunnerError("the runner is not open")
        if not slots.value and self._waiting >= self.policy.queue:
            raise RunnerBusyError(
                f"{self._waiting} scripts wait already", script=assembled.run.script, fix="try again later"
            )
        self._waiting += 1
        try:
            with anyio.fail_after(self.policy.queue_seconds):
                await slots.acquire()
        except TimeoutError:
            raise RunnerBusyError(
                f"no script ended for {self.policy.queue_seconds:g} seconds",
                script=assembled.run.script,
                fix="try again later",
            ) from None
        finally:
            self._waiting -= 1
        try:
            return await self._in_thread(assembled, recipe)
        finally:
            slots.release()
            if self._pool is not None:
                self._pool.replenish()

    async def _in_thread(self, assembled: Assembled, recipe: Recipe) -> tuple[Raw, bool]:
        """Run in a thread, which is told when the caller is cancelled, and waited for in any case."""
        stop = Stop()
        is_over = False
        results: list[tuple[Raw, bool] | Exception] = []

        async def tell_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                if not is_over:
                    stop.set()

        async def use() -> None:
            nonlocal is_over
            # In a task of its own: what cancels the caller's task itself, as asyncio does after Ctrl-C,
            # takes no notice of shields, and would leave the thread behind.
            with anyio.CancelScope(shield=True):
                try:
                    results.append(
                        await anyio.to_thread.run_sync(
                            self._used, assembled, recipe, stop, limiter=self._threads
                        )
                    )
                except (RunnerError, Stopped) as error:
                    results.append(error)
            is_over = True
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell_when_cancelled)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(use)
        finally:
            stop.close()
        result = results[0] if results else Stopped()
        if isinstance(result, Exception):
            raise result
        return result

    def _used(self, assembled: Assembled, recipe: Recipe, stop: Stop) -> tuple[Raw, bool]:
        """Use up one sandbox: one that is ready, else a new one."""
        limits = assembled.job.limits
        ready = None if self._pool is None else self._pool.take(limits)
        sandbox = ready or Sandbox.start(recipe, limits)
        return sandbox.run(assembled.job, stop), ready is not None
