"""Finding skills of one server by words, for catalogs too large to list.

The index is made of what a listing says, when somebody first asks, and lives
and ends with the skills that it is about. It knows no other skills than those
of its own server or view, so nothing about others shows in an answer, not even
in its order.
"""

from skillwire.server.search.index import MAX_QUERY, require_fts5
from skillwire.server.search.search import NO_FILTERS, Filters, Match, SearchPage, SkillSearch

__all__ = ["MAX_QUERY", "NO_FILTERS", "Filters", "Match", "SearchPage", "SkillSearch", "require_fts5"]
