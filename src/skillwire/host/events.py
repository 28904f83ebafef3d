"""What a program around the host is told, on this machine alone: no server hears of it (ASK-37)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from skillwire.host.activation import Activation
from skillwire.host.approval.approvals import binding_of
from skillwire.host.origin import Origin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SkillActivated:
    """A skill's text has entered a model's context.

    `binding` is the digest over every file's URI and digest, which the user
    agreed to; it is empty for a skill without digests.
    """

    origin: Origin
    uri: str
    reference: str
    binding: str
    at: datetime

    @classmethod
    def of(cls, window: Activation) -> "SkillActivated":
        skill, manifest = window.skill, window.skill.entry.manifest
        binding = "" if manifest is None else binding_of(manifest)
        return cls(skill.id.origin, skill.id.uri, skill.reference, binding, window.opened_at)


OnActivation: TypeAlias = Callable[[SkillActivated], None]


def tell(listener: OnActivation | None, window: Activation) -> None:
    """Call a listener; what goes wrong in it is its own and costs nobody a skill."""
    if listener is None:
        return
    try:
        listener(SkillActivated.of(window))
    except Exception:
        logger.exception("the callback for loaded skills failed")
