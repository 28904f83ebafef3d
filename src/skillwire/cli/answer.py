"""`Answer`: how every command speaks, to a person or to a program.

A command says what it found to an `Answer`, which makes every text harmless
before a terminal sees it, keeps data and words on their own streams, and turns
each failure into the same one line or the same JSON.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import orjson
import typer
from rich.console import Console
from rich.text import Text

from skillwire.cli.failures import BrokenSkillError, ExitCode, OutputError, exit_code_of
from skillwire.core.characters import visible
from skillwire.errors import SkillError

Part: TypeAlias = str | tuple[str, str]
"""A piece of text, or one with its style."""

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

_NARROWEST = 24
_HANG = 2
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")

logger = logging.getLogger(__name__)


class Answer:
    """One command's answer: a JSON document or lines of text, and an exit code.

    Lines are made harmless here and nowhere else, so a caller may pass a
    stranger's text as it is. Nothing in it is taken for markup.
    """

    def __init__(self, command: str, *, json: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.verbose = verbose
        self.code = ExitCode.YES
        self._command = command
        self._answered = False
        self._out = Console(markup=False, highlight=False, emoji=False)
        self._err = Console(markup=False, highlight=False, emoji=False, stderr=True)

    @property
    def width(self) -> int | None:
        """The number of columns of the terminal, or None when the lines go elsewhere."""
        return self._out.width if self._out.is_terminal else None

    @property
    def terminal(self) -> Console | None:
        """The terminal that words go to, or None when they go elsewhere."""
        return self._err if self._err.is_terminal and not self._err.is_dumb_terminal else None

    def line(self, *parts: Part, indent: int = 0, wrap: bool = True) -> None:
        """Print a paragraph of the answer, indented as a whole.

        Text is wrapped where a terminal ends. What someone may want to copy
        or click, such as a path, is better left in one piece.
        """
        _print(self._out, parts, indent, wrap=wrap)

    def word(self, *parts: Part, indent: int = 0, hang: int = 0, wrap: bool = True) -> None:
        """Print a paragraph about the answer, which is no part of it.

        Lines after the first are indented by `hang` more, so that nothing in
        the paragraph can stand where it began.
        """
        _print(self._err, parts, indent, hang=hang, wrap=wrap)

    def document(self, content: Mapping[str, object]) -> None:
        """Write the answer for programs."""
        self._answered = True
        text = _inert_json({"schema": f"skillwire/{self._command}/1", **content})
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8") + b"\n")

    def lines(self, items: Iterable[Mapping[str, object]]) -> None:
        """Write JSON values for programs, one to a line, holding no more than one of them at a time."""
        sys.stdout.flush()
        for item in items:
            sys.stdout.buffer.write(_inert_json(item, indent=False).encode("utf-8") + b"\n")

    def refuse(self, error: SkillError) -> None:
        """Say that the command failed, and why."""
        self.code = exit_code_of(error)
        # Messages quote strangers, whose words must not begin a line where `error:` does.
        self.word(("error:", STYLES["error"]), f" {error}", hang=_HANG)
        if error.fix:
            self.word(("fix:", "bold"), f" {error.fix}", hang=_HANG)
        if self.json and not self._answered:
            reason: dict[str, object] = {"code": error.refusal, "message": str(error), "fix": error.fix}
            if isinstance(error, BrokenSkillError):
                reason["findings"] = [finding.to_json() for finding in error.findings]
            self.document({"error": reason})


@contextmanager
def answering(command: str, *, json: bool, verbose: bool) -> Generator[Answer]:
    """Give a command its `Answer`, and leave with its exit code, whatever happens inside.

    Raises:
        OSError: The answer itself cannot be written.
    """
    set_up_logging(verbose=verbose)
    answer = Answer(command, json=json, verbose=verbose)
    try:
        yield answer
    except SkillError as error:
        answer.refuse(error)
    except OSError as error:
        if error.filename is None:
            raise  # Writing the answer names no file.
        answer.refuse(OutputError(f"{os.fsdecode(error.filename)}: {error.strerror}"))
    except Exception as error:
        # The last place a bug can surface: a line for the user, the trace for whoever asks for it.
        logger.info("the trace of the unexpected failure:", exc_info=error)
        message = f"unexpected {type(error).__name__}: {error}"
        answer.refuse(SkillError(message, fix="this is a bug in skillwire; -v shows where it happened"))
    sys.stdout.flush()
    raise typer.Exit(answer.code)


def plural(count: int, noun: str) -> str:
    """Return `1 skill`, `2 skills`, `1,200 skills`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_of(words: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _print(console: Console, parts: Sequence[Part], indent: int, *, hang: int = 0, wrap: bool) -> None:
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    if not console.is_terminal:  # No colours, no width: nothing for Rich to do.
        line = "".join(visible(content) for content, _ in pieces)
        console.file.write(f"{' ' * indent}{line}".rstrip() + "\n")
        return
    text = Text.assemble(*((visible(content), style) for content, style in pieces))
    lines = text.wrap(console, max(console.width - indent - hang, _NARROWEST)) if wrap else [text]
    for position, line in enumerate(lines):
        line.rstrip()
        margin = " " * (indent + hang if position else indent)
        console.print(Text(margin).append_text(line) if line else "", soft_wrap=True)


def _inert_json(document: object, *, indent: bool = True) -> str:
    """Write JSON in which no character can act on a terminal, and every reader sees the same text."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:  # It holds a file name that is not UTF-8.
        text = json.dumps(document, indent=2 if indent else None, ensure_ascii=False)
    return _NOT_PLAIN.sub(lambda found: _inert(found.group()), text)


@cache
def _inert(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"  # No Unicode text holds half a pair, and strict readers refuse it.
    return character if visible(character) == character else json.dumps(character)[1:-1]


class _WordHandler(logging.Handler):
    """Writes log lines to standard error, made harmless like everything else."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            sys.stderr.write(visible(line) + "\n")


def set_up_logging(*, verbose: bool) -> None:
    """Let log lines of this process go to standard error, made harmless."""
    root = logging.getLogger()
    if not any(isinstance(handler, _WordHandler) for handler in root.handlers):
        handler = _WordHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
