"""Servers that have skills among their resources, and no other word for them (`list-march`).

A listing tells a name and a description, and FastMCP's own provider also where
the digests of all files are: in one small resource per skill, which is read
with the listing. What has no digests is dynamic. A description is believed until
the file is there: where the file says something else, the load is refused
(ASK-30). A skill without one is listed by its name alone.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from skillwire.core.characters import quoted
from skillwire.core.entry import DYNAMIC, SkillEntry, check_entry
from skillwire.core.fields import is_name
from skillwire.core.manifest import MAX_FILES, Manifest, ManifestFile
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidEntryError, NotFoundError, SkillError
from skillwire.host.calls.enumeration import Listing, shortened
from skillwire.host.dialects.gathering import Item, gathered
from skillwire.host.dialects.indexes import hear
from skillwire.host.dialects.resources import Resources, is_closed, walk
from skillwire.host.dialects.unlisted import entry_from_file, path_findings
from skillwire.host.dialects.voice import Found, Hearing, Peer, is_absent
from skillwire.host.failures import PeerError
from skillwire.wire.dialect import Dialect
from skillwire.wire.march import MAX_FILE_LIST, ResourceSkill, parse_file_list, restored, skills_among

MAX_FILE_LISTS: Final = 256
"""How many file lists are read for one listing; any other is read when its skill is asked for."""

FILE_LIST_SECONDS: Final = 10.0
"""How long reading them may take, altogether."""

_AT_ONCE = 4
# What an entry of `core` must tell and a resource need not, and what is judged here.
_NOT_TOLD = ("description-missing", "uri-name-mismatch")

logger = logging.getLogger(__name__)


class MarchVoice:
    """A server that is asked for nothing but resources."""

    dialect = Dialect.LIST_MARCH

    def __init__(self) -> None:
        self._hearing = Hearing()
        self._manifests: dict[str, Manifest] = {}
        self._spellings: dict[str, str] = {}

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        started = anyio.current_time()
        return await self.take(peer, hearing, await walk(peer, hearing), started)

    async def take(self, peer: Peer, hearing: Hearing, resources: Resources, started: float) -> Listing:
        """Make a listing of resources that have been walked through; its time runs since `started`."""
        self._hearing = hearing
        skills = skills_among(resources.items)
        left = math.inf if hearing.seconds is None else hearing.seconds - (anyio.current_time() - started)
        file_lists = await _read_file_lists(peer, skills, min(left, FILE_LIST_SECONDS))
        items = [_item(skill, file_lists.get(skill.uri.text), any_path=self._any_path) for skill in skills]
        self._manifests, self._spellings = {}, {}
        for skill, item in zip(skills, items, strict=True):
            if item.entry is not None:
                self._remember(skill, item.entry)
        return replace(
            gathered(items, self.dialect),
            ttl_ms=resources.freshness.ttl_ms,
            cache_scope=resources.freshness.cache_scope,
            problem=resources.problem,
        )

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        skill = await self._look_up(peer, uri)
        if skill is None:
            return await entry_from_file(peer, uri, any_path=self._any_path)
        content = None
        if skill.file_list is not None:
            try:
                content = await peer.read(skill.file_list.spelling, max_bytes=MAX_FILE_LIST)
            except NotFoundError:
                logger.info("%s has no file list any more", uri.text)
        item = _item(skill, content, any_path=self._any_path)
        if item.entry is None:
            raise InvalidEntryError("; ".join(finding.message for finding in shortened(item.findings)))
        self._remember(skill, item.entry)
        return item.entry

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        canonical = canonical_uri(uri)
        content = await peer.read(self._spellings.get(canonical, uri), max_bytes=max_bytes)
        line = self._line_for(canonical)
        return content if line is None else restored(content, line)

    @property
    def _any_path(self) -> bool:
        """Whether the user said that this server is so old that a path need not end in the name."""
        return self._hearing.dialect is Dialect.LIST_MARCH

    async def _look_up(self, peer: Peer, uri: SkillUri) -> ResourceSkill | None:
        """Find one skill among the server's resources as they are now, asking for little where that helps."""
        resources = await walk(peer, self._hearing, scope=uri.published.removesuffix(f"/{SKILL_FILE}"))
        found = _named(resources, uri)
        if not found and peer.declares_extension:
            resources = await walk(peer, self._hearing)
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
        """Return what is promised about a file, by the innermost skill around it that promises anything."""
        root = uri
        while (root := root.rpartition("/")[0]) and not root.endswith("/"):
            manifest = self._manifests.get(root)
            line = manifest.find(uri) if manifest is not None else None
            if line is not None:
                return line
        return None


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the server declared the extension and has skills among its resources."""
    if not peer.declares_extension or not peer.has_resources:
        return None
    return await _found(peer, hearing)


async def find_undeclared(peer: Peer, hearing: Hearing) -> Found | None:
    """Return the voice of a server that declared nothing, and has skills among its resources all the same.

    No `skills/*` goes to such a server (NEG-05), and only a part of a long
    listing is looked through. An index among the resources is preferred to them.
    """
    is_chosen = hearing.dialect is Dialect.LIST_MARCH
    if peer.declares_extension or not peer.has_resources:
        return None
    if peer.skills_capability is not None and not is_chosen:
        return None
    return await _found(peer, hearing)


async def _found(peer: Peer, hearing: Hearing) -> Found | None:
    voice, is_chosen = MarchVoice(), hearing.dialect is Dialect.LIST_MARCH
    started = anyio.current_time()
    try:
        resources = await walk(peer, hearing)
    except PeerError as error:
        # Of a server that never spoke of skills, a broken list of resources is nothing to complain of.
        is_nothing = is_absent(error) or not (peer.declares_extension or is_chosen or is_closed(error))
        if is_nothing:
            return None
        raise
    index = None
    if resources.has_index and not peer.declares_extension and not is_chosen:
        index = await hear(peer, hearing)
        if not index.is_last_resort:
            return index
    listing = await voice.take(peer, hearing, resources, started)
    # Whoever chose this dialect knows that the server speaks it, with skills or without.
    if listing.entries or listing.refused or is_chosen:
        return Found(voice, listing)
    return index


def _named(resources: Resources, uri: SkillUri) -> list[ResourceSkill]:
    return [skill for skill in skills_among(resources.items) if skill.uri == uri]


def _item(skill: ResourceSkill, file_list: bytes | None, *, any_path: bool) -> Item:
    """Make an entry of a skill: with digests if its file list is one, and dynamic otherwise."""
    resource = skill.resource
    name = resource.name if any_path and is_name(resource.name) else skill.uri.name
    told: dict[str, JsonValue] = {"name": name}
    if skill.description is not None:
        told["description"] = skill.description
    raw: dict[str, JsonValue] = {"uri": skill.uri.published, "frontmatter": told}
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


def _checked(raw: dict[str, JsonValue], *, any_path: bool) -> Item:
    """Read an entry as if it were one of `core`, but for what this dialect does not tell."""
    entry, findings = check_entry(raw)
    findings = [finding for finding in findings if finding.code not in _NOT_TOLD]
    if entry is not None:
        findings += path_findings(entry.uri, entry.name, any_path=any_path)
    if entry is None or any(finding.is_error for finding in findings):
        return Item(findings=tuple(findings))
    return Item(replace(entry, is_summary=True), findings=tuple(findings))


async def _read_file_lists(peer: Peer, skills: Iterable[ResourceSkill], seconds: float) -> dict[str, bytes]:
    """Read the file lists of as many skills as may be, a few at a time; each that fails costs only itself.

    Raises:
        PeerError: The connection ended.
    """
    found = {skill.uri.text: skill.file_list.spelling for skill in skills if skill.file_list is not None}
    contents: dict[str, bytes] = {}
    ended: list[SkillError] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def read(uri: str, spelling: str) -> None:
        async with limiter:
            try:
                contents[uri] = await peer.read(spelling, max_bytes=MAX_FILE_LIST)
            except SkillError as error:
                logger.info("the file list of %s cannot be had: %s", uri, error)
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
