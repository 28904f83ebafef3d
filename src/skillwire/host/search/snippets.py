"""The part of a description that shows why a skill was found."""

from collections.abc import Sequence

from skillwire.core.excerpts import excerpt_of
from skillwire.core.words import Word
from skillwire.host.presentation import summary_of
from skillwire.host.registry.known import KnownSkill


def snippet_of(skill: KnownSkill, words: Sequence[Word]) -> str:
    """Return one harmless line from a skill's description, around the words where it has them."""
    return excerpt_of(summary_of(skill), words)
