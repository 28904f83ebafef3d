"""Characters that hide, move or recolour text, and functions to remove or escape them.

Skill text reaches terminals, prompts and web pages. All detection of invisible
characters and terminal control characters is here.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

# Ranges of code points, by what they do. Kept as data so that the findings and the filters agree.
_KINDS: dict[str, str] = {
    "control": "\x00-\x08\x0b-\x1f\x7f-\x9f",
    "bidi": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "zero-width": "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a",
    "tag": "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff",
    "variation": "\ufe00-\ufe0f\U000e0100-\U000e01ef",
    "line": "\u2028\u2029",
}
_HIDDEN = "".join(_KINDS.values())
_UNPRINTABLE = _HIDDEN + "\t\n\ud800-\udfff"
# The three flags that are written with tag characters: England, Scotland, Wales.
_FLAG = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067"
    "|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
# The characters with a text and an emoji form that are not symbols.
_EMOJI_BASES = "#*0123456789\u203c\u2049\u2139\u3030"
_VIRAMA = 9
_MAX_QUOTED = 120
_LINE_END = re.compile("\r\n?|[\u2028\u2029]")
_CUT_ESCAPE = re.compile(r"<(?:U(?:\+[0-9A-F]{0,6})?)?\Z")
# Each round may remove what made a neighbour ordinary. Ordinary text needs two; more is an attack.
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class HiddenCharacter:
    """One character a reader would not see: its kind and its line."""

    kind: str
    character: str
    line: int

    @property
    def label(self) -> str:
        return f"U+{ord(self.character):04X} {unicodedata.name(self.character, f'{self.kind} character')}"


def hidden_characters(text: str, *, most: int | None = None) -> list[HiddenCharacter]:
    """Find the characters in `text` that hide something from a reader, or the first `most` of them.

    Joiners inside emoji and words of scripts that need them, a variation
    selector after a character that has variants, the flags made of tags, CRLF
    line ends and a leading byte order mark are ordinary writing and are not
    reported.
    """
    found: list[HiddenCharacter] = []
    line, counted = 1, 0
    for match in _one_of(_HIDDEN).finditer(text):
        position = match.start()
        if _is_ordinary(text, position):
            continue
        line += text.count("\n", counted, position)
        counted = position
        found.append(HiddenCharacter(_kind_of(text[position]), text[position], line))
        if len(found) == most:
            break
    return found


def visible(text: str, *, most: int | None = None) -> str:
    """Return `text` on one line, with every hidden character spelled out as `<U+…>`.

    The result cannot move a cursor, recolour a terminal, reorder a line or
    break out of it. Ordinary letters of any script stay as they are. With
    `most`, the result has at most so many characters and ends with `…` when
    something was cut off; no more of `text` than that is read.
    """
    if most is None:
        return _one_of(_UNPRINTABLE).sub(_spelled_out, text)
    shown = _one_of(_UNPRINTABLE).sub(_spelled_out, text[: most + 1])
    return shown if len(shown) <= most else _CUT_ESCAPE.sub("", shown[: most - 1]) + "…"


def revealed(text: str) -> str:
    """Return `text` with its lines, and with every hidden character spelled out as `<U+…>`.

    What `hidden_characters` treats as ordinary writing is unchanged.
    """
    return _one_of(_HIDDEN).sub(
        lambda match: match.group() if _is_ordinary(text, match.start()) else _spelled_out(match), text
    )


def stripped(text: str) -> str:
    """Return `text` with its lines, and without hidden characters.

    Line ends of any kind become `\\n`, and a lone surrogate a `?`. What `hidden_characters` treats as
    ordinary writing stays, except a byte order mark. Stripping the result again
    changes nothing.
    """
    text = _LINE_END.sub("\n", text.encode("utf-8", "replace").decode()).replace("\ufeff", "")
    for _ in range(_MAX_ROUNDS):
        left = _one_of(_HIDDEN).sub(
            lambda match, text=text: match.group() if _is_ordinary(text, match.start()) else "", text
        )
        if left == text:
            return left
        text = left
    return _one_of(_HIDDEN).sub("", text)


def quoted(text: str) -> str:
    """Quote untrusted text for a message: short, on one line, and without control characters."""
    shown = ascii(text[:_MAX_QUOTED])
    return shown if len(shown) <= _MAX_QUOTED else shown[: _MAX_QUOTED - 3] + "..."


def _spelled_out(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\t\n\r":
        return " "
    return f"<U+{ord(character):04X}>"


@cache
def _one_of(characters: str) -> re.Pattern[str]:
    """Compile a character class on first use: such large ones cost start-up time."""
    return re.compile(f"[{characters}]")


@cache
def _kind_of(character: str) -> str:
    return next(kind for kind, characters in _KINDS.items() if _one_of(characters).match(character))


def _is_ordinary(text: str, position: int) -> bool:
    character = text[position]
    before, after = text[position - 1 : position], text[position + 1 : position + 2]
    if character == "\r":
        return after == "\n"
    if character == "\ufeff":
        return position == 0
    if character in "\u200c\u200d":
        return _ends_in_virama(before) or (_joins(before) and _joins(after))
    if "\ufe00" <= character <= "\ufe0f":
        return _has_variant(before, character)
    return character >= "\U000e0000" and _in_flag(text, position)


def _in_flag(text: str, position: int) -> bool:
    start = text.rfind("\U0001f3f4", max(0, position - 6), position)
    return start >= 0 and _FLAG.match(text, start) is not None


def _ends_in_virama(before: str) -> bool:
    """Return whether a joiner may follow even at the end of a word (RFC 5892, "CONTEXTJ")."""
    return bool(before) and unicodedata.combining(before) == _VIRAMA


def _joins(character: str) -> bool:
    """Return whether a joiner next to `character` is ordinary: in emoji, or in a script that needs it.

    Cased letters, as of Latin or Cyrillic, and the wide ones of East Asia
    never need one, so there it could only carry something hidden.
    """
    if not character or character.isascii():
        return False
    category = unicodedata.category(character)
    if category in ("Lm", "Lo"):
        return unicodedata.east_asian_width(character) not in ("F", "H", "W")
    return category[0] in "MS"


def _has_variant(before: str, selector: str) -> bool:
    """Return whether Unicode defines variants of `before`; otherwise a selector is hidden data."""
    if not before:
        return False
    category = unicodedata.category(before)
    if selector in "\ufe0e\ufe0f":
        return before in _EMOJI_BASES or (category[0] == "S" and not before.isascii())
    if selector in "\ufe00\ufe01\ufe02":
        return before == "0" or (not before.isascii() and (category == "Lo" or category[0] in "PS"))
    return False
