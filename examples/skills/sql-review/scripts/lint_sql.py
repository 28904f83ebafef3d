#!/usr/bin/env python3
"""Find statements in a PostgreSQL migration that lock, rewrite, scan or destroy.

Reads one JSON object on standard input and writes one to standard output:

    {"sql": "CREATE INDEX i ON orders (customer_id);", "in_transaction": true}

Only `sql` is required. `in_transaction` says whether the migration tool wraps the file in a
transaction, as most do. Findings are the result, with exit status 0. Input that cannot be
read goes to standard error, with exit status 1.

The script reads tokens and has no grammar: it knows nothing about the database, does not look
into strings, DO blocks or functions, and does not understand BEGIN ATOMIC or psql commands.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

MAX_FINDINGS = 200
MAX_SHOWN = 120

# rule: severity, what happens, what to do
RULES = {
    "all-rows": (
        "warning",
        "Touches every row in one transaction: long row locks, much WAL, bloat.",
        "Work in batches by key, each in its own transaction.",
    ),
    "cascade": (
        "error",
        "CASCADE also drops whatever depends on it, without naming it.",
        "Drop the dependent objects by name.",
    ),
    "change-type": (
        "error",
        "Usually rewrites the table and its indexes under ACCESS EXCLUSIVE.",
        "Check the list of changes that do not rewrite; else add a column, copy in batches, and switch.",
    ),
    "column-not-null": (
        "error",
        "Fails if the table has rows.",
        "Give it a constant default, or add it as nullable and fill it before SET NOT NULL.",
    ),
    "column-rewrite": (
        "error",
        "Rewrites the table and its indexes under ACCESS EXCLUSIVE.",
        "Add a plain nullable column, set its default afterwards, and fill old rows in batches.",
    ),
    "constraint-not-valid": (
        "error",
        "Scans the table while writes wait; for a CHECK reads wait too, for a FOREIGN KEY both tables.",
        "Add it NOT VALID, and VALIDATE CONSTRAINT in a later transaction.",
    ),
    "create-partition": (
        "warning",
        "Takes ACCESS EXCLUSIVE on the partitioned table.",
        "Create an ordinary table and ATTACH PARTITION, which lets reads and writes go on.",
    ),
    "detach-not-concurrent": (
        "warning",
        "Takes ACCESS EXCLUSIVE on the partitioned table.",
        "Use DETACH PARTITION ... CONCURRENTLY (PostgreSQL 14 or later).",
    ),
    "drop-column": (
        "warning",
        "Deletes the column's data; running code that names the column fails.",
        "Release code that no longer uses it first.",
    ),
    "drop-data": (
        "error",
        "Deletes data; only a backup brings it back.",
        "Release code that no longer uses it first, wait, and confirm that this is meant.",
    ),
    "drop-index-not-concurrent": (
        "warning",
        "Takes ACCESS EXCLUSIVE on the table.",
        "Use DROP INDEX CONCURRENTLY, outside of a transaction.",
    ),
    "enum-value": (
        "info",
        "The new value cannot be used in the transaction that adds it.",
        "Use the value in a later migration.",
    ),
    "explicit-lock": (
        "warning",
        "Holds the lock until the end of the transaction.",
        "Say in a comment why it is needed.",
    ),
    "index-not-concurrent": (
        "error",
        "Blocks writes to the table until the index is built.",
        "Use CREATE INDEX CONCURRENTLY, in a migration of its own, outside of a transaction.",
    ),
    "needs-no-transaction": (
        "error",
        "Cannot run inside a transaction.",
        "Move it to a migration of its own, and switch off the tool's transaction for that one.",
    ),
    "no-lock-timeout": (
        "warning",
        "Waits for a lock without a limit; every later query on the table queues behind it.",
        "Begin with SET lock_timeout = '2s', and retry on failure.",
    ),
    "not-inspected": ("info", "The code inside a DO block is not inspected.", "Review it by hand."),
    "refresh-not-concurrent": (
        "warning",
        "Readers of the view wait until it is filled.",
        "Use REFRESH MATERIALIZED VIEW CONCURRENTLY; it needs a unique index.",
    ),
    "reindex-not-concurrent": (
        "error",
        "Blocks writes, and almost all reads, until the index is built.",
        "Use REINDEX CONCURRENTLY, outside of a transaction.",
    ),
    "rename": (
        "warning",
        "Running code still uses the old name.",
        "Add the new name beside the old one, move the code over, then remove the old one.",
    ),
    "rewrite": (
        "error",
        "Rewrites the table under ACCESS EXCLUSIVE.",
        "Keep it out of migrations; plan a maintenance window.",
    ),
    "set-not-null": (
        "error",
        "Scans the table under ACCESS EXCLUSIVE, unless a valid CHECK (column IS NOT NULL) proves it.",
        "ADD CHECK ... NOT VALID, VALIDATE CONSTRAINT in a later transaction, then SET NOT NULL.",
    ),
    "unique-without-index": (
        "error",
        "Builds an index under ACCESS EXCLUSIVE.",
        "CREATE UNIQUE INDEX CONCURRENTLY first, then ADD CONSTRAINT ... USING INDEX.",
    ),
    "validate-same-transaction": (
        "error",
        "Scans the table while the lock of ADD ... NOT VALID is still held.",
        "Validate in a later transaction.",
    ),
}

NAME = r'((?:"[^"]*"|[^\W\d][\w$]*)(?: \. (?:"[^"]*"|[^\W\d][\w$]*))*)'
TABLE_CREATED = re.compile(
    rf"create (?:(?:global |local )?temp(?:orary)? |unlogged )?table (?:if not exists )?{NAME}"
)
INDEX_CREATED = re.compile(rf"create (?:unique )?index (?:(?!on )\S+ )*on (only )?{NAME}")
TABLE_ALTERED = re.compile(rf"alter table (?:if exists )?(?:only )?{NAME}(?: \*)? ")
ROWS_CHANGED = re.compile(rf"(?:update|delete from) (?:only )?{NAME}")

# Statements that are judged by their first words alone.
STATEMENTS = (
    (re.compile(r"drop index (?!concurrently )"), "drop-index-not-concurrent"),
    (re.compile(r"drop (?:table|schema|database|materialized view) |truncate "), "drop-data"),
    (re.compile(r"vacuum (?:full|\( (?:[^)]* )?full)(?: |$)|cluster(?: |$)"), "rewrite"),
    (re.compile(r"reindex (?!.*\bconcurrently\b)"), "reindex-not-concurrent"),
    (re.compile(r"refresh materialized view (?!concurrently )"), "refresh-not-concurrent"),
    (re.compile(r"lock "), "explicit-lock"),
)
# Actions of ALTER TABLE that are judged by their first words alone.
ACTIONS = (
    (re.compile(r"alter (?:column )?\S+ (?:set data )?type "), "change-type"),
    (re.compile(r"drop (?!constraint |expression )"), "drop-column"),
    (re.compile(r"rename "), "rename"),
    (re.compile(r"detach partition "), "detach-not-concurrent"),
    (re.compile(r"set (?:un)?logged"), "rewrite"),
)
HARMLESS = re.compile(r"attach partition |(?:re)?set \(|alter (?:column )?\S+ set statistics ")
OUTSIDE_TRANSACTIONS = re.compile(
    r"(?:create (?:unique )?index|drop index) concurrently |reindex |vacuum(?: |$)"
)
CONSTRAINT = re.compile(r"add (?:constraint|check|foreign key|unique|primary key|exclude) ")
VOLATILE = re.compile(
    r"\b(?:random|gen_random_uuid|uuidv4|uuidv7|uuid_generate_v\w+|clock_timestamp|timeofday|nextval) \("
)
COMPUTED = re.compile(r" (?:small|big)?serial[248]?(?: |$)| as identity(?: |$)| stored(?: |$)")

TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<comment>/\*)
  | (?P<dollar>\$(?:[^\W\d]\w*)?\$)
  | (?P<string>[eE]'(?:[^'\\]|\\.|'')*+'|(?:[bBxXnN]|[uU]&)?'(?:[^']|'')*+')
  | (?P<quoted>(?:[uU]&)?"(?:[^"]|"")++")
  | (?P<word>[^\W\d][\w$]*|\d[\w.]*)
  | (?P<unclosed>['"])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_MARK = re.compile(r"/\*|\*/")


class UnusableInputError(Exception):
    """The SQL cannot be read; the message tells the caller why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: the line it begins on, its tokens as one text, and each token with its depth."""

    line: int
    text: str
    tokens: tuple[str, ...]
    depths: tuple[int, ...]

    def parts(self) -> list[str]:
        """Split the text at the commas outside of parentheses."""
        parts: list[list[str]] = [[]]
        for token, depth in zip(self.tokens, self.depths, strict=True):
            if token == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(token)
        return [" ".join(part) for part in parts]


@dataclass(slots=True)
class Migration:
    """What the statements so far have told us, and what we found."""

    wrapped: bool
    in_block: bool = False
    has_timeout: bool = False
    created: set[str] = field(default_factory=set)
    validated: set[str] = field(default_factory=set)
    not_valid: set[str] = field(default_factory=set)  # in the current transaction
    findings: list[dict] = field(default_factory=list)

    @property
    def in_transaction(self) -> bool:
        return self.wrapped or self.in_block

    def add(self, rule: str, at: Statement, *, severity: str = "") -> None:
        usual, message, fix = RULES[rule]
        text = at.text if len(at.text) <= MAX_SHOWN else at.text[: MAX_SHOWN - 3] + "..."
        found = {"rule": rule, "severity": severity or usual, "line": at.line, "statement": text}
        self.findings.append(found | {"message": message, "fix": fix})

    def takes_lock(self, at: Statement) -> None:
        """Remark, once, that a statement waits for a table in use without a limit."""
        if not self.has_timeout:
            self.has_timeout = True
            self.add("no-lock-timeout", at)


def main() -> int:
    try:
        sql, in_transaction = read_arguments(sys.stdin.buffer.read())
        result = lint(sql, in_transaction=in_transaction)
    except UnusableInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


def read_arguments(data: bytes) -> tuple[str, bool]:
    try:
        arguments = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnusableInputError(f"standard input is not a JSON object in UTF-8: {error}") from error
    if not isinstance(arguments, dict):
        raise UnusableInputError('standard input must be a JSON object such as {"sql": "SELECT 1;"}')
    unknown = sorted(arguments.keys() - {"sql", "in_transaction"})
    if unknown:
        raise UnusableInputError(f"unknown argument {unknown[0][:40]}; use sql, in_transaction")
    sql = arguments.get("sql")
    if not isinstance(sql, str) or not sql.strip():
        raise UnusableInputError("`sql` must be a string with at least one statement")
    in_transaction = arguments.get("in_transaction", True)
    if not isinstance(in_transaction, bool):
        raise UnusableInputError("`in_transaction` must be true or false")
    # JSON can spell half a character ("\ud800"), which no encoding can write back.
    return sql.encode("utf-8", "replace").decode("utf-8"), in_transaction


def lint(sql: str, *, in_transaction: bool) -> dict:
    migration = Migration(wrapped=in_transaction)
    count = 0
    for statement in statements_in(sql):
        count += 1
        check(statement, migration)
    findings = migration.findings
    return {
        "statements": count,
        "summary": dict(Counter(finding["severity"] for finding in findings)),
        "findings": findings[:MAX_FINDINGS],
        "truncated": len(findings) > MAX_FINDINGS,
    }


def statements_in(sql: str) -> Iterator[Statement]:
    tokens: list[str] = []
    depths: list[int] = []
    first_line = depth = 0
    for line, token in chain(tokens_in(sql), [(0, ";")]):
        if token == ";" and (depth == 0 or line == 0):
            if depth:
                raise UnusableInputError(f"a parenthesis in the statement on line {first_line} is not closed")
            if tokens:
                yield Statement(first_line, " ".join(tokens), tuple(tokens), tuple(depths))
            tokens, depths = [], []
            continue
        first_line = first_line if tokens else line
        depth -= token == ")" and depth > 0
        tokens.append(token)
        depths.append(depth)
        depth += token == "("


def tokens_in(sql: str) -> Iterator[tuple[int, str]]:
    """Yield tokens with their lines: words in lower case, strings as `''`, comments not at all."""
    position, line = 0, 1
    while match := TOKEN.match(sql, position):
        kind, text, end = match.lastgroup, match.group(), match.end()
        if kind == "unclosed":
            raise UnusableInputError(f"a quotation mark opened on line {line} is not closed")
        if kind == "comment":
            end = end_of_comment(sql, position, line)
        elif kind == "dollar":
            end = sql.find(text, end) + len(text)
            if end < match.end():
                raise UnusableInputError(f"the string that {text[:40]} opens on line {line} is not closed")
        if kind in ("dollar", "string"):
            yield line, "''"
        elif kind == "quoted":
            yield line, '"' + re.sub(r"\W", "_", text[text.index('"') + 1 : -1]) + '"'
        elif kind in ("word", "other"):
            yield line, text.lower()
        line += sql.count("\n", position, end)
        position = end


def end_of_comment(sql: str, position: int, line: int) -> int:
    """Comments nest in PostgreSQL, so count the marks."""
    depth = 0
    for mark in COMMENT_MARK.finditer(sql, position):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise UnusableInputError(f"the comment opened on line {line} is not closed")


def check(at: Statement, migration: Migration) -> None:
    text = at.text
    if re.match(r"begin(?: |$)|start transaction", text):
        migration.in_block = True
    elif re.match(r"(?:commit|end|rollback|abort)(?: |$)", text) and " to " not in text:
        migration.in_block = False
        migration.not_valid.clear()
    elif re.match(r"set (?:local |session )?lock_timeout ", text):
        migration.has_timeout = at.tokens[-1] not in ("0", "default")
    elif text.startswith("create "):
        check_create(at, migration)
    elif text.startswith("alter "):
        check_alter(at, migration)
    elif text.startswith(("update ", "delete ")):
        check_rows(at, migration)
    elif text.startswith("do "):
        migration.add("not-inspected", at)
    for pattern, rule in STATEMENTS:
        if pattern.match(text):
            migration.add(rule, at)
            migration.takes_lock(at)
            break
    else:
        if OUTSIDE_TRANSACTIONS.match(text) and migration.in_transaction:
            migration.add("needs-no-transaction", at)
    if text.startswith("drop ") and text.endswith(" cascade"):
        migration.add("cascade", at)


def check_create(at: Statement, migration: Migration) -> None:
    if table := TABLE_CREATED.match(at.text):
        migration.created.add(table[1])
        parent = re.search(rf" partition of {NAME}", at.text)
        if parent and parent[1] not in migration.created:
            migration.add("create-partition", at)
            migration.takes_lock(at)
    elif (index := INDEX_CREATED.match(at.text)) and "concurrently" not in at.tokens[2:4]:
        if not index[1] and index[2] not in migration.created:
            migration.add("index-not-concurrent", at)
            migration.takes_lock(at)


def check_alter(at: Statement, migration: Migration) -> None:
    if re.match(r"alter type .* add value ", at.text) and migration.in_transaction:
        migration.add("enum-value", at)
    head = TABLE_ALTERED.match(at.text)
    if head and head[1] not in migration.created:
        first, *others = at.parts()
        for action in [first[head.end() :], *others]:
            check_action(action, head[1], at, migration)


def check_action(action: str, table: str, at: Statement, migration: Migration) -> None:
    if action.startswith("validate constraint "):
        if table in migration.not_valid and migration.in_transaction:
            migration.add("validate-same-transaction", at)
        migration.validated.add(table)
        return
    if HARMLESS.match(action):
        return
    if action.startswith("detach partition ") and action.endswith((" concurrently", " finalize")):
        if migration.in_transaction and action.endswith(" concurrently"):
            migration.add("needs-no-transaction", at)
        return
    migration.takes_lock(at)
    if CONSTRAINT.match(action):
        check_constraint(action, table, at, migration)
    elif action.startswith("add "):
        check_new_column(action, at, migration)
    elif re.match(r"alter (?:column )?\S+ set not null", action):
        migration.add("set-not-null", at, severity="info" if table in migration.validated else "")
    for pattern, rule in ACTIONS:
        if pattern.match(action):
            migration.add(rule, at)
    if action.startswith("drop ") and action.endswith(" cascade"):
        migration.add("cascade", at)


def check_constraint(action: str, table: str, at: Statement, migration: Migration) -> None:
    if action.endswith(" not valid"):
        migration.not_valid.add(table)
    elif " check (" in action or " foreign key (" in action:
        migration.add("constraint-not-valid", at)
    elif " using index " not in action.partition("(")[0]:
        migration.add("unique-without-index", at)


def check_new_column(action: str, at: Statement, migration: Migration) -> None:
    default = action.partition(" default ")[2]
    if VOLATILE.search(default) or COMPUTED.search(action):
        migration.add("column-rewrite", at)
    elif " not null" in action and not default:
        migration.add("column-not-null", at)
    if re.search(r" (?:unique|primary key)(?: |$)", action):
        migration.add("unique-without-index", at)
    if " references " in action or " check (" in action:
        migration.add("constraint-not-valid", at, severity="warning")


def check_rows(at: Statement, migration: Migration) -> None:
    target = ROWS_CHANGED.match(at.text)
    filtered = any(token == "where" and depth == 0 for token, depth in zip(at.tokens, at.depths, strict=True))
    if target and not filtered and target[1] not in migration.created:
        migration.add("all-rows", at, severity="error" if at.tokens[0] == "delete" else "")


if __name__ == "__main__":
    sys.exit(main())
