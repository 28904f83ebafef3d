"""Every refusal: a stable code, a sentence, the requirement behind it, and what to do next.

Whatever is hidden, renamed, quarantined or refused is a row of `REFUSALS`.
Exceptions, tool results, logs, JSON and `Host.explain` all take their words
from here, so that a reader who has seen a code once knows it everywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from skillwire.core.finding import Finding
from skillwire.errors import SkillError

RefusalJson: TypeAlias = dict[str, object]

_MOST_FINDINGS = 10


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of refusal. `remedy` speaks to whoever can do something about it."""

    requirement: str
    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal: which kind, about what, and what exactly was wrong.

    `detail` is safe to show to anyone: a stranger's words are in it only
    quoted. `violates` is set where the broken rule is known more exactly than
    the kind says, and `fix` where the remedy is.
    """

    code: str
    subject: str = ""
    detail: str = ""
    violates: str = ""
    fix: str = ""
    candidates: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: SkillError, subject: str = "") -> "Refusal":
        """Say the same as an exception."""
        return cls(
            error.refusal,
            subject or getattr(error, "reference", "") or getattr(error, "uri", ""),
            str(error),
            getattr(error, "violates", "") or error.requirement,
            error.fix,
            getattr(error, "candidates", ()),
        )

    @classmethod
    def of_findings(cls, findings: Iterable[Finding], subject: str) -> "Refusal":
        """Say why an entry is not used: each rule it breaks, and the first one's remedy."""
        some = list(findings)[:_MOST_FINDINGS]
        words = "; ".join(f"{finding.message} [{finding.code}]" for finding in some)
        first = some[0] if some else None
        # Some rules are the host's own, and the entry breaks none of its server's.
        code = first.code if first is not None and first.code in REFUSALS else "invalid-entry"
        return cls(code, subject, words, first.rule if first else "", first.fix if first else "")

    @property
    def kind(self) -> Kind:
        return REFUSALS[self.code]

    @property
    def sentence(self) -> str:
        return self.kind.sentence

    @property
    def requirement(self) -> str:
        return self.violates or self.kind.requirement

    @property
    def remedy(self) -> str:
        return self.fix or self.kind.remedy

    def to_json(self) -> RefusalJson:
        """Return the refusal as data a program, or a model, can act on."""
        found: RefusalJson = {
            "code": self.code,
            "sentence": self.sentence,
            "subject": self.subject,
            "detail": self.detail,
            "requirement": self.requirement,
            "remedy": self.remedy,
        }
        return {**found, "candidates": list(self.candidates)} if self.candidates else found

    def __str__(self) -> str:
        about = f"{self.subject}: " if self.subject else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{about}{self.sentence}{detail} To do: {self.remedy}. [{self.code}, {self.requirement}]"


