"""Skills that a server identifies by name: the URIs and the `SKILL.md` this host generates for them.

Such a dialect has neither URIs nor frontmatter. So each name becomes a URI
that is valid only inside its server's origin, and the fields of the listing
become the frontmatter of a file that is composed when the skill is read. There
are no digests: every such skill is dynamic.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias, cast

from mcp.types import PaginatedRequestParams, Request, RequestParams

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    Dialect,
    Finding,
    Frontmatter,
    InvalidUriError,
    JsonValue,
    LimitError,
    NotFoundError,
    SkillEntry,
    SkillUri,
    canonical_uri,
    fold_path,
    folders_of,
    is_name,
    published_findings,
    quoted,
    write_frontmatter,
)
from skillwire.host.calls import (
    Listing,
    ListingBuilder,
    ListSkillsRequest,
    Pager,
    RefusedEntry,
    Session,
    shortened,
    walk,
)
from skillwire.host.dialects.base import Arguments, DialectOptions
from skillwire.host.model import ArgumentsNeededError, InvalidAnswerError
from skillwire.wire.by_name import PrimitiveFile

MAX_METADATA: Final = 1024
"""The longest text that is copied to `metadata`, in characters; longer texts are left out."""

_MAX_UNLISTED = 256
_NO_MEMBERS: Mapping[str, JsonValue] = {}
# Members of an item that must not be copied to the entry: there they have another meaning.
_ENTRY_MEMBERS = frozenset({"uri", "frontmatter", "resources"})

ParseNamedSkill: TypeAlias = "Callable[[object], tuple[NamedSkill | None, list[Finding]]]"


class NameParams(RequestParams):
    """Parameters that name one skill."""

    name: str


@dataclass(frozen=True, slots=True)
class NamedSkill:
    """One skill as the server lists it by name.

    `remote_name` is the server's own name for it, and `required_arguments` are
    the names of the arguments that each request for it must have.
    """

    remote_name: str
    uri: SkillUri
    frontmatter: Frontmatter
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NO_MEMBERS)
    required_arguments: tuple[str, ...] = ()

    def entry(self, files: Iterable[str] = ()) -> SkillEntry:
        """Return the entry of this skill, with the URIs of its known files."""
        return SkillEntry(self.uri, self.frontmatter, None, self.extra, tuple(files))

    def skill_md(self, instructions: str, *, max_bytes: int) -> bytes:
        """Compose the `SKILL.md` with exactly these fields and, as its body, exactly these instructions.

        Raises:
            LimitError: It is larger than `max_bytes`.
            InvalidAnswerError: The instructions are not valid Unicode.
        """
        try:
            body = instructions.encode()
        except UnicodeEncodeError as error:
            raise InvalidAnswerError(
                f"the text of {quoted(self.remote_name)} is not valid Unicode"
            ) from error
        content = f"---\n{write_frontmatter(self.frontmatter.fields)}---\n".encode() + body
        require_size(content, self.uri.text, max_bytes)
        return content

    def require_arguments(self, arguments: Arguments) -> None:
        """Check that all required arguments are given.

        Raises:
            ArgumentsNeededError: One is missing; no value is ever guessed.
        """
        missing = [name for name in self.required_arguments if name not in arguments]
        if missing:
            names = ", ".join(quoted(name) for name in missing[:10])
            raise ArgumentsNeededError(
                f"{quoted(self.remote_name)} needs arguments: {names}", reference=self.uri.text
            )


def build_named_skill(
    remote_name: str,
    *,
    path: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    extra: Mapping[str, JsonValue] = _NO_MEMBERS,
    required_arguments: Sequence[str] = (),
    is_described: bool = False,
) -> tuple[NamedSkill | None, list[Finding]]:
    """Build a skill at `path`, by default its own name; return it with all findings about it.

    With `is_described`, a missing description is an error, as some dialects demand.
    """
    uri = uri_for_name(remote_name if path is None else path)
    if isinstance(uri, Finding):
        return None, [uri]
    fields: dict[str, JsonValue] = {"name": uri.name}
    if description and description.strip():
        fields["description"] = description
    short = {key: text for key, text in (metadata or {}).items() if text and len(text) <= MAX_METADATA}
    if short:
        fields["metadata"] = cast("dict[str, JsonValue]", short)
    frontmatter = Frontmatter(fields)
    findings = [
        replace(finding, file="")
        for finding in published_findings(frontmatter)
        if finding.is_error and (is_described or finding.code != "description-missing")
    ]
    passed_on = {key: value for key, value in extra.items() if key not in _ENTRY_MEMBERS}
    return NamedSkill(remote_name, uri, frontmatter, passed_on, tuple(required_arguments)), findings


def uri_for_name(path: str) -> SkillUri | Finding:
    """Return the URI for the name of a skill, or for several names separated by slashes."""
    if all(map(is_name, path.split("/"))):
        return SkillUri.build(path)
    message = f"the name {quoted(path)} is not made of a-z, 0-9 and single hyphens, at most 64 characters"
    return Finding("name-invalid", message, file="", fix="ask the server's author to rename it")


def joined(texts: Iterable[str]) -> str:
    """Join untrusted texts to one text of bounded length."""
    return ", ".join(texts)[:MAX_METADATA]


def require_size(content: bytes, uri: str, max_bytes: int) -> None:
    """Check the size of content that a server sent.

    Raises:
        LimitError: It is larger than `max_bytes`.
    """
    if len(content) > max_bytes:
        raise LimitError(f"{quoted(uri)} is larger than the {max_bytes} bytes that are accepted")


class NamedSkills:
    """The skills of one server by their generated URIs, which map back to the server's names."""

    def __init__(self) -> None:
        self._last_complete: dict[str, NamedSkill] = {}
        self._listed: dict[str, NamedSkill] = {}
        self._unlisted: dict[str, NamedSkill] = {}

    async def list(
        self,
        session: Session,
        options: DialectOptions,
        request_for: Callable[[str | None], Request[Any, Any]],
        read: ParseNamedSkill,
        *,
        member: str,
        dialect: Dialect,
    ) -> Listing:
        """Request all pages of a listing, and remember its skills.

        Raises:
            SkillError: There is not even a first page.
        """
        skills: dict[str, NamedSkill] = {}

        def check(items: Sequence[object]) -> Iterator[tuple[SkillEntry | None, list[Finding]]]:
            for item in items:
                named, findings = read(item)
                if named is not None:
                    skills[named.uri.text] = named
                yield None if named is None else named.entry(), findings

        def uri_of(item: object) -> str | None:
            named = read(item)[0]
            return None if named is None else named.uri.text

        pager = Pager(session.client, request_for, member=member, limits=options.limits)
        method = str(request_for(None).method)
        listing = await walk(
            pager,
            ListingBuilder(check, uri_of, dialect),
            method,
            max_seconds=options.seconds,
            keep_partial=True,
        )
        listing = without_nested(listing)
        found = {entry.uri.text: skills[entry.uri.text] for entry in listing.entries}
        if listing.problem is None:
            self._last_complete = found
        # An incomplete listing adds to the last complete one, as in the registry.
        self._listed = {**self._last_complete, **found}
        return listing

    def find(self, uri: str) -> NamedSkill | None:
        """Return the known skill that the file at `uri` belongs to, if any."""
        root = uri
        while root.count("/") > 2:
            root = root.rpartition("/")[0]
            own = f"{root}/{SKILL_FILE}"
            named = self._listed.get(own) or self._unlisted.get(own)
            if named is not None:
                return named
        return None

    def skill_at(self, uri: SkillUri) -> NamedSkill:
        """Return the skill at `uri`, listed or not: an unlisted one is requested by its path.

        Raises:
            NotFoundError: No skill of this dialect could be there.
        """
        named = self.find(uri.text)
        if named is not None and named.uri == uri:
            return named
        generated = uri_for_name(uri.path)
        if (
            named is not None
            or isinstance(generated, Finding)
            or generated != uri
            or uri.scheme != DEFAULT_SCHEME
        ):
            raise not_found(uri.text)
        return NamedSkill(uri.path, uri, Frontmatter({"name": uri.name}))

    def remember(self, named: NamedSkill, description: str | None) -> NamedSkill:
        """Remember an unlisted skill, and return it with its description."""
        if named.uri.text in self._listed or named.uri.text in self._unlisted:
            return named
        described, findings = build_named_skill(
            named.remote_name, path=named.uri.path, description=description
        )
        if described is None or findings:
            messages = "; ".join(finding.message for finding in shortened(findings))
            raise InvalidAnswerError(
                f"the server's description of {quoted(named.remote_name)} is invalid: {messages}"
            )
        self._unlisted[named.uri.text] = described
        if len(self._unlisted) > _MAX_UNLISTED:
            del self._unlisted[next(iter(self._unlisted))]
        return described

    def owner(self, uri: str) -> tuple[NamedSkill, str]:
        """Return the skill that the file at `uri` belongs to, and the URI in canonical form.

        Raises:
            NotFoundError: It belongs to none.
        """
        try:
            canonical = canonical_uri(uri)
            named = self.find(canonical)
            if named is None:
                named = self.skill_at(SkillUri.parse(canonical))
        except InvalidUriError as error:
            raise not_found(uri) from error
        return named, canonical


