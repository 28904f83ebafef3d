"""Folders named on the command line, and the paths inside them as the user would type them."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from skillwire.cli.command import STYLES, MissingFolderError, MisuseError, Output, plural
from skillwire.core import SKILL_FILE, Finding, InvalidUriError, Severity, SkillUri


@dataclass(frozen=True, slots=True)
class NamedFolder:
    """An existing folder: the path as typed, and its real path."""

    typed: Path
    real: str

    @classmethod
    def named(cls, path: Path) -> "NamedFolder":
        """Return the folder at `path`.

        Raises:
            MissingFolderError: There is no such folder.
        """
        try:
            if not path.is_dir():
                raise _missing(path)
            return cls(path, os.path.realpath(path))
        except (OSError, ValueError) as error:
            raise MissingFolderError(f"{path} cannot be read: {_reason(error)}") from error

    @classmethod
    def of_skill(cls, path: Path) -> "NamedFolder":
        """Return the folder at `path`, or the skill's folder when `path` is one of its files.

        Raises:
            MissingFolderError: There is nothing at `path`, or a file that belongs to no skill.
        """
        try:
            if not path.exists():
                raise MissingFolderError(f"there is no file or folder {path}", fix="check the path")
            if path.is_dir() or not path.is_file():
                return cls.named(path)
            if path.name.casefold() == SKILL_FILE.casefold():
                return cls.named(path.parent)
            for folder in path.parents:
                if (folder / SKILL_FILE).is_file():
                    return cls.named(folder)
        except (OSError, ValueError) as error:
            raise MissingFolderError(f"{path} cannot be read: {_reason(error)}") from error
        raise MissingFolderError(
            f"{path} is not part of a skill: no folder above it has a {SKILL_FILE}",
            fix=f"name a folder of skills, a skill, or its {SKILL_FILE}",
        )

    def path(self, inside: str = "") -> str:
        """Return the path of something in this folder as the user would type it."""
        return str(self.typed / inside)

    def real_path(self, inside: str) -> str:
        """Return the real path of something in this folder, given relative to it."""
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


# Print findings, grouped by skill, the most severe first when there are too many.


MAX_SHOWN = 50
"""Findings of one skill that are printed; one bad skill must not hide the others."""

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_RANKS = {severity: rank for rank, severity in enumerate(_WORDS)}


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """The number of findings of each severity."""

    errors: int
    warnings: int
    notes: int

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> "FindingCounts":
        counts = Counter(map(attrgetter("severity"), findings))
        return cls(counts[Severity.ERROR], counts[Severity.WARNING], counts[Severity.INFO])

    def words(self, *, notes: bool = False) -> str:
        """Return `1 error, 2 warnings`; empty when there are none."""
        counted = [(self.errors, "error"), (self.warnings, "warning")]
        if notes:
            counted.append((self.notes, "note"))
        return ", ".join(plural(count, word) for count, word in counted if count)


def print_findings(
    output: Output, place: str, findings: Sequence[Finding], *, to_stderr: bool = False
) -> None:
    """Print the findings about one path.

    Notes are printed only with `--verbose`. `to_stderr` is for findings that
    are not part of the result. On a terminal a finding is a paragraph, and
    one line elsewhere.
    """
    say = output.message if to_stderr else output.line
    shown = [found for found in findings if output.verbose or found.severity is not Severity.INFO]
    if not shown:
        return
    say((place, "bold"), f"  {FindingCounts.of(shown).words(notes=True)}", wrap=False)
    kept = shown
    if len(shown) > MAX_SHOWN:
        kept = sorted(shown, key=lambda found: _RANKS[found.severity])[:MAX_SHOWN]
    on_terminal = (output.terminal if to_stderr else output.width) is not None
    for found in kept:
        word = _WORDS[found.severity]
        where = f"{found.file}:{found.line}" if found.line else found.file
        if not on_terminal:  # One line each, for files, editors and grep.
            fix = f"; fix: {found.fix}" if found.fix else ""
            before = f"{where}: " if where else ""
            say(f"{before}{word}: {found.message}{fix} [{found.code}, {found.rule}]", indent=2)
            continue
        say(
            where,
            "  " if where else "",
            (word, STYLES[word]),
            f"  {found.code} ({found.rule})",
            indent=2,
            wrap=False,
        )
        say(found.message, indent=4)
        if found.fix:
            say(("fix:", "bold"), f" {found.fix}", indent=4)
    if len(kept) < len(shown):
        say(f"and {len(shown) - len(kept):,} more; --json shows them all", indent=2)
    say("")


def checked_prefix(prefix: str) -> str:
    """Return the prefix of the option `--prefix` without slashes around it.

    Raises:
        MisuseError: It cannot be part of a URI.
    """
    prefix = prefix.strip("/")
    try:
        if prefix:
            SkillUri.build(prefix)
    except InvalidUriError as error:
        raise MisuseError(
            f"--prefix cannot be part of a URI: {error}", fix="use a-z, 0-9, - and /"
        ) from error
    return prefix
