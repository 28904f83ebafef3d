"""From what can go wrong inside to what a peer may read of it."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from mcp.shared.exceptions import MCPError

from skillwire.errors import INTERNAL_ERROR, INVALID_PARAMS, NotFoundError, SkillError

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
        if error.code == INTERNAL_ERROR:
            logger.warning("a request failed: %s", error, exc_info=error)
        raise MCPError(error.code, str(error)) from error
    except Exception as error:
        logger.exception("unexpected failure while answering a request")
        raise MCPError(INTERNAL_ERROR, "Internal error") from error


def invalid_params(message: str) -> MCPError:
    """Make the error for parameters that no handler can use."""
    return MCPError(INVALID_PARAMS, message)
