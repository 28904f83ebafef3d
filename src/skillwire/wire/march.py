"""The `list-march` dialect: skills that are only found among a server's resources.

Nothing on this wire says "skill". A resource is one because its URI is that of
a `SKILL.md`, whatever its scheme and its media type (CONF-07, ASK-31). Early
servers left the file's name out; they are known by `skill://<name>` and the
media type of Markdown together.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

from skillwire.core.characters import quoted
from skillwire.core.fields import is_name
from skillwire.core.manifest import ManifestFile, digest_of
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri, canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidEntryError, InvalidUriError

FILE_LIST: Final = "_manifest"
"""The name, below a skill, of a resource that lists the skill's files with their digests."""

MAX_FILE_LIST: Final = 256 * 1024
"""How large such a list may be: twice what a skill with as many files as allowed needs."""

_MARKDOWN: Final = "text/markdown"
_BARE: Final = f"{DEFAULT_SCHEME}://"


@dataclass(frozen=True, slots=True)
class ListedResource:
    """One item of `resources/list`, as far as skills go: `uri` is canonical, `spelling` the server's own."""

    position: int
    uri: str
    spelling: str
    name: str
    description: str | None
    media_type: str


@dataclass(frozen=True, slots=True)
class ResourceSkill:
    """A skill among resources: the one that is its `SKILL.md`, and those that lie below it.

    `file_list` is where its files are listed with digests. A file belongs to
    the innermost skill around it.
    """

    uri: SkillUri
    resource: ListedResource
    file_list: ListedResource | None
    files: tuple[ListedResource, ...]

    @property
    def description(self) -> str | None:
        """What the server tells of the skill; None when it tells nothing.

        FastMCP makes a description up where it has not read the file. It says
        no more than the name, and the file never says the same.
        """
        told, path = self.resource.description, self.uri.path
        is_made_up = self.resource.name == f"{path}/{SKILL_FILE}" and told == f"Skill: {path}"
        return None if is_made_up or not told or not told.strip() else told


def parse_resource(position: int, item: object) -> ListedResource | None:
    """Read one item of a stranger's listing; None when no skill can have anything to do with it."""
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
    """Return the skills among resources, in their order; one that is listed twice comes twice."""
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
    """Read the file list of the skill at `uri`, and return it as `resources` of a `core` entry.

    Only what `core` cannot know is checked here: `check_entry` does the rest.
    `spellings` are the server's own, by canonical URI.

    Raises:
        InvalidEntryError: It is no such list, or another skill's, or a path in it leads elsewhere.
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
        shown = quoted(skill) if isinstance(skill, str) else "no text"
        raise InvalidEntryError(f"the file list is for the skill {shown}, not for {quoted(uri.name)}")
    return [_line(uri, item, spellings or {}) for item in cast(list[object], files)]


def restored(content: bytes, line: ManifestFile) -> bytes:
    """Undo what FastMCP does to the line ends of a text that it sends, where that makes the promised bytes.

    It digests files as they are, and sends those that are text with CRLF turned
    into LF. Only bytes with the promised digest are ever returned in place of
    those that came.
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
    # Some of the servers that have such lists know a file only in the spelling of Python's `quote`.
    spelling = spellings.get(found) or f"{uri.published.removesuffix(SKILL_FILE)}{quote(path)}"
    return {"uri": spelling, "digest": line.get("hash"), "size": line.get("size")}


def _uri_of(head: ListedResource) -> SkillUri:
    if head.uri.endswith(f"/{SKILL_FILE}"):
        return SkillUri(head.uri, head.spelling)
    return SkillUri(f"{head.uri}/{SKILL_FILE}")


def _is_bare(item: ListedResource) -> bool:
    """Tell whether this is a `SKILL.md` by the name that early servers gave it."""
    return item.media_type == _MARKDOWN and item.uri.startswith(_BARE) and is_name(item.uri[len(_BARE) :])


def _below(roots: Mapping[str, object], items: Sequence[ListedResource]) -> dict[str, list[ListedResource]]:
    """Return the resources below each root, sorted; all that lies below one stands together when sorted."""
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
