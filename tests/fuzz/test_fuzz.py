"""Fuzz targets: what was found before stays fixed; in the proof tier also a look for what was not."""

import base64
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TARGETS = sorted(path.stem for path in (HERE / "targets").glob("*.py"))
SECONDS = 1
_DEADLINE = 300.0
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Campaign:
    """A run of all targets: where each left what it has to say, and the words of the run itself."""

    place: Path
    words: str

    def problem(self, target: str) -> str:
        """Tell what a target found; empty when that is nothing."""
        log = self.place / target / "log"
        words = log.read_text("utf-8", "replace") if log.exists() else self.words
        found = [path for path in self.place.glob(f"{target}/*") if path.is_file() and path.name != "log"]
        if log.exists() and not found and "Done " in words:
            return ""
        inputs = [f"{path.name}: {base64.b64encode(path.read_bytes()).decode()}" for path in found]
        return "\n".join([words[:500], "...", words[-4000:], "inputs, in base64:", *inputs])


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Run all targets, one after the other, each from another seed than last time: its log names it."""
    if importlib.util.find_spec("atheris") is None:
        if os.environ.get("SKILLWIRE_REQUIRE_ALL") and sys.platform == "linux":
            pytest.fail("atheris is not installed")
        pytest.skip("atheris is not installed")
    place = tmp_path_factory.mktemp("campaign")
    command = [sys.executable, "-m", "fuzz.run", "--into", str(place), "--seconds", str(SECONDS), *TARGETS]
    path = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_DEADLINE,
        check=False,
    )
    return Campaign(place, done.stdout.decode("utf-8", "replace"))


def check_of(target: str) -> Callable[[bytes], None]:
    return importlib.import_module(f"fuzz.targets.{target}").check


@pytest.mark.parametrize("target", TARGETS)
def test_every_saved_input_still_keeps_what_the_target_promises(target: str) -> None:
    saved = sorted((HERE / "corpus" / target).iterdir())
    check = check_of(target)

    for path in saved:
        check(path.read_bytes())

    assert saved


@pytest.mark.proof
@pytest.mark.parametrize("target", TARGETS)
def test_new_inputs_break_no_promise_either(campaign: Campaign, target: str) -> None:
    problem = campaign.problem(target)

    assert not problem, problem


def test_a_target_that_breaks_its_promise_is_found_out(tmp_path: Path) -> None:
    place = tmp_path / "uri"
    place.mkdir()
    (place / "log").write_text("INFO: Seed: 1\n === Uncaught Python exception: ===\n")
    (place / "crash-1").write_bytes(b"\xff")

    problem = Campaign(tmp_path, "").problem("uri")

    assert "Seed: 1" in problem
    assert "crash-1: /w==" in problem


def test_the_saved_inputs_are_few_and_small() -> None:
    sizes = [path.stat().st_size for path in (HERE / "corpus").rglob("*") if path.is_file()]

    assert sum(sizes) < _MOST_BYTES
