"""`Scripts`: what a server that runs scripts has for it, for as long as it serves."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import anyio

from skillwire.core.uri import SkillUri
from skillwire.errors import RunnerError, SandboxUnavailableError
from skillwire.runner import Policy, Runner
from skillwire.server.outputs import OutputShelf

logger = logging.getLogger(__name__)

RunsScripts: TypeAlias = Runner | Policy
"""How scripts are to be run: by a runner that someone else opens, or as a policy says."""


def _anything(uri: SkillUri) -> bool:
    return True


class Scripts:
    """The runner of a server's scripts, and what they left. A policy's runner lives while this is open.

    `may_run` tells of which skills scripts may be run.
    """

    def __init__(self, how: RunsScripts, *, may_run: Callable[[SkillUri], bool] = _anything) -> None:
        self.outputs = OutputShelf()
        self.may_run = may_run
        self._how = how
        self._own: Runner | None = None

    @property
    def runner(self) -> Runner | None:
        """What runs scripts now; None while nothing is served."""
        return self._how if isinstance(self._how, Runner) else self._own

    @property
    def is_available(self) -> bool:
        """Whether scripts can be run."""
        return self.runner is not None and self.runner.availability.is_available

    def require_allowed(self, uri: SkillUri) -> None:
        """Check that scripts of a skill may be run.

        Raises:
            RunnerError: They may not.
        """
        if not self.may_run(uri):
            raise RunnerError("you may not run scripts of this skill")

    def required_runner(self) -> Runner:
        """Return what runs scripts.

        Raises:
            SandboxUnavailableError: Nothing here can hold one.
        """
        runner = self.runner
        if runner is None:
            raise SandboxUnavailableError("the server does not run", reason="closed")
        runner.availability.require()
        return runner

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Run scripts meanwhile; say so, once, if that cannot be done here."""
        async with AsyncExitStack() as stack:
            stack.callback(self._forget)
            if isinstance(self._how, Policy):
                self._own = await stack.enter_async_context(Runner(self._how))
            self._warn()
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self.outputs.keep_tidy)
            yield
            group.cancel_scope.cancel()

    def _forget(self) -> None:
        self._own = None
        self.outputs.clear()

    def _warn(self) -> None:
        if self.runner is not None and not self.is_available:
            found = self.runner.availability
            fix = f"; {found.fix}" if found.fix else ""
            logger.warning("no script is run, and none is announced: %s%s", found.detail, fix)
