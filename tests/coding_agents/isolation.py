"""Running a journey where nothing leaves the machine, and nothing but its own folder can be written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import skillwire
from coding_agents.agents import AGENTS, CodingAgent
from coding_agents.journey import JourneyReport
from interop.tools import Node, find_node

TESTS = Path(__file__).parents[1]
ENDS_WITHIN = 300.0
"""Longer than anything in a journey is waited for."""

Travel: TypeAlias = Callable[[CodingAgent], JourneyReport]
"""Returns the report of an agent's journey, which is made once."""


def find_programs() -> tuple[Node, str]:
    """Return Node and bwrap, with all agents installed, or skip the test; where all must run, fail it."""
    node = find_node({"PATH": os.environ["PATH"]}, [agent.program for agent in AGENTS])
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        must_run = os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")
        (pytest.fail if must_run else pytest.skip)("no bwrap on the PATH")
    return node, bwrap


def run_isolated(agent: CodingAgent, folder: Path, node: Node, bwrap: str) -> JourneyReport:
    """Run an agent's journey in an empty folder, and return its report.

    It has no network but loopback, sees every other file but cannot write
    them, and gets nothing of this environment. All that it started ends with it.
    """
    env = {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": node.env["PATH"],
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(skillwire.__file__).parents[1])]),
        "TMPDIR": str(folder),
    }
    command = [
        *(bwrap, "--die-with-parent", "--new-session", "--unshare-net", "--unshare-pid"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(folder), str(folder)),
        *("--", sys.executable, "-m", "coding_agents.journey", agent.name, str(folder)),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=ENDS_WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return JourneyReport.from_json(done.stdout)
