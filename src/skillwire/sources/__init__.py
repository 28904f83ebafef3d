"""Where skills *come from*: folders, memory, callables, and catalogs of them.

A source turns its place into snapshots. Nothing here knows about MCP, and
nothing runs in the background unless an `async with` owns it.
"""

from skillwire.sources.catalog import Catalog
from skillwire.sources.directory import DirectorySource
from skillwire.sources.dynamic import DynamicSkill
from skillwire.sources.memory import MemorySource
from skillwire.sources.package import PackageSource
from skillwire.sources.snapshot import Changes, Report, Snapshot
from skillwire.sources.source import LiveSource, Source

__all__ = [
    "Catalog",
    "Changes",
    "DirectorySource",
    "DynamicSkill",
    "LiveSource",
    "MemorySource",
    "PackageSource",
    "Report",
    "Snapshot",
    "Source",
]
