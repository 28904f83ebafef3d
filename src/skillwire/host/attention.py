"""How much of the model's attention a skill may have: the user's settings, per server and per skill.

Configuration files travel with projects, so a setting can only take away:
none of them approves anything, and what nobody set is asked about.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from skillwire.core.characters import quoted
from skillwire.host.failures import ManualOnlyError, TurnedOffError, UnknownReferenceError
from skillwire.host.registry.confusables import LOCAL
from skillwire.host.registry.known import KnownSkill
from skillwire.wire.dialect import Dialect

EVERY: Final = "*"
"""Stands for all skills of a server, or of all origins, that have no setting of their own."""

_UNSAID = 0.5


Visible: TypeAlias = Literal["all", "approved"]
"""Which skills the model may know of: all that are used, or only what the user has approved before."""


class Attention(StrEnum):
    """How a skill is brought to the model's attention."""

    PIN = "pin"
    """Always in the listing, with its description, before all others."""
    NORMAL = "normal"
    """In the listing as far as there is room."""
    NAME_ONLY = "name-only"
    """In the listing without its description."""
    MANUAL = "manual"
    """Not shown to the model, which cannot load it; a person can."""
    OFF = "off"
    """Not used at all."""


class Trust(StrEnum):
    """What may become of a server's skills."""

    ASK = "ask"
    """The user is asked about each of them, and about every change."""
    APPROVED = "approved"
    """Only what was approved beforehand, here or in a lock; nobody is asked."""
    NEVER = "never"
    """Shown to people, and never loaded."""


def _no_attention() -> Mapping[str, Attention]:
    return MappingProxyType({})


@dataclass(frozen=True)
class SkillSettings:
    """The settings of one server: whether its skills are used, and how.

    `budget` is how many tokens of a listing they may take, and `show` the
    attention for single skills: by name, by what follows the label in their
    reference, or `*`. `dialect` is the only one that is spoken with the server.
    """

    is_on: bool = True
    trust: Trust = Trust.ASK
    budget: int | None = None
    dialect: Dialect | None = None
    show: Mapping[str, Attention] = field(default_factory=_no_attention, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "show", MappingProxyType(dict(self.show)))


class Attentions:
    """The attention for every skill of a host.

    The most exact setting counts: the reference, `label/name`, `label/*`,
    then `*`. Local skills have no label; `local/*` means all of them. With
    `by_priority`, a server's more important skills come first in a list, as
    far as it says how important they are; it has a say about its own alone.
    """

    def __init__(
        self,
        servers: Mapping[str, SkillSettings] | None = None,
        show: Mapping[str, Attention] | None = None,
        *,
        by_priority: bool = False,
    ) -> None:
        self._by_priority = by_priority
        self._is_approved: Callable[[KnownSkill], bool] | None = None
        self._servers = dict(servers or {})
        self._show = {
            f"{label}/{key}": attention
            for label, settings in self._servers.items()
            for key, attention in settings.show.items()
        }
        self._show |= {key: Attention(value) for key, value in (show or {}).items()}

    def show_only(self, is_approved: Callable[[KnownSkill], bool]) -> None:
        """Keep from the model whatever the user has not approved; people see everything."""
        self._is_approved = is_approved

    @property
    def is_settled(self) -> bool:
        """Whether the same skills are for the model at any time; not so where approvals decide."""
        return self._is_approved is None

    def is_visible(self, skill: KnownSkill) -> bool:
        """Tell whether the user has approved enough for the model to know of a skill."""
        return self._is_approved is None or self._is_approved(skill)

    def in_order(self, skills: Iterable[KnownSkill]) -> list[KnownSkill]:
        """Return the skills that the model may know of in the order of a list."""
        found = sorted(skills, key=attrgetter("reference"))
        if self._is_approved is not None:
            found = [skill for skill in found if self._is_approved(skill)]
        if self._by_priority:
            found.sort(key=priority_of, reverse=True)
        return found

    def of(self, skill: KnownSkill) -> Attention:
        if not self._show:
            return Attention.NORMAL
        label = skill.id.origin.label if skill.is_remote else LOCAL
        for key in (skill.reference, f"{label}/{skill.name}", f"{label}/{EVERY}", EVERY):
            if (found := self._show.get(key)) is not None:
                return found
        return Attention.NORMAL

    def trust(self, skill: KnownSkill) -> Trust:
        """Return what may become of a skill; local ones are the user's own."""
        settings = self._servers.get(skill.id.origin.label) if skill.is_remote else None
        return Trust.ASK if settings is None else settings.trust

    def is_for_the_model(self, skill: KnownSkill) -> bool:
        """Tell whether the model may know of a skill, because it could load it."""
        is_offered = self.of(skill) not in (Attention.MANUAL, Attention.OFF)
        return is_offered and self.trust(skill) is not Trust.NEVER and self.is_visible(skill)

    @property
    def budgets(self) -> Mapping[str, int]:
        """How many tokens of a listing each server may take, where that was set."""
        return {
            label: settings.budget for label, settings in self._servers.items() if settings.budget is not None
        }

    def require_allowed(self, skill: KnownSkill, *, by_user: bool) -> None:
        """Check that the settings let a skill be loaded.

        Raises:
            TurnedOffError: The skill, or all loading from its server, is turned off.
            ManualOnlyError: Only a person may load it.
            UnknownReferenceError: The model does not know it, because nobody has approved it.
        """
        if not by_user and not self.is_visible(skill):
            raise UnknownReferenceError(
                f"no skill is called {quoted(skill.reference)}", reference=skill.reference
            )
        attention = self.of(skill)
        if attention is Attention.OFF:
            raise TurnedOffError(f"{skill.reference} is turned off", reference=skill.reference)
        if self.trust(skill) is Trust.NEVER:
            raise TurnedOffError(
                f"nothing is loaded from the server {skill.id.origin.label}",
                reference=skill.reference,
                fix="set another `trust` for this server in the configuration",
            )
        if attention is Attention.MANUAL and not by_user:
            raise ManualOnlyError(f"{skill.reference} is loaded by people only", reference=skill.reference)


def priority_of(skill: KnownSkill) -> float:
    """Return how important its server says a skill is, from 0 to 1; one half where it does not say."""
    annotations = skill.entry.extra.get("annotations")
    value = annotations.get("priority") if isinstance(annotations, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return _UNSAID
    return float(value)
