"""Sources of skills: folders, memory, callables, packages, and combinations of them.

A source publishes its skills as snapshots. Nothing here depends on MCP, and
nothing runs in the background unless an `async with` owns it.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.sources.combined import CombinedSource
    from skillwire.sources.directory.source import DirectorySource
    from skillwire.sources.memory import DynamicSkill, MemorySource
    from skillwire.sources.package import PackageSource
    from skillwire.sources.snapshot import Changes, LiveSource, Report, Snapshot, Source
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "combined": "CombinedSource",
            "directory.source": "DirectorySource",
            "memory": "DynamicSkill MemorySource",
            "package": "PackageSource",
            "snapshot": "Changes LiveSource Report Snapshot Source",
        },
    )

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
