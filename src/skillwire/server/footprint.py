"""Keeping a process that serves small and undisturbed."""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ANSWER_BYTES = 4 * 1024 * 1024


def share_one_heap() -> None:
    """Let all threads of this process take memory from one heap, where the C library allows to say so.

    By default glibc gives each thread a heap of its own, and what a scan in a
    worker thread frees is of no use to any other. Serving allocates too little
    for threads to get into each other's way. And memory that large answers
    took is kept for the next ones: giving it back and asking for it again
    would cost more than writing the answer.
    """
    if sys.platform == "linux":
        # Other C libraries of Linux have no such knobs, and no need of them.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)
            mallopt(_M_MMAP_THRESHOLD, _ANSWER_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _ANSWER_BYTES)


def settle_heap() -> None:
    """Take everything there is out of the garbage collector's sight, once the skills are open.

    A large catalog is many objects and no cycles; each time the collector went
    through all of them, one request would wait for it.
    """
    gc.collect()
    gc.freeze()
