"""What a place skills come from must be able to do."""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.sources.snapshot import Snapshot


class Source(Protocol):
    """A place skills come from. Three methods are enough.

    Three more are asked for where a source has them, all about a skill it
    publishes: `place_of(uri: SkillUri) -> str` says where it comes from, for
    people who run the server, `modified_at(uri: SkillUri) -> float | None`
    when its `SKILL.md` was last modified, in POSIX seconds, and
    `order_of(uri: SkillUri) -> Sequence[str]` in which order its author put its
    supporting files, by their paths.
    """

    def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield the entries this source publishes, sorted by URI."""
        ...

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry, listed or not.

        Raises:
            NotFoundError: This source serves no such skill.
        """
        ...

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a file of any skill this source serves.

        They match the digest in the entry that `get_skill` returns at this
        moment, or the skill is dynamic.

        Raises:
            NotFoundError: This source serves no such file.
            SourceError: The file is there and cannot be read as published.
        """
        ...


@runtime_checkable
class LiveSource(Source, Protocol):
    """A source whose whole state is a snapshot that is replaced when something changes."""

    @property
    def snapshot(self) -> Snapshot:
        """The state now. Answers taken from one snapshot agree with each other."""
        ...

    async def wait_for_change(self, revision: int) -> Snapshot:
        """Return the snapshot once its revision is newer than `revision`."""
        ...
