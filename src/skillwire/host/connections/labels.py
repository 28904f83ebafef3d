"""The labels of servers: made from the keys of a configuration, and safe to show and to type."""

import unicodedata
from collections.abc import Sequence
from typing import Final

from skillwire.core.characters import quoted, visible
from skillwire.host.failures import ConfigError

MAX_LABEL_LENGTH: Final = 64
RESERVED_LABELS: Final = frozenset({"local", "project", "user", "skill"})


def label_of(key: str) -> str:
    """Make the label of a server from its key: letters, digits, `.`, `_` and `-`, whatever the script.

    Raises:
        ConfigError: Nothing is left, it is too long, or it is a word with another meaning.
    """
    spelled = "".join(
        character if _stays(character) else " " for character in unicodedata.normalize("NFC", key)
    )
    label = "-".join(spelled.split()).strip("-")
    if not label:
        raise ConfigError(f"the key {quoted(key)} has no letter or digit", fix="rename the server")
    if len(label) > MAX_LABEL_LENGTH:
        raise ConfigError(
            f"the key {quoted(key)} is longer than {MAX_LABEL_LENGTH} characters", fix="rename the server"
        )
    if folded(label) in RESERVED_LABELS:
        raise ConfigError(
            f"the key {quoted(key)} cannot name a server: the word means local skills here",
            fix="rename the server",
        )
    return label


def require_distinct(labels: Sequence[str]) -> None:
    """Check that no label is there twice.

    Raises:
        ConfigError: One is.
    """
    folds = [label.casefold() for label in labels]
    for label in labels:
        if folds.count(label.casefold()) > 1:
            raise ConfigError(f"more than one server is called {label}", reference=label)


def folded(label: str) -> str:
    """Return what two labels have in common that people would take for one."""
    return unicodedata.normalize("NFKC", label).casefold()


def _stays(character: str) -> bool:
    if character in "._-":
        return True
    category = unicodedata.category(character)
    # Some letters, such as the Hangul fillers, cannot be seen.
    return (category[0] == "L" or category == "Nd") and visible(character) == character
