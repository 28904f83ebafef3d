"""Running commands in the tests' own process, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its exit code, and what it wrote where."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        return orjson.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Command: TypeAlias = Callable[..., Outcome]
"""Runs a command line, given as strings and paths."""


def as_words(args: tuple[str | Path, ...]) -> list[str]:
    return [str(arg) for arg in args]


def names_in(folder: Path) -> list[str]:
    """Return the names of everything in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())
