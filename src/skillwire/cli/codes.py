"""Every code this program refuses with, explained: what it means, which rule is behind it, what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skillwire.core.finding import RULES
from skillwire.host import REFUSALS

_AREAS: Final[Mapping[str, str]] = {
    "what a server says or does": "not-declared server-error server-unavailable not-signed-in too-slow "
    "invalid-answer endless-listing message-too-large flooding foreign-host unsafe-address "
    "source-unreadable not-found invalid-cursor arguments-needed",
    "what a skill is": "skill-error invalid-skill invalid-uri invalid-frontmatter invalid-entry "
    "invalid-archive archives-off archive-budget duplicate-uri over-limit unsafe-paths dynamic-declined "
    "unverified-file nested-skill missing-dependency entry-remark",
    "bytes that break a promise": "verification-failed size-mismatch digest-mismatch unlisted-file "
    "frontmatter-mismatch",
    "names": "unknown-reference ambiguous-reference renamed name-collision confusable-label shadowed "
    "similar-name vanished reference-changed",
    "what the user has decided, or not yet": "turned-off manual-only "
    "hidden-until-approved vetoed provenance-unknown refused untrusted-folder not-approved "
    "approval-required approval-denied skill-changed keeps-changing too-many-prompts not-in-lock "
    "lock-untrusted lock-invalid state-tampered",
    "what a loaded skill may cause": "not-loaded not-text invalid-arguments no-such-page cross-origin "
    "execution writing network scripts-off script-not-found invalid-script-arguments sandbox-unavailable "
    "script-not-run runner-busy script-limit protected-place",
    "this host": "invalid-config untrusted-config unsafe-place",
}
AREAS: Final = {code: area for area, codes in _AREAS.items() for code in codes.split()}
"""Where each refusal of the host comes from."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means. `requirement` is empty where no rule of the extension is behind it."""

    code: str
    sentence: str
    area: str
    requirement: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "sentence": self.sentence,
            "area": self.area,
            "requirement": self.requirement,
            "remedy": self.remedy,
        }


_COMMAND_LINE = "the command line"
OWN: Final = {
    "misuse": Meaning(
        "misuse",
        "The command was called in a way that cannot mean anything.",
        _COMMAND_LINE,
        remedy="see the command's --help",
    ),
    "no-such-folder": Meaning(
        "no-such-folder",
        "A folder that was named does not exist, or is no folder.",
        _COMMAND_LINE,
        remedy="check the path",
    ),
    "no-skill": Meaning(
        "no-skill",
        "There is no skill where one was expected.",
        _COMMAND_LINE,
        "FMT-01",
        "name a folder that holds a SKILL.md, or start one with `skillwire new`",
    ),
    "already-exists": Meaning(
        "already-exists",
        "Something stands where a file or folder would be written.",
        _COMMAND_LINE,
        remedy="choose another name, or move what is there",
    ),
    "cannot-write": Meaning(
        "cannot-write",
        "A file or folder cannot be written.",
        _COMMAND_LINE,
        remedy="check the permissions of the folder, and whether the disk is full",
    ),
}
"""What only a command line refuses."""


def meaning_of(code: str) -> Meaning | None:
    """Return what a code means: of a refusal, of this command line, or of a finding; None when it is none."""
    if code in REFUSALS:
        kind = REFUSALS[code]
        return Meaning(code, kind.sentence, AREAS.get(code, "this host"), kind.requirement, kind.remedy)
    if code in RULES:
        rule = RULES[code]
        remedy = "run `skillwire validate` on the skill's folder, and change what it names"
        area = f"a finding about a skill ({rule.severity.value})"
        return Meaning(code, rule.summary, area, rule.requirement, remedy)
    return OWN.get(code)
