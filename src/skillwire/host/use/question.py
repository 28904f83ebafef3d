"""The text of a question to the user: the host's own text first, untrusted text below it and marked.

Every item is escaped to a single line, and each line of untrusted text begins
with a bar, also where it is wrapped for a narrow terminal. So no untrusted
text can be mistaken for a line written by the host.
"""

import os
import select
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TextIO

import anyio.to_thread

from skillwire.core import (
    MAX_DESCRIPTION,
    Coverage,
    Dependency,
    Dialect,
    Manifest,
    Scope,
    archive_line,
    coverage_words,
    digest_of,
    is_script,
    needs_in,
    path_in,
    size_words,
    total_words,
    visible,
)
from skillwire.host.model import (
    Change,
    KnownSkill,
    Occasion,
    ProvenanceResult,
    Question,
    Reply,
    RunTerms,
    argument_rows,
    format_argument_lines,
)

# Line wrapping at the width of a terminal, so that the terminal itself never wraps a line.


MIN_WIDTH: Final = 2
"""The minimum width in columns: the width of one wide character."""

_WIDE = frozenset("FW")
_UNSURE = frozenset({"So", "Sk", "Co", "Cn"})


@lru_cache(maxsize=4096)
def columns_of(character: str) -> int:
    """Return the maximum number of columns a visible character takes.

    Terminals disagree about the width of symbols, so ambiguous ones count as
    wide. A line that is too short is harmless; one that is too long would be
    wrapped by the terminal and continue at the left margin.
    """
    if character < "\x7f":
        return 1
    if unicodedata.east_asian_width(character) in _WIDE or unicodedata.category(character) in _UNSURE:
        return 2
    is_letter = unicodedata.category(character)[0] in "LMN"
    return 2 if unicodedata.east_asian_width(character) == "A" and not is_letter else 1


def wrapped(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """Wrap a line into parts of at most `width` columns.

    It is wrapped after a space if one is near the end, else at any character.
    The parts after the first are narrower by `indent` columns. Without a
    width the line is not wrapped.
    """
    if width is None:
        return [text]
    parts: list[str] = []
    start, room = 0, max(width, MIN_WIDTH)
    while start < len(text):
        end = _end(text, start, room)
        if end < len(text):
            space = text.rfind(" ", start, end)
            # Ignore indentation, and spaces that would leave more than half of the line empty.
            if space > start + (end - start) // 2:
                end = space + 1
        parts.append(text[start:end])
        start, room = end, max(width - indent, MIN_WIDTH)
    return parts or [""]


def _end(text: str, start: int, room: int) -> int:
    """Return where the part that starts at `start` exceeds `room` columns, after one character at least."""
    used = 0
    for position in range(start, len(text)):
        used += columns_of(text[position])
        if used > room:
            return max(position, start + 1)
    return len(text)


# The user's terminal: questions are written to it, and answers are read from it.


try:
    import termios
except ImportError:  # Not available on Windows, so the user is not asked there.
    termios = None

DEFAULT_SIZE: Final = os.terminal_size((80, 24))
LONGEST_ANSWER: Final = 4096

_CONTROLLING = "/dev/tty"
_POLL_SECONDS = 0.2
_LINE_ENDS = (b"\n", b"\r")


class Terminal:
    """An interactive terminal, by its descriptors for reading and writing.

    `find` returns the controlling terminal. Standard input and output are not
    used, so neither a pipe nor a file can answer for the user or hide a
    question.
    """

    def __init__(
        self, reading: int, writing: int, *, encoding: str = "utf-8", is_owner: bool = False
    ) -> None:
        self._reading = reading
        self._writing = writing
        self._is_owner = is_owner
        # A terminal that does not use UTF-8 could take parts of a character for control codes.
        self._encoding = "utf-8" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else "ascii"

    @classmethod
    def find(cls) -> "Terminal | None":
        """Return the controlling terminal; None if the process is not interactive.

        If standard input is redirected, the process is not interactive.
        """
        if termios is None or not _is_terminal(sys.stdin):
            return None
        encoding = sys.stdin.encoding or "ascii"
        try:
            both = os.open(_CONTROLLING, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            if not _is_terminal(sys.stderr):
                return None
            return cls(sys.stdin.fileno(), sys.stderr.fileno(), encoding=encoding)
        return cls(both, both, encoding=encoding, is_owner=True)

    def close(self) -> None:
        """Close the descriptor that `find` opened."""
        if self._is_owner:
            self._is_owner = False
            os.close(self._writing)

    @property
    def size(self) -> os.terminal_size:
        """The current number of columns and lines."""
        try:
            found = os.get_terminal_size(self._writing)
        except OSError:
            return DEFAULT_SIZE
        return os.terminal_size((found.columns or DEFAULT_SIZE.columns, found.lines or DEFAULT_SIZE.lines))

    def write(self, text: str) -> None:
        """Write a text that the caller has escaped. Errors of a closed terminal are ignored."""
        data = text.encode(self._encoding, "backslashreplace")
        with suppress(OSError):
            while data:
                data = data[os.write(self._writing, data) :]

    def flush_input(self) -> None:
        """Discard the input typed so far, so that it is not taken for an answer to the next question."""
        if termios is not None:
            with suppress(OSError, termios.error):
                termios.tcdrain(self._writing)
                termios.tcflush(self._reading, termios.TCIFLUSH)

    async def read_line(self, seconds: float) -> str | None:
        """Wait for a line of input; None if the input ends or the time runs out first."""
        stop = threading.Event()
        deadline = time.monotonic() + seconds
        # An abandoned thread runs on for a moment, so it needs its own descriptor.
        own = os.dup(self._reading)
        try:
            return await anyio.to_thread.run_sync(_read_line, own, deadline, stop, abandon_on_cancel=True)
        finally:
            stop.set()


def _read_line(descriptor: int, deadline: float, stop: threading.Event) -> str | None:
    typed = b""
    try:
        while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], min(left, _POLL_SECONDS))[0]:
                continue
            data = os.read(descriptor, LONGEST_ANSWER)
            typed += data
            if not data or len(typed) > LONGEST_ANSWER:
                return None
            if typed.endswith(_LINE_ENDS):
                return typed.decode("utf-8", "replace").rstrip("\r\n")
    except (OSError, ValueError):
        return None  # The terminal was closed.
    finally:
        os.close(descriptor)
    return None


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; it may be closed, or None."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


