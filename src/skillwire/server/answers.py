"""`Answers`: the result of each method as JSON values, for both protocol generations.

This is the plain path; entries and pages of them are written once, as bytes.
`hot.py` sends the bytes, and the plain path decodes them.
"""

import json
from bisect import bisect_right
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from starlette.requests import Request

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    InvalidUriError,
    JsonDict,
    NotFoundError,
    SkillEntry,
    SkillUri,
    canonical_uri,
    encode,
    media_type_of,
    quoted,
    segment_of,
)
from skillwire.server.browse import MAX_COMPLETED, children_of, completions, schemes_of
from skillwire.server.limits import DEFAULT_PAGE_SIZE
from skillwire.server.listed import ListedSkills, StoredListing, cut
from skillwire.server.meta import NO_ANNOTATIONS, MetaAnnotator
from skillwire.server.visibility import EVERYTHING_LISTED, ListingRules
from skillwire.sources.combined import CombinedSource, ServedFile
from skillwire.sources.snapshot import RangedEntries, Snapshot, entries_after, possible_skills
from skillwire.wire.core import (
    LIST_RESOURCES,
    LIST_SKILLS,
    READ_DIRECTORY,
    CacheScope,
    file_contents,
    read_cursor,
    skill_resource,
    write_cursor,
    write_entry,
)

