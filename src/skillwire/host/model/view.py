"""`RegistryView`: an immutable snapshot of the registry."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from skillwire.host.model.errors import Refusal
from skillwire.host.model.lookalikes import LOCAL, Lookalikes, confusable_labels
from skillwire.host.model.naming import MAX_CANDIDATES, Collision, bare_name, collisions_of
from skillwire.host.model.origin import KnownSkill, Origin
from skillwire.wire.index import SkillTemplate, Template

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
