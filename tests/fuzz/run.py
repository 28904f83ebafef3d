"""Runs targets under libFuzzer: `python -m fuzz.run [--each OPTIONS] TARGET… -- [OPTION…]`.

libFuzzer ends the process it runs in, so every target gets a process of its own,
forked off after everything is imported and instrumented, which takes longest.
Its words go to `DIR/TARGET/log`, with the seed among them, an input that breaks a
property to `DIR/TARGET/`, and what it found on the way to `DIR/TARGET/found/`.
"""

import argparse
import hashlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris  # pyright: ignore[reportMissingTypeStubs]

HERE = Path(__file__).parent
_atheris: Any = atheris

_BROKEN = 77

# A single input that takes longer, or more room, is a finding.
LIMITS = ("-timeout=5", "-rss_limit_mb=1024", "-max_len=8192", "-len_control=20")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run fuzz targets, one after the other.")
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--into", type=Path, required=True, help="where to write what happened")
    parser.add_argument("--seconds", type=int, default=3, help="how long to run each")
    parser.add_argument("--option", action="append", default=[], help="a further option of libFuzzer")
    arguments = parser.parse_args()
    with _atheris.instrument_imports(include=["skillwire"]):
        checks = {name: importlib.import_module(f"fuzz.targets.{name}").check for name in arguments.targets}
    outcomes: dict[str, int] = {}
    for name, check in checks.items():
        place: Path = arguments.into / name
        (place / "found").mkdir(parents=True, exist_ok=True)
        options = [f"-max_total_time={arguments.seconds}", *LIMITS, *arguments.option]
        outcomes[name] = _in_child(name, check, place, options)
    print(json.dumps(outcomes))  # noqa: T201 - this is a program
    return int(any(outcomes.values()))


def _in_child(name: str, check: Callable[[bytes], None], place: Path, options: list[str]) -> int:
    """Run one target in a fork, and return its exit code."""
    child = os.fork()
    if child == 0:
        tempfile.tempdir = str(place)
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        dictionary = HERE / "dictionaries" / f"{name}.dict"
        words = [f"-dict={dictionary}"] if dictionary.exists() else []
        # New inputs go to the first folder; the saved ones are only read.
        folders = [str(place / "found"), str(HERE / "corpus" / name)]
        arguments = [name, *options, *words, f"-artifact_prefix={place}/", *folders]
        _atheris.Setup(arguments, _kept(check, place))
        _atheris.Fuzz()
        sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _kept(check: Callable[[bytes], None], place: Path) -> Callable[[bytes], None]:
    """Return a check that writes down the input that breaks it, and ends there."""

    def check_and_keep(data: bytes) -> None:
        try:
            check(data)
        except BaseException:
            (place / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(_BROKEN)

    return check_and_keep


if __name__ == "__main__":
    sys.exit(main())
