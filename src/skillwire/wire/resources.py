"""The `list-march` dialect: skills that are only listed among a server's resources.

Nothing in this dialect marks a skill as such. A resource is a skill when its
URI is that of a `SKILL.md`, whatever its scheme and media type (CONF-07,
ASK-31). Early servers left the file name out; their skills are recognised by
`skill://<name>` together with the media type of Markdown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    InvalidEntryError,
    InvalidUriError,
    JsonValue,
    ManifestFile,
    SkillUri,
    canonical_uri,
    digest_of,
    is_name,
    quoted,
)

FILE_LIST: Final = "_manifest"
"""The name, below a skill, of a resource that lists the skill's files with their digests."""

MAX_FILE_LIST: Final = 256 * 1024
"""The maximum size of such a list: twice what a skill with the maximum number of files needs."""

_MARKDOWN: Final = "text/markdown"
_BARE: Final = f"{DEFAULT_SCHEME}://"


@dataclass(frozen=True, slots=True)
class ListedResource:
    """The relevant fields of an item of `resources/list`: `uri` is canonical, `spelling` the server's own."""

    position: int
    uri: str
    spelling: str
    name: str
    description: str | None
    media_type: str


@dataclass(frozen=True, slots=True)
class ResourceSkill:
    """A skill among resources: the resource of its `SKILL.md`, and those below it.

    `file_list` is the resource that lists its files with digests. A file
    belongs to the innermost skill that contains it.
    """

    uri: SkillUri
    resource: ListedResource
    file_list: ListedResource | None
    files: tuple[ListedResource, ...]

    @property
    def description(self) -> str | None:
        """The skill's description from the server; None when there is none.

        FastMCP generates a description where it has not read the file. That
        one only repeats the name, and is ignored.
        """
        description, path = self.resource.description, self.uri.path
        is_generated = self.resource.name == f"{path}/{SKILL_FILE}" and description == f"Skill: {path}"
        return None if is_generated or not description or not description.strip() else description


def parse_resource(position: int, item: object) -> ListedResource | None:
    """Parse one item of an untrusted listing; None when it cannot be part of a skill."""
    if not isinstance(item, dict):
        return None
    raw = cast(Mapping[str, object], item)
    uri, name, description, media_type = (raw.get(key) for key in ("uri", "name", "description", "mimeType"))
    if not isinstance(uri, str):
        return None
    try:
        canonical = canonical_uri(uri)
    except InvalidUriError:
        return None
    return ListedResource(
        position,
        canonical,
        uri,
        name if isinstance(name, str) else "",
        description if isinstance(description, str) else None,
        media_type.partition(";")[0].strip().lower() if isinstance(media_type, str) else "",
    )


def skills_among(items: Sequence[ListedResource]) -> list[ResourceSkill]:
    """Return the skills among resources, in their order; one that is listed twice is returned twice."""
    heads: dict[str, list[ListedResource]] = {}
    for item in items:
        root = item.uri.removesuffix(f"/{SKILL_FILE}")
        if root != item.uri and root.count("/") >= 2:
            heads.setdefault(root, []).append(item)
    bare = [item for item in items if _is_bare(item) and item.uri not in heads]
    for item in bare:
        heads.setdefault(item.uri, []).append(item)
    below = _below(heads, items)
    skills = [
        ResourceSkill(
            _uri_of(head),
            head,
            next((item for item in below[root] if item.uri == f"{root}/{FILE_LIST}"), None),
            tuple(item for item in below[root] if item.uri != f"{root}/{FILE_LIST}"),
        )
        for root, copies in heads.items()
        for head in copies
    ]
    return sorted(skills, key=lambda skill: skill.resource.position)


def parse_file_list(
    uri: SkillUri, content: bytes, spellings: Mapping[str, str] | None = None
) -> list[JsonValue]:
    """Parse the file list of the skill at `uri`, and return it as `resources` of a `core` entry.

    Only what is specific to the list is checked here: `check_entry` does the
    rest. `spellings` are the server's own, by canonical URI.

    Raises:
        InvalidEntryError: It is not such a list, belongs to another skill, or has a path outside the skill.
    """
    if len(content) > MAX_FILE_LIST:
        raise InvalidEntryError(f"the file list has more than {MAX_FILE_LIST} bytes")
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError("the file list is not JSON") from error
    raw = cast(Mapping[str, object], value if isinstance(value, dict) else {})
    skill, files = raw.get("skill"), raw.get("files")
    if not isinstance(files, list):
        raise InvalidEntryError("the file list has no `files`")
    if skill not in (uri.name, uri.path):
        shown = quoted(skill) if isinstance(skill, str) else "not a string"
        raise InvalidEntryError(f"the file list is for the skill {shown}, not for {quoted(uri.name)}")
    return [_line(uri, item, spellings or {}) for item in cast(list[object], files)]


def restore_line_ends(content: bytes, line: ManifestFile) -> bytes:
    """Restore CRLF line ends that FastMCP converted, where that gives the listed digest.

    FastMCP computes digests of files as they are, and sends text files with
    CRLF converted to LF. The content is only replaced by bytes that match the
    listed digest.
    """
    if len(content) < line.size == len(content) + content.count(b"\n") and b"\r" not in content:
        whole = content.replace(b"\n", b"\r\n")
        if digest_of(whole) == line.digest:
            return whole
    return content


def _line(uri: SkillUri, item: object, spellings: Mapping[str, str]) -> JsonValue:
    line = cast(Mapping[str, JsonValue], item if isinstance(item, dict) else {})
    path = line.get("path")
    if not isinstance(path, str):
        raise InvalidEntryError("a line of the file list has no `path`")
    try:
        found = uri.join(path)
    except InvalidUriError as error:
        raise InvalidEntryError(str(error)) from error
    # Some of the servers with such lists accept a file only in the spelling of Python's `quote`.
    spelling = spellings.get(found) or f"{uri.published.removesuffix(SKILL_FILE)}{quote(path)}"
    return {"uri": spelling, "digest": line.get("hash"), "size": line.get("size")}


def _uri_of(head: ListedResource) -> SkillUri:
    if head.uri.endswith(f"/{SKILL_FILE}"):
        return SkillUri(head.uri, head.spelling)
    return SkillUri(f"{head.uri}/{SKILL_FILE}")


def _is_bare(item: ListedResource) -> bool:
    """Return whether this is a `SKILL.md` under the URI that early servers used."""
    return item.media_type == _MARKDOWN and item.uri.startswith(_BARE) and is_name(item.uri[len(_BARE) :])


def _below(roots: Mapping[str, object], items: Sequence[ListedResource]) -> dict[str, list[ListedResource]]:
    """Return the resources below each root, sorted; when sorted, those below one root are adjacent."""
    below: dict[str, list[ListedResource]] = {root: [] for root in roots}
    places: list[tuple[str, int, ListedResource | None]] = [(f"{root}/", -1, None) for root in roots]
    places += [(item.uri, item.position, item) for item in items]
    around: list[str] = []
    for text, _, item in sorted(places, key=lambda place: place[:2]):
        while around and not text.startswith(around[-1]):
            around.pop()
        if item is None:
            around.append(text)
        elif around and text != f"{around[-1]}{SKILL_FILE}":
            below[around[-1][:-1]].append(item)
    return below
