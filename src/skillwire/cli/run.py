"""`skillwire run`: run a script of a skill in a sandbox, after showing it and asking."""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import anyio.to_thread
import typer

from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.output import STYLES, ExitCode, MisuseError, Output, command_output, progress
from skillwire.cli.prompt import TerminalAsk
from skillwire.cli.render import print_refusal
from skillwire.cli.run_output import (
    SavedFiles,
    limits_words,
    list_scripts,
    outcome_json,
    print_outcome,
    print_output,
    require_empty,
    save_files,
    verdict_words,
)
from skillwire.core import JsonValue, SkillError, StrictJsonError, parse_strictly
from skillwire.host.host import Host
from skillwire.host.model import ApprovalDeniedError, ApprovalRequiredError, Ask, Grant, Question, Reply
from skillwire.host.use.question import name_of, one_line
from skillwire.host.use.script_results import RanScript, ScriptPreview
from skillwire.runner.policy import Policy
from skillwire.runner.policy_file import load_policy

# Read the arguments of a script from `--args`.


MAX_BYTES = 1024 * 1024
STDIN = "-"
_FILE = "@"
_EXAMPLE = """use a JSON object such as --args '{"name": "value"}', --args @FILE, or --args - to read it"""


def read_arguments(text: str | None) -> Mapping[str, JsonValue]:
    """Return the arguments that `--args` means: the JSON itself, `@FILE`, or `-` for standard input.

    Raises:
        MisuseError: It is not a JSON object, is too large, or cannot be read.
    """
    if text is None:
        return {}
    if text == STDIN:
        return _parse(_read(sys.stdin.buffer), "standard input")
    if text.startswith(_FILE):
        return _parse(_content(text.removeprefix(_FILE)), text.removeprefix(_FILE))
    return _parse(os.fsencode(text), "--args")


