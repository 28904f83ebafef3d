"""Asking the user on the terminal: the host's words in colour, a stranger's behind a bar.

Questions go to the terminal itself, not through standard output or error, and
the answer is read from there. What was typed before a question stood on the
screen is thrown away, and whatever is unclear, late or interrupted means no.
"""

import io
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from rich.console import Console
from rich.text import Text

from skillwire.cli.answer import Answer
from skillwire.cli.contents import content_lines, content_paragraphs
from skillwire.cli.differences import comparison_lines
from skillwire.core.characters import visible
from skillwire.errors import SkillError
from skillwire.host import ApprovalError, Host, KnownSkill, Question, Reply
from skillwire.host.approval.approvals import binding_of
from skillwire.host.asking import (
    ANSWER_SECONDS,
    Line,
    Paragraph,
    choices_of,
    demand_of,
    lines_of,
    name_of,
    one_line,
    paragraphs_of,
)
from skillwire.host.columns import broken
from skillwire.host.failures import SkillChangedError
from skillwire.host.promises import promised_files
from skillwire.host.terminal import Terminal

NO: Final = "n"
YES: Final = "y"
MOST_TRIES: Final = 3

_WORDS = {Reply.DENY: "no", Reply.ONCE: "once", Reply.ALWAYS: "always"}
_VIEW, _DIFFER = {"v": "view a file"}, {"d": "difference"}
# Where a terminal counts columns in another way, a line ends at the edge instead of going on below it.
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_STYLE_OWN, _STYLE_WARNING, _STYLE_BAR, _STYLE_DEMAND = "bold", "bold yellow", "cyan", "bold"


