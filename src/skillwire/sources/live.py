"""What sources with a snapshot have in common: answering from it, and waiting for the next."""

from collections.abc import AsyncIterator

import anyio

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.errors import SourceError
from skillwire.sources.snapshot import Snapshot


class SnapshotSource:
    """The part of a source that follows from its snapshot; a subclass publishes new ones.

    What it publishes is ready to be served: URIs are distinct, a skill's
    manifest lists the files of skills inside it, none is dynamic inside one
    that is not, and none exceeds a limit. A `Catalog` relies on that.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = snapshot
        self._changed = anyio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The state now. Answers taken from one snapshot agree with each other.

        Raises:
            SourceError: The source must be opened first.
        """
        if self._snapshot is None:
            raise SourceError("the source is not open; use it with `async with`")
        return self._snapshot

    async def wait_for_change(self, revision: int) -> Snapshot:
        """Return the snapshot once its revision is newer than `revision`."""
        while self.snapshot.revision <= revision:
            await self._changed.wait()
        return self.snapshot

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield the entries of the snapshot, sorted by URI."""
        for entry in self.snapshot.entries:
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry.

        Raises:
            NotFoundError: No skill is served there.
        """
        return self.snapshot.get(uri)

    def _replace_snapshot(self, snapshot: Snapshot) -> None:
        """Publish a snapshot, in one step, and wake who waits for it."""
        self._snapshot = snapshot
        self._changed.set()
        self._changed = anyio.Event()
