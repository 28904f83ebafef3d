"""A question to the user in words: the host's own first, a stranger's below them and marked.

Every line is one line, whatever a server put into it, and each line that
holds a stranger's words begins with a bar, also where a narrow terminal broke
it. So no text can pass for a line of this host, wherever the lines are shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from skillwire.core.characters import visible
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.core.manifest import Coverage, Manifest, digest_of
from skillwire.core.needs import Dependency, Scope, needs_in
from skillwire.host.approval.approvals import Change, Occasion, Question, Reply
from skillwire.host.approval.provenance import Judgement
from skillwire.host.approval.terms import RunTerms
from skillwire.host.columns import broken
from skillwire.host.promises import archive_line, coverage_words, path_in, size_words, total_words
from skillwire.host.registry.known import KnownSkill
from skillwire.host.skillfiles import is_script
from skillwire.host.terminal import Terminal
from skillwire.wire.dialect import Dialect

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
    Occasion.FIRST: "A skill wants to be loaded for the first time.",
    Occasion.CHANGED: "A skill you approved has CHANGED.",
    Occasion.DYNAMIC: "A skill without digests wants to be loaded.",
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
    """A few lines under a heading of the host's. `is_foreign` marks a stranger's words.

    `note` is what the host adds below them, such as how many were left out.
    """

    heading: str
    lines: tuple[str, ...] = ()
    is_foreign: bool = False
    is_warning: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it is shown: what the host puts in front of it, and its text."""

    lead: str
    text: str = ""
    is_foreign: bool = False
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.lead}{self.text}".rstrip()


def paragraphs_of(question: Question) -> tuple[Paragraph, ...]:
    """Say everything a user needs to decide, origin first; every line is harmless."""
    skill = question.skill
    on_server = question.terms is not None and question.terms.where == "server"
    headline = _ON_SERVER if on_server else _HEADLINES[question.occasion]
    found = [Paragraph(headline, is_warning=question.occasion is Occasion.CHANGED)]
    if skill is not None:
        found += about(skill)
    if question.change is not None and skill is not None:
        found += _coverage_change(skill, question.previous)
        was = skill.entry.coverage if question.previous is None else question.previous.coverage
        found.append(_change(skill, question.change, was))
    if skill is not None and question.occasion in _LOADS:
        found += _contents(skill)
    if question.judgement is not None:
        found += judgement_paragraphs(question.judgement)
    if question.occasion is Occasion.UNVERIFIED:
        words = "the server can send anything in their place; your answer holds while the skill is loaded"
        found.append(Paragraph("No digests", (words,), is_warning=True))
    if question.servers:
        found.append(Paragraph("Servers", tuple(one_line(label) for label in question.servers)))
    if question.uri:
        found.append(foreign("It would read" if not question.script else "File", [question.uri]))
    if question.call:
        found.append(foreign("The call", [question.call], longest=LONGEST_CALL))
    if question.tools:
        found.append(foreign("Tools it asks for", [", ".join(question.tools)], is_warning=True))
    if question.terms is not None:
        found += terms_paragraphs(question.terms)
    if question.script:
        found += _script(question)
    return tuple(found)


def demand_of(question: Question) -> str:
    """Return the one line to decide on, with the origin in it: whatever scrolled by, this is read last."""
    skill = question.skill
    verb = _VERBS.get(question.occasion, "Load")
    if question.terms is not None and not question.may_be_remembered:
        verb = "Run this script once for"
    return f"{verb} {name_of(skill)}?" if skill is not None else f"{verb} it?"


def name_of(skill: KnownSkill) -> str:
    """Return a skill's reference with its origin, as few words of the host's own."""
    reference = visible(skill.reference)
    if len(reference) > LONGEST_NAME:
        half = LONGEST_NAME // 2
        reference = f"{reference[:half]}…{reference[-half:]}"
    return f"{reference} from {one_line(str(skill.id.origin))}"


def text_of_question(question: Question, width: int | None = None) -> str:
    """Return a question as plain text, ready to be shown to a person; broken at `width` columns if given."""
    return "\n".join(map(str, lines_of(paragraphs_of(question), width)))


