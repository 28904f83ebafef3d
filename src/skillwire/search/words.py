"""Text as words for search: case and accents are folded, identifiers split.

Skills and queries go through the same folding. Text in scripts without spaces
between words is split into pairs of characters. Only letters, digits and marks
are left, so nothing has a meaning in a query language.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from skillwire.core import Frontmatter, JsonValue, visible

MAX_QUERY: Final = 500
"""How many characters of a query are used."""
MAX_WORDS: Final = 64
"""How many different words of a query are used."""

_MIN_PREFIX = 2
_MAX_CACHED = 50_000

# Thai, Lao, Myanmar, Khmer, kana, Han and Hangul. Korean has spaces, but its suffixes are part of the words.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# A capital that starts another word of an identifier: I in csvInsights, S in HTTPServer.
_CAMEL_CASE = re.compile("[A-Z](?:(?<=[a-z0-9].)|(?<=[A-Z].)(?=[a-z]))")
_SPACED = r" \g<0>"
_RUN = re.compile("[A-Za-z0-9]+")
_MIXED_RUN = re.compile("[a-z0-9]*[A-Z][A-Za-z0-9]+")
_ANY_RUN = re.compile("[a-z0-9\u0080-\U0010ffff]+")
# Letters with a stroke or a tail that Unicode does not decompose into a letter and an accent.
_PLAIN_LETTERS = {"ø": "o", "đ": "d", "ð": "d", "ł": "l", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"}
_BREAKS = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Words that are ignored, unless the query has no others.
STOP_WORDS = frozenset(
    (
        "a an and any are as at be by can could do does for from get has have how i if in into is it me my "
        "need of on or our please should skill skills some that the there this to use using want we what "
        "when where which with would you your"
    ).split()
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a query. `parts` match instead of it, together; `is_prefix` also matches longer words."""

    text: str
    parts: tuple[str, ...] = ()
    is_prefix: bool = False

    @property
    def root(self) -> str:
        """An approximation of the word's stem, to locate its forms in a text."""
        return self.text if is_spaceless(self.text) else self.text[: max(4, len(self.text) - 3)]


def query_words(query: str) -> tuple[Word, ...]:
    """Return the different words of a query without stop words; the last one matches as a prefix."""
    text = query[:MAX_QUERY]
    camel_case = {
        run.lower(): tuple(parts) for run in _RUN.findall(text) if len(parts := _camel_parts(run)) > 1
    }
    pieces = _pieces(_folded(text, MAX_QUERY), lasts=False)
    words = list(dict.fromkeys(piece for piece in pieces if piece not in STOP_WORDS) or dict.fromkeys(pieces))
    words = words[:MAX_WORDS]
    return tuple(
        Word(word, camel_case.get(word, ()), _is_prefix(word, is_last=number == len(words)))
        for number, word in enumerate(words, start=1)
    )


def count_words(text: str, *, splits: bool = True) -> Counter[str]:
    """Count the words of a text; with `splits`, those of identifiers like `csvInsights` also in parts."""
    if splits and _CAMEL_CASE.search(text):
        runs = [run for run in _MIXED_RUN.findall(text) if _CAMEL_CASE.search(run)]
        text = f"{text} {_CAMEL_CASE.sub(_SPACED, ' '.join(runs))}"
    text = text.lower()
    if text.isascii():
        return Counter(_RUN.findall(text))
    counts = Counter(_ANY_RUN.findall(text))
    for run in [word for word in counts if not word.isascii()]:
        count = counts.pop(run)
        for piece in _pieces(_folded(run, 2 * len(run)), lasts=True):
            counts[piece] += count
    return counts


_SUFFIXES = (
    ("ization", 3), ("ational", 3), ("ation", 3), ("ingly", 3), ("ness", 3), ("ment", 4), ("able", 4),
    ("ible", 4), ("ing", 3), ("ion", 4), ("ive", 4), ("or", 5), ("er", 4), ("ed", 3), ("ly", 4), ("al", 4),
)  # fmt: skip
_KEEPS_ITS_S = ("ss", "us", "is")
_VOWEL = re.compile("[aeiouy]")
_MIN_STEM = 3


