"""Which dialects a server speaks beside the released extension."""

from collections.abc import Iterable
from typing import Final

from skillwire.errors import SkillError
from skillwire.server.dialects.april import IndexApril
from skillwire.server.dialects.compat import Compat, Published
from skillwire.server.dialects.exec import Exec
from skillwire.server.dialects.june import IndexJune
from skillwire.server.dialects.march import ListMarch
from skillwire.server.dialects.primitive import Primitive
from skillwire.server.dialects.prompts import Prompts
from skillwire.wire.dialect import Dialect

SPOKEN: Final[dict[Dialect, type[Compat]]] = {
    Dialect.INDEX_JUNE: IndexJune,
    Dialect.INDEX_APRIL: IndexApril,
    Dialect.LIST_MARCH: ListMarch,
    Dialect.PRIMITIVE: Primitive,
    Dialect.EXEC: Exec,
    Dialect.PROMPT: Prompts,
}
"""The dialects that need nothing but MCP. `well-known` is spoken over plain HTTP, by `HttpApp`."""

OFFERED: Final = (*SPOKEN, Dialect.WELL_KNOWN)


def chosen(names: Iterable[str]) -> tuple[Dialect, ...]:
    """Return the dialects by these names, each once, in the order of the register.

    Raises:
        SkillError: A name is unknown, or two dialects cannot be spoken by one server.
    """
    wanted: set[Dialect] = set()
    for name in names:
        if name not in OFFERED:
            raise SkillError(
                f"there is no dialect {name!r} to be served",
                fix=f"use {', '.join(OFFERED)}; core is always spoken",
            )
        wanted.add(Dialect(name))
    if {Dialect.INDEX_JUNE, Dialect.INDEX_APRIL} <= wanted:
        raise SkillError(
            "index-june and index-april are two forms of one resource, skill://index.json",
            fix="choose one of them",
        )
    return tuple(dialect for dialect in OFFERED if dialect in wanted)


def speakers(dialects: Iterable[Dialect], skills: Published) -> tuple[Compat, ...]:
    """Return what each dialect adds to the server of `skills`."""
    return tuple(SPOKEN[dialect](skills) for dialect in dialects if dialect in SPOKEN)
