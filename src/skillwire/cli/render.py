"""Print a comparison: the host's own text at the margin, untrusted text behind a gutter.

Each line of a file follows a gutter with its number, `+`, `-` or a blank, and
a bar. Where a terminal is too narrow, the rest of the line has the gutter
again, without the number. Headings start at the margin, and the only untrusted
text in them are paths, each written as one word. So no text in a file, a field
or a name can pass for a heading, for another file or for the other side.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from skillwire.cli.command import Output, plural
from skillwire.core import Coverage, ManifestFile, coverage_words, digest_of, has_digest, is_script, visible
from skillwire.host.model import (
    Basis,
    Comparison,
    DiffLine,
    FieldChange,
    FileChange,
    FileState,
    Hunk,
    OmissionReason,
    Preview,
    skeleton,
)
from skillwire.host.use.question import (
    Paragraph,
    QuestionLine,
    one_line,
    skill_paragraphs,
    untrusted_lines,
    untrusted_paragraph,
    uses_older_dialect,
    wrapped,
)

_TAB = 4
_MOST_NAMED = 3
_NARROWEST = 8
_LONGEST_VALUE = 2_000
_SHOWN_DIGITS = 12
_BASES = {
    Basis.APPROVED: "what you approved{}",
    Basis.ENDED: "what you approved{}, before it changed",
    Basis.LOCKED: "what the lock pins, approved{}",
}
_SIGNS = {"+": "green", "-": "red"}
_NO_WORD = re.compile(r"[\w\s]|[^\x00-\x7f]")
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]|\x20+$")


def print_comparison(output: Output, comparison: Comparison, options: Sequence[str] = ()) -> None:
    """Print a comparison, with what matters most first; a suggested command has the `options`."""
    for line in comparison_lines(comparison, output.width, options):
        output.line(*_styled(line), wrap=False)


def comparison_lines(
    comparison: Comparison, width: int | None = None, options: Sequence[str] = ()
) -> Iterator[QuestionLine]:
    """Yield the lines of a comparison, escaped and no wider than `width`.

    `options` are those with which a suggested command finds the same skill.
    """
    yield from _plain_lines(
        f"{one_line(comparison.skill.reference)} {headline_of(comparison)}", width, is_warning=True
    )
    if comparison.basis is Basis.LOCAL:
        return
    skill = comparison.skill
    yield from _plain_lines(f"From: {one_line(skill.id.origin.introduction)}", width)
    if uses_older_dialect(skill):
        yield from _plain_lines(f"Dialect: {skill.dialect}", width)
    for heading, words in _coverage(comparison):
        yield from _plain_lines(f"{heading}: {words}", width)
    if comparison.basis in _BASES:
        when = comparison.previous.granted_at
        date = f" on {when.date().isoformat()}" if when is not None else ""
        yield from _plain_lines(f"Compared with: {_BASES[comparison.basis].format(date)}", width)
    for problem in comparison.problems:
        words = f"! It could not be loaded: {problem.sentence} [{problem.code}]"
        yield from _plain_lines(words, width, is_warning=True)
    yield from _frontmatter_lines(comparison, width)
    for file in comparison.files:
        yield QuestionLine("")
        yield from file_lines(file, width)
    yield from _unread_lines(comparison, width, options)


def _unread_lines(
    comparison: Comparison, width: int | None, options: Sequence[str]
) -> Iterator[QuestionLine]:
    """Yield how to keep files that were never read here, so that the next change can be shown in lines."""
    if not comparison.unread:
        return
    count = len(comparison.unread)
    were, them = ("file was", "it") if count == 1 else ("files were", "them")
    command = shlex.join(("skillwire", "approve", one_line(comparison.skill.reference), "--review", *options))
    yield QuestionLine("")
    yield from _plain_lines(
        f"{count:,} {were} never read here under that approval, or cleared from the cache.", width
    )
    yield from _plain_lines(f"To read and keep {them} next time: {command}", width)


def _coverage(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield what the digests cover, now and when it was approved, unless that is each single file."""
    uri = comparison.skill.id.uri
    now, before = comparison.skill.entry.manifest, comparison.previous.manifest
    if before is not None and comparison.is_coverage_changed:
        yield "Approved", coverage_words(before, uri)
    if now is not None and (now.coverage is not Coverage.FILES or comparison.is_coverage_changed):
        yield "Now", coverage_words(now, uri)


def headline_of(comparison: Comparison) -> str:
    """Return in one clause how a skill differs from what was approved."""
    if comparison.basis is Basis.LOCAL:
        return "is a local skill: it needs no approval, so there is nothing to compare it with"
    if comparison.basis is Basis.NOTHING:
        return f"was never approved: {_contents(comparison)}"
    if comparison.is_same and not comparison.is_approved:
        return "is NOT approved now; its files are those that were approved before"
    if comparison.is_same:
        return "is the same as approved"
    if comparison.is_dynamic:
        return "changed: it no longer has digests, so nothing can be compared"
    parts = [*filter(None, (_counted(comparison, state) for state in FileState))]
    fields = comparison.frontmatter or ()
    parts += [f"{plural(len(fields), 'field')} of its frontmatter"] if fields and not parts else []
    return f"changed: {', '.join(parts) or 'what its digests cover'}"


