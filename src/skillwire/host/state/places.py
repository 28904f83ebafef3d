"""Where a host keeps what it must remember, and why nothing else may live or write there."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import platformdirs

from skillwire.host.failures import UnsafePlaceError
from skillwire.host.state.vault import make_folder

_MOST_ENTRIES = 10_000
_APART = "choose a folder apart from skills and workspaces"


@dataclass(frozen=True, slots=True)
class Places:
    """The two folders of a host: `state` holds what the user decided, `cache` what can be fetched again."""

    state: Path
    cache: Path

    @classmethod
    def default(cls) -> "Places":
        """Return the places this system gives to programs of this user."""
        return cls(
            Path(platformdirs.user_state_dir("skillwire")),
            Path(platformdirs.user_cache_dir("skillwire")) / "host",
        )

    @property
    def audit(self) -> Path:
        """The log of what the host did."""
        return self.state / "audit.jsonl"

    def check(self, discovery_roots: Iterable[Path], writable_roots: Iterable[Path] = ()) -> None:
        """Check that both places are apart from where skills are discovered and from where tools may write.

        Apart means that neither lies in the other, by name, through links, or
        through a folder that has several names. A link directly inside a
        discovery root counts as a part of it. Nothing needs to exist yet.

        Raises:
            UnsafePlaceError: One of them is not; nothing was made.
        """
        discovered, writable = list(discovery_roots), list(writable_roots)
        for name, place in (("state", self.state), ("cache", self.cache)):
            for root in discovered:
                if any(_overlap(place, found) for found in (root, *_links_in(root))):
                    raise _unsafe(name, place, "a folder where skills are discovered")
            for root in writable:
                if _overlap(place, root):
                    raise _unsafe(name, place, "a folder where tools may write")
        if _is_within(self.state, self.cache) and _is_within(self.cache, self.state):
            raise _unsafe("cache", self.cache, "the state, which must be a folder of its own")

    def prepare(self) -> None:
        """Make both folders, open to this user only; `check` them first.

        Raises:
            UnsafePlaceError: One cannot be made, is a link, or belongs to someone else.
        """
        for name, place in (("state", self.state), ("cache", self.cache)):
            try:
                make_folder(place)
            except OSError as error:
                raise UnsafePlaceError(
                    f"the host's {name} folder cannot be used: {error.strerror or error}",
                    reference=str(place),
                    fix="choose a folder of this user that is no link",
                ) from error


def _unsafe(name: str, place: Path, where: str) -> UnsafePlaceError:
    return UnsafePlaceError(
        f"the host's {name} folder lies in, or holds, {where}", reference=str(place), fix=_APART
    )


def _overlap(one: Path, other: Path) -> bool:
    """Tell whether one folder lies in the other, or is the other."""
    return _is_within(one, other) or _is_within(other, one)


def _is_within(inner: Path, outer: Path) -> bool:
    """Compare resolved names, and what the folders are: on some systems names differ in case only."""
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
    """Yield the links directly inside a root, because discovery may be told to follow them."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if entry.is_symlink():
                yield Path(entry.path)
