"""What the scripts of this repository print."""

import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "scripts" / "_setup"
PIP = """\
Obtaining file:///home/me/skillwire
  Installing build dependencies: started
Installing build dependencies: started
Collecting anyio==4.9 (from skillwire==1.0)
  Downloading anyio-4.9-py3-none-any.whl (100 kB)
Requirement already satisfied: idna in ./.venv/lib (from anyio)
Collecting mcp>=2 (from skillwire==1.0)
Installing collected packages: anyio, mcp, skillwire
Successfully installed anyio-4.9 mcp-2.0 skillwire-1.0
"""


def test_an_installation_shows_one_line_for_each_package() -> None:
    command = f'. "{SETUP}"; show_progress'

    ended = subprocess.run(["bash", "-c", command], input=PIP, capture_output=True, text=True, timeout=30)

    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.splitlines() == [
        "  1: Installing build dependencies",
        "  2: Collecting anyio==4.9",
        "  3: Collecting mcp>=2",
        "  4: Installing collected packages",
    ]
