"""The resource `skill://index.json`: where the June and the April dialect keep their listing.

Neither says which of the two it is; the entries do (NEG-13).
"""

from collections.abc import Mapping
from typing import Final, cast

from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.manifest import is_digest
from skillwire.core.uri import canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.wire.dialect import Dialect

INDEX_URI: Final = "skill://index.json"
INDEX_MEDIA_TYPE: Final = "application/json"

_NOTHING: Mapping[str, JsonValue] = {}


def index_shape(value: object) -> Dialect | None:
    """Tell which dialect an index is written in, or None when it is none that we know.

    The first entry that gives itself away decides: one mixture of both in a
    listing is still a listing, and each entry is checked on its own later.
    """
    if not isinstance(value, dict):
        return None
    index = cast(Mapping[str, object], value)
    skills = index.get("skills")
    if not isinstance(skills, list):
        return None
    entries = [
        cast(Mapping[str, object], item) for item in cast(list[object], skills) if isinstance(item, dict)
    ]
    if any("frontmatter" in entry for entry in entries):
        return Dialect.INDEX_JUNE
    if "$schema" not in index:
        return None if skills else Dialect.INDEX_JUNE
    if not skills or any("type" in entry for entry in entries):
        return Dialect.INDEX_APRIL
    return None


def url_finding(url: str) -> Finding | None:
    """Say what is wrong with the URI of something other than a `SKILL.md`, if anything is."""
    try:
        canonical_uri(url)
    except InvalidUriError as error:
        return Finding("uri-invalid", str(error), file="")
    return None


def checked_digest(value: object, url: str) -> tuple[str | None, Finding | None]:
    """Return a digest, or say that the one of `url` is malformed."""
    if isinstance(value, str) and is_digest(value):
        return value, None
    return None, Finding("index-digest-invalid", f"{quoted(url)} has no well-formed sha256 digest", file="")


def unknown_fields(raw: Mapping[str, object], known: frozenset[str]) -> Mapping[str, JsonValue]:
    """Return the fields this version does not know, so that a relay passes them on (NEG-19)."""
    if raw.keys() <= known:
        return _NOTHING
    return {key: cast(JsonValue, item) for key, item in raw.items() if key not in known}
