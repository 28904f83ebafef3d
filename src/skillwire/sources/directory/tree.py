"""`SkillTree`: the records of one folder, updated incrementally."""

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from skillwire.core import DEFAULT_SCHEME, SKILL_FILE, Finding, SourceError, gc_paused
from skillwire.sources.directory.publish import MountPoint, Published, PublishedFolder, combine, publish
from skillwire.sources.directory.scan import ScanIndex, Scanner, SkillRecord
from skillwire.sources.directory.walk import MAX_DEPTH, SKIPPED_FOLDERS, Walk

logger = logging.getLogger(__name__)


class SkillTree:
    """The records of all skills below `root`; not thread-safe.

    `scan` accepts the places that changed. It then scans only the skills around
    them, so the cost of an edit does not depend on the number of skills.
    `revision` is the number of the snapshot before the first.
    """

    def __init__(
        self,
        root: str,
        mount: MountPoint,
        *,
        follow_links: bool = False,
        index: ScanIndex | None = None,
        revision: int = 0,
    ) -> None:
        self.root = root
        self.unsettled: frozenset[str] = frozenset()
        self._mount = mount
        self._follow_links = follow_links
        self._index = index
        self._remembered: dict[str, SkillRecord] = {}
        self._records: dict[str, SkillRecord] = {}
        self._publications: dict[str, PublishedFolder] = {}
        self._loose: list[tuple[str, Finding]] = []
        self._empty: frozenset[str] = frozenset()
        self._published: Published | None = None
        self._revision = revision
        self._unsaved = False
        self._unpublished = False

    def scan(self, places: Sequence[str] | None = None, suspect: Collection[str] = ()) -> Published:
        """Update the records; the same object is returned when nothing differs.

        Folders whose files changed while they were read keep their records, and
        are listed in `unsettled`. Of the skills around and inside `suspect`
        folders every file is read, even if its size, times and inode are
        unchanged.

        Raises:
            SourceError: The root cannot be read, or this process currently cannot read files.
        """
        if self._published is None:
            with gc_paused():
                return self._scan_all()
        for start in self._starts(places):
            # Kept until it is published, because the next subtree may fail.
            self._unpublished |= self._scan_subtree(start, suspect)
        return self._publish() if self._unpublished else self._published

    def _scan_all(self) -> Published:
        self._remembered = self._index.load() if self._index else {}
        self._scan_subtree("")
        published = self._publish()
        self._remembered = {}
        self.save()
        return published

    def _publish(self) -> Published:
        self._revision += 1
        self._published = combine(
            self._publications.values(), self._loose, self._mount, self._revision, self._empty
        )
        self._unpublished = False
        return self._published

    def save(self) -> None:
        """Write the index if records changed since it was last written."""
        if self._index is not None and self._unsaved:
            self._index.save(self._records.values())
            self._unsaved = False

    def _starts(self, places: Sequence[str] | None) -> list[str]:
        """Return the minimal set of folders to walk for the changed places."""
        if places is None:
            return [""]
        starts = {start for place in places if (start := self.start_for(place)) is not None}
        kept: list[str] = []
        for start in sorted(starts, key=lambda start: start.replace("/", "\0")):
            if not kept or not _within(start, kept[-1]):
                kept.append(start)
        return kept

    def start_for(self, place: str) -> str | None:
        """Return the folder to walk for a change at `place`: the outermost skill around it, or itself."""
        parts = place.split("/") if place else []
        if any(part.startswith(".") for part in parts):
            return None
        if self._follow_links:
            return ""  # The target of a link, and other links to it, are known only from the whole tree.
        for count in range(len(parts) + 1):
            folder = "/".join(parts[:count])
            path = f"{self.root}/{folder}"
            if count > MAX_DEPTH:
                return None
            if count and Path(path).is_symlink():
                return (
                    "/".join(parts[: count - 1]) if count == len(parts) else self._start_through_link(place)
                )
            if folder in self._records or os.path.lexists(f"{path}/{SKILL_FILE}"):
                return folder
            if count and parts[count - 1] in SKIPPED_FOLDERS:
                return None
            if count < len(parts) and not os.path.lexists(path):
                return ""  # A parent was renamed or removed, so the place is not known.
        if parts and parts[-1].casefold() == SKILL_FILE.casefold():
            return "/".join(parts[:-1])
        return place

    def _start_through_link(self, place: str) -> str | None:
        """Return the same for a place whose path contains a link, as events may report it."""
        real = os.path.realpath(f"{self.root}/{place}")
        inner = real.removeprefix(f"{self.root}/")
        return None if inner in (real, place) else self.start_for(inner)

    def _scan_subtree(self, start: str, suspect: Collection[str] = ()) -> bool:
        """Walk and read one subtree; return whether anything that is published or reported differs."""
        if not start:
            self._check_root()
        walk = Walk(self.root, self._follow_links)
        fresh: dict[str, SkillRecord] = {}
        unsettled: set[str] = set()
        with Scanner(self.root, follow_links=self._follow_links) as scanner:
            for found in walk.finished(start):
                known = self._records.get(found.directory) or self._remembered.get(found.directory)
                if any(
                    _within(place, found.directory) or _within(found.directory, place) for place in suspect
                ):
                    known = None
                record = scanner.record(found, known)
                if not record.settled:
                    unsettled.add(found.directory)
                    logger.info("%s is being written; waiting until it settles", found.directory or ".")
                fresh[found.directory] = record
        if any(_within(folder, start) and folder not in fresh for folder in self._records):
            self._check_root()  # A root that was removed is empty, which must not unpublish its skills.
        self._keep_unsettled(fresh, unsettled)
        self.unsettled = frozenset(
            {place for place in self.unsettled if not _within(place, start)} | unsettled
        )
        changed = self._replace(start, fresh, walk.loose)
        return self._replace_empty(start, walk.empty) or changed

    def _keep_unsettled(self, fresh: dict[str, SkillRecord], unsettled: set[str]) -> None:
        """Restore the older record of each unsettled skill, and of all skills it shares files with.

        Nested skills list the same files, and must be consistent.
        """
        groups = {min((other for other in fresh if _within(place, other)), key=len) for place in unsettled}
        for folder in fresh:
            if any(_within(folder, group) for group in groups):
                fresh[folder] = self._records.get(folder, fresh[folder])

    def _check_root(self) -> None:
        try:
            os.scandir(self.root).close()
        except OSError as error:
            raise SourceError(f"the folder of skills cannot be read: {error.strerror}") from error

    def _replace(
        self, start: str, fresh: dict[str, SkillRecord], loose: Iterable[tuple[str, Finding]]
    ) -> bool:
        gone = [folder for folder in self._records if _within(folder, start)]
        publications = publish(fresh.values(), self._mount, self.root.rpartition("/")[2], self._publications)
        before = {folder: self._publications.pop(folder) for folder in gone}
        popped = {folder: self._records.pop(folder) for folder in gone}
        known = popped if self._published else self._remembered
        if known.keys() != fresh.keys() or any(known[place] is not record for place, record in fresh.items()):
            self._unsaved = True
        self._records.update(fresh)
        self._publications.update(publications)
        old_loose = [item for item in self._loose if _within(item[0], start)]
        new_loose = list(loose)
        self._loose = [item for item in self._loose if not _within(item[0], start)] + new_loose
        return (
            old_loose != new_loose
            or before.keys() != publications.keys()
            or not all(before[folder].same_as(item) for folder, item in publications.items())
        )

    def _replace_empty(self, start: str, empty: Iterable[str]) -> bool:
        """Replace the empty folders of one subtree; return whether they changed."""
        before = self._empty
        kept = {folder for folder in before if not _within(folder, start)} if start and before else ()
        self._empty = frozenset(empty).union(kept)
        return self._empty != before


