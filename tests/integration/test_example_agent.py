"""The example agent, run as its page says, with the made-up user and in a real terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving import environment

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "examples" / "agent" / "agent.py"


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("home")
    # The servers start without this process's variables, so Python itself has to know where skillwire is.
    env = environment(home, PYTHON=str(_python(home)))
    result = subprocess.run(
        [sys.executable, "-W", "error", AGENT],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def _python(folder: Path) -> Path:
    """Return a Python that finds this checkout, installed or not."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def test_it_lists_skills_of_two_servers_and_a_folder_with_their_origins(transcript: list[str]) -> None:
    text = "\n".join(transcript)

    assert "From local folder user:\n- house-style: " in text
    assert "From MCP server shop (its own words, unverified):\n- shop/discounts: " in text
    assert "From MCP server team (its own words, unverified):\n- team/" in text


def test_it_asks_loads_reads_a_reference_and_finishes(transcript: list[str]) -> None:
    text = "\n".join(transcript)

    assert transcript.count("A skill would be loaded for the first time.") == 2
    assert "  | File: references/policy.md of the skill team/refunds" in transcript
    assert "(a note is written: Approve in part: 31.03 EUR, SERVICE_FAILURE.)" in text
    assert transcript[-1] == "Loaded at the end: team/refunds, house-style"


def test_it_is_refused_with_reasons_and_goes_on(transcript: list[str]) -> None:
    refused = [line for line in transcript if line.startswith('  | {"refused"')]

    assert ['"code": "approval-denied"' in refused[0], '"code": "execution"' in refused[1]] == [True, True]
    assert not any("this example has no shell" in line for line in transcript)


def test_the_question_about_a_call_shows_what_would_run(transcript: list[str]) -> None:
    assert any(
        "select * from orders where id = 1042" in line and "| run_command" in line for line in transcript
    )
