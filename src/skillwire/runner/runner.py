"""`Runner`: runs scripts, each in a sandbox of its own."""

from dataclasses import dataclass
from types import TracebackType

from skillwire.errors import SandboxUnavailableError
from skillwire.runner.audit import Recorder, log_record
from skillwire.runner.outcome import Outcome
from skillwire.runner.policy import Policy
from skillwire.runner.run import ScriptRun


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether scripts can be run here, as a real run has shown; if not, why, and what to do."""

    is_available: bool
    backend: str = "bwrap"
    detail: str = ""
    fix: str = ""
    reason: str = "sandbox_unavailable"


class Runner:
    """Runs scripts, each in a sandbox of its own that is thrown away.

        async with Runner(Policy()) as runner:
            outcome = await runner.run(await prepare(entry, "profile.py", {"csv": text}, read))

    Entering starts a sandbox to see whether that works; `availability` says
    what came of it. Where it does not, nothing is ever run.
    """

    def __init__(self, policy: Policy | None = None, *, record: Recorder = log_record) -> None:
        self.policy = policy or Policy()
        self.availability = Availability(False, detail="the runner is not open")
        self._record = record

    async def __aenter__(self) -> "Runner":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def takes(self, path: str) -> bool:
        """Tell whether there is an interpreter for a script, by the end of its name."""
        return path.endswith(".py")

    async def run(self, run: ScriptRun) -> Outcome:
        """Run a script, and return once nothing of it is left.

        Cancelling the caller stops the script.

        Raises:
            SandboxUnavailableError: Nothing here can hold it.
            RunnerBusyError: Too many run and wait already.
            RunnerError: It could not be started.
        """
        raise SandboxUnavailableError(self.availability.detail, fix=self.availability.fix)
