"""The references that were last listed in a folder, for shell completion.

This module must be fast, so it does not import the host. References are
checked to be safe in any shell both when they are written and when they are read.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Final

import platformdirs

from skillwire.core import visible

FOLDER: Final = "references"
MAX_BYTES: Final = 512 * 1024
MAX_REFERENCES: Final = 5_000
MOST_OFFERED: Final = 500

# None of these characters is special to a shell, and none starts an option or a home folder.
_HARMLESS = re.compile(r"[\w.][\w.:/@+%-]{0,299}")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def print_completions(request: str) -> int:
    """Print the completions of `--references=PREFIX` or `--labels=PREFIX`, one on each line."""
    kind, _, prefix = request.partition("=")
    found = known_labels if kind == "--labels" else known_references
    sys.stdout.write("".join(f"{word}\n" for word in found(Path.cwd(), prefix)))
    sys.stdout.flush()
    return 0


def is_shell_safe(reference: str) -> bool:
    """Return whether a word needs no quoting in any shell."""
    return _HARMLESS.fullmatch(reference) is not None and visible(reference) == reference


def file_for(project: Path, state: Path | None = None) -> Path:
    """Return the file with the references last listed in a folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(project))).hexdigest()[:32]
    return (state or Path(platformdirs.user_state_dir("skillwire"))) / FOLDER / f"{name}.txt"


def known_references(project: Path, prefix: str = "") -> list[str]:
    """Return the references last listed in a folder that start with `prefix`, up to `MOST_OFFERED`."""
    found = [word for word in stored_references(file_for(project)) if word.startswith(prefix)]
    return found[:MOST_OFFERED]


def references_named(project: Path, name: str) -> list[str]:
    """Return the references last listed in a folder whose part after the last slash is `name`."""
    return [word for word in stored_references(file_for(project)) if word.endswith(f"/{name}")]


def known_labels(project: Path, prefix: str = "") -> list[str]:
    """Return the labels of the servers whose skills were last listed in a folder."""
    labels = {word.partition("/")[0] for word in stored_references(file_for(project)) if "/" in word}
    return sorted(label for label in labels if label.startswith(prefix))[:MOST_OFFERED]


def stored_references(path: Path) -> list[str]:
    """Return the safe references in a file; none when it cannot be read."""
    try:
        descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [word for word in text.split("\n") if is_shell_safe(word)]
