"""What this process uses: processor time, memory, descriptors."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from skillwire.server.ops.series import ProcessGauge

_STATUS: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def measured() -> Mapping[ProcessGauge, float]:
    """Return what this process uses now; what the system does not tell is left out."""
    found: dict[ProcessGauge, float] = {"cpu": time.process_time()}
    memory = _resident_bytes()
    if memory:
        found["memory"] = memory
    descriptors = _open_descriptors()
    if descriptors:
        found["descriptors"] = descriptors
    return found


def _resident_bytes() -> int:
    try:
        return int(_STATUS.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _open_descriptors() -> int:
    for folder in _DESCRIPTORS:
        try:
            return len(os.listdir(folder)) - 1  # One of them is the listing's own.  # noqa: PTH208
        except OSError:
            continue
    return 0
