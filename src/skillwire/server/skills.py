"""`Skills`: the skills of one server, with their sources, dialects and answers."""

import asyncio
import logging
import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    Dialect,
    FrontmatterError,
    InvalidSkillError,
    InvalidUriError,
    JsonDict,
    Severity,
    Skill,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    body_text,
    canonical_uri,
    media_type_of,
    parse_dialects,
    segment_of,
)
from skillwire.search.index import index_file
from skillwire.search.scores import Ranker
from skillwire.server.answers import Answers, FileContent, ResultSettings
from skillwire.server.changes import ChangeNotifier
from skillwire.server.dialects.base import DialectServer, DialectSkills, Render
from skillwire.server.dialects.by_name import Primitive
from skillwire.server.dialects.execute import Exec
from skillwire.server.dialects.index import IndexApril, IndexJune
from skillwire.server.dialects.prompts import Prompts
from skillwire.server.dialects.resources import ListMarch
from skillwire.server.find_tool import FindTool
from skillwire.server.meta import NO_ANNOTATIONS, MetaAnnotator
from skillwire.server.outputs import RunsScripts, Scripts
from skillwire.server.search import ServerSearch
from skillwire.server.visibility import EVERYTHING_LISTED, ListingRules, summary_of
from skillwire.sources.combined import CombinedSource, is_reserved
from skillwire.sources.directory.source import DirectorySource
from skillwire.sources.directory.walk import FolderReader
from skillwire.sources.memory import DynamicSkill, MemorySource
from skillwire.sources.package import PackageSource
from skillwire.sources.snapshot import LiveSource, Report, Source
from skillwire.wire.core import directory_resource, file_resource

MCP_DIALECTS: Final[dict[Dialect, type[DialectServer]]] = {
    Dialect.INDEX_JUNE: IndexJune,
    Dialect.INDEX_APRIL: IndexApril,
    Dialect.LIST_MARCH: ListMarch,
    Dialect.PRIMITIVE: Primitive,
    Dialect.EXEC: Exec,
    Dialect.PROMPT: Prompts,
}
"""The dialects over MCP. `well-known` is served over plain HTTP, by `HttpApp`."""


def build_dialect_servers(dialects: Iterable[Dialect], skills: DialectSkills) -> tuple[DialectServer, ...]:
    """Return a `DialectServer` for each dialect over MCP."""
    return tuple(MCP_DIALECTS[dialect](skills) for dialect in dialects if dialect in MCP_DIALECTS)


# `ServedFolder`: a folder that is not a skill, served with `resources/directory/read`.


MAX_CHILDREN: Final = 10_000
"""The maximum number of entries of one folder."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""The maximum size of a served file."""

Value = TypeVar("Value")


class ServedFolder(DialectServer):
    """A folder on disk as the directory at a URI, of any scheme.

    It is read for each request. No symbolic link is followed below the folder,
    even if it changes during a read. Names that begin with a dot or cannot be
    part of a URI are left out.
    """

    dialect: ClassVar[Dialect] = Dialect.CORE

    def __init__(self, skills: DialectSkills, uri: str, folder: str | Path) -> None:
        super().__init__(skills)
        # The rules for paths inside a skill are those for paths inside any directory.
        self._root = SkillUri.parse(f"{uri}/{SKILL_FILE}")
        self._folder = os.path.realpath(folder)
        if not Path(self._folder).is_dir():
            raise SourceError("there is no folder to serve", fix="check the path")

    def resources(self) -> Sequence[JsonDict]:
        name = segment_of(self._root.root)
        described = {"title": name, "description": "A directory of files that can be listed and read."}
        return [{**directory_resource(self._root.root), **described}]

    async def children(self, uri: str) -> Sequence[JsonDict] | None:
        path = self._path_of(uri)
        return None if path is None else await self._with_reader(lambda reader: self._list(reader, path))

    async def read(self, uri: str) -> FileContent | None:
        path = self._path_of(uri)
        content = await self._with_reader(lambda reader: self._read(reader, path)) if path else None
        if path is None or content is None:
            return None
        return FileContent(uri, media_type_of(path), content, "")

    def _path_of(self, uri: str) -> str | None:
        """Return the path inside the folder for a URI in any spelling; None when it is outside."""
        try:
            if canonical_uri(uri) == self._root.root:
                return ""
            path = self._root.relative_path(uri)
        except InvalidUriError:
            return None
        return None if any(part.startswith(".") for part in path.split("/")) else path

    async def _with_reader(self, use: Callable[[FolderReader], Value | None]) -> Value | None:
        def open_and_use() -> Value | None:
            try:
                with FolderReader(self._folder) as reader:
                    return use(reader)
            except OSError:
                return None  # It is gone, is of another type, or cannot be read.

        return await anyio.to_thread.run_sync(open_and_use)

    def _list(self, reader: FolderReader, path: str) -> list[JsonDict]:
        found: list[JsonDict] = []
        for name, status in reader.names(path, MAX_CHILDREN):
            if name.startswith("."):
                continue
            try:
                uri = self._root.join(f"{path}/{name}" if path else name)
            except InvalidUriError:
                continue
            if stat.S_ISDIR(status.st_mode):
                found.append(directory_resource(uri))
            elif stat.S_ISREG(status.st_mode):
                found.append(file_resource(uri, media_type=media_type_of(name), size=status.st_size))
        return sorted(found, key=lambda resource: resource["uri"])

    def _read(self, reader: FolderReader, path: str) -> bytes | None:
        folder, _, name = path.rpartition("/")
        # Only an estimate for the buffer: the file may be replaced before it is read.
        size = os.lstat(f"{self._folder}/{path}").st_size
        content, status = reader.read(folder, name, min(size, MAX_FILE_BYTES))
        return content if len(content) == status.st_size <= MAX_FILE_BYTES else None


