"""`Skills`: the skills of one server, from where they come from to the answers about them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import anyio

from skillwire.core.finding import Severity
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidSkillError, SkillError, SourceError
from skillwire.server.answers import Answers, Terms
from skillwire.server.changes import Announcer
from skillwire.server.dialects.compat import Compat
from skillwire.server.dialects.prompts import Prompts
from skillwire.server.dialects.rendering import Render
from skillwire.server.dialects.speaking import chosen, speakers
from skillwire.server.find_tool import FindTool
from skillwire.server.listing import EVERYTHING_LISTED, Listing
from skillwire.server.notes import NO_NOTES, Notes
from skillwire.server.scripts import RunsScripts, Scripts
from skillwire.server.search import SkillSearch, require_fts5
from skillwire.server.served_folder import ServedFolder
from skillwire.sources import (
    Catalog,
    DirectorySource,
    DynamicSkill,
    LiveSource,
    MemorySource,
    PackageSource,
    Report,
    Source,
)
from skillwire.wire.dialect import Dialect

logger = logging.getLogger(__name__)

Origin: TypeAlias = str | Path | Traversable | Source | Skill | DynamicSkill
"""Where skills come from: a folder, a package's data, a source, or a skill built in code."""

Folder = TypeVar("Folder", bound=Callable[[], str | Path])
Renderer = TypeVar("Renderer", bound=Render)


