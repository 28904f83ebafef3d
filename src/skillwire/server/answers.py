"""`Answers`: what each method answers, as JSON values, for either protocol generation.

This is the plain path. `hot.py` gives the same answers as prepared bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.media import media_type_of
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri, canonical_uri, segment_of
from skillwire.errors import InvalidUriError, NotFoundError
from skillwire.server.browsing import MAX_COMPLETED, children_of, completions, schemes_of
from skillwire.server.listing import EVERYTHING_LISTED, Lister, Listing
from skillwire.server.notes import NO_NOTES, Notes
from skillwire.server.pages import DEFAULT_PAGE_SIZE, EntryPages, cut
from skillwire.sources import Catalog, Snapshot
from skillwire.wire.core import (
    LIST_RESOURCES,
    LIST_SKILLS,
    READ_DIRECTORY,
    CacheScope,
    JsonDict,
    file_contents,
    skill_resource,
)
from skillwire.wire.cursor import read_cursor, write_cursor
from skillwire.wire.encoding import encode

_URI = itemgetter("uri")
_ENTRY_URI = attrgetter("uri.text")
_MAX_COMPLETIONS = 100
# How far up to look for the skill that a directory may belong to.
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms answers are given: how many items to a page, how long they stay fresh, and for whom.

    `kept_bytes` is how much is kept ready to be sent: pages of listings, and files.
    """

    page_size: int = DEFAULT_PAGE_SIZE
    ttl_ms: int = 60_000
    cache_scope: CacheScope = "public"
    kept_bytes: int = 40 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file as it is answered: the URI as it was asked for, its media type, its bytes.

    `digest` is the manifest's, and empty when the skill promises none. What
    `is_private` is for its caller alone, and no cache may share it.
    """

    uri: str
    media_type: str
    content: bytes
    digest: str
    is_private: bool = False


class Answers:
    """Answers from a catalog's current snapshot.

    With `modern`, a result carries what revision 2026-07-28 asks for, and
    never otherwise: `resultType`, `ttlMs` and `cacheScope`.
    """

    def __init__(
        self,
        catalog: Catalog,
        terms: Terms,
        notes: Notes = NO_NOTES,
        listing: Listing = EVERYTHING_LISTED,
        unlisted: Collection[str] = (),
    ) -> None:
        """Answer on these terms; what `listing` leaves out and the URIs in `unlisted` are not listed."""
        self.catalog = catalog
        self.terms = terms
        self.notes = notes
        self._lister = Lister(listing, unlisted)
        self._listed: tuple[Snapshot, tuple[SkillEntry, ...]] | None = None
        self._pages = EntryPages((), terms.page_size, notes.entry, kept_bytes=terms.kept_bytes * 3 // 5)

    @property
    def listed(self) -> tuple[SkillEntry, ...]:
        """The entries that are listed now, sorted by URI: all or some of those that are served."""
        return self.listed_of(self.catalog.snapshot)

    def listed_of(self, snapshot: Snapshot) -> tuple[SkillEntry, ...]:
        """Return the entries of a snapshot that are listed; of the current one they are found out once."""
        known = self._listed
        if known is not None and known[0] is snapshot:
            return known[1]
        listed = self._lister.of(snapshot.entries)
        if snapshot is self.catalog.snapshot:
            self._listed = snapshot, listed
        return listed

    def is_listed(self, entry: SkillEntry) -> bool:
        """Tell whether a skill is listed now."""
        listed = self.listed
        position = bisect_left(listed, entry.uri.text, key=_ENTRY_URI)
        return position < len(listed) and listed[position].uri == entry.uri

    @property
    def pages(self) -> EntryPages:
        """The pages of the listing as it is now."""
        pages, listed = self._pages, self.listed
        if pages.entries is not listed:
            pages = self._pages = pages.for_entries(listed)
        return pages

    def list_skills(self, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `skills/list`.

        Raises:
            InvalidCursorError: The cursor is none of ours.
        """
        after = None if cursor is None else read_cursor(LIST_SKILLS, cursor)
        pages = self.pages
        page = pages.after(after)
        result: JsonDict = {
            "skills": [self.notes.entry(entry).to_json() for entry in pages.entries[page.start : page.stop]]
        }
        if page.next_cursor is not None:
            result["nextCursor"] = page.next_cursor
        return self.on_terms(result, modern=modern)

    async def get_skill(self, uri: str, *, modern: bool) -> JsonDict:
        """Answer `skills/get`.

        Raises:
            NotFoundError: No skill is served there.
        """
        try:
            wanted = SkillUri.parse(uri)
        except InvalidUriError as error:
            raise NotFoundError(f"no skill is served at {quoted(uri)}: {error}", uri=uri) from error
        entry = await self.catalog.get_skill(wanted)
        return self.on_terms({"skill": self.notes.entry(entry).to_json()}, modern=modern)

    async def read(self, uri: str) -> FileContent:
        """Return the file at `uri`, in any spelling.

        Raises:
            NotFoundError: No skill has such a file.
            SourceError: It cannot be read as published.
        """
        before = self.catalog.snapshot
        content = await self.catalog.read_file(uri)
        snapshot, wanted, digest = self.catalog.snapshot, canonical_uri(uri), ""
        is_skill_file = wanted in snapshot.by_uri
        # When the catalog moved on meanwhile, only the bytes are certain.
        if snapshot is before:
            try:
                file = snapshot.locate(wanted)[1]
                digest = "" if file is None else file.digest
            except NotFoundError:
                is_skill_file = segment_of(wanted) == SKILL_FILE  # Of a skill that nobody lists.
        own_type = self.notes.media_type if is_skill_file else ""
        media_type = own_type or snapshot.media_types.get(wanted) or media_type_of(wanted)
        return FileContent(uri, media_type, content, digest)

    def read_result(self, file: FileContent, *, modern: bool) -> JsonDict:
        """Make the result of `resources/read`. What has no digest is stale at once."""
        item = file_contents(file.uri, media_type=file.media_type, content=file.content)
        result = self.on_terms({"contents": [item]}, modern=modern)
        if modern and not file.digest:
            result["ttlMs"] = 0
        if modern and file.is_private:
            result["cacheScope"] = "private"
        return result

    def read_directory(self, uri: str, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read`.

        Raises:
            NotFoundError: No directory is served there.
            InvalidCursorError: The cursor is none of ours.
        """
        try:
            directory = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(f"{quoted(uri)} is not a directory: {error}", uri=uri) from error
        after = "" if cursor is None else read_cursor(READ_DIRECTORY, cursor)
        snapshot = self.catalog.snapshot
        children = children_of(snapshot, directory, self.describe, after=after)
        if children is None:
            raise NotFoundError(f"{directory} is not a directory", uri=uri)
        return self.on_terms(self._directory_page(children, snapshot.by_uri), modern=modern)

    def directory_page(self, children: Sequence[JsonDict], cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read` with children, sorted by URI, from wherever they come.

        Raises:
            InvalidCursorError: The cursor is none of ours.
        """
        return self.on_terms(self._page(READ_DIRECTORY, children, cursor), modern=modern)

    async def read_unlisted_directory(self, uri: str, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read` for a directory of a skill that is served and not listed.

        Raises:
            NotFoundError: No directory is served there.
            InvalidCursorError: The cursor is none of ours.
        """
        root = directory = canonical_uri(uri)
        for _ in range(_MAX_DEPTH):
            try:
                entry = await self.catalog.get_skill(SkillUri.parse(f"{root}/{SKILL_FILE}"))
            except (NotFoundError, InvalidUriError):
                root = root.rpartition("/")[0]
                continue
            after = "" if cursor is None else read_cursor(READ_DIRECTORY, cursor)
            children = children_of(Snapshot.of([entry]), directory, self.describe, after=after)
            if children is not None:
                return self.on_terms(self._directory_page(children, {entry.uri.published}), modern=modern)
            break
        raise NotFoundError(f"{directory} is not a directory", uri=uri)

    def is_directory(self, uri: str) -> bool:
        """Tell whether `uri`, in any spelling, names a directory."""
        try:
            return children_of(self.catalog.snapshot, canonical_uri(uri)) is not None
        except InvalidUriError:
            return False

    def list_resources(self, cursor: str | None) -> JsonDict:
        """Return a page of `resources/list`: the `SKILL.md` of every listed skill.

        Raises:
            InvalidCursorError: The cursor is none of ours.
        """
        entries = self.listed
        start = 0
        if cursor is not None:
            start = bisect_right(entries, read_cursor(LIST_RESOURCES, cursor), key=_ENTRY_URI)
        few = [self.describe(entry) for entry in entries[start : start + self.terms.page_size]]
        taken = cut(few, 0, len(few), encode)[1]
        result: JsonDict = {"resources": few[:taken]}
        if start + taken < len(entries):
            result["nextCursor"] = write_cursor(LIST_RESOURCES, entries[start + taken - 1].uri.text)
        return result

    def templates(self) -> list[JsonDict]:
        """Return a resource template for each scheme, for people who browse."""
        return [
            {
                "name": f"{scheme}-files",
                "title": "Files of skills",
                "uriTemplate": f"{scheme}://{{+path}}",
                "description": "A file of an Agent Skill: the skill's path, then the file's path inside it.",
            }
            for scheme in self._schemes
        ]

    def complete(self, template: str, argument: str, typed: str) -> JsonDict | None:
        """Complete the path in one of our templates; None when the template is not ours."""
        scheme, separator, rest = template.partition("://")
        if not separator or rest != "{+path}" or argument != "path" or scheme not in self._schemes:
            return None
        values = completions(self.catalog.snapshot, scheme, typed)
        # Nobody needs to know how many there are beyond thousands, and counting them takes long.
        total = {"total": len(values)} if len(values) < MAX_COMPLETED else {}
        return {"values": values[:_MAX_COMPLETIONS], **total, "hasMore": len(values) > _MAX_COMPLETIONS}

    def describe(self, entry: SkillEntry) -> JsonDict:
        """Describe a skill's `SKILL.md` as the resource it is."""
        described = skill_resource(entry, modified=self.catalog.modified_at(entry.uri))
        return self.notes.describe(described, entry)

    def on_terms(self, result: JsonDict, *, modern: bool = True) -> JsonDict:
        """Add what every modern result carries, and nothing to an older one."""
        if modern:
            result["ttlMs"] = self.terms.ttl_ms
            result["cacheScope"] = self.terms.cache_scope
            result["resultType"] = "complete"
        return result

    @property
    def _schemes(self) -> list[str]:
        return schemes_of(self.catalog.snapshot) or [DEFAULT_SCHEME]

    def _page(self, listing: str, items: Sequence[JsonDict], cursor: str | None) -> JsonDict:
        start = 0 if cursor is None else bisect_right(items, read_cursor(listing, cursor), key=_URI)
        stop = cut(items, start, self.terms.page_size, encode)[1]
        result: dict[str, Any] = {"resources": list(items[start:stop])}
        if stop < len(items):
            result["nextCursor"] = write_cursor(listing, items[stop - 1]["uri"])
        return result

    def _directory_page(self, children: Iterator[JsonDict], skills: Container[str]) -> JsonDict:
        few = list(islice(children, self.terms.page_size + 1))
        self._note_others(few, skills)
        stop = cut(few, 0, self.terms.page_size, encode)[1]
        result: JsonDict = {"resources": few[:stop]}
        if stop < len(few):
            result["nextCursor"] = write_cursor(READ_DIRECTORY, few[stop - 1]["uri"])
        return result

    def _note_others(self, children: Sequence[JsonDict], skills: Container[str]) -> None:
        """Add notes to the resources that are no skill's `SKILL.md`; those have theirs."""
        if self.notes.annotate is not None:
            for child in children:
                if child["uri"] not in skills:
                    self.notes.describe_other(child)
