"""Serve, find, verify and safely use Agent Skills over MCP.

This is the front door: the vocabulary everything else is written in. It loads
neither the MCP SDK nor an event loop. Where skills come from is one step
away: `from skillwire.sources import DirectorySource`.
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

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "Frontmatter",
    "InvalidSkillError",
    "Manifest",
    "ManifestFile",
    "NotFoundError",
    "Severity",
    "Skill",
    "SkillEntry",
    "SkillError",
    "SkillUri",
    "SourceError",
    "VerificationError",
    "__version__",
    "validate",
]
