"""Names of skills that a hurried reader takes for another origin's: `refund5` beside `refunds` (ASK-07).

Two names are alike when they look the same, or when one letter was added, left
out, replaced, or swapped with its neighbour. Names that differ only in their
numbers are not: those count something. Skills of one origin are not compared,
and an origin that has both names means both.

Each name is looked up by all texts it becomes when one letter is left out, so
the work grows with the length of all names and not with the number of pairs.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

from skillwire.host.registry.confusables import skeleton

SHORTEST: Final = 4
"""How long a name has to be: shorter ones are like too many others."""
MAX_PAIRS: Final = 100
MAX_WORK: Final = 300_000
"""How many texts, and how many meetings of names, are looked at; beyond that names are not compared."""

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
            self._pairs = tuple(sorted(_pairs(names)))
            self._names = dict(names)
        return self._pairs


def are_alike(one: str, other: str) -> bool:
    """Tell whether two names look the same, or are one slip of the hand apart."""
    if one == other or _NUMBER.sub("0", one) == _NUMBER.sub("0", other):
        return False
    return _outline(one) == _outline(other) or _is_one_slip(one, other)


def _pairs(names: Mapping[str, Origins]) -> set[Pair]:
    """Return all pairs, or as many as are enough; the order of `names` makes no difference."""
    if len({origin for origins in names.values() for origin in origins}) < 2:
        return set()
    found: set[Pair] = set()
    long = sorted(name for name in names if len(name) >= SHORTEST)
    meetings = chain(_meetings(long, _one_outline), _meetings(_affordable(long), _shortened))
    for one, other in islice(meetings, MAX_WORK):
        pair = (one, other) if one < other else (other, one)
        if pair not in found and _are_apart(names[one], names[other]) and are_alike(one, other):
            found.add(pair)
            if len(found) == MAX_PAIRS:
                break
    return found


def _affordable(names: Iterable[str]) -> list[str]:
    """Return the first names, as many as may be taken apart."""
    found: list[str] = []
    work = 0
    for name in names:
        work += len(name) + 1
        if work > MAX_WORK:
            break
        found.append(name)
    return found


def _meetings(names: Sequence[str], texts_of: TextsOf) -> Iterator[Pair]:
    """Yield each two names that have a text in common, and some of them more than once."""
    texts = [texts_of(name) for name in names]
    counted = Counter(chain.from_iterable(texts))
    shared = {text for text, count in counted.items() if count > 1}
    if not shared:
        return
    sharing: dict[str, list[str]] = {}
    for name, own in zip(names, texts, strict=True):
        for text in sorted(shared.intersection(own)):
            known = sharing.setdefault(text, [])
            yield from ((other, name) for other in known)
            if len(known) < _MOST_SHARING:
                known.append(name)


def _one_outline(name: str) -> tuple[str, ...]:
    return (_outline(name),)


def _shortened(name: str) -> list[str]:
    """Return a name, and what it becomes when any one letter is left out."""
    return [name, *[name[:place] + name[place + 1 :] for place in range(len(name))]]


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
