"""What the registry knows at one moment, as one value that never changes."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from skillwire.host.origin import Origin
from skillwire.host.refusals import Refusal
from skillwire.host.registry.confusables import LOCAL, confusable_labels
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import MAX_CANDIDATES, Collision, bare_name, collisions_of

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
class RegistryView:
    """All skills of all origins, sorted by reference, and all there is to say about them.

    `hidden` is what is not used, and `notices` what a user should know about
    what is: names that several skills have, and labels that look alike.
    `revision` grows whenever skills or remarks may have changed.
    """

    revision: int = 0
    skills: tuple[KnownSkill, ...] = ()
    hidden: tuple[Refusal, ...] = ()
    collisions: tuple[Collision, ...] = ()
    notices: tuple[Refusal, ...] = ()
    servers: tuple[ServerStatus, ...] = ()


def view_of(
    revision: int,
    skills: Iterable[KnownSkill],
    hidden: Iterable[Refusal],
    servers: tuple[ServerStatus, ...],
) -> RegistryView:
    """Put together what the origins hold."""
    ordered = sorted(skills, key=attrgetter("reference"))
    collisions = collisions_of(ordered)
    notices = islice(chain(_label_notices(servers), _name_notices(ordered, collisions)), MAX_NOTICES)
    return RegistryView(revision, tuple(ordered), tuple(hidden), collisions, tuple(notices), servers)


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


def _notice(code: str, subject: str, references: Iterable[str]) -> Refusal:
    some = tuple(references)
    return Refusal(code, subject, f"{len(some)} skills", candidates=some[:MAX_CANDIDATES])
