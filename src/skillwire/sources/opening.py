"""Opening files below a root so that no link can lead out of it.

Every folder on the way is opened relative to the one above it, and never
through a link, so the descriptor that comes back lies below the root however
the tree is rearranged meanwhile. Nothing here blocks on a FIFO or a device.
"""

import os
import stat
from itertools import islice
from types import TracebackType

# Windows has none of these flags; sources that read folders need Linux or macOS.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class FileMovedError(OSError):
    """What stands at a path is not, or no longer, the regular file that was expected there."""


def skill_base(root: str, directory: str, *, follow_links: bool) -> tuple[str, str]:
    """Return the folder below which no link is followed, and the skill's path from there, with a slash.

    That folder is the root, unless the publisher asked for linked folders:
    then it is whatever folder the skill's own path leads to.
    """
    if follow_links:
        return os.path.realpath(f"{root}/{directory}"), ""
    return root, f"{directory}/" if directory else ""


class FolderReader:
    """Reads files below `root`, keeping the folders on the way open between reads.

    Reading files in the order of their paths opens every folder once.
    """

    def __init__(self, root: str) -> None:
        self._path = ""
        self._descriptor = os.open(root, _DIRECTORY)
        self._above: list[tuple[str, int]] = []

    def __enter__(self) -> "FolderReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)
        for _, descriptor in self._above:
            os.close(descriptor)

    def read(self, folder: str, name: str, size: int) -> tuple[bytes, os.stat_result]:
        """Read the regular file `name`, expected to have `size` bytes, in the folder at `folder`.

        No more than one byte beyond `size` is read. The status is the file's
        own, taken after reading, for the caller to compare.

        Raises:
            FileMovedError: It is no regular file.
            OSError: It is gone, cannot be read, or a link stands in the way.
        """
        if folder != self._path:
            self._move_to(folder)
        descriptor = os.open(name, _FILE, dir_fd=self._descriptor)
        try:
            content = os.read(descriptor, size + 1)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileMovedError(f"{name!r} is not a regular file")
        return content, found

    def names(self, folder: str, most: int) -> list[tuple[str, os.stat_result]]:
        """Return what is in the folder at `folder`, up to `most` of it, by name and as it is itself.

        Raises:
            OSError: It is gone, no folder, cannot be read, or a link stands in the way.
        """
        if folder != self._path:
            self._move_to(folder)
        with os.scandir(self._descriptor) as listing:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(listing, most)]

    def _move_to(self, folder: str) -> None:
        """Make `folder` the current one, closing what does not lie above it and opening what does."""
        while self._path and folder != self._path and not folder.startswith(self._path + "/"):
            os.close(self._descriptor)
            self._path, self._descriptor = self._above.pop()
        if folder == self._path:
            return
        for part in folder[len(self._path) :].lstrip("/").split("/"):
            below = os.open(part, _DIRECTORY | _NOFOLLOW, dir_fd=self._descriptor)
            self._above.append((self._path, self._descriptor))
            self._path = f"{self._path}/{part}" if self._path else part
            self._descriptor = below
