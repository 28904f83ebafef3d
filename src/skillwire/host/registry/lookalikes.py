"""Names of skills that a hurried reader takes for another origin's: `refund5` beside `refunds` (ASK-07).

Two names are alike when they look the same, or when one letter was added, left
out, replaced, or swapped with its neighbour. Names that differ only in their
numbers are not: those count something. Skills of one origin are not compared,
and an origin that has both names means both.

Each name is looked up by all texts it becomes when one letter is left out, so
the work grows with the length of all names and not with the number of pairs.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from skillwire.host.registry.confusables import skeleton

SHORTEST: Final = 4
"""How long a name has to be: shorter ones are like too many others."""
MAX_PAIRS: Final = 100
MAX_WORK: Final = 500_000
"""How many texts are looked at; where there are more names, some are not compared letter by letter."""

Origins: TypeAlias = frozenset[object]
Pair: TypeAlias = tuple[str, str]
TextsOf: TypeAlias = Callable[[str], Collection[str]]

# More names than this cannot share what is left of them, as long as they are made of ASCII letters.
_MOST_SHARING = 64
_NUMBER = re.compile("[0-9]+")
_NO_SIGNS = str.maketrans({**dict.fromkeys("-_. ", ""), "0": "o", "1": "l", "5": "s", "m": "rn", "w": "vv"})
_NO_SIGNS[ord("i")] = "l"
_PLAIN = re.compile(r"[a-z0-9._ -]*")


class Lookalikes:
    """Finds names that are alike, and remembers them for as long as the names stay the same."""

    def __init__(self) -> None:
        self._names: Mapping[str, Origins] = {}
        self._pairs: tuple[Pair, ...] = ()

    def among(self, names: Mapping[str, Origins]) -> tuple[Pair, ...]:
        """Return pairs of names that are alike and come from different origins, sorted, at most 100."""
        if names != self._names:
            self._pairs = tuple(sorted(_pairs(names))[:MAX_PAIRS])
            self._names = dict(names)
        return self._pairs


def are_alike(one: str, other: str) -> bool:
    """Tell whether two names look the same, or are one slip of the hand apart."""
    if one == other or _NUMBER.sub("0", one) == _NUMBER.sub("0", other):
        return False
    return _outline(one) == _outline(other) or _is_one_slip(one, other)


def _pairs(names: Mapping[str, Origins]) -> set[Pair]:
    """Return all pairs, or as many as are enough."""
    if len({origin for origins in names.values() for origin in origins}) < 2:
        return set()
    found: set[Pair] = set()
    long = sorted(name for name in names if len(name) >= SHORTEST)
    for one, other in (*_meetings(long, _one_outline, len(long)), *_meetings(long, _shortened, MAX_WORK)):
        pair = (one, other) if one < other else (other, one)
        if pair not in found and _are_apart(names[one], names[other]) and are_alike(one, other):
            found.add(pair)
    return found


def _meetings(names: Iterable[str], texts_of: TextsOf, most: int) -> Iterator[Pair]:
    """Yield each two names that have a text in common, looking at no more than `most` texts."""
    first: dict[str, str] = {}
    more: dict[str, list[str]] = {}
    work = 0
    for name in names:
        texts = texts_of(name)
        work += len(texts)
        if work > most:
            return
        for text in texts:
            other = first.setdefault(text, name)
            if other is name:
                continue
            sharing = more.setdefault(text, [other])
            yield from ((known, name) for known in sharing)
            if len(sharing) < _MOST_SHARING:
                sharing.append(name)


def _one_outline(name: str) -> tuple[str, ...]:
    return (_outline(name),)


def _shortened(name: str) -> tuple[str, ...]:
    """Return a name, and what it becomes when any one letter is left out."""
    return tuple({name, *(name[:place] + name[place + 1 :] for place in range(len(name)))})


def _outline(name: str) -> str:
    """Return what `skeleton` does, which takes its time over letters that few names have."""
    return name.translate(_NO_SIGNS) if _PLAIN.fullmatch(name) else skeleton(name) or name


def _are_apart(one: Origins, other: Origins) -> bool:
    """Tell whether some origin has the one name alone, and another origin the other."""
    return bool(one - other and other - one)


def _is_one_slip(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if start is None:
        return True  # One of them goes on for one letter more.
    left, right = one[start:], other[start:]
    if len(left) != len(right):
        return left[1:] == right or right[1:] == left
    return left[1:] == right[1:] or (left[:2] == right[1::-1] and left[2:] == right[2:])
