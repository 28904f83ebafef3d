"""Characters that hide, move or recolour text, and how to make them harmless.

Skill text reaches terminals, prompts and web pages. Everything a reader cannot
see, or that a terminal would obey, is found here and nowhere else.
"""

import re
import unicodedata
from dataclasses import dataclass

# Ranges of code points, by what they do. Kept as data so that the findings and the filters agree.
_KINDS: dict[str, str] = {
    "control": "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f",
    "bidi": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "zero-width": "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb",
    "tag": "\U000e0000-\U000e007f",
    "variation": "\ufe00-\ufe0f\U000e0100-\U000e01ef",
    "line": "\u2028\u2029",
}
_SUSPICIOUS = re.compile(
    "|".join(f"(?P<{kind.replace('-', '_')}>[{chars}])" for kind, chars in _KINDS.items())
)
_ANY = re.compile(f"[{''.join(_KINDS.values())}]")
_UNPRINTABLE = re.compile(f"[{''.join(_KINDS.values())}\t\n\r\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class HiddenCharacter:
    """One character a reader would not see: what it is and where it stands."""

    kind: str
    character: str
    line: int

    @property
    def label(self) -> str:
        return f"U+{ord(self.character):04X} {unicodedata.name(self.character, 'control character')}"


def hidden_characters(text: str) -> list[HiddenCharacter]:
    """Find the characters in `text` that hide something from a reader.

    Joiners inside emoji and words of scripts that need them, single variation
    selectors after a visible character, and a leading byte order mark are
    ordinary writing and are not reported.
    """
    if text.isascii() and not _ANY.search(text):
        return []
    found: list[HiddenCharacter] = []
    line, counted = 1, 0
    for match in _SUSPICIOUS.finditer(text):
        position = match.start()
        if _is_ordinary(text, position, match.group()):
            continue
        line += text.count("\n", counted, position)
        counted = position
        kind = (match.lastgroup or "control").replace("_", "-")
        found.append(HiddenCharacter(kind, match.group(), line))
    return found


def visible(text: str) -> str:
    """Return `text` on one line, with every hidden character spelled out as `<U+…>`.

    The result cannot move a cursor, recolour a terminal, reorder a line or
    break out of it. Ordinary letters of any script stay as they are.
    """
    return _UNPRINTABLE.sub(_spelled_out, text)


def _spelled_out(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\t\n\r":
        return " "
    return f"<U+{ord(character):04X}>"


def _is_ordinary(text: str, position: int, character: str) -> bool:
    before = text[position - 1] if position else ""
    after = text[position + 1] if position + 1 < len(text) else ""
    if character == "\ufeff":
        return position == 0
    if character in "\u200c\u200d":
        return _joins(before) and _joins(after)
    if "\ufe00" <= character <= "\ufe0f":
        return bool(before) and not before.isspace() and not _ANY.match(before)
    return False


def _joins(character: str) -> bool:
    """Tell whether a joiner beside `character` is part of ordinary writing."""
    return (
        bool(character)
        and not character.isascii()
        and (unicodedata.category(character)[0] in "LMS" or "\ufe00" <= character <= "\ufe0f")
    )
