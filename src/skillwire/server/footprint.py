"""Keeping a process that serves small."""

import ctypes
import sys

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Let all threads of this process take memory from one heap, where the C library allows to say so.

    By default glibc gives each thread a heap of its own, and what a scan in a
    worker thread frees is of no use to any other. Serving allocates too little
    for threads to get into each other's way.
    """
    if sys.platform == "linux":
        # Other C libraries of Linux have no such knob, and no need of one.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)
