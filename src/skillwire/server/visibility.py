"""`ListingRules`: which of the served skills a server lists.

A skill that is not listed is still served: `skills/get`, reading, directories,
completion, archives, names and search work for every skill. An author hides a
skill from listings, or pins it, in `metadata`:

    metadata:
      skillwire/listed: "false"
      skillwire/pinned: "true"
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skillwire.core import (
    LISTED,
    PINNED,
    SKILL_FILE,
    InvalidUriError,
    SkillEntry,
    SkillUri,
    metadata_flag,
    quoted,
    visible,
)
from skillwire.wire.core import LIST_SKILLS

# `Visibility`: which skills a caller may see, and whose scripts they may run.


EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Visibility:
    """URI prefixes: each allows the skill at that URI and everything below it.

    A prefix is the canonical URI of a directory, such as `skill://acme/billing`,
    or `*` for everything. A prefix has no exceptions, so a visible skill always
    includes the skills nested in it, whose files are also its own. `runnable` are
    the prefixes whose scripts may be run, if they are also visible;
    `can_operate` allows to read the metrics of the server and its state. Below
    `publishable` skills may be added and changed, and below `manageable` also
    removed, rolled back, and the audit log read.
    """

    prefixes: tuple[str, ...] = ()
    runnable: tuple[str, ...] = ()
    can_operate: bool = False
    publishable: tuple[str, ...] = ()
    manageable: tuple[str, ...] = ()

    def includes(self, uri: SkillUri) -> bool:
        """Return whether a skill is visible."""
        return _covers(self.prefixes, uri)

    def may_run(self, uri: SkillUri) -> bool:
        """Return whether scripts of a skill may be run."""
        return _covers(self.runnable, uri) and _covers(self.prefixes, uri)

    def may_publish(self, uri: SkillUri) -> bool:
        """Return whether a skill may be added or changed."""
        return _covers(self.publishable, uri)

    def may_manage(self, uri: SkillUri) -> bool:
        """Return whether a skill may be removed and rolled back."""
        return _covers(self.manageable, uri)

    @property
    def is_unrestricted(self) -> bool:
        """Whether everything is visible."""
        return self.prefixes == (EVERYTHING,)

    @property
    def of_view(self) -> "Visibility":
        """The part that skills are served by: callers with other roles share it."""
        return replace(self, can_operate=False, publishable=(), manageable=())

    def __or__(self, other: "Visibility") -> "Visibility":
        """Return the union of two visibilities."""
        return Visibility(
            merge_prefixes((*self.prefixes, *other.prefixes)),
            merge_prefixes((*self.runnable, *other.runnable)),
            self.can_operate or other.can_operate,
            merge_prefixes((*self.publishable, *other.publishable)),
            merge_prefixes((*self.manageable, *other.manageable)),
        )


def parse_prefix(text: str) -> str:
    """Return the prefix for `acme/billing`, `docs://handbook`, or `*`.

    Raises:
        InvalidUriError: It is not the path or URI of a directory.
    """
    if text == EVERYTHING:
        return text
    if EVERYTHING in text:
        raise InvalidUriError(
            f"{quoted(text)} is not a valid path: `*` is only allowed alone",
            fix="name a folder; everything below it is included",
        )
    path = text.strip("/")
    if "://" in text:
        return SkillUri.parse(f"{text.rstrip('/')}/{SKILL_FILE}").root
    return SkillUri.build(path).root


def merge_prefixes(places: Iterable[str]) -> tuple[str, ...]:
    """Return the minimal equivalent prefixes, sorted, so that equal visibilities compare equal."""
    found: list[str] = []
    for one in sorted(set(places)):
        if one == EVERYTHING:
            return (EVERYTHING,)
        if not any(one.startswith(f"{outer}/") for outer in found):
            found.append(one)
    return tuple(found)


def _covers(places: tuple[str, ...], uri: SkillUri) -> bool:
    root = uri.root
    return any(one in (EVERYTHING, root) or root.startswith(f"{one}/") for one in places)


ALL: Final = Visibility((EVERYTHING,), (EVERYTHING,), can_operate=True)
NOTHING: Final = Visibility()


@dataclass(frozen=True, slots=True)
class ListingRules:
    """Rules for listing skills: all except `unlisted`, and only pinned ones when there are too many.

    `pins` and `unlisted` are paths such as `acme/billing`, which include
    everything below. When more than `most` skills would be listed, only those
    below `pins` are, and those that their authors pinned. An unlisted skill is
    never listed, even if pinned. The order is always that of the URIs.
    """

    pins: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    most: int | None = None

    def __post_init__(self) -> None:
        """Normalize the paths.

        Raises:
            InvalidUriError: A path cannot be the URI of a directory.
            ValueError: `most` is negative.
        """
        if self.most is not None and self.most < 0:
            raise ValueError("most must not be negative")
        object.__setattr__(self, "pins", merge_prefixes(map(parse_prefix, self.pins)))
        object.__setattr__(self, "unlisted", merge_prefixes(map(parse_prefix, self.unlisted)))

    def of(self, entries: Sequence[SkillEntry], unlisted: Collection[str] = ()) -> Sequence[SkillEntry]:
        """Return the listed entries in their order; `unlisted` are URIs to leave out as well.

        When all are listed, it is the same sequence.
        """
        shown = [e for e in entries if not self.is_hidden(e) and e.uri.text not in unlisted]
        listed = entries if len(shown) == len(entries) else tuple(shown)
        if self.most is None or len(listed) <= self.most:
            return listed
        return tuple([entry for entry in listed if self.is_pinned(entry)])

    def is_hidden(self, entry: SkillEntry) -> bool:
        """Return whether a skill is never listed."""
        if self.unlisted and Visibility(self.unlisted).includes(entry.uri):
            return True
        return metadata_flag(entry.frontmatter, LISTED) is False

    def is_pinned(self, entry: SkillEntry) -> bool:
        """Return whether a skill is listed even when there are too many."""
        return bool(metadata_flag(entry.frontmatter, PINNED)) or Visibility(self.pins).includes(entry.uri)


EVERYTHING_LISTED: Final = ListingRules()


# Summaries of skills for the `instructions` of a server, which a model reads before any listing.


DEFAULT_LENGTH: Final = 2000
MAX_SUMMARY_BYTES: Final = 2048
"""The maximum size of the summary of a server's skills. Some clients cut longer instructions."""
SHORTEST_LENGTH: Final = 400
_LONGEST_DESCRIPTION: Final = 160
# The more skills there are, the shorter the descriptions.
_SUMMARY_DESCRIPTIONS: Final = (_LONGEST_DESCRIPTION, 80, 40)
_LONGEST_URI: Final = 200


