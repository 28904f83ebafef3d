"""The common shape of a stranger's entry, recognised fast.

A host reads many thousand entries, and nearly all are alike. What is plain
here is accepted all at once; about anything else these functions say nothing,
and `check_entry` reads it with care, rule by rule. A test holds the two
against each other: where one of these answers, both answer the same.
"""

from operator import itemgetter
from typing import Any, cast

from skillwire.core.fields import (
    KNOWN_FIELDS,
    MAX_COMPATIBILITY,
    MAX_DESCRIPTION,
    RESERVED_METADATA_PREFIX,
    is_name,
)
from skillwire.core.manifest import MAX_JSON_SIZE, Manifest, are_digests
from skillwire.core.uri import MAX_PLAIN_LENGTH, MAX_URI_LENGTH, SKILL_FILE, are_plain
from skillwire.core.yaml12 import MAX_NODES

_FIELDS = ("uri", "digest", "size")
_row = itemgetter(*_FIELDS)


def plain_manifest(base: str, lines: list[Any]) -> Manifest | None:
    """Read `resources` if every line is whole, canonical and nothing more; else None.

    `base` is the skill's directory, canonical and with a slash.
    """
    if set(map(type, lines)) != {dict} or set(map(len, lines)) != {len(_FIELDS)}:
        return None
    try:
        uris, digests, sizes = zip(*sorted(map(_row, lines)), strict=True)
        joined = "\n".join(uris)
        if not are_digests(digests) or set(map(type, sizes)) != {int}:
            return None
    except (KeyError, TypeError):  # A field is missing, or no text.
        return None
    # Whatever does not start with `base` stays behind a line end, and that is in no plain path.
    before, *references = f"\n{joined}".split(f"\n{base}")
    if (
        not before
        and len(references) == len(lines) == len(set(references))
        and SKILL_FILE in references
        and are_plain(references)
        and len(base) <= MAX_URI_LENGTH - MAX_PLAIN_LENGTH
        and 0 <= min(sizes) <= max(sizes) <= MAX_JSON_SIZE
    ):
        return Manifest(base, tuple(references), digests, sizes)
    return None


def are_plain_fields(fields: dict[Any, Any]) -> bool:
    """Tell whether frontmatter is texts, and `metadata` of texts, and there is nothing to say about it."""
    if not fields.keys() <= KNOWN_FIELDS:
        return False
    top = dict(fields)
    inner = top.pop("metadata", {})
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
        and " when " in description
        and len(description) <= MAX_DESCRIPTION
        and 1 <= len(top.get("compatibility", "-")) <= MAX_COMPATIBILITY
        and RESERVED_METADATA_PREFIX not in joined
        and 2 * len(texts) < MAX_NODES
    )
