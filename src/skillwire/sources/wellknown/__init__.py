"""Web sites as sources of skills: fetching their index and artifacts safely."""

from skillwire.sources.wellknown.source import WellKnownSource

__all__ = ["WellKnownSource"]
