"""The `exec` dialect on a server: skills by name, their files and, if enabled, their scripts."""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from skillwire.core import (
    INTERNAL_ERROR,
    Dialect,
    Finding,
    Frontmatter,
    InvalidScriptArgumentsError,
    JsonDict,
    JsonValue,
    LimitError,
    NotFoundError,
    RunnerBusyError,
    RunnerError,
    SandboxUnavailableError,
    ScriptNotFoundError,
    SkillEntry,
    SourceError,
    VerificationError,
    last_segment,
    matching,
    quoted,
)
from skillwire.runner import (
    Outcome,
    RunSlot,
    ScriptInterface,
    ScriptRun,
    find_script,
    interfaces_of,
    prepare,
    scripts_of,
)
from skillwire.server.changes import connection_of
from skillwire.server.dialects.base import Binding, ByNameDialectServer, Context, SupportingFile, is_modern
from skillwire.server.messages import escaped_error_data, invalid_params, peer_error, wire_errors
from skillwire.server.outputs import Scripts, caller_of, limit_error, result_of
from skillwire.sources.combined import CombinedSource
from skillwire.wire.by_name import PREFIX, FileNote, file_notes
from skillwire.wire.core import FILE_PRIORITY, skill_resource
from skillwire.wire.execute import (
    CAPABILITY,
    EXECUTE_METHOD,
    READ_METHOD,
    READ_REFERENCE_METHOD,
    REFERENCE_NOT_FOUND,
    SCRIPTS,
    SKILL_NOT_FOUND,
    Annotations,
    ExecFile,
    ExecItem,
    ExecSkill,
    ReferenceContent,
)

# `skills/execute`: one request, from finding the script to its result.


if TYPE_CHECKING:
    from skillwire.runner import Runner

_ATTEMPTS = 3
_MAX_CANDIDATES = 10
_PROGRESS_SECONDS = 1.0
_NOTIFY_SECONDS = 5.0


class ExecuteRequestParams(types.RequestParams):
    """Accepts any value, so that the handler can return its own error message."""

    name: Any = None
    script: Any = None
    arguments: Any = None

    @property
    def given(self) -> object:
        """The arguments, or an empty object."""
        return self.arguments if "arguments" in self.model_fields_set else {}


@dataclass(frozen=True, slots=True)
class Execution:
    """The run of a script for one request.

    `name` is the client's name of the skill, `aliases` are the other names of
    its scripts, by path, and `slot` was reserved in the runner before any file was read.
    """

    scripts: Scripts
    catalog: CombinedSource
    name: str
    aliases: Mapping[str, Sequence[str]]
    slot: RunSlot

    async def result(self, context: Context, entry: SkillEntry, params: ExecuteRequestParams) -> JsonDict:
        """Run the script and return the result.

        Raises:
            MCPError: A limit stopped it.
            RunnerError: It could not be run.
            ScriptNotFoundError: The skill has no such script.
            InvalidScriptArgumentsError: The arguments are invalid.
            NotFoundError: The skill is no longer served.
            SourceError: It keeps changing, or cannot be read.
        """
        runner = self.scripts.required_runner()
        run = await self._prepare(runner, entry, params)
        outcome = await _run_with_progress(context, runner, run, self.slot)
        if outcome.limit is not None:
            raise limit_error(outcome, outcome.limit, {"name": self.name, "script": run.script})
        return result_of(outcome, self.scripts.outputs, caller_of(context))

    async def _prepare(self, runner: "Runner", entry: SkillEntry, params: ExecuteRequestParams) -> ScriptRun:
        """Read the skill as it is listed; if it changed meanwhile, read it again."""
        for _ in range(_ATTEMPTS):
            entry = self.catalog.snapshot.get(entry.uri)
            path = find_script(scripts_of(entry), params.script, self.aliases)
            if not runner.has_interpreter(path):
                raise RunnerError(f"there is no interpreter for {quoted(path)}", script=path)
            try:
                return await prepare(entry, path, params.given, self.catalog.read_file)
            except (VerificationError, NotFoundError):
                await self.catalog.refresh()
        raise SourceError(f"{entry.uri} is changing and cannot be run as published")


