"""How much of the model's attention a skill may have: the user's settings, per server and per skill.

Configuration files travel with projects, so a setting can only take away:
none of them approves anything, and what nobody set is asked about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from skillwire.host.failures import ManualOnlyError, TurnedOffError
from skillwire.host.registry.confusables import LOCAL
from skillwire.host.registry.known import KnownSkill
from skillwire.wire.dialect import Dialect

EVERY: Final = "*"
"""Stands for all skills of a server, or of all origins, that have no setting of their own."""


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
    then `*`. Local skills have no label; `local/*` means all of them.
    """

    def __init__(
        self, servers: Mapping[str, SkillSettings] | None = None, show: Mapping[str, Attention] | None = None
    ) -> None:
        self._servers = dict(servers or {})
        self._show = {
            f"{label}/{key}": attention
            for label, settings in self._servers.items()
            for key, attention in settings.show.items()
        }
        self._show |= {key: Attention(value) for key, value in (show or {}).items()}

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
        return self.trust(skill) is not Trust.NEVER and self.of(skill) not in (
            Attention.MANUAL,
            Attention.OFF,
        )

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
        """
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
