"""`skillwire run`: run a script of a skill in a sandbox, after showing it and asking."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, cast

import anyio.to_thread
import orjson
import typer

from skillwire.cli.command import (
    STYLES,
    AlreadyExistsError,
    Json,
    MisuseError,
    Output,
    OutputError,
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
from skillwire.cli.states import print_refusal
from skillwire.core import (
    MAX_DESCRIPTION,
    JsonValue,
    ManifestFile,
    SkillError,
    StrictJsonError,
    digest_of,
    files_with_digests,
    fold_path,
    folders_of,
    parse_strictly,
    path_findings,
    revealed,
    size_words,
    visible,
)
from skillwire.host import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    Ask,
    Grant,
    KnownSkill,
    Origin,
    Paragraph,
    Question,
    Reply,
    ScriptPreview,
    ScriptResult,
    format_amount,
    format_limit_hit,
    format_limits,
    lines_of,
    name_of,
    one_line,
    skill_paragraphs,
    untrusted_lines,
    untrusted_paragraph,
)
from skillwire.runner import (
    Limits,
    Outcome,
    OutputFile,
    Policy,
    ScriptInterface,
    SkippedOutput,
    interfaces_of,
    load_policy,
    scripts_of,
)

if TYPE_CHECKING:
    from skillwire.host import Host


# Save the files that a script left. Their names are untrusted, and none may lead out of the folder.


LONGEST_NAME = 255
"""The most bytes of a file name that common file systems accept."""
LONGEST_PATH = 1024

# Characters that are allowed in a URI and special in file systems: drives, streams, patterns.
_UNUSABLE = re.compile(r'[\\:*?"<>|\x00]')
_FATAL = frozenset({"unusable-path", "reserved-path"})


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The saved files of one run: their folder, their paths, and the files that were refused."""

    folder: Path
    paths: tuple[str, ...] = ()
    refused: tuple[SkippedOutput, ...] = ()


def require_empty(folder: Path) -> None:
    """Check that a folder is missing or empty, so that files can be saved in it.

    Raises:
        AlreadyExistsError: It is not empty, or not a folder.
        MisuseError: It is the current folder, which cannot be replaced.
    """
    real = Path(os.path.realpath(folder))
    if not os.path.lexists(real):
        return
    if not real.is_dir():
        raise AlreadyExistsError(
            f"{folder} exists and is not a folder", fix="choose another name for --output"
        )
    if real == Path.cwd():
        raise MisuseError(f"{folder} is the current folder", fix="name a new one: --output out")
    if any(real.iterdir()):
        raise AlreadyExistsError(f"{folder} is not empty", fix="choose another folder for --output")


def save_files(folder: Path, files: Sequence[OutputFile]) -> SavedFiles:
    """Save files in a new or empty folder, atomically.

    Everything is written to a temporary folder beside it and moved into place
    with one rename, so no symbolic link can be followed. Only the user can
    read the files, and none is executable. A file whose name means another
    place on some file system is refused.

    Raises:
        AlreadyExistsError: The folder is not empty.
        OutputError: It cannot be written.
    """
    require_empty(folder)
    refused = refusals_of([file.path for file in files])
    real = Path(os.path.realpath(folder))
    top = real
    while not top.parent.exists():
        top = top.parent
    staging = top.with_name(f".skillwire-{secrets.token_hex(8)}")
    good = [file for file in files if file.path not in refused]
    try:
        staging.mkdir(0o700)
        inside = staging / real.relative_to(top.parent)
        inside.mkdir(0o700, parents=True)
        for file in good:
            _write(inside, file)
        _move(staging / top.name, top)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    skipped = tuple(SkippedOutput(path, reason) for path, reason in refused.items())
    return SavedFiles(folder, tuple(file.path for file in good), skipped)


def refusals_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths that are not written, each with the reason."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in paths:
        reason = _reason(path)
        if not reason and (fold_path(path) in seen or fold_path(path) in folders):
            reason = "its name is the same as another one on some file systems"
        if reason:
            found[path] = reason
        else:
            seen.add(fold_path(path))
    return found


def _reason(path: str) -> str:
    names = path.split("/")
    if path.startswith("/") or ".." in names:
        return "its name leads out of the folder"
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not valid Unicode"
    if len(raw) > LONGEST_PATH or any(len(name.encode()) > LONGEST_NAME for name in names):
        return "its name is too long"
    if any(name.startswith(".") for name in names):
        return "its name starts with a dot"
    if _UNUSABLE.search(path) or visible(path) != path:
        return "its name has characters that are not allowed"
    codes = {finding.code for finding in path_findings([path])}
    return "its name is reserved on some systems" if codes & _FATAL else ""


