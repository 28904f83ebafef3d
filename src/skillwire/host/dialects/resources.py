"""Servers that list skills as plain resources (`list-march`).

A listing has a name and a description. FastMCP's own provider also has one
small resource per skill with the digests of all files, which is read with the
listing. A skill without digests is dynamic. If the description in the file
differs from the listed one, the load is refused (ASK-30). A skill without a
description is listed by its name alone.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from skillwire.core import (
    DYNAMIC,
    MAX_FILES,
    SKILL_FILE,
    Dialect,
    InvalidEntryError,
    JsonValue,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    canonical_uri,
    check_entry,
    is_name,
    quoted,
)
from skillwire.host.calls import Listing, Session, shortened
from skillwire.host.dialects.base import (
    DialectMatch,
    DialectOptions,
    ListingItem,
    build_listing,
    is_absent,
    path_findings,
    unlisted_entry,
)
from skillwire.host.dialects.index import Resources, is_closed, match_index, walk
from skillwire.host.model import PeerError
from skillwire.wire.resources import (
    MAX_FILE_LIST,
    ResourceSkill,
    parse_file_list,
    restore_line_ends,
    skills_among,
)

MAX_FILE_LISTS: Final = 256
"""How many file lists are read for one listing; the others are read when their skill is requested."""

FILE_LIST_SECONDS: Final = 10.0
"""How long reading all of them may take."""

_CONCURRENT_READS = 4
# Findings about `core` entries that do not apply to resources, or are checked here.
_IGNORED_CODES = ("description-missing", "uri-name-mismatch")

logger = logging.getLogger(__name__)


class MarchDialectClient:
    """A client that requests nothing but resources."""

    dialect = Dialect.LIST_MARCH

    def __init__(self) -> None:
        self._options = DialectOptions()
        self._manifests: dict[str, Manifest] = {}
        self._spellings: dict[str, str] = {}

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        started = anyio.current_time()
        return await self.listing_from(session, options, await walk(session, options), started)

    async def listing_from(
        self, session: Session, options: DialectOptions, resources: Resources, started: float
    ) -> Listing:
        """Build a listing from resources that were listed; its deadline counts from `started`."""
        self._options = options
        skills = skills_among(resources.items)
        left = math.inf if options.seconds is None else options.seconds - (anyio.current_time() - started)
        file_lists = await _read_file_lists(session, skills, min(left, FILE_LIST_SECONDS))
        items = [_item(skill, file_lists.get(skill.uri.text), any_path=self._any_path) for skill in skills]
        self._manifests, self._spellings = {}, {}
        for skill, item in zip(skills, items, strict=True):
            if item.entry is not None:
                self._remember(skill, item.entry)
        return replace(
            build_listing(items, self.dialect),
            ttl_ms=resources.freshness.ttl_ms,
            cache_scope=resources.freshness.cache_scope,
            problem=resources.problem,
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        skill = await self._look_up(session, uri)
        if skill is None:
            return unlisted_entry(uri, any_path=self._any_path)
        content = None
        if skill.file_list is not None:
            try:
                content = await session.read(skill.file_list.spelling, max_bytes=MAX_FILE_LIST)
            except NotFoundError:
                logger.info("the file list of %s no longer exists", uri.text)
        item = _item(skill, content, any_path=self._any_path)
        if item.entry is None:
            raise InvalidEntryError("; ".join(finding.message for finding in shortened(item.findings)))
        self._remember(skill, item.entry)
        return item.entry

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        canonical = canonical_uri(uri)
        content = await session.read(self._spellings.get(canonical, uri), max_bytes=max_bytes)
        line = self._line_for(canonical)
        return content if line is None else restore_line_ends(content, line)

    @property
    def _any_path(self) -> bool:
        """Whether the user chose this dialect, in which a path need not end in the name."""
        return self._options.dialect is Dialect.LIST_MARCH

    async def _look_up(self, session: Session, uri: SkillUri) -> ResourceSkill | None:
        """Find one skill among the server's current resources, in the scope of its directory first."""
        resources = await walk(session, self._options, scope=uri.published.removesuffix(f"/{SKILL_FILE}"))
        found = _named(resources, uri)
        if not found and session.declares_extension:
            resources = await walk(session, self._options)
            found = _named(resources, uri)
        if len(found) > 1:
            raise InvalidEntryError(f"the server lists {quoted(uri.text)} {len(found)} times")
        if not found and resources.problem is not None:
            raise resources.problem
        return found[0] if found else None

    def _remember(self, skill: ResourceSkill, entry: SkillEntry) -> None:
        self._manifests.pop(entry.uri.root, None)
        if entry.manifest is not None:
            self._manifests[entry.uri.root] = entry.manifest
        self._spellings[entry.uri.text] = skill.resource.spelling
        for file in skill.files:
            if file.spelling != file.uri:
                self._spellings[file.uri] = file.spelling

    def _line_for(self, uri: str) -> ManifestFile | None:
        """Return the manifest line of a file, from the innermost skill around it that has one."""
        root = uri
        while (root := root.rpartition("/")[0]) and not root.endswith("/"):
            manifest = self._manifests.get(root)
            line = manifest.find(uri) if manifest is not None else None
            if line is not None:
                return line
        return None


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the extension and has skills among its resources."""
    if not session.declares_extension or not session.has_resources:
        return None
    return await _match(session, options)


async def find_undeclared(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return the client for a server that declared nothing but has skills among its resources.

    No `skills/*` request goes to such a server (NEG-05), and only the first part
    of a long listing is read. An index among the resources is preferred.
    """
    is_chosen = options.dialect is Dialect.LIST_MARCH
    if session.declares_extension or not session.has_resources:
        return None
    if session.skills_capability is not None and not is_chosen:
        return None
    return await _match(session, options)