def lines_of(paragraphs: Iterable[Paragraph], width: int | None = None) -> Iterator[Line]:
    """Lay paragraphs out, line by line; none is wider than `width`, as terminals count.

    A stranger's line that has to be broken has its bar before each part.
    """
    for paragraph in paragraphs:
        sign = "! " if paragraph.is_warning else ""
        heading = f"{sign}{paragraph.heading}{':' if paragraph.lines else ''}"
        if len(paragraph.lines) == 1 and not paragraph.is_foreign:
            yield from _own(f"{heading} {paragraph.lines[0]}", len(heading), width, paragraph.is_warning)
        else:
            yield from _own(heading, len(heading), width, paragraph.is_warning)
            for line in paragraph.lines:
                yield from barred(line, width) if paragraph.is_foreign else _own(MARGIN + line, 0, width)
        if paragraph.note:
            yield from _own(MARGIN + paragraph.note, 0, width)


def barred(text: str, width: int | None = None) -> Iterator[Line]:
    """Lay out one line of a stranger's, which is harmless already, with a bar before each part of it."""
    lead = MARGIN + BAR
    for part in broken(text, None if width is None else width - len(lead)):
        yield Line(lead, part, is_foreign=True)


def choices_of(question: Question) -> tuple[Reply, ...]:
    """Return the answers that differ for this question, the safe one first."""
    if question.may_be_remembered:
        return (Reply.DENY, Reply.ONCE, Reply.ALWAYS)
    return (Reply.DENY, Reply.ONCE)


async def ask_in_terminal(question: Question) -> Reply:
    """Ask the user on the terminal this program was started from; anything unclear is a no.

    What was typed before the question was there is not taken for an answer.
    Where standard input is no terminal nobody is asked, and the answer is no.
    """
    terminal = Terminal.find()
    if terminal is None:
        return Reply.DENY
    choices = {reply.value[0]: reply for reply in choices_of(question)[1:]}
    offered = " ".join(f"[{key}]{reply.value[1:]}" for key, reply in choices.items())
    width = terminal.size.columns - 1
    try:
        demand = "\n".join(broken(demand_of(question), width))
        terminal.write(f"\n{text_of_question(question, width)}\n\n{demand}\n")
        terminal.forget_typed()
        terminal.write(f"[n]o {offered}; Enter means no: ")
        typed = await terminal.read_line(ANSWER_SECONDS)
        word = (typed or "").strip().lower()
        return next((reply for key, reply in choices.items() if word in (key, reply.value)), Reply.DENY)
    finally:
        terminal.close()


def about(skill: KnownSkill) -> list[Paragraph]:
    """Say whose skill it is and what it is called, and then what it says of itself."""
    origin = f"{skill.id.origin}, a name you gave it" if skill.is_remote else str(skill.id.origin)
    found = [
        Paragraph("From", (one_line(origin),)),
        Paragraph("Skill", (one_line(skill.reference),)),
        foreign("Its address there", [skill.id.uri]),
        foreign("It says of itself", [skill.description], longest=MAX_DESCRIPTION),
    ]
    if is_older(skill):
        found.insert(2, Paragraph("Dialect", (skill.dialect.value,)))
    if skill.offline_since is not None:
        words = f"the server is away; this is the copy you approved on {skill.offline_since}"
        found.insert(2, Paragraph("Offline", (words,), is_warning=True))
    return found


def is_older(skill: KnownSkill) -> bool:
    """Tell whether a skill was told of in another dialect than the released one, which is worth a word."""
    return skill.dialect not in (Dialect.CORE, Dialect.LOCAL)


def requested_tools(skill: KnownSkill) -> str:
    """Return what a skill's frontmatter asks for in `allowed-tools`, patterns and all, as one line."""
    value = skill.entry.frontmatter.fields.get("allowed-tools")
    if isinstance(value, list):
        return one_line(", ".join(map(str, value)))
    return "" if value is None else one_line(str(value))


def foreign(
    heading: str, lines: Sequence[str], *, is_warning: bool = False, longest: int = LONGEST_LINE
) -> Paragraph:
    """Make a paragraph of a stranger's words, each of these texts on one line."""
    return Paragraph(
        heading, tuple(one_line(line, longest) for line in lines), is_foreign=True, is_warning=is_warning
    )


