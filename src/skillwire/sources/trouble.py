"""`Trouble`: what may go on for hours is said when it begins, and not all the time."""

import logging
import time

# The same trouble that comes back this soon has been said already.
QUIET_SECONDS = 60.0


class Trouble:
    """One thing that can go wrong again and again; at any time it is on or over.

    `kind` tells whether it is the same trouble as before: the line about it
    may name what differs from time to time.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kind = ""
        self._is_on = False
        self._said_at = 0.0

    def begin(self, kind: str, line: str, *, is_bug: bool = False) -> None:
        """Say `line` as a warning, unless this trouble is on or was said a moment ago.

        What `is_bug` is said as an error, with the exception that is being handled.
        """
        now = time.monotonic()
        is_known = kind == self._kind and (self._is_on or now - self._said_at < QUIET_SECONDS)
        self._kind, self._is_on = kind, True
        if not is_known:
            self._said_at = now
            self._logger.log(logging.ERROR if is_bug else logging.WARNING, "%s", line, exc_info=is_bug)

    def end(self, line: str) -> None:
        """Say that it is over, if it was on."""
        if self._is_on:
            self._is_on = False
            self._logger.info("%s", line)
