"""A pointer to skills for the `instructions` of a server, which a model reads before it lists anything."""

from collections.abc import Iterable
from typing import Final

from skillwire.core.characters import visible
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.server.listing import EVERYTHING_LISTED, Listing
from skillwire.wire.core import LIST_SKILLS

DEFAULT_LENGTH: Final = 2000
SHORTEST_LENGTH: Final = 400
_LONGEST_DESCRIPTION: Final = 160
_LONGEST_URI: Final = 200


def pointer_to(
    skills: Iterable[SkillEntry], *, most: int = DEFAULT_LENGTH, listing: Listing = EVERYTHING_LISTED
) -> str:
    """Write, in at most `most` characters, which skills a server publishes and where.

        server = MCPServer("billing", instructions=pointer_to(skill.entry() for skill in built))

    Skills are named in the order of their URIs until there is no room, with
    the beginning of their description; the rest are counted. Those that
    `listing` leaves out are not told of. What an author wrote stays on its
    line, with hidden characters spelled out.

    Raises:
        ValueError: `most` leaves no room for a single line.
    """
    if most < SHORTEST_LENGTH:
        raise ValueError(f"most must be at least {SHORTEST_LENGTH}")
    entries = listing.of(tuple(sorted(skills, key=lambda entry: entry.uri.text)))
    if not entries:
        return ""
    heading = (
        f"This server publishes {_counted(len(entries))}: instructions for tasks, each in a SKILL.md "
        "among the resources. Read the one that fits before starting on such a task."
    )
    lines = [heading]
    room = most - len(heading) - len(_rest(len(entries)))
    for position, entry in enumerate(entries):
        line = f"\n- {_described(entry)} {_place(entry.uri)}"
        if len(line) > room:
            lines.append(_rest(len(entries) - position))
            break
        lines.append(line)
        room -= len(line)
    return "".join(lines)


def _counted(number: int) -> str:
    return "1 Agent Skill" if number == 1 else f"{number} Agent Skills"


def _rest(number: int) -> str:
    return f"\n- and {number} more: {LIST_SKILLS} lists all of them."


def _described(entry: SkillEntry) -> str:
    description = _shortened(entry.frontmatter.description, _LONGEST_DESCRIPTION)
    return f"{visible(entry.name)}: {description}"


def _place(uri: SkillUri) -> str:
    # A URI that was cut would lead nowhere.
    return f"({uri.text})" if len(uri.text) <= _LONGEST_URI else f"({LIST_SKILLS} says where)"


def _shortened(text: str, most: int) -> str:
    shown = visible(text[:most])
    return shown if len(shown) <= most and len(text) <= most else shown[: most - 1].rstrip() + "…"
