"""`Views`: for each sight a server of its own, over one catalog that is opened once.

This is the one place where it is decided what a request can find. A view holds
what is in sight and nothing else, so every method of every dialect, the page,
the search and each notification answer from that, and what is out of sight
cannot be told from what does not exist.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

import anyio
import anyio.abc

from skillwire.errors import SkillError
from skillwire.server.access.insight import InSight, UnlistedInSight
from skillwire.server.access.sight import Sight
from skillwire.server.endpoint import Endpoint
from skillwire.server.scripts import Scripts
from skillwire.server.skills import Skills
from skillwire.server.standalone import Offer, Standalone
from skillwire.server.wellknown.serving import SiteApp
from skillwire.wire.dialect import Dialect

MOST_VIEWS: Final = 64
"""How many different sights are served at a time; the ones that rest longest make room."""

logger = logging.getLogger(__name__)


class TooManyViewsError(SkillError):
    """More different sights are in use than can be served at a time."""


class View:
    """What callers with one sight are served, for as long as it is open.

    `skills` is what the page shows, and `site` the web site of skills, with the
    dialect `well-known`.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.skills: Skills = endpoint.standalone.skills
        is_site = Dialect.WELL_KNOWN in self.skills.dialects
        self.site = SiteApp(self.skills) if is_site else None
        self._requests = 0
        self._closing = anyio.Event()

    @property
    def is_resting(self) -> bool:
        """Whether nobody is being answered."""
        return self._requests == 0

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Say that somebody is being answered meanwhile."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve until closed; a failure ends this view alone."""
        is_open = False
        try:
            async with self.endpoint.open():
                is_open = True
                task_status.started()
                await self._closing.wait()
                self.endpoint.end_streams()
        except Exception:
            if not is_open:
                raise  # Whoever asked for this view is told.
            logger.exception("a view of the skills ended by an unexpected failure")

    def close(self) -> None:
        self._closing.set()


class OneView:
    """The only view of a server that shows everyone the same."""

    def __init__(self, one: View) -> None:
        self.one = one
        self.skills = one.skills

    def __len__(self) -> int:
        return 1

    @property
    def sessions(self) -> int:
        """How many sessions older clients have."""
        return self.one.endpoint.sessions

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep it open meanwhile.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with self.one.endpoint.open():
            yield

    def known(self, sight: Sight) -> View:
        return self.one

    async def view(self, sight: Sight) -> View:
        return self.one

    def end_streams(self) -> None:
        self.one.endpoint.end_streams()


class Views:
    """The views of one offer, made when they are first asked for.

    `skills` is everything, for who counts and measures.
    """

    def __init__(
        self, offer: Offer, new_endpoint: Callable[[Standalone], Endpoint], *, most: int = MOST_VIEWS
    ) -> None:
        # No answer comes from here, so nothing needs to be made ready for one.
        self.skills = replace(offer, dialects=(), find_tool=False).skills()
        self._offer = offer
        self._new_endpoint = new_endpoint
        self._most = most
        self._views: OrderedDict[Sight, View] = OrderedDict()
        self._opening = anyio.Lock()
        self._group: anyio.abc.TaskGroup | None = None

    def __len__(self) -> int:
        return len(self._views)

    @property
    def sessions(self) -> int:
        """How many sessions older clients have."""
        return sum(view.endpoint.sessions for view in self._views.values())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep everything open meanwhile.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with self.skills.open(), anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                for view in self._views.values():
                    view.close()
                self._views.clear()
                self._group = None

    def known(self, sight: Sight) -> View | None:
        """Return the view of a sight, if there is one already."""
        view = self._views.get(sight)
        if view is not None:
            self._views.move_to_end(sight)
        return view

    async def view(self, sight: Sight) -> View:
        """Return the view of a sight, and make it if need be.

        Raises:
            TooManyViewsError: All that can be served at a time are in use.
        """
        view = self.known(sight)
        if view is not None:
            return view
        async with self._opening:
            view = self.known(sight)
            if view is None:
                self._make_room()
                view = View(self._new_endpoint(Standalone(self._offer, self._part(sight))))
                assert self._group is not None, "asked only while open"
                await self._group.start(self._run, sight, view)
                self._views[sight] = view
        return view

    def end_streams(self) -> None:
        """End the streams that would otherwise stay open for as long as their clients do."""
        for view in self._views.values():
            view.endpoint.end_streams()

    async def _run(self, sight: Sight, view: View, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            await view.run(task_status=task_status)
        finally:
            if self._views.get(sight) is view:
                del self._views[sight]  # It failed; who asks next gets another.

    def _part(self, sight: Sight) -> Skills:
        catalog, scripts = self.skills.catalog, self.skills.scripts
        runner = None if scripts is None or not sight.runs else scripts.runner
        runs = None if runner is None else Scripts(runner, may_run=sight.may_run)
        listed = InSight(catalog, sight)
        if not self.skills.has_unlisted:
            return self._offer.part([listed], runs)
        return self._offer.part([listed, UnlistedInSight(catalog, sight)], runs)

    def _make_room(self) -> None:
        if len(self._views) < self._most:
            return
        resting = next((sight for sight, view in self._views.items() if view.is_resting), None)
        if resting is None:
            raise TooManyViewsError("too many callers with different rights are served at this moment")
        self._views.pop(resting).close()
