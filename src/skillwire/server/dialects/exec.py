"""The `exec` dialect on a server: skills by name, their files and, if the operator says so, their scripts."""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.lookup import found, last_segment
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import INTERNAL_ERROR, NotFoundError
from skillwire.runner import Runner, ScriptInterface, interfaces_of, scripts_of
from skillwire.server.dialects.by_name import ByName, Supporting
from skillwire.server.dialects.compat import Binding, Context
from skillwire.server.dialects.executing import MAX_ECHO, ExecuteParams, Execution, script_errors
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.results import is_modern
from skillwire.wire.core import JsonDict, skill_resource
from skillwire.wire.declared import PREFIX, FileNote, file_notes
from skillwire.wire.dialect import Dialect
from skillwire.wire.execution import (
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

SIDECAR: Final = "skillwire-files.txt"
"""A file at a skill's root with lines about its files, for authors who keep them out of the frontmatter."""

logger = logging.getLogger(__name__)

_MAX_SIDECAR = 64 * 1024
_MAX_CANDIDATES = 10
_BESIDE_METADATA = ("license", "compatibility", "version")


class NameParams(types.RequestParams):
    """Anything goes here, so that our own words can say what is wrong with it."""

    name: Any = None


class ReferenceParams(NameParams):
    reference: Any = None


@dataclass(frozen=True, slots=True)
class _Item:
    """A file that can be asked for, and what is said about it."""

    file: Supporting
    note: FileNote

    @property
    def name(self) -> str:
        return last_segment(self.file.path)

    def to_wire(self, interface: ScriptInterface | None = None) -> ExecFile:
        said = interface.description if interface is not None else ""
        schema = interface.arguments if interface is not None else None
        description = said or self.note.description or self.name
        return ExecFile(self.name, description, self.file.path, input_schema=schema)


class Exec(ByName):
    """The skills page: skills by name, with references and assets, and scripts if they can be run.

    Unless the operator asked for it, nothing is executed: `scripts` is declared
    false, no skill has a `scripts` array, and `skills/execute` is a method
    nobody answers (EXEC-14). If it was asked for and no sandbox can be had,
    that method says so, and the rest is the same.
    """

    dialect: ClassVar[Dialect] = Dialect.EXEC

    @property
    def runner(self) -> Runner | None:
        """What runs scripts, if they can be run."""
        scripts = self.skills.scripts
        return scripts.runner if scripts is not None and scripts.is_available else None

    def capabilities(self) -> JsonDict:
        return {CAPABILITY: {"listChanged": True, SCRIPTS: self.runner is not None}}

    def bindings(self) -> Sequence[Binding]:
        reading: list[Binding] = [
            (READ_METHOD, NameParams, self.read_skill),
            (READ_REFERENCE_METHOD, ReferenceParams, self.read_reference),
        ]
        execute: Binding = (EXECUTE_METHOD, ExecuteParams, self.execute)
        return reading if self.skills.scripts is None else [*reading, execute]

    def legacy_fields(self, entry: SkillEntry) -> JsonDict:
        declared = self.declared(entry)
        modified = self.skills.answers.catalog.modified_at(entry.uri)
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

    async def read_skill(self, context: Context, params: NameParams) -> JsonDict:
        """Answer `skills/read`."""
        with _naming(name=params.name):
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
                references=_listed(items, "references"),
                assets=_listed(items, "assets"),
                metadata=_metadata(entry.frontmatter) or None,
            )
            return self._on_terms(context, {"skill": skill.to_json()}, is_fixed=not entry.is_dynamic)

    async def read_reference(self, context: Context, params: ReferenceParams) -> JsonDict:
        """Answer `skills/read_reference`, for references and assets."""
        with _naming(name=params.name, reference=params.reference):
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
            return self._on_terms(context, {"content": content.to_json()}, is_fixed=bool(file.digest))

    async def execute(self, context: Context, params: ExecuteParams) -> JsonDict:
        """Answer `skills/execute`."""
        scripts = self.skills.scripts
        assert scripts is not None, "bound only where scripts are run"
        with _naming(name=params.name, script=params.script), script_errors(params):
            scripts.required_runner()
            name, entry = await self._skill(params.name)
            scripts.require_allowed(entry.uri)
            aliases = {item.file.path: item.note.aliases for item in await self._items(entry)}
            execution = Execution(scripts, self.skills.answers.catalog, name, aliases)
            try:
                return await execution.result(context, entry, params)
            except NotFoundError as error:
                raise _no_skill(name) from error

    async def _scripts(self, entry: SkillEntry, items: Sequence[_Item]) -> tuple[ExecFile, ...]:
        """Return the scripts of a skill that can be run here, with what they say about themselves."""
        runner, scripts, paths = self.runner, self.skills.scripts, scripts_of(entry)
        if runner is None or scripts is None or not paths or not scripts.may_run(entry.uri):
            return ()
        interfaces = await interfaces_of(entry, self.skills.answers.catalog.read_file)
        return tuple(
            item.to_wire(interfaces.get(item.file.path))
            for item in items
            if item.file.path in paths and runner.takes(item.file.path)
        )

    async def _skill(self, name: object) -> tuple[str, SkillEntry]:
        if not isinstance(name, str):
            raise invalid_params("`name` must be a string")
        entry = self.names.find(name)
        if entry is None or not await self.may_see(entry.uri.published):
            raise _no_skill(name)
        return name, entry

    async def _items(self, entry: SkillEntry) -> list[_Item]:
        files = self.supporting(entry)
        notes = {**await self._sidecar(files), **self.declared(entry).files}
        return [_Item(file, notes.get(file.path, FileNote())) for file in files]

    async def _sidecar(self, files: Sequence[Supporting]) -> dict[str, FileNote]:
        uri = next((file.uri for file in files if file.path == SIDECAR), None)
        if uri is None:
            return {}
        try:
            content = await self.skills.answers.catalog.read_file(uri)
        except NotFoundError:
            return {}  # It went away this very moment.
        findings: list[Finding] = []
        notes = dict(file_notes(content[:_MAX_SIDECAR].decode("utf-8", "replace"), findings))
        for finding in findings:
            logger.info("%s: %s", uri, finding.message)
        return notes

    def _on_terms(self, context: Context, result: JsonDict, *, is_fixed: bool) -> JsonDict:
        modern = is_modern(context)
        result = self.skills.answers.on_terms(result, modern=modern)
        if modern and not is_fixed:
            result["ttlMs"] = 0
        return result


