"""`_meta` and a media type that a server's author adds to results, entries and resources.

This never changes the manifest of a skill. By default only the keys that a skill
itself declares under our prefix are added.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from skillwire.core import (
    KNOWN_FIELDS,
    JsonDict,
    JsonValue,
    SkillEntry,
    encode,
    is_unreserved_key,
    needs_in,
    quoted,
)

MIRROR_PREFIX: Final = "io.modelcontextprotocol.skills/"
"""The extension's prefix, used only for frontmatter fields."""
FORMAT: Final = "skillwire/format"
"""The `_meta` key of `with_format`: the Agent Skills format that the server follows."""
MAX_ADDED: Final = 16 * 1024
"""The maximum size of JSON that `annotate` may add to one `_meta`."""

_SPECIFICATION: Final = "https://agentskills.io/specification"
_RESOURCE_FIELDS = frozenset({"name", "description"})
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_MIRRORED = re.compile(_NAME)
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|"[ -!#-\[\]-~]*"))*')

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["result", "entry", "resource"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The target of an annotation: the result of a method, an entry of a listing, or a resource.

    `uri` is empty for the result of a listing. `entry` is the skill of an entry
    or of the resource of a `SKILL.md`.
    """

    kind: Kind
    method: str = ""
    uri: str = ""
    entry: SkillEntry | None = None


Annotate: TypeAlias = Callable[[Subject], Mapping[str, JsonValue] | None]
"""Returns what to add to the `_meta` of a subject, by keys such as `com.example/owner`; None for nothing.

It is called when a result is made. For an entry or a resource, the return value
may be cached until that changes.
"""


@dataclass(frozen=True, slots=True)
class MetaAnnotator:
    """The annotations that a server's author configured.

    With `mirror`, the resource of each `SKILL.md` repeats the skill's
    frontmatter in its `_meta`, except name and description, which the resource
    has anyway: for gateways that read resources and do not know skills.
    `media_type` replaces `text/markdown` for every `SKILL.md`.
    """

    mirror: bool = False
    annotate: Annotate | None = None
    media_type: str = ""

    def __post_init__(self) -> None:
        if self.media_type and not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError(f"{quoted(self.media_type)} is not a media type")

    def describe(self, resource: JsonDict, entry: SkillEntry) -> JsonDict:
        """Add `_meta` and media type to the resource of a `SKILL.md`, and return it."""
        if self.media_type:
            resource["mimeType"] = self.media_type
        meta: JsonDict = frontmatter_meta(entry) if self.mirror else {}
        meta |= needs_in(entry.frontmatter).to_meta()
        subject = Subject("resource", uri=entry.uri.published, entry=entry)
        return _with_meta(resource, self._with_added(meta, subject))

    def describe_other(self, resource: JsonDict) -> JsonDict:
        """Add `_meta` to the resource of a supporting file or a directory, and return it."""
        return _with_meta(resource, self._with_added({}, Subject("resource", uri=resource["uri"])))

    def entry(self, entry: SkillEntry) -> SkillEntry:
        """Return an entry with added `_meta`; existing keys stay."""
        if self.annotate is None:
            return entry
        own = entry.extra.get("_meta")
        before: JsonDict = dict(own) if isinstance(own, dict) else {}
        meta = self._with_added(before, Subject("entry", uri=entry.uri.published, entry=entry))
        return replace(entry, extra={**entry.extra, "_meta": meta}) if meta else entry

    def result(self, result: JsonDict, method: str, uri: str) -> JsonDict:
        """Add `_meta` to the result of a method, and return it."""
        meta = self._with_added(dict(result.get("_meta") or {}), Subject("result", method=method, uri=uri))
        return _with_meta(result, meta)

    def _with_added(self, meta: JsonDict, subject: Subject) -> JsonDict:
        """Add the allowed keys that the author's function returns; existing keys stay."""
        if self.annotate is None:
            return meta
        try:
            added = dict(self.annotate(subject) or {})
            size = len(encode(added))
        except Exception:
            # An annotation must not make a request fail.
            logger.exception("nothing is added to a %s: the annotate function failed", subject.kind)
            return meta
        if size > MAX_ADDED:
            logger.error("nothing is added to a %s: more than %d bytes", subject.kind, MAX_ADDED)
            return meta
        for key, value in added.items():
            if key in meta:
                continue
            if is_unreserved_key(key):
                meta[key] = value
            else:
                logger.error("%s is not added to a %s: use com.example/name", quoted(key), subject.kind)
        return meta


NO_ANNOTATIONS: Final = MetaAnnotator()


def with_format(subject: Subject) -> Mapping[str, JsonValue] | None:
    """Add the Agent Skills format that the server follows to the result of `skills/list`: an `Annotate`.

        add_skills(server, "skills/", annotate=with_format)

    The format has no versions, so the value has the URL of the specification
    and the known frontmatter fields. It is for people and logs.
    """
    if subject.method != "skills/list":
        return None
    return {FORMAT: {"specification": _SPECIFICATION, "fields": [*sorted(KNOWN_FIELDS)]}}


def frontmatter_meta(entry: SkillEntry) -> JsonDict:
    """Return the frontmatter fields of a skill whose names are valid `_meta` keys."""
    return {
        f"{MIRROR_PREFIX}{name}": value
        for name, value in entry.frontmatter.fields.items()
        if name not in _RESOURCE_FIELDS and _MIRRORED.fullmatch(name)
    }


def _with_meta(thing: JsonDict, meta: JsonDict) -> JsonDict:
    if meta:
        thing["_meta"] = meta
    return thing