class TerminalAsk:
    """An `Ask` for the commands: shows a question, and what the user wants to see before answering.

    `host` is set once it is open; without it there are no files to look at.
    """

    def __init__(self, terminal: Terminal, *, seconds: float = ANSWER_SECONDS) -> None:
        self.host: Host | None = None
        self._terminal = terminal
        self._seconds = seconds
        self._paint = Console(
            file=io.StringIO(), force_terminal=True, markup=False, highlight=False, emoji=False
        )

    @classmethod
    def find(cls) -> "TerminalAsk | None":
        """Return a way to ask; None where nobody sits at a terminal, and nobody must be asked."""
        terminal = Terminal.find()
        return None if terminal is None else cls(terminal)

    async def __call__(self, question: Question) -> Reply:
        """Ask what the host wants to know.

        Raises:
            SkillChangedError: The skill changed while the user looked at it.
        """
        replies = {_WORDS[reply][0]: reply for reply in choices_of(question)}
        answers = {key: _WORDS[reply] for key, reply in replies.items()}
        chosen = await self.choose(
            question.skill,
            paragraphs_of(question),
            demand_of(question),
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
        """Show paragraphs and ask for one of `answers`, which are words by their keys; `n` must be one.

        Raises:
            SkillChangedError: The skill changed while the user looked at it.
        """
        deadline = time.monotonic() + self._seconds
        can_look = skill is not None and self.host is not None
        looks = {**(_DIFFER if has_changed else {}), **_VIEW} if can_look else {}
        self._show(["", *lines_of(paragraphs, self._width), ""])
        tries = 0
        while tries < MOST_TRIES:
            typed = await self._ask_line(_prompt(demand, {**answers, **looks}), deadline)
            if typed is None:
                self._say("No answer; that means no.")
                return NO
            key = _meant(typed, {**answers, **looks})
            if key in answers:
                return key
            if key in looks and skill is not None and self.host is not None:
                await self._look(self.host, skill, key, deadline)
            else:
                tries += 1
                self._say("That is none of the answers; nothing was decided.")
        return NO

    async def _look(self, host: Host, skill: KnownSkill, key: str, deadline: float) -> None:
        """Show what the user wants to see before deciding; nothing is loaded by it."""
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
        await self._page(comparison_lines(comparison, self._width), deadline)

    async def _view(self, host: Host, skill: KnownSkill, deadline: float) -> None:
        paths = _paths_of(skill)
        names = tuple(f"{number:>3}  {one_line(path)}" for number, path in paths.items())
        if names and not await self._page(lines_of([Paragraph("Files", names, True)], self._width), deadline):
            return
        question = [f"Which file of {name_of(skill)}?", "Number or path; Enter goes back: "]
        typed = ((await self._ask_line(question, deadline)) or "").strip()
        if not typed:
            return
        preview = await host.preview(skill.reference, paths.get(typed, typed))
        _require_same(skill, preview.skill)
        lines = chain(lines_of(content_paragraphs(preview), self._width), content_lines(preview, self._width))
        await self._page(lines, deadline)

    async def _page(self, lines: Iterable[Line], deadline: float) -> bool:
        """Show lines, a screenful at a time; False when the user has seen enough."""
        shown: list[Line | str] = []
        for line in lines:
            if len(shown) >= max(self._terminal.size.lines - 2, 3):
                self._show(shown)
                shown = []
                typed = await self._ask_line(["Enter shows more, q goes back: "], deadline)
                if typed is None or typed.strip():
                    return False
            shown.append(line)
        self._show([*shown, ""])
        return True

    async def _ask_line(self, prompt: Sequence[str], deadline: float) -> str | None:
        """Ask for a line; what was typed before the last line of the prompt is there does not count."""
        parts = [part for line in prompt for part in broken(line, self._width)]
        self._show([Text(part, _STYLE_DEMAND) for part in parts[:-1]])
        self._terminal.forget_typed()
        self._terminal.write(self._painted([Text(parts[-1], _STYLE_DEMAND)]).removesuffix("\n"))
        is_answered = False
        try:
            typed = await self._terminal.read_line(max(deadline - time.monotonic(), 0))
            is_answered = typed is not None
        finally:
            if not is_answered:  # Nobody pressed Enter.
                self._terminal.write("\n")
        return typed

    def _say(self, words: str) -> None:
        self._show(lines_of([Paragraph(words)], self._width))

    def _show(self, lines: Iterable[Line | Text | str]) -> None:
        """Write lines in one go, so that nothing can leave the terminal in another state."""
        text = self._painted([_styled(line) if isinstance(line, Line) else line for line in lines])
        if text:
            self._terminal.write(text if self._paint.is_dumb_terminal else f"{_NO_WRAP}{text}{_WRAP}")

    def _painted(self, lines: Iterable[Text | str]) -> str:
        with self._paint.capture() as captured:
            for line in lines:
                self._paint.print(line, soft_wrap=True)
        return captured.get()

    @property
    def _width(self) -> int:
        # The last column stays empty: some terminals go to the next line as soon as it is filled.
        return self._terminal.size.columns - 1


def print_lines(answer: Answer, lines: Iterable[Line]) -> None:
    """Print lines as part of a command's answer, in the same looks as a question."""
    for line in lines:
        answer.line(*_parts(line), wrap=False)


def _prompt(demand: str, answers: Mapping[str, str]) -> list[str]:
    offered = ", ".join(f"[{key}]{words.removeprefix(key)}" for key, words in answers.items())
    return [demand, f"{offered}; Enter means no: "]


def _meant(typed: str, answers: Mapping[str, str]) -> str:
    """Return the key of the answer that was typed, as its key or its first word; empty when it is none."""
    word = typed.strip().lower()
    if not word:
        return NO
    return next((key for key, words in answers.items() if word in (key, words.split()[0])), "")


def _paths_of(skill: KnownSkill) -> dict[str, str]:
    """Return the paths of a skill's files by the number they are shown with."""
    files = promised_files(skill.entry)
    uris = () if files is None else files.uris
    return {str(number): skill.entry.uri.relative_path(uri) for number, uri in enumerate(uris, 1)}


def _require_same(asked: KnownSkill, seen: KnownSkill) -> None:
    """Check that what is looked at is what is asked about.

    Raises:
        SkillChangedError: The server shows another entry by now.
    """
    one, other = asked.entry.manifest, seen.entry.manifest
    is_same = one == other if one is None or other is None else binding_of(one) == binding_of(other)
    if not is_same:
        raise SkillChangedError(
            f"{asked.reference} changed on its server while you were asked about it",
            reference=asked.reference,
        )


def _styled(line: Line) -> Text:
    return Text.assemble(*((visible(text), style) for text, style in _parts(line)))


def _parts(line: Line) -> tuple[tuple[str, str], tuple[str, str]]:
    if line.is_foreign:
        return (line.lead, _STYLE_BAR), (line.text.rstrip(), "")
    return (line.lead, _STYLE_WARNING if line.is_warning else _STYLE_OWN), (line.text.rstrip(), "")
