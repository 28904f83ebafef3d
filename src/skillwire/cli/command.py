"""`Output`: what a command prints, for people or as JSON.

An `Output` escapes every text before it reaches a terminal, writes data to
standard output and messages to standard error, and reports every failure in
the same one line or the same JSON.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeAlias

import orjson
import typer
from rich.cells import cell_len
from typer.core import TyperCommand

from skillwire.cli.common import CONTEXT, ExitCode
from skillwire.core import Finding, InvalidSkillError, SkillError, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# Errors of the command line, and their exit codes.


class MisuseError(SkillError):
    """The command line is invalid."""

    refusal = "misuse"


class MissingFolderError(MisuseError):
    """A folder named on the command line does not exist, or is not a folder."""

    refusal = "no-such-folder"


class NoSkillError(SkillError):
    """There is no skill where one was expected."""

    refusal = "no-skill"
    violates = "FMT-01"


class AlreadyExistsError(SkillError):
    """A file or folder already exists where one would be written."""

    refusal = "already-exists"


class OutputError(SkillError):
    """A file or folder cannot be written."""

    refusal = "cannot-write"


class BrokenSkillError(InvalidSkillError):
    """A skill has errors; `findings` has all of them, with file paths as the user would type them."""

    def __init__(self, message: str, *, findings: Sequence[Finding], fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.findings = tuple(findings)


def exit_code_of(error: SkillError) -> ExitCode:
    return ExitCode.MISUSE if isinstance(error, MisuseError) else ExitCode.NO


Part: TypeAlias = str | tuple[str, str]
"""A piece of text, or one with its style."""

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

_NARROWEST = 24
_HANG = 2
_LONGEST = 4_000
_REGISTRY_LOGGERS = "skillwire.host.registry"
_SDK_LOGGERS = ("mcp.client.", "mcp.shared.")
"""Loggers of the SDK whose lines are hidden: commands report the same server failures themselves."""
_FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""The variables that make Rich treat any stream as a terminal."""
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")

logger = logging.getLogger(__name__)


