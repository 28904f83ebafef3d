"""Questions to the user on the terminal: the host's own text in colour, untrusted text behind a bar.

Questions go to the terminal itself, not through standard output or error, and
the answer is read from there. Input that was typed before a question appeared
is discarded, and an unclear, late or interrupted answer means no.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillwire.cli.command import Output, Part
from skillwire.cli.render import comparison_lines, content_lines, content_paragraphs, path_of
from skillwire.core import SkillArgument, SkillError, files_with_digests, visible
from skillwire.host import (
    ANSWER_SECONDS,
    LONGEST_NAME,
    ApprovalError,
    FileTrust,
    KnownSkill,
    Paragraph,
    Preview,
    Question,
    QuestionLine,
    Reply,
    ServerConfig,
    Servers,
    SkillChangedError,
    StdioEndpoint,
    Storage,
    Terminal,
    UntrustedConfigError,
    binding_of,
    choices_of,
    final_question,
    lines_of,
    list_paragraph,
    name_of,
    one_line,
    paragraphs_of,
    untrusted_paragraph,
    wrapped,
)

if TYPE_CHECKING:
    from skillwire.host import Host


NO: Final = "n"
YES: Final = "y"
MOST_TRIES: Final = 3
MOST_SHOWN: Final = 512 * 1024
"""How many characters of one file are shown on a terminal."""

_WORDS = {Reply.DENY: "no", Reply.ONCE: "once", Reply.ALWAYS: "always"}
_VIEW, _DIFFER = {"v": "view a file"}, {"d": "difference"}
# If a terminal counts columns differently, a line is cut at the edge instead of wrapping.
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_STYLE_OWN, _STYLE_WARNING, _STYLE_BAR, _STYLE_DEMAND = "bold", "bold yellow", "cyan", "bold"


class TerminalAsk:
    """An `Ask` on the terminal: shows a question, and files or differences on request before the answer.

    `host` is set once it is open; without it no files can be shown. `options`
    are those with which a suggested command finds the same skills.
    """

    def __init__(self, terminal: Terminal, *, seconds: float = ANSWER_SECONDS) -> None:
        self.host: Host | None = None
        self.options: Sequence[str] = ()
        self._terminal = terminal
        self._seconds = seconds
        # Imported here because most commands that may ask have no terminal.
        from rich.console import Console

        self._console = Console(
            file=io.StringIO(), force_terminal=True, markup=False, highlight=False, emoji=False
        )

    @classmethod
    def find(cls) -> TerminalAsk | None:
        """Return a way to ask, or None without a terminal."""
        terminal = Terminal.find()
        return None if terminal is None else cls(terminal)

    async def __call__(self, question: Question) -> Reply:
        """Ask the host's question and return the reply.

        Raises:
            SkillChangedError: The skill changed while the user was asked about it.
        """
        replies = {_WORDS[reply][0]: reply for reply in choices_of(question)}
        answers = {key: _WORDS[reply] for key, reply in replies.items()}
        chosen = await self.choose(
            question.skill,
            paragraphs_of(question),
            final_question(question),
            answers,
            has_changed=question.change is not None,
        )
        return replies[chosen]

    async def choose(
        self,
        skill: KnownSkill | None,
        paragraphs: Sequence[Paragraph],
        demand: str,
        answers: Mapping[str, str],
        *,
        has_changed: bool = False,
    ) -> str:
        """Show paragraphs, ask for one of `answers` (words by key, including `n`), and return its key.

        Raises:
            SkillChangedError: The skill changed while the user was asked about it.
        """
        deadline = time.monotonic() + self._seconds
        can_look = skill is not None and self.host is not None
        looks = {**(_DIFFER if has_changed else {}), **_VIEW} if can_look else {}
        self._show(["", *lines_of(paragraphs, self._width), ""])
        tries = 0
        while tries < MOST_TRIES:
            typed = await self._ask_line(_prompt(demand, {**answers, **looks}), deadline)
            if typed is None:
                self._show_text("No answer; this counts as no.")
                return NO
            key = _parse_choice(typed, {**answers, **looks})
            if key in answers:
                return key
            if key in looks and skill is not None and self.host is not None:
                await self._show_details(self.host, skill, key, deadline)
            else:
                tries += 1
                self._show_text("That is not one of the answers; nothing was decided.")
        return NO

    async def review(self, host: Host, skill: KnownSkill) -> Paragraph:
        """Show every file of a skill, one after another, and return a summary for the question.

        The user may skip to the next file, or stop, at any time; files that
        were not opened are not fetched.

        Raises:
            SkillError: A file cannot be fetched, or does not match the entry.
        """
        opened, paths = list[str](), list[str]()
        async with aclosing(host.review(skill)) as previews:
            async for preview in previews:
                paths = [*_paths_of(preview.skill).values()]
                opened.append(path_of(preview))
                if not await self._open(preview, len(opened), len(paths)):
                    break
        left = [("", path) for path in paths if path not in opened]
        if left:
            return list_paragraph(f"Files you did not open ({len(left)})", left, is_warning=True)
        words = "all of them, which are kept, so that `skillwire diff` can show what changes in them"
        return Paragraph(f"Files you opened ({len(opened)})", (words,))

    async def _open(self, preview: Preview, number: int, count: int) -> bool:
        """Show one file of several, and return False when the user stops the review."""
        heading = Paragraph(f"File {number} of {count}")
        lines = chain(
            lines_of([heading, *content_paragraphs(preview)], self._width),
            content_lines(preview, self._width, most=MOST_SHOWN),
        )
        typed = await self._page(lines, more="Enter shows more, n opens the next file, q stops: ")
        if typed == "":
            after = "opens the next file" if number < count else "goes on to the question"
            typed = await self._ask_line([f"File {number} of {count}. Enter {after}, q stops: "])
        return typed is not None and not typed.strip().lower().startswith("q")

    async def ask_values(self, reference: str, arguments: Iterable[SkillArgument]) -> dict[str, str] | None:
        """Ask for the value of each argument, and return None when one is not answered or empty."""
        deadline = time.monotonic() + self._seconds
        values: dict[str, str] = {}
        self._show(["", *lines_of([Paragraph(f"{one_line(reference)} needs arguments")], self._width)])
        for argument in arguments:
            words = argument.description or argument.title or "no description"
            name = one_line(argument.name, LONGEST_NAME)
            self._show(
                lines_of([untrusted_paragraph("The server describes the next one as", [words])], self._width)
            )
            typed = await self._ask_line([f"{name} (Enter stops): "], deadline)
            if not typed:
                return None
            values[argument.name] = typed
        return values

    async def _show_details(self, host: Host, skill: KnownSkill, key: str, deadline: float) -> None:
        """Show what the user asked to see before deciding; this loads nothing."""
        try:
            await (self._view if key in _VIEW else self._compare)(host, skill, deadline)
        except ApprovalError:
            raise
        except SkillError as error:
            words = Paragraph("It cannot be shown", (one_line(str(error)),), is_warning=True)
            self._show(lines_of([words], self._width))

    async def _compare(self, host: Host, skill: KnownSkill, deadline: float) -> None:
        comparison = await host.compare(skill.reference)
        _require_same(skill, comparison.skill)
        await self._page(comparison_lines(comparison, self._width, self.options), deadline)

    async def _view(self, host: Host, skill: KnownSkill, deadline: float) -> None:
        paths = _paths_of(skill)
        names = tuple(f"{number:>3}  {one_line(path)}" for number, path in paths.items())
        files = lines_of([Paragraph("Files", names, True)], self._width)
        if names and await self._page(files, deadline) != "":
            return
        question = [f"Which file of {name_of(skill)}?", "Number or path; Enter goes back: "]
        typed = ((await self._ask_line(question, deadline)) or "").strip()
        if not typed:
            return
        preview = await host.preview(skill.reference, paths.get(typed, typed))
        _require_same(skill, preview.skill)
        head = lines_of(content_paragraphs(preview), self._width)
        await self._page(chain(head, content_lines(preview, self._width, most=MOST_SHOWN)), deadline)

    async def _page(
        self,
        lines: Iterable[QuestionLine],
        deadline: float | None = None,
        *,
        more: str = "Enter shows more, q goes back: ",
    ) -> str | None:
        """Show lines, a screenful at a time, and return what the user typed to stop.

        This is empty when all were shown, and None when there was no answer.
        """
        shown: list[QuestionLine | str] = []
        for line in lines:
            if len(shown) >= max(self._terminal.size.lines - 2, 3):
                self._show(shown)
                shown = []
                typed = await self._ask_line([more], deadline)
                if typed is None or typed.strip():
                    return typed
            shown.append(line)
        self._show([*shown, ""])
        return ""

    async def _ask_line(self, prompt: Sequence[str], deadline: float | None = None) -> str | None:
        """Ask for a line, ignoring what was typed before the prompt was complete.

        Without a `deadline` this line may take as long as a whole question.
        """
        left = self._seconds if deadline is None else max(deadline - time.monotonic(), 0)
        parts = [part for line in prompt for part in wrapped(line, self._width)]
        self._show([(part, _STYLE_DEMAND) for part in parts[:-1]])
        self._terminal.flush_input()
        self._terminal.write(self._rendered([[(parts[-1], _STYLE_DEMAND)]]).removesuffix("\n"))
        is_answered = False
        try:
            typed = await self._terminal.read_line(left)
            is_answered = typed is not None
        finally:
            if not is_answered:  # Nobody pressed Enter.
                self._terminal.write("\n")
        return typed

    def _show_text(self, words: str) -> None:
        self._show(lines_of([Paragraph(words)], self._width))

    def _show(self, lines: Iterable[QuestionLine | Part]) -> None:
        """Write lines in one call, so that an interruption cannot leave the terminal in another state."""
        text = self._rendered([_parts(line) if isinstance(line, QuestionLine) else [line] for line in lines])
        if text:
            self._terminal.write(text if self._console.is_dumb_terminal else f"{_NO_WRAP}{text}{_WRAP}")

    def _rendered(self, lines: Iterable[Sequence[Part]]) -> str:
        from rich.text import Text

        with self._console.capture() as captured:
            for line in lines:
                pieces = [(part, "") if isinstance(part, str) else part for part in line]
                text = Text.assemble(*((visible(content), style) for content, style in pieces))
                self._console.print(text, soft_wrap=True)
        return captured.get()

    @property
    def _width(self) -> int:
        # The last column stays empty: some terminals wrap as soon as it is filled.
        return self._terminal.size.columns - 1


def print_lines(output: Output, lines: Iterable[QuestionLine]) -> None:
    """Print lines as part of a command's output, styled like a question."""
    for line in lines:
        output.line(*_parts(line), wrap=False)


