"""Serve, find, verify and safely use Agent Skills over MCP.

This package exports the core types that everything else uses. Importing it
loads neither the MCP SDK nor an event loop. Sources are in a subpackage:
`from skillwire.sources import DirectorySource`.
"""

from skillwire.core import (
    Finding,
    Frontmatter,
    InvalidSkillError,
    Manifest,
    ManifestFile,
    NotFoundError,
    Severity,
    Skill,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    VerificationError,
    __version__,
    validate,
)

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
