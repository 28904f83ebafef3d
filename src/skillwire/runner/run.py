"""`ScriptRun`: everything one run of a script needs, checked beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skillwire.core.manifest import digest_of
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.interface import ScriptInterface


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script to be run once: whose it is, the bytes of its whole skill, and what it is given.

    `skill` is the URI of the skill's `SKILL.md`, `script` a path inside the
    skill, and `files` holds the checked bytes by path; the script is one of
    them. `origin` is the label of the server the skill comes from, empty for
    one of this program's own. `approval` says who agreed, for the audit. Made by `prepare`.
    """

    skill: str
    script: str
    files: Mapping[str, bytes]
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    interface: ScriptInterface = field(default_factory=ScriptInterface)
    origin: str = ""
    approval: str = ""

    @property
    def digest(self) -> str:
        """The digest of the script's bytes."""
        return digest_of(self.files[self.script])