def without_nested(listing: Listing) -> Listing:
    """Refuse the skills whose generated URIs lie inside another skill: a file there would belong to both."""
    roots = {entry.uri.root for entry in listing.entries}
    inner = {entry.uri.text for entry in listing.entries if not roots.isdisjoint(_ancestors(entry.uri.root))}
    if not inner:
        return listing
    finding = Finding("uri-overlap", "its name starts with the full name of another skill", file="")
    taken = {refused.position for refused in listing.refused}
    free = (position for position in count() if position not in taken)
    refused = list(listing.refused)
    for position, entry in zip(free, listing.entries, strict=False):
        if entry.uri.text in inner:
            refused.append(RefusedEntry(position, entry.uri.text, (finding,)))
    remaining = tuple(entry for entry in listing.entries if entry.uri.text not in inner)
    ordered = sorted(refused, key=lambda entry: entry.position)
    return replace(listing, entries=remaining, refused=tuple(ordered))


def skills_page(cursor: str | None) -> ListSkillsRequest:
    """Return the request for one page of `skills/list`, which is the same in every dialect that has it."""
    return ListSkillsRequest(params=PaginatedRequestParams(cursor=cursor))


def unusable_answer(named: NamedSkill, findings: Iterable[Finding], violates: str) -> InvalidAnswerError:
    """Return the error for an answer about a skill that cannot be used."""
    messages = "; ".join(finding.message for finding in shortened(findings))
    return InvalidAnswerError(
        f"the server's answer for {quoted(named.remote_name)} cannot be used: {messages}", violates=violates
    )


