"""Sparing the garbage collector what will not be garbage."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Keep Python's cycle collector from running over many new objects that are there to stay.

    They form no cycles, so each pass over them would only cost time.
    Afterwards everything counts as old, as it would after such passes:
    freezing and unfreezing moves objects to the oldest generation without
    looking at them. Who has frozen objects is left alone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
