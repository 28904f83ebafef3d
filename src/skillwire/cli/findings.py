"""Findings as people read them: grouped by skill, worst first when there are too many."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from skillwire.cli.answer import STYLES, Answer, plural
from skillwire.core.finding import Finding, Severity

MAX_SHOWN = 50
"""Findings of one skill that are printed; one bad skill must not hide the others."""

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_RANKS = {severity: rank for rank, severity in enumerate(_WORDS)}


@dataclass(frozen=True, slots=True)
class Tally:
    """How many findings there are of each severity."""

    errors: int
    warnings: int
    notes: int

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> "Tally":
        counts = Counter(map(attrgetter("severity"), findings))
        return cls(counts[Severity.ERROR], counts[Severity.WARNING], counts[Severity.INFO])

    def words(self, *, notes: bool = False) -> str:
        """Return `1 error, 2 warnings`; empty when there is nothing to count."""
        counted = [(self.errors, "error"), (self.warnings, "warning")]
        if notes:
            counted.append((self.notes, "note"))
        return ", ".join(plural(count, word) for count, word in counted if count)


def print_findings(answer: Answer, place: str, findings: Sequence[Finding], *, aside: bool = False) -> None:
    """Print what there is to say about one place; nothing when it is not worth saying.

    Notes are printed only for those who ask with `--verbose`. `aside` prints
    to standard error, for findings that are no part of the answer. A terminal
    gets a finding as a paragraph, everyone else as one line.
    """
    say = answer.word if aside else answer.line
    shown = [found for found in findings if answer.verbose or found.severity is not Severity.INFO]
    if not shown:
        return
    say((place, "bold"), f"  {Tally.of(shown).words(notes=True)}", wrap=False)
    kept = shown
    if len(shown) > MAX_SHOWN:
        kept = sorted(shown, key=lambda found: _RANKS[found.severity])[:MAX_SHOWN]
    on_terminal = (answer.terminal if aside else answer.width) is not None
    for found in kept:
        word = _WORDS[found.severity]
        where = f"{found.file}:{found.line}" if found.line else found.file
        if not on_terminal:  # One line each, for files, editors and grep.
            fix = f"; fix: {found.fix}" if found.fix else ""
            before = f"{where}: " if where else ""
            say(f"{before}{word}: {found.message}{fix} [{found.code}, {found.rule}]", indent=2)
            continue
        say(
            where,
            "  " if where else "",
            (word, STYLES[word]),
            f"  {found.code} ({found.rule})",
            indent=2,
            wrap=False,
        )
        say(found.message, indent=4)
        if found.fix:
            say(("fix:", "bold"), f" {found.fix}", indent=4)
    if len(kept) < len(shown):
        say(f"and {len(shown) - len(kept):,} more; --json shows them all", indent=2)
    say("")