def _contents(comparison: Comparison) -> str:
    manifest = comparison.skill.entry.manifest
    if manifest is None:
        return "it has no digests, so every load is asked about"
    if manifest.coverage is not Coverage.FILES:
        return coverage_words(manifest, comparison.skill.id.uri)
    scripts = sum(1 for file in comparison.files if file.is_script)
    called = f", {plural(scripts, 'script')}" if scripts else ""
    return f"{coverage_words(manifest)}{called}"


def _counted(comparison: Comparison, state: FileState) -> str:
    """Return how many files were added, removed or modified; scripts are always named."""
    files = comparison.of_state(state)
    if not files:
        return ""
    if state is FileState.MODIFIED:
        added = sum(file.lines.added for file in files if file.lines is not None)
        removed = sum(file.lines.removed for file in files if file.lines is not None)
        is_whole = all(file.lines is not None for file in files)
        lines = f" (+{added:,}/-{removed:,}{'' if is_whole else ' or more'})" if added or removed else ""
        scripts = [file.shown for file in files if file.is_script]
        called = f", {_named(scripts)} {'a script' if len(scripts) == 1 else 'scripts'}" if scripts else ""
        return f"{plural(len(files), 'file')} modified{lines}{called}"
    names = [f"{file.shown}{', a script' if file.is_script else ''}" for file in files]
    return f"{len(files):,} {state.value} ({_named(names)})"


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return "; ".join(names[:_MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _frontmatter_lines(comparison: Comparison, width: int | None) -> Iterator[QuestionLine]:
    fields = comparison.frontmatter
    if fields is None and comparison.basis in _BASES and not comparison.is_same:
        yield QuestionLine("")
        yield from _plain_lines(
            "Frontmatter: the approved SKILL.md was never read here, so it cannot be compared", width
        )
    elif fields:
        yield QuestionLine("")
        yield from _plain_lines(f"Frontmatter: {plural(len(fields), 'field')} changed", width)
        for changed in fields:
            yield from _field_lines(changed, width)


def _field_lines(changed: FieldChange, width: int | None) -> Iterator[QuestionLine]:
    if changed.had:
        yield from _gutter("-", "", f"{changed.name}: {_value(changed.old)}", width)
    if changed.has:
        yield from _gutter("+", "", f"{changed.name}: {_value(changed.new)}", width)


def _value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    rest = len(text) - _LONGEST_VALUE
    return text if rest <= 0 else f"{text[:_LONGEST_VALUE]}… ({rest:,} characters more)"


def print_file(output: Output, file: FileChange) -> None:
    """Print how one file differs."""
    for line in file_lines(file, output.width):
        output.line(*_styled(line), wrap=False)


def file_lines(file: FileChange, width: int | None) -> Iterator[QuestionLine]:
    """Yield the lines of one file that differs, escaped and no wider than `width`."""
    what = f"{file.state.value}{', a script' if file.is_script else ''}"
    sides = [side for side in (file.old, file.new) if side is not None]
    sizes = " to ".join("?" if side.known_size is None else f"{side.size:,}" for side in sides)
    counts = f", +{file.lines.added:,}/-{file.lines.removed:,}" if file.lines is not None else ""
    yield from _plain_lines(f"{what}: {file.shown} ({sizes} bytes{counts})", width, is_warning=True)
    if file.lines is not None:
        for hunk in file.lines.hunks:
            yield from _hunk_lines(hunk, width)
        if file.lines.left_out:
            words = (
                f"{plural(file.lines.left_out, 'line')} of the difference left out; `skillwire show` has all"
            )
            yield from _plain_lines(f"  … {words}", width, is_warning=True)
        return
    digests = " to ".join(_digest(side) for side in (file.old, file.new) if side is not None)
    yield from _plain_lines(f"  {digests}", width)
    reason = file.omission.words if file.omission is not None else ""
    if file.omission is OmissionReason.MOVED and file.moved_from:
        reason = f"the same bytes were approved as {_moved(file)}"
    if file.refusal is not None:
        reason = f"{reason}: {file.refusal.sentence} [{file.refusal.code}]"
    yield from _plain_lines(f"  {reason}", width)


def _moved(file: FileChange) -> str:
    is_word = re.fullmatch(r"\S{1,60}", file.moved_from) and visible(file.moved_from) == file.moved_from
    return file.moved_from if is_word else "another file"


def _digest(file: ManifestFile) -> str:
    kind, _, digits = file.digest.partition(":")
    return f"{kind}:{digits[:_SHOWN_DIGITS]}…"


def _hunk_lines(hunk: Hunk, width: int | None) -> Iterator[QuestionLine]:
    old, new = f"{hunk.old_start},{hunk.old_count}", f"{hunk.new_start},{hunk.new_count}"
    yield from _plain_lines(f"@@ -{old} +{new} @@", width)
    is_spelled = _has_lookalikes(hunk)
    for line in hunk.lines:
        text = _escaped(line.text) if is_spelled else line.text.removesuffix("\r").expandtabs(_TAB)
        yield from _gutter(line.sign, str(line.number), text, width)
        if not line.is_ended:
            yield from _plain_lines("        (no line end at the end of the file)", width)


def _has_lookalikes(hunk: Hunk) -> bool:
    """Return whether a removed and an added line look the same, so that the difference must be escaped."""
    before = {_appearance(line) for line in hunk.lines if line.sign == "-"}
    return any(_appearance(line) in before for line in hunk.lines if line.sign == "+")


def _appearance(line: DiffLine) -> tuple[str, str]:
    return skeleton(line.text), _NO_WORD.sub("", line.text)


def _escaped(text: str) -> str:
    return _NOT_PLAIN.sub(lambda found: "".join(f"<U+{ord(each):04X}>" for each in found.group()), text)


def _gutter(sign: str, number: str, text: str, width: int | None) -> Iterator[QuestionLine]:
    """Yield an untrusted line behind a gutter, repeated on each continuation line."""
    room = None if width is None else max(width - len(_lead(sign, "")), _NARROWEST)
    for position, part in enumerate(wrapped(visible(text), room)):
        yield QuestionLine(_lead(sign, number if position == 0 else ""), part, is_untrusted=True)


def _lead(sign: str, number: str) -> str:
    return f"{number:>6} {sign}| "


def _plain_lines(text: str, width: int | None, *, is_warning: bool = False) -> Iterator[QuestionLine]:
    for position, part in enumerate(wrapped(visible(text), width, indent=4)):
        yield QuestionLine("    " if position else "", part, is_warning=is_warning)


def _styled(line: QuestionLine) -> tuple[tuple[str, str], ...]:
    if line.is_untrusted:
        style = _SIGNS.get(line.lead[-3], "")
        return (line.lead, style or "dim"), (line.text, style)
    is_hunk = line.text.startswith("@@ ")
    return ((f"{line.lead}{line.text}", "cyan" if is_hunk else "bold" if line.is_warning else ""),)


# Show a file of a skill: its origin, its hidden characters, and its lines.


MOST_HIDDEN = 1000
_HIDDEN_NAMED = 5


def path_of(preview: Preview) -> str:
    return preview.skill.entry.uri.relative_path(preview.uri)


def is_text(preview: Preview) -> bool:
    """Return whether a file is text; a file with a NUL byte is not."""
    return preview.text is not None and b"\0" not in preview.content


def content_paragraphs(preview: Preview) -> list[Paragraph]:
    """Return what is known about a file, to be shown before its content."""
    skill, path = preview.skill, path_of(preview)
    found = [
        *skill_paragraphs(skill)[:2],
        untrusted_paragraph("A script of it" if is_script(path) else "A file of it", [path]),
        Paragraph("Size", (f"{len(preview.content):,} bytes",)),
        Paragraph("Digest", (digest_of(preview.content),)),
    ]
    if skill.is_remote and not has_digest(skill.entry, preview.uri):
        words = "no digest covers this file: the server may send another one next time"
        found.append(Paragraph("Unverified", (words,), is_warning=True))
    if not is_text(preview):
        found.append(Paragraph("Not shown", ("it is binary",), is_warning=True))
    elif preview.hidden:
        found.append(_hidden(preview))
    return found


def content_lines(
    preview: Preview, width: int | None = None, *, most: int | None = None
) -> Iterator[QuestionLine]:
    """Yield a file's lines behind a bar, with hidden characters spelled out; none when it is binary.

    With `most`, only so many characters are shown, followed by the number left out.
    """
    text = (preview.text or "") if is_text(preview) else ""
    shown = text[:most]
    for line in shown.removesuffix("\n").split("\n") if shown else ():
        yield from untrusted_lines(visible(line.rstrip("\r").expandtabs(_TAB)), width)
    if rest := len(text) - len(shown):
        yield QuestionLine(
            "", f"… {rest:,} more characters; `skillwire show REF FILE` has all", is_warning=True
        )


def _hidden(preview: Preview) -> Paragraph:
    counts = Counter(character.label for character in preview.hidden)
    count = len(preview.hidden)
    many = f"{count:,} or more" if count >= MOST_HIDDEN else f"{count:,}"
    lines = [f"{number:,} × {label}" for label, number in counts.most_common(_HIDDEN_NAMED)]
    rest = len(counts) - len(lines)
    return Paragraph(
        f"Characters people cannot see ({many}; spelled out as <U+…> below)",
        tuple(lines),
        is_warning=True,
        note=f"and {rest:,} other kinds" if rest else "",
    )
