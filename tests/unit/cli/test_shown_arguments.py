"""No command repeats a hostile argument as it is: what comes back is short, and hides nothing."""

from pathlib import Path

import pytest

from commands import Command
from shown import arguments, hostile_texts, require_inert

COMMANDS: list[tuple[str, ...]] = [
    ("{}",),
    ("list", "--{}"),
    ("list", "{}"),
    ("list", "--server", "{}"),
    ("list", "--config", "{}"),
    ("show", "{}"),
    ("show", "{}", "{}"),
    ("load", "{}"),
    ("approve", "{}"),
    ("revoke", "{}"),
    ("diff", "{}"),
    ("why", "{}"),
    ("search", "{}"),
    ("run", "{}", "{}"),
    ("validate", "{}"),
    ("manifest", "{}"),
    ("pack", "{}"),
    ("publish", "{}", "--output", "site"),
    ("new", "{}"),
    ("serve", "{}"),
    ("serve", ".", "--http", "{}"),
    ("serve", ".", "--dialect", "{}"),
    ("token", "revoke", "{}"),
    ("trust", "{}"),
    ("lock", "--config", "{}"),
    ("cache", "{}"),
    ("completion", "{}"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_hostile_argument_comes_back_short_and_with_nothing_hidden(
    skillwire: Command, here: Path, command: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    for text in arguments(hostile_texts("desk/", "skill://", "http://127.0.0.1:1/")):
        ended = skillwire(*(word.replace("{}", text) for word in command), *flags)

        require_inert(ended.out, lines=True)
        require_inert(ended.err, lines=True)
