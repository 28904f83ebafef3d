"""`Storage`: the folders where a host stores its state and its cache, apart from skills and workspaces."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import platformdirs

from skillwire.host.model import UnsafePlaceError
from skillwire.host.state.vault import make_folder

_MOST_ENTRIES = 10_000
_APART = "choose a folder apart from skills and workspaces"


def _user_state() -> Path:
    return Path(platformdirs.user_state_dir("skillwire"))


def _user_cache() -> Path:
    return Path(platformdirs.user_cache_dir("skillwire")) / "host"


@dataclass(frozen=True, slots=True)
class Storage:
    """The folders of a host's files; by default the folders of the system for programs of this user.

    Attributes:
        state: The folder of the user's decisions.
        cache: The folder of what can be fetched again.
        state_key: The key that seals the state; without it, one is made and stored in `state`.
        writable_roots: Folders where the agent's tools may write. `state` and `cache` must not overlap
            with them.
    """

    state: Path = field(default_factory=_user_state)
    cache: Path = field(default_factory=_user_cache)
    state_key: bytes | None = field(default=None, repr=False)
    writable_roots: Sequence[Path] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "writable_roots", tuple(self.writable_roots))

    @property
    def audit(self) -> Path:
        """The path of the audit log."""
        return self.state / "audit.jsonl"

    def check(self, discovery_roots: Iterable[Path]) -> None:
        """Check that both folders are apart from where skills are discovered and from where tools may write.

        Folders overlap when one contains the other, by path, through links, or
        under another name of the same folder. A link directly inside a
        discovery root counts as part of it. Nothing needs to exist yet.

        Raises:
            UnsafePlaceError: They overlap; nothing was created.
        """
        discovered = list(discovery_roots)
        for name, place in (("state", self.state), ("cache", self.cache)):
            for root in discovered:
                if any(_overlap(place, found) for found in (root, *_links_in(root))):
                    raise _unsafe(name, place, "a folder where skills are discovered")
            for root in self.writable_roots:
                if _overlap(place, root):
                    raise _unsafe(name, place, "a folder where tools may write")
        if _is_within(self.state, self.cache) and _is_within(self.cache, self.state):
            raise _unsafe("cache", self.cache, "the state, which must be a folder of its own")

    def prepare(self) -> None:
        """Create both folders, accessible to this user only; call `check` first.

        Raises:
            UnsafePlaceError: One cannot be created, is a link, or belongs to another user.
        """
        for name, place in (("state", self.state), ("cache", self.cache)):
            try:
                make_folder(place)
            except OSError as error:
                raise UnsafePlaceError(
                    f"the host's {name} folder cannot be used: {error.strerror or error}",
                    reference=str(place),
                    fix="choose a folder of this user that is not a link",
                ) from error


def _unsafe(name: str, place: Path, where: str) -> UnsafePlaceError:
    return UnsafePlaceError(
        f"the host's {name} folder is inside, or contains, {where}", reference=str(place), fix=_APART
    )


def _overlap(one: Path, other: Path) -> bool:
    """Check whether one folder is inside the other, or the same."""
    return _is_within(one, other) or _is_within(other, one)


def _is_within(inner: Path, outer: Path) -> bool:
    """Return whether `outer` contains `inner`, by resolved path or by inode (paths may differ in case)."""
    resolved, limit = _resolved(inner), _resolved(outer)
    if resolved.is_relative_to(limit):
        return True
    wanted = _identity(limit)
    return wanted is not None and any(_identity(above) == wanted for above in (resolved, *resolved.parents))


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path.expanduser()))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino)


def _links_in(root: Path) -> Iterator[Path]:
    """Yield the links directly inside a root, because discovery may follow them."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if entry.is_symlink():
                yield Path(entry.path)