def _within(folder: str, start: str) -> bool:
    return not start or folder == start or folder.startswith(start + "/")


# Before a server is ready: how many skills there are at least, and those of a small folder.


def exceeds(folders: Iterable[Path], skills: int, directories: int, *, follow_links: bool) -> bool:
    """Return whether there are more skills or directories than these; False if a folder cannot be read."""
    try:
        for folder in folders:
            walk = Walk(os.path.realpath(folder), follow_links)
            for entered in walk.steps():
                if len(walk.skills) > skills or entered > directories:
                    return True
            skills, directories = skills - len(walk.skills), directories - walk.directories
    except (SourceError, OSError):
        return False
    return False


def preview_tree(folder: Path, *, prefix: str, follow_links: bool) -> SkillTree:
    """Return the tree of a folder that is scanned once and then again by a source, which writes the index.

    Raises:
        InvalidUriError: `prefix` cannot be part of a URI.
    """
    root = os.path.realpath(folder)
    mount = MountPoint.make(DEFAULT_SCHEME, prefix, None)
    return SkillTree(root, mount, follow_links=follow_links, index=_KnownRecords.for_root(root))


class _KnownRecords(ScanIndex):
    """The index of an earlier scan, which is only read."""

    def save(self, records: Iterable[SkillRecord]) -> None:
        pass
