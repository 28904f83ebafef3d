"""What a skill *is*: URIs, frontmatter, manifests, entries, findings and archives.

Everything here is pure and synchronous: bytes in, values or a typed error out.
No MCP, no files, no event loop ever lives in this room.
"""

from skillwire.core.characters import HiddenCharacter, hidden_characters, revealed, visible
from skillwire.core.entry import SkillEntry, check_entry, entry_findings, parse_entry
from skillwire.core.finding import RULES, Finding, Rule, Severity
from skillwire.core.frontmatter import Frontmatter, SkillDocument, parse_skill_md, same_value
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile, digest_of
from skillwire.core.media import media_type_of
from skillwire.core.skill import Skill, SkillFile
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri
from skillwire.core.validation import validate

__all__ = [
    "MAX_FILES",
    "MAX_TOTAL_SIZE",
    "RULES",
    "SKILL_FILE",
    "Finding",
    "Frontmatter",
    "HiddenCharacter",
    "Manifest",
    "ManifestFile",
    "Rule",
    "Severity",
    "Skill",
    "SkillDocument",
    "SkillEntry",
    "SkillFile",
    "SkillUri",
    "canonical_uri",
    "check_entry",
    "digest_of",
    "entry_findings",
    "hidden_characters",
    "media_type_of",
    "parse_entry",
    "parse_skill_md",
    "revealed",
    "same_value",
    "validate",
    "visible",
]
