"""Killed between any two writes, the host's state is the old one or the new one, and nothing else is lost."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skillwire
from integration import crashing

MEMORY = Path("/dev/shm")
ENDED_WITHIN = 300.0
SITES = ["first-publish", "publish"]
SYNCS = ["first-sync", "sync", "unsync"]
OPERATIONS = [name for name in crashing.OPERATIONS if name not in ("in-place", *SITES, *SYNCS)]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Any]]:
    """Crash every operation everywhere, in memory where there is some: a kill is no power cut."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    paths = [Path(skillwire.__file__).parents[1], Path(crashing.__file__).parents[1]]
    with tempfile.TemporaryDirectory(dir=where) as folder:
        result = subprocess.run(
            [sys.executable, crashing.__file__, folder, *crashing.OPERATIONS],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            timeout=ENDED_WITHIN,
        )
    assert result.returncode == 0, result.stderr
    yield {found["operation"]: found for found in map(json.loads, result.stdout.splitlines())}


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-10")
@pytest.mark.requirement("ARC-12")
@pytest.mark.requirement("CACHE-02")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_anywhere_leaves_the_old_state_or_the_new(outcomes: dict[str, Any], operation: str) -> None:
    found = outcomes[operation]

    assert found["problems"] == []
    assert set(found["states"]) == {"old", "new"}
    assert found["kills"] == sum(found["states"].values()) >= 8


@pytest.mark.requirement("DISC-14")
@pytest.mark.parametrize("operation", SITES)
def test_a_crash_while_a_site_is_written_leaves_a_whole_site_and_does_not_block_the_next_one(
    outcomes: dict[str, Any], operation: str
) -> None:
    found = outcomes[operation]

    assert found["problems"] == []
    assert set(found["states"]) == {"old", "new"}
    assert found["kills"] == sum(found["states"].values()) >= 8


@pytest.mark.parametrize("operation", SYNCS)
def test_a_crash_while_a_folder_is_synced_leaves_the_old_folder_or_the_new(
    outcomes: dict[str, Any], operation: str
) -> None:
    found = outcomes[operation]

    assert found["problems"] == []
    assert set(found["states"]) == {"old", "new"}
    assert found["kills"] == sum(found["states"].values()) >= 8


@pytest.mark.requirement("APPR-01")
def test_processes_that_approve_at_once_lose_nothing(outcomes: dict[str, Any]) -> None:
    assert outcomes["together"]["names"] == sorted(
        f"skill-{worker}-{number}" for worker in range(crashing.WORKERS) for number in range(crashing.GRANTS)
    )


def test_a_write_in_place_would_have_been_noticed(outcomes: dict[str, Any]) -> None:
    assert set(outcomes["in-place"]["states"]) - {"old", "new"}