REFUSALS: dict[str, Kind] = {
    # what a server says or does
    "not-declared": Kind(
        "NEG-05",
        "The server has not declared that it serves skills this way.",
        "use its resources as they are, or ask its operator to enable the Skills extension",
    ),
    "server-error": Kind(
        "SDK-07", "The server answered with an error.", "try again later, or look at the server's log"
    ),
    "server-unavailable": Kind(
        "HOST-01",
        "The server cannot be reached.",
        "check its address or command, then refresh; skills of other servers are not affected",
    ),
    "not-signed-in": Kind(
        "HOST-01",
        "The server wants the user to sign in, or does not let this user in.",
        "sign in, or check the headers in the configuration",
    ),
    "too-slow": Kind(
        "LIST-18",
        "The server did not answer in time.",
        "refresh when it is faster, or give this server a longer deadline",
    ),
    "invalid-answer": Kind(
        "SDK-03",
        "The server's answer breaks the rules of the protocol.",
        "report it to the server's author",
    ),
    "endless-listing": Kind(
        "LIST-18",
        "The server's listing repeats itself or does not end.",
        "use a skill by its URI; report it to the server's author",
    ),
    "message-too-large": Kind(
        "LIM-06",
        "The server sent a message that is too large to be looked at.",
        "report it to the server's author",
    ),
    "flooding": Kind(
        "LIST-18",
        "The server sent more messages than anyone asked for, and was disconnected.",
        "report it to the server's author, or remove the server",
    ),
    "foreign-host": Kind(
        "DISC-11",
        "The web site refers to a host that is not allowed for it.",
        "if you trust that host too, add it to the site's `hosts` in the configuration",
    ),
    "unsafe-address": Kind(
        "DISC-13",
        "The way there is not encrypted, or leads to an address inside a network.",
        "report it to the site's author; a site of your own network has to be named as such",
    ),
    "source-unreadable": Kind(
        "SDK-07", "A place skills come from cannot be read.", "check that it exists and may be read"
    ),
    "not-found": Kind(
        "GET-02", "The server serves no such skill or file.", "check the URI, or refresh the listing"
    ),
    "invalid-cursor": Kind("LIST-13", "The listing cannot be continued there.", "start it again"),
    # what a skill is
    "skill-error": Kind("FMT-01", "Something about the skill is wrong.", "look at the detail"),
    "invalid-skill": Kind("FMT-01", "This is not a skill.", "ask its author to run `skillwire validate`"),
    "invalid-uri": Kind("URI-10", "No skill may have this URI.", "use the form scheme://path/name/SKILL.md"),
    "invalid-frontmatter": Kind(
        "FMT-02", "The skill's frontmatter cannot be read.", "ask its author to run `skillwire validate`"
    ),
    "invalid-entry": Kind(
        "LIST-10",
        "The server describes the skill in a way the extension forbids, so it is not used.",
        "ask the server's author to correct the entry",
    ),
    "invalid-archive": Kind("ARC-06", "The archive must not be unpacked.", "ask its author to pack it again"),
    "archives-off": Kind(
        "ARC-18",
        "The skill comes as an archive, and this host does not unpack it.",
        "allow archives for this host or server, on the command line with --archives",
    ),
    "archive-budget": Kind(
        "ARC-11",
        "The server's archives would unpack to more than all of them together may.",
        "use fewer of its skills in one run, or give its archives a larger budget",
    ),
    "duplicate-uri": Kind(
        "SDK-05", "More than one skill has this URI.", "ask the server's author to keep one of them"
    ),
    "over-limit": Kind(
        "LIM-02",
        "It is larger than this host accepts.",
        "ask its author to keep to 512 files and 16 MiB",
    ),
    "unsafe-paths": Kind(
        "CACHE-08",
        "Two of the skill's files are one and the same on some systems.",
        "ask its author to rename one of them",
    ),
    "dynamic-declined": Kind(
        "APPR-04",
        "The skill's content is made anew at every read, so no approval can be bound to it.",
        "allow dynamic skills for this host, and every load will be asked about",
    ),
    "unverified-file": Kind(
        "IDX-10",
        "Only the skill's SKILL.md has a digest, so nothing vouches for this file.",
        "go on without it, or allow content without digests for this host; you are asked then",
    ),
    "nested-skill": Kind(
        "ASK-02",
        "The skill lies inside another one, and this host uses only those at the top.",
        "load the skill around it, or let this host use nested skills",
    ),
    "missing-dependency": Kind(
        "ASK-15",
        "The skill says that it needs something its server does not offer.",
        "expect it to fail there, and tell the server's author",
    ),
    "entry-remark": Kind(
        "LIST-10",
        "Something about the entry is odd, and the skill is used all the same.",
        "tell the server's author",
    ),
    # bytes that break a promise
    "verification-failed": Kind(
        "INT-02",
        "What the server sent does not match its listing.",
        "refresh the listing; if it stays so, do not use the skill",
    ),
    "size-mismatch": Kind(
        "INT-03",
        "The file is longer or shorter than the server's listing says.",
        "refresh the listing; if it stays so, do not use the skill",
    ),
    "digest-mismatch": Kind(
        "INT-02",
        "The file's bytes do not match the digest in the server's listing.",
        "refresh the listing; if it stays so, do not use the skill",
    ),
    "unlisted-file": Kind(
        "INT-04",
        "The skill does not list this file, so it is no part of it.",
        "read one of the listed files",
    ),
    "frontmatter-mismatch": Kind(
        "INT-05",
        "The file's frontmatter is not the one the server listed.",
        "do not use the skill; report it to the server's author",
    ),
    # names
    "unknown-reference": Kind(
        "NAME-04", "No skill has this reference.", "use a reference exactly as it is listed"
    ),
    "ambiguous-reference": Kind(
        "NAME-08", "More than one skill could be meant.", "use one of the full references"
    ),
    "renamed": Kind(
        "NAME-03",
        "Several skills of this server share a name, so each is known by its path.",
        "use the full reference",
    ),
    "name-collision": Kind(
        "NAME-06",
        "Skills of different origins share a name.",
        "look at the origin before you choose; a bare name always means the local skill",
    ),
    "confusable-label": Kind(
        "NAME-06",
        "Two servers have labels that look alike.",
        "give one of them another name in the configuration",
    ),
    "shadowed": Kind(
        "FS-02",
        "Another local skill of this name comes first.",
        "rename one of the two",
    ),
    "similar-name": Kind(
        "ASK-07",
        "Skills of different origins have names that are easily taken for each other.",
        "look at the origin before you choose",
    ),
    "vanished": Kind(
        "ASK-34",
        "The skill was there before, and its origin does not list it any more.",
        "go on without it, or ask whoever keeps it",
    ),
    "reference-changed": Kind(
        "ASK-34",
        "The skill goes by another reference than before.",
        "use the new reference",
    ),
    # what the user has decided, or not yet
    "turned-off": Kind(
        "HOST-05",
        "The user's settings say that this is not used.",
        "go on without it; only the user can turn it on, in the configuration",
    ),
    "manual-only": Kind(
        "HOST-05",
        "The user's settings leave this skill to people.",
        "go on without it, or tell the user that the skill would help",
    ),
    "hidden-until-approved": Kind(
        "ASK-27",
        "The model does not see the skill before the user has approved it.",
        "approve it, if the model shall know of it",
    ),
    "vetoed": Kind(
        "ASK-05",
        "The provenance check says that this content must not be loaded.",
        "go on without it; look at what the check says",
    ),
    "provenance-unknown": Kind(
        "ASK-05",
        "The provenance check could not say anything about the skill.",
        "decide without it, or find out why the check fails",
    ),
    "refused": Kind("SEC-11", "The host's policy does not allow it.", "ask the user"),
    "untrusted-folder": Kind(
        "FS-04",
        "The skills of this folder are not used before the folder is trusted.",
        "look at the folder, then run `skillwire trust` in it",
    ),
    "not-approved": Kind("SEC-12", "The user has not approved the skill.", "ask the user to approve it"),
    "approval-required": Kind(
        "APPR-10",
        "The user would have to approve this, and cannot be asked here.",
        "approve it beforehand where someone can be asked, or pin it in skills.lock",
    ),
    "approval-denied": Kind(
        "SEC-12", "The user was asked and said no.", "go on without it; do not ask again"
    ),
    "skill-changed": Kind(
        "APPR-02",
        "This skill changed, so the earlier approval no longer holds.",
        "load it again, and let the user look at the difference",
    ),
    "keeps-changing": Kind(
        "APPR-02",
        "The skill changes faster than anyone can approve it, so nobody is asked about it any more.",
        "refresh by hand when the server has settled",
    ),
    "too-many-prompts": Kind(
        "SEC-12",
        "This server has caused too many questions in a short time.",
        "wait, or approve its skills beforehand",
    ),
    "not-in-lock": Kind(
        "APPR-10",
        "The lock is frozen and does not hold exactly this.",
        "review the difference and write the lock again",
    ),
    "lock-untrusted": Kind(
        "APPR-10",
        "The lock changed outside skillwire, and nobody has looked at it since.",
        "look at the difference, then trust the lock",
    ),
    "lock-invalid": Kind("APPR-10", "The lock cannot be read.", "restore it, or write it again"),
    "state-tampered": Kind(
        "APPR-01",
        "The approvals on this machine were changed by something else, so none of them counts.",
        "find out what wrote to them, then approve again",
    ),
    # what a loaded skill may cause
    "not-loaded": Kind("READ-05", "The skill is not loaded.", "load it first"),
    "not-text": Kind(
        "SEC-01", "The file is no text, so it is not shown.", "ask the user to look at it with other means"
    ),
    "invalid-arguments": Kind(
        "HOST-06", "The tool was called with arguments it does not take.", "call it as its schema says"
    ),
    "arguments-needed": Kind(
        "P2076-04",
        "The server gives this skill out only with arguments, and none are made up.",
        "ask the server's author for a skill that needs none",
    ),
    "no-such-page": Kind("HOST-14", "The text has no such page.", "ask for one of its pages"),
    "cross-origin": Kind(
        "SEC-09",
        "A skill of one server would cause a read on another.",
        "ask the user, who is told the names of both servers, for this one read",
    ),
    "execution": Kind(
        "SEC-06",
        "Running code while acting on a server's skill needs the user's approval.",
        "ask the user for this one call",
    ),
    "writing": Kind(
        "SEC-06",
        "Writing files while acting on a server's skill needs the user's approval.",
        "ask the user for this one call",
    ),
    "network": Kind(
        "SEC-15",
        "Reaching the network while acting on a server's skill needs the user's approval.",
        "ask the user for this one call",
    ),
    "scripts-off": Kind(
        "EXEC-13",
        "This host runs no scripts of skills, and asks no server to run one.",
        "go on without it, or let this host run scripts: Host(scripts=Policy()), or `skillwire run`",
    ),
    "script-not-found": Kind(
        "EXEC-15", "The skill has no such script, or several could be meant.", "use one of its scripts' paths"
    ),
    "invalid-script-arguments": Kind(
        "EXEC-15",
        "The script does not take these arguments.",
        "give it the JSON object that its skill describes",
    ),
    "sandbox-unavailable": Kind(
        "EXEC-12",
        "Nothing on this machine can hold a stranger's script, so none is run.",
        "install bubblewrap, or let it make user namespaces; `skillwire doctor` says what is missing",
    ),
    "script-not-run": Kind(
        "EXEC-16",
        "The script could not be run.",
        "look at the detail; go on without it if that does not help",
    ),
    "runner-busy": Kind(
        "EXEC-12",
        "As many scripts as may run at once do so already, and as many wait.",
        "try again when some have ended",
    ),
    "script-limit": Kind(
        "EXEC-12",
        "The script was stopped at a limit.",
        "give it less to do, or let its operator raise the limit",
    ),
    "protected-place": Kind(
        "CACHE-02",
        "No tool may touch the places where approvals, cached skills and locks are kept.",
        "choose another place",
    ),
    # this host
    "invalid-config": Kind("NAME-05", "The configuration cannot be used.", "correct the named part"),
    "untrusted-config": Kind(
        "SEC-16",
        "The configuration in this folder names programs to start, and nobody has agreed to it yet.",
        "look at it, then run `skillwire trust`, or name it with --config",
    ),
    "unsafe-place": Kind(
        "CACHE-04",
        "The cache or the approvals would lie where skills are discovered or tools may write.",
        "choose a folder outside of them",
    ),
}