def listed(heading: str, rows: Sequence[tuple[str, str]], *, is_warning: bool = False) -> Paragraph:
    """Make a paragraph of a stranger's names, such as paths, each after a few words of the host's.

    The host's words stand first: behind a name, the name could pretend to be them.
    """
    shown = tuple(f"{words}{_name(name)}" for words, name in rows[:MOST_FILES])
    rest = len(rows) - len(shown)
    note = f"… and {rest:,} more" if rest else "" if shown else "none"
    return Paragraph(heading, shown, is_foreign=True, is_warning=is_warning, note=note)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Write a text so that it stays one line, of bounded length, and nothing in it is hidden."""
    line = " ".join(visible(text[: 4 * longest]).split())
    is_cut = len(text) > 4 * longest or len(line) > longest
    return f"{line[:longest]}…" if is_cut else line


def _name(text: str) -> str:
    """Write a name as `one_line` does, with every space that tells it from another."""
    name = visible(text[: LONGEST_LINE + 1])
    return name if len(name) <= LONGEST_LINE else f"{name[:LONGEST_LINE]}…"


def _own(text: str, heading: int, width: int | None, is_warning: bool = False) -> Iterator[Line]:
    """Lay out words of the host's; what does not fit goes below, further in, and never to the edge."""
    first, *rest = broken(text, width, indent=len(MARGIN))
    yield Line(first[:heading], first[heading:], is_warning=is_warning)
    for part in rest:
        yield Line("", MARGIN + part)


def _contents(skill: KnownSkill) -> list[Paragraph]:
    found: list[Paragraph] = []
    manifest = skill.entry.manifest
    if manifest is None:
        words = "no listing can vouch for what will come, so this is asked again at every load"
        found.append(Paragraph("No digests", (words,), is_warning=True))
    elif manifest.coverage is Coverage.FILES:
        found += _files(skill, manifest)
    else:
        found += coverage_paragraphs(skill, manifest)
    if skill.entry.is_summary:
        words = "its listing tells only some fields; tools it may ask for show when it is loaded"
        found.append(Paragraph("Not told", (words,)))
    if tools := requested_tools(skill):
        heading = "It asks for these tools (loading does not grant them)"
        found.append(foreign(heading, [tools], is_warning=True))
    return [*found, *needs_paragraphs(skill)]


def needs_paragraphs(skill: KnownSkill) -> list[Paragraph]:
    """Say what a skill declares to need around it; nothing is installed or granted by that (ASK-14)."""
    needs = needs_in(skill.entry.frontmatter)
    found: list[Paragraph] = []
    if needs.dependencies:
        words = [
            _need(f"{it.name} ({it.version})" if it.version else it.name, it) for it in needs.dependencies
        ]
        found.append(foreign("It says it needs (nothing is installed)", words))
    if needs.scopes:
        words = [_need(scope.name, scope) for scope in needs.scopes]
        found.append(foreign("Scopes it says it needs (none is granted)", words, is_warning=True))
    if needs.findings:
        words = f"{len(needs.findings)} of its declarations cannot be read, and count as not there"
        found.append(Paragraph("What it needs", (words,), is_warning=True))
    return found


def _need(name: str, need: Dependency | Scope) -> str:
    return f"{name}: {need.description}" if need.description else name


def judgement_paragraphs(judgement: Judgement) -> list[Paragraph]:
    """Say what a provenance check said, which is a third party's word, or why it said nothing."""
    if judgement.problem:
        return [Paragraph("Provenance", (f"no verdict: {judgement.problem}",), is_warning=True)]
    if not judgement.words:
        return [Paragraph("Provenance", ("nothing is known about this content",))]
    return [foreign("The provenance check says", [judgement.words], is_warning=judgement.is_veto)]


