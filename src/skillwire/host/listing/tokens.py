"""How many tokens a text is: an estimate, unless the caller brings a real tokenizer."""

from collections.abc import Callable
from typing import Final, TypeAlias

TokenCounter: TypeAlias = Callable[[str], int]
"""Returns how many tokens a text is. It need not be additive, and may be slow: it is called a few times."""

BYTES_PER_TOKEN: Final = 4


def estimated_tokens(text: str) -> int:
    """Return the length in UTF-8 bytes divided by four, rounded up.

    This is the default, because every model has its own tokenizer. It is an
    estimate, not a bound: prose in English usually takes a little less, and
    names, numbers, markup and rare words take more, in odd texts about twice
    as much. Who must not exceed a limit by even one token passes the counter
    of the model in use.
    """
    return -(-size_of(text) // BYTES_PER_TOKEN)


def size_of(text: str) -> int:
    """Return the length in UTF-8 bytes, where half a surrogate pair counts as the three it would take."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
