"""The `exec` dialect on a server: `skills/read` and `skills/read_reference`."""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import INTERNAL_ERROR, NotFoundError
from skillwire.server.dialects.by_name import ByName, Supporting
from skillwire.server.dialects.compat import Binding, Context
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.results import is_modern
from skillwire.wire.core import JsonDict, skill_resource
from skillwire.wire.declared import PREFIX, FileNote, file_notes
from skillwire.wire.dialect import Dialect
from skillwire.wire.execution import (
    CAPABILITY,
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

_MAX_ECHO = 256
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
        return self.file.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    def to_wire(self) -> ExecFile:
        return ExecFile(self.name, self.note.description or self.name, self.file.path)


_STEPS: tuple[Callable[[_Item, str], bool], ...] = (
    lambda item, wanted: item.name == wanted,
    lambda item, wanted: item.file.path == wanted,
    lambda item, wanted: item.stem == wanted or wanted in item.note.aliases,
)


class Exec(ByName):
    """The skills page: skills by name, with references and assets.

    Nothing is executed here: `scripts` is declared false, no skill has a
    `scripts` array, and `skills/execute` is a method nobody answers (EXEC-14).
    """

    dialect: ClassVar[Dialect] = Dialect.EXEC
    runs_scripts: ClassVar[bool] = False

    def capabilities(self) -> JsonDict:
        return {CAPABILITY: {"listChanged": True, SCRIPTS: self.runs_scripts}}

    def bindings(self) -> Sequence[Binding]:
        return (
            (READ_METHOD, NameParams, self.read_skill),
            (READ_REFERENCE_METHOD, ReferenceParams, self.read_reference),
        )

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
                scripts=_listed(items, "scripts") if self.runs_scripts else (),
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
            item = _found(items, name, wanted)
            try:
                file = await self.skills.answers.read(item.file.uri)
            except NotFoundError as error:
                raise _no_reference(name, wanted) from error
            content = ReferenceContent(item.file.uri, file.content, item.file.media_type)
            return self._on_terms(context, {"content": content.to_json()}, is_fixed=bool(file.digest))

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
        data = {key: value[:_MAX_ECHO] for key, value in culprit.items() if isinstance(value, str)}
        raise MCPError(error.code, error.message, data) from error


def _listed(items: Sequence[_Item], folder: str) -> tuple[ExecFile, ...]:
    """Return the files of a folder, one level deep; deeper ones are found by their paths alone (EXEC-20)."""
    return tuple(item.to_wire() for item in items if item.file.path.rpartition("/")[0] == folder)


def _found(items: Sequence[_Item], name: str, wanted: str) -> _Item:
    """Find a file by its name, its path, or what no other is called (EXEC-06).

    Raises:
        MCPError: There is none, or more than one.
    """
    for step in _STEPS:
        hits = [item for item in items if step(item, wanted)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            paths = [item.file.path for item in hits[:_MAX_CANDIDATES]]
            raise MCPError(
                REFERENCE_NOT_FOUND,
                f"{quoted(wanted)} may be any of {len(hits)} files; ask by path",
                {"name": name, "reference": wanted[:_MAX_ECHO], "candidates": paths},
            )
    raise _no_reference(name, wanted)


def _metadata(frontmatter: Frontmatter) -> dict[str, JsonValue]:
    """Return what the author says about the skill, without what was declared for dialects."""
    fields = frontmatter.fields
    metadata = fields.get("metadata")
    found = {key: fields[key] for key in _BESIDE_METADATA if key in fields}
    if isinstance(metadata, dict):
        found |= {key: value for key, value in metadata.items() if not key.startswith(PREFIX)}
    return found


def _no_skill(name: str) -> MCPError:
    return MCPError(SKILL_NOT_FOUND, f"no skill is called {quoted(name)}", {"name": name[:_MAX_ECHO]})


def _no_reference(name: str, reference: str) -> MCPError:
    return MCPError(
        REFERENCE_NOT_FOUND,
        f"the skill {quoted(name)} has no reference {quoted(reference)}",
        {"name": name, "reference": reference[:_MAX_ECHO]},
    )
