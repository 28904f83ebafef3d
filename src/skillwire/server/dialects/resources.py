"""`list-march`: `resources/list` scoped to one URI."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import ClassVar, Final, TypeVar

from skillwire.core import (
    DEFAULT_SCHEME,
    Dialect,
    InvalidUriError,
    JsonDict,
    SkillEntry,
    canonical_uri,
    encode,
    media_type_of,
)
from skillwire.server.browse import has_skills_below, skill_around
from skillwire.server.dialects.base import DialectServer
from skillwire.server.listed import cut
from skillwire.sources.snapshot import Snapshot, entries_after, entries_below
from skillwire.wire.core import file_resource, read_cursor, skill_resource, write_cursor

SCOPED: Final = "resources/list/scoped"

Item = TypeVar("Item")

_ENTRY_URI = attrgetter("uri.text")


class ListMarch(DialectServer):
    """Scoped listing, as the drafts of 17 and 19 March 2026 had it.

    `skill://` returns every listed `SKILL.md`, the folder of a skill all its
    files, and a folder of skills the `SKILL.md` of each. An unknown folder is
    empty. For an unknown scheme everything is listed, as by a server without
    scopes.
    """

    dialect: ClassVar[Dialect] = Dialect.LIST_MARCH

    def list_scoped(self, uri: str, cursor: str | None) -> JsonDict | None:
        """Answer `resources/list` for one scope.

        Raises:
            InvalidCursorError: The cursor is not from this listing.
        """
        after = None if cursor is None else read_cursor(SCOPED, cursor)
        snapshot = self.skills.answers.source.snapshot
        scheme, separator, rest = uri.partition("://")
        if not separator or not _is_known(snapshot, scheme.lower()):
            return None
        if not rest:
            # A scheme and a slash, like a directory, begin every URI below them.
            return self._skills_page(f"{scheme.lower()}:/", after)
        try:
            directory = canonical_uri(uri.rstrip("/"))
        except InvalidUriError:
            return {"resources": []}
        skill = skill_around(snapshot, directory)
        if skill is None:
            return self._skills_page(directory, after)
        return self._files_page(snapshot, skill, directory, after)

    def _skills_page(self, directory: str, after: str | None) -> JsonDict:
        entries = entries_below(self.skills.answers.listing.entries, directory)
        return self._page(entries_after(entries, after), _ENTRY_URI, self._describe)

    def _files_page(
        self, snapshot: Snapshot, skill: SkillEntry, directory: str, after: str | None
    ) -> JsonDict:
        manifest, inside = skill.manifest, directory + "/"
        if manifest is None:
            sizes: dict[str, int | None] = dict.fromkeys((skill.uri.text, *skill.dynamic_files))
        else:
            sizes = dict(zip(manifest.uris, manifest.sizes, strict=True))

        def describe(uri: str) -> JsonDict:
            entry = snapshot.by_uri.get(uri)
            if entry is not None:
                return self._describe(entry)
            media_type = snapshot.media_types.get(uri) or media_type_of(uri)
            return file_resource(uri, media_type=media_type, size=sizes[uri])

        uris = sorted(uri for uri in sizes if uri.startswith(inside) and (after is None or uri > after))
        return self._page(uris, str, describe)

    def _page(
        self,
        items: Sequence[Item],
        uri_of: Callable[[Item], str],
        describe: Callable[[Item], JsonDict],
    ) -> JsonDict:
        few = items[: self.skills.answers.settings.page_size + 1]
        described = [describe(item) for item in few[: self.skills.answers.settings.page_size]]
        taken = cut(described, 0, len(described), encode)[1]
        result: JsonDict = {"resources": described[:taken]}
        if taken < len(few):
            result["nextCursor"] = write_cursor(SCOPED, uri_of(few[taken - 1]))
        return result

    def _describe(self, entry: SkillEntry) -> JsonDict:
        return skill_resource(entry, modified=self.skills.answers.source.modified_at(entry.uri))


def _is_known(snapshot: Snapshot, scheme: str) -> bool:
    return scheme == DEFAULT_SCHEME or has_skills_below(snapshot, f"{scheme}:/")
