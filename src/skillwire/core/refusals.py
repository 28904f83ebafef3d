"""Every refusal code: where it comes from, the requirement behind it, a sentence, and what to do next.

Whatever is hidden, renamed, quarantined or refused has a code in `REFUSALS`.
Exceptions, tool results, logs, JSON, the command line and the documentation all
take their texts from here, so a code means the same everywhere.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """One kind of refusal. `area` is what it is about; `remedy` is addressed to whoever can resolve it."""

    area: str
    requirement: str
    sentence: str
    remedy: str


_BY_AREA: Final[dict[str, dict[str, tuple[str, str, str]]]] = {
    "what a server says or does": {
        "not-declared": (
            "NEG-05",
            "The server has not declared the capability this needs.",
            "use its resources as they are, or ask its operator to enable the Skills extension",
        ),
        "server-error": (
            "SDK-07",
            "The server answered with an error.",
            "try again later, or check the server's log",
        ),
        "server-unavailable": (
            "HOST-01",
            "The server cannot be reached.",
            "check its address or command, then refresh; skills of other servers are not affected",
        ),
        "not-signed-in": (
            "HOST-01",
            "The server requires a sign-in, or does not accept this user.",
            "sign in, or check the headers in the configuration",
        ),
        "too-slow": (
            "LIST-18",
            "The server did not answer in time.",
            "refresh later, or set a longer timeout for this server",
        ),
        "invalid-answer": (
            "SDK-03",
            "The server's response violates the protocol.",
            "report it to the server's author",
        ),
        "endless-listing": (
            "LIST-18",
            "The server's listing repeats itself or does not end.",
            "use a skill by its URI; report it to the server's author",
        ),
        "message-too-large": (
            "LIM-06",
            "The server sent a message that exceeds the size limit.",
            "report it to the server's author",
        ),
        "flooding": (
            "LIST-18",
            "The server sent too many unsolicited messages and was disconnected.",
            "report it to the server's author, or remove the server",
        ),
        "foreign-host": (
            "DISC-11",
            "The web site refers to a host that is not allowed for it.",
            "if you trust that host too, add it to the site's `hosts` in the configuration",
        ),
        "unsafe-address": (
            "DISC-13",
            "The URL is not encrypted, or resolves to a private network address.",
            "report it to the site's author; a site in your own network has to be configured as such",
        ),
        "source-unreadable": (
            "SDK-07",
            "A source of skills cannot be read.",
            "check that it exists and that you may read it",
        ),
        "not-found": (
            "GET-02",
            "The server has no such skill or file.",
            "check the URI, or refresh the listing",
        ),
        "invalid-cursor": ("LIST-13", "The listing cursor is not valid.", "start the listing again"),
        "arguments-needed": (
            "P2076-04",
            "The skill requires arguments, and required ones are missing.",
            "load it with these arguments; ask the user for values you do not know",
        ),
    },
    "what a skill is": {
        "skill-error": ("FMT-01", "The skill has an error.", "read the detail"),
        "invalid-skill": ("FMT-01", "This is not a skill.", "ask its author to run `skillwire validate`"),
        "invalid-uri": (
            "URI-10",
            "This is not a valid skill URI.",
            "use the form scheme://path/name/SKILL.md",
        ),
        "invalid-frontmatter": (
            "FMT-02",
            "The skill's frontmatter cannot be read.",
            "ask its author to run `skillwire validate`",
        ),
        "invalid-entry": (
            "LIST-10",
            "The skill's entry violates the extension, so the skill is not used.",
            "ask the server's author to correct the entry",
        ),
        "invalid-archive": (
            "ARC-06",
            "The archive is invalid or unsafe to unpack.",
            "ask its author to create it again",
        ),
        "archives-off": (
            "ARC-18",
            "The skill is served as an archive, which this host does not unpack.",
            "allow archives for this host or server, on the command line with --archives",
        ),
        "archive-budget": (
            "ARC-11",
            "The server's archives together exceed the unpack budget.",
            "use fewer of its skills in one run, or raise the archive budget",
        ),
        "duplicate-uri": (
            "SDK-05",
            "More than one skill has this URI.",
            "ask the server's author to remove the duplicates",
        ),
        "over-limit": (
            "LIM-02",
            "It is larger than this host accepts.",
            "ask its author to keep to 512 files and 16 MiB",
        ),
        "unsafe-paths": (
            "CACHE-08",
            "Two of the skill's paths are the same file on some systems.",
            "ask its author to rename one of them",
        ),
        "dynamic-declined": (
            "APPR-04",
            "The skill's content is generated at every read, so no approval can be bound to it.",
            "allow dynamic skills for this host; the user is then asked at every load",
        ),
        "unverified-file": (
            "IDX-10",
            "Only the skill's SKILL.md has a digest, so this file cannot be verified.",
            "go on without it, or allow content without digests for this host; the user is then asked",
        ),
        "nested-skill": (
            "ASK-02",
            "The skill is nested in another skill, and this host uses only top-level skills.",
            "load the enclosing skill, or allow nested skills for this host",
        ),
        "missing-dependency": (
            "ASK-15",
            "The skill depends on a tool or prompt that its server does not offer.",
            "expect it to fail there, and report it to the server's author",
        ),
        "entry-remark": (
            "LIST-10",
            "The entry has a minor problem; the skill is used nevertheless.",
            "report it to the server's author",
        ),
    },
    "bytes that do not match the listing": {
        "verification-failed": (
            "INT-02",
            "What the server sent does not match its listing.",
            "refresh the listing; if the error persists, do not use the skill",
        ),
        "size-mismatch": (
            "INT-03",
            "The file's size does not match the server's listing.",
            "refresh the listing; if the error persists, do not use the skill",
        ),
        "digest-mismatch": (
            "INT-02",
            "The file's bytes do not match the digest in the server's listing.",
            "refresh the listing; if the error persists, do not use the skill",
        ),
        "unlisted-file": (
            "INT-04",
            "The skill does not list this file, so it is not part of the skill.",
            "read one of the listed files",
        ),
        "frontmatter-mismatch": (
            "INT-05",
            "The file's frontmatter does not match the server's listing.",
            "do not use the skill; report it to the server's author",
        ),
    },
    "names": {
        "unknown-reference": (
            "NAME-04",
            "No skill has this reference.",
            "use a reference exactly as it is listed",
        ),
        "ambiguous-reference": (
            "NAME-08",
            "More than one skill matches this reference.",
            "use one of the full references",
        ),
        "renamed": (
            "NAME-03",
            "Several skills of this server share a name, so each is referenced by its path.",
            "use the full reference",
        ),
        "name-collision": (
            "NAME-06",
            "Skills of different origins share a name.",
            "check the origin before you choose; a bare name always means the local skill",
        ),
        "confusable-label": (
            "NAME-06",
            "Two servers have labels that look alike.",
            "give one of them another name in the configuration",
        ),
        "shadowed": ("FS-02", "Another local skill of this name takes precedence.", "rename one of the two"),
        "similar-name": (
            "ASK-07",
            "Skills of different origins have names that are easily confused.",
            "check the origin before you choose",
        ),
        "vanished": (
            "ASK-34",
            "The skill was listed before, and its origin does not list it any more.",
            "go on without it, or ask its maintainer",
        ),
        "reference-changed": ("ASK-34", "The skill's reference has changed.", "use the new reference"),
    },
    "what the user has decided, or not yet": {
        "turned-off": (
            "HOST-05",
            "This is turned off in the user's settings.",
            "go on without it; only the user can turn it on, in the configuration",
        ),
        "manual-only": (
            "HOST-05",
            "The user's settings allow only people to load this skill.",
            "go on without it, or tell the user that the skill would help",
        ),
        "hidden-until-approved": (
            "ASK-27",
            "The skill is not shown to the model until the user has approved it.",
            "approve it to show it to the model",
        ),
        "vetoed": (
            "ASK-05",
            "The provenance check vetoes this content.",
            "go on without it; read the check's reason in the detail",
        ),
        "provenance-unknown": (
            "ASK-05",
            "The provenance check returned no verdict on the skill.",
            "decide without it, or find out why the check fails",
        ),
        "refused": ("SEC-11", "The host's policy does not allow it.", "ask the user"),
        "untrusted-folder": (
            "FS-04",
            "The skills of this folder are not used until the folder is trusted.",
            "review the folder, then run `skillwire trust` in it",
        ),
        "synced-folder": (
            "FS-04",
            "This folder is a skill of a server, written by `skillwire sync` for other agents.",
            "use the skill of the server; its approval applies there",
        ),
        "foreign-folder": (
            "FS-02",
            "What is in this place was not written by `skillwire sync`, so it is left as it is.",
            "move it away, or choose another folder",
        ),
        "folder-changed": (
            "FS-02",
            "Another program changed this folder since `skillwire sync` wrote it, so it is left as it is.",
            "keep your changes somewhere else and delete the folder, then sync again",
        ),
        "not-approved": ("SEC-12", "The user has not approved the skill.", "ask the user to approve it"),
        "approval-required": (
            "APPR-10",
            "This needs the user's approval, and the user cannot be asked here.",
            "approve it beforehand in an interactive session, or pin it in skills.lock",
        ),
        "approval-denied": (
            "SEC-12",
            "The user was asked and denied it.",
            "go on without it; do not ask again",
        ),
        "skill-changed": (
            "APPR-02",
            "This skill changed, so the earlier approval no longer holds.",
            "load it again, and let the user review the difference",
        ),
        "keeps-changing": (
            "APPR-02",
            "The skill changes too often to be approved, so the user is not asked about it any more.",
            "refresh manually when the skill has stopped changing",
        ),
        "too-many-prompts": (
            "SEC-12",
            "This server has caused too many approval prompts in a short time.",
            "wait, or approve its skills beforehand",
        ),
        "not-in-lock": (
            "APPR-10",
            "The lock is frozen and does not contain exactly this.",
            "review the difference and write the lock again",
        ),
        "lock-untrusted": (
            "APPR-10",
            "The lock was changed outside skillwire and has not been reviewed since.",
            "review the difference, then trust the lock",
        ),
        "lock-invalid": ("APPR-10", "The lock cannot be read.", "restore it, or write it again"),
        "state-tampered": (
            "APPR-01",
            "The approvals on this machine were modified outside skillwire, so none of them is valid.",
            "find out what modified them, then approve again",
        ),
    },
    "what a loaded skill may do": {
        "not-loaded": ("READ-05", "The skill is not loaded.", "load it first"),
        "not-text": (
            "SEC-01",
            "The file is not text, so it is not shown.",
            "ask the user to open it with another program",
        ),
        "invalid-arguments": (
            "HOST-06",
            "The arguments are not valid for the tool or the skill.",
            "call the tool according to its schema, with the arguments the skill declares",
        ),
        "no-such-page": ("HOST-14", "The text has no such page.", "request one of its pages"),
        "cross-origin": (
            "SEC-09",
            "A skill of one server would cause a read on another.",
            "ask the user to allow this one read, naming both servers",
        ),
        "execution": (
            "SEC-06",
            "Running code while acting on a server's skill needs the user's approval.",
            "ask the user for this one call",
        ),
        "writing": (
            "SEC-06",
            "Writing files while acting on a server's skill needs the user's approval.",
            "ask the user for this one call",
        ),
        "network": (
            "SEC-15",
            "Using the network while acting on a server's skill needs the user's approval.",
            "ask the user for this one call",
        ),
        "scripts-off": (
            "EXEC-13",
            "Scripts of skills are turned off on this host, here and on servers.",
            "go on without it, or let this host run scripts: Host(scripts=Policy()), or `skillwire run`",
        ),
        "script-not-found": (
            "EXEC-15",
            "The skill has no such script, or several match.",
            "use the path of one of its scripts",
        ),
        "invalid-script-arguments": (
            "EXEC-15",
            "The arguments are not valid for the script.",
            "pass the JSON object that its skill describes",
        ),
        "sandbox-unavailable": (
            "EXEC-12",
            "No sandbox is available on this machine, so no script is run.",
            "install bubblewrap, or allow it to create user namespaces; "
            "`skillwire doctor` shows what is missing",
        ),
        "script-not-run": (
            "EXEC-16",
            "The script could not be run.",
            "read the detail; go on without it if that does not help",
        ),
        "runner-busy": (
            "EXEC-12",
            "The limit of running and waiting scripts, or of their memory, is reached.",
            "try again when some have ended",
        ),
        "protected-place": (
            "CACHE-02",
            "No tool may access the folders where approvals, cached skills and locks are stored.",
            "choose another path",
        ),
    },
    "this host": {
        "invalid-config": ("NAME-05", "The configuration is invalid.", "correct the named part"),
        "untrusted-config": (
            "SEC-16",
            "The configuration in this folder starts programs, and is not trusted yet.",
            "review it, then run `skillwire trust`, or pass it with --config",
        ),
        "unsafe-place": (
            "CACHE-04",
            "The cache or the approvals would be stored where skills are discovered or tools may write.",
            "choose a folder outside of these",
        ),
    },
}

REFUSALS: Final[dict[str, RefusalKind]] = {
    code: RefusalKind(area, *texts) for area, kinds in _BY_AREA.items() for code, texts in kinds.items()
}
