"""What a model was told of one origin's skills, and what of it no longer holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from skillwire.host.listing.cleaning import clean
from skillwire.host.listing.rows import Shown
from skillwire.host.listing.sections import Contents
from skillwire.host.listing.wording import Place
from skillwire.host.listing.writing import Mark, Writer
from skillwire.host.registry.known import KnownSkill

ADDED = Mark("added")
CHANGED = Mark("changed")
REMOVED = Mark("removed")


@dataclass(frozen=True, slots=True)
class Told:
    """A skill that is in the list; `description` is None when only its name is."""

    skill: KnownSkill
    description: str | None


@dataclass(slots=True)
class Memory:
    """One origin as the model knows it: `told` by reference, and the URIs of all it could have been told of.

    `spent` are the tokens of the changes given so far. A silent origin was
    taken out of the list for good.
    """

    place: Place
    told: dict[str, Told] = field(default_factory=dict[str, Told])
    known: Mapping[str, str] = field(default_factory=dict[str, str])
    spent: int = 0
    is_silent: bool = False

    def note(self, contents: Contents, shown: Iterable[Shown]) -> None:
        """Take in what was shown just now of the contents as they are."""
        for item, text in shown:
            if item.mark is not None and item.mark.was:
                self.told = {
                    reference: told
                    for reference, told in self.told.items()
                    if told.skill.id.uri != item.skill.id.uri
                }
            if item.mark is REMOVED:
                self.told.pop(item.skill.reference, None)
            else:
                self.told[item.skill.reference] = Told(item.skill, item.description.text if text else None)
        self.known = {skill.reference: skill.id.uri for skill in (*contents.pins, *contents.others)}

    def differences(self, now: Contents, writer: Writer) -> Contents | None:
        """Return the lines that bring the list up to date; None when nothing of it has changed.

        What is in the list and no longer holds comes first, as pins do. Then
        come new skills, of which it is enough to say how many there are.
        """
        current = {skill.reference: skill for skill in (*now.pins, *now.others)}
        marks: dict[str, Mark] = {}
        lines: dict[str, KnownSkill] = {}
        moved = {
            told.skill.id.uri: reference for reference, told in self.told.items() if reference not in current
        }
        for reference, skill in current.items():
            told = self.told.get(reference)
            if told is not None:
                if self._has_changed(told, skill, now):
                    marks[reference], lines[reference] = CHANGED, skill
            elif (was := moved.pop(skill.id.uri, None)) is not None:
                marks[reference], lines[reference] = Mark("renamed", writer.reference(was)), skill
            elif reference not in self.known:
                marks[reference] = ADDED
        for reference in moved.values():
            marks[reference], lines[reference] = REMOVED, self.told[reference].skill
        if not marks:
            return None
        return replace(
            now,
            pins=[lines[reference] for reference in sorted(lines)],
            others=[current[reference] for reference in sorted(marks) if marks[reference] is ADDED],
            bare=now.bare | {reference for reference in lines if marks[reference] is REMOVED},
            unlisted=0,
            marks=marks,
            sort=" added",
        )

    def _has_changed(self, told: Told, skill: KnownSkill, now: Contents) -> bool:
        if told.description is None or skill.entry is told.skill.entry or skill.reference in now.bare:
            return False
        return clean(skill.description)[0] != told.description
