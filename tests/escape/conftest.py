"""What the escape tests share: a house with tokens, and the processes that run scripts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from escape.harness import Arena
from escape.house import House
from skillwire.runner.policy import Policy
from skillwire.runner.sandbox.sandbox import probe_sandbox

ArenaOf = Callable[[str], Arena]


@pytest.fixture(scope="session", autouse=True)
def sandbox() -> None:
    """Skip everything here where there is no sandbox at all, and say why."""
    if sys.platform != "linux":
        pytest.skip("there is a sandbox on Linux only")
    availability = probe_sandbox(Policy()).availability
    if availability.reason == "bubblewrap_missing":
        pytest.skip(f"bubblewrap is missing: {availability.fix}")
    assert availability.is_available, availability.detail


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    with House() as house:
        yield house


@pytest.fixture(scope="session")
def arena_of(house: House) -> Iterator[ArenaOf]:
    """Return the process that runs scripts for root or for a user; it is started when first wanted."""
    with ExitStack() as stack:
        arenas: dict[str, Arena] = {}

        def find(who: str) -> Arena:
            if who not in arenas:
                arenas[who] = stack.enter_context(Arena(who, house))
            return arenas[who]

        yield find
