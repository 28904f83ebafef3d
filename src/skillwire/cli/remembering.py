"""Keeping the references of a listing, so that a shell can complete them later without asking a server."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from skillwire.cli.references import MAX_BYTES, MAX_REFERENCES, file_for, is_harmless
from skillwire.host import KnownSkill, Places
from skillwire.host.state.vault import make_folder, remove_leftovers, replace

MOST_PROJECTS = 64

logger = logging.getLogger(__name__)


def remember_references(
    skills: Iterable[KnownSkill], *, project: Path | None = None, places: Places | None = None
) -> None:
    """Write down the references of what was listed in a folder; it never fails a command.

    Those that would mean something to a shell are left out, and so is what
    is too much. Of folders, the ones listed last are kept.
    """
    words = sorted({skill.reference for skill in skills if is_harmless(skill.reference)})[:MAX_REFERENCES]
    content = "".join(f"{word}\n" for word in words).encode()
    content = content[: content.rfind(b"\n", 0, MAX_BYTES) + 1]
    path = file_for(project or Path.cwd(), (places or Places.default()).state)
    try:
        make_folder(path.parent)
        if not path.is_file() or path.read_bytes() != content:
            replace(path, content)
            remove_leftovers(path.parent)
            _forget_oldest(path.parent)
    except OSError as error:
        logger.info("references cannot be kept for completion: %s", error.strerror or error)


def _forget_oldest(folder: Path) -> None:
    with suppress(OSError):
        files = sorted(folder.glob("*.txt"), key=lambda path: path.lstat().st_mtime_ns)
        for path in files[:-MOST_PROJECTS]:
            path.unlink()