def _content(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            return _read(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise MisuseError(f"--args: {name} cannot be read: {reason}", fix=_EXAMPLE) from error


def _read(file: BinaryIO) -> bytes:
    return file.read(MAX_BYTES + 1)


def _parse(data: bytes, place: str) -> Mapping[str, JsonValue]:
    if len(data) > MAX_BYTES:
        raise MisuseError(f"{place} has more than {MAX_BYTES:,} bytes", fix="pass less data in one run")
    try:
        value = parse_strictly(data)
    except StrictJsonError as error:
        raise MisuseError(f"{place} {error}", fix=_EXAMPLE) from error
    if not isinstance(value, dict):
        raise MisuseError(f"{place} is not a JSON object", fix=_EXAMPLE)
    return cast(Mapping[str, JsonValue], value)


_LIMIT_FIX = "the skill can ask for more in scripts/manifest.json, as far as the policy allows; see --policy"

app = new_app()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The script to run, its arguments and output folder. `places` are the options that find the skill."""

    reference: str
    script: str
    arguments: Mapping[str, JsonValue]
    output: Path | None
    places: tuple[str, ...]

    def approval_fix(self, preview: ScriptPreview) -> str:
        """Return how to approve the scripts of a skill."""
        if preview.terms.is_for_one_run:
            return "run it on a terminal: each run with network, with secrets or on a server is asked about"
        place = shlex.join((self.reference, *self.places))
        needed = (Grant.LOAD, Grant.SCRIPTS) if preview.origin.is_remote else (Grant.SCRIPTS,)
        grants = " ".join(f"--grant {grant}" for grant in needed)
        return f"review it with `skillwire show {place}`, then run `skillwire approve {place} {grants}`"


@app.command()
def run(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", help="The script, by name or path.", show_default=False),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            metavar="JSON",
            help="The arguments: a JSON object, @FILE to read one from, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Save its output files in this folder, which must be new or empty.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="The policy for scripts: limits, and network and secrets for single scripts.",
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

    Prints what would run, and asks on the terminal if your approval is
    needed. The script gets the arguments as JSON on its standard input and no
    access to this machine; its output is printed. Without SCRIPT, lists the
    scripts. Exits with 1 when the script failed or did not run.
    """
    with command_output("run", json=json, verbose=verbose) as output:
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        places = wanted.options
        if script is None:
            _require_nothing_to_run(args, folder, policy)
            run_with_host(output, wanted, lambda host: list_scripts(output, host, reference, places))
            return
        if folder is not None:
            require_empty(folder)
        request = RunRequest(reference, script, read_arguments(args), folder, places)
        # A single run needs no pool of sandboxes.
        scripts = replace(Policy() if policy is None else load_policy(policy), pool=0)
        run_progress = RunProgress(output, TerminalAsk.find(), f"running {one_line(script)}")
        try:
            run_with_host(
                output,
                replace(wanted, scripts=scripts),
                lambda host: _run(output, host, request, run_progress),
                approve=run_progress.ask,
            )
        except KeyboardInterrupt:
            if run_progress.has_begun:
                output.message("interrupted; the script is no longer running on this machine")
            raise


class RunProgress:
    """A progress bar while a script runs, hidden while the user is asked."""

    def __init__(self, output: Output, asker: TerminalAsk | None, doing: str) -> None:
        self.asker = asker
        self.has_begun = False
        self._output = output
        self._doing = doing
        self._bar = ExitStack()

    @property
    def ask(self) -> Ask | None:
        """The callback that asks the user; None without a terminal."""
        return None if self.asker is None else self._ask

    def __enter__(self) -> "RunProgress":
        self.has_begun = True
        self._bar.enter_context(progress(self._output, self._doing))
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    async def _ask(self, question: Question) -> Reply:
        assert self.asker is not None
        self._bar.close()
        reply = await self.asker(question)
        self._bar.enter_context(progress(self._output, self._doing))
        return reply


async def _run(output: Output, host: Host, request: RunRequest, run_progress: RunProgress) -> None:
    if run_progress.asker is not None:
        run_progress.asker.host = host
    preview = await host.preview_script(request.reference, request.script, request.arguments)
    for problem in host.problems:
        print_refusal(output, problem)
    _print_preview(output, preview)
    if preview.where == "sandbox" and host.scripts_availability is not None:
        host.scripts_availability.require()  # Do not ask about a script that cannot run.
    with run_progress:
        ran = await _run_approved(host, request, preview)
    kept, problem = None, None
    try:
        if request.output is not None:
            kept = await anyio.to_thread.run_sync(save_files, request.output, ran.files)
    except SkillError as error:
        problem = error
    _report(output, ran, kept)
    if problem is not None:
        raise problem


async def _run_approved(host: Host, request: RunRequest, preview: ScriptPreview) -> RanScript:
    try:
        return await host.run_script(request.reference, request.script, request.arguments, actor="user")
    except ApprovalDeniedError as error:
        fix = "nothing was run, and your answer is not stored; run the command again to be asked again"
        raise ApprovalDeniedError("you did not approve it", reference=error.reference, fix=fix) from error
    except ApprovalRequiredError as error:
        message = f"{error.reference} needs your approval before its scripts are run"
        raise ApprovalRequiredError(
            message, reference=error.reference, fix=request.approval_fix(preview)
        ) from error


def _print_preview(output: Output, preview: ScriptPreview) -> None:
    """Print what would run, before it runs."""

    def say(heading: str, words: str) -> None:
        output.message((f"{heading:8}", "bold"), words, hang=8, wrap=heading != "digest")

    say("script", f"{one_line(preview.script)} of {name_of(preview.skill)}")
    say("digest", preview.digest or "none: the server keeps the script and runs it itself")
    if preview.where == "server":
        say("where", "on the server, which sees the arguments; local limits do not apply there")
        return
    say("limits", limits_words(preview.limits))
    say("network", ", ".join(preview.network) or "none")
    say("secrets", ", ".join(preview.secrets) or "none")
    if preview.terms.unmet:
        say(
            "refused",
            f"it also asks for {one_line(', '.join(preview.terms.unmet))}, which the policy does not grant",
        )


def _report(output: Output, ran: RanScript, kept: SavedFiles | None) -> None:
    if output.json:
        output.document(outcome_json(ran, kept))
    else:
        print_output(output, ran)
        print_outcome(output, ran, kept)
    if kept is not None and kept.refused:
        output.code = ExitCode.NO
    if not ran.is_error:
        return
    output.code = ExitCode.NO
    words = f" {one_line(ran.script)} of {one_line(ran.reference)}: {verdict_words(ran)}"
    output.message(("error:", STYLES["error"]), words, hang=2)
    if ran.outcome is not None and ran.outcome.limit is not None:
        output.message(("fix:", "bold"), f" {_LIMIT_FIX}", hang=2)


def _require_nothing_to_run(args: str | None, output: Path | None, policy: Path | None) -> None:
    given = {"--args": args, "--output": output, "--policy": policy}
    for name, value in given.items():
        if value is not None:
            raise MisuseError(
                f"{name} needs a SCRIPT", fix="leave it out to see the scripts, or name the one to run"
            )