BAR: Final = "| "
MARGIN: Final = "  "
ANSWER_SECONDS: Final = 600.0
MOST_FILES: Final = 30
MOST_SCRIPT_LINES: Final = 400
MOST_ARGUMENTS: Final = 10_000
LONGEST_CALL: Final = 5_000
LONGEST_LINE: Final = 500
LONGEST_NAME: Final = 60

_HEADLINES = {
    Occasion.FIRST: "A skill would be loaded for the first time.",
    Occasion.CHANGED: "A skill you approved has CHANGED.",
    Occasion.DYNAMIC: "A skill without digests would be loaded.",
    Occasion.SCRIPTS: "A script of a skill would be run on this machine.",
    Occasion.ALLOWED_TOOLS: "A skill asks for tools it may use without further questions.",
    Occasion.UNVERIFIED: "Files of a skill would be read that have no digest.",
    Occasion.CROSS_ORIGIN: "A skill of one server would cause a read on another.",
    Occasion.CALL: "A tool would be called while the model acts on a server's skill.",
}
_VERBS = {
    Occasion.SCRIPTS: "Run scripts of",
    Occasion.ALLOWED_TOOLS: "Let it use these tools:",
    Occasion.UNVERIFIED: "Read files without digests of",
    Occasion.CROSS_ORIGIN: "Allow this one read for",
    Occasion.CALL: "Allow this one call for",
}
_ON_SERVER = "A server would run a script of its own, which nobody here has seen."
_LOADS = frozenset({Occasion.FIRST, Occasion.CHANGED, Occasion.DYNAMIC})


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines under a heading written by the host. `is_foreign` marks untrusted text.

    `note` is added by the host below the lines, such as how many were left out.
    """

    heading: str
    lines: tuple[str, ...] = ()
    is_untrusted: bool = False
    is_warning: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """One line as it is shown: the host's prefix, and its text."""

    lead: str
    text: str = ""
    is_untrusted: bool = False
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.lead}{self.text}".rstrip()