class Output:
    """One command's output: a JSON document or lines of text, and an exit code.

    Lines are escaped here and nowhere else, so a caller may pass untrusted
    text as it is. Nothing in it is interpreted as markup.
    """

    def __init__(self, command: str, *, json: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.verbose = verbose
        self.code = ExitCode.YES
        self._command = command
        self._has_document = False
        self._consoles: dict[bool, Console] = {}

    @property
    def width(self) -> int | None:
        """The number of columns if standard output is a terminal, else None."""
        console = self._console()
        return None if console is None else console.width

    @property
    def terminal(self) -> "Console | None":
        """The console of standard error if that is a terminal, else None."""
        console = self._console(stderr=True)
        return None if console is None or console.is_dumb_terminal else console

    def line(self, *parts: Part, indent: int = 0, wrap: bool = True) -> None:
        """Print a paragraph to standard output, indented as a whole.

        Text is wrapped at the width of the terminal. Pass `wrap=False` for
        what someone may want to copy or click, such as a path.
        """
        _print(self._console(), sys.stdout, parts, indent, wrap=wrap)

    def message(self, *parts: Part, indent: int = 0, hang: int = 0, wrap: bool = True) -> None:
        """Print a paragraph to standard error.

        Lines after the first are indented by `hang` more, so that no quoted
        text can pass for the start of a message.
        """
        _print(self._console(stderr=True), sys.stderr, parts, indent, hang=hang, wrap=wrap)

    def document(self, content: Mapping[str, object]) -> None:
        """Write the result as one JSON document."""
        self._has_document = True
        text = _escaped_json({"schema": f"skillwire/{self._command}/1", **content})
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8") + b"\n")

    def lines(self, items: Iterable[Mapping[str, object]]) -> None:
        """Write JSON Lines, holding only one value in memory at a time."""
        sys.stdout.flush()
        for item in items:
            sys.stdout.buffer.write(_escaped_json(item, indent=False).encode("utf-8") + b"\n")

    def refuse(self, error: SkillError) -> None:
        """Report that the command failed, and why."""
        self.code = exit_code_of(error)
        # Messages quote untrusted text, which must not be able to fake a line that starts with `error:`.
        message, fix = visible(str(error), most=_LONGEST), visible(error.fix, most=_LONGEST)
        self.message(("error:", STYLES["error"]), f" {message}", hang=_HANG)
        if fix:
            self.message(("fix:", "bold"), f" {fix}", hang=_HANG)
        if self.json and not self._has_document:
            reason: dict[str, object] = {"code": error.refusal, "message": message, "fix": fix}
            if isinstance(error, BrokenSkillError):
                reason["findings"] = [finding.to_json() for finding in error.findings]
            self.document({"error": reason})

    def _console(self, *, stderr: bool = False) -> "Console | None":
        """Return Rich's console of standard output, or standard error, if that is a terminal; else None.

        Rich is loaded only if it may be one: that takes 20 ms and 2.5 MiB, and most output goes to a pipe.
        """
        if not (sys.stderr if stderr else sys.stdout).isatty() and not any(map(os.environ.get, _FORCED)):
            return None
        if stderr not in self._consoles:
            from rich.console import Console

            self._consoles[stderr] = Console(markup=False, highlight=False, emoji=False, stderr=stderr)
        console = self._consoles[stderr]
        return console if console.is_terminal else None


@contextmanager
def command_output(command: str, *, json: bool, verbose: bool) -> Generator[Output]:
    """Yield a command's `Output`, and exit with its code whatever happens inside.

    Raises:
        OSError: The output itself cannot be written.
    """
    set_up_logging(verbose=verbose)
    output = Output(command, json=json, verbose=verbose)
    try:
        yield output
    except SkillError as error:
        output.refuse(error)
    except OSError as error:
        if error.filename is None:
            raise  # Writing to standard output names no file.
        output.refuse(OutputError(f"{os.fsdecode(error.filename)}: {error.strerror}"))
    except Exception as error:
        # A bug: one line for the user, the traceback only with -v.
        logger.info("traceback of the unexpected failure:", exc_info=error)
        message = f"unexpected {type(error).__name__}: {error}"
        output.refuse(SkillError(message, fix="this is a bug in skillwire; -v shows where it happened"))
    sys.stdout.flush()
    raise typer.Exit(output.code)


def plural(count: int, noun: str) -> str:
    """Return `1 skill`, `2 skills`, `1,200 skills`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_of(words: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _print(
    console: "Console | None", file: TextIO, parts: Sequence[Part], indent: int, *, hang: int = 0, wrap: bool
) -> None:
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    if console is None:  # No colours and no wrapping.
        line = "".join(visible(content) for content, _ in pieces)
        file.write(f"{' ' * indent}{line}".rstrip() + "\n")
        return
    from rich.text import Text

    text = Text.assemble(*((visible(content), style) for content, style in pieces))
    lines = text.wrap(console, max(console.width - indent - hang, _NARROWEST)) if wrap else [text]
    for position, line in enumerate(lines):
        line.rstrip()
        margin = " " * (indent + hang if position else indent)
        console.print(Text(margin).append_text(line) if line else "", soft_wrap=True)


def _escaped_json(document: object, *, indent: bool = True) -> str:
    """Return JSON with every control, hidden or otherwise unprintable character escaped."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:  # Some file name is not UTF-8.
        text = json.dumps(document, indent=2 if indent else None, ensure_ascii=False)
    return _NOT_PLAIN.sub(lambda found: _escaped(found.group()), text)


@cache
def _escaped(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"  # Strict JSON parsers reject lone surrogates.
    return character if visible(character) == character else json.dumps(character)[1:-1]


class _StderrHandler(logging.Handler):
    """Handler that writes escaped log lines to standard error."""

    is_verbose = False

    def filter(self, record: logging.LogRecord) -> bool:
        if self.is_verbose:
            return True
        # Commands print themselves which servers did not answer.
        is_printed = record.name.startswith(_REGISTRY_LOGGERS) and record.levelno < logging.ERROR
        return not is_printed and not record.name.startswith(_SDK_LOGGERS)

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            sys.stderr.write(visible(line, most=_LONGEST) + "\n")


def set_up_logging(*, verbose: bool) -> None:
    """Send the log lines of this process to standard error, escaped."""
    root = logging.getLogger()
    handler = next((found for found in root.handlers if isinstance(found, _StderrHandler)), None)
    if handler is None:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root.addHandler(handler)
    handler.is_verbose = verbose
    root.setLevel(logging.INFO if verbose else logging.WARNING)


# A progress bar on the terminal for work that takes long.


SHOW_AFTER = 0.5
"""Seconds before the bar is shown: shorter work needs none."""

_REFRESH = 0.1


class ProgressMeter:
    """Progress of a long job, shown on a terminal; without a terminal it does nothing."""

    def __init__(self, bar: "Progress | None" = None, task: "TaskID | None" = None) -> None:
        self._bar = bar
        self._task = task
        self._next = 0.0

    def show(self, doing: str, done: int, total: int | None = None) -> None:
        """Show what is being done and how far it is; cheap enough to call at every step."""
        if self._bar is None or self._task is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _REFRESH
        amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        self._bar.update(self._task, description=f"{doing}: {amount}", completed=done, total=total)


@contextmanager
def progress(output: Output, doing: str) -> Generator[ProgressMeter]:
    """Show a bar while the block runs, after half a second, and remove it at the end."""
    if output.terminal is None:
        yield ProgressMeter()
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
    bar = Progress(*columns, console=output.terminal, transient=True)
    task = bar.add_task(doing, total=None)
    timer = Timer(SHOW_AFTER, bar.start)
    timer.start()
    try:
        yield ProgressMeter(bar, task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


# Print rows in columns that fit a terminal, and one line per row elsewhere.


Row: TypeAlias = Sequence[Part]

GAP = "  "
_FIRST_SHARE = 0.45
_LEAST = 24
"""The least width of the last cell beside the others."""

_SPACES = re.compile(r"\s+")


def print_rows(
    output: Output, rows: Iterable[Row], *, indent: int = 0, right: Sequence[int] = (), flexible: bool = True
) -> None:
    """Print rows of equally many cells; the columns `right` are right-aligned.

    Without `flexible`, the last column is never cut. All text is escaped. This
    does not use Rich's tables, which are slow for many rows.
    """
    table = [[_cell(part) for part in row] for row in rows]
    if not table:
        return
    width = output.width
    if width is None:
        lines = (_plain(row, indent) for row in table)
    else:
        lines = _Layout(table, width - indent, right, flexible).lines(table, " " * indent)
    for line in lines:
        sys.stdout.write(line.rstrip() + "\n")


def print_hanging(output: Output, head: Part, text: str, *, indent: int = 0) -> None:
    """Print a short word and a text beside it, with a hanging indent."""
    word, style = _cell(head)
    width = output.width
    shown = visible(text)
    if width is None:
        sys.stdout.write(f"{' ' * indent}{word}{GAP}{shown}".rstrip() + "\n")
        return
    from rich.text import Text

    margin = indent + cell_len(word) + len(GAP)
    paint = _Styler()
    lines = Text(shown).wrap(paint.console, max(width - margin, _LEAST))
    start = " " * indent + paint(word, style) + GAP
    for line in lines:
        sys.stdout.write((start + line.plain).rstrip() + "\n")
        start = " " * margin


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits into `width` columns, with `…` where it was cut."""
    some = text[: 2 * max(width, 1) + 1]
    if len(some) == len(text) and cell_len(text) <= width:
        return text
    while some and cell_len(some) >= width:
        some = some[: -max(1, (cell_len(some) - width) // 2)]
    return some.rstrip() + "…" if width > 0 else ""


def one_line(text: str) -> str:
    """Return a text with each run of white space replaced by one space."""
    return _SPACES.sub(" ", text).strip()


def _cell(part: Part) -> tuple[str, str]:
    text, style = (part, "") if isinstance(part, str) else part
    return visible(text), style


def _plain(row: Sequence[tuple[str, str]], indent: int) -> str:
    return " " * indent + GAP.join(text for text, _ in row)


class _Layout:
    """The column widths of one table in a terminal."""

    def __init__(
        self, table: Sequence[Sequence[tuple[str, str]]], width: int, right: Sequence[int], flexible: bool
    ) -> None:
        self._paint = _Styler()
        self._width = max(width, _LEAST)
        self._right = frozenset(right)
        self._widths = [max(cell_len(row[number][0]) for row in table) for number in range(len(table[0]))]
        self._has_last = flexible and len(self._widths) > 1
        gaps = len(GAP) * (len(self._widths) - 1)
        if self._has_last:
            self._widths[0] = min(self._widths[0], int(self._width * _FIRST_SHARE))
            self._widths[-1] = self._width - gaps - sum(self._widths[:-1])
            self._is_stacked = self._widths[-1] < min(_LEAST, max(cell_len(row[-1][0]) for row in table))
        else:
            self._is_stacked = gaps + sum(self._widths) > self._width

    def lines(self, table: Iterable[Sequence[tuple[str, str]]], margin: str) -> Iterator[str]:
        for row in table:
            for line in self._stacked(row) if self._is_stacked else self._beside(row):
                yield margin + line

    def _beside(self, row: Sequence[tuple[str, str]]) -> Iterator[str]:
        (first, style), *rest = row
        is_long = cell_len(first) > self._widths[0]
        if is_long:
            yield self._paint(first, style)
            first = ""
        cells = [self._padded(0, first, style)]
        for number, (text, look) in enumerate(rest, 1):
            is_last = number == len(rest)
            shown = cut(text, self._widths[number]) if is_last and self._has_last else text
            cells.append(self._padded(number, shown, look, pad=not is_last or number in self._right))
        yield GAP.join(cells)

    def _stacked(self, row: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield lines with as many cells as fit, and the last cell on a line of its own."""
        line, used = "", 0
        last = row[-1] if self._has_last else None
        for text, style in row[:-1] if last else row:
            space = cell_len(text) + (len(GAP) if line else 0)
            if line and used + space > self._width:
                yield line
                line, used, space = GAP, len(GAP), cell_len(text)
                line += self._paint(text, style)
            else:
                line += (GAP if line else "") + self._paint(text, style)
            used += space
        yield line
        if last and last[0]:
            yield GAP + self._paint(cut(last[0], self._width - len(GAP)), last[1])

    def _padded(self, number: int, text: str, style: str, *, pad: bool = True) -> str:
        space = " " * max(0, self._widths[number] - cell_len(text)) if pad else ""
        painted = self._paint(text, style)
        return space + painted if number in self._right else painted + space


class _Styler:
    """Styles text as Rich would, by its rules for terminals and the environment, but faster."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(markup=False, highlight=False, emoji=False)
        self._codes: dict[str, tuple[str, str]] = {"": ("", "")}

    def __call__(self, text: str, style: str) -> str:
        if style not in self._codes:
            self._codes[style] = self._codes_for(style)
        before, after = self._codes[style]
        return f"{before}{text}{after}" if text else ""

    def _codes_for(self, style: str) -> tuple[str, str]:
        """Return the escape sequences that switch a style on and off."""
        from rich.text import Text

        if self.console.legacy_windows:
            return "", ""
        with self.console.capture() as captured:
            self.console.print(Text("x", style=style), end="")
        before, _, after = captured.get().partition("x")
        return before, after


# Report an invalid command line; imported only when there is one.


def print_usage_error(args: Sequence[str], message: str, commands: Collection[str]) -> int:
    """Print what is wrong with `args` and which help to read, and return the exit code."""
    called = next((arg for arg in args if not arg.startswith("-")), "")
    known = called in commands
    output = Output(called if known else "error", json="--json" in args)
    page = f"skillwire {called} --help" if known else "skillwire --help"
    output.refuse(MisuseError(message[:1].lower() + message[1:].rstrip("."), fix=f"see {page}"))
    return output.code


Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print more: notes, and log lines.")
]
FollowLinks: TypeAlias = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links to folders.")
]


def new_app(name: str | None = None) -> typer.Typer:
    """Return an empty app for one command, or for a group with a name, configured like every other."""
    # Typer's Rich help takes more start-up time than everything else together.
    return typer.Typer(name=name, rich_markup_mode=None, add_completion=False, context_settings=CONTEXT)


# Targets on a command line: servers and folders to use, and a server to start after `--`.


END_OF_OPTIONS = "--"

Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        help="Use only these: a URL, a folder, or a label of the configuration. "
        "Give the command of a server to start after --.",
        show_default=False,
    ),
]

_KEY = "skillwire.command"


class TargetCommand(TyperCommand):
    """A command whose arguments may be followed by `-- COMMAND ARG…`.

    Everything after the first `--` is passed through, so that options of the
    server are not parsed as our own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, rest = args, list[str]()
        if END_OF_OPTIONS in args:
            place = args.index(END_OF_OPTIONS)
            own, rest = args[:place], args[place + 1 :]
            if not rest:
                raise typer.BadParameter("there is no command after --", ctx=ctx)
        ctx.meta[_KEY] = tuple(rest)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARG...]"]


def command_in(context: typer.Context) -> Sequence[str]:
    """Return the words after `--`; empty when there was no `--`."""
    return context.meta.get(_KEY, ())
