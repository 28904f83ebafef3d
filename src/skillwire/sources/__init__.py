"""Sources of skills: folders, memory, callables, packages, and combinations of them.

A source publishes its skills as snapshots. Nothing here depends on MCP, and
nothing runs in the background unless an `async with` owns it.
"""

from skillwire.sources.catalog import CombinedSource
from skillwire.sources.directory.source import DirectorySource
from skillwire.sources.memory import DynamicSkill, MemorySource
from skillwire.sources.package import PackageSource
from skillwire.sources.snapshot import Changes, LiveSource, Report, Snapshot, Source

__all__ = [
    "Changes",
    "CombinedSource",
    "DirectorySource",
    "DynamicSkill",
    "LiveSource",
    "MemorySource",
    "PackageSource",
    "Report",
    "Snapshot",
    "Source",
]
