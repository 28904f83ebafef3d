"""`scripts/manifest.json`: what a skill says about its scripts. It asks; a policy decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skillwire.core.yaml12 import JsonValue

MANIFEST_PATH: Final = "scripts/manifest.json"


@dataclass(frozen=True, slots=True)
class ScriptInterface:
    """What a script declares: what it is for, what it takes and leaves, and what it asks for.

    `arguments` is a JSON Schema, or None where any object will do. `limits`
    has names of `Limits`, `network` hosts (`host` or `host:port`), `secrets` names.
    """

    description: str = ""
    arguments: Mapping[str, JsonValue] | None = None
    stdout: str = ""
    outputs: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    takes_argv: bool = False
