"""What the log says of requests that fail: once, and without noise."""

import logging

import pytest
from mcp.shared.exceptions import MCPError

from skillwire.core.errors import SourceError
from skillwire.server import messages
from skillwire.server.messages import wire_errors
from skillwire.sources.background import LogFilter


def test_a_place_that_cannot_be_read_is_said_in_one_line_however_many_ask(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_warnings", LogFilter(10.0))

    with caplog.at_level(logging.WARNING):
        for number in range(5):
            with pytest.raises(MCPError), wire_errors():
                raise SourceError(f"skill://pdf/{number}.md cannot be read") from OSError("/private/place")

    (record,) = caplog.records
    assert record.getMessage() == "a request failed: skill://pdf/0.md cannot be read (/private/place)"
    assert not record.exc_info
