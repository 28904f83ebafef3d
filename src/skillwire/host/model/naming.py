"""References: the unique names by which users and models refer to skills.

The rules, version 1. A *path* is the URI of a skill's folder without
`scheme://`, canonical and percent-encoded, so it is always ASCII; a *name* is
its last segment, which over MCP is the skill's `name`.

1. The reference of a local skill is its bare name, and no other skill has a bare name.
2. A skill that a server lists is `label/name`.
3. When a server lists several skills of one name, every one of them is
   `label/path`. One whose path is a single segment, or is the path of another
   of them under another scheme, is `label/scheme://path`.
4. A skill that a server does not list is always `label/scheme://path`, so that
   finding it renames no other skill.

A server's references depend only on its label and the set of URIs it lists,
not on the order of the listing, other servers or earlier listings. Labels and
names contain no slash, and no segment of a path is empty: therefore no two
skills share a reference.

Why a server's skill has no shorter reference even if its name is unique
(ASK-18): uniqueness is not a property of the skill. A server could take a bare
name before the user creates a local skill with it, or get it when the local
skill is removed; a second server could rename the first one's skills by listing
the same names; and a reference in a conversation could change to another
server's skill (NAME-04, NAME-07). So the label is always part of the reference,
and no tool for skills takes a separate server name.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, TypeAlias, TypeVar

from skillwire.core import SKILL_FILE, Coverage, InvalidUriError, SkillUri, archive_line, quoted, visible
from skillwire.host.model.errors import (
    AmbiguousReferenceError,
    NestedSkillError,
    Refusal,
    UnknownReferenceError,
)
from skillwire.host.model.lookalikes import LOCAL, Lookalikes, confusable_labels
from skillwire.host.model.origin import KnownSkill, Origin
from skillwire.wire.index import SkillTemplate, Template

NAMING_VERSION: Final = 1
MAX_CANDIDATES: Final = 100

_MOST_HINTS = 5
_MOST_COMPARED = 2_000
_LONGEST_COMPARED = 100
MAX_LOCAL_REFERENCE: Final = 200

_SUFFIX = f"/{SKILL_FILE}"


@dataclass(frozen=True, slots=True)
class Collision:
    """A name that several skills have, of one origin or of several; `references` are theirs, sorted."""

    name: str
    references: tuple[str, ...]


def references_for(label: str, uris: Iterable[str]) -> dict[str, str]:
    """Return the reference of each skill that the server `label` lists, by its canonical URI."""
    names = {uri: name_of(uri) for uri in uris}
    repeated = {name for name, copies in Counter(names.values()).items() if copies > 1}
    if not repeated:
        return {uri: f"{label}/{name}" for uri, name in names.items()}
    paths = Counter(_path_of(uri) for uri, name in names.items() if name in repeated)
    references: dict[str, str] = {}
    for uri, name in names.items():
        path = _path_of(uri)
        if name not in repeated:
            references[uri] = f"{label}/{name}"
        elif "/" not in path or paths[path] > 1:
            references[uri] = full_reference(label, uri)
        else:
            references[uri] = f"{label}/{path}"
    return references


def full_reference(label: str, uri: str) -> str:
    """Return the longest form of a reference, which does not depend on the server's other skills."""
    return f"{label}/{uri.removesuffix(_SUFFIX)}"


def local_reference(name: str, uri: str) -> str:
    """Return the reference of a local skill: its name, or its folder's name if that is not usable.

    A slash would make it look like a server's skill, and invisible characters
    like another local skill.
    """
    is_usable = (
        0 < len(name) <= MAX_LOCAL_REFERENCE
        and "/" not in name
        and name == name.strip()
        and name.isprintable()
        and visible(name) == name
    )
    return name if is_usable else name_of(uri)


def name_of(uri: str) -> str:
    """Return the last segment of a skill's path, as its canonical URI spells it."""
    return uri.removesuffix(_SUFFIX).rpartition("/")[2]


