"""`skill://index.json`: reading it, detecting its form, and the client for servers that list skills there.

A missing index says nothing about what a server serves (IDX-07), so a server
that declared the extension can still be asked for a skill by its URI. An index
that cannot be used gives an empty listing and is reported to the user; if the
server speaks another dialect as well, that one is preferred.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, cast

import anyio.to_thread
from mcp.types import CONNECTION_CLOSED, PaginatedRequestParams, Request

from skillwire.core import (
    DEFAULT_SCHEME,
    MAX_JSON_SIZE,
    UNKNOWN_SIZE,
    ArchiveFormat,
    Coverage,
    Dialect,
    Finding,
    Frontmatter,
    InvalidEntryError,
    InvalidUriError,
    JsonValue,
    LimitError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    StrictJsonError,
    canonical_uri,
    check_entry,
    check_frontmatter,
    gc_paused,
    parse_strictly,
    quoted,
)
from skillwire.host.calls import Freshness, Listing, ListingLimits, Pager, Session, within
from skillwire.host.dialects.base import (
    MAX_INDEX_BYTES,
    ArchiveSkillUris,
    DialectMatch,
    DialectOptions,
    ListingItem,
    archive_manifest,
    archive_unsupported,
    archives_off,
    build_listing,
    extra_fields,
    is_absent,
    path_findings,
    unlisted_entry,
    unused_item,
)
from skillwire.host.model import (
    EndlessListingError,
    FloodError,
    InvalidAnswerError,
    MessageTooLargeError,
    PeerError,
    TooSlowError,
)
from skillwire.wire.core import LIST_RESOURCES
from skillwire.wire.index import (
    INDEX_URI,
    AprilEntry,
    AprilType,
    JuneArchive,
    JuneEntry,
    SkillTemplate,
    Template,
    index_shape,
    parse_april_entry,
    parse_june_entry,
    schema_findings,
)
from skillwire.wire.resources import ListedResource, parse_resource

# `index-april`: names, descriptions and types; a digest at most for one file, and templates.


def april_items(values: Sequence[object], options: DialectOptions) -> list[ListingItem]:
    """Parse the entries of an index; an invalid entry does not affect the others."""
    parsed = [parse_april_entry(value) for value in values]
    entries = [entry for entry, _ in parsed if entry is not None]
    archive_uris = ArchiveSkillUris(
        [([entry.url], entry.name or "") for entry in entries if entry.type is AprilType.ARCHIVE],
        [SkillUri.parse(entry.url).text for entry in entries if entry.type is AprilType.SKILL_MD],
    )
    return [
        unused_item(value, findings) if entry is None else _april_item(entry, archive_uris, options)
        for value, (entry, findings) in zip(values, parsed, strict=True)
    ]


def _april_item(entry: AprilEntry, archive_uris: ArchiveSkillUris, options: DialectOptions) -> ListingItem:
    if entry.type is AprilType.TEMPLATE:
        template = Template.parse(entry.url)
        return ListingItem(template=SkillTemplate(entry.name or "", template, entry.description))
    name = entry.name or ""
    frontmatter, findings = check_frontmatter({"name": name, "description": entry.description})
    try:
        uri = (
            archive_uris.uri_of([entry.url], name)
            if entry.type is AprilType.ARCHIVE
            else SkillUri.parse(entry.url)
        )
    except InvalidUriError as error:
        return ListingItem(findings=(Finding("uri-invalid", str(error), file=""),))
    findings += path_findings(uri, name, any_path=options.dialect is not None)
    if frontmatter is None or any(finding.is_error for finding in findings):
        return ListingItem(findings=tuple(findings), uri=uri.text)
    if entry.type is AprilType.ARCHIVE:
        return _archive(entry, uri, frontmatter, options)
    return ListingItem(
        _skill(uri, frontmatter, _skill_file_manifest(entry, uri), entry), findings=tuple(findings)
    )


def _skill_file_manifest(entry: AprilEntry, uri: SkillUri) -> Manifest | None:
    """Return the manifest with the digest of `SKILL.md`; drafts before 3 June had none (DRAFT-04)."""
    if entry.digest is None:
        return None
    spelling = "" if uri.published == uri.text else uri.published
    return Manifest.of([ManifestFile(uri.text, entry.digest, UNKNOWN_SIZE, spelling)], Coverage.SKILL_FILE)


def _archive(
    entry: AprilEntry, uri: SkillUri, frontmatter: Frontmatter, options: DialectOptions
) -> ListingItem:
    """Build the item of an archived skill; its format follows from the suffix of the URL (ARC-02)."""
    format = ArchiveFormat.of_path(canonical_uri(entry.url))
    if format is None:
        problem = archive_unsupported(
            f"the suffix of {quoted(entry.url)} is not that of a supported archive format"
        )
    elif entry.digest is None:
        message = f"{quoted(entry.url)} has no digest; an archive is unpacked only if it matches its digest"
        problem = Finding("archive-unverifiable", message, file="")
    elif format not in options.formats:
        problem = archives_off([format])
    else:
        return ListingItem(
            _skill(uri, frontmatter, archive_manifest(uri, entry.url, entry.digest, format), entry)
        )
    return ListingItem(findings=(problem,), uri=uri.text)


def _skill(
    uri: SkillUri, frontmatter: Frontmatter, manifest: Manifest | None, entry: AprilEntry
) -> SkillEntry:
    return SkillEntry(uri, frontmatter, manifest, extra_fields(entry.extra), is_summary=True)


# `index-june`: entries with frontmatter, the digest of `SKILL.md`, and archives.


def june_items(values: Sequence[object], options: DialectOptions) -> list[ListingItem]:
    """Parse the entries of an index; an invalid entry does not affect the others."""
    parsed = [parse_june_entry(value) for value in values]
    entries = [entry for entry, _ in parsed if entry is not None]
    archive_uris = ArchiveSkillUris(
        [(_urls(entry), _name(entry)) for entry in entries if entry.url is None],
        [SkillUri.parse(entry.url).text for entry in entries if entry.url is not None],
    )
    return [
        unused_item(value, findings) if entry is None else _june_item(entry, archive_uris, options)
        for value, (entry, findings) in zip(values, parsed, strict=True)
    ]


def _june_item(entry: JuneEntry, archive_uris: ArchiveSkillUris, options: DialectOptions) -> ListingItem:
    try:
        uri = (
            archive_uris.uri_of(_urls(entry), _name(entry))
            if entry.url is None
            else SkillUri.parse(entry.url)
        )
    except InvalidUriError as error:
        return ListingItem(findings=(Finding("uri-invalid", str(error), file=""),))
    manifest, problem = _widest_manifest(entry, uri, options)
    if manifest is None:
        return ListingItem(findings=problem, uri=uri.text)
    extra = extra_fields(entry.extra, "size")
    return ListingItem(SkillEntry(uri, Frontmatter(entry.frontmatter), manifest, extra))


def _widest_manifest(
    entry: JuneEntry, uri: SkillUri, options: DialectOptions
) -> tuple[Manifest | None, tuple[Finding, ...]]:
    """Return the widest manifest of an entry that this host can use, or the findings against it."""
    lines = entry.extra.get("resources")
    if entry.digest is not None and isinstance(lines, list):
        return _all_files(entry, uri, lines)
    for archive in entry.archives:
        format = ArchiveFormat.of_media_type(archive.media_type)
        if format is None or format not in options.formats or canonical_uri(archive.url) == uri.text:
            continue
        size, skill_digest = _size_in(archive.extra), entry.digest
        return archive_manifest(
            uri, archive.url, archive.digest, format, size=size, skill_digest=skill_digest
        ), ()
    if entry.digest is None:
        return None, (_no_archive(entry.archives),)
    spelling = "" if uri.published == uri.text else uri.published
    line = ManifestFile(uri.text, entry.digest, _size_in(entry.extra), spelling)
    return Manifest.of([line], Coverage.SKILL_FILE), ()


def _all_files(
    entry: JuneEntry, uri: SkillUri, lines: JsonValue
) -> tuple[Manifest | None, tuple[Finding, ...]]:
    """Check the `resources` a server added, with the rules of the released extension (IDX-12)."""
    checked, findings = check_entry(
        {"uri": uri.published, "frontmatter": entry.frontmatter, "resources": lines}
    )
    errors = tuple(finding for finding in findings if finding.is_error)
    manifest = None if checked is None else checked.manifest
    if manifest is None or errors:
        return None, errors
    if manifest.require(uri.text).digest != entry.digest:
        message = f"the entry and its `resources` disagree about the digest of {quoted(uri.text)}"
        return None, (Finding("resource-invalid", message, file=""),)
    return manifest, ()


def _no_archive(archives: Sequence[JuneArchive]) -> Finding:
    """Return the finding that says why none of a skill's archives is used."""
    known = [ArchiveFormat.of_media_type(archive.media_type) for archive in archives]
    formats = [format for format in known if format is not None]
    if formats:
        return archives_off(dict.fromkeys(formats))
    types = ", ".join(quoted(archive.media_type[:100]) for archive in archives[:3])
    return archive_unsupported(f"the skill comes only as an archive of an unknown format: {types}")


