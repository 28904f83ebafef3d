"""Opening files below a root so that no link can lead out of it.

Every folder on the way is opened relative to the one above it, and never
through a link, so the descriptor that comes back lies below the root however
the tree is rearranged meanwhile. Nothing here blocks on a FIFO or a device.
"""

import os
import stat
from types import TracebackType

# Windows has none of these flags; sources that read folders need Linux or macOS.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class FileMovedError(OSError):
    """What stands at a path is not, or no longer, the regular file that was expected there."""


class FolderReader:
    """Reads files below `root`, keeping the folders on the way open between reads.

    Reading files in the order of their paths opens every folder once.
    """

    def __init__(self, root: str) -> None:
        self._open: list[tuple[str, int]] = [("", os.open(root, _DIRECTORY))]

    def __enter__(self) -> "FolderReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def read(self, folder: str, name: str, size: int) -> tuple[bytes, os.stat_result]:
        """Read the regular file `name`, expected to have `size` bytes, in the folder at `folder`.

        No more than one byte beyond `size` is read. The status is the file's
        own, taken after reading, for the caller to compare.

        Raises:
            FileMovedError: It is no regular file.
            OSError: It is gone, cannot be read, or a link stands in the way.
        """
        descriptor = os.open(name, _FILE, dir_fd=self._enter(folder))
        try:
            content = os.read(descriptor, size + 1)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileMovedError(f"{name!r} is not a regular file")
        return content, found

    def _enter(self, folder: str) -> int:
        """Return a descriptor of `folder`, opening what is not open and closing what is not above it."""
        while (
            self._open[-1][0]
            and folder != self._open[-1][0]
            and not folder.startswith(self._open[-1][0] + "/")
        ):
            os.close(self._open.pop()[1])
        path, descriptor = self._open[-1]
        if path == folder:
            return descriptor
        for part in folder[len(path) :].strip("/").split("/"):
            path = f"{path}/{part}" if path else part
            descriptor = os.open(part, _DIRECTORY | _NOFOLLOW, dir_fd=descriptor)
            self._open.append((path, descriptor))
        return descriptor
