"""Keeps of what was found only what reaches something new: `python -m fuzz.saving TARGET FOLDER…`."""

import importlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.run import HERE, LIMITS

_SECONDS = 600.0
_WRAPPER = "SKILLWIRE_FUZZ_WRAPPER"


def save(target: str, found: Sequence[Path]) -> int:
    """Add to the saved inputs of a target those that reach more, smallest first; return how many."""
    saved = HERE / "corpus" / target
    before = len(list(saved.iterdir()))
    with tempfile.TemporaryDirectory() as folder:
        # libFuzzer starts itself again for this, by the name it was started under.
        wrapper = Path(folder) / "target"
        words = [sys.executable, "-m", "fuzz.saving", target]
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        wrapper.chmod(0o700)
        # Which line was reached counts, not how often: that would be too many inputs.
        options = ["-merge=1", "-use_counters=0", *LIMITS, "-max_len=2048", str(saved), *map(str, found)]
        subprocess.run(
            [str(wrapper), *options],
            env={**os.environ, _WRAPPER: str(wrapper)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
    return len(list(saved.iterdir())) - before


def _run(target: str, options: Sequence[str]) -> None:
    """Be the target that libFuzzer starts."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["skillwire"]):
        check = importlib.import_module(f"fuzz.targets.{target}").check
    atheris.Setup([os.environ[_WRAPPER], *options], check)
    atheris.Fuzz()


if __name__ == "__main__":
    if _WRAPPER in os.environ:
        _run(sys.argv[1], sys.argv[2:])
    else:
        print(save(sys.argv[1], [Path(folder) for folder in sys.argv[2:]]))  # noqa: T201 - this is a program