async def _run_with_progress(context: Context, runner: "Runner", run: ScriptRun, slot: RunSlot) -> Outcome:
    """Run a script, and send progress every second if the client asked for it."""
    limits = runner.policy.limits.with_requested(run.interface.limits, runner.policy.most)
    start, outcome, failure = time.monotonic(), None, None

    def elapsed() -> float:
        return round(time.monotonic() - start, 3)

    async with anyio.create_task_group() as group:
        group.start_soon(_report_progress, context, elapsed, limits.wall_seconds)
        try:
            outcome = await runner.run(run, slot)
        except RunnerError as error:  # A group would wrap it.
            failure = error
        group.cancel_scope.cancel()
    if outcome is None:
        raise failure or RunnerError("the script was not run", script=run.script)
    await _send_progress(context, elapsed(), limits.wall_seconds, outcome.verdict)
    return outcome


async def _report_progress(context: Context, elapsed: Callable[[], float], total: float) -> None:
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        await _send_progress(context, elapsed(), total)


async def _send_progress(context: Context, progress: float, total: float, message: str | None = None) -> None:
    """Send `notifications/progress` if the client asked for it; give up when it does not read."""
    token = (context.meta or {}).get("progress_token")
    session, connection = context.session, connection_of(context)
    if not is_modern(context) and not session.can_send_request and connection.has_standalone_channel:
        # In an HTTP session with JSON responses, notifications go to the standalone stream.
        with anyio.move_on_after(_NOTIFY_SECONDS):
            if token is not None:
                await session.send_progress_notification(token, progress, total, message)
        return
    with anyio.move_on_after(_NOTIFY_SECONDS):
        await session.report_progress(progress, total, message)


@contextmanager
def script_errors(params: ExecuteRequestParams) -> Generator[None]:
    """Translate errors of running a script to wire errors with its name (EXEC-07)."""
    asked: dict[str, object] = {"name": params.name, "script": params.script}
    names: JsonDict = escaped_error_data(
        {key: value for key, value in asked.items() if isinstance(value, str)}
    )
    try:
        yield
    except SandboxUnavailableError as error:
        found: JsonDict = {"reason": "sandbox_unavailable", "cause": error.reason, "backend": error.backend}
        found |= {"detail": str(error), "fix": error.fix}
        raise MCPError(error.code, f"scripts cannot be run here: {error}", found) from error
    except ScriptNotFoundError as error:
        names["candidates"] = list(error.candidates[:_MAX_CANDIDATES])
        raise peer_error(error.code, str(error), **names) from error
    except InvalidScriptArgumentsError as error:
        raise peer_error(error.code, str(error), **names) from error
    except LimitError as error:
        raise peer_error(RunnerError.code, str(error), **names, reason="too_large") from error
    except RunnerError as error:
        reason = "busy" if isinstance(error, RunnerBusyError) else "not_run"
        data = {**names, **({"script": error.script} if error.script else {}), "reason": reason}
        raise peer_error(error.code, str(error), **data) from error


SIDECAR: Final = "skillwire-files.txt"
"""A file at a skill's root with one line per file, as an alternative to the frontmatter."""

logger = logging.getLogger(__name__)

_MAX_SIDECAR = 64 * 1024
_BESIDE_METADATA = ("license", "compatibility", "version")


class NameRequestParams(types.RequestParams):
    """Accepts any value, so that the handler can return its own error message."""

    name: Any = None


class ReferenceRequestParams(NameRequestParams):
    reference: Any = None


@dataclass(frozen=True, slots=True)
class _ListedFile:
    """A supporting file with the note that its author wrote about it."""

    file: SupportingFile
    note: FileNote
    audience: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return last_segment(self.file.path)

    def to_wire(self, interface: ScriptInterface | None = None) -> ExecFile:
        own = interface.description if interface is not None else ""
        schema = interface.arguments if interface is not None else None
        description = own or self.note.description or self.name
        annotations = Annotations(self.audience or ("assistant",), FILE_PRIORITY)
        return ExecFile(self.name, description, self.file.path, annotations, schema)


