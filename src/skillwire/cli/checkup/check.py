"""`Check`: one thing that was looked at, and how it stands."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How much something matters."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong; it is good to know."""
    WARNING = "warning"
    """It works, and should be changed."""
    PROBLEM = "problem"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `fix` is empty when there is nothing to do."""

    area: str
    subject: str
    status: Status
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "area": self.area,
            "subject": self.subject,
            "status": self.status.value,
            "found": self.found,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Area:
    """Makes the checks of one area."""

    name: str

    def ok(self, subject: str, found: str) -> Check:
        return Check(self.name, subject, Status.OK, found)

    def note(self, subject: str, found: str, fix: str = "") -> Check:
        return Check(self.name, subject, Status.NOTE, found, fix)

    def warning(self, subject: str, found: str, fix: str) -> Check:
        return Check(self.name, subject, Status.WARNING, found, fix)

    def problem(self, subject: str, found: str, fix: str) -> Check:
        return Check(self.name, subject, Status.PROBLEM, found, fix)
