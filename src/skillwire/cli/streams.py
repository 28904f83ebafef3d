"""Standard output and error, made fit for any text and any ending."""

import io
import os
import sys
from contextlib import suppress
from pathlib import Path


def prepare_streams() -> None:
    """Make sure that any text can be written, whatever the locale and whoever closed a stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def give_up_on_output(error: OSError) -> None:
    """Say that standard output failed, and let what it still holds go nowhere.

    The interpreter would try once more to write it when it ends, and complain.
    """
    with suppress(OSError):
        sys.stderr.write(f"error: the answer cannot be written: {error.strerror}\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
