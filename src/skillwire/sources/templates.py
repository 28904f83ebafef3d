"""What a source may add that serves more skills than it could list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from skillwire.wire.template import Template


@dataclass(frozen=True, slots=True)
class SkillTemplate:
    """How the URIs of many skills are made, for people who know what to put in."""

    name: str
    template: Template
    description: str


@runtime_checkable
class TemplatedSource(Protocol):
    """A source that says which skills it serves beyond those it lists."""

    def skill_templates(self) -> Sequence[SkillTemplate]:
        """Return the templates; always the same, and without waiting."""
        ...

    async def complete_template(self, template: str, variable: str, typed: str) -> Sequence[str]:
        """Return values of a variable that begin as `typed`, the best first; a few dozen are enough."""
        ...
