"""A comparison in lines: the host's words at the edge, a stranger's behind a gutter.

Each line of a file stands behind a gutter that has its number, `+`, `-` or a
blank, and a bar. Where a terminal is too narrow, the rest of the line has the
gutter again, without the number. Headings stand at the edge and hold nothing
of a stranger's but paths, each written as one word. So no text in a file, a
field or a name can pass for a heading, for another file or for the other side.
"""

import json
import re
from collections.abc import Iterator, Sequence

from skillwire.cli.answer import Answer, plural
from skillwire.core.characters import visible
from skillwire.core.manifest import Coverage, ManifestFile
from skillwire.host.asking import Line, is_older, one_line
from skillwire.host.columns import broken
from skillwire.host.comparison import Basis, Comparison, FieldChange, FileChange, FileState, Lack
from skillwire.host.promises import coverage_words
from skillwire.host.registry.confusables import skeleton
from skillwire.host.textdiff import DiffLine, Hunk

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


def print_comparison(answer: Answer, comparison: Comparison) -> None:
    """Print a comparison as a command's answer, with what matters most first."""
    for line in comparison_lines(comparison, answer.width):
        answer.line(*_styled(line), wrap=False)


def comparison_lines(comparison: Comparison, width: int | None = None) -> Iterator[Line]:
    """Lay a comparison out; every line is harmless, and none is wider than `width`."""
    yield from _own(
        f"{one_line(comparison.skill.reference)} {headline_of(comparison)}", width, is_warning=True
    )
    if comparison.basis is Basis.LOCAL:
        return
    skill = comparison.skill
    yield from _own(f"From: {skill.id.origin}, a name you gave it", width)
    if is_older(skill):
        yield from _own(f"Dialect: {skill.dialect}", width)
    for heading, words in _coverage(comparison):
        yield from _own(f"{heading}: {words}", width)
    if comparison.basis in _BASES:
        when = comparison.previous.granted_at
        date = f" on {when.date().isoformat()}" if when is not None else ""
        yield from _own(f"Compared with: {_BASES[comparison.basis].format(date)}", width)
    for problem in comparison.problems:
        words = f"! It could not be loaded: {problem.sentence} [{problem.code}]"
        yield from _own(words, width, is_warning=True)
    yield from _frontmatter_lines(comparison, width)
    for file in comparison.files:
        yield Line("")
        yield from _file_lines(file, width)


