"""A stranger's text made fit for a list: one line, nothing hidden, and not too long."""

import json
import re
from typing import Final

from skillwire.core.characters import revealed, visible
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.host.listing.tokens import size_of

ELLIPSIS: Final = "…"
MAX_REFERENCE: Final = 512
"""A longer reference is not listed: cut short it would mean nothing."""

_LONGEST_WORD = 40
_SHORTEST_PIECE = 12
# What may stand in a line as it is; spaces, quotes, backquotes, brackets and braces may not.
_PLAIN = re.compile(r"[\w%:.~/@+!$&'()*,;=-]+")
# Unicode calls these no characters, and XML cannot hold the last two.
_NO_CHARACTER = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
_encode = json.JSONEncoder(ensure_ascii=False).encode
_DANGLING = " ,;:-"
_MARKUP = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>"})


def clean(text: str) -> tuple[str, bool]:
    """Return a description on one line, with its odd characters dropped or spelled out, and if it was cut.

    What ordinary writing needs and nobody sees, such as a joiner in an emoji,
    is dropped. All else that hides is spelled out as `<U+…>`. A text longer
    than a description may be is cut, and ends in an ellipsis.
    """
    is_long = len(text) > MAX_DESCRIPTION
    shown = text[:MAX_DESCRIPTION] if is_long else text
    if not shown.isprintable() or "  " in shown or not shown.isascii() or shown != shown.strip():
        shown = " ".join(_harmless(" ".join(shown.split())).split())
        is_long = is_long or len(shown) > MAX_DESCRIPTION
    return (_capped(shown), True) if is_long else (shown, False)


def plain_or_quoted(text: str) -> str:
    """Return a reference or a label as it is, or as a JSON string when a line could be misread for it.

    The JSON string means exactly the same text: what hides, and what could be
    markup, stands in it as `\\u…`.
    """
    if _PLAIN.fullmatch(text) and (text.isascii() or visible(text) == text):
        return text
    return json_string(text).replace("`", "\\u0060")


def json_string(text: str) -> str:
    """Return a text as a JSON string that holds nothing hidden and nothing that could be markup."""
    shown = _encode(text)
    if not shown.isprintable() or (not shown.isascii() and visible(shown) != shown):
        shown = shown.translate({ord(character): _escaped(character) for character in set(shown)})
    return shown.translate(_MARKUP) if "<" in shown or ">" in shown else shown


def cut(text: str, room: int) -> str:
    """Return the beginning of a clean text that takes at most `room` bytes, up to the end of a word.

    A word longer than any word is cut as well, but nothing shorter than a few
    letters comes of it: then the result is empty.
    """
    if size_of(text) <= room:
        return text
    if text.isascii():
        return text[: _end(text.rfind(" ", 0, max(room, 0) + 1), room)].rstrip(_DANGLING)
    data = text.encode()
    data = data[: _end(data.rfind(b" ", 0, max(room, 0) + 1), room)]
    return data.decode("utf-8", "ignore").rstrip(_DANGLING)


def _capped(text: str) -> str:
    head = text[: MAX_DESCRIPTION - len(ELLIPSIS)]
    head = head[: _end(head.rfind(" "), len(head))].rstrip(_DANGLING)
    return head + ELLIPSIS if head else ""


def _end(space: int, room: int) -> int:
    if space > 0 and room - space <= _LONGEST_WORD:
        return space
    return room if room >= _SHORTEST_PIECE else 0


def _harmless(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    shown = _NO_CHARACTER.sub(lambda match: f"<U+{ord(match.group()):04X}>", revealed(text))
    if visible(shown) == shown:
        return shown
    hidden = [character for character in set(shown) if visible(character) != character]
    kept = shown.translate({ord(character): None for character in hidden if not _is_half(character)})
    return visible(kept)


def _is_half(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _escaped(character: str) -> str:
    if character.isascii() or (character.isprintable() and visible(character) == character):
        return character if character.isprintable() else f"\\u{ord(character):04x}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
