"""What all tests share: the event loop, an empty home, and the count of proven requirements."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import requirements
from costs import Costs

TESTS = Path(__file__).parent
MEASURED = (
    "unit/",
    "integration/test_attacks",
    "integration/test_connection",
    "integration/test_dialect_clients",
    "integration/test_directory_source",
    "integration/test_documented",
    "integration/test_host",
    "integration/test_oauth",
    "integration/test_tools",
    "integration/test_wellknown",
    "integration/runner/test_host",
    "interop/test_adapter",
)
"""Whose coverage is measured: the tests, in this process, of the packages with a coverage limit."""
UNMEASURED = ("integration/test_host_state_machine",)

# Whoever starts the tests in the background ignores Ctrl-C for them; the programs they start shall not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does.
settings.register_profile("all", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("proof", deadline=None, max_examples=1_000)
TIER = os.environ.get("SKILLWIRE_EXAMPLES", "all")
settings.load_profile(TIER)
SETTINGS_OF_PROPERTY = "_hypothesis_internal_use_settings"
MOST_EXAMPLES = {"quick": 10, "all": 100}
"""How many examples a property gets at most; only in the proof tier it gets as many as it asks for."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(is_proof=TIER == "proof"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a home and a cache of its own, so that none sees the user's or another's."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local" / "state"))
    return home


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the examples of properties, and measure coverage where it says something.

    A test that is measured takes half as long again.
    """
    for item in items:
        test = getattr(item, "obj", None)
        own: settings | None = getattr(test, SETTINGS_OF_PROPERTY, None)
        if own is not None and own.max_examples > MOST_EXAMPLES.get(TIER, own.max_examples):
            setattr(test, SETTINGS_OF_PROPERTY, settings(own, max_examples=MOST_EXAMPLES[TIER]))
        place = item.path.relative_to(TESTS).as_posix()
        if not place.startswith(MEASURED) or place.startswith(UNMEASURED):
            item.add_marker("no_cover")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not terminalreporter.no_summary:
        terminalreporter.write_line(requirements.summary())
