"""The extension as its text of 4 August 2026 had it: no sizes, and dynamic skills without a marker.

Servers of that time cannot be told from broken ones, so nobody is heard this
way unless the user says so (DRAFT-10). All rules of `core` hold but these two:
a line without `size` promises a digest alone, and an entry without `resources`
is dynamic (CONF-04, CONF-05).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from skillwire.core.entry import DYNAMIC, SkillEntry, check_entry
from skillwire.core.finding import Finding
from skillwire.core.manifest import UNKNOWN_SIZE, Manifest
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import InvalidUriError
from skillwire.host.calls.enumeration import Listing, list_skills
from skillwire.host.calls.retrieval import get_skill
from skillwire.host.dialects.voice import Found, Hearing, Peer
from skillwire.wire.dialect import Dialect


class Core0804Voice:
    """A server that keeps to that text."""

    dialect = Dialect.CORE_0804

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        limits = hearing.limits
        listing = await list_skills(
            peer.client,
            max_pages=limits.max_pages,
            max_entries=limits.max_entries,
            max_bytes=limits.max_bytes,
            max_seconds=hearing.seconds,
            keep_partial=True,
            check=check_older_entries,
        )
        return replace(listing, dialect=self.dialect)

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        return await get_skill(peer.client, uri, max_seconds=None, check=check_older_entry)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        return await peer.read(uri, max_bytes=max_bytes)


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the user chose it, and the server declared the extension."""
    if hearing.dialect is not Dialect.CORE_0804 or not peer.declares_extension:
        return None
    voice = Core0804Voice()
    return Found(voice, await voice.list(peer, hearing))


def check_older_entries(values: Sequence[object]) -> Iterator[tuple[SkillEntry | None, list[Finding]]]:
    """Read each entry as `check_older_entry` does."""
    return map(check_older_entry, values)


def check_older_entry(value: object) -> tuple[SkillEntry | None, list[Finding]]:
    """Read an entry as `check_entry` does, with the two rules of that text."""
    if not isinstance(value, dict):
        return check_entry(value)
    raw = cast(Mapping[str, object], value)
    if "resources" not in raw:
        return check_entry({**raw, "resources": DYNAMIC})
    if not isinstance(raw["resources"], list):
        return check_entry(raw)
    lines = cast(list[object], raw["resources"])
    unknown = {uri for line in lines if (uri := _uri_without_size(line)) is not None}
    # A size that is told stays as it is; one that is not is made up for the check, and taken away again.
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