def _size_in(extra: Mapping[str, JsonValue]) -> int:
    """Return the size a server added, or `UNKNOWN_SIZE` if it is missing or invalid."""
    size = extra.get("size")
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_JSON_SIZE
    return cast(int, size) if is_size else UNKNOWN_SIZE


def _name(entry: JuneEntry) -> str:
    return cast(str, entry.frontmatter["name"])


def _urls(entry: JuneEntry) -> list[str]:
    return [archive.url for archive in entry.archives]


# Walking `resources/list` for skills: within limits, and scoped if the server supports scopes.


ALL_SKILLS: Final = f"{DEFAULT_SCHEME}://"
"""The scope of every skill (DRAFT-07)."""

UNDECLARED_LIMITS: Final = ListingLimits(max_pages=32, max_entries=10_000, max_bytes=16 * 1024 * 1024)
"""How much is read from a server that did not declare skills."""

_SMALL_PAGE = 20


class _ScopeParams(PaginatedRequestParams):
    """Parameters for a page of one scope; without `uri`, of all resources."""

    uri: str | None = None


class _ListRequest(Request[_ScopeParams, Literal["resources/list"]]):
    method: Literal["resources/list"] = LIST_RESOURCES


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a server lists; `problem` says why the listing is incomplete, if it is."""

    items: tuple[ListedResource, ...]
    freshness: Freshness
    problem: SkillError | None = None

    @property
    def has_index(self) -> bool:
        """Whether the index of skills is among them."""
        return any(item.uri == INDEX_URI for item in self.items)


async def walk(session: Session, options: DialectOptions, *, scope: str = ALL_SKILLS) -> Resources:
    """Request all resources, or only those in `scope` if the server declared skills and supports scopes.

    A server that does not support scopes returns everything, or refuses and is
    asked for everything. Pages before a problem are returned with the problem.

    Raises:
        SkillError: There is not even a first page.
    """
    if not session.declares_extension:
        few = ListingLimits(
            min(options.limits.max_pages, UNDECLARED_LIMITS.max_pages),
            min(options.limits.max_entries, UNDECLARED_LIMITS.max_entries),
            min(options.limits.max_bytes, UNDECLARED_LIMITS.max_bytes),
        )
        return await _walk(session, replace(options, limits=few), None)
    try:
        return await _walk(session, options, scope)
    except PeerError as error:
        if is_closed(error):
            raise
    return await _walk(session, options, None)


def is_closed(error: SkillError) -> bool:
    """Return whether the connection ended, which says nothing about the requested resource."""
    return isinstance(error, PeerError) and error.peer_code == CONNECTION_CLOSED


async def _walk(session: Session, options: DialectOptions, scope: str | None) -> Resources:
    def request_for(cursor: str | None) -> _ListRequest:
        return _ListRequest(params=_ScopeParams(cursor=cursor, uri=scope))

    pager = Pager(session.client, request_for, member="resources", limits=options.limits)
    items: list[ListedResource] = []
    seen, freshness = 0, Freshness()
    try:
        with within(options.seconds, LIST_RESOURCES):
            while (page := await pager.next_page()) is not None:
                if page.is_first:
                    items, seen, freshness = [], 0, Freshness()
                freshness.add(page.answer)
                with gc_paused() if len(page.items) > _SMALL_PAGE else nullcontext():
                    found = (parse_resource(seen + place, item) for place, item in enumerate(page.items))
                    items += [item for item in found if item is not None]
                seen += len(page.items)
    except (EndlessListingError, InvalidAnswerError, PeerError, TooSlowError) as error:
        if freshness.is_empty or is_closed(error):
            raise
        return Resources(tuple(items), freshness, error)
    return Resources(tuple(items), freshness)


_SHAPES = (Dialect.INDEX_JUNE, Dialect.INDEX_APRIL)
_SMALL = 64 * 1024

logger = logging.getLogger(__name__)


class IndexDialectClient:
    """A client for servers that list their skills in an index; a server may change its form at any time.

    A skill that is not in the index can be loaded by its URI after the user
    approved it. A skill that is in the index but refused stays refused.
    """

    def __init__(
        self, dialect: Dialect, options: DialectOptions, listed: frozenset[str] = frozenset()
    ) -> None:
        self.dialect = dialect
        self._options = options
        self._listed = listed

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        self._options = options
        listing = await _read(session, options) or Listing((), dialect=self.dialect)
        self.dialect = listing.dialect
        if listing.problem is None:
            self._listed = frozenset(entry.uri.text for entry in listing.entries)
        return listing

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        listing = await _read(session, self._options) or Listing((), dialect=self.dialect)
        for entry in listing.entries:
            if entry.uri == uri:
                return entry
        for refused in listing.refused:
            if refused.uri == uri.text:
                raise InvalidEntryError("; ".join(finding.message for finding in refused.findings))
        if listing.problem is not None and uri.text in self._listed:
            # Its file could be read, but without the digest that the index has for it.
            raise listing.problem
        return unlisted_entry(uri, any_path=self._options.dialect is not None)

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        return await session.read(uri, max_bytes=max_bytes)


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return the client for a server that declared the extension, in whichever form its index is.

    Without a usable index it is the last resort: skills can still be loaded by
    their URIs. A dialect that the user chose needs no declaration.
    """
    is_chosen = options.dialect in _SHAPES and session.has_resources
    return await match_index(session, options) if session.declares_extension or is_chosen else None


