"""What a user has agreed to, kept by a test beside the host: simple, slow, and with nothing left out."""

import tomllib
from dataclasses import dataclass, field

from integration.hosting_shop import LABEL, Asked, Event, FileSet, Listed, Sent
from skillwire.host.model.approval import Reply


def _no_sets() -> dict[str, set[FileSet]]:
    return {}


@dataclass
class Model:
    """Everything the user agreed to and has not taken back, as the specification counts it.

    An approval is a set of files. It ends for good when the host sees the
    skill with another set, when the user revokes it, or when something else
    has changed the file it was kept in.
    """

    fingerprint: str
    once: dict[str, set[FileSet]] = field(default_factory=_no_sets)
    stored: dict[str, FileSet] = field(default_factory=dict[str, FileSet])
    doomed: dict[str, FileSet] = field(default_factory=dict[str, FileSet])
    """What is stored under a key that is gone: it may count while this host runs, and not a moment longer."""
    pins: dict[str, FileSet] = field(default_factory=dict[str, FileSet])
    """What the lock says, as long as this host honours it."""
    revoked_pins: set[tuple[str, FileSet]] = field(default_factory=set[tuple[str, FileSet]])
    trusted: bytes | None = None
    """The one content of the lock that the user has seen and trusted last."""
    is_frozen: bool = False
    seen: dict[str, FileSet] = field(default_factory=dict[str, FileSet])
    """What the running host was told last."""
    is_tampered: bool = False

    def agreed(self, uri: str) -> set[FileSet]:
        """Return every set of files which the user agrees to for a skill right now."""
        pin = self.pins.get(uri)
        if self.is_frozen:
            return set() if pin is None else {pin}
        found = set(self.once.get(uri, ()))
        found |= {kept[uri] for kept in (self.stored, self.doomed) if uri in kept}
        if pin is not None and (uri, pin) not in self.revoked_pins:
            found.add(pin)
        return found

    def is_sure(self, uri: str) -> bool:
        """Tell whether what the host saw last of a skill is agreed to, and nothing was tampered with."""
        return not self.is_tampered and uri in self.seen and self.seen[uri] in self.agreed(uri)

    def follow(self, event: Event) -> None:
        """Take in what happened between the host, the server and the user."""
        if isinstance(event, Listed):
            self.seen.clear()
        elif isinstance(event, Sent) and event.files is not None:
            self._see(event.uri, event.files)
        elif isinstance(event, Asked) and event.files is not None:
            if event.reply is Reply.ONCE:
                self.once.setdefault(event.uri, set()).add(event.files)
            elif event.reply is Reply.ALWAYS:
                self.approve(event.uri, event.files)

    def _see(self, uri: str, files: FileSet) -> None:
        self.seen[uri] = files
        self.once[uri] = {known for known in self.once.get(uri, ()) if known == files}
        for kept in (self.stored, self.doomed):
            if kept.get(uri) != files:
                kept.pop(uri, None)
        if not self.is_frozen:
            self.revoked_pins |= {(uri, pin) for pin in self._watched(uri) if pin != files}

    def _watched(self, uri: str) -> set[FileSet]:
        """Return what the lock says of a skill, and what it said when the user last saw it.

        The file may say something else meanwhile, and may come back.
        """
        trusted = {} if self.trusted is None else self.read(self.trusted)
        return {pins[uri] for pins in (self.pins, trusted) if uri in pins}

    def approve(self, uri: str, files: FileSet) -> None:
        self.doomed.pop(uri, None)
        self.stored[uri] = files
        self.revoked_pins.discard((uri, files))

    def revoke(self, uri: str) -> None:
        for kept in (self.once, self.stored, self.doomed):
            kept.pop(uri, None)
        if not self.is_frozen:
            self.revoked_pins |= {(uri, pin) for pin in self._watched(uri)}

    def restart(self, lock: bytes | None, *, is_frozen: bool) -> None:
        self.once, self.seen, self.doomed = {}, {}, {}
        self.is_frozen = is_frozen
        self.look(lock)

    def look(self, lock: bytes | None) -> None:
        """The host has read the lock: it counts when it is frozen, or to the byte the trusted one."""
        counts = lock is not None and (self.is_frozen or lock == self.trusted)
        self.pins = self.read(lock) if counts and lock is not None else {}

    def trust(self, lock: bytes) -> None:
        """The user has looked at the lock, and so agrees anew to all it says."""
        self.trusted = lock
        self.look(lock)
        self.revoked_pins -= set(self.pins.items())

    def written(self, lock: bytes) -> None:
        """The host wrote the lock, which brings nothing back that has ended."""
        self.trusted = lock
        self.look(lock)

    def lose_approvals(self) -> None:
        """Something else has changed the file of approvals."""
        self.stored, self.doomed = {}, {}
        self.is_tampered = True

    def lose_trust(self) -> None:
        """Something else has changed the note of the trusted lock; a running host still knows it."""
        self.trusted = None
        self.is_tampered = True

    def lose_key(self) -> None:
        """The key is gone, and with it everything it sealed, at the latest when the host starts again."""
        self.doomed, self.stored = {**self.doomed, **self.stored}, {}
        self.lose_trust()

    def read(self, lock: bytes) -> dict[str, FileSet]:
        """Return what a lock says about this server, by our own reading of it."""
        rows = tomllib.loads(lock.decode()).get("skill", [])
        return {
            row["uri"]: frozenset((file["uri"], file["digest"]) for file in row["files"])
            for row in rows
            if row["label"] == LABEL and row["fingerprint"] == self.fingerprint and "load" in row["grants"]
        }