class Exec(ByNameDialectServer):
    """Skills by name, with references and assets, and scripts if they can be run.

    By default nothing is executed: `scripts` is declared false, no skill has a
    `scripts` array, and `skills/execute` is not a method (EXEC-14). If scripts
    are enabled and no sandbox is available, that method returns an error, and
    the rest is the same.
    """

    dialect: ClassVar[Dialect] = Dialect.EXEC

    @property
    def runner(self) -> "Runner | None":
        """The runner, if scripts can be run."""
        scripts = self.skills.scripts
        return scripts.runner if scripts is not None and scripts.is_available else None

    def capabilities(self) -> JsonDict:
        return {CAPABILITY: {"listChanged": True, SCRIPTS: self.runner is not None}}

    def bindings(self) -> Sequence[Binding]:
        reading: list[Binding] = [
            (READ_METHOD, NameRequestParams, self.read_skill),
            (READ_REFERENCE_METHOD, ReferenceRequestParams, self.read_reference),
        ]
        execute: Binding = (EXECUTE_METHOD, ExecuteRequestParams, self.execute)
        return reading if self.skills.scripts is None else [*reading, execute]

    async def legacy_fields(self, context: Context, entries: Sequence[SkillEntry]) -> Sequence[JsonDict]:
        return [self._list_item(entry) for entry in entries]

    def _list_item(self, entry: SkillEntry) -> JsonDict:
        declared = self.declared(entry)
        modified = self.skills.answers.source.modified_at(entry.uri)
        annotations = skill_resource(entry, modified=modified)["annotations"]
        return ExecItem(
            self.names.of(entry),
            entry.frontmatter.description,
            title=declared.title,
            keywords=declared.tags,
            annotations=Annotations(
                tuple(annotations["audience"]), annotations["priority"], annotations.get("lastModified")
            ),
        ).to_json()

    async def read_skill(self, context: Context, params: NameRequestParams) -> JsonDict:
        """Answer `skills/read`."""
        with _naming_errors(name=params.name):
            name, entry = await self._skill(params.name)
            try:
                entry, document = await self.read_document(entry.uri)
            except NotFoundError as error:
                raise _no_skill(name) from error
            items = await self._items(entry)
            skill = ExecSkill(
                name,
                entry.frontmatter.description,
                document.body,
                scripts=await self._scripts(entry, items),
                references=_files_in(items, "references"),
                assets=_files_in(items, "assets"),
                metadata=_metadata(entry.frontmatter) or None,
            )
            return self._with_cache_fields(context, {"skill": skill.to_json()}, is_fixed=not entry.is_dynamic)

    async def read_reference(self, context: Context, params: ReferenceRequestParams) -> JsonDict:
        """Answer `skills/read_reference`, for references and assets."""
        with _naming_errors(name=params.name, reference=params.reference):
            name, entry = await self._skill(params.name)
            wanted = params.reference
            if not isinstance(wanted, str):
                raise invalid_params("`reference` must be a string")
            items = [
                item
                for item in await self._items(entry)
                if item.file.path.startswith(("references/", "assets/"))
            ]
            item = _reference(items, name, wanted)
            try:
                file = await self.skills.answers.read(item.file.uri)
            except NotFoundError as error:
                raise _no_reference(name, wanted) from error
            content = ReferenceContent(item.file.uri, file.content, item.file.media_type)
            return self._with_cache_fields(
                context, {"content": content.to_json()}, is_fixed=bool(file.digest)
            )

    async def execute(self, context: Context, params: ExecuteRequestParams) -> JsonDict:
        """Answer `skills/execute`."""
        scripts = self.skills.scripts
        assert scripts is not None, "bound only if scripts are enabled"
        with _naming_errors(name=params.name, script=params.script), script_errors(params):
            runner = scripts.required_runner()
            name, entry = await self._skill(params.name)
            scripts.require_allowed(entry.uri)
            # A request that is refused as busy reads no file.
            with runner.admit(entry, params.script, params.given) as slot:
                aliases = {item.file.path: item.note.aliases for item in await self._items(entry)}
                execution = Execution(scripts, self.skills.answers.source, name, aliases, slot)
                try:
                    return await execution.result(context, entry, params)
                except NotFoundError as error:
                    raise _no_skill(name) from error

    async def _scripts(self, entry: SkillEntry, items: Sequence[_ListedFile]) -> tuple[ExecFile, ...]:
        """Return the scripts of a skill that can be run here, with their interfaces."""
        runner, scripts, paths = self.runner, self.skills.scripts, scripts_of(entry)
        if runner is None or scripts is None or not paths or not scripts.may_run(entry.uri):
            return ()
        interfaces = await interfaces_of(entry, self.skills.answers.source.read_file)
        return tuple(
            item.to_wire(interfaces.get(item.file.path))
            for item in items
            if item.file.path in paths and runner.has_interpreter(item.file.path)
        )

    async def _skill(self, name: object) -> tuple[str, SkillEntry]:
        if not isinstance(name, str):
            raise invalid_params("`name` must be a string")
        entry = self.names.find(name)
        if entry is None or not await self.may_see(entry.uri.published):
            raise _no_skill(name)
        return name, entry

    async def _items(self, entry: SkillEntry) -> list[_ListedFile]:
        files = self.supporting_files(entry)
        declared = self.declared(entry)
        notes = {**await self._sidecar(files), **declared.files}
        audience = declared.annotations.audience
        return [_ListedFile(file, notes.get(file.path, FileNote()), audience) for file in files]

    async def _sidecar(self, files: Sequence[SupportingFile]) -> dict[str, FileNote]:
        uri = next((file.uri for file in files if file.path == SIDECAR), None)
        if uri is None:
            return {}
        try:
            content = await self.skills.answers.source.read_file(uri)
        except NotFoundError:
            return {}  # It was removed in between.
        findings: list[Finding] = []
        notes = dict(file_notes(content[:_MAX_SIDECAR].decode("utf-8", "replace"), findings))
        for finding in findings:
            logger.info("%s: %s", uri, finding.message)
        return notes

    def _with_cache_fields(self, context: Context, result: JsonDict, *, is_fixed: bool) -> JsonDict:
        modern = is_modern(context)
        result = self.skills.answers.with_cache_fields(result, modern=modern)
        if modern and not is_fixed:
            result["ttlMs"] = 0
        return result


