"""Serve, find, verify and safely use Agent Skills over MCP.

This is the front door: the vocabulary everything else is written in. It loads
neither the MCP SDK nor an event loop.
"""

from skillwire.core import (
    Finding,
    Frontmatter,
    Manifest,
    ManifestFile,
    Severity,
    Skill,
    SkillEntry,
    SkillUri,
    validate,
)
from skillwire.errors import InvalidSkillError, NotFoundError, SkillError, SourceError, VerificationError
from skillwire.sources import Catalog, DirectorySource, DynamicSkill, MemorySource, Source

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "DirectorySource",
    "DynamicSkill",
    "Finding",
    "Frontmatter",
    "InvalidSkillError",
    "Manifest",
    "ManifestFile",
    "MemorySource",
    "NotFoundError",
    "Severity",
    "Skill",
    "SkillEntry",
    "SkillError",
    "SkillUri",
    "Source",
    "SourceError",
    "VerificationError",
    "__version__",
    "validate",
]
