"""What the escape tests share: a machine with tokens, and the processes that run scripts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from escape.harness import Arena
from escape.machine import Machine
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
def machine() -> Iterator[Machine]:
    with Machine() as machine:
        yield machine


@pytest.fixture(scope="session")
def arena_of(machine: Machine) -> Iterator[ArenaOf]:
    """Return the process that runs scripts for root or for a user; it is started when first wanted."""
    with ExitStack() as stack:
        arenas: dict[str, Arena] = {}

        def find(who: str) -> Arena:
            if who not in arenas:
                arenas[who] = stack.enter_context(Arena(who, machine))
            return arenas[who]

        yield find