def terms_paragraphs(terms: RunTerms) -> list[Paragraph]:
    """Say on which terms a script would run: where, with which arguments, and what it gets."""
    text = visible(terms.arguments[:MOST_ARGUMENTS])
    rest = len(terms.arguments) - MOST_ARGUMENTS
    note = f"… and {rest:,} more characters" if rest > 0 else ""
    given = Paragraph("Its arguments", tuple(broken(text, LONGEST_LINE)), is_foreign=True, note=note)
    if terms.where == "server":
        where = "on the server, which sees the arguments and may run anything; no limit set here counts there"
        found = [Paragraph("Where", (where,), is_warning=True), given]
    else:
        found = [
            Paragraph("Where", ("in a sandbox on this machine, with nothing of it but an interpreter",)),
            given,
            Paragraph("Limits it asks for", (", ".join(terms.asked) or "none of its own",)),
            Paragraph("Limits it gets", (", ".join(terms.limits),)),
            _granted("Network it gets", terms.network),
            _granted("Secrets it gets", terms.secrets),
        ]
    if terms.unmet:
        found.append(foreign("It asks in vain for", [", ".join(terms.unmet)]))
    if terms.beside:
        words = tuple(one_line(reference) for reference in terms.beside)
        found.append(Paragraph("The model may also be acting on", words, is_warning=True))
    return found


def _granted(heading: str, names: Sequence[str]) -> Paragraph:
    if not names:
        return Paragraph(heading, ("none",))
    return foreign(f"{heading} (asked about at each run)", names, is_warning=True)


def coverage_paragraphs(skill: KnownSkill, manifest: Manifest) -> list[Paragraph]:
    """Say what the digests of a skill cover, where that is not each file by itself."""
    words = coverage_words(manifest, skill.id.uri)
    if manifest.coverage is Coverage.ARCHIVE:
        url = archive_line(manifest, skill.id.uri).uri
        return [Paragraph("What you agree to", (words,)), foreign("The archive's address", [url])]
    found = [Paragraph("What you agree to", (words,), is_warning=True)]
    told = [("no digest  ", path_in(skill.entry, uri)) for uri in skill.entry.dynamic_files]
    return [*found, listed(f"Files it tells of ({len(told)})", told, is_warning=True)] if told else found


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
        found.append(listed(heading, scripts, is_warning=True))
    total = f"{len(paths)} in all, {total_words(manifest)}"
    found.append(listed(f"{'Other files' if scripts else 'Files'} ({total})", others))
    return found


def _coverage_change(skill: KnownSkill, previous: Manifest | None) -> list[Paragraph]:
    """Say what an approval was for, where that was another kind of promise."""
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
        words = "nothing now: it was something else meanwhile, or you took your approval back"
        return Paragraph(heading, (words,), is_warning=True)
    added, removed = named("added", change.added), named("removed", change.removed)
    rows = [*named("changed", change.modified), *added, *removed]
    # Scripts first: they must not be the ones for which there was no room.
    rows.sort(key=lambda row: not row[0].endswith("script "))
    return listed(heading, rows, is_warning=True)


def _script(question: Question) -> list[Paragraph]:
    text = question.script_content.decode("utf-8", "replace")
    # Long lines are broken and not cut: what stands far to the right would run as well.
    lines = [part for line in text.splitlines() for part in broken(visible(line.expandtabs(4)), LONGEST_LINE)]
    rest = len(lines) - MOST_SCRIPT_LINES
    shown = tuple(lines[:MOST_SCRIPT_LINES])
    note = f"… and {rest:,} more lines" if rest > 0 else "" if shown else "nothing: the file is empty"
    digest = question.script_digest
    if not digest:
        digest = f"none is promised; what is shown here has {digest_of(question.script_content)}"
    found = [
        Paragraph("Its digest", (digest,)),
        Paragraph("What would run", shown, is_foreign=True, is_warning=True, note=note),
    ]
    others = _other_scripts(question) if question.may_be_remembered else []
    if others:
        found.append(listed("Your yes is for all scripts of this skill as it is now; the others are", others))
    return found


def _other_scripts(question: Question) -> list[tuple[str, str]]:
    entry = None if question.skill is None else question.skill.entry
    if entry is None or entry.files is None:
        return []
    paths = [(file.known_size, entry.uri.relative_path(file.uri)) for file in entry.files.files]
    others = [(size, path) for size, path in paths if is_script(path) and path != question.script]
    return [(f"{size_words(size)}  ", path) for size, path in others]