logger = logging.getLogger(__name__)

Origin: TypeAlias = str | Path | Traversable | Source | Skill | DynamicSkill
"""Where skills come from: a folder, a package's data, a source, or a skill built in code."""

Folder = TypeVar("Folder", bound=Callable[[], str | Path])
Renderer = TypeVar("Renderer", bound=Render)


class Skills:
    """The skills a server publishes. `add_skills` returns it; more can be added.

    Folders and sources are opened when the server starts and closed when it
    stops, so they must be added before. Skills built in code can be added and
    removed at any time.
    """

    def __init__(
        self,
        origins: Iterable[Origin] = (),
        *,
        result_settings: ResultSettings,
        prefix: str = "",
        watch: bool = True,
        strict: bool = False,
        follow_links: bool = False,
        dialects: Iterable[str] = (),
        annotator: MetaAnnotator = NO_ANNOTATIONS,
        find_tool: bool = False,
        ranker: Ranker | None = None,
        scripts: "Scripts | RunsScripts | None" = None,
        listing: ListingRules = EVERYTHING_LISTED,
        instructions: bool | str = False,
        search: ServerSearch | None = None,
    ) -> None:
        self.result_settings = result_settings
        self.annotator = annotator
        self.search = search or ServerSearch(self._body_of, ranker=ranker)
        self._owns_search = search is None
        self.find_tool = FindTool(self) if find_tool else None
        self.scripts = scripts if scripts is None or isinstance(scripts, Scripts) else Scripts(scripts)
        # Only this dialect has a method to run scripts.
        self.dialects = parse_dialects(dialects if scripts is None else (*dialects, Dialect.EXEC))
        self.dialect_servers: tuple[DialectServer, ...] = build_dialect_servers(self.dialects, self)
        self.announcer = ChangeNotifier(
            methods=[method for dialect in self.dialect_servers for method in dialect.notifications()],
            resources=[uri for dialect in self.dialect_servers for uri in dialect.changed_resources()],
            events=[event for dialect in self.dialect_servers for event in dialect.events()],
        )
        self.renderers: dict[str, Render] = {}
        self._prefix = prefix
        self._watch = watch
        self._strict = strict
        self._follow_links = follow_links
        self._built = MemorySource()
        self._listing = listing
        self._instructions = instructions
        self._summary: tuple[object, str] = (None, "")
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

        Skills built in code that are not `listed` are in no listing; they can be
        read by URI and found by search. For folders, see `ListingRules`.

        Raises:
            DuplicateSkillError: Two skills built in code would share a URI.
            InvalidSkillError: A skill is invalid, or the prompt name is.
            SkillError: A folder, a source or the first prompt was added after the
                server had started; or `prompt` is not for exactly one skill built
                in code, or `listed` is false for a folder or source.
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
                fix="leave paths of a folder out of listings with ListingRules(unlisted=…)",
            )
        self._require_free(*(skill.uri.text for skill in built))
        sources = [self._source_of(origin) for origin in others]
        fresh = set[str]() if listed else {skill.uri.text for skill in built} - self._unlisted
        # Before they are added, so that they are never listed.
        self._unlisted |= fresh
        try:
            self._built.add(*built)
        except BaseException:
            self._unlisted -= fresh
            raise
        self._sources += sources

    def add_directory(self, uri: str, folder: str | Path) -> None:
        """Serve a folder that is not a skill, with the same methods as skills.

            add_skills(server).add_directory("docs://handbook", "handbook/")

        Its files are resources below `uri`, and its folders directories. Links,
        and names that begin with a dot, are left out. It contains no skills.

        Raises:
            InvalidUriError: `uri` cannot be the URI of a directory.
            InvalidSkillError: A served dialect reserves the URI.
            SourceError: There is no such folder.
        """
        self._require_free(uri)
        self.dialect_servers = (*self.dialect_servers, ServedFolder(self, uri, folder))

    def remove(self, uri: SkillUri) -> None:
        """Stop publishing a skill that was built in code.

        Raises:
            NotFoundError: There is no such skill.
        """
        self._built.remove(uri)
        self._unlisted.discard(uri.text)
        if self.prompts is not None:
            self.prompts.remove_name(uri.text)

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
            InvalidSkillError: The prompt name is invalid.
        """
        uri = SkillUri.build(path)
        self._require_free(uri.text)

        def publish(function: Folder) -> Folder:
            self._refuse_when_open()
            if prompt is not None:
                self._serve_prompt(self.prompts or self._new_prompts(), uri.text, prompt)
            self._mounted.append((path, function))
            return function

        return publish

    def renderer(self, path: str) -> Callable[[Renderer], Renderer]:
        """Use the decorated function to render the instructions of a skill in the dialect `primitive`.

            @skills.renderer("acme/billing/invoice-fill")
            def render(body: str, arguments: Mapping[str, str]) -> str:
                return body.replace("REGION", arguments.get("region", "eu"))

        It gets the body of `SKILL.md` and all arguments that the client sent,
        including all required ones. `SKILL.md` itself does not change.

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
        """Current reports about files and skills, from the sources and older dialects.

        Raises:
            SourceError: The server is not running.
        """
        ours = [report for dialect in self.dialect_servers for report in dialect.reports()]
        return (*self.source.snapshot.reports, *ours)

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
    def cached_bytes(self) -> int:
        """The size of the cached answers of all dialects and of the outputs of scripts in bytes.

        Raises:
            SourceError: The server is not running.
        """
        outputs = 0 if self.scripts is None else self.scripts.outputs.size
        return self.answers.cached_bytes + outputs + sum(one.cached_bytes for one in self.dialect_servers)

    @property
    def source(self) -> CombinedSource:
        """Everything that is published.

        Raises:
            SourceError: The server is not running.
        """
        return self.answers.source

    async def catch_up(self) -> None:
        """Serve what sources that are shared with other processes contain at this moment."""
        if self._answers is not None:
            await self._answers.source.catch_up()

    @property
    def is_shared(self) -> bool:
        """Whether a source is shared with other processes, so that `catch_up` comes before an answer."""
        return any(getattr(source, "catch_up", None) is not None for source in self._sources)

    @property
    def state(self) -> object:
        """The object that answers depend on, replaced with every change; None when closed."""
        return None if self._answers is None else self._answers.source.snapshot

    def summary(self) -> str:
        """Return the summary of the listed skills for the server's instructions, or an empty text."""
        if isinstance(self._instructions, str):
            return self._instructions
        if not self._instructions or self._answers is None:
            return ""
        listed = self._answers.listing.entries
        if self._summary[0] is not listed:
            self._summary = listed, summary_of(listed, has_find_tool=self.find_tool is not None)
        return self._summary[1]

    @property
    def prompts(self) -> Prompts | None:
        """The dialect server for prompts, if any."""
        return next((dialect for dialect in self.dialect_servers if isinstance(dialect, Prompts)), None)

    @property
    def has_by_name_dialect(self) -> bool:
        """Whether a served dialect identifies skills by name and has its own list members."""
        return any(dialect.is_by_name for dialect in self.dialect_servers)

    @property
    def has_unlisted(self) -> bool:
        """Whether a source may serve more than it lists."""
        return not all(isinstance(source, LiveSource) for source in self._sources)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Skills"]:
        """Open all sources while at least one context is open.

        A server may serve several connections, each in its own task, that open
        and close in any order. So the sources are owned by a separate task.

        Raises:
            DuplicateSkillError: Two sources serve the same URI.
            InvalidSkillError: With `strict`, a skill is invalid.
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
        # A task group would tie the sources to the task of the first connection.
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
            sources = [*self._sources, *self._mounts()]
            async with CombinedSource(sources, reserved=self._reserved) as catalog:
                self._log_reports(catalog.snapshot.reports)
                if self._owns_search:
                    self.search.use_file(index_file(catalog.cache_key))
                self._answers = Answers(
                    catalog, self.result_settings, self.annotator, self._listing, self._unlisted
                )
                scripts = nullcontext() if self.scripts is None else self.scripts.open()
                async with scripts, anyio.create_task_group() as group:
                    group.start_soon(self.announcer.follow, catalog)
                    if self._owns_search and catalog.snapshot.is_stored:
                        group.start_soon(self.search.updates(catalog, self._read_body).run)
                    group.start_soon(self._prepare)
                    ready.set_result(None)
                    await closing.wait()
                    if self._owns_search:
                        self.search.stop()
                    group.cancel_scope.cancel()
        except Exception as error:
            if ready.done():
                logger.exception("the skills were closed by an unexpected error")
            else:
                ready.set_exception(error)
        finally:
            self._answers = None
            if self._owns_search:
                self.search.close()

    def _body_of(self, entry: SkillEntry) -> str | None:
        """Return the instructions of a skill, None if they cannot be read at once."""
        line = entry.manifest.find(entry.uri.text) if entry.manifest is not None else None
        if line is None:
            return ""
        content = None if self._answers is None else self._answers.source.read_now(entry, line)
        return None if content is None else _body_in(content)

    async def _read_body(self, entry: SkillEntry) -> str | None:
        """Return the instructions of a skill of a catalog, None if they cannot be read at the moment."""
        try:
            return _body_in(await self.source.read_file(entry.uri.text))
        except SkillError as error:
            logger.info("%s is searched without its instructions: %s", entry.uri, error)
            return None

    async def _prepare(self) -> None:
        if self.find_tool is not None:
            await self._prepare_search()
        for server in self.dialect_servers:
            try:
                await server.prepare()
            except Exception:
                logger.exception("%s could not be prepared; it is built on request", server.dialect)

    async def _prepare_search(self) -> None:
        try:
            await self.search.prepare(self.answers.source.snapshot)
        except SkillError as error:
            logger.warning("the search index could not be built; the next search tries again: %s", error)

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
        prompts.check_name(uri, name)
        self.add(*origins, listed=listed)
        self._serve_prompt(prompts, uri, name)

    def _new_prompts(self) -> Prompts:
        if self._users:
            raise SkillError(
                "the first prompt of a skill must be added before the server starts",
                fix="add it earlier, or serve the dialect prompt",
            )
        return Prompts(self, is_for_all=False)

    def _serve_prompt(self, prompts: Prompts, uri: str, name: str) -> None:
        prompts.set_name(uri, name)
        if prompts not in self.dialect_servers:
            self.dialect_servers = (*self.dialect_servers, prompts)
            self.announcer.add_notifications(prompts.notifications(), prompts.events())

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

    def _log_reports(self, reports: Sequence[Report]) -> None:
        """Log skills that are not published; with `strict`, raise if there are any."""
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
                f"some skills cannot be published: {places}",
                fix="run `skillwire validate` for details",
            )

    @property
    def _reserved(self) -> list[str]:
        return [uri for dialect in self.dialect_servers for uri in dialect.reserved()]

    def _require_free(self, *uris: str) -> None:
        """Check that no dialect reserves these URIs.

        Raises:
            InvalidSkillError: One does.
        """
        for uri in uris:
            if is_reserved(uri, self._reserved):
                raise InvalidSkillError(
                    f"{uri} cannot be served: a served dialect reserves this URI for its index",
                    fix="choose another path, or do not serve that dialect",
                )

    def _refuse_when_open(self) -> None:
        if self._users:
            raise SkillError(
                "folders and sources must be added before the server starts",
                fix="call add_skills, add or skill at import time, or add skills built in code",
            )


def _body_in(content: bytes) -> str:
    try:
        return body_text(content)
    except FrontmatterError:
        return ""
