"""Labels that look alike: one server passing for another, or for the local folders."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

LOCAL: Final = "local"
"""The word that stands for this machine wherever origins are shown."""

# Letters of other scripts by the Latin ones they pass for. Capitals have a table of their own, because
# they may look like another letter than their small form does.
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
# Spelled out rather than drawn together, so that what looks alike comes out alike in any order.
_WIDE = {"m": "rn", "w": "vv", "i": "l"}

_TO_LATIN = str.maketrans(
    {twin: letter for table in (_CAPITALS, _SMALL) for letter, twins in table.items() for twin in twins}
)
_TO_SKELETON = str.maketrans({**_DIGITS, **_WIDE})


def skeleton(label: str) -> str:
    """Return a text that labels share when a hurried reader takes them for one.

    It is for comparing, never for showing. Forms for compatibility, case,
    accents and all that is neither letter nor digit fall away, letters of
    other scripts become the Latin ones they look like, and so do digits.
    """
    # Each step may bring forth letters that the table knows, or lose them.
    text = unicodedata.normalize("NFKC", label.translate(_TO_LATIN)).translate(_TO_LATIN).casefold()
    text = unicodedata.normalize("NFKD", text).translate(_TO_LATIN)
    return "".join(map(_plain, text)).translate(_TO_SKELETON)


def confusable_labels(labels: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of different labels that look alike, each sorted; `local` counts as one more."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for label in (*labels, LOCAL):
        # Labels of symbols alone have no skeleton, and nothing in common by that.
        groups[skeleton(label) or label].add(label)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def _plain(character: str) -> str:
    """Return a letter, or a digit of any script as an ASCII one; nothing for everything else."""
    digit = unicodedata.digit(character, None)
    if digit is not None:
        return str(digit)
    return character if character.isalpha() else ""
