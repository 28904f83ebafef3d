"""Keeping the files that a script left: every name is a stranger's, and none leads out of the folder."""

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skillwire.cli.failures import AlreadyExistsError, MisuseError, OutputError
from skillwire.core.characters import visible
from skillwire.core.paths import fold_path, folders_of, path_findings
from skillwire.runner import OutputFile, SkippedOutput

LONGEST_NAME = 255
"""How many bytes a name may have: more than that no common file system takes."""
LONGEST_PATH = 1024

# What is harmless in the URI of a skill and means something to a disk: drives, streams, patterns.
_UNUSABLE = re.compile(r'[\\:*?"<>|\x00]')
_FATAL = frozenset({"unusable-path", "reserved-path"})


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of the files of one run: the folder they are in now, and those that were refused."""

    folder: Path
    paths: tuple[str, ...] = ()
    refused: tuple[SkippedOutput, ...] = ()


def require_free(folder: Path) -> None:
    """Check that files can be put into a folder which nothing else is in.

    Raises:
        AlreadyExistsError: Something is there.
        MisuseError: It is the folder at hand, which cannot be replaced.
    """
    real = Path(os.path.realpath(folder))
    if not os.path.lexists(real):
        return
    if not real.is_dir():
        raise AlreadyExistsError(f"{folder} exists and is no folder", fix="choose another name for --output")
    if real == Path.cwd():
        raise MisuseError(f"{folder} is the folder at hand", fix="name a new one: --output out")
    if any(real.iterdir()):
        raise AlreadyExistsError(f"{folder} is not empty", fix="choose another folder for --output")


def keep(folder: Path, files: Sequence[OutputFile]) -> Kept:
    """Put files into a folder that is new or empty, all at once or not at all.

    Everything is written out of sight, beside the folder, and appears with one
    rename; so no link can lie on the way. Nobody else can read the files, and
    none can be run. What has a name that some disk takes for another place is refused.

    Raises:
        AlreadyExistsError: Something is in the folder.
        OutputError: It cannot be written.
    """
    require_free(folder)
    refused = refusals_of([file.path for file in files])
    real = Path(os.path.realpath(folder))
    top = real
    while not top.parent.exists():
        top = top.parent
    workshop = top.with_name(f".skillwire-{secrets.token_hex(8)}")
    good = [file for file in files if file.path not in refused]
    try:
        workshop.mkdir(0o700)
        inside = workshop / real.relative_to(top.parent)
        inside.mkdir(0o700, parents=True)
        for file in good:
            _write(inside, file)
        _put(workshop / top.name, top)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    skipped = tuple(SkippedOutput(path, reason) for path, reason in refused.items())
    return Kept(folder, tuple(file.path for file in good), skipped)


def refusals_of(paths: Sequence[str]) -> dict[str, str]:
    """Say which of the paths in an output folder are not written, and why."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in paths:
        reason = _reason(path)
        if not reason and (fold_path(path) in seen or fold_path(path) in folders):
            reason = "some file systems take its name for that of another one"
        if reason:
            found[path] = reason
        else:
            seen.add(fold_path(path))
    return found


def _reason(path: str) -> str:
    names = path.split("/")
    if path.startswith("/") or ".." in names:
        return "its name leads out of the folder"
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is no text"
    if len(raw) > LONGEST_PATH or any(len(name.encode()) > LONGEST_NAME for name in names):
        return "its name is too long"
    if any(name.startswith(".") for name in names):
        return "its name is hidden: it begins with a dot"
    if _UNUSABLE.search(path) or visible(path) != path:
        return "its name has characters that names must not have"
    codes = {finding.code for finding in path_findings([path])}
    return "its name means something else on some systems" if codes & _FATAL else ""


def _write(folder: Path, file: OutputFile) -> None:
    place = folder
    for name in file.path.split("/")[:-1]:
        place /= name
        place.mkdir(0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(folder / file.path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        opened.flush()
        os.fsync(opened.fileno())


def _put(made: Path, place: Path) -> None:
    """Rename a folder to its place, where an empty one may be."""
    if os.name == "nt" and place.is_dir():
        place.rmdir()  # There is no renaming onto a folder on Windows; one that is not empty stays.
    made.rename(place)
