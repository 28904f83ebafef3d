"""Targets of earlier command lines, by label, so that a reference printed by one command works in the next.

The table is part of the user's state, sealed and private like approvals, and
holds only what the user typed: no server or folder can add to it.
"""

import json
import logging
import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, cast

from skillwire.cli.references import MAX_BYTES, MAX_REFERENCES, file_for, is_shell_safe, stored_references
from skillwire.core import SkillError
from skillwire.host import KnownSkill, Storage
from skillwire.host.state.vault import SealedFolder, make_folder, remove_leftovers, replace

FORMAT: Final = 1
FILE: Final = "typed-targets.json"
MOST_TARGETS: Final = 100
LONGEST_TARGET: Final = 4096

logger = logging.getLogger(__name__)


class TargetKind(StrEnum):
    """The kind of a target: the URL of a server or a web site, a folder, or a command after `--`."""

    URL = "url"
    SITE = "site"
    FOLDER = "folder"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class TypedTarget:
    """One target as it was typed. `words` are the URL, the absolute folder, or the command line.

    `label` is empty for a folder, whose skills have bare names. `folder` is
    where a command or a folder was typed, and they are used only there; it is
    empty for a URL, which means the same everywhere.
    """

    kind: TargetKind
    label: str
    words: tuple[str, ...]
    folder: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The key that a later target replaces: a label has one meaning in its folder."""
        return (self.folder, self.label) if self.label else (self.folder, self.label, *self.words)

    @property
    def shown(self) -> str:
        return shlex.join(self.words) if self.kind is TargetKind.COMMAND else self.words[0]


class RecentTargets:
    """The most recent targets, the newest last, in `directory`, the user's state.

    A table that another program has changed is ignored.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._folder = SealedFolder(directory or Storage().state)

    def labelled(self, label: str) -> TypedTarget | None:
        """Return the target with this label; a command is found only in its folder."""
        here = os.path.realpath(Path.cwd())
        found = [target for target in self._read() if label and target.label == label]
        return next((target for target in reversed(found) if target.folder in ("", here)), None)

    def folder_of_command(self, label: str) -> str:
        """Return the folder in which a command with this label was last typed; empty when there is none."""
        found = (
            target.folder
            for target in reversed(self._read())
            if target.kind is TargetKind.COMMAND and target.label == label
        )
        return next(found, "")

    def folders(self) -> list[Path]:
        """Return the folders that were typed here, the newest first."""
        here = os.path.realpath(Path.cwd())
        return [
            Path(target.words[0])
            for target in reversed(self._read())
            if target.kind is TargetKind.FOLDER and target.folder == here
        ]

    def remember(self, targets: Iterable[TypedTarget], *, failed: Collection[str] = ()) -> None:
        """Add targets to the table; a failure is only logged.

        A target whose label is in `failed` did not answer, and does not replace an earlier one.
        """
        wanted = [target for target in targets if sum(map(len, target.words)) <= LONGEST_TARGET]
        if not wanted or all(target in self._read()[-len(wanted) :] for target in wanted):
            return
        try:
            with self._folder.locked():
                table = {target.key: target for target in self._folder.load_locked(FILE, _parsed) or ()}
                for target in wanted:
                    if target.label not in failed or target.key not in table:
                        table.pop(target.key, None)
                        table[target.key] = target
                self._folder.save(FILE, _written(list(table.values())[-MOST_TARGETS:]))
        except SkillError as error:
            logger.info("cannot store the targets of this command line: %s", error)

    def _read(self) -> Sequence[TypedTarget]:
        try:
            return self._folder.load(FILE, _parsed) or ()
        except SkillError as error:
            logger.info("cannot read the targets of earlier command lines: %s", error)
            return ()


def _written(targets: Sequence[TypedTarget]) -> bytes:
    rows = [[target.kind.value, target.label, target.folder, *target.words] for target in targets]
    return json.dumps({"version": FORMAT, "targets": rows}, indent=1).encode("ascii")


def _parsed(data: bytes) -> tuple[TypedTarget, ...]:
    value = json.loads(data)
    document = cast(dict[str, object], value) if isinstance(value, dict) else {}
    rows = document.get("targets")
    if document.get("version") != FORMAT or not isinstance(rows, list):
        raise ValueError("not a table of targets of this version")
    return tuple(map(_target, cast(list[object], rows)))


def _target(row: object) -> TypedTarget:
    parts = cast(list[object], row) if isinstance(row, list) else []
    if len(parts) < 4 or not all(isinstance(part, str) for part in parts):
        raise ValueError("an item is not a target")
    kind, label, folder, *words = cast(list[str], parts)
    return TypedTarget(TargetKind(kind), label, tuple(words), folder)


# Store the references of a listing, so that a shell can complete them later without a server.


MOST_PROJECTS = 64


def remember_references(
    skills: Iterable[KnownSkill],
    *,
    is_typed: bool = False,
    project: Path | None = None,
    places: Storage | None = None,
) -> None:
    """Store the references listed in a folder; a failure is only logged.

    References that need quoting in a shell, and those beyond the limits, are
    left out. Only the most recent folders are kept. Those of targets that were
    typed (`is_typed`) are added to the ones listed before.
    """
    path = file_for(project or Path.cwd(), (places or Storage()).state)
    found = {skill.reference for skill in skills if is_shell_safe(skill.reference)}
    if is_typed:
        labels = {word.partition("/")[0] for word in found}
        found |= {word for word in stored_references(path) if word.partition("/")[0] not in labels}
    words = sorted(found)[:MAX_REFERENCES]
    content = "".join(f"{word}\n" for word in words).encode()
    content = content[: content.rfind(b"\n", 0, MAX_BYTES) + 1]
    try:
        make_folder(path.parent)
        if not path.is_file() or path.read_bytes() != content:
            replace(path, content)
            remove_leftovers(path.parent)
            _forget_oldest(path.parent)
    except OSError as error:
        logger.info("cannot store references for completion: %s", error.strerror or error)


def _forget_oldest(folder: Path) -> None:
    with suppress(OSError):
        files = sorted(folder.glob("*.txt"), key=lambda path: path.lstat().st_mtime_ns)
        for path in files[:-MOST_PROJECTS]:
            path.unlink()
