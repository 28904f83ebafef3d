"""A skill as the registry knows it, before anything of it was fetched."""

from dataclasses import dataclass
from pathlib import Path

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.host.origin import SkillId
from skillwire.wire.dialect import Dialect


@dataclass(frozen=True, slots=True)
class KnownSkill:
    """One record of the registry: whose skill it is, what it is called here, and the entry held of it.

    `reference` is the one name that means this skill: the model sees it and
    passes it back. `is_listed` is false for a skill that only `skills/get`
    answers for. `offline_since` is the date of the approval under which a
    cached copy is used while its server is away. `directory` and `findings`
    are a local skill's: where it lies, and what its author might want to know.
    """

    id: SkillId
    reference: str
    entry: SkillEntry
    dialect: Dialect = Dialect.CORE
    is_listed: bool = True
    offline_since: str | None = None
    directory: Path | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The skill's name; a local skill that has none is called like its folder."""
        return self.entry.name or (self.directory.name if self.directory else "")

    @property
    def description(self) -> str:
        """The description as its author wrote it: a stranger's text, to be escaped wherever it is shown."""
        return self.entry.frontmatter.description

    @property
    def is_remote(self) -> bool:
        return self.id.origin.is_remote
