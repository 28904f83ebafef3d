"""Which dialect a server speaks: the order in which it is tried, and what each needs to be tried at all.

Nothing is sent that the server's declaration does not allow: `skills/*` goes
only to servers that declared a dialect that has it (NEG-05, NEG-11), and a
server that declared nothing is asked for its resources at most, if it has any.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from skillwire.errors import SkillError
from skillwire.host.dialects import core, core0804, execution, indexes, march, primitive, prompt
from skillwire.host.dialects.resources import is_closed
from skillwire.host.dialects.voice import Found, Hearing, Peer
from skillwire.host.failures import NotDeclaredError
from skillwire.wire.core import EXTENSION, LIST_SKILLS
from skillwire.wire.dialect import Dialect

Finder: TypeAlias = Callable[[Peer, Hearing], Awaitable[Found | None]]

logger = logging.getLogger(__name__)

ORDER: Final[tuple[tuple[Dialect, Finder], ...]] = (
    (Dialect.CORE, core.find),
    (Dialect.INDEX_JUNE, indexes.find),
    (Dialect.INDEX_APRIL, indexes.find_april),
    (Dialect.LIST_MARCH, march.find),
    (Dialect.PRIMITIVE, primitive.find),
    (Dialect.EXEC, execution.find),
    (Dialect.LIST_MARCH, march.find_undeclared),
    (Dialect.PROMPT, prompt.find),
    (Dialect.CORE_0804, core0804.find),
)
"""The dialects in the order of NEG-12. Each finder knows what its dialect needs to be declared."""


async def negotiate(peer: Peer, hearing: Hearing) -> Found:
    """Return the first dialect the server speaks, with its listing; or the one the user chose.

    Raises:
        NotDeclaredError: The server speaks none.
        SkillError: It speaks one, and its listing cannot be had.
    """
    last_resort: Found | None = None
    for dialect, find in ORDER:
        if hearing.dialect not in (None, dialect):
            continue
        try:
            found = await find(peer, hearing)
        except SkillError as error:
            if last_resort is None or is_closed(error):
                raise
            logger.debug("the server was asked in vain for %s: %s", dialect, error)
            continue
        if found is not None and found.is_last_resort:
            last_resort = last_resort or found
        elif found is not None:
            logger.debug("the server speaks %s", found.voice.dialect)
            return found
    if last_resort is not None:
        return last_resort
    what = "any dialect of skills" if hearing.dialect is None else f"the dialect {hearing.dialect}"
    raise NotDeclaredError(
        f"{LIST_SKILLS} was not sent: the server has not declared {EXTENSION}, and does not speak {what}",
        violates="NEG-05",
        fix='let the client ask the server what it offers (mode "auto" or "legacy")',
    )