async def _match(session: Session, options: DialectOptions) -> DialectMatch | None:
    client, is_chosen = MarchDialectClient(), options.dialect is Dialect.LIST_MARCH
    started = anyio.current_time()
    try:
        resources = await walk(session, options)
    except PeerError as error:
        # A server that never declared skills may fail to list resources without an error here.
        is_nothing = is_absent(error) or not (session.declares_extension or is_chosen or is_closed(error))
        if is_nothing:
            return None
        raise
    index = None
    if resources.has_index and not session.declares_extension and not is_chosen:
        index = await match_index(session, options)
        if not index.is_last_resort:
            return index
    listing = await client.listing_from(session, options, resources, started)
    # If the user chose this dialect, an empty listing is valid.
    if listing.entries or listing.refused or is_chosen:
        return DialectMatch(client, listing)
    return index


def _named(resources: Resources, uri: SkillUri) -> list[ResourceSkill]:
    return [skill for skill in skills_among(resources.items) if skill.uri == uri]


def _item(skill: ResourceSkill, file_list: bytes | None, *, any_path: bool) -> ListingItem:
    """Build the item of a skill: with digests if its file list is valid, and dynamic otherwise."""
    resource = skill.resource
    name = resource.name if any_path and is_name(resource.name) else skill.uri.name
    frontmatter: dict[str, JsonValue] = {"name": name}
    if skill.description is not None:
        frontmatter["description"] = skill.description
    raw: dict[str, JsonValue] = {"uri": skill.uri.published, "frontmatter": frontmatter}
    if file_list is not None:
        try:
            spellings = {file.uri: file.spelling for file in skill.files}
            raw["resources"] = parse_file_list(skill.uri, file_list, spellings)
        except InvalidEntryError as error:
            logger.info("the file list of %s is not used: %s", skill.uri.text, error)
        else:
            item = _checked(raw, any_path=any_path)
            if item.entry is not None:
                return item
            logger.info("the file list of %s is not used: %s", skill.uri.text, item.findings[0].message)
    item = _checked({**raw, "resources": DYNAMIC}, any_path=any_path)
    if item.entry is None:
        return replace(item, uri=skill.uri.text)
    files = tuple(file.uri for file in skill.files[:MAX_FILES])
    return replace(item, entry=replace(item.entry, dynamic_files=files))


def _checked(raw: dict[str, JsonValue], *, any_path: bool) -> ListingItem:
    """Check an entry with the rules of `core`, except those that do not apply to resources."""
    entry, findings = check_entry(raw)
    findings = [finding for finding in findings if finding.code not in _IGNORED_CODES]
    if entry is not None:
        findings += path_findings(entry.uri, entry.name, any_path=any_path)
    if entry is None or any(finding.is_error for finding in findings):
        return ListingItem(findings=tuple(findings))
    return ListingItem(replace(entry, is_summary=True), findings=tuple(findings))


async def _read_file_lists(
    session: Session, skills: Iterable[ResourceSkill], seconds: float
) -> dict[str, bytes]:
    """Read the file lists of up to `MAX_FILE_LISTS` skills, a few at a time; failures are skipped.

    Raises:
        PeerError: The connection ended.
    """
    found = {skill.uri.text: skill.file_list.spelling for skill in skills if skill.file_list is not None}
    contents: dict[str, bytes] = {}
    ended: list[SkillError] = []
    limiter = anyio.CapacityLimiter(_CONCURRENT_READS)

    async def read(uri: str, spelling: str) -> None:
        async with limiter:
            try:
                contents[uri] = await session.read(spelling, max_bytes=MAX_FILE_LIST)
            except SkillError as error:
                logger.info("the file list of %s cannot be read: %s", uri, error)
                if is_closed(error):
                    ended.append(error)
                    group.cancel_scope.cancel()

    with anyio.move_on_after(max(0.0, seconds)):
        async with anyio.create_task_group() as group:
            for uri, spelling in sorted(found.items())[:MAX_FILE_LISTS]:
                group.start_soon(partial(read, uri, spelling))
    if ended:
        raise ended[0]
    return contents
