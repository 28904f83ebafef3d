"""Detecting which dialect a server speaks: the order in which the dialects are tried.

Nothing is sent that the server's declaration does not allow: `skills/*` goes
only to servers that declared a dialect that has it (NEG-05, NEG-11), and a
server that declared nothing is asked for its resources at most.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from skillwire.core import Dialect, SkillError
from skillwire.host.calls import Session
from skillwire.host.dialects import by_name, core, index, prompt, resources
from skillwire.host.dialects.base import DialectMatch, DialectOptions
from skillwire.host.dialects.index import is_closed
from skillwire.host.model import NotDeclaredError
from skillwire.wire.core import EXTENSION, LIST_SKILLS

Finder: TypeAlias = Callable[[Session, DialectOptions], Awaitable[DialectMatch | None]]

logger = logging.getLogger(__name__)

ORDER: Final[tuple[tuple[Dialect, Finder], ...]] = (
    (Dialect.CORE, core.find),
    (Dialect.INDEX_JUNE, index.find),
    (Dialect.INDEX_APRIL, index.find_april),
    (Dialect.LIST_MARCH, resources.find),
    (Dialect.PRIMITIVE, by_name.find_primitive),
    (Dialect.EXEC, by_name.find_exec),
    (Dialect.LIST_MARCH, resources.find_undeclared),
    (Dialect.PROMPT, prompt.find),
    (Dialect.CORE_0804, core.find_0804),
)
"""The dialects in the order of NEG-12. Each finder checks the declaration that its dialect needs."""


async def negotiate(session: Session, options: DialectOptions) -> DialectMatch:
    """Return the first dialect the server speaks, or the one the user chose, with its listing.

    Raises:
        NotDeclaredError: The server speaks none.
        SkillError: It speaks one, and its listing failed.
    """
    last_resort: DialectMatch | None = None
    for dialect, find in ORDER:
        if options.dialect not in (None, dialect):
            continue
        try:
            found = await find(session, options)
        except SkillError as error:
            if last_resort is None or is_closed(error):
                raise
            logger.debug("the server does not speak %s: %s", dialect, error)
            continue
        if found is not None and found.is_last_resort:
            last_resort = last_resort or found
        elif found is not None:
            logger.debug("the server speaks %s", found.client.dialect)
            return found
    if last_resort is not None:
        return last_resort
    what = "any dialect of skills" if options.dialect is None else f"the dialect {options.dialect}"
    raise NotDeclaredError(
        f"{LIST_SKILLS} was not sent: the server has not declared {EXTENSION}, and does not speak {what}",
        violates="NEG-05",
        fix='create the client with mode "auto" or "legacy", so that it requests the capabilities',
    )