def paragraphs_of(question: Question) -> tuple[Paragraph, ...]:
    """Return everything a user needs to decide, origin first; every line is escaped."""
    skill = question.skill
    on_server = question.terms is not None and question.terms.where == "server"
    headline = _ON_SERVER if on_server else _HEADLINES[question.occasion]
    found = [Paragraph(headline, is_warning=question.occasion is Occasion.CHANGED)]
    if skill is not None:
        found += skill_paragraphs(skill)
    if question.change is not None and skill is not None:
        found += _coverage_change(skill, question.previous)
        was = skill.entry.coverage if question.previous is None else question.previous.coverage
        found.append(_change(skill, question.change, was))
    if question.arguments:
        lines = format_argument_lines(dict(question.arguments))
        sent = tuple(part for line in lines for part in wrapped(line, LONGEST_LINE))
        found.append(Paragraph("Arguments to send to its server", sent, is_untrusted=True, is_warning=True))
    if skill is not None and question.occasion in _LOADS:
        found += _contents(skill)
    if question.provenance is not None:
        found += provenance_paragraphs(question.provenance)
    if question.occasion is Occasion.UNVERIFIED:
        words = "the server can send anything in their place; your answer applies while the skill is loaded"
        found.append(Paragraph("No digests", (words,), is_warning=True))
    if question.servers:
        found.append(Paragraph("Servers", tuple(one_line(label) for label in question.servers)))
    if question.uri:
        found.append(untrusted_paragraph("It would read" if not question.script else "File", [question.uri]))
    if question.call:
        found.append(untrusted_paragraph("The call", [question.call], longest=LONGEST_CALL))
    if question.tools:
        found.append(untrusted_paragraph("Tools it asks for", [", ".join(question.tools)], is_warning=True))
    if question.terms is not None:
        found += terms_paragraphs(question.terms)
    if question.script:
        found += _script(question)
    return tuple(found)


def final_question(question: Question) -> str:
    """Return the final one-line question, which names the origin."""
    skill = question.skill
    verb = _VERBS.get(question.occasion, "Load")
    if question.terms is not None and not question.may_be_remembered:
        verb = "Run this script once for"
    return f"{verb} {name_of(skill)}?" if skill is not None else f"{verb} it?"


def name_of(skill: KnownSkill) -> str:
    """Return a skill's reference, shortened, with its origin."""
    reference = visible(skill.reference)
    if len(reference) > LONGEST_NAME:
        half = LONGEST_NAME // 2
        reference = f"{reference[:half]}…{reference[-half:]}"
    return f"{reference} from {one_line(str(skill.id.origin))}"


def text_of_question(question: Question, width: int | None = None) -> str:
    """Return a question as plain text, ready to be shown to a person; wrapped at `width` columns if given."""
    return "\n".join(map(str, lines_of(paragraphs_of(question), width)))


def lines_of(paragraphs: Iterable[Paragraph], width: int | None = None) -> Iterator[QuestionLine]:
    """Yield the lines of paragraphs, each at most `width` terminal columns wide.

    Each part of a wrapped line of untrusted text begins with the bar.
    """
    for paragraph in paragraphs:
        sign = "! " if paragraph.is_warning else ""
        heading = f"{sign}{paragraph.heading}{':' if paragraph.lines else ''}"
        if len(paragraph.lines) == 1 and not paragraph.is_untrusted:
            yield from _host_lines(
                f"{heading} {paragraph.lines[0]}", len(heading), width, paragraph.is_warning
            )
        else:
            yield from _host_lines(heading, len(heading), width, paragraph.is_warning)
            for line in paragraph.lines:
                yield from (
                    untrusted_lines(line, width)
                    if paragraph.is_untrusted
                    else _host_lines(MARGIN + line, 0, width)
                )
        if paragraph.note:
            yield from _host_lines(MARGIN + paragraph.note, 0, width)


def untrusted_lines(text: str, width: int | None = None) -> Iterator[QuestionLine]:
    """Yield one line of untrusted text, already escaped, wrapped and with a bar before each part."""
    lead = MARGIN + BAR
    for part in wrapped(text, None if width is None else width - len(lead)):
        yield QuestionLine(lead, part, is_untrusted=True)


def choices_of(question: Question) -> tuple[Reply, ...]:
    """Return the possible answers to this question, the safe one first."""
    if question.may_be_remembered:
        return (Reply.DENY, Reply.ONCE, Reply.ALWAYS)
    return (Reply.DENY, Reply.ONCE)


