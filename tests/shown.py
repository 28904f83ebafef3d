"""Hostile text for everything that repeats what it was given, and what may come back of it."""

from collections.abc import Iterable, Iterator

from skillwire.core.characters import visible

MOST = 8_000
"""How many characters an answer to one hostile text may have at most."""

_HIDDEN = (
    "\x00\x07\x08\x1b]0;title\x07\x1b[31mred\x1b[2J\r\n\t\x7f\x85\x9b31m"  # C0, C1, escape sequences, lines
    "\u202eevil\u2066\u2069\u200f\u061c"  # overrides, isolates, marks
    "\u200b\u200d\u2060\ufeff\u00ad\u3164\ufe0f\u2028\u2029"  # no width, line separators
    "\U000e0001\U000e0041\U000e007f\U000e0100"  # tags, variation selectors
)
HOSTILE = f"before{_HIDDEN}after"
LONG = HOSTILE + "x" * 100_000
ONLY_HIDDEN = "\u202e" * 30_000


def hostile_texts(*beginnings: str) -> Iterator[str]:
    """Yield hostile texts as they are, and after beginnings that let them get further."""
    for text in (HOSTILE, LONG, ONLY_HIDDEN):
        yield text
        for beginning in beginnings:
            yield beginning + text


def arguments(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that can be an argument of a program: without zero bytes, and not too long."""
    for text in texts:
        yield text.replace("\x00", "").encode()[:100_000].decode("utf-8", "ignore")


def require_inert(text: str, *, lines: bool = False) -> None:
    """Check that a text hides nothing, and did not become long; `lines` says that it may have several."""
    kept = text.replace("\n", "") if lines else text
    raw = sorted({f"U+{ord(character):04X}" for character in kept if visible(character) != character})
    assert not raw, f"{raw} came back in {text[:300]!r}"
    assert len(text) <= MOST, f"{len(text)} characters came back: {text[:300]!r}…"
