"""What the MCP SDK logs about a server holds the server's own words; here they are made inert."""

import logging
from typing import Final

from skillwire.core.characters import visible

LOGGERS: Final = (
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.session",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.client.subscriptions",
    "mcp.shared.jsonrpc_dispatcher",
)

_LONGEST_LINE = 500
_MOST_LINES = 50


class _Inert(logging.Filter):
    """Keeps a record, without anything in it that a terminal would obey or a reader not see."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _harmless(record.getMessage()), ()
        if record.exc_info:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(map(_harmless, lines[-_MOST_LINES:]))
            record.exc_info = None
        return True


_INERT = _Inert()


def make_sdk_logs_inert() -> None:
    """Let no server speak to a terminal through a log; doing it twice changes nothing."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_INERT)


def _harmless(text: str) -> str:
    return visible(text)[:_LONGEST_LINE]