async def ask_in_terminal(question: Question) -> Reply:
    """Ask the user on the controlling terminal; any unrecognized answer means no.

    Input typed before the question was shown is discarded. If standard input
    is not a terminal, nobody is asked and the answer is no.
    """
    terminal = Terminal.find()
    if terminal is None:
        return Reply.DENY
    choices = {reply.value[0]: reply for reply in choices_of(question)[1:]}
    offered = " ".join(f"[{key}]{reply.value[1:]}" for key, reply in choices.items())
    width = terminal.size.columns - 1
    try:
        demand = "\n".join(wrapped(final_question(question), width))
        terminal.write(f"\n{text_of_question(question, width)}\n\n{demand}\n")
        terminal.flush_input()
        terminal.write(f"[n]o {offered}; Enter means no: ")
        typed = await terminal.read_line(ANSWER_SECONDS)
        word = (typed or "").strip().lower()
        return next((reply for key, reply in choices.items() if word in (key, reply.value)), Reply.DENY)
    finally:
        terminal.close()


def skill_paragraphs(skill: KnownSkill) -> list[Paragraph]:
    """Return a skill's origin, reference, URI and description as paragraphs."""
    found = [
        Paragraph("From", (one_line(skill.id.origin.introduction),)),
        Paragraph("Skill", (one_line(skill.reference),)),
        untrusted_paragraph("Its address there", [skill.id.uri]),
        untrusted_paragraph("Description by its author", [skill.description], longest=MAX_DESCRIPTION),
    ]
    if uses_older_dialect(skill):
        found.insert(2, Paragraph("Dialect", (skill.dialect.value,)))
    if skill.offline_since is not None:
        words = f"server unreachable; this is the cached copy you approved on {skill.offline_since}"
        found.insert(2, Paragraph("Offline", (words,), is_warning=True))
    return found


def uses_older_dialect(skill: KnownSkill) -> bool:
    """Return whether a skill was listed in an older dialect than the released extension."""
    return skill.dialect not in (Dialect.CORE, Dialect.LOCAL)


def requested_tools(skill: KnownSkill) -> str:
    """Return the `allowed-tools` of a skill's frontmatter, including patterns, as one line."""
    value = skill.entry.frontmatter.fields.get("allowed-tools")
    if isinstance(value, list):
        return one_line(", ".join(map(str, value)))
    return "" if value is None else one_line(str(value))


def untrusted_paragraph(
    heading: str, lines: Sequence[str], *, is_warning: bool = False, longest: int = LONGEST_LINE
) -> Paragraph:
    """Return a paragraph of untrusted text, each item on one line."""
    return Paragraph(
        heading, tuple(one_line(line, longest) for line in lines), is_untrusted=True, is_warning=is_warning
    )


