"""Text as words that can be compared: without case, accents, and the ways to write an identifier.

Skills and queries go through the same folding, so what looks alike to a
reader is found. Scripts that put no spaces between words are cut into pairs of
characters. Only letters, digits and marks are left: nothing that has a
meaning in a query language survives.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from skillwire.core.characters import visible

MAX_QUERY: Final = 500
"""How many characters of a query are looked at."""
MAX_WORDS: Final = 16
"""How many different words of a query count."""

_SHORTEST_START = 2
_MOST_REMEMBERED = 20_000

# Thai, Lao, Myanmar, Khmer, kana, Han and Hangul. Korean has spaces, but its endings stick to the words.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# A capital that begins another word of an identifier: I in csvInsights, S in HTTPServer.
_HUMP = re.compile("[A-Z](?:(?<=[a-z0-9].)|(?<=[A-Z].)(?=[a-z]))")
_PARTED = r" \g<0>"
_RUN = re.compile("[A-Za-z0-9]+")
# Letters with a stroke or a tail that Unicode does not take for accents.
_PLAIN_LETTERS = {"ø": "o", "đ": "d", "ð": "d", "ł": "l", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"}
_BREAKS = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Words that say nothing about what is looked for, unless they are all there is.
_EMPTY = frozenset(
    (
        "a an and any are as at be by can could do does for from get has have how i if in into is it me my "
        "need of on or our please should skill skills some that the there this to use using want we what "
        "when where which with would you your"
    ).split()
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a query: it, `parts` that stand for it together, or with `is_start` what begins with it."""

    text: str
    parts: tuple[str, ...] = ()
    is_start: bool = False

    @property
    def root(self) -> str:
        """The beginning that forms of the word share, near enough to point at them in a text."""
        return self.text if is_spaceless(self.text) else self.text[: max(4, len(self.text) - 3)]


def query_words(query: str) -> tuple[Word, ...]:
    """Return the different words of a query that count; of the last one a beginning is enough."""
    text = query[:MAX_QUERY]
    humps = {run.lower(): tuple(parts) for run in _RUN.findall(text) if len(parts := _humps(run)) > 1}
    pieces = _pieces(_folded(text, MAX_QUERY), lasts=False)
    words = list(dict.fromkeys(piece for piece in pieces if piece not in _EMPTY) or dict.fromkeys(pieces))
    words = words[:MAX_WORDS]
    return tuple(
        Word(word, humps.get(word, ()), _is_start(word, is_last=number == len(words)))
        for number, word in enumerate(words, start=1)
    )


def index_text(text: str, most: int) -> str:
    """Return the first `most` characters of a text as words with spaces or ASCII punctuation between them.

    An identifier of several words is there as a whole and in parts. ASCII
    keeps its capitals, which whoever takes the text apart must fold.
    """
    text = text[:most]
    if _HUMP.search(text):
        runs = [run for run in _RUN.findall(text) if not run.islower() and _HUMP.search(run)]
        text = f"{text} {_HUMP.sub(_PARTED, ' '.join(runs))}"
    return text if text.isascii() else " ".join(_pieces(_folded(text, 2 * most), lasts=True))


def joined(identifier: str) -> str:
    """Return an identifier without what parts its words: `csv-insights` as `csvinsights`."""
    return identifier.replace("-", "").replace("_", "")


def aligned(text: str) -> str:
    """Fold a text character by character, so that positions stay what they are."""
    return "".join([(_FOLDED[ord(character)] or " ")[0] for character in text])


def is_spaceless(text: str) -> bool:
    """Tell whether a text is of a script without spaces between words."""
    return _SPACELESS.fullmatch(text) is not None


def _humps(run: str) -> list[str]:
    return _HUMP.sub(_PARTED, run).lower().split()


def _folded(text: str, most: int) -> str:
    # Some characters stand for many, so the length is bounded once more.
    return unicodedata.normalize("NFKC", text)[:most].translate(_FOLDED)


def _pieces(folded: str, *, lasts: bool) -> list[str]:
    if folded.isascii():
        return folded.split()
    return _SPACELESS.sub(lambda run: f" {' '.join(_pairs(run.group(), lasts=lasts))} ", folded).split()


def _pairs(run: str, *, lasts: bool) -> Iterable[str]:
    """Yield every two neighbours of a run, and with `lasts` its last character alone.

    With those, each character begins something, and a query of a single
    character finds it as a beginning.
    """
    for position in range(len(run) - 1):
        yield run[position : position + 2]
    if lasts or len(run) == 1:
        yield run[-1]


def _is_start(word: str, *, is_last: bool) -> bool:
    return (is_last and len(word) >= _SHORTEST_START) or (len(word) == 1 and is_spaceless(word))


class _Folding(dict[int, str]):
    """What becomes of each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        folded = _fold_character(chr(code))
        if len(self) < _MOST_REMEMBERED:
            self[code] = folded
        return folded


def _fold_character(character: str) -> str:
    if visible(character) != character:
        return " " if unicodedata.category(character) in _BREAKS else ""
    bare = "".join(part for part in unicodedata.normalize("NFKD", character) if not _is_accent(part))
    folded = unicodedata.normalize("NFC", bare).casefold()
    folded = _PLAIN_LETTERS.get(folded, folded)
    return "".join(part if part.isalnum() or unicodedata.category(part)[0] == "M" else " " for part in folded)


def _is_accent(part: str) -> bool:
    """Tell whether a mark can be left out: accents and vowel points, not what makes another letter."""
    kind = unicodedata.combining(part)
    return 10 <= kind <= 36 or kind >= 200


_FOLDED = _Folding()
