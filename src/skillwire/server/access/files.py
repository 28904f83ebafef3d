"""Reading what an operator wrote about access: files that nobody else can have changed."""

import logging
import os
import stat
from pathlib import Path
from typing import Final

from skillwire.core.characters import quoted
from skillwire.server.access.settings import AccessError

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH
# A pipe would be waited for.
_OPENING: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_HAS_MODES = os.name == "posix"

logger = logging.getLogger(__name__)


def read_guarded(path: Path, *, most: int, what: str, is_private: bool = False) -> bytes:
    """Return what a plain file holds that only its owner can write; links to it are followed.

    One that is meant to be private is read all the same when others can read
    it, with a warning.

    Raises:
        AccessError: It cannot be read, others can write it, or it has more than `most` bytes.
    """
    shown = f"the {what} {quoted(path.name)}"
    try:
        descriptor = os.open(path, _OPENING)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise AccessError(f"{shown} is no plain file")
            if _HAS_MODES and mode & _OTHERS_WRITE:
                raise AccessError(
                    f"{shown} is not used: others than its owner can write it", fix="chmod go-w the file"
                )
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(most + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise AccessError(
            f"{shown} cannot be read: {reason}", fix="check the path and who may read it"
        ) from (error)
    if len(content) > most:
        raise AccessError(f"{shown} is larger than {most} bytes")
    if is_private and _HAS_MODES and mode & _OTHERS_READ:
        logger.warning("%s can be read by others; chmod go-r the file", shown)
    return content
