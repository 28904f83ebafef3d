"""`skillwire trust`: trust a folder's own skills and its configuration after showing them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.command import Json, Output, Verbose, command_output, new_app
from skillwire.cli.common import ExitCode
from skillwire.cli.folders import NamedFolder
from skillwire.cli.prompt import NO, YES, TerminalAsk, config_paragraph
from skillwire.core import visible
from skillwire.host import (
    ApprovalError,
    FileTrust,
    FolderTrust,
    LocalRoot,
    LocalSkills,
    Paragraph,
    Servers,
    Storage,
    default_roots,
    find_config,
    lines_of,
    list_paragraph,
    read_servers,
)

app = new_app()


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What trusting a folder would enable: its own skills, and its configuration."""

    folder: Path
    skills: tuple[str, ...]
    config: Path | None
    servers: Servers

    @classmethod
    def of(cls, folder: Path) -> "FolderContents":
        """Read a folder's skills and configuration, without starting anything.

        Raises:
            ConfigError: Its configuration cannot be read.
        """
        own = [root for root in default_roots(folder) if root.scope == "project"]
        scan = LocalSkills([LocalRoot(root.path, "user") for root in own]).scan()
        config = find_config(folder)
        servers = Servers() if config is None else read_servers(config)
        return cls(folder, tuple(skill.name for skill in scan.skills), config, servers)

    def paragraphs(self) -> list[Paragraph]:
        found = [
            Paragraph("A folder would be trusted."),
            Paragraph("Folder", (visible(str(self.folder)),)),
            list_paragraph(
                "Its own skills, which would be loaded without asking",
                [("", name) for name in self.skills],
            ),
        ]
        if self.config is not None:
            found += [
                Paragraph("Configuration", (visible(self.config.name),)),
                config_paragraph(self.servers),
            ]
        return found


@app.command()
def trust(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder; the current one by default.")
    ] = Path(),
    forget: Annotated[bool, typer.Option("--forget", help="Stop trusting it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: you have reviewed it.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Trust a folder: its own skills, and its configuration.

    Shows the skills below its .agents/skills and .skillwire/skills, and what
    its .mcp.json (or .cursor/mcp.json, .vscode/mcp.json) would start, and asks.
    Skills that are added later are trusted too; a changed configuration is
    asked about again. Exits with 1 when the answer is no.
    """
    with command_output("trust", json=json, verbose=verbose) as output:
        real = Path(NamedFolder.named(folder).real)
        if forget:
            _forget(output, real)
        else:
            anyio.run(_trust, output, FolderContents.of(real), yes)


async def _trust(output: Output, contents: FolderContents, is_agreed: bool) -> None:
    state = Storage().state
    if not is_agreed:
        asker = TerminalAsk.find()
        if asker is None:
            for line in lines_of(contents.paragraphs()):
                output.message(str(line), wrap=False)
            raise ApprovalError(
                "there is no terminal to ask on",
                reference=str(contents.folder),
                fix="review it, then pass --yes",
            )
        answers = {NO: "no", YES: "yes"}
        is_agreed = await asker.choose(None, contents.paragraphs(), "Trust this folder?", answers) == YES
    if is_agreed:
        FolderTrust(state).trust(contents.folder)
        if contents.config is not None:
            FileTrust(state).trust(contents.config, contents.servers.digest)
    else:
        output.code = ExitCode.NO
    _report(output, contents.folder, is_trusted=is_agreed, words="trusted" if is_agreed else "not trusted")


def _forget(output: Output, folder: Path) -> None:
    state = Storage().state
    was_folder = FolderTrust(state).distrust(folder)
    config = find_config(folder)
    was_config = config is not None and FileTrust(state).distrust(config)
    is_trusted = FolderTrust(state).is_trusted(folder)
    words = "no longer trusted" if was_folder or was_config else "was not trusted"
    if is_trusted:
        words = "still trusted, because a parent folder is"
    _report(output, folder, is_trusted=is_trusted, words=words)


def _report(output: Output, folder: Path, *, is_trusted: bool, words: str) -> None:
    if output.json:
        output.document({"folder": str(folder), "trusted": is_trusted})
    else:
        output.line((words, "bold"), f"  {folder}", wrap=False)
