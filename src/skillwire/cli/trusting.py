"""A configuration nobody named: what it would start is shown, and used only after a yes.

Such a file names programs to run and servers to contact, and comes with
whatever folder a command is called in. The answer is remembered for exactly
its bytes. A file that is named with `--config` is the user's own choice.
"""

import os
from pathlib import Path

from skillwire.cli.asking import NO, YES, TerminalAsk
from skillwire.core.characters import visible
from skillwire.host import Places, ServerConfig, Servers, StdioEndpoint
from skillwire.host.asking import Paragraph, foreign
from skillwire.host.failures import UntrustedConfigError
from skillwire.host.state.filetrust import FileTrust


async def require_seen(path: Path, found: Servers, places: Places | None = None) -> None:
    """Make sure that the user agrees to use this configuration with exactly these bytes.

    Raises:
        UntrustedConfigError: The user does not, or cannot be asked.
    """
    trust = FileTrust((places or Places.default()).state)
    if not found.servers or trust.is_trusted(path, found.digest):
        return
    name = _relative(path)
    asker = TerminalAsk.find()
    if asker is None or await asker.choose(None, _words(path, found, trust), _DEMAND, _ANSWERS) == NO:
        raise UntrustedConfigError(
            f"nobody has agreed to the configuration in {name}",
            reference=name,
            fix=f"look at it, then run `skillwire trust`, or name it with --config {name}",
        )
    trust.trust(path, found.digest)


def _relative(path: Path) -> str:
    return os.path.relpath(path)


def config_paragraph(found: Servers) -> Paragraph:
    """Say what a configuration would start or contact."""
    lines = [_line(server) for server in found.servers if server.is_enabled and server.skills.is_on]
    return foreign("It would start or contact", lines, is_warning=True)


_DEMAND = "Use this configuration, now and while it stays as it is?"
_ANSWERS = {NO: "no", YES: "yes"}


def _words(path: Path, found: Servers, trust: FileTrust) -> list[Paragraph]:
    changed = trust.is_known(path)
    head = "The configuration of this folder has CHANGED." if changed else "This folder has a configuration."
    return [
        Paragraph(head, is_warning=changed),
        Paragraph("File", (visible(str(path.absolute())),)),
        config_paragraph(found),
    ]


def _line(server: ServerConfig) -> str:
    if not isinstance(server.endpoint, StdioEndpoint):
        return f"{server.label}: {server.endpoint.shown}"
    shown = server.endpoint.shown_args
    arguments = server.endpoint.args if shown is None else shown
    return f"{server.label}: {' '.join((server.endpoint.command, *arguments))}"