class _Memo(dict[str, str]):
    """Remembers the results of a function of words."""

    def __init__(self, function: Callable[[str], str]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, word: str) -> str:
        found = self._function(word)
        if len(self) < _MAX_CACHED:
            self[word] = found
        return found


def _term(word: str) -> str:
    if len(word) <= _MIN_STEM or not (word.isascii() and word.isalpha()):
        return word
    if word.endswith("ies") and len(word) > _MIN_STEM + 1:
        word = f"{word[:-3]}y"
    elif word.endswith("s") and not word.endswith(_KEEPS_ITS_S):
        word = word[:-1]
    return _plain_end(word)


def _root(term: str) -> str:
    if not (term.isascii() and term.isalpha()):
        return term
    for suffix, least in _SUFFIXES:
        start = term.removesuffix(suffix)
        if start != term and len(start) >= least and _VOWEL.search(start):
            return _plain_end(start)
    return term


def _plain_end(word: str) -> str:
    """Return a word without a doubled last consonant, a last `e`, and with `i` for a last `y`."""
    if len(word) > _MIN_STEM and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    if len(word) > _MIN_STEM + 1 and word[-1] == "e":
        word = word[:-1]
    return f"{word[:-1]}i" if len(word) > _MIN_STEM and word[-1] == "y" else word


TERMS: Final = _Memo(_term)
"""English words without the ending of the plural; other words as they are. These are indexed."""
ROOTS: Final = _Memo(_root)
"""Terms without other endings, so that all forms of a word have one root."""


STOP_TERMS: Final = frozenset(TERMS[word] for word in STOP_WORDS)


def is_one_edit(word: str, other: str) -> bool:
    """Return whether one letter was replaced, added or left out, or two neighbours were swapped."""
    shorter, longer = sorted((word, other), key=len)
    if len(longer) - len(shorter) > 1:
        return False
    same = 0
    while same < len(shorter) and shorter[same] == longer[same]:
        same += 1
    if len(shorter) != len(longer):
        return shorter[same:] == longer[same + 1 :]
    is_swapped = shorter[same : same + 2] == longer[same : same + 2][::-1]
    return shorter[same + 1 :] == longer[same + 1 :] or (
        is_swapped and shorter[same + 2 :] == longer[same + 2 :]
    )


def joined(identifier: str) -> str:
    """Return an identifier without separators: `csv-insights` as `csvinsights`."""
    return identifier.replace("-", "").replace("_", "")


def aligned(text: str) -> str:
    """Fold a text character by character, so that positions do not change."""
    if text.isascii():
        return text.translate(_FOLDED)
    return "".join([(_FOLDED[ord(character)] or " ")[0] for character in text])


def is_spaceless(text: str) -> bool:
    """Return whether a text is in a script without spaces between words."""
    return _SPACELESS.fullmatch(text) is not None


def _camel_parts(run: str) -> list[str]:
    return _CAMEL_CASE.sub(_SPACED, run).lower().split()


def _folded(text: str, most: int) -> str:
    # Some characters expand to several, so the length is limited again.
    return unicodedata.normalize("NFKC", text)[:most].translate(_FOLDED)


def _pieces(folded: str, *, lasts: bool) -> list[str]:
    if folded.isascii():
        return folded.split()
    return _SPACELESS.sub(lambda run: f" {' '.join(_pairs(run.group(), lasts=lasts))} ", folded).split()


def _pairs(run: str, *, lasts: bool) -> Iterable[str]:
    """Yield every pair of adjacent characters of a run, and with `lasts` its last character alone.

    With that one, every character starts a token, so that a query of a single
    character matches as a prefix.
    """
    for position in range(len(run) - 1):
        yield run[position : position + 2]
    if lasts or len(run) == 1:
        yield run[-1]