def not_found(uri: str) -> NotFoundError:
    return NotFoundError(f"nothing is served at {quoted(uri)}", uri=uri[:500])


def _ancestors(root: str) -> Iterator[str]:
    """Yield the parent directories of a skill's directory."""
    while root.count("/") > 2:
        root = root.rpartition("/")[0]
        yield root


# Paths for files that a server declares with its own URIs, mapped back to these URIs.


FOLDER: Final = "files"
"""The folder inside the skill for files that have no path of their own in it."""

_MAX_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def assign_uris(skill: SkillUri, files: Sequence[PrimitiveFile]) -> dict[str, str]:
    """Assign each declared file a URI inside `skill`; return the declared URIs by the assigned ones.

    A file inside the skill's own directory keeps its path there (P2076-13). Any
    other gets a path made from its name. The declared URI is sent only to the
    server that declared it.
    """
    first: dict[str, PrimitiveFile] = {}
    for file in files:
        first.setdefault(file.uri, file)
    paths: dict[str, str] = {}
    taken = {fold_path(SKILL_FILE)}
    for uri, file in first.items():
        path = _own_path(skill, file)
        if path is not None and is_free(path, taken):
            taken.add(fold_path(path))
            paths[uri] = path
    for uri, file in first.items():
        if uri not in paths:
            path = next(path for path in _generated_paths(file.name) if is_free(path, taken))
            taken.add(fold_path(path))
            paths[uri] = path
    return {skill.join(paths[uri]): uri for uri in first}


def _own_path(skill: SkillUri, file: PrimitiveFile) -> str | None:
    """Return the path of a file inside its skill, if its URI or its name determines it."""
    try:
        canonical = canonical_uri(file.uri)
        if canonical.startswith(skill.root + "/"):
            path = skill.relative_path(canonical)
        elif canonical.endswith(skill.join(file.name).removeprefix(skill.root)):
            path = file.name
        else:
            return None
    except InvalidUriError:
        return None
    # A file must not have the name of the folder for all others.
    return None if fold_path(path) == FOLDER else path


def _generated_paths(name: str) -> Iterator[str]:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    stem = _UNSAFE.sub("-", plain).strip(".-")[:_MAX_NAME].rstrip(".-") or "file"
    head, dot, suffix = stem.rpartition(".")
    yield f"{FOLDER}/{stem}"
    for number in count(2):
        yield f"{FOLDER}/{head}-{number}.{suffix}" if dot else f"{FOLDER}/{stem}-{number}"


def is_free(path: str, taken: set[str]) -> bool:
    """Return whether `path` conflicts with no other file: neither the same path, nor a file as a folder.

    `taken` are the paths of the other files, folded with `fold_path`.
    """
    folded = fold_path(path)
    return folded not in taken and folded not in folders_of(taken) and taken.isdisjoint(folders_of([folded]))