class Skills:
    """The skills a server publishes. `add_skills` returns it; more can be added.

    Folders and sources are opened when the server starts and closed when it
    stops, so they must be added before. Skills built in code come and go at
    any time.
    """

    def __init__(
        self,
        origins: Iterable[Origin] = (),
        *,
        terms: Terms,
        prefix: str = "",
        watch: bool = True,
        strict: bool = False,
        follow_links: bool = False,
        dialects: Iterable[str] = (),
        notes: Notes = NO_NOTES,
        find_tool: bool = False,
        scripts: Scripts | RunsScripts | None = None,
        listing: Listing = EVERYTHING_LISTED,
    ) -> None:
        self.terms = terms
        self.notes = notes
        self.search = SkillSearch()
        self.find_tool = FindTool(self) if find_tool else None
        self.scripts = scripts if scripts is None or isinstance(scripts, Scripts) else Scripts(scripts)
        # Only this dialect has a method to run them with.
        self.dialects = chosen(dialects if scripts is None else (*dialects, Dialect.EXEC))
        self.compat: tuple[Compat, ...] = speakers(self.dialects, self)
        self.announcer = Announcer(
            methods=[method for compat in self.compat for method in compat.notifications()],
            resources=[uri for compat in self.compat for uri in compat.changed_resources()],
            events=[event for compat in self.compat for event in compat.events()],
        )
        self.renderers: dict[str, Render] = {}
        self._prefix = prefix
        self._watch = watch
        self._strict = strict
        self._follow_links = follow_links
        self._built = MemorySource()
        self._listing = listing
        self._unlisted: set[str] = set()
        self._sources: list[Source] = [self._built]
        self._mounted: list[tuple[str, Callable[[], str | Path]]] = []
        self._answers: Answers | None = None
        self._users = 0
        self._owner: asyncio.Task[None] | None = None
        self._opening = anyio.Lock()
        self._closing = anyio.Event()
        self.add(*origins)

    def add(self, *origins: Origin, prompt: str | None = None, listed: bool = True) -> None:
        """Publish more skills, all or none.

        With `prompt`, the one skill built in code that is added is also a
        prompt of that name, with the text of all its files.

            skills.add(code_mode, prompt="start_code_mode")

        Skills built in code that are not `listed` are in no listing, and are
        served to whoever knows or finds them. For folders, see `Listing`.

        Raises:
            DuplicateSkillError: Two skills built in code would share a URI.
            InvalidSkillError: A rule of the format is broken, or no prompt may have that name.
            SkillError: A folder or source came after the server had started, or
                the first prompt did; or `prompt` is given for anything but one
                skill built in code, or `listed` for anything but such skills.
        """
        if prompt is not None:
            self._add_with_prompt(origins, prompt, listed)
            return
        built = [origin for origin in origins if isinstance(origin, Skill | DynamicSkill)]
        others = [origin for origin in origins if not isinstance(origin, Skill | DynamicSkill)]
        if others:
            self._refuse_when_open()
        if others and not listed:
            raise SkillError(
                "only skills built in code can be added unlisted",
                fix="leave places of a folder out of listings with Listing(unlisted=…)",
            )
        sources = [self._source_of(origin) for origin in others]
        fresh = set[str]() if listed else {skill.uri.text for skill in built} - self._unlisted
        # Before they are there, so that they are never listed, not even for a moment.
        self._unlisted |= fresh
        try:
            self._built.add(*built)
        except BaseException:
            self._unlisted -= fresh
            raise
        self._sources += sources

    def add_directory(self, uri: str, folder: str | Path) -> None:
        """Serve a folder that is no skill, so that clients can walk it as they walk skills.

            add_skills(server).add_directory("docs://handbook", "handbook/")

        Its files are resources below `uri`, and its folders directories. Links,
        and names that begin with a dot, are left out. Nothing in it is a skill.

        Raises:
            InvalidUriError: `uri` cannot be the URI of a directory.
            SourceError: There is no such folder.
        """
        self.compat = (*self.compat, ServedFolder(self, uri, folder))

    def remove(self, uri: SkillUri) -> None:
        """Stop publishing a skill that was built in code.

        Raises:
            NotFoundError: There is no such skill.
        """
        self._built.remove(uri)
        self._unlisted.discard(uri.text)
        if self.prompts is not None:
            self.prompts.forget(uri.text)

    def skill(self, path: str, *, prompt: str | None = None) -> Callable[[Folder], Folder]:
        """Publish the folder that the decorated function returns, as the skill at `path`.

            @skills.skill("acme/billing/refunds")
            def refunds() -> Path:
                return Path(__file__).parent / "refunds"

        The function is called when the server starts. The path's last segment
        must be the skill's name. With `prompt`, the skill is also a prompt of
        that name.

        Raises:
            InvalidUriError: The path cannot be part of a URI.
            InvalidSkillError: No prompt may have that name.
        """
        uri = SkillUri.build(path)

        def publish(function: Folder) -> Folder:
            self._refuse_when_open()
            if prompt is not None:
                self._serve_prompt(self.prompts or self._new_prompts(), uri.text, prompt)
            self._mounted.append((path, function))
            return function

        return publish

    def renderer(self, path: str) -> Callable[[Renderer], Renderer]:
        """Let the decorated function make the instructions that the dialect `primitive` gives for a skill.

            @skills.renderer("acme/billing/invoice-fill")
            def render(body: str, arguments: Mapping[str, str]) -> str:
                return body.replace("REGION", arguments.get("region", "eu"))

        It gets the body of `SKILL.md` and all arguments that the client sent;
        those that the skill declares as required are there. `SKILL.md` itself
        stays as it is for everybody.

        Raises:
            InvalidUriError: The path cannot be part of a URI.
        """
        uri = SkillUri.build(path)

        def use(function: Renderer) -> Renderer:
            self.renderers[uri.text] = function
            return function

        return use

    @property
    def reports(self) -> tuple[Report, ...]:
        """What there is to say about places and skills now: of the sources, and of older dialects.

        Raises:
            SourceError: The server is not running.
        """
        ours = [report for compat in self.compat for report in compat.reports()]
        return (*self.catalog.snapshot.reports, *ours)

    @property
    def answers(self) -> Answers:
        """Answers from what is published now.

        Raises:
            SourceError: The server is not running.
        """
        if self._answers is None:
            raise SourceError("the skills are not open; the server must be running")
        return self._answers

    @property
    def catalog(self) -> Catalog:
        """Everything that is published.

        Raises:
            SourceError: The server is not running.
        """
        return self.answers.catalog

    @property
    def state(self) -> object:
        """What answers depend on: an object that is replaced when anything changes; None when closed."""
        return None if self._answers is None else self._answers.catalog.snapshot

    @property
    def prompts(self) -> Prompts | None:
        """What serves skills as prompts, if anything does."""
        return next((compat for compat in self.compat if isinstance(compat, Prompts)), None)

    @property
    def is_known_by_name(self) -> bool:
        """Whether a dialect is spoken that knows skills by name, and so has other lists for its clients."""
        return any(compat.is_by_name for compat in self.compat)

    @property
    def has_unlisted(self) -> bool:
        """Whether a source may serve more than it lists."""
        return not all(isinstance(source, LiveSource) for source in self._sources)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Skills"]:
        """Open all sources for as long as anyone uses them.

        A server may serve several connections, each in a task of its own, that
        come and go in any order. So the sources belong to a task of their own.

        Raises:
            DuplicateSkillError: Two sources serve the same URI.
            SkillError: Skills are to be found by words, and this Python cannot do that.
            InvalidSkillError: With `strict`: something is not fit to be published.
            SourceError: A source cannot be opened.
        """
        async with self._opening:
            if self._users == 0:
                await self._start()
            self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._users == 0:
                self._closing.set()
                owner = cast(asyncio.Task[None], self._owner)
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([owner])

    async def _start(self) -> None:
        if self._owner is not None and not self._owner.done():
            await asyncio.wait([self._owner])
        self._closing = anyio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A task group would tie the sources to the task of whoever came first.
        self._owner = asyncio.create_task(self._own(ready, self._closing))
        try:
            await asyncio.shield(ready)
        except BaseException:
            self._closing.set()
            self._owner.cancel()
            await asyncio.wait([self._owner])
            raise

    async def _own(self, ready: "asyncio.Future[None]", closing: anyio.Event) -> None:
        try:
            if self.find_tool is not None:
                require_fts5()
            async with Catalog([*self._sources, *self._mounts()]) as catalog:
                self._review(catalog.snapshot.reports)
                self._answers = Answers(catalog, self.terms, self.notes, self._listing, self._unlisted)
                scripts = nullcontext() if self.scripts is None else self.scripts.open()
                async with scripts, anyio.create_task_group() as group:
                    group.start_soon(self.announcer.follow, catalog)
                    group.start_soon(self._prepare)
                    ready.set_result(None)
                    await closing.wait()
                    group.cancel_scope.cancel()
        except Exception as error:
            if ready.done():
                logger.exception("the skills were closed by an unexpected failure")
            else:
                ready.set_exception(error)
        finally:
            self._answers = None
            self.search.close()

    async def _prepare(self) -> None:
        for compat in self.compat:
            try:
                await compat.prepare()
            except Exception:
                logger.exception("%s is made ready when it is asked for", compat.dialect)

    def _mounts(self) -> list[Source]:
        return [
            DirectorySource(function(), at=path, watch=self._watch, follow_links=self._follow_links)
            for path, function in self._mounted
        ]

    def _add_with_prompt(self, origins: Sequence[Origin], name: str, listed: bool) -> None:
        if len(origins) != 1 or not isinstance(origins[0], Skill | DynamicSkill):
            raise SkillError(
                "a prompt has the text of one skill built in code",
                fix="add that skill alone; name a folder's prompt with skill(path, prompt=…), "
                "or serve all skills as prompts with the dialect prompt",
            )
        uri, prompts = origins[0].uri.text, self.prompts or self._new_prompts()
        prompts.check(uri, name)
        self.add(*origins, listed=listed)
        self._serve_prompt(prompts, uri, name)

    def _new_prompts(self) -> Prompts:
        if self._users:
            raise SkillError(
                "the first prompt of a skill must be added before the server starts",
                fix="add it earlier, or speak the dialect prompt",
            )
        return Prompts(self, is_for_all=False)

    def _serve_prompt(self, prompts: Prompts, uri: str, name: str) -> None:
        prompts.choose(uri, name)
        if prompts not in self.compat:
            self.compat = (*self.compat, prompts)
            self.announcer.also_tell(prompts.notifications(), prompts.events())

    def _source_of(self, origin: str | Path | Traversable | Source) -> Source:
        if isinstance(origin, str | Path):
            return DirectorySource(
                origin, prefix=self._prefix, watch=self._watch, follow_links=self._follow_links
            )
        if isinstance(origin, Traversable):
            return PackageSource(origin, prefix=self._prefix)
        if not all(hasattr(origin, method) for method in ("list_skills", "get_skill", "read_file")):
            raise TypeError(f"skills cannot come from a {type(origin).__name__}")
        return origin

    def _review(self, reports: Sequence[Report]) -> None:
        """Log what is not published; with `strict`, refuse to start instead."""
        for report in reports:
            for finding in report.findings:
                if report.uri is None or finding.is_error:
                    logger.warning("%s: %s", report.place, finding.message)
                elif finding.severity is Severity.WARNING:
                    logger.info("%s: %s", report.place, finding.message)
        broken = [report for report in reports if any(finding.is_error for finding in report.findings)]
        if self._strict and broken:
            places = ", ".join(report.place for report in broken)
            raise InvalidSkillError(
                f"not everything is fit to be published: {places}",
                fix="`skillwire validate` says what is wrong",
            )

    def _refuse_when_open(self) -> None:
        if self._users:
            raise SkillError(
                "folders and sources must be added before the server starts",
                fix="call add_skills, add or skill at import time, or add skills built in code",
            )
