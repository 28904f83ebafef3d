"""What a server adds to the answers about skills when its author asks for it: `_meta`, and a media type.

Nothing here changes what is promised about a skill, and without asking nothing
is added, but for what a skill itself declares under our prefix.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.fields import KNOWN_FIELDS
from skillwire.core.needs import needs_in
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.core import JsonDict
from skillwire.wire.encoding import encode

MIRROR_PREFIX: Final = "io.modelcontextprotocol.skills/"
"""The extension's own prefix: only for what stands in the frontmatter."""
FORMAT: Final = "skillwire/format"
"""The key under which `with_format` says which Agent Skills format the server follows."""
MAX_ADDED: Final = 16 * 1024
"""How many bytes of JSON may be added to the `_meta` of one thing."""

_SPECIFICATION: Final = "https://agentskills.io/specification"
_IN_THE_RESOURCE = frozenset({"name", "description"})
_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_MIRRORED = re.compile(_NAME)
_KEY = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)/{_NAME}")
_OF_THE_PROTOCOL = frozenset({"modelcontextprotocol", "mcp"})
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|"[ -!#-\[\]-~]*"))*')

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["result", "entry", "resource"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What `_meta` may be added to: the result of a method, an entry of a listing, or a resource.

    `uri` is what it is about, and empty for the result of a listing. `entry` is
    the skill, where it is about one: an entry, or the resource of a `SKILL.md`.
    """

    kind: Kind
    method: str = ""
    uri: str = ""
    entry: SkillEntry | None = None


Annotate: TypeAlias = Callable[[Subject], Mapping[str, JsonValue] | None]
"""Returns what to add to the `_meta` of something, by keys such as `com.example/owner`; None for nothing.

It is asked when an answer is made, and what it says about an entry or a
resource may be kept until that changes.
"""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a server's author asked to be added.

    With `mirror`, the resource of each `SKILL.md` repeats the skill's
    frontmatter in its `_meta`, but for name and description, which it has
    anyway: for gateways that look at resources and know nothing of skills.
    `media_type` is that of every `SKILL.md`, instead of `text/markdown`.
    """

    mirror: bool = False
    annotate: Annotate | None = None
    media_type: str = ""

    def __post_init__(self) -> None:
        if self.media_type and not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError(f"{quoted(self.media_type)} is no media type")

    def describe(self, resource: JsonDict, entry: SkillEntry) -> JsonDict:
        """Complete the description of a skill's `SKILL.md` as a resource, and return it."""
        if self.media_type:
            resource["mimeType"] = self.media_type
        meta: JsonDict = mirrored(entry) if self.mirror else {}
        meta |= needs_in(entry.frontmatter).to_meta()
        subject = Subject("resource", uri=entry.uri.published, entry=entry)
        return _with_meta(resource, self._completed(meta, subject))

    def describe_other(self, resource: JsonDict) -> JsonDict:
        """Complete the description of a supporting file or a directory, and return it."""
        return _with_meta(resource, self._completed({}, Subject("resource", uri=resource["uri"])))

    def entry(self, entry: SkillEntry) -> SkillEntry:
        """Return an entry with what is to be added to it; what it says already stays."""
        if self.annotate is None:
            return entry
        said = entry.extra.get("_meta")
        before: JsonDict = dict(said) if isinstance(said, dict) else {}
        meta = self._completed(before, Subject("entry", uri=entry.uri.published, entry=entry))
        return replace(entry, extra={**entry.extra, "_meta": meta}) if meta else entry

    def result(self, result: JsonDict, method: str, uri: str) -> JsonDict:
        """Complete the result of a method, and return it."""
        meta = self._completed(dict(result.get("_meta") or {}), Subject("result", method=method, uri=uri))
        return _with_meta(result, meta)

    def _completed(self, meta: JsonDict, subject: Subject) -> JsonDict:
        """Add what the author's function says, as far as it is allowed to; ours and the protocol's stay."""
        if self.annotate is None:
            return meta
        try:
            added = dict(self.annotate(subject) or {})
            size = len(encode(added))
        except Exception:
            # It decorates answers, and none of them may be lost for it.
            logger.exception("nothing is added to a %s: the function given as annotate failed", subject.kind)
            return meta
        if size > MAX_ADDED:
            logger.error("nothing is added to a %s: it is more than %d bytes", subject.kind, MAX_ADDED)
            return meta
        for key, value in added.items():
            if key in meta:
                continue
            if is_free_key(key):
                meta[key] = value
            else:
                logger.error("%s is not added to a %s: write com.example/name", quoted(key), subject.kind)
        return meta


NO_NOTES: Final = Notes()


def with_format(subject: Subject) -> Mapping[str, JsonValue] | None:
    """Say in the result of `skills/list` which format of skills the server follows: an `Annotate`.

        add_skills(server, "skills/", annotate=with_format)

    The format has no versions, so it is told by where it is specified and by
    the fields of the frontmatter that are known here. It is for people and
    logs; no client need look at it.
    """
    if subject.method != "skills/list":
        return None
    return {FORMAT: {"specification": _SPECIFICATION, "fields": [*sorted(KNOWN_FIELDS)]}}


def mirrored(entry: SkillEntry) -> JsonDict:
    """Return the fields of a skill's frontmatter as keys of `_meta`, as far as they can be keys."""
    return {
        f"{MIRROR_PREFIX}{name}": value
        for name, value in entry.frontmatter.fields.items()
        if name not in _IN_THE_RESOURCE and _MIRRORED.fullmatch(name)
    }


def is_free_key(key: str) -> bool:
    """Tell whether anybody may use a key of `_meta`: it has a prefix, and not one of the protocol's."""
    match = _KEY.fullmatch(key)
    if match is None:
        return False
    labels = match[1].lower().split(".")
    # Revisions differ on which place counts: the second, or any but the last.
    return not _OF_THE_PROTOCOL & {*labels[:2], *labels[:-1]}


def _with_meta(thing: JsonDict, meta: JsonDict) -> JsonDict:
    if meta:
        thing["_meta"] = meta
    return thing