def list_paragraph(heading: str, rows: Sequence[tuple[str, str]], *, is_warning: bool = False) -> Paragraph:
    """Return a paragraph of untrusted names, such as paths, each after a prefix written by the host.

    The host's text comes first, so that no name can imitate it.
    """
    shown = tuple(f"{words}{_name(name)}" for words, name in rows[:MOST_FILES])
    rest = len(rows) - len(shown)
    note = f"… and {rest:,} more" if rest else "" if shown else "none"
    return Paragraph(heading, shown, is_untrusted=True, is_warning=is_warning, note=note)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Escape a text to one line of bounded length without hidden characters."""
    line = " ".join(visible(text[: 4 * longest]).split())
    is_cut = len(text) > 4 * longest or len(line) > longest
    return f"{line[:longest]}…" if is_cut else line


def _name(text: str) -> str:
    """Escape a name as `one_line` does, but keep all its spaces."""
    name = visible(text[: LONGEST_LINE + 1])
    return name if len(name) <= LONGEST_LINE else f"{name[:LONGEST_LINE]}…"


def _host_lines(
    text: str, heading: int, width: int | None, is_warning: bool = False
) -> Iterator[QuestionLine]:
    """Yield text of the host; wrapped parts are indented."""
    first, *rest = wrapped(text, width, indent=len(MARGIN))
    yield QuestionLine(first[:heading], first[heading:], is_warning=is_warning)
    for part in rest:
        yield QuestionLine("", MARGIN + part)


def _contents(skill: KnownSkill) -> list[Paragraph]:
    found: list[Paragraph] = []
    manifest = skill.entry.manifest
    if manifest is None:
        words = "the content cannot be verified, so you are asked again at every load"
        found.append(Paragraph("No digests", (words,), is_warning=True))
    elif manifest.coverage is Coverage.FILES:
        found += _files(skill, manifest)
    else:
        found += coverage_paragraphs(skill, manifest)
    if skill.entry.is_summary:
        words = "its listing has only some fields; tools it requests are shown when it is loaded"
        found.append(Paragraph("Not listed", (words,)))
    if tools := requested_tools(skill):
        heading = "It asks for these tools (loading does not grant them)"
        found.append(untrusted_paragraph(heading, [tools], is_warning=True))
    return [*found, *argument_paragraphs(skill), *needs_paragraphs(skill)]


def needs_paragraphs(skill: KnownSkill) -> list[Paragraph]:
    """Return the dependencies and scopes a skill declares; none is installed or granted (ASK-14)."""
    needs = needs_in(skill.entry.frontmatter)
    found: list[Paragraph] = []
    if needs.dependencies:
        words = [
            _need(f"{it.name} ({it.version})" if it.version else it.name, it) for it in needs.dependencies
        ]
        found.append(untrusted_paragraph("It says it needs (nothing is installed)", words))
    if needs.scopes:
        words = [_need(scope.name, scope) for scope in needs.scopes]
        found.append(untrusted_paragraph("Scopes it says it needs (none is granted)", words, is_warning=True))
    if needs.findings:
        words = f"{len(needs.findings)} of its declarations are invalid and are ignored"
        found.append(Paragraph("What it needs", (words,), is_warning=True))
    return found


def _need(name: str, need: Dependency | Scope) -> str:
    return f"{name}: {need.description}" if need.description else name


def argument_paragraphs(skill: KnownSkill) -> list[Paragraph]:
    """Return the arguments a skill declares, with its author's descriptions."""
    rows = argument_rows(skill)
    return [untrusted_paragraph("Arguments it takes", rows)] if rows else []


def provenance_paragraphs(result: ProvenanceResult) -> list[Paragraph]:
    """Return the result of a provenance check, as untrusted text, or why there is none."""
    if result.problem:
        return [Paragraph("Provenance", (f"no verdict: {result.problem}",), is_warning=True)]
    if not result.words:
        return [Paragraph("Provenance", ("nothing is known about this content",))]
    return [untrusted_paragraph("The provenance check says", [result.words], is_warning=result.is_veto)]


def terms_paragraphs(terms: RunTerms) -> list[Paragraph]:
    """Return the terms a script would run under: where, with which arguments, limits and grants."""
    text = visible(terms.arguments[:MOST_ARGUMENTS])
    rest = len(terms.arguments) - MOST_ARGUMENTS
    note = f"… and {rest:,} more characters" if rest > 0 else ""
    given = Paragraph("Its arguments", tuple(wrapped(text, LONGEST_LINE)), is_untrusted=True, note=note)
    if terms.where == "server":
        where = (
            "on the server, which receives the arguments and may run anything; limits set here do not apply"
        )
        found = [Paragraph("Where", (where,), is_warning=True), given]
    else:
        found = [
            Paragraph("Where", ("in a sandbox on this machine, which contains only an interpreter",)),
            given,
            Paragraph("Limits it asks for", (", ".join(terms.asked) or "none of its own",)),
            Paragraph("Limits it gets", (", ".join(terms.limits),)),
            _granted("Network it gets", terms.network),
            _granted("Secrets it gets", terms.secrets),
        ]
    if terms.unmet:
        found.append(untrusted_paragraph("Requested but not granted", [", ".join(terms.unmet)]))
    if terms.other_skills:
        words = tuple(one_line(reference) for reference in terms.other_skills)
        found.append(Paragraph("The model may also be acting on", words, is_warning=True))
    return found


def _granted(heading: str, names: Sequence[str]) -> Paragraph:
    if not names:
        return Paragraph(heading, ("none",))
    return untrusted_paragraph(f"{heading} (asked about at each run)", names, is_warning=True)