def _prompt(demand: str, answers: Mapping[str, str]) -> list[str]:
    offered = ", ".join(f"[{key}]{words.removeprefix(key)}" for key, words in answers.items())
    return [demand, f"{offered}; Enter means no: "]


def _parse_choice(typed: str, answers: Mapping[str, str]) -> str:
    """Return the key of the answer that was typed, by key or first word; empty when it is none."""
    word = typed.strip().lower()
    if not word:
        return NO
    return next((key for key, words in answers.items() if word in (key, words.split()[0])), "")


def _paths_of(skill: KnownSkill) -> dict[str, str]:
    """Return the paths of a skill's files by the number shown beside them."""
    files = files_with_digests(skill.entry)
    uris = () if files is None else files.uris
    return {str(number): skill.entry.uri.relative_path(uri) for number, uri in enumerate(uris, 1)}


def _require_same(asked: KnownSkill, seen: KnownSkill) -> None:
    """Check that the skill shown is the one the question is about.

    Raises:
        SkillChangedError: The server sends another entry by now.
    """
    one, other = asked.entry.manifest, seen.entry.manifest
    is_same = one == other if one is None or other is None else binding_of(one) == binding_of(other)
    if not is_same:
        raise SkillChangedError(
            f"{asked.reference} changed on its server while you were asked about it",
            reference=asked.reference,
        )


