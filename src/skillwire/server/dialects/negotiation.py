"""The dialects that a server can serve in addition to the released extension."""

from collections.abc import Iterable
from typing import Final

from skillwire.core import Dialect, SkillError
from skillwire.server.dialects.base import DialectServer, DialectSkills
from skillwire.server.dialects.by_name import Primitive
from skillwire.server.dialects.execute import Exec
from skillwire.server.dialects.index import IndexApril, IndexJune
from skillwire.server.dialects.prompts import Prompts
from skillwire.server.dialects.resources import ListMarch

MCP_DIALECTS: Final[dict[Dialect, type[DialectServer]]] = {
    Dialect.INDEX_JUNE: IndexJune,
    Dialect.INDEX_APRIL: IndexApril,
    Dialect.LIST_MARCH: ListMarch,
    Dialect.PRIMITIVE: Primitive,
    Dialect.EXEC: Exec,
    Dialect.PROMPT: Prompts,
}
"""The dialects over MCP. `well-known` is served over plain HTTP, by `HttpApp`."""

AVAILABLE_DIALECTS: Final = (*MCP_DIALECTS, Dialect.WELL_KNOWN)


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


def build_dialect_servers(dialects: Iterable[Dialect], skills: DialectSkills) -> tuple[DialectServer, ...]:
    """Return a `DialectServer` for each dialect over MCP."""
    return tuple(MCP_DIALECTS[dialect](skills) for dialect in dialects if dialect in MCP_DIALECTS)
