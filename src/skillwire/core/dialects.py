"""The dialects of the protocol, by the names that `docs/requirements.md` gives them, and those to serve."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from skillwire.core.errors import SkillError


class Dialect(StrEnum):
    """The protocol generation of a connection; `local` is for skills without a connection."""

    CORE = "core"
    """The released extension: `skills/list`, `skills/get`, a digest for every file."""
    CORE_0804 = "core-0804"
    """The extension as of 4 August 2026: no sizes, and dynamic skills without a marker."""
    INDEX_JUNE = "index-june"
    """The resource `skill://index.json` with frontmatter, digests and archives."""
    INDEX_APRIL = "index-april"
    """The resource `skill://index.json` with `$schema`, types and templates."""
    LIST_MARCH = "list-march"
    """Every `SKILL.md` among the resources, and nothing else."""
    PRIMITIVE = "primitive"
    """SEP-2076: skills by name, with arguments and dependencies."""
    EXEC = "exec"
    """Skills by name, with `skills/read`, `skills/read_reference` and scripts that the server runs."""
    PROMPT = "prompt"
    """A whole skill as the text of one prompt."""
    WELL_KNOWN = "well-known"
    """A web site's `/.well-known/agent-skills/index.json`."""
    LOCAL = "local"
    """A folder on this machine."""


AVAILABLE_DIALECTS: Final = (
    Dialect.INDEX_JUNE,
    Dialect.INDEX_APRIL,
    Dialect.LIST_MARCH,
    Dialect.PRIMITIVE,
    Dialect.EXEC,
    Dialect.PROMPT,
    Dialect.WELL_KNOWN,
)
"""The dialects that a server can have beside `core`."""


def parse_dialects(names: Iterable[str]) -> tuple[Dialect, ...]:
    """Return the dialects with these names, without duplicates, in a fixed order.

    Raises:
        SkillError: A name is unknown, or two dialects exclude each other.
    """
    wanted: set[Dialect] = set()
    for name in names:
        if name not in AVAILABLE_DIALECTS:
            raise SkillError(
                f"there is no dialect {name!r} to be served",
                fix=f"use {', '.join(AVAILABLE_DIALECTS)}; core is always served",
            )
        wanted.add(Dialect(name))
    if {Dialect.INDEX_JUNE, Dialect.INDEX_APRIL} <= wanted:
        raise SkillError(
            "index-june and index-april are two forms of one resource, skill://index.json",
            fix="choose one of them",
        )
    return tuple(dialect for dialect in AVAILABLE_DIALECTS if dialect in wanted)
