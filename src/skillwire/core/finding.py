"""Findings: the results of validation.

Every kind of finding is a row of `RULES`: a stable code, the entry of
`docs/requirements.md` behind it, its severity, and one sentence for the
documentation. The message of a finding is written where it is created, because
it depends on the file.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

# Skill URIs: one canonical spelling, and dangerous ones refused.


SKILL_FILE = "SKILL.md"

Line: TypeAlias = int | None


class Severity(StrEnum):
    """The severity of a finding: an error breaks a rule, a warning a recommendation, info neither."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding."""

    requirement: str
    severity: Severity
    summary: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of validating a skill: rule, severity, place, message and fix.

    `file` is the path inside the skill, and `line` counts from 1.
    """

    code: str
    message: str
    file: str = SKILL_FILE
    line: Line = None
    fix: str = ""

    @property
    def rule(self) -> str:
        """The entry of `docs/requirements.md` behind this finding."""
        return RULES[self.code].requirement

    @property
    def severity(self) -> Severity:
        return RULES[self.code].severity

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    def inside(self, directory: str) -> "Finding":
        """Return the same finding with `directory` put before its file."""
        return replace(self, file=f"{directory}/{self.file}") if directory else self

    def to_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "rule": self.rule,
            "severity": self.severity.value,
            "file": self.file,
            "line": self.line,
            "message": self.message,
            "fix": self.fix,
        }


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: dict[str, Rule] = {
    # the folder
    "skill-file-missing": Rule("FMT-01", _E, "The folder has no `SKILL.md`."),
    "skill-file-case": Rule("FMT-01", _E, "A file is named almost `SKILL.md`; the case must match exactly."),
    "unreadable": Rule("FMT-01", _E, "A file or folder cannot be read."),
    "link": Rule("READ-10", _E, "A symbolic link does not lead to a file inside the same skill."),
    "special-file": Rule("READ-10", _E, "A path is a device, FIFO or socket instead of a file."),
    "unusable-path": Rule("URI-10", _E, "A file's name cannot be part of a URI."),
    "path-twins": Rule(
        "CACHE-08", _E, "Two paths differ only in case or Unicode form, or a file is also a folder."
    ),
    "reserved-path": Rule(
        "CACHE-08", _W, "A file's name is reserved on some systems, so hosts there cannot store it."
    ),
    "too-many-files": Rule("LIM-03", _E, "The skill has more than 512 files."),
    "too-large": Rule("LIM-03", _E, "The skill's files add up to more than 16 MiB."),
    "generated-file": Rule("LIST-06", _W, "A generated file is part of the skill and changes its manifest."),
    "unsettled": Rule(
        "SDK-07", _W, "Files are still being written; the skill is published when they stop changing."
    ),
    "linked-folder": Rule("READ-10", _I, "A linked folder is not followed unless the publisher enables it."),
    # other servers
    "upstream-failed": Rule(
        "SDK-08", _W, "An upstream server cannot be reached, or its listing is incomplete."
    ),
    "upstream-entry": Rule("SDK-08", _E, "A skill of an upstream server cannot be served."),
    # SKILL.md as a file
    "not-utf8": Rule("FMT-02", _E, "`SKILL.md`, or a text that is added to a skill, is not UTF-8."),
    "text-not-utf8": Rule(
        "READ-08", _W, "A text file is not UTF-8, so clients receive it as binary content."
    ),
    "byte-order-mark": Rule("FMT-02", _I, "`SKILL.md` starts with a byte order mark."),
    "opening-blanks": Rule(
        "FMT-02", _I, "There are blanks after the opening `---`, which the official TypeScript SDK refuses."
    ),
    "frontmatter-missing": Rule("FMT-02", _E, "`SKILL.md` does not start with frontmatter."),
    "frontmatter-unclosed": Rule("FMT-02", _E, "No `---` line ends the frontmatter."),
    "frontmatter-too-large": Rule("FMT-10", _E, "The frontmatter is larger than 64 KiB."),
    "frontmatter-not-a-mapping": Rule("FMT-02", _E, "The frontmatter is not a mapping."),
    "yaml-syntax": Rule("FMT-10", _E, "The frontmatter is not valid YAML."),
    "yaml-quote": Rule("FMT-10", _E, "A quoted value of the frontmatter has no closing quote."),
    "yaml-alias": Rule("FMT-10", _E, "The frontmatter uses anchors or aliases."),
    "yaml-tag": Rule("FMT-10", _E, "The frontmatter uses tags."),
    "yaml-directive": Rule("FMT-10", _E, "The frontmatter has a `%` directive."),
    "yaml-duplicate-key": Rule("FMT-10", _E, "A field appears twice."),
    "yaml-non-string-key": Rule("FMT-10", _E, "A key is not a string."),
    "yaml-number": Rule("FMT-10", _E, "A number has no JSON form."),
    "yaml-too-deep": Rule("FMT-10", _E, "The frontmatter nests deeper than 32 levels."),
    "yaml-too-large": Rule("FMT-10", _E, "The frontmatter holds more than 10,000 values."),
    "yaml-documents": Rule("FMT-10", _E, "The frontmatter holds several YAML documents."),
    "yaml-line-break": Rule(
        "FMT-10", _E, "A character ends a line for some YAML readers and not for others."
    ),
    "yaml-subset": Rule("FMT-10", _W, "Valid YAML that the official TypeScript SDK refuses."),
    "big-integer": Rule("FMT-10", _W, "An integer loses precision in JavaScript clients."),
    # fields
    "name-missing": Rule("FMT-02", _E, "`name` is missing."),
    "name-invalid": Rule("FMT-03", _E, "`name` breaks the naming rules."),
    "name-unicode": Rule(
        "FMT-03", _W, "`name` has letters beyond a-z, so it works locally but not over MCP."
    ),
    "name-differs-from-folder": Rule("FMT-03", _E, "`name` differs from the folder's name."),
    "description-missing": Rule("FMT-02", _E, "`description` is missing or empty."),
    "description-too-long": Rule("FMT-04", _E, "`description` is longer than 1,024 characters."),
    "description-vague": Rule("FMT-04", _I, "`description` does not say when to use the skill."),
    "license-invalid": Rule("FMT-05", _W, "`license` is not a string."),
    "compatibility-invalid": Rule("FMT-05", _E, "`compatibility` is not a string of 1 to 500 characters."),
    "metadata-invalid": Rule("FMT-05", _E, "`metadata` is not a mapping from strings to strings."),
    "metadata-reserved": Rule("FMT-07", _W, "A `metadata` key uses the prefix reserved for MCP extensions."),
    "allowed-tools-invalid": Rule("FMT-05", _W, "`allowed-tools` is not a space-separated string."),
    "version-number": Rule("P2076-08", _W, "`version` is a number, so 1.10 and 1.1 are the same."),
    "annotations-invalid": Rule(
        "EXEC-09", _W, "A declared audience or priority is out of bounds and left out."
    ),
    "field-unknown": Rule(
        "FMT-06", _I, "A field the Agent Skills format does not define; it is passed through."
    ),
    "field-misspelled": Rule("FMT-06", _W, "A field that is nearly one of the Agent Skills format."),
    # content
    "hidden-characters": Rule(
        "SEC-13", _W, "Invisible, bidirectional or tag characters hide text from readers."
    ),
    "terminal-escape": Rule("SEC-13", _W, "Control characters that affect a terminal."),
    "html-comment": Rule(
        "SEC-13", _I, "An HTML comment: models read it, but it is not visible on a rendered page."
    ),
    "broken-link": Rule("FMT-08", _W, "`SKILL.md` links to a file the skill does not have."),
    "link-outside": Rule("FMT-08", _W, "`SKILL.md` links to a path outside the skill."),
    "unlinked-file": Rule("FMT-08", _I, "Nothing mentions the file, so an agent will not find it."),
    "deep-reference": Rule(
        "FMT-08", _I, "Only another file mentions the file; references are best one level deep."
    ),
    "long-skill-file": Rule("FMT-09", _I, "`SKILL.md` is longer than 500 lines or about 5,000 tokens."),
    "empty-body": Rule("FMT-09", _W, "`SKILL.md` has no instructions after the frontmatter."),
    # the published entry
    "entry-invalid": Rule(
        "LIST-03", _E, "The entry is not an object with `uri`, `frontmatter` and `resources`."
    ),
    "uri-invalid": Rule("URI-10", _E, "A URI is malformed or dangerous."),
    "uri-name-mismatch": Rule("LIST-05", _E, "The last segment of the skill's path is not its `name`."),
    "uri-first-segment": Rule("URI-04", _W, "The first segment is not a plain lowercase registered name."),
    "resources-invalid": Rule("LIST-10", _E, "`resources` is neither a list of files nor `dynamic`."),
    "resource-invalid": Rule("LIST-11", _E, "A line of `resources` is malformed or appears twice."),
    "resource-outside": Rule("LIST-07", _E, "A line of `resources` is outside the skill's directory."),
    "resource-self-missing": Rule("LIST-06", _E, "`resources` does not list `SKILL.md` itself."),
    "duplicate-uri": Rule("SDK-05", _E, "Two skills would be served under the same URI."),
    "uri-reserved": Rule(
        "URI-13", _E, "A skill's URI is reserved by an older dialect that the server speaks."
    ),
    "uri-overlap": Rule(
        "NEST-03", _E, "The skill's URI is inside another skill that comes from a different folder or source."
    ),
    "duplicate-name": Rule("NAME-02", _W, "Two skills of one catalog share a name."),
    "name-not-unique": Rule("ASK-12", _E, "Two skills that are to be published together share a name."),
    "dynamic-inside-static": Rule(
        "NEST-03", _E, "A dynamic skill is nested in a skill that lists digests of all its files."
    ),
    # the `_manifest` of a dumped folder
    "file-list-invalid": Rule("DRAFT-11", _E, "A `_manifest` is not a list of the files of its skill."),
    "file-list-mismatch": Rule("DRAFT-11", _E, "A file does not match the `_manifest` next to it."),
    "file-list-unlisted": Rule("DRAFT-11", _W, "A file is missing from the `_manifest` next to it."),
    # an entry of an index
    "index-entry-invalid": Rule(
        "IDX-02", _E, "An index entry is not an object, lacks a required field, or has nothing to fetch."
    ),
    "index-digest-invalid": Rule(
        "IDX-03", _E, "An index entry has no well-formed digest for its `url`, or a digest without a `url`."
    ),
    "index-archive-invalid": Rule("IDX-04", _E, "An archive of an index's entry is malformed."),
    "index-schema-unknown": Rule("DRAFT-01", _W, "An index's `$schema` is unknown; the index is not used."),
    "index-type-unknown": Rule("DRAFT-02", _W, "The `type` of an index's entry is unknown; it is skipped."),
    "index-template-invalid": Rule(
        "DRAFT-06", _E, "An index's entry has both `url` and `urlTemplate`, or no usable template."
    ),
    "archives-off": Rule("ARC-18", _E, "A skill comes only as an archive, and archives are not allowed."),
    "archive-unsupported": Rule("ARC-02", _E, "A skill comes only as an archive of an unknown format."),
    "archive-unverifiable": Rule("ARC-05", _E, "An archive has no digest, so it is not unpacked."),
    "path-differs": Rule("DRAFT-09", _W, "The path of an old server's skill does not end in its name."),
    # the index of a web site
    "site-invalid": Rule("DISC-02", _E, "What a web site serves as its index of skills is not an index."),
    "site-form-unknown": Rule("DISC-03", _W, "The index of a site has an unknown form."),
    "site-unverifiable": Rule("DISC-03", _W, "The index of a site has no digests to verify anything with."),
    "site-entry-invalid": Rule("DISC-02", _E, "An entry in the index of a site breaks the rules."),
    "site-type-unknown": Rule("DISC-05", _W, "An entry in the index of a site has an unknown type."),
    "site-left-out": Rule(
        "DISC-14", _W, "A skill cannot be published on a web site: it is dynamic, or lies inside another."
    ),
    # skills by name, as servers list them and as authors declare them
    "primitive-item-invalid": Rule("P2076-02", _E, "An item of a listing by name has no usable `name`."),
    "primitive-skill-invalid": Rule(
        "P2076-03", _E, "A skill requested by name has no usable `instructions`."
    ),
    "primitive-field-invalid": Rule(
        "P2076-02", _W, "An optional field of a skill by name is malformed and left out."
    ),
    "exec-item-invalid": Rule("EXEC-02", _E, "A listed skill has no usable `name` and `description`."),
    "exec-skill-invalid": Rule("EXEC-03", _E, "A skill that was read lacks something it must have."),
    "exec-content-invalid": Rule("EXEC-04", _E, "A reference has no usable `uri`, or neither text nor blob."),
    "exec-field-invalid": Rule("EXEC-02", _W, "An optional field of a skill is malformed and left out."),
    "exec-annotations-invalid": Rule("EXEC-09", _W, "An annotation of a skill is malformed and left out."),
    "exec-path-invalid": Rule("EXEC-10", _W, "A path does not stay inside its skill; the file is left out."),
    "exec-result-invalid": Rule("EXEC-05", _E, "The answer about a script that was run has no `content`."),
    "exec-result-item": Rule("EXEC-05", _W, "A piece of what a script returned is malformed and left out."),
    "prompt-invalid": Rule("DUAL-12", _E, "A prompt that would be a skill has no usable `name`."),
    "prompt-field-invalid": Rule("DUAL-12", _W, "An optional field of a prompt is malformed and left out."),
    "arguments-invalid": Rule("P2076-12", _W, "The declared arguments cannot be read and are ignored."),
    "dependencies-invalid": Rule("P2076-05", _W, "The declared dependencies cannot be read and are ignored."),
    "icons-invalid": Rule("P2076-02", _W, "A declared icon cannot be read and is left out."),
    "file-notes-invalid": Rule("EXEC-20", _W, "A line about one of the skill's files cannot be read."),
    "dependency-missing": Rule("P2076-05", _W, "The server does not offer what a skill declares to need."),
    # what authors declare under the `skillwire/` prefix
    "needs-invalid": Rule("ASK-14", _W, "A declared dependency or scope cannot be read and is left out."),
    "relation-invalid": Rule("ASK-13", _W, "A declared relation cannot be read and is ignored."),
    "relation-unknown": Rule(
        "ASK-13", _W, "A skill names another that does not exist, or a name that several have."
    ),
    "relation-cycle": Rule("ASK-13", _W, "A skill requires itself or is a part of itself, through others."),
}
