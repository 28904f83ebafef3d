"""`validate`: each finding it can make, where it points, and that nothing makes it raise."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.entry import check_entry, entry_findings
from skillwire.core.finding import RULES, SKILL_FILE, Finding, Rule, Severity
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.skill import Skill
from skillwire.core.uri import as_text, fold_path
from skillwire.core.validation import MAX_INSPECTED, MAX_REMARKS, Content, validate

properties = settings(deadline=None, max_examples=100)

REGISTER = Path(__file__).parents[3] / "docs" / "requirements.md"
ERROR, WARNING, INFO = Severity

HEAD = "name: demo\ndescription: Does things. Use when asked.\n"
BODY = "\n# Steps\n\nDo them.\n"

# What only a source can see: the state of a disk, or several skills at once.
MADE_BY_SOURCES = {
    *("unreadable", "link", "special-file", "unsettled", "linked-folder"),
    *("duplicate-uri", "duplicate-name", "uri-overlap", "uri-reserved", "dynamic-inside-static"),
    # And what only readers and publishers of a web site can see; their own tests show these.
    *("site-invalid", "site-form-unknown", "site-unverifiable", "site-entry-invalid", "site-type-unknown"),
    *("site-left-out", "name-not-unique"),
    # And what only readers of an index can see; the tests of wire show these.
    *("index-entry-invalid", "index-digest-invalid", "index-archive-invalid"),
    *("index-schema-unknown", "index-type-unknown", "index-template-invalid"),
    # And what only a host can see that reads one; its tests of dialects show these.
    *("archives-off", "archive-unsupported", "archive-unverifiable", "path-differs"),
    # And what only dialects by name can see; the tests of wire and server show these.
    *("primitive-item-invalid", "primitive-skill-invalid", "primitive-field-invalid"),
    *("exec-item-invalid", "exec-skill-invalid", "exec-content-invalid"),
    *("exec-field-invalid", "exec-annotations-invalid", "exec-path-invalid"),
    *("exec-result-invalid", "exec-result-item"),
    *("arguments-invalid", "dependencies-invalid", "file-notes-invalid", "icons-invalid"),
    *("dependency-missing", "prompt-invalid", "prompt-field-invalid"),
    # What only a host of plain resources, or a gateway, can see; their tests show these.
    *("file-list-invalid", "file-list-mismatch", "file-list-unlisted", "upstream-failed", "upstream-entry"),
    # What only a look at several skills can see; the tests of relations show these.
    *("relation-invalid", "relation-unknown", "relation-cycle"),
}


def skill_md(frontmatter: str = HEAD, body: str = BODY) -> bytes:
    return f"---\n{frontmatter}---\n{body}".encode()


def checked(data: bytes = skill_md(), more: Mapping[str, Content] | None = None) -> list[Finding]:
    return validate("demo", {SKILL_FILE: data, **(more or {})})


def with_field(text: str) -> list[Finding]:
    return checked(skill_md(HEAD + text + "\n"))


def with_body(text: str, more: Mapping[str, Content] | None = None) -> list[Finding]:
    return checked(skill_md(body=text), more)


def entry_problems(**changes: object) -> list[Finding]:
    entry = {**Skill("demo", description="Use when asked.", body="Steps.").entry().to_json(), **changes}
    return check_entry(entry)[1]


FILE = {"uri": "skill://demo/SKILL.md", "digest": "sha256:" + "0" * 64, "size": 1}

# code: the requirement, the severity, the file and line it points at, and how it comes about
MADE: dict[str, tuple[str, Severity, str, int | None, Callable[[], list[Finding]]]] = {
    "skill-file-missing": ("FMT-01", ERROR, SKILL_FILE, None, lambda: validate("demo", {"README.md": b"x"})),
    "skill-file-case": (
        "FMT-01",
        ERROR,
        "skill.md",
        None,
        lambda: validate("demo", {"skill.md": skill_md()}),
    ),
    "unusable-path": ("URI-10", ERROR, "a\\b", None, lambda: checked(more={"a\\b": b""})),
    "path-twins": ("CACHE-08", ERROR, "a.md", None, lambda: checked(more={"A.md": b"", "a.md": b""})),
    "reserved-path": ("CACHE-08", WARNING, "aux.txt", None, lambda: checked(more={"aux.txt": b""})),
    "too-many-files": (
        "LIM-03",
        ERROR,
        "",
        None,
        lambda: checked(more={f"f{n}": 0 for n in range(MAX_FILES)}),
    ),
    "too-large": ("LIM-03", ERROR, "", None, lambda: checked(more={"big.bin": MAX_TOTAL_SIZE})),
    "generated-file": ("LIST-06", WARNING, "a.pyc", None, lambda: checked(more={"a.pyc": b""})),
    "not-utf8": ("FMT-02", ERROR, SKILL_FILE, 9, lambda: checked(skill_md() + b"\xff")),
    "text-not-utf8": ("READ-08", WARNING, "a.md", None, lambda: checked(more={"a.md": b"caf\xe9"})),
    "opening-blanks": (
        "FMT-02",
        INFO,
        SKILL_FILE,
        1,
        lambda: checked(b"--- \n" + HEAD.encode() + b"---\nText"),
    ),
    "byte-order-mark": ("FMT-02", INFO, SKILL_FILE, 1, lambda: checked(b"\xef\xbb\xbf" + skill_md())),
    "frontmatter-missing": ("FMT-02", ERROR, SKILL_FILE, 1, lambda: checked(b"# Title\n")),
    "frontmatter-unclosed": ("FMT-02", ERROR, SKILL_FILE, 1, lambda: checked(b"---\nname: demo\n")),
    "frontmatter-too-large": ("FMT-10", ERROR, SKILL_FILE, 1, lambda: with_field("#" * 65_536)),
    "frontmatter-not-a-mapping": ("FMT-02", ERROR, SKILL_FILE, 2, lambda: checked(b"---\n- a\n---\n")),
    "yaml-syntax": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: a: b")),
    "yaml-quote": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field('x: "a\ny: b')),
    "yaml-alias": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: &a b")),
    "yaml-tag": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: !!str b")),
    "yaml-directive": (
        "FMT-10",
        ERROR,
        SKILL_FILE,
        2,
        lambda: checked(b"---\n%YAML 1.1\n--- # x\na: b\n---\n"),
    ),
    "yaml-duplicate-key": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("name: demo")),
    "yaml-non-string-key": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("1: a")),
    "yaml-number": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: .nan")),
    "yaml-too-deep": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: " + "[" * 32 + "]" * 32)),
    "yaml-too-large": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: [" + "1," * 10_000 + "]")),
    "yaml-documents": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("--- # x\na: b")),
    "yaml-line-break": ("FMT-10", ERROR, SKILL_FILE, 4, lambda: with_field("x: a\u2028b")),
    "yaml-subset": ("FMT-10", WARNING, SKILL_FILE, 4, lambda: with_field("x: [a,\n  b]")),
    "big-integer": ("FMT-10", WARNING, SKILL_FILE, 4, lambda: with_field("x: 9007199254740992")),
    "name-missing": (
        "FMT-02",
        ERROR,
        SKILL_FILE,
        None,
        lambda: checked(skill_md("description: Use when asked.\n")),
    ),
    "name-invalid": (
        "FMT-03",
        ERROR,
        SKILL_FILE,
        3,
        lambda: checked(skill_md("description: Use it.\nname: A\n")),
    ),
    "name-unicode": (
        "FMT-03",
        WARNING,
        SKILL_FILE,
        2,
        lambda: checked(skill_md(HEAD.replace("demo", "démo"))),
    ),
    "name-differs-from-folder": (
        "FMT-03",
        ERROR,
        SKILL_FILE,
        2,
        lambda: validate("other", {SKILL_FILE: skill_md()}),
    ),
    "description-missing": (
        "FMT-02",
        ERROR,
        SKILL_FILE,
        3,
        lambda: checked(skill_md("name: demo\ndescription:\n")),
    ),
    "description-too-long": (
        *("FMT-04", ERROR, SKILL_FILE, 3),
        lambda: checked(skill_md(f"name: demo\ndescription: {'x' * 1025}\n")),
    ),
    "description-vague": (
        *("FMT-04", INFO, SKILL_FILE, 3),
        lambda: checked(skill_md("name: demo\ndescription: Helps with PDFs.\n")),
    ),
    "license-invalid": ("FMT-05", WARNING, SKILL_FILE, 4, lambda: with_field("license: [MIT]")),
    "compatibility-invalid": ("FMT-05", ERROR, SKILL_FILE, 4, lambda: with_field("compatibility: ''")),
    "metadata-invalid": ("FMT-05", ERROR, SKILL_FILE, 6, lambda: with_field("metadata:\n  a: b\n  c: 1")),
    "version-number": ("P2076-08", WARNING, SKILL_FILE, 4, lambda: with_field("version: 1.10")),
    "annotations-invalid": (
        "EXEC-09",
        WARNING,
        SKILL_FILE,
        4,
        lambda: with_field('metadata:\n  skillwire/priority: "1.5"'),
    ),
    "metadata-reserved": (
        "FMT-07",
        WARNING,
        SKILL_FILE,
        5,
        lambda: with_field("metadata:\n  io.modelcontextprotocol/x: y"),
    ),
    "allowed-tools-invalid": ("FMT-05", WARNING, SKILL_FILE, 4, lambda: with_field("allowed-tools: [Read]")),
    "field-unknown": ("FMT-06", INFO, SKILL_FILE, 4, lambda: with_field("model: opus")),
    "field-misspelled": ("FMT-06", WARNING, SKILL_FILE, 4, lambda: with_field("allowed_tools: Read")),
    "hidden-characters": ("SEC-13", WARNING, SKILL_FILE, 6, lambda: with_body("\na\u202eb\n")),
    "terminal-escape": ("SEC-13", WARNING, SKILL_FILE, 6, lambda: with_body("\na\x1b[31mb\n")),
    "html-comment": ("SEC-13", INFO, SKILL_FILE, 7, lambda: with_body("\nText\n<!-- hidden -->\n")),
    "needs-invalid": (
        "ASK-14",
        WARNING,
        SKILL_FILE,
        4,
        lambda: with_field("metadata:\n  skillwire/scopes: two words"),
    ),
    "broken-link": ("FMT-08", WARNING, SKILL_FILE, 6, lambda: with_body("\nSee [it](references/gone.md).\n")),
    "link-outside": ("FMT-08", WARNING, SKILL_FILE, 6, lambda: with_body("\nSee [it](../other/a.md).\n")),
    "deep-reference": (
        "FMT-08",
        INFO,
        "two.md",
        None,
        lambda: with_body("one.md\n", {"one.md": b"two.md", "two.md": b""}),
    ),
    "unlinked-file": ("FMT-08", INFO, "notes.md", None, lambda: checked(more={"notes.md": b""})),
    "long-skill-file": ("FMT-09", INFO, SKILL_FILE, None, lambda: with_body("text\n" * 500)),
    "empty-body": ("FMT-09", WARNING, SKILL_FILE, 5, lambda: with_body("\n \n")),
    "entry-invalid": ("LIST-03", ERROR, "", None, lambda: check_entry([])[1]),
    "uri-invalid": ("URI-10", ERROR, "", None, lambda: entry_problems(uri="skill://../SKILL.md")),
    "uri-name-mismatch": ("LIST-05", ERROR, "", None, lambda: entry_problems(uri="skill://other/SKILL.md")),
    "uri-first-segment": (
        *("URI-04", WARNING, "", None),
        lambda: entry_findings(Skill("demo", path="Acme/demo", description="Use it.", body="x").entry()),
    ),
    "resources-invalid": ("LIST-10", ERROR, "", None, lambda: entry_problems(resources=None)),
    "resource-invalid": (
        "LIST-11",
        ERROR,
        "",
        None,
        lambda: entry_problems(resources=[{**FILE, "size": -1}]),
    ),
    "resource-outside": (
        "LIST-07",
        ERROR,
        "",
        None,
        lambda: entry_problems(resources=[{**FILE, "uri": "skill://b/c"}]),
    ),
    "resource-self-missing": ("LIST-06", ERROR, "", None, lambda: entry_problems(resources=[])),
}


@pytest.mark.requirement("FMT-01")
@pytest.mark.requirement("FMT-09")
@pytest.mark.requirement("SEC-13")
@pytest.mark.requirement("LIM-03")
@pytest.mark.requirement("CACHE-08")
@pytest.mark.parametrize("code", MADE)
def test_each_kind_of_finding_has_its_rule_its_severity_and_its_place(code: str) -> None:
    rule, severity, file, line, make = MADE[code]

    found = [finding for finding in make() if finding.code == code]

    assert [(finding.rule, finding.severity, finding.file, finding.line) for finding in found] == [
        (rule, severity, file, line)
    ]
    assert found[0].is_error is (severity is ERROR)
    assert found[0].message


def test_the_table_above_shows_every_kind_of_finding_that_no_source_is_needed_for() -> None:
    assert set(MADE) == RULES.keys() - MADE_BY_SOURCES


@pytest.mark.parametrize(("code", "rule"), RULES.items())
def test_every_rule_cites_an_entry_of_the_register_and_reads_as_a_sentence(code: str, rule: Rule) -> None:
    entries = set(re.findall(r"^\|([A-Z0-9]+-\d+)\|", REGISTER.read_text("utf-8"), re.MULTILINE))

    assert rule.requirement in entries
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    assert re.fullmatch(r"[A-Z`].*\.", rule.summary)


@pytest.mark.requirement("FMT-01")
@pytest.mark.requirement("FMT-02")
def test_a_good_skill_has_no_findings_at_all() -> None:
    frontmatter = (
        "name: pdf-processing\n"
        "description: >-\n"
        "  Extracts text and tables from PDF files.\n"
        "  Use when the user mentions PDFs — or 表.\n"
        "license: Apache-2.0\n"
        "compatibility: Requires Python 3.14+ and uv\n"
        "metadata:\n"
        "  author: example-org\n"
        '  version: "1.0"\n'
        "allowed-tools: Bash(git:*) Read\n"
    )
    body = (
        '# PDF\n\nSee [the guide](references/GUIDE.md#top) and [forms](./references/forms.md "Forms").\n'
        "Run `scripts/extract.py`. Look into [references](references/), [the web](https://example.com),\n"
        "[mail](mailto:a@example.com) or [above](#pdf). 👩‍👩‍👧 ❤️\n"
    )
    files: dict[str, Content] = {
        SKILL_FILE: skill_md(frontmatter, body),
        "LICENSE": b"Apache License",
        "references/GUIDE.md": b"Also read tables.md.\r\n",
        "references/forms.md": b"Forms",
        "references/tables.md": "Tabelle für Ümläute\n".encode(),
        "scripts/extract.py": b"print('x')\n",
        "scripts/data.bin": b"\x00\x1b\xff",
        "scripts/big.txt": 1024,
    }

    assert validate("pdf-processing", files) == []
    assert validate(None, files) == []


@pytest.mark.requirement("FMT-03")
@pytest.mark.parametrize(
    ("folder", "name", "differs"),
    [
        *(("demo", "demo", False), ("other", "demo", True), ("Demo", "demo", True), (None, "demo", False)),
        *(("demo", "Demo", True), ("demo ", "demo", True), ("\ud800", "demo", True), ("", "demo", True)),
    ],
)
def test_the_name_must_equal_the_folders(folder: str | None, name: str, differs: bool) -> None:
    found = validate(folder, {SKILL_FILE: skill_md(HEAD.replace("demo", name))})

    assert ("name-differs-from-folder" in codes(found)) is differs


@pytest.mark.parametrize(
    ("folder", "name", "fixes"),
    [
        ("one", "two", ["`two`", "`name: one`"]),
        ("Bad Folder", "two", ["`two`"]),
        ("one", "Bad Name", ["`name: one`"]),
        ("Bad Folder", "Bad Name", ["a-z"]),
    ],
)
def test_the_fix_for_two_names_offers_only_valid_ones(folder: str, name: str, fixes: list[str]) -> None:
    found = validate(folder, {SKILL_FILE: skill_md(HEAD.replace("demo", name))})

    [finding] = [finding for finding in found if finding.code == "name-differs-from-folder"]
    assert [fix for fix in ("`two`", "`name: one`", "a-z") if fix in finding.fix] == fixes


@pytest.mark.requirement("CACHE-08")
@pytest.mark.parametrize(
    ("paths", "twins"),
    [
        (["a.md", "A.md"], ["a.md"]),
        (["refs/x.md", "Refs/X.MD", "REFS/x.md"], ["Refs/X.MD", "refs/x.md"]),
        (["caf\u00e9.md", "cafe\u0301.md"], ["caf\u00e9.md"]),
        (["stra\u00dfe", "STRASSE"], ["stra\u00dfe"]),
        (["\u2126", "\u03c9"], ["\u2126"]),
        (["Skill.md"], ["Skill.md"]),
        (["refs", "refs/a.md"], ["refs"]),
        (["REFS", "refs/a/b.md"], ["REFS"]),
        (["refs/a.md", "Refs/b.md"], []),
        (["a.md", "b/a.md", "\ufb01", "fi"], ["\ufb01"]),
        (["x\u00b2", "x2"], []),
    ],
)
def test_paths_that_collide_on_some_disk_are_errors(paths: list[str], twins: list[str]) -> None:
    found = checked(more=dict.fromkeys(paths, b""))

    assert [finding.file for finding in found if finding.code == "path-twins"] == twins


def test_folding_a_path_twice_changes_nothing_more() -> None:
    for path in ("Straße/É.md", "\u0345\u0391", "ǅ", "İ"):
        assert fold_path(fold_path(path)) == fold_path(path)


@pytest.mark.requirement("CACHE-08")
@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        *(
            ("con", True),
            ("CON", True),
            ("nul.txt", True),
            ("refs/Prn.md", True),
            ("lpt9", True),
            ("com1.tar.gz", True),
        ),
        *(("aux/a.md", True), ("a./b", True), ("a ", True), ("dir /x", True), ("a.", True)),
        *(
            ("console", False),
            ("com", False),
            ("com10", False),
            ("a.con", False),
            ("nullable.md", False),
            ("x.aux", False),
        ),
    ],
)
def test_names_that_windows_keeps_for_itself_are_a_warning(path: str, reserved: bool) -> None:
    found = checked(more={path: b""})

    assert ("reserved-path" in codes(found)) is reserved


@pytest.mark.parametrize(
    ("path", "generated"),
    [
        *(
            ("__pycache__/a.cpython-311.pyc", True),
            ("scripts/__pycache__/x", True),
            ("node_modules/a/b.js", True),
        ),
        *(
            ("a.pyo", True),
            ("notes.md~", True),
            (".a.swp", True),
            ("Thumbs.db", True),
            ("img/Thumbs.db", True),
        ),
        *(
            ("a.orig", True),
            ("a.rej", True),
            ("a.py", False),
            ("node_modules.md", False),
            ("thumbs.md", False),
        ),
    ],
)
def test_files_that_tools_leave_behind_are_a_warning(path: str, generated: bool) -> None:
    found = checked(more={path: b""})

    assert ("generated-file" in codes(found)) is generated


@pytest.mark.requirement("URI-10")
@pytest.mark.parametrize(
    "path",
    ["", "../a", "a\\b", "\ud800", "%2e%2e/a", "x" * 17_000],
)
def test_a_path_that_cannot_be_part_of_a_uri_is_an_error(path: str) -> None:
    found = checked(more={path: b""})

    assert [finding.file for finding in found if finding.code == "unusable-path"] == [as_text(path)]


@pytest.mark.requirement("FMT-01")
@pytest.mark.parametrize("path", ["skill.md", "Skill.md", "SKILL.MD", "sKiLl.mD"])
def test_a_skill_file_in_the_wrong_case_is_named(path: str) -> None:
    found = validate("demo", {path: skill_md(), "a.md": b""})

    assert [(finding.code, finding.file) for finding in found] == [("skill-file-case", path)]


@pytest.mark.parametrize("files", [{}, {"a/SKILL.md": skill_md()}, {"SKILL.md.txt": b""}])
def test_a_folder_without_a_skill_file_is_no_skill(files: dict[str, Content]) -> None:
    assert codes(validate("demo", files)) == ["skill-file-missing"]


@pytest.mark.requirement("LIM-03")
@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (MAX_FILES, MAX_TOTAL_SIZE, []),
        (MAX_FILES + 1, MAX_TOTAL_SIZE, ["too-many-files"]),
        (MAX_FILES, MAX_TOTAL_SIZE + 1, ["too-large"]),
        (MAX_FILES + 1, MAX_TOTAL_SIZE + 1, ["too-many-files", "too-large"]),
    ],
)
def test_both_limits_are_allowed_exactly(count: int, size: int, expected: list[str]) -> None:
    data = skill_md(body="All is in data/.\n")
    rest: dict[str, Content] = {f"data/{number}": 0 for number in range(count - 2)}

    found = checked(data, {**rest, "data/big": size - len(data)})

    assert codes(found) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[a](a.md) ![b](img/b.png) <!---->", ["html-comment"]),
        ("[a](./a.md?x=1#y) [b](img/../a.md) [c](img) [d](img/) [e](%61.md)", []),
        ("[a](A.md)", ["broken-link"]),
        ("[a]: gone.md", ["broken-link"]),
        ("[a](../a.md) [b](img/../../c)", ["link-outside", "link-outside"]),
        ("[a](%2e%2e/a.md)", ["link-outside"]),
        ("[a](a\\b.md)", ["link-outside"]),
        ("[a](/etc/passwd) [b](//host/x) [c](#x) [d](?q) [e](file:///x) [f](skill://x/SKILL.md)", []),
        ("[a]({{path}}) [b](<$FILE>) [c](*.md)", []),
        ("`[a](gone.md)`\n```\n[a](gone.md)\n```\n", []),
        (f"[a]({'😀' * 1990})", ["link-outside"]),
    ],
)
def test_links_are_followed_inside_the_skill(body: str, expected: list[str]) -> None:
    found = with_body(body + "\n\na.md, img/\n", {"a.md": b"", "img/b.png": b""})

    assert codes(found) == expected


def test_the_fix_for_a_broken_link_offers_a_file_of_that_name() -> None:
    found = with_body("[a](guide.md) [b](nothing.md) refs/\n", {"refs/Guide.md": b""})

    assert [("'refs/Guide.md'" in finding.fix, "'nothing.md'" in finding.fix) for finding in found] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.requirement("FMT-08")
def test_a_file_is_linked_when_a_text_on_the_way_to_it_names_it() -> None:
    files: dict[str, Content] = {
        "one.md": b"see two.md",
        "two.md": b"see [three](more/three.md)",
        "more/three.md": b"the end",
        "more/beside-three.md": b"in a folder that was named",
        "alone.md": b"see alone2.md",
        "deep/alone2.md": b"see alone.md",
        "assets/img/logo.png": b"\x89PNG",
        "LICENSE.txt": b"",
        "readme.md": b"",
        "CHANGELOG": b"",
        "size-only.csv": 10,
    }

    found = with_body("Read one.md, assets/ and size-only.csv.\n", files)

    assert [(finding.code, finding.file) for finding in found if finding.code == "unlinked-file"] == [
        ("unlinked-file", "alone.md"),
        ("unlinked-file", "deep/alone2.md"),
    ]


@pytest.mark.requirement("FMT-08")
def test_a_chain_of_references_is_remarked_from_its_second_step_on() -> None:
    files: dict[str, Content] = {
        "one.md": b"see two.md and scripts/run.py",
        "two.md": b"see three.md",
        "three.md": b"the end",
        "scripts/run.py": b"import helper  # helper.py",
        "lib/helper.py": b"",
    }

    found = with_body("Read one.md.\n", files)
    flat = with_body("Read one.md, two.md, three.md and what is in scripts/ and lib/.\n", files)

    assert [(finding.code, finding.rule, finding.file) for finding in found] == [
        ("deep-reference", "FMT-08", "scripts/run.py"),
        ("deep-reference", "FMT-08", "three.md"),
        ("deep-reference", "FMT-08", "two.md"),
    ]
    assert "'one.md'" in found[2].message and "'two.md'" in found[1].message
    assert flat == []


@pytest.mark.requirement("FMT-09")
@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        ("\n" * 494 + "x", False),
        ("\n" * 495 + "x", False),
        ("\n" * 496 + "x", True),
        ("x" * (20_000 - len(skill_md(body=""))), False),
        ("x" * (20_004 - len(skill_md(body=""))), True),
    ],
)
def test_a_skill_file_beyond_500_lines_or_5000_tokens_is_long(body: str, is_long: bool) -> None:
    found = with_body(body)

    assert ("long-skill-file" in codes(found)) is is_long


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "code"),
    [("a\u202eb", "hidden-characters"), ("a\x1b]0;x\x07", "terminal-escape")],
)
def test_hidden_characters_are_found_in_every_text_of_the_skill(text: str, code: str) -> None:
    in_body = with_body(f"x\n{text}\n")
    in_file = with_body("a.md", {"a.md": f"1\n2\n{text}".encode()})
    in_broken = checked(f"---\nname: demo\nx: {text}\n".encode())

    assert [(finding.code, finding.file, finding.line) for finding in in_body] == [(code, SKILL_FILE, 6)]
    assert [(finding.code, finding.file, finding.line) for finding in in_file] == [(code, "a.md", 3)]
    assert (code, 3) in [(finding.code, finding.line) for finding in in_broken]


def test_hidden_characters_of_one_kind_make_one_finding_per_file() -> None:
    found = with_body("\u202e\n\u202e \u200b\n\x1b\x1b\x1b\n")

    assert sorted((finding.code, finding.line) for finding in found) == [
        ("hidden-characters", 5),
        ("hidden-characters", 6),
        ("terminal-escape", 7),
    ]


@pytest.mark.parametrize(
    "content",
    [b"\x1b\x00", b"\x1b\xff", b"\x1b" * (MAX_INSPECTED + 1), 100],
    ids=["nul", "binary", "huge", "size"],
)
def test_nobody_looks_for_hidden_text_in_what_is_no_text(content: Content) -> None:
    assert with_body("a.bin", {"a.bin": content}) == []


def test_lines_are_counted_as_editors_count_them() -> None:
    found = with_body("a\x0cb\u2028c\x85d\x1ee\n<!-- x -->\n[x](gone.md)\n")

    lines = {finding.code: finding.line for finding in found}
    assert (lines["html-comment"], lines["broken-link"]) == (6, 7)


def test_a_skill_file_known_only_by_its_size_is_taken_as_it_is() -> None:
    assert validate("demo", {SKILL_FILE: 100}) == []


SUBSET = [
    *("x: [a,\n  b]", "x: {a: b,\n  c: d}", "x: [a: b]", 'x: ["a": b]', "x: 'a\n  b'", 'x: "a\n\n  b"'),
    *(
        "? a\n: b",
        "? a",
        "?\n  a\n: b",
        "? |\n  a\n: b",
        "x: {? a : b}",
        "x:\n  ? a\n  : b",
        "?a: b",
        "x:\n  - ?a",
        "x:\n  ?a",
    ),
    *("x: |2\n  a", "x: >-1\n a", "x: |1+\n a", "x: |#c\n  a", "x:\n|\n a", "x: |\n    \n  # a"),
    *('"a" : b', "'a' : b", "x:\n  'a' : b", "__proto__: a", "x: {__proto__: a}", "'__proto__': a"),
    *(
        "x: {a}",
        "x: {a: }",
        "x: {a, b: c}",
        "x: {a:1}",
        "x: [-]",
        "x: {a: -}",
        "x: [a]#c",
        "x: 'a'#c",
        "x: {}#c",
    ),
    *("...", "... # the end", "x: a\n  \tb"),
]


@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize("text", SUBSET)
def test_yaml_that_the_official_sdk_refuses_is_a_warning(text: str) -> None:
    found = with_field(text)

    notes = [finding for finding in found if finding.code == "yaml-subset"]
    assert notes
    assert {finding.severity for finding in notes} == {WARNING}
    assert [finding for finding in found if finding.is_error] == []


@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize(
    "text",
    [
        *(
            "x: [a, b,]",
            "x: {a: [b, {c: d}]} # e",
            'x: {"a":1}',
            "x: {'a' : b}",
            "x: {a : b}",
            "x: []",
            "x: {}",
        ),
        *(
            "x: |\n  a\n\n  b",
            "x: >-\n  a",
            "x: |+ # c\n  a",
            "x: > \n  a",
            "x:\n  |\n  a",
            "x: |\n # a\ny: b",
            "x: |\n# a",
        ),
        *(
            "x: a\n  b\n\n  c",
            "x: a\n\n  b",
            "x:\n  a\n  b",
            "x: a\n   \t\n",
            "x: 'a' # c",
            "x: ?a",
            "x: -a",
            "x: a?",
            "a : b",
        ),
        *(
            "'a': b",
            "x:\n- a\n- b: c\n  d: e\n- - f",
            "x: # c\n  a: b",
            "proto: a",
            "x: ---",
            "<<: {a: b}",
            "x: {a: -b}",
        ),
        *("x: ~", "x: 'a''b'", 'x: "a\\"b"', "x: {a: ''}", "x: [a?]", "x: {a: b?}"),
    ],
)
def test_yaml_that_the_official_sdk_reads_is_no_warning(text: str) -> None:
    assert [finding for finding in with_field(text) if finding.code != "field-unknown"] == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"---\n{name: demo, description: Use when asked}\n---\nText", 2),
        (b"---\n--- # a document\n" + HEAD.encode() + b"---\nText", 2),
        (b"---\n" + HEAD.encode() + b"...\n---\nText", 4),
        (b"---\r\n" + HEAD.replace("\n", "\r\n").encode() + b"x: 'a\r\n  b'\r\n---\r\nText", 4),
    ],
)
def test_a_whole_block_outside_the_subset_is_a_warning_with_its_line(data: bytes, line: int) -> None:
    found = [finding for finding in checked(data) if finding.code == "yaml-subset"]

    assert [finding.line for finding in found] == [line]


@pytest.mark.parametrize("opening", [b"--- \n", b"---\t\r\n", b"\xef\xbb\xbf--- \t\n"])
def test_blanks_after_the_opening_line_are_only_a_note(opening: bytes) -> None:
    found = [
        finding
        for finding in checked(opening + HEAD.encode() + b"---\nText")
        if finding.code != "byte-order-mark"
    ]

    assert [(finding.code, finding.severity, finding.line) for finding in found] == [
        ("opening-blanks", INFO, 1)
    ]


def test_a_finding_as_json_has_every_field_and_moves_into_a_folder() -> None:
    finding = Finding("broken-link", "a message", line=7, fix="a fix")

    assert finding.inside("skills/demo").to_json() == {
        "code": "broken-link",
        "rule": "FMT-08",
        "severity": "warning",
        "file": "skills/demo/SKILL.md",
        "line": 7,
        "message": "a message",
        "fix": "a fix",
    }
    assert finding.inside("") is finding


PIECES = [
    *(
        b"---\n",
        b"name: demo\n",
        b"description: Use it.\n",
        b"x: ",
        b"[a](b.md)",
        b"](",
        b"<!--",
        b"\n",
        b"\r\n",
        b"\r",
    ),
    *(
        b"? ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"'",
        b'"',
        b"|",
        b">",
        b"#",
        b"?",
        b": ",
        b"\xff",
        b"\x00",
        b"\x1b",
        b"%",
    ),
    *(
        b"\xef\xbb\xbf",
        b"\xe2\x80\xae",
        b"\xe2\x80\xa8",
        b"!%ED%A0%80 ",
        b"&a",
        b"*a",
        b"...",
        b"\t",
        b"__proto__: ",
    ),
]
contents = (
    st.binary(max_size=60)
    | st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)
    | st.lists(st.sampled_from(PIECES), max_size=20).map(
        lambda parts: b"---\n" + b"".join(parts) + b"\n---\n"
    )
    | st.integers(0, 2**40)
)
paths = st.sampled_from([SKILL_FILE, "skill.md", "a/b.md", "A/B.md", "a"]) | st.text(
    st.sampled_from("aA/.\\%é\u0301\0\ud800\n :~") | st.characters(), max_size=12
)
folders = st.none() | st.just("demo") | st.text(st.characters(), max_size=5)


@properties
@given(folders, st.dictionaries(paths, contents, max_size=5), contents)
@example("demo", {}, b"---\nx: !%ED%A0%80 y\n---\n")
@example("demo", {"a": b""}, b"---\n?\n---\n")
@example("demo", {"\ud800/\udfff": b""}, b"---\nname: demo\n---\n" + b"\n" * 200_000)
def test_whatever_the_files_are_validate_returns_sorted_findings(
    folder: str | None, more: dict[str, Content], skill: Content
) -> None:
    found = validate(folder, {**more, SKILL_FILE: skill})

    assert found == sorted(
        found, key=lambda finding: (finding.file != SKILL_FILE, finding.file, finding.line or 0)
    )
    json.dumps([finding.to_json() for finding in found], ensure_ascii=False).encode()
    for finding in found:
        assert finding.code in RULES
        assert finding.line is None or finding.line >= 1


@properties
@given(st.dictionaries(paths, contents, max_size=4))
def test_a_folder_of_anything_is_validated(files: dict[str, Content]) -> None:
    found = validate("demo", files)

    assert SKILL_FILE in files or {"skill-file-missing", "skill-file-case"} & set(codes(found))


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


# Text that is large or hides things


@pytest.mark.requirement("SEC-13")
def test_hidden_characters_written_as_yaml_escapes_are_reported_where_they_stand() -> None:
    data = b'---\nname: escaped\ndescription: "Use when \\u202e\\e[31m here."\n---\n\nDo it.\n'

    found = validate("escaped", {"SKILL.md": data})

    assert [(finding.code, finding.line) for finding in found] == [
        ("hidden-characters", 3),
        ("terminal-escape", 3),
    ]


@pytest.mark.parametrize(
    "body",
    [b"\x1b" * 500_000, b"<!-- x -->\n" * 50_000, b"[a](b.md)\n" * 50_000, b"[a](../b.md) " * 40_000],
    ids=["escapes", "comments", "broken links", "links outside"],
)
def test_a_remark_that_repeats_itself_is_made_a_limited_number_of_times(body: bytes) -> None:
    data = b"---\nname: loud\ndescription: Use when loud.\n---\n" + body

    found = validate("loud", {"SKILL.md": data})

    assert 1 <= len(found) <= MAX_REMARKS + 2


def test_files_without_end_are_not_looked_for_in_the_text() -> None:
    data = b"---\nname: many\ndescription: Use when many.\n---\n" + b"word " * 400_000
    files: dict[str, Content] = {f"f/{number}.md": b"x" for number in range(20_000)}

    found = validate("many", {"SKILL.md": data, **files})

    assert "unlinked-file" not in {finding.code for finding in found}
    assert "too-many-files" in {finding.code for finding in found}
