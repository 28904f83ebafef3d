"""Skills inside skills, for a host that wants only those at the top (ASK-02).

A listing is flat and does not say which skill lies inside another; the URIs
do. A skill is inside another one that its server lists when its folder is.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from skillwire.core.characters import quoted
from skillwire.core.uri import SKILL_FILE
from skillwire.host.failures import NestedSkillError
from skillwire.host.refusals import Refusal
from skillwire.host.registry.naming import full_reference

NESTED: Final = "nested-skill"

_SUFFIX = f"/{SKILL_FILE}"

T = TypeVar("T")


def top_level(listed: Mapping[str, T]) -> tuple[dict[str, T], dict[str, str]]:
    """Part the skills at the top, by URI, from those inside others: for these, the URI of the one around.

    The outermost of several is named. The order of a listing plays no part.
    """
    kept: dict[str, T] = {}
    nested: dict[str, str] = {}
    for uri, entry in listed.items():
        around = enclosing(uri, listed)
        if around is None:
            kept[uri] = entry
        else:
            nested[uri] = around
    return kept, nested


def enclosing(uri: str, known: Collection[str]) -> str | None:
    """Return the outermost skill of `known` around the one at `uri`, which need not be known itself."""
    root = uri.removesuffix(_SUFFIX)
    start = root.find("://") + len("://")
    while (end := root.find("/", start)) >= 0:
        around = root[:end] + _SUFFIX
        if around in known:
            return around
        start = end + 1
    return None


def skipped(label: str, nested: Mapping[str, str]) -> Iterable[Refusal]:
    """Say of each skill that is left out which one it is inside of."""
    for uri, around in nested.items():
        yield Refusal(NESTED, f"{label}/{uri}", f"it is inside {quoted(full_reference(label, around))}")


def require_top_level(label: str, uri: str, known: Collection[str]) -> None:
    """Check that a skill which was asked for by its URI is at the top.

    Raises:
        NestedSkillError: It is inside a skill of `known`.
    """
    around = enclosing(uri, known)
    if around is not None:
        raise NestedSkillError(
            f"{quoted(uri)} is inside {quoted(full_reference(label, around))}",
            reference=full_reference(label, uri)[:200],
        )
