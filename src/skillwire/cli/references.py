"""The references that were listed last in a folder, for completing them: read quickly, or not at all.

Nothing here loads the host. What is in the file was chosen for being
harmless in any shell when it was written, and is held to that again.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Final

import platformdirs

from skillwire.core.characters import visible

FOLDER: Final = "references"
MAX_BYTES: Final = 512 * 1024
MAX_REFERENCES: Final = 5_000
MOST_OFFERED: Final = 500

# No character of these means anything to a shell, and none starts an option or a home.
_HARMLESS = re.compile(r"[\w.][\w.:/@+%-]{0,299}")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def offer(request: str) -> int:
    """Print what `--references=PREFIX` or `--labels=PREFIX` may go on with, one word on each line."""
    kind, _, prefix = request.partition("=")
    found = known_labels if kind == "--labels" else known_references
    sys.stdout.write("".join(f"{word}\n" for word in found(Path.cwd(), prefix)))
    sys.stdout.flush()
    return 0


def is_harmless(reference: str) -> bool:
    """Tell whether a word can stand in any shell's command line as it is."""
    return _HARMLESS.fullmatch(reference) is not None and visible(reference) == reference


def file_for(project: Path, state: Path | None = None) -> Path:
    """Return the file that has the references last seen in a folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(project))).hexdigest()[:32]
    return (state or Path(platformdirs.user_state_dir("skillwire"))) / FOLDER / f"{name}.txt"


def known_references(project: Path, prefix: str = "") -> list[str]:
    """Return the references that start with `prefix` and were seen last in a folder; at most a screenful."""
    found = [word for word in _words(file_for(project)) if word.startswith(prefix)]
    return found[:MOST_OFFERED]


def known_labels(project: Path, prefix: str = "") -> list[str]:
    """Return the labels of the servers whose skills were seen last in a folder."""
    labels = {word.partition("/")[0] for word in _words(file_for(project)) if "/" in word}
    return sorted(label for label in labels if label.startswith(prefix))[:MOST_OFFERED]


def _words(path: Path) -> list[str]:
    try:
        descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [word for word in text.split("\n") if is_harmless(word)]