def collisions_of(skills: Iterable[KnownSkill]) -> tuple[Collision, ...]:
    """Return every name that more than one skill has, sorted."""
    known = list(skills)
    names = list(map(bare_name, known))
    if len(set(names)) == len(names):
        return ()
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for name, skill in zip(names, known, strict=True):
        by_name[name].append(skill.reference)
    return tuple(
        Collision(name, tuple(sorted(references)))
        for name, references in sorted(by_name.items())
        if len(references) > 1
    )


def bare_name(skill: KnownSkill) -> str:
    """Return the last part of a skill's reference, by which collisions are counted."""
    return skill.reference.rpartition("/")[2]


def match(reference: str, known: Iterable[KnownSkill]) -> KnownSkill:
    """Return the one skill that `reference` identifies.

    That is the skill with exactly this reference. Otherwise the part after the
    label may be the URI of the skill, of its folder or of its archive, its
    path, or its name. A bare name never matches a server's skill.

    Raises:
        AmbiguousReferenceError: The server has several such skills; see `candidates`.
        UnknownReferenceError: There is none; `candidates` have the same or a similar name, and for
            a reference with a label are all from that server.
    """
    skills = list(known)
    for skill in skills:
        if skill.reference == reference:
            return skill
    label, slash, rest = reference.partition("/")
    if not slash:
        raise _no_local_skill(reference, skills)
    own = [skill for skill in skills if skill.is_remote and skill.id.origin.label == label]
    matching = _matching(rest, own)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise _ambiguous(reference, matching)
    name = rest.removesuffix(_SUFFIX).rpartition("/")[2]
    alike = _similar(name, {name_of(skill.id.uri) for skill in own}) if name else set[str]()
    candidates = _references([skill for skill in own if name_of(skill.id.uri) in alike])
    hint = f"; similar: {', '.join(candidates[:_MOST_HINTS])}" if candidates else ""
    raise UnknownReferenceError(
        f"no skill is called {quoted(reference)}{hint}",
        reference=_shown(reference),
        candidates=candidates,
    )


def uri_in(reference: str) -> SkillUri | None:
    """Return the skill URI after the label of a reference; None when there is no valid one."""
    rest = reference.partition("/")[2]
    if "://" not in rest:
        return None
    try:
        return SkillUri.parse(rest if rest.endswith(_SUFFIX) else rest + _SUFFIX)
    except InvalidUriError:
        return None


def _matching(rest: str, own: Sequence[KnownSkill]) -> list[KnownSkill]:
    """Return the skills of one server that match the part of a reference after the label."""
    if "://" in rest:
        uri = uri_in(f"/{rest}")
        found = [skill for skill in own if uri is not None and skill.id.uri == uri.text]
        return found or [skill for skill in own if _archive_of(skill) == rest]
    if "/" in rest:
        return [skill for skill in own if _path_of(skill.id.uri) == rest]
    return [skill for skill in own if name_of(skill.id.uri) == rest]


def _archive_of(skill: KnownSkill) -> str | None:
    """Return the URI of the archive that contains a skill, which also identifies the skill (ASK-24)."""
    manifest = skill.entry.manifest
    if manifest is None or manifest.coverage is not Coverage.ARCHIVE:
        return None
    return archive_line(manifest, skill.id.uri).uri


def _similar(name: str, names: set[str]) -> set[str]:
    """Return names that are similar to `name`; in a large catalog only an equal one."""
    if name in names or len(names) > _MOST_COMPARED or len(name) > _LONGEST_COMPARED:
        return {name} & names
    return set(get_close_matches(name, names, n=_MOST_HINTS, cutoff=0.75))


def _no_local_skill(name: str, skills: Sequence[KnownSkill]) -> UnknownReferenceError:
    namesakes = [skill for skill in skills if skill.is_remote and name_of(skill.id.uri) == name]
    message = f"no local skill is called {quoted(name)}"
    if namesakes:
        message += f", and {_count(namesakes)} of this name from servers"
    fix = "use one of the full references" if namesakes else ""
    return UnknownReferenceError(message, reference=_shown(name), candidates=_references(namesakes), fix=fix)


