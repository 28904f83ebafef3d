"""What is made once and lasts as long as the process: an event loop, and what runs in it."""

import atexit
from contextlib import ExitStack
from functools import cache

import anyio.from_thread

OPEN = ExitStack()
"""Closed when Python ends, which libFuzzer does not always let it do."""

atexit.register(OPEN.close)


@cache
def portal() -> anyio.from_thread.BlockingPortal:
    """Return the way into an event loop, made by whoever asks first: no thread survives a fork."""
    return OPEN.enter_context(anyio.from_thread.start_blocking_portal())
