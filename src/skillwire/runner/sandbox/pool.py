"""`Pool`: sandboxes that are started ahead of the runs that will use them, each for one run only."""

import logging
import threading
from collections import deque
from types import TracebackType

from skillwire.errors import RunnerError
from skillwire.runner.policy import Limits
from skillwire.runner.sandbox.sandbox import Recipe, Sandbox

_RETRY_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Pool:
    """Keeps a few sandboxes ready, and starts new ones between runs, in a thread of its own."""

    def __init__(self, recipe: Recipe, limits: Limits, size: int) -> None:
        self._recipe = recipe
        self._limits = limits
        self._size = size
        self._ready: deque[Sandbox] = deque()
        self._wanted = size
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, name="skillwire-sandboxes", daemon=True)

    def __enter__(self) -> "Pool":
        if self._size:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._size:
            self._thread.join()
        while self._ready:
            self._ready.pop().close()

    def take(self, limits: Limits) -> Sandbox | None:
        """Return a sandbox that is ready and as large as `limits` say; None when there is none."""
        if (limits.disk_bytes, limits.disk_files) != (self._limits.disk_bytes, self._limits.disk_files):
            return None
        while True:
            with self._changed:
                if not self._ready:
                    return None
                sandbox = self._ready.popleft()
            if sandbox.is_alive:
                return sandbox
            sandbox.close()

    def replenish(self) -> None:
        """Start what is missing; called when a run is over, so that it does not slow one down."""
        with self._changed:
            self._wanted = self._size
            self._changed.notify_all()

    def wait_until_full(self, seconds: float) -> bool:
        """Wait until all are ready; False when they are not after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._ready) >= self._size, seconds)

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or len(self._ready) < self._wanted)
                if self._is_closing:
                    return
            try:
                sandbox = Sandbox.start(self._recipe, self._limits)
            except RunnerError as error:
                logger.warning("no sandbox can be started ahead: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, _RETRY_SECONDS)
                continue
            with self._changed:
                self._ready.append(sandbox)
                if len(self._ready) >= self._size:
                    self._wanted = 0
                self._changed.notify_all()
