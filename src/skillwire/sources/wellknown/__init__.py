"""Web sites as a place skills come from: fetching their index and artifacts without being led astray."""

from skillwire.sources.wellknown.source import WellKnownSource

__all__ = ["WellKnownSource"]