def coverage_paragraphs(skill: KnownSkill, manifest: Manifest) -> list[Paragraph]:
    """Return what the digests of a skill cover, if not each single file."""
    words = coverage_words(manifest, skill.id.uri)
    if manifest.coverage is Coverage.ARCHIVE:
        url = archive_line(manifest, skill.id.uri).uri
        return [Paragraph("What you agree to", (words,)), untrusted_paragraph("The archive's address", [url])]
    found = [Paragraph("What you agree to", (words,), is_warning=True)]
    undigested = [("no digest  ", path_in(skill.entry, uri)) for uri in skill.entry.dynamic_files]
    return (
        [*found, list_paragraph(f"Files without digests ({len(undigested)})", undigested, is_warning=True)]
        if undigested
        else found
    )


def _files(skill: KnownSkill, manifest: Manifest) -> list[Paragraph]:
    paths = [
        (skill.entry.uri.relative_path(file.uri), size_words(file.known_size)) for file in manifest.files
    ]
    room = max(len(size) for _, size in paths)
    scripts = [(f"{size:>{room}}  ", path) for path, size in paths if is_script(path)]
    others = [(f"{size:>{room}}  ", path) for path, size in paths if not is_script(path)]
    found: list[Paragraph] = []
    if scripts:
        heading = f"Scripts ({len(scripts)}; loading does not run them)"
        found.append(list_paragraph(heading, scripts, is_warning=True))
    total = f"{len(paths)} in all, {total_words(manifest)}"
    found.append(list_paragraph(f"{'Other files' if scripts else 'Files'} ({total})", others))
    return found


def _coverage_change(skill: KnownSkill, previous: Manifest | None) -> list[Paragraph]:
    """Return what the digests covered when the skill was approved, if that has changed."""
    now = skill.entry.manifest
    if previous is None or now is None or previous.coverage is now.coverage:
        return []
    words = coverage_words(previous, skill.id.uri)
    return [Paragraph("What you agreed to before", (words,), is_warning=True)]


def _change(skill: KnownSkill, change: Change, was: Coverage | None) -> Paragraph:
    def named(word: str, uris: Sequence[str]) -> list[tuple[str, str]]:
        rows: list[tuple[str, str]] = []
        for uri in uris:
            path = path_in(skill.entry, uri)
            what = "the archive " if path == uri else "the script " if is_script(path) else ""
            rows.append((f"{word} {what}", path))
        return rows

    heading = "What changed since you approved it"
    if change.is_empty and skill.entry.coverage is not None and was is not skill.entry.coverage:
        return Paragraph(heading, ("what its digests cover",), is_warning=True)
    if change.is_empty:
        words = "nothing now: it changed in between, or the approval was revoked"
        return Paragraph(heading, (words,), is_warning=True)
    added, removed = named("added", change.added), named("removed", change.removed)
    rows = [*named("changed", change.modified), *added, *removed]
    # Scripts first, so that they are never the rows that are cut off.
    rows.sort(key=lambda row: not row[0].endswith("script "))
    return list_paragraph(heading, rows, is_warning=True)


def _script(question: Question) -> list[Paragraph]:
    text = question.script_content.decode("utf-8", "replace")
    # Long lines are wrapped and not cut: the whole line would run.
    lines = [
        part for line in text.splitlines() for part in wrapped(visible(line.expandtabs(4)), LONGEST_LINE)
    ]
    rest = len(lines) - MOST_SCRIPT_LINES
    shown = tuple(lines[:MOST_SCRIPT_LINES])
    note = f"… and {rest:,} more lines" if rest > 0 else "" if shown else "nothing: the file is empty"
    digest = question.script_digest
    if not digest:
        digest = f"none is listed; the digest of what is shown is {digest_of(question.script_content)}"
    found = [
        Paragraph("Its digest", (digest,)),
        Paragraph("What would run", shown, is_untrusted=True, is_warning=True, note=note),
    ]
    others = _other_scripts(question) if question.may_be_remembered else []
    if others:
        found.append(
            list_paragraph(
                "Your approval covers all scripts of this skill as it is now; the others are", others
            )
        )
    return found


def _other_scripts(question: Question) -> list[tuple[str, str]]:
    entry = None if question.skill is None else question.skill.entry
    if entry is None or entry.files is None:
        return []
    paths = [(file.known_size, entry.uri.relative_path(file.uri)) for file in entry.files.files]
    others = [(size, path) for size, path in paths if is_script(path) and path != question.script]
    return [(f"{size_words(size)}  ", path) for size, path in others]