def _is_prefix(word: str, *, is_last: bool) -> bool:
    return (is_last and len(word) >= _MIN_PREFIX) or (len(word) == 1 and is_spaceless(word))


class _Folding(dict[int, str]):
    """A translation table that computes the folding of each character on first use."""

    def __missing__(self, code: int) -> str:
        folded = _fold_character(chr(code))
        if len(self) < _MAX_CACHED:
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
    """Return whether a mark can be dropped: accents and vowel points, not marks that change the letter."""
    kind = unicodedata.combining(part)
    return 10 <= kind <= 36 or kind >= 200


_FOLDED = _Folding()


# Excerpts of a text around the words that matched a query.


MAX_EXCERPT: Final = 240
NAME: Final = "name"
TAGS: Final = "tags"
PATH: Final = "path"
DESCRIPTION: Final = "description"
BODY: Final = "body"
FIELDS: Final = (NAME, TAGS, PATH, DESCRIPTION, BODY)
"""The parts of a skill that are searched."""

_LEAD = 40
_MAX_HITS = 40
# An entity in escaped text is not a word, and must not be cut in two.
_ENTITY = re.compile("&(?:amp|lt|gt);")
_OPEN_ENTITY = re.compile("&[a-z]*$")
_CUT = "…"


def excerpt_of(line: str, words: Sequence[Word]) -> str:
    """Return at most `MAX_EXCERPT` characters of one line of text, around the matching words if any."""
    if len(line) <= MAX_EXCERPT:
        return line
    start = _start(line, words)
    text = line[start:]
    before = _CUT if start else ""
    room = MAX_EXCERPT - len(before)
    if len(text) <= room:
        return before + text
    text = _OPEN_ENTITY.sub("", text[: room - len(_CUT)])
    end = text.rfind(" ", len(text) - _LEAD)
    return before + (text[:end] if end > 0 else text).rstrip() + _CUT


def _start(line: str, words: Sequence[Word]) -> int:
    """Return the start of the first excerpt that shows the most different words."""
    hits = _hits(line, words)
    reach = MAX_EXCERPT - _LEAD - 2 * len(_CUT)
    best, most = 0, 0
    for number, (position, _) in enumerate(hits):
        within = {root for later, root in hits[number:] if later + len(root) <= position + reach}
        if len(within) > most:
            best, most = position, len(within)
    if best <= _LEAD:
        return 0
    return line.find(" ", best - _LEAD, best) + 1 or best


def _hits(line: str, words: Sequence[Word]) -> list[tuple[int, str]]:
    if not words:
        return []
    roots = {word.root for word in words}
    ways = [root if is_spaceless(root) else rf"\b{root}" for root in sorted(roots, key=len, reverse=True)]
    text = aligned(_ENTITY.sub(lambda entity: " " * len(entity.group()), line))
    found: list[tuple[int, str]] = []
    for match in re.finditer("|".join(ways), text):
        found.append((match.start(), match.group()))
        if len(found) == _MAX_HITS:
            break
    return found


# The tags of a skill, wherever the frontmatter has them.


MAX_TAGS: Final = 512
"""How many characters of all tags together are used."""

_FIELDS = ("tags", "keywords", "categories", "category")
_MAX_VALUES = 64


def tags_of(frontmatter: Frontmatter) -> str:
    """Return a skill's tags as one text: those among its fields, and those in `metadata`."""
    fields = frontmatter.fields
    metadata = fields.get("metadata")
    holders = (fields, metadata) if isinstance(metadata, dict) else (fields,)
    tags = [text for holder in holders for key in _FIELDS if key in holder for text in _texts(holder[key])]
    return " ".join(tags)[:MAX_TAGS]


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:MAX_TAGS]
    elif isinstance(value, list):
        for item in value[:_MAX_VALUES]:
            if isinstance(item, str):
                yield item[:MAX_TAGS]