def _write(folder: Path, file: OutputFile) -> None:
    place = folder
    for name in file.path.split("/")[:-1]:
        place /= name
        place.mkdir(0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(folder / file.path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        opened.flush()
        os.fsync(opened.fileno())


def _move(made: Path, place: Path) -> None:
    """Rename a folder to its final path, where an empty folder may exist."""
    if os.name == "nt" and place.is_dir():
        place.rmdir()  # Windows cannot rename onto a folder; one that is not empty stays.
    made.rename(place)


_TAB: Final = 4
_MENTIONED: Final = ("wall_seconds", "cpu_seconds", "memory_bytes", "processes", "disk_bytes")


def limits_words(limits: Limits) -> str:
    """Return the most important limits of a run in one line."""
    return ", ".join(format_limits({name: getattr(limits, name) for name in _MENTIONED}))


def verdict_words(ran: ScriptResult) -> str:
    """Return in a few words how a run ended."""
    limit = None if ran.outcome is None else ran.outcome.limit
    return ran.verdict if limit is None else f"stopped at a limit ({format_limit_hit(limit)})"


def print_output(output: Output, ran: ScriptResult) -> None:
    """Write the script's standard output and standard error to ours.

    On a terminal, its errors are shown behind bars: they must not pass for ours.
    """
    out = ran.text if ran.outcome is None else ran.outcome.stdout
    err = "" if ran.outcome is None else ran.outcome.stderr
    text = revealed(out)
    if output.width is not None and text and not text.endswith("\n"):
        text += "\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    if output.terminal is None:
        sys.stderr.write(revealed(err) if not err or err.endswith("\n") else f"{revealed(err)}\n")
        return
    for line in err.removesuffix("\n").split("\n") if err else ():
        for part in untrusted_lines(visible(line.expandtabs(_TAB)), output.terminal.width - 1):
            output.message((part.lead, "cyan"), part.text, wrap=False)


def print_outcome(output: Output, ran: ScriptResult, kept: SavedFiles | None) -> None:
    """Print what else is known about a run: limits reached, files, and with `--verbose` what it used."""
    outcome = ran.outcome
    for hit in outcome.reached if outcome else ():
        output.message(
            ("warning:", STYLES["warning"]),
            f" the script reached a limit and continued ({format_limit_hit(hit)})",
        )
    _print_files(output, ran.files, kept)
    for skipped in _skipped(outcome, kept):
        output.message(
            ("warning:", STYLES["warning"]), f" not kept, {skipped.reason}: {one_line(skipped.path)}", hang=2
        )
    if output.verbose and outcome is not None:
        usage = outcome.usage
        output.message(
            f"{ran.verdict} after {usage.wall_seconds:.2f} s; it used {usage.cpu_seconds:.2f} s of CPU, "
            f"{format_amount('memory_bytes', usage.memory_bytes)} of memory, {usage.processes:,} processes"
        )


def _print_files(output: Output, files: Sequence[OutputFile], kept: SavedFiles | None) -> None:
    paths = {file.path for file in files} if kept is None else set(kept.paths)
    shown = [file for file in files if file.path in paths]
    if not shown:
        return
    if kept is None:
        output.message(("Output files", "bold"), " (keep them with --output DIR): bytes, digest, path")
    else:
        output.message(("Files", "bold"), f" in {kept.folder}: bytes, digest, path", wrap=False)
    room = max(len(f"{len(file.content):,}") for file in shown)
    for file in shown:
        words = f"{len(file.content):>{room},}  {digest_of(file.content)}  {one_line(file.path)}"
        output.message(("  | ", "cyan"), words, wrap=False)


def _skipped(outcome: Outcome | None, kept: SavedFiles | None) -> Iterator[SkippedOutput]:
    yield from () if outcome is None else outcome.skipped
    yield from () if kept is None else kept.refused


def origin_json(origin: Origin) -> dict[str, object]:
    return {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint}


def outcome_json(ran: ScriptResult, kept: SavedFiles | None) -> dict[str, object]:
    """Return everything about a run as JSON."""
    outcome = ran.outcome
    paths = () if kept is None else kept.paths
    return {
        "reference": ran.reference,
        "origin": origin_json(ran.origin),
        "script": ran.script,
        "digest": ran.digest or None,
        "where": ran.where,
        "ending": None if outcome is None else outcome.ending.value,
        "exitCode": None if outcome is None else outcome.exit_code,
        "signal": None if outcome is None else outcome.signal,
        "limit": None if outcome is None or outcome.limit is None else asdict(outcome.limit),
        "reached": [] if outcome is None else [asdict(hit) for hit in outcome.reached],
        "stdout": ran.text if outcome is None else outcome.stdout,
        "stderr": "" if outcome is None else outcome.stderr,
        "structured": None if outcome is None or outcome.structured is None else dict(outcome.structured),
        "files": [
            {
                "path": file.path,
                "size": len(file.content),
                "digest": digest_of(file.content),
                "kept": file.path in paths,
            }
            for file in ran.files
        ],
        "skipped": [asdict(skipped) for skipped in _skipped(outcome, kept)],
        "output": None if kept is None else str(kept.folder),
        "usage": None if outcome is None else asdict(outcome.usage),
        "limits": None if outcome is None else asdict(outcome.limits),
        "isError": ran.is_error,
        "verdict": ran.verdict,
    }


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
