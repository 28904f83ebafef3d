"""`DialectClient`: one dialect as one server speaks it."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from mcp.types import METHOD_NOT_FOUND

from skillwire.core import (
    MEDIA_TYPE,
    SKILL_FILE,
    UNKNOWN_SIZE,
    ArchiveFormat,
    Coverage,
    Dialect,
    Finding,
    Frontmatter,
    InvalidEntryError,
    InvalidUriError,
    JsonValue,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillDocument,
    SkillEntry,
    SkillError,
    SkillUri,
    canonical_uri,
    check_frontmatter,
    name_findings,
    segment_of,
)
from skillwire.host.calls import (
    ConnectionState,
    Declaration,
    DirectoryItem,
    Listing,
    ListingLimits,
    RefusedEntry,
    ResourceContent,
    Session,
    shortened,
)
from skillwire.host.model import InvalidArgumentsError, KnownSkill, Origin, PeerError
from skillwire.wire.index import SkillTemplate

MAX_INDEX_BYTES: Final = 32 * 1024 * 1024
"""The largest index that is parsed."""


Arguments: TypeAlias = Mapping[str, str]
NO_ARGUMENTS: Final[Arguments] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DialectOptions:
    """Options for using a server.

    `formats` are the archive formats that the policy allows to unpack, none by
    default (ARC-18). `dialect` is the only one to use, if the user chose one.
    `limits` apply to every listing, and `seconds` to each call.
    """

    formats: frozenset[ArchiveFormat] = frozenset()
    dialect: Dialect | None = None
    limits: ListingLimits = field(default_factory=ListingLimits)
    seconds: float | None = None


class DialectClient(Protocol):
    """One dialect, as one server speaks it. All errors are `SkillError`s.

    A client remembers what it needs to read listed skills, and is used only on
    the connection on which it was detected.
    """

    @property
    def dialect(self) -> Dialect: ...

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        """Return everything the server lists; an invalid entry does not affect the others."""
        ...

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        """Return the current entry of one skill, listed or not, as complete as the dialect allows.

        Raises:
            NotFoundError: The server serves no such skill.
        """
        ...

    async def read(self, session: Session, /, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a file of a skill, or of an archive that an entry names, unverified.

        Raises:
            NotFoundError: The server serves no such file.
        """
        ...


@runtime_checkable
class TakesArguments(Protocol):
    """A client for a dialect in which requests for a skill have arguments."""

    def with_arguments(self, arguments: Arguments) -> DialectClient:
        """Return a client that sends these arguments with each request for a skill."""
        ...


def client_with_arguments(client: DialectClient, arguments: Arguments) -> DialectClient:
    """Return a client that sends `arguments`.

    Raises:
        InvalidArgumentsError: The dialect has no arguments; nothing was sent.
    """
    if isinstance(client, TakesArguments):
        return client.with_arguments(arguments)
    require_no_arguments(arguments, client.dialect)
    return client


def require_no_arguments(arguments: Arguments, dialect: Dialect) -> None:
    """Check that there are no arguments, which `dialect` does not have.

    Raises:
        InvalidArgumentsError: There are arguments.
    """
    if arguments:
        raise InvalidArgumentsError(f"skills take no arguments in the dialect {dialect}")


@dataclass(frozen=True, slots=True)
class DialectMatch:
    """A client for a detected dialect, with its first listing.

    A match that `is_last_resort` is only a guess: any dialect that the server
    turns out to speak is preferred.
    """

    client: DialectClient
    listing: Listing
    is_last_resort: bool = False


def is_absent(error: SkillError) -> bool:
    """Return whether an error only says that the server does not have the requested item or method."""
    return isinstance(error, NotFoundError) or (
        isinstance(error, PeerError) and error.peer_code == METHOD_NOT_FOUND
    )


