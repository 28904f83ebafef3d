"""Windows: the periods in which a host acts on a loaded skill.

A window opens when a skill's text enters the model's context and closes when
the host says that the text, and whatever was made of it, is gone. It owns the
entry that was loaded: files are read against that entry, and nothing else.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from skillwire.core.frontmatter import SkillDocument
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.errors import LimitError
from skillwire.host.approval.approvals import now
from skillwire.host.origin import SkillId
from skillwire.host.registry.known import KnownSkill

_BOUNDARY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Activation:
    """One open window: the skill as it was approved and loaded.

    `boundary` is a mark nobody could guess, made for this load; it frames the
    server's text wherever it is shown. `fetched` is what was read without
    a digest to hold it against, which is kept no longer than the window.
    """

    skill: KnownSkill
    document: SkillDocument
    boundary: str
    opened_at: datetime
    fetched: "DynamicFiles" = field(compare=False)

    @classmethod
    def opening(cls, skill: KnownSkill, document: SkillDocument, fetched: "DynamicFiles") -> "Activation":
        """Make a window for a document that was fetched and checked."""
        return cls(skill, document, fresh_boundary(), now(), fetched)


def fresh_boundary() -> str:
    """Make a mark that no text written before this moment can contain."""
    return secrets.token_hex(_BOUNDARY_BYTES)


class DynamicFiles:
    """What was read of a skill without a digest or a size to it: counted, and dropped with the window.

    `permission` is the user's word on files without digests, for this window
    alone; None while nobody was asked.
    """

    def __init__(self) -> None:
        self.permission: bool | None = None
        self._files: dict[str, bytes] = {}
        self._counted: set[str] = set()
        self._size = 0

    @property
    def left(self) -> int:
        """How many bytes may still be read."""
        return MAX_TOTAL_SIZE - self._size

    def get(self, uri: str) -> bytes | None:
        return self._files.get(uri)

    def require_room(self, uri: str) -> None:
        """Check that one more file may be read.

        Raises:
            LimitError: The skill has already cost as much as a skill may.
        """
        if uri not in self._counted and (len(self._counted) >= MAX_FILES or self.left <= 0):
            raise LimitError(
                f"{uri} is not read: this skill has already cost {len(self._counted)} files "
                f"and {self._size} bytes, and promises no end"
            )

    def add(self, uri: str, content: bytes) -> None:
        """Keep what was read, and count it."""
        self._size += len(content) - len(self._files.get(uri, b""))
        self._files[uri] = content
        self._counted.add(uri)

    def count(self, uri: str, size: int) -> None:
        """Count a file whose size nobody had told, and which is kept elsewhere."""
        if uri not in self._counted:
            self._counted.add(uri)
            self._size += size


class Windows:
    """The open windows of one conversation.

    A sub-agent's conversation starts with those of the one that started it;
    what it opens itself comes back with its answer, through `adopt`.
    """

    def __init__(self, inherited: Iterable[Activation] = ()) -> None:
        self._open = {window.skill.id: window for window in inherited}

    def open(self, window: Activation) -> None:
        """Open a window. An older one of the same skill is replaced: its text is superseded."""
        self._open[window.skill.id] = window

    def find(self, skill: SkillId) -> Activation | None:
        return self._open.get(skill)

    def by_reference(self, reference: str) -> Activation | None:
        """Return the window of the skill that was loaded as `reference`, whatever it is called by now."""
        return next((window for window in self._open.values() if window.skill.reference == reference), None)

    def all(self) -> tuple[Activation, ...]:
        """Return the open windows, the oldest first."""
        return tuple(self._open.values())

    def close(self, skill: SkillId) -> bool:
        """Close a window, because the skill's text has left the context; False when none was open."""
        return self._open.pop(skill, None) is not None

    def adopt(self, others: "Windows") -> None:
        """Take over windows whose text may have come along, and keep one's own."""
        for window in others.all():
            self._open.setdefault(window.skill.id, window)

    def __len__(self) -> int:
        return len(self._open)
