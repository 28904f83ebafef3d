"""The released extension, and its draft of 4 August 2026.

`core` has `skills/list` and `skills/get`, every file with a digest. The draft
has no sizes, and dynamic skills without a marker. Its servers cannot be
distinguished from broken ones, so it is used only if the user chose it
(DRAFT-10). All rules of `core` apply except these two: a line without `size` has
only a digest, and an entry without `resources` is dynamic (CONF-04, CONF-05).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from skillwire.core import (
    DYNAMIC,
    UNKNOWN_SIZE,
    Dialect,
    Finding,
    InvalidUriError,
    Manifest,
    SkillEntry,
    SkillUri,
    canonical_uri,
    check_entry,
)
from skillwire.host.calls import Listing, Session, get_skill, list_skills
from skillwire.host.dialects.base import DialectMatch, DialectOptions, try_list


class CoreDialectClient:
    """A client for servers of the released extension."""

    dialect = Dialect.CORE

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        limits = options.limits
        return await list_skills(
            session.client,
            max_pages=limits.max_pages,
            max_entries=limits.max_entries,
            max_bytes=limits.max_bytes,
            max_seconds=options.seconds,
            keep_partial=True,
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        return await get_skill(session.client, uri, max_seconds=None)

    read = staticmethod(Session.read)


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the extension and supports `skills/list`."""
    if not session.declares_extension:
        return None
    client = CoreDialectClient()
    return await try_list(client, session, options)


class Core0804DialectClient:
    """A client for servers of that draft."""

    dialect = Dialect.CORE_0804

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        limits = options.limits
        listing = await list_skills(
            session.client,
            max_pages=limits.max_pages,
            max_entries=limits.max_entries,
            max_bytes=limits.max_bytes,
            max_seconds=options.seconds,
            keep_partial=True,
            check=check_older_entries,
        )
        return replace(listing, dialect=self.dialect)

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        return await get_skill(session.client, uri, max_seconds=None, check=check_older_entry)

    read = staticmethod(Session.read)


async def find_0804(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the user chose it, and the server declared the extension."""
    if options.dialect is not Dialect.CORE_0804 or not session.declares_extension:
        return None
    client = Core0804DialectClient()
    return DialectMatch(client, await client.list(session, options))


def check_older_entries(values: Sequence[object]) -> Iterator[tuple[SkillEntry | None, list[Finding]]]:
    """Check each entry with `check_older_entry`."""
    return map(check_older_entry, values)


def check_older_entry(value: object) -> tuple[SkillEntry | None, list[Finding]]:
    """Check an entry like `check_entry`, with the two rules of that draft."""
    if not isinstance(value, dict):
        return check_entry(value)
    raw = cast(Mapping[str, object], value)
    if "resources" not in raw:
        return check_entry({**raw, "resources": DYNAMIC})
    if not isinstance(raw["resources"], list):
        return check_entry(raw)
    lines = cast(list[object], raw["resources"])
    unknown = {uri for line in lines if (uri := _uri_without_size(line)) is not None}
    # A missing size is replaced by 0 for the check, and removed again afterwards.
    entry, findings = check_entry({**raw, "resources": [_with_size(line) for line in lines]})
    if entry is None or entry.manifest is None or not unknown:
        return entry, findings
    files = [
        replace(file, size=UNKNOWN_SIZE) if file.uri in unknown else file for file in entry.manifest.files
    ]
    return replace(entry, manifest=Manifest.of(files)), findings


def _uri_without_size(line: object) -> str | None:
    if not isinstance(line, dict) or "size" in line:
        return None
    uri = cast(Mapping[str, object], line).get("uri")
    try:
        return canonical_uri(uri) if isinstance(uri, str) else None
    except InvalidUriError:
        return None


def _with_size(line: object) -> object:
    if not isinstance(line, dict) or "size" in line:
        return cast(object, line)
    return {**cast(Mapping[str, object], line), "size": 0}