async def try_list(client: DialectClient, session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return a client with its first listing; None if the server does not support the method.

    Raises:
        SkillError: The server supports it, and the listing failed.
    """
    try:
        return DialectMatch(client, await client.list(session, options))
    except PeerError as error:
        if is_absent(error):
            return None
        raise


# Building a listing from items that arrive all at once, with duplicates refused.


# Members of an entry of the released extension, which unknown fields must not replace in a gateway.
_RESERVED = frozenset({"uri", "frontmatter", "resources"})


@dataclass(frozen=True, slots=True)
class ListingItem:
    """One item of a listing: a skill, a template, or neither, with the reason in `findings`.

    `uri` is the canonical URI of a refused skill, if it has one. Findings about
    an item that is used are warnings.
    """

    entry: SkillEntry | None = None
    template: SkillTemplate | None = None
    findings: tuple[Finding, ...] = ()
    uri: str | None = None

    @property
    def skill_uri(self) -> str | None:
        """The canonical URI of the skill, used or refused."""
        return self.uri if self.entry is None else self.entry.uri.text


def build_listing(items: Iterable[ListingItem], dialect: Dialect) -> Listing:
    """Build a listing; all items with a URI that is listed twice are refused."""
    every = list(items)
    copies = Counter(item.skill_uri for item in every if item.skill_uri is not None)
    entries: list[SkillEntry] = []
    refused: list[RefusedEntry] = []
    templates: dict[str, SkillTemplate] = {}
    remarks: list[tuple[str, Finding]] = []
    for position, item in enumerate(every):
        if item.template is not None:
            templates.setdefault(item.template.template.text, item.template)
            continue
        uri = item.skill_uri
        duplicates = [_duplicate_finding(uri, copies[uri])] if uri is not None and copies[uri] > 1 else []
        if item.entry is None or duplicates:
            refused.append(RefusedEntry(position, uri, shortened([*item.findings, *duplicates])))
            continue
        entries.append(item.entry)
        remarks += [(item.entry.uri.text, finding) for finding in shortened(item.findings)]
    return Listing(
        tuple(entries),
        tuple(refused),
        dialect=dialect,
        templates=tuple(templates.values()),
        remarks=tuple(remarks),
    )


def unused_item(value: object, findings: Iterable[Finding]) -> ListingItem:
    """Return the item for an invalid entry, with the URI that it states."""
    url = cast(Mapping[str, object], value).get("url") if isinstance(value, dict) else None
    try:
        uri = SkillUri.parse(url).text if isinstance(url, str) else None
    except InvalidUriError:
        uri = None
    return ListingItem(findings=tuple(findings), uri=uri)


def extra_fields(extra: Mapping[str, JsonValue], *used: str) -> Mapping[str, JsonValue]:
    """Return the unknown fields to pass on (NEG-19), without those that have a meaning here or in `core`."""
    dropped = _RESERVED.union(used)
    return {name: value for name, value in extra.items() if name not in dropped} if extra else extra


def _duplicate_finding(uri: str, copies: int) -> Finding:
    return Finding("duplicate-uri", f"the server lists {uri} {copies} times", file="")


# Skills that a server serves and does not list, in dialects without `skills/get`: known by their URI alone.


logger = logging.getLogger(__name__)


def unlisted_entry(uri: SkillUri, *, any_path: bool = False) -> SkillEntry:
    """Return an entry for a skill of which only the URI is known; its file is not read.

    The name in its file must be the last segment of the path; with `any_path`
    they may differ, as the first drafts allowed.
    """
    fields: dict[str, JsonValue] = {} if any_path else {"name": uri.name}
    return SkillEntry(uri, Frontmatter(fields), None, is_summary=True)


def require_valid(skill: KnownSkill, document: SkillDocument) -> None:
    """Check the fields of an unlisted skill's file, which no listing has stated.

    Raises:
        InvalidEntryError: They are invalid.
    """
    _, findings = check_frontmatter(dict(document.frontmatter.fields))
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        messages = "; ".join(finding.message for finding in shortened(errors))
        raise InvalidEntryError(f"{skill.id.uri} is not a valid skill: {messages}")


def path_findings(uri: SkillUri, name: str, *, any_path: bool) -> list[Finding]:
    """Compare a skill's path with its name: an error if they differ, or a warning with `any_path`.

    The draft of 17 March allowed them to differ. That is accepted only if the
    user chose such a dialect (DRAFT-09).
    """
    findings = name_findings(uri, name)
    if not any_path:
        return findings
    for finding in findings:
        logger.warning("%s is used despite a mismatch: %s", uri.text, finding.message)
    return [Finding("path-differs", finding.message, file="") for finding in findings]


# Skills that come as one archive: their manifests, and URIs for skills that have none.


_SUFFIXES: Final = (".tar.gz", ".tgz", ".zip")


def archive_manifest(
    uri: SkillUri,
    url: str,
    digest: str,
    format: ArchiveFormat,
    *,
    size: int = UNKNOWN_SIZE,
    skill_digest: str | None = None,
) -> Manifest:
    """Return the manifest of the skill at `uri` whose files are in the archive at `url`.

    `skill_digest` is the digest of the `SKILL.md` inside, if the publisher states it (ARC-16).
    """
    place = canonical_uri(url)
    lines = [ManifestFile(place, digest, size, "" if place == url else url, {MEDIA_TYPE: format.media_type})]
    if skill_digest is not None:
        lines.append(ManifestFile(uri.text, skill_digest, UNKNOWN_SIZE))
    return Manifest.of(lines, Coverage.ARCHIVE)


class ArchiveSkillUris:
    """URIs for the skills of an index that come only as archives.

    An archive usually has the name of its skill, which then gets the archive's
    path without the suffix (DRAFT-08). If no archive of the skill has its name,
    or another skill has that path too, the skill gets a path below that of its
    first archive, which no other skill can have.
    """

    def __init__(self, alone: Iterable[tuple[Sequence[str], str]], listed: Iterable[str]) -> None:
        """Accept the archives and name of each such skill, and the canonical URIs of all other skills."""
        uris = [_uri_beside_archive(urls, name) for urls, name in alone]
        self._claims = Counter([*listed, *(uri for uri in uris if uri is not None)])

    def uri_of(self, urls: Sequence[str], name: str) -> SkillUri:
        """Return the URI of the skill `name` in the archives at `urls`.

        Raises:
            InvalidUriError: It would be too long.
        """
        beside = _uri_beside_archive(urls, name)
        if beside is not None and self._claims[beside] <= 1:
            return SkillUri.parse(beside)
        return SkillUri.parse(f"{canonical_uri(urls[0])}/{name}/{SKILL_FILE}")


def _uri_beside_archive(urls: Sequence[str], name: str) -> str | None:
    """Return the URI of a skill beside its archive, if the archive has its name."""
    for uri in map(canonical_uri, urls):
        suffix = next((suffix for suffix in _SUFFIXES if uri.lower().endswith(suffix)), "")
        root = uri[: len(uri) - len(suffix)]
        if suffix and segment_of(root) == name:
            return f"{root}/{SKILL_FILE}"
    return None


def archives_off(formats: Iterable[ArchiveFormat]) -> Finding:
    """Return the finding for a skill that comes only as archives that the policy does not allow."""
    names = " or ".join(formats)
    return Finding(
        "archives-off",
        f"the skill comes only as an archive ({names}), which this host does not unpack",
        file="",
        fix="allow archives for this host or server, on the command line with --archives",
    )


def archive_unsupported(message: str) -> Finding:
    """Return the finding for a skill whose archives all have unsupported formats."""
    return Finding(
        "archive-unsupported",
        message,
        file="",
        fix=f"ask the server's author for {' or '.join(ArchiveFormat)}",
    )


T = TypeVar("T")


class SkillConnection(Protocol):
    """A connection to a server or web site, as loading, explaining and scripts use it."""

    @property
    def origin(self) -> Origin: ...

    @property
    def state(self) -> ConnectionState: ...

    @property
    def dialect(self) -> Dialect | None: ...

    @property
    def declaration(self) -> Declaration | None: ...

    async def get_skill(self, uri: SkillUri | str, *, arguments: Arguments = ...) -> SkillEntry: ...

    async def read_file(self, uri: str, *, max_bytes: int, arguments: Arguments = ...) -> bytes: ...

    async def read_resource(self, uri: str) -> ResourceContent: ...

    async def read_directory(self, uri: str) -> tuple[DirectoryItem, ...]: ...

    async def query(
        self, key: Hashable, method: str, call: Callable[[Session, DialectOptions], Awaitable[T]]
    ) -> T: ...

    async def call_once(self, method: str, call: Callable[[Session, DialectClient], Awaitable[T]]) -> T: ...
