"""Labels that look alike, so that one server could be mistaken for another or for the local folders."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

LOCAL: Final = "local"
"""The label of this machine wherever origins are shown."""

# Letters of other scripts by the Latin letters they look like. Capitals have their own table, because
# they may look like another letter than their small form.
_CAPITALS = {
    "a": "ΑАᎪ",
    "b": "ΒВᏴ",
    "c": "СᏟ",
    "d": "Ꭰ",
    "e": "ΕЕᎬ",
    "f": "Ϝ",
    "g": "ԌᏀ",
    "h": "ΗНᎻ",
    "i": "ΙІӀ",
    "j": "ЈͿᎫ",
    "k": "ΚКᏦ",
    "l": "Ꮮ",
    "m": "ΜМᎷ",
    "n": "Ν",
    "o": "ΟОՕ",
    "p": "ΡРᏢ",
    "q": "Ԛ",
    "s": "ЅՏᏚ",
    "t": "ΤТᎢ",
    "u": "Ս",
    "v": "ѴᏙ",
    "w": "ԜᎳ",
    "x": "ΧХ",
    "y": "ΥУҮ",
    "z": "ΖᏃ",
}
_SMALL = {
    "a": "αаɑ",
    "b": "βвьƅ",
    "c": "сϲςᴄ",
    "d": "ԁđժ",
    "e": "εеєҽ",
    "f": "ϝғք",
    "g": "ɡց",
    "h": "нһħհ",
    "i": "ιіıɩӏ",
    "j": "јϳ",
    "k": "κкĸ",
    "l": "łⅼ",
    "m": "м",
    "n": "ηпոռ",
    "o": "οоσօøᴏ",
    "p": "ρрþ",
    "q": "ԛգզ",
    "r": "гᴦ",
    "s": "ѕꜱ",
    "t": "τтŧ",
    "u": "υμսцᴜ",
    "v": "νѵᴠ",
    "w": "ωԝшѡᴡ",
    "x": "χхⅹ",
    "y": "γуүʏ",
    "z": "ζᴢ",
}
_DIGITS = {"0": "o", "1": "l", "5": "s"}
# Wide letters are split rather than pairs joined, so that the result does not depend on the order.
_WIDE = {"m": "rn", "w": "vv", "i": "l"}

_TO_LATIN = str.maketrans(
    {twin: letter for table in (_CAPITALS, _SMALL) for letter, twins in table.items() for twin in twins}
)
_TO_SKELETON = str.maketrans({**_DIGITS, **_WIDE})


def skeleton(label: str) -> str:
    """Return a text that is equal for labels that look alike.

    It is for comparing, never for display. Compatibility forms, case, accents
    and everything except letters and digits are removed; letters of other
    scripts, and digits, become the Latin letters they look like.
    """
    # Each normalization may produce letters that are in the table, so it is applied several times.
    text = unicodedata.normalize("NFKC", label.translate(_TO_LATIN)).translate(_TO_LATIN).casefold()
    text = unicodedata.normalize("NFKD", text).translate(_TO_LATIN)
    return "".join(map(_plain, text)).translate(_TO_SKELETON)


def confusable_labels(labels: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of different labels that look alike, each sorted; `local` counts as one more."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for label in (*labels, LOCAL):
        # Labels that consist of symbols only have an empty skeleton and do not look alike.
        groups[skeleton(label) or label].add(label)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def _plain(character: str) -> str:
    """Return a letter, or a digit of any script as an ASCII digit; an empty text for anything else."""
    digit = unicodedata.digit(character, None)
    if digit is not None:
        return str(digit)
    return character if character.isalpha() else ""


# Similar skill names of different origins, such as `refund5` and `refunds` (ASK-07).


MIN_LENGTH: Final = 4
"""The minimum length of a name: shorter ones are similar to too many others."""
MAX_PAIRS: Final = 100
MAX_WORK: Final = 300_000
"""The maximum number of texts, and of candidate pairs; beyond that names are not compared."""

Origins: TypeAlias = frozenset[object]
Pair: TypeAlias = tuple[str, str]
TextsOf: TypeAlias = Callable[[str], Collection[str]]

# No more names than this can share a text with one letter deleted, as long as they are ASCII.
_MOST_SHARING = 64
_NUMBER = re.compile("[0-9]+")
_NO_SIGNS = str.maketrans({**dict.fromkeys("-_. ", ""), "0": "o", "1": "l", "5": "s", "m": "rn", "w": "vv"})
_NO_SIGNS[ord("i")] = "l"
_PLAIN = re.compile(r"[a-z0-9._ -]*")


class Lookalikes:
    """Finds similar names, and caches the result while the names stay the same."""

    def __init__(self) -> None:
        self._names: Mapping[str, Origins] = {}
        self._pairs: tuple[Pair, ...] = ()

    def among(self, names: Mapping[str, Origins]) -> tuple[Pair, ...]:
        """Return pairs of similar names from different origins, sorted, at most 100."""
        if names != self._names:
            self._pairs = tuple(sorted(_pairs(names)))
            self._names = dict(names)
        return self._pairs


def are_alike(one: str, other: str) -> bool:
    """Return whether two names look the same, or differ by one edit."""
    if one == other or _NUMBER.sub("0", one) == _NUMBER.sub("0", other):
        return False
    return skeleton_of_name(one) == skeleton_of_name(other) or _is_one_edit(one, other)


def _pairs(names: Mapping[str, Origins]) -> set[Pair]:
    """Return all pairs, up to the limit; the order of `names` makes no difference."""
    if len({origin for origins in names.values() for origin in origins}) < 2:
        return set()
    found: set[Pair] = set()
    long = sorted(name for name in names if len(name) >= MIN_LENGTH)
    meetings = chain(_candidate_pairs(long, _skeletons), _candidate_pairs(_within_limit(long), _shortened))
    for one, other in islice(meetings, MAX_WORK):
        pair = (one, other) if one < other else (other, one)
        if pair not in found and _have_different_origins(names[one], names[other]) and are_alike(one, other):
            found.add(pair)
            if len(found) == MAX_PAIRS:
                break
    return found


def _within_limit(names: Iterable[str]) -> list[str]:
    """Return the first names, as many as the work limit allows."""
    found: list[str] = []
    work = 0
    for name in names:
        work += len(name) + 1
        if work > MAX_WORK:
            break
        found.append(name)
    return found


def _candidate_pairs(names: Sequence[str], texts_of: TextsOf) -> Iterator[Pair]:
    """Yield pairs of names that have a text in common, some of them more than once."""
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


def _skeletons(name: str) -> tuple[str, ...]:
    return (skeleton_of_name(name),)


def _shortened(name: str) -> list[str]:
    """Return a name, and all texts that deleting one letter gives."""
    return [name, *[name[:place] + name[place + 1 :] for place in range(len(name))]]


def skeleton_of_name(name: str) -> str:
    """Return the same as `skeleton`, with a fast path for ASCII names."""
    return name.translate(_NO_SIGNS) if _PLAIN.fullmatch(name) else skeleton(name) or name


def _have_different_origins(one: Origins, other: Origins) -> bool:
    """Return whether some origin has only the one name, and another origin only the other."""
    return bool(one - other and other - one)


def _is_one_edit(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if start is None:
        return True  # One of them has one more letter at the end.
    left, right = one[start:], other[start:]
    if len(left) != len(right):
        return left[1:] == right or right[1:] == left
    return left[1:] == right[1:] or (left[:2] == right[1::-1] and left[2:] == right[2:])
