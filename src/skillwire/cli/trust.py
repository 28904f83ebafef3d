"""`skillwire trust`: a folder's own skills and its configuration count only after the user has seen them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.answer import Answer, answering
from skillwire.cli.asking import NO, YES, TerminalAsk
from skillwire.cli.failures import ExitCode
from skillwire.cli.folders import Folder
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.trusting import config_paragraph
from skillwire.core.characters import visible
from skillwire.host import ApprovalError, LocalRoot, Places, Servers, find_config, read_servers
from skillwire.host.asking import Paragraph, lines_of, listed
from skillwire.host.registry.local import LocalSkills, default_roots
from skillwire.host.state.filetrust import FileTrust
from skillwire.host.state.trust import FolderTrust

app = new_app()


@dataclass(frozen=True, slots=True)
class Contents:
    """What trusting a folder would make count: the names of its own skills, and its configuration."""

    folder: Path
    skills: tuple[str, ...]
    config: Path | None
    servers: Servers

    @classmethod
    def of(cls, folder: Path) -> "Contents":
        """Look at a folder. Nothing is started.

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
            listed(
                "Its own skills, which would be loaded without a question",
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
        Path, typer.Argument(metavar="DIR", help="The folder; this one if none is named.")
    ] = Path(),
    forget: Annotated[bool, typer.Option("--forget", help="Trust it no longer.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: you have looked at it.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Trust a folder: its own skills, and its configuration.

    Shows the skills below its .agents/skills and .skillwire/skills, and what
    its .mcp.json (or .cursor/mcp.json, .vscode/mcp.json) would start, and asks.
    Skills that are added later count as well; a configuration that changes is
    asked about again. Exits with 1 when the answer is no.
    """
    with answering("trust", json=json, verbose=verbose) as answer:
        real = Path(Folder.named(folder).real)
        if forget:
            _forget(answer, real)
        else:
            anyio.run(_trust, answer, Contents.of(real), yes)


async def _trust(answer: Answer, contents: Contents, is_agreed: bool) -> None:
    state = Places.default().state
    if not is_agreed:
        asker = TerminalAsk.find()
        if asker is None:
            for line in lines_of(contents.paragraphs()):
                answer.word(str(line), wrap=False)
            raise ApprovalError(
                "nobody can be asked here", reference=str(contents.folder), fix="look at it, then pass --yes"
            )
        answers = {NO: "no", YES: "yes"}
        is_agreed = await asker.choose(None, contents.paragraphs(), "Trust this folder?", answers) == YES
    if is_agreed:
        FolderTrust(state).trust(contents.folder)
        if contents.config is not None:
            FileTrust(state).trust(contents.config, contents.servers.digest)
    else:
        answer.code = ExitCode.NO
    _say(answer, contents.folder, is_trusted=is_agreed, words="trusted" if is_agreed else "not trusted")


def _forget(answer: Answer, folder: Path) -> None:
    state = Places.default().state
    was_folder = FolderTrust(state).distrust(folder)
    config = find_config(folder)
    was_config = config is not None and FileTrust(state).distrust(config)
    is_trusted = FolderTrust(state).is_trusted(folder)
    words = "no longer trusted" if was_folder or was_config else "was not trusted"
    if is_trusted:
        words = "still trusted, because a folder around it is"
    _say(answer, folder, is_trusted=is_trusted, words=words)


def _say(answer: Answer, folder: Path, *, is_trusted: bool, words: str) -> None:
    if answer.json:
        answer.document({"folder": str(folder), "trusted": is_trusted})
    else:
        answer.line((words, "bold"), f"  {folder}", wrap=False)
