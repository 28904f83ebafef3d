"""`skillwire run`: a script of a skill, in a sandbox, after it was shown and agreed to."""

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import anyio.to_thread
import typer

from skillwire.cli.answer import STYLES, Answer, answering
from skillwire.cli.asking import TerminalAsk
from skillwire.cli.failures import ExitCode, MisuseError
from skillwire.cli.hosting import DEFAULT_WAIT, Archives, At, Config, Frozen, Lock, Wait, Wanted, with_host
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.outcomes import limits_words, outcome_json, print_outcome, print_output, verdict_words
from skillwire.cli.outputs import Kept, keep, require_free
from skillwire.cli.progress import progress
from skillwire.cli.scriptargs import read_arguments
from skillwire.cli.scripts import list_scripts
from skillwire.cli.states import print_refusal
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import SkillError
from skillwire.host import Ask, Grant, Host, Question, Reply
from skillwire.host.asking import name_of, one_line
from skillwire.host.failures import ApprovalDeniedError, ApprovalRequiredError
from skillwire.host.running.results import RanScript, ScriptPreview
from skillwire.runner import Policy
from skillwire.runner.policyfile import load_policy

_LIMIT_FIX = "the skill can ask for more in scripts/manifest.json, as far as the policy allows; see --policy"

app = new_app()


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be run, with what, and where its files go. `places` are the options that find the skill."""

    reference: str
    script: str
    arguments: Mapping[str, JsonValue]
    output: Path | None
    places: tuple[str, ...]

    def approval_fix(self, preview: ScriptPreview) -> str:
        """Say how the scripts of a skill come to be allowed."""
        if preview.terms.is_for_one_run:
            return "run it on a terminal: with network or secrets, or on a server, each run is asked about"
        place = shlex.join((self.reference, *self.places))
        needed = (Grant.LOAD, Grant.SCRIPTS) if preview.origin.is_remote else (Grant.SCRIPTS,)
        grants = " ".join(f"--grant {grant}" for grant in needed)
        return f"look at it with `skillwire show {place}`, then run `skillwire approve {place} {grants}`"


@app.command()
def run(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", help="Its script, by name or path.", show_default=False),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            metavar="JSON",
            help="What to give it: a JSON object, @FILE that holds one, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Keep the files it leaves in this folder, which must be new or empty.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="What scripts may have: limits, and for single ones network and secrets.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a script of a skill in a sandbox.

    Says first what would run, and asks where your approval is needed, if this
    is a terminal. The script gets the arguments as JSON on its standard input
    and nothing of this machine; what it writes is printed. Without SCRIPT,
    lists the scripts. Exits with 1 when the script failed or did not run.
    """
    with answering("run", json=json, verbose=verbose) as answer:
        wanted = Wanted(
            config=config, targets=at or (), lock=lock, frozen=frozen, wait=wait, archives=archives
        )
        places = _places(config, at or [], lock, archives=archives)
        if script is None:
            _require_nothing_to_run(args, output, policy)
            with_host(answer, wanted, lambda host: list_scripts(answer, host, reference, places))
            return
        if output is not None:
            require_free(output)
        request = Request(reference, script, read_arguments(args), output, places)
        # One run needs no sandbox that waits for the next one.
        scripts = replace(Policy() if policy is None else load_policy(policy), pool=0)
        patience = Patience(answer, TerminalAsk.find(), f"running {one_line(script)}")
        try:
            with_host(
                answer,
                replace(wanted, scripts=scripts),
                lambda host: _run(answer, host, request, patience),
                approve=patience.ask,
            )
        except KeyboardInterrupt:
            if patience.has_begun:
                answer.word("interrupted; nothing of the script is running any more on this machine")
            raise