def _ambiguous(reference: str, matching: Sequence[KnownSkill]) -> AmbiguousReferenceError:
    return AmbiguousReferenceError(
        f"{quoted(reference)} matches {_count(matching)}",
        reference=_shown(reference),
        candidates=_references(matching),
    )


def _references(skills: Sequence[KnownSkill]) -> list[str]:
    return sorted(skill.reference for skill in skills)[:MAX_CANDIDATES]


def _count(skills: Sequence[KnownSkill]) -> str:
    return "one skill" if len(skills) == 1 else f"{len(skills)} skills"


def _shown(reference: str) -> str:
    """Return a reference for a message: unchanged if it is safe to show, else quoted."""
    is_safe = len(reference) <= MAX_LOCAL_REFERENCE and reference.isprintable()
    return reference if is_safe and visible(reference) == reference else quoted(reference)


def _path_of(uri: str) -> str:
    return uri.removesuffix(_SUFFIX).partition("://")[2]


# Nested skills, for a host that uses only top-level skills (ASK-02).


NESTED: Final = "nested-skill"

T = TypeVar("T")


def top_level(listed: Mapping[str, T]) -> tuple[dict[str, T], dict[str, str]]:
    """Split skills into top-level ones, by URI, and nested ones with the URI of their outermost parent.

    The order of the listing makes no difference.
    """
    kept: dict[str, T] = {}
    nested: dict[str, str] = {}
    for uri, entry in listed.items():
        around = enclosing(uri, listed)
        if around is None:
            kept[uri] = entry
        else:
            nested[uri] = around
    return kept, nested


def enclosing(uri: str, known: Collection[str]) -> str | None:
    """Return the outermost skill of `known` that contains the one at `uri`, which need not be known."""
    root = uri.removesuffix(_SUFFIX)
    start = root.find("://") + len("://")
    while (end := root.find("/", start)) >= 0:
        around = root[:end] + _SUFFIX
        if around in known:
            return around
        start = end + 1
    return None


def skipped(label: str, nested: Mapping[str, str]) -> Iterable[Refusal]:
    """Yield a refusal for each nested skill, naming its parent."""
    for uri, around in nested.items():
        yield Refusal(NESTED, f"{label}/{uri}", f"it is inside {quoted(full_reference(label, around))}")


def require_top_level(label: str, uri: str, known: Collection[str]) -> None:
    """Check that a skill requested by its URI is a top-level skill.

    Raises:
        NestedSkillError: It is inside a skill of `known`.
    """
    around = enclosing(uri, known)
    if around is not None:
        raise NestedSkillError(
            f"{quoted(uri)} is inside {quoted(full_reference(label, around))}",
            reference=full_reference(label, uri)[:200],
        )


# `RegistryView`: an immutable snapshot of the registry.


ServerState: TypeAlias = Literal["waiting", "listed", "stale", "failed", "no-skills"]

MAX_NOTICES: Final = 1_000


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of one server.

    `waiting` has not answered yet; `stale` has listed its skills and will be
    asked again when they are needed; `failed` could not be asked, and its
    skills are from an earlier listing; `no-skills` does not serve any.
    `problem` says what went wrong, also when a listing is incomplete. Times
    are those of the registry's clock.
    """

    origin: Origin
    state: ServerState = "waiting"
    listed: int = 0
    refused: int = 0
    problem: Refusal | None = None
    listed_at: float | None = None
    fresh_until: float | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the server has never answered, which differs from an empty list."""
        return self.listed_at is None and self.state in ("waiting", "failed")


@dataclass(frozen=True, slots=True)
class KnownTemplate:
    """A URI template for skills that a server does not list, to be filled in by a person.

    Its expansion, after the server's label, is a reference.
    """

    origin: Origin
    skill_template: SkillTemplate

    @property
    def template(self) -> Template:
        return self.skill_template.template

    @property
    def description(self) -> str:
        """The server's description: untrusted text, to be escaped wherever it is shown."""
        return self.skill_template.description