_URI = itemgetter("uri")
_MAX_COMPLETIONS = 100


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """Settings of results: page size, `ttlMs` and `cacheScope`."""

    page_size: int = DEFAULT_PAGE_SIZE
    ttl_ms: int = 60_000
    cache_scope: CacheScope = "public"

    @property
    def cache_fields(self) -> JsonDict:
        """The members that every modern result has."""
        return {"ttlMs": self.ttl_ms, "cacheScope": self.cache_scope, "resultType": "complete"}


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file as `resources/read` returns it: the requested URI, the media type, the bytes.

    `digest` is the one in the manifest, and empty for a dynamic skill. With
    `is_private`, only this caller may read it, and no shared cache may store it.
    """

    uri: str
    media_type: str
    content: bytes
    digest: str
    is_private: bool = False


class Answers:
    """Results of methods, from the current snapshot of a catalog.

    With `modern`, a result has the members that revision 2026-07-28 requires:
    `resultType`, `ttlMs` and `cacheScope`. Older revisions never get them.
    """

    def __init__(
        self,
        source: CombinedSource,
        settings: ResultSettings,
        annotator: MetaAnnotator = NO_ANNOTATIONS,
        listing: ListingRules = EVERYTHING_LISTED,
        unlisted: Collection[str] = (),
    ) -> None:
        """Use these settings; skills that `listing` hides and URIs in `unlisted` are not listed."""
        self.source = source
        self.settings = settings
        self.annotator = annotator
        entries, size = source.snapshot.entries, settings.page_size
        self._listing: ListedSkills | StoredListing = (
            StoredListing(listing, entries, page_size=size, annotator=annotator)
            if isinstance(entries, RangedEntries)
            else ListedSkills(listing, unlisted, page_size=size, annotator=annotator)
        )

    @property
    def listing(self) -> ListedSkills | StoredListing:
        """The current listing."""
        listing = self._listing = self._listing.update(self.source.snapshot)
        return listing

    def listed_of(self, snapshot: Snapshot) -> Sequence[SkillEntry]:
        """Return the listed entries of a snapshot, sorted by URI."""
        return self.listing.update(snapshot).entries

    @property
    def cached_bytes(self) -> int:
        """The size of the cached pages in bytes."""
        return self._listing.cached_bytes

    def page_of_skills(self, cursor: str | None) -> bytes:
        """Return a page of `skills/list`: the first members of the object that is its result.

        Raises:
            InvalidCursorError: The cursor is not from this listing.
        """
        return self.listing.after(None if cursor is None else read_cursor(LIST_SKILLS, cursor))

    def list_skills(self, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `skills/list`.

        Raises:
            InvalidCursorError: The cursor is not from this listing.
        """
        return self.with_cache_fields(_decoded(b"{%b}" % self.page_of_skills(cursor)), modern=modern)

    async def get_skill(self, uri: str, *, modern: bool) -> JsonDict:
        """Answer `skills/get`.

        Raises:
            NotFoundError: No skill is served there.
        """
        try:
            wanted = SkillUri.parse(uri)
        except InvalidUriError as error:
            raise NotFoundError(f"no skill is served at {quoted(uri)}: {error}", uri=uri) from error
        entry = await self.source.get_skill(wanted)
        skill = _decoded(write_entry(self.annotator.entry(entry)))
        return self.with_cache_fields({"skill": skill}, modern=modern)

    async def read(self, uri: str) -> FileContent:
        """Return the file at `uri`, in any spelling.

        Raises:
            NotFoundError: No skill has such a file.
            SourceError: It cannot be read as published.
        """
        return self._file(uri, await self.source.read(uri))

    def read_small(self, uri: str) -> FileContent | None:
        """Return the file at `uri` without waiting; None when only `read` can answer. Thread-safe.

        Raises:
            NotFoundError: No listed skill has such a file.
        """
        file = self.source.read_small(uri)
        return None if file is None else self._file(uri, file)

    def _file(self, uri: str, file: ServedFile) -> FileContent:
        content, snapshot, entry, line = file
        wanted = canonical_uri(uri) if line is None else line.uri
        is_skill_file = segment_of(wanted) == SKILL_FILE if entry is None else wanted == entry.uri.text
        own_type = self.annotator.media_type if is_skill_file else ""
        media_type = own_type or snapshot.media_types.get(wanted) or media_type_of(wanted)
        return FileContent(uri, media_type, content, "" if line is None else line.digest)

    def read_result(self, file: FileContent, *, modern: bool) -> JsonDict:
        """Return the result of `resources/read`. A file without a digest gets `ttlMs` 0."""
        item = file_contents(file.uri, media_type=file.media_type, content=file.content)
        result = self.with_cache_fields({"contents": [item]}, modern=modern)
        if modern and not file.digest:
            result["ttlMs"] = 0
        if modern and file.is_private:
            result["cacheScope"] = "private"
        return result

    def read_directory(self, uri: str, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read`.

        Raises:
            NotFoundError: No directory is served there.
            InvalidCursorError: The cursor is not from this listing.
        """
        try:
            directory = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(f"{quoted(uri)} is not a directory: {error}", uri=uri) from error
        after = "" if cursor is None else read_cursor(READ_DIRECTORY, cursor)
        snapshot = self.source.snapshot
        children = children_of(snapshot, directory, self.describe, after=after)
        if children is None:
            raise NotFoundError(f"{directory} is not a directory", uri=uri)
        return self.with_cache_fields(self._directory_page(children, snapshot.by_uri), modern=modern)

    def directory_page(self, children: Sequence[JsonDict], cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read` with the given children, which are sorted by URI.

        Raises:
            InvalidCursorError: The cursor is not from this listing.
        """
        return self.with_cache_fields(self._page(READ_DIRECTORY, children, cursor), modern=modern)

    async def read_unlisted_directory(self, uri: str, cursor: str | None, *, modern: bool) -> JsonDict:
        """Answer `resources/directory/read` for a directory of a skill that is not in the snapshot.

        Raises:
            NotFoundError: No directory is served there.
            InvalidCursorError: The cursor is not from this listing.
        """
        directory = canonical_uri(uri)
        for skill in possible_skills(directory):
            try:
                entry = await self.source.get_skill(skill)
            except (NotFoundError, InvalidUriError):
                continue
            after = "" if cursor is None else read_cursor(READ_DIRECTORY, cursor)
            children = children_of(Snapshot.of([entry]), directory, self.describe, after=after)
            if children is not None:
                return self.with_cache_fields(
                    self._directory_page(children, {entry.uri.published}), modern=modern
                )
            break
        raise NotFoundError(f"{directory} is not a directory", uri=uri)

    def is_directory(self, uri: str) -> bool:
        """Return whether `uri`, in any spelling, is a directory."""
        try:
            return children_of(self.source.snapshot, canonical_uri(uri)) is not None
        except InvalidUriError:
            return False

    def list_resources(self, cursor: str | None) -> JsonDict:
        """Return a page of `resources/list`: the `SKILL.md` of every listed skill.

        Raises:
            InvalidCursorError: The cursor is not from this listing.
        """
        after = None if cursor is None else read_cursor(LIST_RESOURCES, cursor)
        few = entries_after(self.listing.entries, after)[: self.settings.page_size + 1]
        described = [self.describe(entry) for entry in few[: self.settings.page_size]]
        taken = cut(described, 0, len(described), encode)[1]
        result: JsonDict = {"resources": described[:taken]}
        if taken < len(few):
            result["nextCursor"] = write_cursor(LIST_RESOURCES, few[taken - 1].uri.text)
        return result

    def templates(self) -> list[JsonDict]:
        """Return a resource template for each scheme."""
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
        """Complete the path in a template of `templates`; return None for any other template."""
        scheme, separator, rest = template.partition("://")
        if not separator or rest != "{+path}" or argument != "path" or scheme not in self._schemes:
            return None
        values = completions(self.source.snapshot, scheme, typed)
        # An exact total beyond this number would take long to count.
        total = {"total": len(values)} if len(values) < MAX_COMPLETED else {}
        return {"values": values[:_MAX_COMPLETIONS], **total, "hasMore": len(values) > _MAX_COMPLETIONS}

    def describe(self, entry: SkillEntry) -> JsonDict:
        """Return the resource of a skill's `SKILL.md`."""
        described = skill_resource(entry, modified=self.source.modified_at(entry.uri))
        return self.annotator.describe(described, entry)

    def with_cache_fields(self, result: JsonDict, *, modern: bool = True) -> JsonDict:
        """Return a result with the members that every modern one has; older ones have no more."""
        return {**result, **self.settings.cache_fields} if modern else result

    @property
    def _schemes(self) -> list[str]:
        return schemes_of(self.source.snapshot) or [DEFAULT_SCHEME]

    def _page(self, listing: str, items: Sequence[JsonDict], cursor: str | None) -> JsonDict:
        start = 0 if cursor is None else bisect_right(items, read_cursor(listing, cursor), key=_URI)
        stop = cut(items, start, self.settings.page_size, encode)[1]
        result: dict[str, Any] = {"resources": list(items[start:stop])}
        if stop < len(items):
            result["nextCursor"] = write_cursor(listing, items[stop - 1]["uri"])
        return result

    def _directory_page(self, children: Iterator[JsonDict], skills: Container[str]) -> JsonDict:
        few = list(islice(children, self.settings.page_size + 1))
        self._note_others(few, skills)
        stop = cut(few, 0, self.settings.page_size, encode)[1]
        result: JsonDict = {"resources": few[:stop]}
        if stop < len(few):
            result["nextCursor"] = write_cursor(READ_DIRECTORY, few[stop - 1]["uri"])
        return result

    def _note_others(self, children: Sequence[JsonDict], skills: Container[str]) -> None:
        """Add `_meta` to every resource except a `SKILL.md`, which already has it."""
        if self.annotator.annotate is not None:
            for child in children:
                if child["uri"] not in skills:
                    self.annotator.describe_other(child)


def _decoded(written: bytes) -> JsonDict:
    # Not orjson, which makes floats of large integers and refuses lone surrogates.
    return json.loads(written)


# `If-None-Match`.


def etag_matches(request: Request, etag: str) -> bool:
    """Return whether the `If-None-Match` header of a request matches `etag`."""
    tags = ",".join(request.headers.getlist("if-none-match"))
    return tags.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in tags.split(","))
