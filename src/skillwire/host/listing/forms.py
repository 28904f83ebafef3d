"""The forms a list of skills can have."""

from enum import StrEnum


class ListingForm(StrEnum):
    """How a list of skills is written; every form names the origins and holds the same skills."""

    COMPACT = "compact"
    """One line for each skill below a heading for its origin: the fewest tokens."""
    XML = "xml"
    """`<available_skills>` with a `<skill>` for each, as some models were taught."""
    MARKDOWN = "markdown"
    """Headings and lists; nothing of a server's text is taken for Markdown."""
    JSON = "json"
    """One object, with an array of origins."""
