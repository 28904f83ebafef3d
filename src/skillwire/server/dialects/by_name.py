"""The `primitive` dialect on a server: skills by name, with arguments and dependencies."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

from skillwire.core import (
    Dialect,
    Finding,
    JsonDict,
    NotFoundError,
    SkillEntry,
    SkillUri,
    SourceError,
    links_in,
    quoted,
)
from skillwire.server.dialects.base import (
    ByNameDialectServer,
    Context,
    DialectSkills,
    as_json,
    check_arguments,
    fill_placeholders,
    render_instructions,
)
from skillwire.sources.background import LogFilter
from skillwire.sources.snapshot import Report, Snapshot
from skillwire.wire.by_name import FileNote, PrimitiveFile, PrimitiveItem, SkillDefinition, SkillDependencies
from skillwire.wire.core import GET_SKILL, LIST_RESOURCES, LIST_SKILLS, LIST_TEMPLATES, READ_RESOURCE

# Checks whether a server has the tools, prompts and resources that its skills depend on.


_SECONDS = 5.0
_MAX_PAGES = 50
_MAX_READS = 100

logger = logging.getLogger(__name__)


async def met_dependencies(
    server: Server[Any], context: Context, snapshot: Snapshot, needs: Mapping[SkillUri, SkillDependencies]
) -> dict[SkillUri, SkillDependencies] | None:
    """Return which dependencies of each skill the server offers to the caller in `context`.

    The server's own list methods are called; a resource that is in no list is
    read. Return None when they fail or take too long.
    """
    if not needs:
        return {}
    try:
        with anyio.fail_after(_SECONDS):
            features = _ServerFeatures(server, context, snapshot)
            return {uri: await features.met(need) for uri, need in needs.items()}
    except Exception:
        logger.warning("the dependencies of skills could not be checked", exc_info=True)
        return None


def missing_messages(need: SkillDependencies, met: SkillDependencies) -> list[str]:
    """Return one message for each dependency that is not met."""
    return [
        f"the server has no {kind} {quoted(name)}"
        for kind, wanted, found in (
            ("tool", need.tools, met.tools),
            ("prompt", need.prompts, met.prompts),
            ("resource", need.resources, met.resources),
        )
        for name in wanted
        if name not in found
    ]


class _ServerFeatures:
    """The tools, prompts and resources of a server for one caller, listed on demand and cached."""

    def __init__(self, server: Server[Any], context: Context, snapshot: Snapshot) -> None:
        self._server = server
        self._context = context
        self._snapshot = snapshot
        self._listed: dict[str, set[str]] = {}
        self._readable: dict[str, bool] = {}

    async def met(self, need: SkillDependencies) -> SkillDependencies:
        """Return the part of `need` that is offered."""
        tools = await self._names("tools/list", "tools") if need.tools else set[str]()
        prompts = await self._names("prompts/list", "prompts") if need.prompts else set[str]()
        return SkillDependencies(
            tools=tuple(name for name in need.tools if name in tools),
            prompts=tuple(name for name in need.prompts if name in prompts),
            resources=tuple([uri for uri in need.resources if await self._has_resource(uri)]),
        )

    async def _names(self, method: str, key: str, member: str = "name") -> set[str]:
        """Return the names, or another member, of all items of a list method."""
        found = self._listed.get(method)
        if found is None:
            found = self._listed[method] = await self._all_names(method, key, member)
        return found

    async def _all_names(self, method: str, key: str, member: str) -> set[str]:
        entry = self._server.get_request_handler(method)
        found: set[str] = set()
        cursor: str | None = None
        for _ in range(_MAX_PAGES if entry is not None else 0):
            assert entry is not None
            page = as_json(await entry.handler(self._context, types.PaginatedRequestParams(cursor=cursor)))
            found.update(item[member] for item in page[key])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return found

    async def _has_resource(self, uri: str) -> bool:
        """Return whether `uri` is a resource or a template; it is read only if no list has it."""
        try:
            self._snapshot.locate(uri)
            return True
        except NotFoundError:
            pass
        if uri in await self._names(LIST_TEMPLATES, "resourceTemplates", "uriTemplate"):
            return True
        if uri in await self._names(LIST_RESOURCES, "resources", "uri"):
            return True
        if uri not in self._readable:
            self._readable[uri] = len(self._readable) < _MAX_READS and await self._is_readable(uri)
        return self._readable[uri]

    async def _is_readable(self, uri: str) -> bool:
        entry = self._server.get_request_handler(READ_RESOURCE)
        if entry is None or re.search(r"[{}]", uri):
            return False
        try:
            await entry.handler(self._context, types.ReadResourceRequestParams(uri=uri))
        except Exception:
            return False
        return True


# The methods after which dependencies are checked: early, and with a caller.
_COMPARE_AFTER = frozenset({"notifications/initialized", "server/discover", LIST_SKILLS, GET_SKILL})


class Primitive(ByNameDialectServer):
    """SEP-2076: `skills/list` and `skills/get` by name.

    Instructions are the body of `SKILL.md`, with placeholders filled if the
    skill declares arguments, or the result of the author's render function.
    Files keep the URIs they have in the released extension, so a host that
    knows both can verify them (P2076-13).

    Only those dependencies are listed that the server offers to the caller
    (P2076-05). Others are logged, and are in `reports`.
    """

    dialect: ClassVar[Dialect] = Dialect.PRIMITIVE

    def __init__(self, skills: DialectSkills) -> None:
        super().__init__(skills)
        self._compared: Snapshot | None = None
        self._missing: list[Report] = []
        self._warnings = LogFilter()

    async def legacy_fields(self, context: Context, entries: Sequence[SkillEntry]) -> Sequence[JsonDict]:
        pairs = [(entry, self.declared(entry)) for entry in entries]
        needs = {entry.uri: declared.dependencies for entry, declared in pairs}
        met = await self._met(context, needs)
        return [
            PrimitiveItem(
                self.names.of(entry),
                title=declared.title,
                description=entry.frontmatter.description,
                version=declared.version,
                tags=declared.tags,
                icons=declared.icons,
                arguments=declared.arguments,
                dependencies=met.get(entry.uri, SkillDependencies()),
                meta=declared.meta or None,
            ).to_json()
            for entry, declared in pairs
        ]

    def entry_named(self, name: str) -> SkillEntry | None:
        return self.names.find(name)

    async def get_named(self, context: Context, entry: SkillEntry, arguments: object) -> JsonDict:
        """Answer `skills/get` by name.

        Raises:
            MCPError: The arguments are unusable, or a required one is missing (-32602).
            NotFoundError: The skill is no longer served.
            SourceError: It cannot be read, or its instructions cannot be rendered.
        """
        entry, document = await self.read_document(entry.uri)
        declared = self.declared(entry)
        values = check_arguments(arguments, declared.arguments)
        render = self.skills.renderers.get(entry.uri.text)
        if render is not None:
            instructions = await render_instructions(render, document.body, values, entry.uri.text)
        else:
            instructions = fill_placeholders(document.body, declared.arguments, values)
        met = await self._met(context, {entry.uri: declared.dependencies})
        definition = SkillDefinition(
            instructions,
            description=entry.frontmatter.description,
            dependencies=met.get(entry.uri, SkillDependencies()),
            files=self._files(entry, document.body, declared.files),
        ).to_json()
        describe = self.skills.answers.annotator.describe_other
        if "files" in definition:
            definition["files"] = [describe(file) for file in definition["files"]]
        return definition

    def _files(
        self, entry: SkillEntry, body: str, notes: Mapping[str, FileNote]
    ) -> tuple[PrimitiveFile, ...]:
        """Return a skill's supporting files with their declared names, titles and descriptions."""
        linked = {entry.uri.resolve(link.target) for link in links_in(body)}
        files: list[PrimitiveFile] = []
        taken: set[str] = set()
        for file in self.supporting_files(entry):
            note = notes.get(file.path, FileNote())
            declared = note.aliases[0] if note.aliases and note.aliases[0] not in taken else file.path
            taken.add(declared)
            files.append(
                PrimitiveFile(
                    declared,
                    file.uri,
                    title=note.title or None,
                    description=note.description or None,
                    media_type=file.media_type,
                    required=False if entry.uri.join(file.path) in linked else None,
                )
            )
        return tuple(files)

    async def _met(
        self, context: Context, needs: Mapping[SkillUri, SkillDependencies]
    ) -> Mapping[SkillUri, SkillDependencies]:
        """Return which dependencies are met; none when that is unknown."""
        declared = {uri: need for uri, need in needs.items() if need}
        if not declared or self.server is None:
            return {}
        return await met_dependencies(self.server, context, self.names.snapshot, declared) or {}

    async def after_message(self, context: Context) -> None:
        """Check the dependencies of skills once for each snapshot."""
        if context.method in _COMPARE_AFTER and self.server is not None:
            try:
                await self._compare(self.server, context)
            except SourceError:
                pass  # The skills are closed.

    async def _compare(self, server: Server[Any], context: Context) -> None:
        snapshot = self.names.snapshot
        if self._compared is snapshot:
            return
        self._compared = snapshot
        declared = {entry.uri: self.declared(entry).dependencies for entry in snapshot.entries}
        needs = {uri: dependencies for uri, dependencies in declared.items() if dependencies}
        met = await met_dependencies(server, context, snapshot, needs)
        if met is None and context.request_id is None:
            self._compared = None  # Not every server can answer this early.
        self._missing = [
            Report(uri.text, tuple(Finding("dependency-missing", message) for message in messages), uri)
            for uri, found in (met or {}).items()
            if (messages := missing_messages(needs[uri], found))
        ]
        self._log_reports()

    def reports(self) -> list[Report]:
        """Return findings about declarations, and the dependencies that are known to be missing."""
        served = self.names.snapshot.by_uri
        return [*super().reports(), *(report for report in self._missing if report.place in served)]

    def _log_reports(self) -> None:
        for report in self.reports():
            for finding in report.findings:
                if self._warnings.admits(report.place, finding.message):
                    logger.warning("%s: %s", report.place, finding.message)
