"""The values of a catalog: rows, drafts, plans, publications, revisions and errors."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from skillwire.core import ManifestFile, SkillEntry, SkillError, SkillUri

FOREVER: Final = 2**63 - 1
"""`until` of a row that is current."""

COLUMNS: Final = (
    "uri, since, until, namespace, name, entry, digest, details, modified, listed, pinned, is_pin, version, "
    "source"
)
"""The columns of `versions`, in the order of the fields of `SkillRow`."""


class CatalogError(SkillError):
    """A catalog cannot be opened, read or changed."""

    refusal = "catalog-unusable"


class NoCatalogError(CatalogError):
    """There is no catalog at the URL, and none was to be created."""

    refusal = "no-catalog"


class NewerSchemaError(CatalogError):
    """The catalog was created or upgraded by a later version of this program."""

    refusal = "catalog-too-new"


class CatalogConflictError(CatalogError):
    """A change does not fit what the catalog has now, and nothing was written; `uris` are the skills."""

    refusal = "catalog-conflict"

    def __init__(self, message: str, *, uris: Sequence[str], fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.uris = tuple(uris)


class SkillRow(NamedTuple):
    """A row of `versions`: the state of one skill from revision `since` until before revision `until`.

    `entry` is the JSON object as `skills/list` carries it, and `digest` is of
    these bytes. `details` is a JSON object with what else is published about
    the skill, usually empty: `mediaTypes` by URI of a file, `folders` that are
    empty, and the `order` of its files. `is_pin` marks an immutable version,
    `listed` and `pinned` follow the flags of the author, and `source` is the
    name of the managed source that the skill comes from, if any.
    """

    uri: str
    since: int
    until: int
    namespace: str
    name: str
    entry: bytes
    digest: str
    details: str
    modified: float | None
    listed: int
    pinned: int
    is_pin: int
    version: str
    source: str

    @property
    def is_current(self) -> bool:
        return self.until == FOREVER

    def has_same_content(self, other: "SkillRow") -> bool:
        """Return whether two states publish the same; the time of modification does not count."""
        return self.entry == other.entry and self[7:8] + self[9:] == other[7:8] + other[9:]


ReadLine: TypeAlias = Callable[[ManifestFile], Awaitable[bytes]]
"""Reads a file of a draft."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill to be published: its entry, and how to read its files.

    `read` is called for the lines of the entry's manifest whose bytes the
    catalog does not have yet. `media_types` are those that the names of files do
    not imply, by URI, `folders` the URIs of empty ones, `order` the paths of
    files in the order of their author, and `modified` is when `SKILL.md` was. With
    a `version`, an immutable version is also published beside the moving skill.
    """

    entry: SkillEntry
    read: ReadLine
    media_types: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    modified: float | None = None
    version: str = ""


class SkillChangeKind(StrEnum):
    """What a publication does to a skill."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class SkillChange:
    """A difference of one skill: the digests of its entry, and the paths of files that differ."""

    uri: SkillUri
    kind: SkillChangeKind
    before: str = ""
    after: str = ""
    files: tuple[str, ...] = ()
    is_pin: bool = False


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """What a publication would change, and the state of the skills that it is based on.

    `missing` are the digests of files that the catalog did not have then.
    `rows` are the new states, `seen` maps each URI to the revision of the state
    it had, 0 for none, and `files` maps the digests of all files of the new
    states to a draft and the line that it can be read by.
    """

    changes: tuple[SkillChange, ...]
    missing: frozenset[str]
    source: str = ""
    rows: tuple[SkillRow, ...] = field(default=(), repr=False)
    seen: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    files: Mapping[str, tuple[Draft, ManifestFile]] = field(
        default_factory=dict[str, tuple[Draft, ManifestFile]], repr=False
    )

    @property
    def removed(self) -> tuple[str, ...]:
        """The URIs of the skills that would be removed."""
        return tuple(change.uri.text for change in self.changes if change.kind is SkillChangeKind.REMOVED)


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of a change: the revision that has it. Without changes, it is the one of before."""

    revision: int
    changes: tuple[SkillChange, ...]


@dataclass(frozen=True, slots=True)
class Revision:
    """One change of the catalog: when, by whom, and what was done."""

    number: int
    at: float
    actor: str
    action: str
    note: str


@dataclass(frozen=True, slots=True)
class SkillVersion:
    """One state of a skill, and the revision that made it."""

    row: SkillRow
    made: Revision


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A line of the audit log; `revision` is None when the catalog did not change."""

    number: int
    at: float
    actor: str
    action: str
    namespace: str
    uri: str
    revision: int | None
    detail: str
