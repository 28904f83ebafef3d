"""What the registry knows at one moment, as one value that never changes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from skillwire.host.origin import Origin
from skillwire.host.refusals import Refusal
from skillwire.host.registry.confusables import LOCAL, confusable_labels
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.lookalikes import Lookalikes
from skillwire.host.registry.naming import MAX_CANDIDATES, Collision, bare_name, collisions_of
from skillwire.sources.templates import SkillTemplate
from skillwire.wire.template import Template

ServerState: TypeAlias = Literal["waiting", "listed", "stale", "failed", "no-skills"]

MAX_NOTICES: Final = 1_000


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How things stand with one server.

    `waiting` was not heard of yet; `stale` has listed its skills, and will be
    asked again when someone needs them; `failed` could not be asked, and what
    is known of it is from an earlier time; `no-skills` does not serve any.
    `problem` says what went wrong, also when a listing came in part. Times
    are those of the registry's clock.
    """

    origin: Origin
    state: ServerState = "waiting"
    listed: int = 0
    refused: int = 0
    problem: Refusal | None = None
    listed_at: float | None = None
    fresh_until: float | None = None


@dataclass(frozen=True, slots=True)
class KnownTemplate:
    """How a server's skills are named that it does not list, for a person who fills it in.

    What it expands to is a reference behind the server's label.
    """

    origin: Origin
    told: SkillTemplate

    @property
    def template(self) -> Template:
        return self.told.template

    @property
    def description(self) -> str:
        """What the server says of it: a stranger's text, to be escaped wherever it is shown."""
        return self.told.description


@dataclass(frozen=True, slots=True)
class RegistryView:
    """All skills of all origins, sorted by reference, and all there is to say about them.

    `hidden` is what is not used, and `notices` what a user should know about
    what is: names that several skills have or that are easily taken for each
    other, labels that look alike, skills that are gone or go by another
    reference since the host was opened, and entries that are odd. `templates`
    are for skills that nobody lists. `revision` grows whenever skills or
    remarks may have changed.
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
    """Put together what the origins hold; of too many notices, the remarks of servers go first."""
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
        detail = "this word stands for this machine's own folders" if LOCAL in group else ""
        yield Refusal("confusable-label", ", ".join(group), detail, candidates=group)


def _name_notices(skills: Iterable[KnownSkill], collisions: Iterable[Collision]) -> Iterable[Refusal]:
    """Say of each name that several skills have whether they share a server, or come from several origins."""
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
    """Say of names that are alike, and not the same, which skills of different origins have them."""
    # All local folders are the user's own, and are one origin here.
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