@contextmanager
def _naming_errors(**names: object) -> Generator[None]:
    """Translate errors with `wire_errors`, and add the request's names to internal ones (EXEC-07)."""
    try:
        with wire_errors():
            yield
    except MCPError as error:
        if error.code != INTERNAL_ERROR:
            raise
        data = {key: value for key, value in names.items() if isinstance(value, str)}
        raise peer_error(error.code, error.message, **data) from error


def _files_in(items: Sequence[_ListedFile], folder: str) -> tuple[ExecFile, ...]:
    """Return the direct files of a folder; deeper ones are read by path only (EXEC-20)."""
    return tuple(item.to_wire() for item in items if item.file.path.rpartition("/")[0] == folder)


def _reference(items: Sequence[_ListedFile], name: str, wanted: str) -> _ListedFile:
    """Find a file by its path, or by a name or alias that no other file has (EXEC-06).

    Raises:
        MCPError: There is none, or more than one.
    """
    hits = matching(
        items, wanted, path_of=lambda item: item.file.path, aliases_of=lambda item: item.note.aliases
    )
    if len(hits) == 1:
        return hits[0]
    if not hits:
        raise _no_reference(name, wanted)
    raise peer_error(
        REFERENCE_NOT_FOUND,
        f"{quoted(wanted)} matches {len(hits)} files; use the path",
        name=name,
        reference=wanted,
        candidates=[item.file.path for item in hits[:_MAX_CANDIDATES]],
    )


def _metadata(frontmatter: Frontmatter) -> dict[str, JsonValue]:
    """Return the metadata of a skill without the keys that are declared for dialects."""
    fields = frontmatter.fields
    metadata = fields.get("metadata")
    kept = {key: fields[key] for key in _BESIDE_METADATA if key in fields}
    if isinstance(metadata, dict):
        kept |= {key: value for key, value in metadata.items() if not key.startswith(PREFIX)}
    return kept


def _no_skill(name: str) -> MCPError:
    return peer_error(SKILL_NOT_FOUND, f"no skill is called {quoted(name)}", name=name)


def _no_reference(name: str, reference: str) -> MCPError:
    return peer_error(
        REFERENCE_NOT_FOUND,
        f"the skill {quoted(name)} has no reference {quoted(reference)}",
        name=name,
        reference=reference,
    )
