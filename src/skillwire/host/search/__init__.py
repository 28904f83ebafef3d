"""Finding skills by words, from what listings say: no file is read and no server is asked."""

from skillwire.host.search.search import MAX_LIMIT, Match, SearchPage, SkillSearch

__all__ = ["MAX_LIMIT", "Match", "SearchPage", "SkillSearch"]
