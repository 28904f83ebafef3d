"""`SkillTree`: the records of one folder, brought up to date a part at a time."""

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from skillwire.core.finding import Finding
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import SourceError
from skillwire.sources.garbage import collector_paused
from skillwire.sources.index import ScanIndex
from skillwire.sources.publish import Mount, Publication, Published, combine, publish
from skillwire.sources.scan import Scanner, SkillRecord
from skillwire.sources.walk import MAX_DEPTH, SKIPPED_FOLDERS, Walk

logger = logging.getLogger(__name__)


class SkillTree:
    """Everything known about the skills below `root`; one thread at a time may call it.

    `scan` may be told which places changed. It then looks at no more than the
    skills around them, so an edit costs much the same in a catalog of any size.
    `revision` is the number of the snapshot before the first.
    """

    def __init__(
        self,
        root: str,
        mount: Mount,
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
        self._publications: dict[str, Publication] = {}
        self._loose: list[tuple[str, Finding]] = []
        self._empty: frozenset[str] = frozenset()
        self._published: Published | None = None
        self._revision = revision
        self._unsaved = False
        self._unpublished = False

    def scan(self, places: Sequence[str] | None = None, doubted: Collection[str] = ()) -> Published:
        """Bring the records up to date; the same object comes back when nothing differs.

        Folders whose files changed while they were read keep what they had,
        and are named in `unsettled`. Of the skills around and inside `doubted`
        folders every file is read, even where size, times and inode say that
        it is as it was.

        Raises:
            SourceError: The root itself cannot be read, or nothing can just now.
        """
        if self._published is None:
            with collector_paused():
                return self._scan_all()
        for start in self._starts(places):
            # Kept until it is published, because the next of the starts may fail.
            self._unpublished |= self._scan_subtree(start, doubted)
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
        """Turn changed places into the fewest folders that must be walked."""
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
            return ""  # Which folder a link leads to, and who else does, is known only from the whole tree.
        for count in range(len(parts) + 1):
            folder = "/".join(parts[:count])
            path = f"{self.root}/{folder}"
            if count > MAX_DEPTH:
                return None
            if count and Path(path).is_symlink():
                return "/".join(parts[: count - 1]) if count == len(parts) else self._behind_links(place)
            if folder in self._records or os.path.lexists(f"{path}/{SKILL_FILE}"):
                return folder
            if count and parts[count - 1] in SKIPPED_FOLDERS:
                return None
            if count < len(parts) and not os.path.lexists(path):
                return ""  # Where it happened has another name by now, or had one that is forgotten.
        if parts and parts[-1].casefold() == SKILL_FILE.casefold():
            return "/".join(parts[:-1])
        return place

    def _behind_links(self, place: str) -> str | None:
        """Do the same for a place that is named through a link, by which a watch may know its folder."""
        real = os.path.realpath(f"{self.root}/{place}")
        inner = real.removeprefix(f"{self.root}/")
        return None if inner in (real, place) else self.start_for(inner)

    def _scan_subtree(self, start: str, doubted: Collection[str] = ()) -> bool:
        """Walk and read one subtree; tell whether anything that is published or reported differs."""
        if not start:
            self._check_root()
        walk = Walk(self.root, self._follow_links)
        fresh: dict[str, SkillRecord] = {}
        unsettled: set[str] = set()
        with Scanner(self.root, follow_links=self._follow_links) as scanner:
            for found in walk.finished(start):
                known = self._records.get(found.directory) or self._remembered.get(found.directory)
                if any(
                    _within(place, found.directory) or _within(found.directory, place) for place in doubted
                ):
                    known = None
                record = scanner.take(found, known)
                if not record.settled:
                    unsettled.add(found.directory)
                    logger.info("%s is being written; it is taken when it settles", found.directory or ".")
                fresh[found.directory] = record
        if any(_within(folder, start) and folder not in fresh for folder in self._records):
            self._check_root()  # A root that was taken away holds nothing, and says nothing of what it held.
        self._keep_unsettled(fresh, unsettled)
        self.unsettled = frozenset(
            {place for place in self.unsettled if not _within(place, start)} | unsettled
        )
        changed = self._replace(start, fresh, walk.loose)
        return self._replace_empty(start, walk.empty) or changed

    def _keep_unsettled(self, fresh: dict[str, SkillRecord], unsettled: set[str]) -> None:
        """Go back to the older record of each unsettled skill, and of all skills it shares files with.

        Skills inside each other list the same files, and must not disagree about them.
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
            or not all(before[folder].says_the_same_as(item) for folder, item in publications.items())
        )

    def _replace_empty(self, start: str, empty: Iterable[str]) -> bool:
        """Take over the empty folders of one subtree; tell whether they are others than before."""
        before = self._empty
        kept = {folder for folder in before if not _within(folder, start)} if start and before else ()
        self._empty = frozenset(empty).union(kept)
        return self._empty != before


def _within(folder: str, start: str) -> bool:
    return not start or folder == start or folder.startswith(start + "/")
