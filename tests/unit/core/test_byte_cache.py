"""The cache that is limited in bytes."""

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from skillwire.core import ByteCache

_KEYS = 100
_SIZE = 100
_LIMIT = 3300
_TIMES = 30_000


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_threads_that_read_do_not_disturb_those_that_write() -> None:
    cache: ByteCache[int, int] = ByteCache(_LIMIT)
    done = Event()

    def read() -> None:
        while not done.is_set():
            cache.get(random.randrange(_KEYS))

    def write() -> None:
        try:
            for _ in range(_TIMES):
                cache.put(random.randrange(_KEYS), 1, _SIZE)
        finally:
            done.set()

    with ThreadPoolExecutor(3) as pool:
        for work in [pool.submit(task) for task in (read, read, write)]:
            work.result(60)

    assert cache.size == sum(size for _, _, size in cache.items()) <= _LIMIT
