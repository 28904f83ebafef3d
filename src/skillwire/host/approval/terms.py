"""`RunTerms`: on which terms a script would be run once, for a user to decide on."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Where: TypeAlias = Literal["sandbox", "server"]
"""Where a script runs: in a sandbox on this machine, or on the server that its skill comes from."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Where a script would run, what it is given, what it asks for, and what it gets.

    `arguments` is JSON text, and may hold anything. `asked` and `limits` are
    words such as "memory 256 MiB". `network` are hosts it could reach and
    `secrets` names of what it could read; `unmet` is what it asks for in
    vain. `beside` are the references of other loaded skills, which do not allow it by themselves.
    """

    where: Where
    arguments: str = field(default="{}", repr=False)
    asked: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def is_for_one_run(self) -> bool:
        """Whether a yes to this can only be meant for one run."""
        return self.where == "server" or bool(self.network or self.secrets or self.beside)
