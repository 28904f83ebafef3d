"""`Reloaded`: what a file says, kept up to date while a server runs."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from skillwire.errors import SkillError

EVERY: Final = 1.0
"""Seconds between two looks at a file."""

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, ...] | None
"""What tells one version of a file from another; None when there is no file."""

logger = logging.getLogger(__name__)


class Reloaded(Generic[T]):
    """The value of a file, which `read` reads and parses.

    The file is looked at when somebody asks, at most once a second. A new
    version counts when it is a second old, or two looks in a row saw it, so
    that one which is being written is left alone until it is whole. A version
    that cannot be used is logged once, and the last good one goes on; so it is
    when the file is gone. `version` changes with the value.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda is_good: None,
    ) -> None:
        """Tell `on_change` of each new version that was read, and whether it could be used."""
        self.version = 0
        self._on_change = on_change
        self._path = path
        self._read = read
        self._now = now
        self._ticks = ticks
        self._next_look = -float("inf")
        self._value: T | None = None
        self._used: Stamp = None
        self._seen: Stamp = None

    def load(self) -> T:
        """Read the file for the first time.

        Raises:
            SkillError: It cannot be used.
        """
        self._seen = self._used = _stamp(self._path)
        self._value = self._read(self._path)
        self._next_look = self._ticks() + EVERY
        self.version += 1
        return self._value

    @property
    def value(self) -> T:
        """What the last good version says."""
        assert self._value is not None, "it is loaded before it is used"
        return self._value

    def look(self) -> None:
        """See whether the file has changed, if the last look is a second ago."""
        now = self._ticks()
        if now < self._next_look:
            return
        self._next_look = now + EVERY
        stamp = _stamp(self._path)
        if stamp != self._used and (stamp == self._seen or self._is_settled(stamp)):
            self._take(stamp)
        self._seen = stamp

    def reload(self) -> None:
        """Read the file anew, now."""
        self._seen = _stamp(self._path)
        self._take(self._seen)

    def _is_settled(self, stamp: Stamp) -> bool:
        return stamp is not None and self._now() - stamp[-1] / 1e9 >= EVERY

    def _take(self, stamp: Stamp) -> None:
        self._used = stamp
        try:
            self._value = self._read(self._path)
        except SkillError as error:
            fix = f" ({error.fix})" if error.fix else ""
            logger.error("%s%s; what it said before goes on", error, fix)
            self._on_change(False)
            return
        self.version += 1
        self._on_change(True)
        logger.info("%s was read anew", self._path.name)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of the last change of permissions, too: who corrects those wants the file to be read again.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