class Patience:
    """A sign of life while a script runs, which makes room whenever the user is asked."""

    def __init__(self, answer: Answer, asker: TerminalAsk | None, doing: str) -> None:
        self.asker = asker
        self.has_begun = False
        self._answer = answer
        self._doing = doing
        self._bar = ExitStack()

    @property
    def ask(self) -> Ask | None:
        """A way to ask; None where nobody can be asked."""
        return None if self.asker is None else self._ask

    def __enter__(self) -> "Patience":
        self.has_begun = True
        self._bar.enter_context(progress(self._answer, self._doing))
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    async def _ask(self, question: Question) -> Reply:
        assert self.asker is not None
        self._bar.close()
        reply = await self.asker(question)
        self._bar.enter_context(progress(self._answer, self._doing))
        return reply


async def _run(answer: Answer, host: Host, request: Request, patience: Patience) -> None:
    if patience.asker is not None:
        patience.asker.host = host
    preview = await host.preview_script(request.reference, request.script, request.arguments)
    for problem in host.problems:
        print_refusal(answer, problem)
    _announce(answer, preview)
    if preview.where == "sandbox" and host.scripts_availability is not None:
        host.scripts_availability.require()  # Nobody is asked about what could not run.
    with patience:
        ran = await _agreed(host, request, preview)
    kept, problem = None, None
    try:
        if request.output is not None:
            kept = await anyio.to_thread.run_sync(keep, request.output, ran.files)
    except SkillError as error:
        problem = error
    _tell(answer, ran, kept)
    if problem is not None:
        raise problem


async def _agreed(host: Host, request: Request, preview: ScriptPreview) -> RanScript:
    try:
        return await host.run_script(request.reference, request.script, request.arguments, actor="user")
    except ApprovalDeniedError as error:
        fix = "nothing was run, and nothing remembered; you can be asked again"
        raise ApprovalDeniedError("you did not agree to it", reference=error.reference, fix=fix) from error
    except ApprovalRequiredError as error:
        message = f"{error.reference} needs your approval before its scripts are run"
        raise ApprovalRequiredError(
            message, reference=error.reference, fix=request.approval_fix(preview)
        ) from error


def _announce(answer: Answer, preview: ScriptPreview) -> None:
    """Say what would run, before anything does."""

    def say(heading: str, words: str) -> None:
        answer.word((f"{heading:8}", "bold"), words, hang=8, wrap=heading != "digest")

    say("script", f"{one_line(preview.script)} of {name_of(preview.skill)}")
    say("digest", preview.digest or "none: its server keeps the script, and runs it itself")
    if preview.where == "server":
        say("where", "on the server, which sees the arguments; no limit set here counts there")
        return
    say("limits", limits_words(preview.limits))
    say("network", ", ".join(preview.network) or "none")
    say("secrets", ", ".join(preview.secrets) or "none")
    if preview.terms.unmet:
        say(
            "in vain",
            f"it also asks for {one_line(', '.join(preview.terms.unmet))}, which no policy grants it",
        )


def _tell(answer: Answer, ran: RanScript, kept: Kept | None) -> None:
    if answer.json:
        answer.document(outcome_json(ran, kept))
    else:
        print_output(answer, ran)
        print_outcome(answer, ran, kept)
    if kept is not None and kept.refused:
        answer.code = ExitCode.NO
    if not ran.is_error:
        return
    answer.code = ExitCode.NO
    words = f" {one_line(ran.script)} of {one_line(ran.reference)}: {verdict_words(ran)}"
    answer.word(("error:", STYLES["error"]), words, hang=2)
    if ran.outcome is not None and ran.outcome.limit is not None:
        answer.word(("fix:", "bold"), f" {_LIMIT_FIX}", hang=2)


def _require_nothing_to_run(args: str | None, output: Path | None, policy: Path | None) -> None:
    given = {"--args": args, "--output": output, "--policy": policy}
    for name, value in given.items():
        if value is not None:
            raise MisuseError(
                f"{name} needs a SCRIPT", fix="leave it out to see the scripts, or name the one to run"
            )


def _places(config: Path | None, at: list[str], lock: Path | None, *, archives: bool) -> tuple[str, ...]:
    """Return the options with which other commands find the same skill."""
    found: list[str] = []
    for option, value in (("--config", config), *(("--at", target) for target in at), ("--lock", lock)):
        found += [] if value is None else [option, str(value)]
    return (*found, *(["--archives"] if archives else []))