async def find_april(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return the same client if the user chose the April form; otherwise `find` has tried both forms."""
    return await find(session, options) if options.dialect is Dialect.INDEX_APRIL else None


async def match_index(session: Session, options: DialectOptions) -> DialectMatch:
    """Read the index of a server, and return the client for its form.

    Raises:
        SkillError: The connection is lost.
    """
    listing = await _read(session, options)
    is_usable = listing is not None and (listing.problem is None or bool(listing.entries))
    if listing is None:
        listing = Listing((), dialect=_default_dialect(options))
    elif listing.problem is not None:
        logger.warning("the index of skills cannot be used: %s", listing.problem)
    listed = frozenset(entry.uri.text for entry in listing.entries)
    return DialectMatch(
        IndexDialectClient(listing.dialect, options, listed), listing, is_last_resort=not is_usable
    )


async def _read(session: Session, options: DialectOptions) -> Listing | None:
    """Read the index: None if there is none, and an empty listing with a problem if it cannot be used.

    Raises:
        SkillError: The connection is lost, which says nothing about the index.
    """
    most = min(MAX_INDEX_BYTES, options.limits.max_bytes)
    try:
        data = await session.read(INDEX_URI, max_bytes=most)
        work = partial(listing_of, data, options)
        return work() if len(data) <= _SMALL else await anyio.to_thread.run_sync(work)
    except (MessageTooLargeError, FloodError):
        raise
    except LimitError as error:
        problem = EndlessListingError(f"the index of skills is larger than {most} bytes")
        problem.__cause__ = error
        return Listing((), problem=problem, dialect=_default_dialect(options))
    except (NotFoundError, PeerError, InvalidAnswerError) as error:
        if is_absent(error):
            return None
        if is_closed(error):
            raise
        return Listing((), problem=error, dialect=_default_dialect(options))


def _default_dialect(options: DialectOptions) -> Dialect:
    """Return the dialect to report for an index that could not be read."""
    return Dialect.INDEX_APRIL if options.dialect is Dialect.INDEX_APRIL else Dialect.INDEX_JUNE


def listing_of(data: bytes, options: DialectOptions) -> Listing:
    """Parse an index in its own form; if the user chose a form, in no other.

    Raises:
        InvalidAnswerError: This is not an index, or not in a known or chosen form.
    """
    with gc_paused():
        value = _parsed(data)
        shape = index_shape(value)
        if shape is None:
            raise _unusable_index("has an unknown form", fix="ask the server's author for another form")
        index = cast(Mapping[str, object], value)
        skills = cast("list[object]", index["skills"])
        if options.dialect in _SHAPES and shape is not options.dialect:
            if not skills:
                return Listing((), dialect=_default_dialect(options))
            raise _unusable_index(
                f"is written in {shape}, but {options.dialect} was chosen", fix=f"choose {shape}"
            )
        if shape is Dialect.INDEX_APRIL and (findings := schema_findings(index.get("$schema"))):
            raise InvalidAnswerError(findings[0].message, violates=findings[0].rule)
        items_of = april_items if shape is Dialect.INDEX_APRIL else june_items
        most = options.limits.max_entries
        listing = build_listing(items_of(skills[:most], options), shape)
        if len(skills) > most:
            problem = EndlessListingError(f"the index of skills has more than {most} entries")
            return replace(listing, problem=problem)
        return listing


def _parsed(data: bytes) -> object:
    """Parse JSON strictly, so that all readers get the same value.

    Raises:
        InvalidAnswerError: It is not JSON, repeats a key, or is too large or too deep.
    """
    try:
        return parse_strictly(data)
    except StrictJsonError as error:
        raise _unusable_index(str(error)) from error


def _unusable_index(what: str, *, fix: str = "") -> InvalidAnswerError:
    return InvalidAnswerError(f"the index at {INDEX_URI} {what}", violates="NEG-13", fix=fix)
