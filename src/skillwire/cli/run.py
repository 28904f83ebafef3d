"""`skillwire run`: run a script of a skill in a sandbox, after showing it and asking."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import anyio.to_thread
import orjson
import typer

from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    Verbose,
    command_output,
    new_app,
    progress,
)
from skillwire.cli.common import ExitCode
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
from skillwire.cli.prompt import TerminalAsk, print_lines
from skillwire.cli.run_output import (
    SavedFiles,
    limits_words,
    origin_json,
    outcome_json,
    print_outcome,
    print_output,
    require_empty,
    save_files,
    verdict_words,
)
from skillwire.cli.states import print_refusal
from skillwire.core import (
    MAX_DESCRIPTION,
    JsonValue,
    ManifestFile,
    SkillError,
    StrictJsonError,
    files_with_digests,
    parse_strictly,
    size_words,
)
from skillwire.host import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    Ask,
    Grant,
    KnownSkill,
    Paragraph,
    Question,
    Reply,
    ScriptPreview,
    ScriptResult,
    format_limits,
    lines_of,
    name_of,
    one_line,
    skill_paragraphs,
    untrusted_paragraph,
)
from skillwire.runner import (
    Policy,
    ScriptInterface,
    interfaces_of,
    load_policy,
    scripts_of,
)

if TYPE_CHECKING:
    from skillwire.host import Host


# List the scripts of a skill: their descriptions, arguments and requested permissions.


MOST_ARGUMENTS = 50

_NO_SCRIPTS = "has no scripts to run"
_UNKNOWN_SCRIPTS = "does not list its scripts; name one that its text mentions"


@dataclass(frozen=True, slots=True)
class ListedScript:
    """One script of a skill: its path, its manifest line if there is one, and its declared interface."""

    path: str
    line: ManifestFile | None
    interface: ScriptInterface

    def to_json(self) -> dict[str, object]:
        declared = self.interface
        return {
            "path": self.path,
            "size": None if self.line is None else self.line.known_size,
            "digest": None if self.line is None else self.line.digest,
            "description": declared.description,
            "arguments": None if declared.arguments is None else dict(declared.arguments),
            "stdout": declared.stdout,
            "outputs": list(declared.outputs),
            "limits": dict(declared.limits),
            "network": list(declared.network),
            "secrets": list(declared.secrets),
            "problem": declared.problem,
        }


async def list_scripts(output: Output, host: Host, reference: str, places: Sequence[str] = ()) -> None:
    """Print the scripts of a skill. Nothing is run, and nothing is loaded.

    `places` are the options that find the skill, for the suggested command.

    Raises:
        UnknownReferenceError: No skill has this reference.
        SkillError: Its declaration of scripts cannot be read.
    """
    skill = await host.find(reference)
    scripts = await scripts_in(host, skill)
    if output.json:
        output.document(
            {
                "reference": skill.reference,
                "origin": origin_json(skill.id.origin),
                "uri": skill.id.uri,
                "scripts": [script.to_json() for script in scripts],
            }
        )
        return
    if not scripts:
        output.message(
            f"{skill.reference} {_NO_SCRIPTS if skill.entry.files is not None else _UNKNOWN_SCRIPTS}"
        )
        return
    print_lines(output, lines_of(skill_paragraphs(skill)[:2], output.width))
    for script in scripts:
        output.line("")
        print_lines(output, lines_of(_paragraphs(script), output.width))
    output.message("")
    words = shlex.join((skill.reference, *places))
    output.message(f"Run one with: skillwire run {words} SCRIPT --args JSON", wrap=False)


async def scripts_in(host: Host, skill: KnownSkill) -> list[ListedScript]:
    """Return the scripts of a skill, by path."""

    async def read(uri: str) -> bytes:
        return (await host.preview(skill.reference, uri)).content

    declared = await interfaces_of(skill.entry, read)
    files = files_with_digests(skill.entry)
    return [
        ListedScript(
            path,
            None if files is None else files.find(skill.entry.uri.join(path)),
            declared.get(path, ScriptInterface()),
        )
        for path in scripts_of(skill.entry)
    ]


def _paragraphs(script: ListedScript) -> Iterator[Paragraph]:
    yield untrusted_paragraph("Script", [script.path])
    if script.line is not None:
        yield Paragraph("Digest", (f"{script.line.digest}, {size_words(script.line.known_size)}",))
    declared = script.interface
    if declared.problem:
        yield untrusted_paragraph("It cannot be run", [declared.problem], is_warning=True)
    if declared.description:
        yield untrusted_paragraph("Its description", [declared.description], longest=MAX_DESCRIPTION)
    if arguments := [*argument_lines(declared)]:
        yield untrusted_paragraph("Arguments", arguments[:MOST_ARGUMENTS])
    elif declared.arguments is None:
        yield Paragraph("Arguments", ("not declared; any JSON object is passed on",))
    if declared.stdout:
        yield untrusted_paragraph("It writes", [declared.stdout])
    if declared.outputs:
        yield untrusted_paragraph("It leaves files", declared.outputs)
    if declared.limits:
        yield Paragraph("Limits it asks for", (", ".join(format_limits(declared.limits)),))
    if declared.network:
        yield untrusted_paragraph("Hosts it requests", declared.network, is_warning=True)
    if declared.secrets:
        yield untrusted_paragraph("Secrets it requests", declared.secrets, is_warning=True)


def argument_lines(declared: ScriptInterface) -> Iterator[str]:
    """Yield a line for each property of a schema; a schema without properties is shown as JSON."""
    schema = declared.arguments
    if schema is None:
        return
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        yield orjson.dumps(dict(schema)).decode()
        return
    needed = required if isinstance(required, list) else []
    for name, about_it in properties.items():
        details = about_it if isinstance(about_it, dict) else {}
        kind, words = details.get("type"), details.get("description")
        must = ", required" if name in needed else ""
        kinds = kind if isinstance(kind, str) else "any" if kind is None else orjson.dumps(kind).decode()
        yield f"{name} ({kinds}{must}){f': {words}' if isinstance(words, str) else ''}"


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

    def __enter__(self) -> RunProgress:
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
        run_progress.asker.host, run_progress.asker.options = host, request.places
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


async def _run_approved(host: Host, request: RunRequest, preview: ScriptPreview) -> ScriptResult:
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


def _report(output: Output, ran: ScriptResult, kept: SavedFiles | None) -> None:
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
