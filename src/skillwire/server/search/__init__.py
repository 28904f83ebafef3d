"""Full-text search over the skills of one server, for catalogs too large to list.

The index is built from the entries on the first search, and closed with the
skills. It has only the skills of its own server or view, so other skills do not
influence an answer, not even its order.
"""

from skillwire.server.search.search import (
    MAX_QUERY,
    NO_FILTERS,
    Filters,
    ServerSearch,
    SkillMatch,
    SkillSearchPage,
    require_fts5,
)

__all__ = [
    "MAX_QUERY",
    "NO_FILTERS",
    "Filters",
    "ServerSearch",
    "SkillMatch",
    "SkillSearchPage",
    "require_fts5",
]