@dataclass(frozen=True, slots=True)
class RegistryView:
    """All skills of all origins, sorted by reference, with problems and notices.

    `hidden` are the skills that are not used, with reasons. `notices` are for
    the user: names shared by several skills or easily confused, labels that
    look alike, skills that were removed or got another reference since the
    host was opened, and unusual entries. `templates` are for unlisted skills.
    `revision` grows whenever skills or remarks may have changed.
    """

    revision: int = 0
    skills: tuple[KnownSkill, ...] = ()
    hidden: tuple[Refusal, ...] = ()
    collisions: tuple[Collision, ...] = ()
    notices: tuple[Refusal, ...] = ()
    servers: tuple[ServerStatus, ...] = ()
    templates: tuple[KnownTemplate, ...] = ()


def view_of(
    revision: int,
    skills: Iterable[KnownSkill],
    hidden: Iterable[Refusal],
    servers: tuple[ServerStatus, ...],
    *,
    templates: Iterable[KnownTemplate] = (),
    changes: Iterable[Refusal] = (),
    remarks: Iterable[Refusal] = (),
    lookalikes: Lookalikes | None = None,
) -> RegistryView:
    """Build a view of all origins; beyond the limit of notices, remarks on entries are cut first."""
    ordered = sorted(skills, key=attrgetter("reference"))
    collisions = collisions_of(ordered)
    notices = chain(
        _label_notices(servers),
        _similar_notices(ordered, lookalikes or Lookalikes()),
        changes,
        _name_notices(ordered, collisions),
        remarks,
    )
    return RegistryView(
        revision,
        tuple(ordered),
        tuple(hidden),
        collisions,
        tuple(islice(notices, MAX_NOTICES)),
        servers,
        tuple(templates),
    )


def _label_notices(servers: Iterable[ServerStatus]) -> Iterable[Refusal]:
    for group in confusable_labels(status.origin.label for status in servers):
        detail = f"{LOCAL} is reserved for this machine's own folders" if LOCAL in group else ""
        yield Refusal("confusable-label", ", ".join(group), detail, candidates=group)


def _name_notices(skills: Iterable[KnownSkill], collisions: Iterable[Collision]) -> Iterable[Refusal]:
    """Yield a notice for each name that several skills have, on one server or across origins."""
    repeated = {collision.name for collision in collisions}
    if not repeated:
        return
    origins: dict[str, dict[Origin, list[str]]] = {name: {} for name in repeated}
    for skill in skills:
        if (name := bare_name(skill)) in repeated:
            origins[name].setdefault(skill.id.origin, []).append(skill.reference)
    for collision in collisions:
        members = origins[collision.name]
        for origin, references in members.items():
            if len(references) > 1:
                yield _notice("renamed", f"{origin.label}/{collision.name}", references)
        if len(members) > 1:
            yield _notice("name-collision", collision.name, collision.references)


def _similar_notices(skills: Iterable[KnownSkill], lookalikes: Lookalikes) -> Iterator[Refusal]:
    """Yield a notice for each two names of different origins that are similar but not equal."""
    # All local folders count as one origin.
    alone: dict[str, frozenset[object]] = {}
    names: dict[str, frozenset[object]] = {}
    for skill in skills:
        origin = skill.id.origin
        label = origin.label if origin.is_remote else ""
        own = alone.get(label)
        if own is None:
            own = alone[label] = frozenset({label})
        name = bare_name(skill)
        known = names.get(name)
        names[name] = own if known is None or known is own else known | own
    if len(alone) < 2 or not (pairs := lookalikes.among(names)):
        return
    wanted: dict[str, list[str]] = {name: [] for pair in pairs for name in pair}
    for skill in skills:
        if (holders := wanted.get(bare_name(skill))) is not None and len(holders) < MAX_CANDIDATES:
            holders.append(skill.reference)
    for one, other in pairs:
        references = (*wanted[one], *wanted[other])
        yield Refusal("similar-name", f"{one}, {other}", candidates=references[:MAX_CANDIDATES])


def _notice(code: str, subject: str, references: Iterable[str]) -> Refusal:
    some = tuple(references)
    return Refusal(code, subject, f"{len(some)} skills", candidates=some[:MAX_CANDIDATES])
