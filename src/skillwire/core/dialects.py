"""The dialects of the protocol, by the names that `docs/requirements.md` gives them."""

from enum import StrEnum


class Dialect(StrEnum):
    """The protocol generation of a connection; `local` is for skills without a connection."""

    CORE = "core"
    """The released extension: `skills/list`, `skills/get`, a digest for every file."""
    CORE_0804 = "core-0804"
    """The extension as of 4 August 2026: no sizes, and dynamic skills without a marker."""
    INDEX_JUNE = "index-june"
    """The resource `skill://index.json` with frontmatter, digests and archives."""
    INDEX_APRIL = "index-april"
    """The resource `skill://index.json` with `$schema`, types and templates."""
    LIST_MARCH = "list-march"
    """Every `SKILL.md` among the resources, and nothing else."""
    PRIMITIVE = "primitive"
    """SEP-2076: skills by name, with arguments and dependencies."""
    EXEC = "exec"
    """Skills by name, with `skills/read`, `skills/read_reference` and scripts that the server runs."""
    PROMPT = "prompt"
    """A whole skill as the text of one prompt."""
    WELL_KNOWN = "well-known"
    """A web site's `/.well-known/agent-skills/index.json`."""
    LOCAL = "local"
    """A folder on this machine."""
