"""Folders that a user names on the command line, and the paths inside them as the user would type them."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from skillwire.cli.failures import MissingFolderError
from skillwire.core.finding import Finding
from skillwire.core.uri import SKILL_FILE


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that exists: as it was typed, and where it really is."""

    typed: Path
    real: str

    @classmethod
    def named(cls, path: Path) -> "Folder":
        """Find the folder at `path`.

        Raises:
            MissingFolderError: There is no such folder.
        """
        try:
            if not path.is_dir():
                raise _missing(path)
            return cls(path, os.path.realpath(path))
        except (OSError, ValueError) as error:
            raise MissingFolderError(f"{path} cannot be looked at: {_reason(error)}") from error

    def path(self, inside: str = "") -> str:
        """Return the path of something in this folder as the user would type it."""
        return str(self.typed / inside)

    def real_path(self, inside: str) -> str:
        """Return where something in this folder, given by a walk, really is."""
        return f"{self.real}/{inside}" if inside else self.real


def located(finding: Finding, place: str) -> Finding:
    """Return a finding about the skill or folder at `place` with its file as a user would type it."""
    return replace(finding, file=str(Path(place, finding.file)))


def _missing(path: Path) -> MissingFolderError:
    if not path.exists():
        return MissingFolderError(f"there is no folder {path}", fix="check the path")
    fix = f"name the skill's folder: {path.parent}" if path.name == SKILL_FILE else "name a folder"
    return MissingFolderError(f"{path} is not a folder", fix=fix)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
