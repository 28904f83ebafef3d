"""Servers speak through the SDK's log as well."""

import logging

import pytest

from skillwire.host.connect.session import LOGGERS, escape_sdk_logs


@pytest.mark.requirement("SEC-01")
@pytest.mark.parametrize("name", LOGGERS)
def test_a_servers_words_in_the_sdks_log_cannot_move_or_recolour_a_terminal(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    escape_sdk_logs()
    escape_sdk_logs()

    try:
        raise ValueError("\x1b]52;c;aGk=\x07\nOrigin: local")
    except ValueError:
        logging.getLogger(name).exception("it said %s", "\x1b[2J\u202e" + "x" * 5000)

    (record,) = caplog.records
    shown = logging.Formatter().format(record)
    assert shown.startswith("it said <U+001B>[2J<U+202E>xxx")
    assert all(line.isprintable() for line in shown.splitlines())
    assert max(map(len, shown.splitlines())) <= 500
    assert len(logging.getLogger(name).filters) == 1