def pointer_to(
    skills: Iterable[SkillEntry], *, most: int = DEFAULT_LENGTH, listing: ListingRules = EVERYTHING_LISTED
) -> str:
    """Return a text of at most `most` bytes of UTF-8 that names the skills of a server and their URIs.

        server = MCPServer("billing", instructions=pointer_to(skill.entry() for skill in built))

    Skills are named in the order of their URIs, with the beginning of their
    description, until the limit is reached; the rest are counted. Skills that
    `listing` leaves out are not named. Each skill takes one line, with hidden
    characters escaped.

    Raises:
        ValueError: `most` is too small for a single line.
    """
    if most < SHORTEST_LENGTH:
        raise ValueError(f"most must be at least {SHORTEST_LENGTH}")
    entries = listing.of(tuple(sorted(skills, key=lambda entry: entry.uri.text)))
    if not entries:
        return ""
    heading = (
        f"This server publishes {_count_text(len(entries))}: instructions for tasks, each in a SKILL.md "
        "among the resources. Read the one that fits before starting on such a task."
    )
    return _write_lines(heading, entries, most, _LONGEST_DESCRIPTION)[0]


def summary_of(entries: Sequence[SkillEntry], *, has_find_tool: bool) -> str:
    """Return the summary of a server's listed skills, sorted by URI: how to read them, then their names."""
    heading = _heading(_count_text(len(entries)), has_find_tool=has_find_tool)
    text = ""
    for longest in _SUMMARY_DESCRIPTIONS:
        text, is_whole = _write_lines(heading, entries, MAX_SUMMARY_BYTES, longest)
        if is_whole:
            break
    return text


def general_summary(*, has_find_tool: bool) -> str:
    """Return the summary of a server whose skills are too many to be named: how to read them."""
    return _heading("many Agent Skills", has_find_tool=has_find_tool)


def _heading(skills: str, *, has_find_tool: bool) -> str:
    ways = f"{LIST_SKILLS} and resources/list list them"
    if has_find_tool:
        ways += ", and the tool find_skills searches them, including unlisted ones"
    return (
        f"This server publishes {skills}: folders of instructions for tasks, each with a "
        f"SKILL.md. Before a task that one of them fits, read its SKILL.md with resources/read; {ways}."
    )


def _write_lines(heading: str, entries: Sequence[SkillEntry], most: int, longest: int) -> tuple[str, bool]:
    """Write a heading and a line for each skill until the limit is reached; count the rest.

    Return the text and whether every skill has a line in it. `longest` is the
    maximum length of a description.
    """
    lines = [heading]
    room = most - len(heading.encode()) - len(_rest_line(len(entries)))
    for position, entry in enumerate(entries):
        line = f"\n- {_described(entry, longest)} {_uri_text(entry.uri)}"
        size = len(line.encode("utf-8", "replace"))
        if size > room:
            lines.append(_rest_line(len(entries) - position))
            return "".join(lines), False
        lines.append(line)
        room -= size
    return "".join(lines), True


def _count_text(number: int) -> str:
    return "1 Agent Skill" if number == 1 else f"{number} Agent Skills"


def _rest_line(number: int) -> str:
    return f"\n- and {number} more: {LIST_SKILLS} lists all of them."


def _described(entry: SkillEntry, longest: int) -> str:
    description = _shortened(entry.frontmatter.description, longest)
    return f"{visible(entry.name)}: {description}"


def _uri_text(uri: SkillUri) -> str:
    # A cut URI would be invalid.
    return f"({uri.text})" if len(uri.text) <= _LONGEST_URI else f"({LIST_SKILLS} has the URI)"


def _shortened(text: str, most: int) -> str:
    shown = visible(text[:most])
    return shown if len(shown) <= most and len(text) <= most else shown[: most - 1].rstrip() + "…"
