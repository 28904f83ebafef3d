"""From what can go wrong inside to what a peer may read of it."""

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager

from mcp.shared.exceptions import MCPError

from skillwire.errors import INTERNAL_ERROR, INVALID_PARAMS, NotFoundError, SkillError, SourceError

# A place that cannot be read fails every request for it; one line in so many seconds tells as much.
_QUIET_SECONDS = 10.0
_said_at = -_QUIET_SECONDS

logger = logging.getLogger(__name__)


@contextmanager
def wire_errors() -> Generator[None]:
    """Let only our own words reach the peer, in either protocol generation.

    On older revisions the SDK would send the text of a stray exception as it is.
    """
    try:
        yield
    except MCPError:
        raise
    except NotFoundError as error:
        raise MCPError(error.code, str(error), {"uri": error.uri}) from error
    except SkillError as error:
        if isinstance(error, SourceError):
            _log_source(error)
        elif error.code == INTERNAL_ERROR:
            logger.warning("a request failed: %s", error, exc_info=error)
        raise MCPError(error.code, str(error)) from error
    except Exception as error:
        logger.exception("unexpected failure while answering a request")
        raise MCPError(INTERNAL_ERROR, "Internal error") from error


def _log_source(error: SourceError) -> None:
    """Say in a line why something cannot be read; all requests for it fail alike, so not for each of them."""
    global _said_at
    now = time.monotonic()
    level = logging.WARNING if now - _said_at >= _QUIET_SECONDS else logging.INFO
    if level == logging.WARNING:
        _said_at = now
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    logger.log(level, "a request failed: %s%s", error, cause)


def invalid_params(message: str) -> MCPError:
    """Make the error for parameters that no handler can use."""
    return MCPError(INVALID_PARAMS, message)
