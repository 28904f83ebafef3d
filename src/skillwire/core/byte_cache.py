"""`ByteCache`: an LRU cache limited by bytes."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class ByteCache(Generic[Key, Value]):
    """Values by key; when they outgrow `limit` bytes, the least recently used go first.

    Safe to use from several threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The size of all values in bytes."""
        return self._size

    def get(self, key: Key) -> Value | None:
        cached = self._values.get(key)
        if cached is None:
            return None
        try:
            self._values.move_to_end(key)
        except KeyError:
            pass  # Another thread dropped it in between.
        return cached[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Store a value of `size` bytes, unless it is larger than half the limit."""
        if size > self._limit // 2:
            return
        with self._lock:
            self._drop(key)
            self._values[key] = (value, size)
            self._size += size
            while self._size > self._limit:
                # Without an iterator in Python, since `get` moves values without the lock.
                self._size -= self._values.popitem(last=False)[1][1]

    def items(self) -> list[tuple[Key, Value, int]]:
        """Return all values, the least recently used first."""
        with self._lock:
            return [(key, value, size) for key, (value, size) in list(self._values.items())]

    def discard(self, key: Key) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        cached = self._values.pop(key, None)
        if cached is not None:
            self._size -= cached[1]