def _coverage(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Say what digests cover, where that is not each file by itself, now or when it was approved."""
    uri = comparison.skill.id.uri
    now, before = comparison.skill.entry.manifest, comparison.previous.manifest
    if before is not None and comparison.is_covered_otherwise:
        yield "Approved", coverage_words(before, uri)
    if now is not None and (now.coverage is not Coverage.FILES or comparison.is_covered_otherwise):
        yield "Now", coverage_words(now, uri)


def headline_of(comparison: Comparison) -> str:
    """Say in one clause how a skill stands to what was approved."""
    if comparison.basis is Basis.LOCAL:
        return "is a local skill: it is yours, so nothing was approved that it could differ from"
    if comparison.basis is Basis.NOTHING:
        return f"was never approved: {_contents(comparison)}"
    if comparison.is_same and not comparison.is_approved:
        return "is NOT approved now; it has the files that were approved once"
    if comparison.is_same:
        return "is the same as approved"
    if comparison.is_dynamic:
        return "changed: it has no digests any more, so nothing can be compared"
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
    """Say how many files were added, removed or modified; scripts are named whatever else is not."""
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


def _frontmatter_lines(comparison: Comparison, width: int | None) -> Iterator[Line]:
    fields = comparison.frontmatter
    if fields is None and comparison.basis in _BASES and not comparison.is_same:
        yield Line("")
        yield from _own("Frontmatter: the approved SKILL.md is not cached, so it cannot be compared", width)
    elif fields:
        yield Line("")
        yield from _own(f"Frontmatter: {plural(len(fields), 'field')} changed", width)
        for changed in fields:
            yield from _field_lines(changed, width)


def _field_lines(changed: FieldChange, width: int | None) -> Iterator[Line]:
    if changed.had:
        yield from _gutter("-", "", f"{changed.name}: {_value(changed.old)}", width)
    if changed.has:
        yield from _gutter("+", "", f"{changed.name}: {_value(changed.new)}", width)


def _value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    rest = len(text) - _LONGEST_VALUE
    return text if rest <= 0 else f"{text[:_LONGEST_VALUE]}… ({rest:,} characters more)"


def _file_lines(file: FileChange, width: int | None) -> Iterator[Line]:
    what = f"{file.state.value}{', a script' if file.is_script else ''}"
    sides = [side for side in (file.old, file.new) if side is not None]
    sizes = " to ".join("?" if side.known_size is None else f"{side.size:,}" for side in sides)
    counts = f", +{file.lines.added:,}/-{file.lines.removed:,}" if file.lines is not None else ""
    yield from _own(f"{what}: {file.shown} ({sizes} bytes{counts})", width, is_warning=True)
    if file.lines is not None:
        for hunk in file.lines.hunks:
            yield from _hunk_lines(hunk, width)
        if file.lines.left_out:
            words = (
                f"{plural(file.lines.left_out, 'line')} of the difference left out; `skillwire show` has all"
            )
            yield from _own(f"  … {words}", width, is_warning=True)
        return
    digests = " to ".join(_digest(side) for side in (file.old, file.new) if side is not None)
    yield from _own(f"  {digests}", width)
    reason = file.lack.words if file.lack is not None else ""
    if file.lack is Lack.MOVED and file.moved_from:
        reason = f"the same bytes were approved as {_moved(file)}"
    if file.refusal is not None:
        reason = f"{reason}: {file.refusal.sentence} [{file.refusal.code}]"
    yield from _own(f"  {reason}", width)


def _moved(file: FileChange) -> str:
    is_word = re.fullmatch(r"\S{1,60}", file.moved_from) and visible(file.moved_from) == file.moved_from
    return file.moved_from if is_word else "another file"


def _digest(file: ManifestFile) -> str:
    kind, _, digits = file.digest.partition(":")
    return f"{kind}:{digits[:_SHOWN_DIGITS]}…"


def _hunk_lines(hunk: Hunk, width: int | None) -> Iterator[Line]:
    old, new = f"{hunk.old_start},{hunk.old_count}", f"{hunk.new_start},{hunk.new_count}"
    yield from _own(f"@@ -{old} +{new} @@", width)
    is_spelled = _has_twins(hunk)
    for line in hunk.lines:
        text = _spelled(line.text) if is_spelled else line.text.removesuffix("\r").expandtabs(_TAB)
        yield from _gutter(line.sign, str(line.number), text, width)
        if not line.is_ended:
            yield from _own("        (the file ends here without a line end)", width)


def _has_twins(hunk: Hunk) -> bool:
    """Tell whether a removed and an added line look the same, so that what differs has to be spelled out."""
    before = {_look(line) for line in hunk.lines if line.sign == "-"}
    return any(_look(line) in before for line in hunk.lines if line.sign == "+")


def _look(line: DiffLine) -> tuple[str, str]:
    return skeleton(line.text), _NO_WORD.sub("", line.text)


def _spelled(text: str) -> str:
    return _NOT_PLAIN.sub(lambda found: "".join(f"<U+{ord(each):04X}>" for each in found.group()), text)


def _gutter(sign: str, number: str, text: str, width: int | None) -> Iterator[Line]:
    """Lay out a stranger's line; what does not fit has the gutter before it again."""
    room = None if width is None else max(width - len(_lead(sign, "")), _NARROWEST)
    for position, part in enumerate(broken(visible(text), room)):
        yield Line(_lead(sign, number if position == 0 else ""), part, is_foreign=True)


def _lead(sign: str, number: str) -> str:
    return f"{number:>6} {sign}| "


def _own(text: str, width: int | None, *, is_warning: bool = False) -> Iterator[Line]:
    for position, part in enumerate(broken(visible(text), width, indent=4)):
        yield Line("    " if position else "", part, is_warning=is_warning)


def _styled(line: Line) -> tuple[tuple[str, str], ...]:
    if line.is_foreign:
        style = _SIGNS.get(line.lead[-3], "")
        return (line.lead, style or "dim"), (line.text, style)
    is_hunk = line.text.startswith("@@ ")
    return ((f"{line.lead}{line.text}", "cyan" if is_hunk else "bold" if line.is_warning else ""),)
