"""The common shape of a stranger's entries, recognised fast.

A host reads many thousand entries, and nearly all are alike. What is plain
here is accepted all at once; about anything else these functions say nothing,
and `check_entry` reads it with care, rule by rule. A test holds the two
against each other: where one of these answers, both answer the same.
"""

import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, cast

from skillwire.core.fields import (
    KNOWN_FIELDS,
    MAX_COMPATIBILITY,
    MAX_DESCRIPTION,
    RESERVED_METADATA_PREFIX,
    is_name,
)
from skillwire.core.manifest import MAX_JSON_SIZE, Manifest
from skillwire.core.uri import DEFAULT_SCHEME, MAX_PLAIN_LENGTH, MAX_URI_LENGTH, SKILL_FILE, are_plain
from skillwire.core.yaml12 import MAX_NODES, JsonValue

PlainEntry: TypeAlias = tuple[str, dict[str, JsonValue], Manifest]
"""A plain entry in parts: its URI, frontmatter and manifest."""

_ENTRY_FIELDS = frozenset({"uri", "frontmatter", "resources"})
_LINE_FIELDS = ("uri", "digest", "size")
_START = f"{DEFAULT_SCHEME}://"
_NOTHING: dict[str, JsonValue] = {}
_columns = itemgetter(*_LINE_FIELDS)
# Some of the words that tell when to use a skill, as they stand in most descriptions.
_TELLS_WHEN = re.compile(r" (?:when|whenever|for|if|before|after|while|use) ")


def plain_entries(values: Iterable[Any]) -> list[PlainEntry | None]:
    """Read entries that are plain, and leave None in place of all others.

    A plain entry has a URI that starts with `skill://` and is canonical as it
    stands, plain frontmatter with the name in that URI, a plain manifest, and
    nothing more.
    """
    entries = list(map(_plain_entry, values))
    if _can_stand([entry for entry in entries if entry is not None]):
        return entries
    return [entry if entry is not None and _can_stand([entry]) else None for entry in entries]


def plain_manifest(base: str, lines: list[Any]) -> Manifest | None:
    """Read `resources` if every line is whole, canonical and nothing more; else None.

    `base` is the skill's directory, canonical and with a slash.
    """
    if len(base) > MAX_URI_LENGTH - MAX_PLAIN_LENGTH:
        return None
    manifest = _manifest(base, lines)
    return manifest if manifest is not None and _are_sound([manifest]) else None


def _plain_entry(value: Any) -> PlainEntry | None:
    """Take an entry apart that may be plain: its paths, digests and sizes are still to be looked at."""
    entry = cast("dict[str, Any]", value)
    if type(value) is not dict or entry.keys() != _ENTRY_FIELDS:
        return None
    uri, fields, lines = entry["uri"], entry["frontmatter"], entry["resources"]
    if (
        (type(uri), type(fields), type(lines)) == (str, dict, list)
        and uri.startswith(_START)
        and are_plain_fields(fields)
        and uri.endswith(f"/{fields['name']}/{SKILL_FILE}")
        and (manifest := _manifest(uri[: -len(SKILL_FILE)], lines)) is not None
    ):
        return uri, fields, manifest
    return None


def _can_stand(entries: Sequence[PlainEntry]) -> bool:
    """Look at all that is left to look at of entries, together."""
    return not entries or (
        are_plain([uri[len(_START) :] for uri, _, _ in entries])
        and _are_sound([manifest for _, _, manifest in entries])
    )


def _manifest(base: str, lines: list[Any]) -> Manifest | None:
    """Put the columns of a manifest together, if every line has them and lies in `base`, each once."""
    if set(map(type, lines)) != {dict} or set(map(len, lines)) != {len(_LINE_FIELDS)}:
        return None
    try:
        uris, digests, sizes = zip(*map(_columns, lines), strict=True)
        joined = "\n".join(uris)
    except (KeyError, TypeError):  # A field is missing, or no text.
        return None
    # Whatever does not start with `base` stays behind a line end, and that is in no plain path.
    before, *references = f"\n{joined}".split(f"\n{base}")
    ordered = sorted(set(references))
    if before or not len(ordered) == len(references) == len(lines) or SKILL_FILE not in references:
        return None
    if ordered != references:
        order = sorted(range(len(references)), key=references.__getitem__)
        digests = tuple([digests[place] for place in order])
        sizes = tuple([sizes[place] for place in order])
    return Manifest(base, tuple(ordered), digests, sizes)


def _are_sound(manifests: Sequence[Manifest]) -> bool:
    """Tell whether manifests have plain paths, and digests and sizes that are some."""
    sizes = [size for manifest in manifests for size in manifest.sizes]
    return (
        are_plain([reference for manifest in manifests for reference in manifest.references])
        and _are_digests([digest for manifest in manifests for digest in manifest.digests])
        and set(map(type, sizes)) == {int}
        and 0 <= min(sizes) <= max(sizes) <= MAX_JSON_SIZE
    )


def _are_digests(texts: Sequence[str]) -> bool:
    """Tell whether all texts are SHA-256 digests as the wire spells them."""
    try:
        # One with a line end of its own gives too many parts, or leaves that in one of them.
        before, *digits = "\n".join(("", *texts)).split("\nsha256:")
        is_hexadecimal = not "".join(digits).encode().translate(None, b"0123456789abcdef")
    except (TypeError, UnicodeEncodeError):  # One is no text, or half of a surrogate pair.
        return False
    return is_hexadecimal and not before and len(digits) == len(texts) and set(map(len, digits)) == {64}


def are_plain_fields(fields: dict[Any, Any]) -> bool:
    """Tell whether frontmatter is texts, and `metadata` of texts, and there is nothing to say about it."""
    if not fields.keys() <= KNOWN_FIELDS:
        return False
    top = dict(fields)
    inner = top.pop("metadata", _NOTHING)
    if type(inner) is not dict:
        return False
    metadata = cast("dict[Any, Any]", inner)
    texts = [*top.values(), *metadata, *metadata.values()]
    try:
        joined = "\n".join(texts)
        joined.encode()
    except (TypeError, UnicodeEncodeError):  # Something is no text, or half of a surrogate pair.
        return False
    name, description = top.get("name", ""), top.get("description", "")
    return (
        is_name(name)
        and (" when " in description or _TELLS_WHEN.search(description) is not None)
        and len(description) <= MAX_DESCRIPTION
        and 1 <= len(top.get("compatibility", "-")) <= MAX_COMPATIBILITY
        and RESERVED_METADATA_PREFIX not in joined
        and 2 * len(texts) < MAX_NODES
    )