@contextmanager
def _naming(**culprit: object) -> Generator[None]:
    """Translate failures as everywhere, and name in each internal one what was asked for (EXEC-07)."""
    try:
        with wire_errors():
            yield
    except MCPError as error:
        if error.code != INTERNAL_ERROR:
            raise
        data = {key: value[:MAX_ECHO] for key, value in culprit.items() if isinstance(value, str)}
        raise MCPError(error.code, error.message, data) from error


def _listed(items: Sequence[_Item], folder: str) -> tuple[ExecFile, ...]:
    """Return the files of a folder, one level deep; deeper ones are found by their paths alone (EXEC-20)."""
    return tuple(item.to_wire() for item in items if item.file.path.rpartition("/")[0] == folder)


def _reference(items: Sequence[_Item], name: str, wanted: str) -> _Item:
    """Find a file by its name, its path, or what no other is called (EXEC-06).

    Raises:
        MCPError: There is none, or more than one.
    """
    hits = found(
        items, wanted, path_of=lambda item: item.file.path, aliases_of=lambda item: item.note.aliases
    )
    if len(hits) == 1:
        return hits[0]
    if not hits:
        raise _no_reference(name, wanted)
    raise MCPError(
        REFERENCE_NOT_FOUND,
        f"{quoted(wanted)} may be any of {len(hits)} files; ask by path",
        {
            "name": name,
            "reference": wanted[:MAX_ECHO],
            "candidates": [item.file.path for item in hits[:_MAX_CANDIDATES]],
        },
    )


def _metadata(frontmatter: Frontmatter) -> dict[str, JsonValue]:
    """Return what the author says about the skill, without what was declared for dialects."""
    fields = frontmatter.fields
    metadata = fields.get("metadata")
    kept = {key: fields[key] for key in _BESIDE_METADATA if key in fields}
    if isinstance(metadata, dict):
        kept |= {key: value for key, value in metadata.items() if not key.startswith(PREFIX)}
    return kept


def _no_skill(name: str) -> MCPError:
    return MCPError(SKILL_NOT_FOUND, f"no skill is called {quoted(name)}", {"name": name[:MAX_ECHO]})


def _no_reference(name: str, reference: str) -> MCPError:
    return MCPError(
        REFERENCE_NOT_FOUND,
        f"the skill {quoted(name)} has no reference {quoted(reference)}",
        {"name": name, "reference": reference[:MAX_ECHO]},
    )
