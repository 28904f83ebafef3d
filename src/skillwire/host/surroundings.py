"""What a server has around its skills: the tools and prompts they need, and templates for those nobody lists.

Nothing of a skill is read for it, and nothing is loaded by it.
"""

from collections.abc import Mapping
from typing import Final

from skillwire.core.characters import quoted
from skillwire.host.calls.completing import COMPLETE, complete
from skillwire.host.connections.connection import Connection
from skillwire.host.dialects.primitive import DEPENDENCIES, missing_dependencies
from skillwire.host.dialects.voice import Hearing, Peer
from skillwire.host.failures import UnknownReferenceError
from skillwire.host.fetching import Fetcher
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.view import KnownTemplate, RegistryView
from skillwire.wire.dialect import Dialect

MOST_NAMED: Final = 10

_LISTS = "tools/list"


async def missing_of(fetcher: Fetcher, skill: KnownSkill) -> Refusal | None:
    """Say which tools and prompts a skill declares to need and its server does not list (ASK-15).

    Only one dialect lets a skill declare that; the server is not asked for any
    other. None when nothing is missing.

    Raises:
        SkillError: The server cannot be asked what it has.
    """
    if skill.dialect is not Dialect.PRIMITIVE or not skill.entry.extra.get(DEPENDENCIES):
        return None
    connection = fetcher.connection(skill.id.origin.label)
    if not isinstance(connection, Connection):
        return None

    async def look(peer: Peer, hearing: Hearing) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = await missing_dependencies(peer, hearing, skill.entry)
        return tuple(found.tools), tuple(found.prompts)

    tools, prompts = await connection.consult((_LISTS, skill.id.uri), _LISTS, look)
    words = [
        *(f"the tool {quoted(name)}" for name in tools),
        *(f"the prompt {quoted(name)}" for name in prompts),
    ]
    if not words:
        return None
    rest = len(words) - MOST_NAMED
    more = f" and {rest:,} more" if rest > 0 else ""
    detail = f"its server does not list {', '.join(words[:MOST_NAMED])}{more}"
    return Refusal("missing-dependency", skill.reference, detail)


async def completed(
    fetcher: Fetcher,
    view: RegistryView,
    label: str,
    template: str,
    variable: str,
    typed: str,
    others: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Ask a server how a variable of one of its templates could go on, in a stranger's words.

    Raises:
        UnknownReferenceError: There is no such server, or it told of no such template or variable.
        SkillError: The server cannot be asked.
    """
    connection = fetcher.connection(label)
    known = _template_of(view, label, template)
    if variable not in known.template.variables:
        raise UnknownReferenceError(
            f"the template {quoted(template)} has no variable {quoted(variable)}",
            reference=label,
            fix=f"use one of {', '.join(known.template.variables)}",
        )
    if not isinstance(connection, Connection):
        return ()
    key = (COMPLETE, template, variable, typed, tuple(sorted((others or {}).items())))

    async def ask(peer: Peer, hearing: Hearing) -> tuple[str, ...]:
        return await complete(peer.client, known.told, variable, typed, others=others, max_seconds=None)

    return await connection.consult(key, COMPLETE, ask)


def _template_of(view: RegistryView, label: str, template: str) -> KnownTemplate:
    for known in view.templates:
        if known.origin.label == label and known.template.text == template:
            return known
    raise UnknownReferenceError(
        f"the server {quoted(label)} told of no template {quoted(template)}",
        reference=label,
        candidates=[
            f"{label}/{known.template.text}" for known in view.templates if known.origin.label == label
        ][:MOST_NAMED],
    )
