"""Putting together what all origins hold, as one view of it."""

from collections.abc import Collection, Iterator
from contextlib import nullcontext

from skillwire.host.refusals import Refusal
from skillwire.host.registry.aftermath import Aftermath
from skillwire.host.registry.local import LocalScan
from skillwire.host.registry.lookalikes import Lookalikes
from skillwire.host.registry.served import Served
from skillwire.host.registry.view import RegistryView, ServerStatus, view_of
from skillwire.sources.garbage import collector_paused

MANY = 1000
"""From so many skills on, it pays to keep the collector of garbage out of the way."""


class Assembly:
    """Remembers from one view to the next which local skills were there, and which names are alike."""

    def __init__(self) -> None:
        self.aftermath = Aftermath()
        self._lookalikes = Lookalikes()

    def view(
        self,
        revision: int,
        scan: LocalScan,
        origins: Collection[Served],
        servers: tuple[ServerStatus, ...],
    ) -> RegistryView:
        """Return all there is: local skills, and those of all servers."""
        skills = [skill for served in origins for skill in served.skills]
        with collector_paused() if len(skills) > MANY else nullcontext():
            return view_of(
                revision,
                [*scan.skills, *skills],
                [*scan.hidden, *(refusal for served in origins for refusal in served.hidden)],
                servers,
                templates=[template for served in origins for template in served.templates],
                changes=self._changes(origins),
                remarks=(remark for served in origins for remark in served.remarks),
                lookalikes=self._lookalikes,
            )

    def _changes(self, origins: Collection[Served]) -> Iterator[Refusal]:
        """Yield what became of skills that were there before, the user's own first."""
        yield from self.aftermath.notices()
        for served in origins:
            yield from served.aftermath.notices()
