"""What a host says of a script: what would run, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skillwire.core.yaml12 import JsonValue
from skillwire.host.approval.terms import RunTerms, Where
from skillwire.host.origin import Origin
from skillwire.host.registry.known import KnownSkill
from skillwire.runner import Limits, Outcome, OutputFile, ScriptInterface


@dataclass(frozen=True, slots=True)
class ScriptPreview:
    """A script as it would be run now, for a person to look at; nothing was run or loaded.

    `content` and `digest` are empty where the script's server keeps it to
    itself and runs it; then no limit of this host counts either. `network`
    and `secrets` are what it would get, `interface` says what it asks for.
    """

    skill: KnownSkill
    script: str
    where: Where
    terms: RunTerms
    digest: str = ""
    content: bytes = field(default=b"", repr=False)
    interface: ScriptInterface = field(default_factory=ScriptInterface)
    limits: Limits = field(default_factory=Limits)
    arguments: Mapping[str, JsonValue] | None = field(default=None, repr=False)

    @property
    def reference(self) -> str:
        return self.skill.reference

    @property
    def origin(self) -> Origin:
        return self.skill.id.origin

    @property
    def network(self) -> tuple[str, ...]:
        return self.terms.network

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.terms.secrets


@dataclass(frozen=True, slots=True)
class RanScript:
    """What came of one run: `text` is for the model, complete and framed.

    `outcome` is what the sandbox saw, and None when a server ran the script;
    then `digest` is empty, since nobody here knows what ran. `verdict` says in
    a few words how it ended. `files` are what it left, for the embedding
    program: a stranger's bytes, under paths that stay inside a folder.
    """

    reference: str
    origin: Origin
    script: str
    digest: str
    where: Where
    outcome: Outcome | None
    text: str = field(repr=False)
    is_error: bool
    verdict: str
    files: tuple[OutputFile, ...] = ()