def _parts(line: QuestionLine) -> tuple[tuple[str, str], tuple[str, str]]:
    if line.is_untrusted:
        return (line.lead, _STYLE_BAR), (line.text.rstrip(), "")
    return (line.lead, _STYLE_WARNING if line.is_warning else _STYLE_OWN), (line.text.rstrip(), "")


# Trust in a discovered configuration: it is used only after it was shown and the user agreed.


async def require_trusted_config(path: Path, found: Servers, places: Storage | None = None) -> None:
    """Check that the user agrees to use this configuration with exactly these bytes, and ask if needed.

    Raises:
        UntrustedConfigError: The user does not agree, or cannot be asked.
    """
    trust = FileTrust((places or Storage()).state)
    if not found.servers or trust.is_trusted(path, found.digest):
        return
    name = _relative(path)
    asker = TerminalAsk.find()
    if asker is None or await asker.choose(None, _paragraphs(path, found, trust), _QUESTION, _ANSWERS) == NO:
        raise UntrustedConfigError(
            f"the configuration in {name} is not trusted",
            reference=name,
            fix=f"review it, then run `skillwire trust`, or name it with --config {name}",
        )
    trust.trust(path, found.digest)


def _relative(path: Path) -> str:
    return os.path.relpath(path)


def config_paragraph(found: Servers) -> Paragraph:
    """Return what a configuration would start or contact."""
    lines = [_line(server) for server in found.servers if server.is_enabled and server.skills.is_on]
    return untrusted_paragraph("It would start or contact", lines, is_warning=True)


_QUESTION = "Use this configuration, now and until it changes?"
_ANSWERS = {NO: "no", YES: "yes"}


def _paragraphs(path: Path, found: Servers, trust: FileTrust) -> list[Paragraph]:
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
