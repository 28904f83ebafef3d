"""Frontmatter as strangers read it: the official TypeScript SDK and the `yaml` package, compared with us.

Whatever the SDK reads, we read alike, apart from a few spellings listed here
that we refuse on purpose. Whatever it refuses and we read, `validate` warns of.
"""

import base64
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import pytest

from skillwire.core import same_value
from skillwire.core.errors import FrontmatterError
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.skill import write_frontmatter
from skillwire.core.validation import validate
from skillwire.core.yaml12 import JsonValue

HERE = Path(__file__).parent

Answer: TypeAlias = Mapping[str, JsonValue]
"""What one reader made of a file: `value`, or an `error`."""

Ask: TypeAlias = Callable[[Iterable[bytes]], list[tuple[bytes, Answer, Answer]]]
"""Shows files to both strangers and returns, with each file, what the SDK and the `yaml` package said."""

HEAD = "name: demo\ndescription: Does things. Use when asked.\n"


@pytest.fixture(scope="module")
def ask() -> Ask:
    missing = ""
    if shutil.which("node") is None:
        missing = "node is not on the PATH"
    elif not (HERE / "node_modules" / "@modelcontextprotocol" / "server").is_dir():
        missing = "tests/interop/node_modules is not installed: run `npm ci` in tests/interop"
    if missing and (os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return _ask


def _ask(files: Iterable[bytes]) -> list[tuple[bytes, Answer, Answer]]:
    files = list(files)
    question = json.dumps([{"path": "demo", "base64": base64.b64encode(data).decode()} for data in files])
    done = subprocess.run(
        ["node", "frontmatter.mjs"],
        cwd=HERE,
        input=question.encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answers = cast("list[dict[str, Answer]]", json.loads(done.stdout))
    return [(data, answer["sdk"], answer["yaml"]) for data, answer in zip(files, answers, strict=True)]


SPELLINGS = [
    # words and numbers
    *(
        "x: yes",
        "x: No",
        "x: on",
        "x: y",
        "x: true",
        "x: True",
        "x: TRUE",
        "x: tRUE",
        "x: null",
        "x: ~",
        "x:",
        "x: Null",
    ),
    *(
        "x: 010",
        "x: 0o17",
        "x: 0o8",
        "x: 0x1F",
        "x: -0x1",
        "x: 0b11",
        "x: 1_000",
        "x: 1e3",
        "x: 1E-3",
        "x: .5",
        "x: 5.",
    ),
    *(
        "x: +1",
        "x: -0",
        "x: -0.0",
        "x: 1.0",
        "x: .",
        "x: +",
        "x: 1.2.3",
        "x: 12:30",
        "x: 12:30:45",
        "x: 2026-01-02",
    ),
    *(
        "x: 2026-01-02T03:04:05Z",
        "x: .inf",
        "x: -.INF",
        "x: .nan",
        "x: +.nan",
        "x: NaN",
        "x: 1e999",
        "x: 9007199254740993",
    ),
    *(
        "x: 18446744073709551615",
        "x: 0xFFFFFFFFFFFFFFFF",
        "x: -9223372036854775808",
        "x: =",
        "x: <<",
        "<<: {a: b}",
    ),
    # plain text
    *(
        "x: a b",
        "x: a #b",
        "x: a#b",
        "x: #b",
        "x: a:b",
        "x: a: b",
        "x: a:",
        "x: http://a.b:80/c?d#e",
        "x: a, b",
        "x: -a",
    ),
    *(
        "x: - a",
        "x: ?a",
        "x: ? a",
        "x: :a",
        "x: @a",
        "x: `a`",
        "x: %a",
        "x: !a b",
        "x: &a b",
        "x: *a",
        "x: ]a",
        "x: a]",
    ),
    *(
        "x: a\n  b",
        "x: a\n\n  b",
        "x: a\n  b: c",
        "x: a\n  - b",
        "x: a\n  # b\n  c",
        "x: a # b\n  c",
        "x:\n  a\n  b",
    ),
    *(
        "x: ---",
        "x: --- a",
        "x: ...",
        "x: é 日本 😀",
        "x: \u00a0a\u3000",
        "x: a\ufeffb",
        "x:\ta",
        "x: a\t# b",
        "x: a\tb",
    ),
    # quotes
    *(
        "x: 'it''s'",
        'x: "a\\"b\\\\"',
        'x: "\\x41\\u00e9\\U0001F600"',
        'x: "\\0\\a\\e\\N\\_\\L\\P\\/"',
        'x: "\\q"',
        'x: "\\\'"',
    ),
    *(
        "x: 'a",
        'x: "a',
        "x: 'a' # b",
        "x: 'a'#b",
        "x: 'a' b",
        "x: 'a\n  b'",
        'x: "a\n\n  b"',
        "x:\n  'a'",
        "x: ''",
        'x: ""',
    ),
    # blocks
    *(
        "x: |\n  a\n  b",
        "x: |-\n  a",
        "x: |+\n  a\n\n",
        "x: >\n  a\n  b\n\n  c",
        "x: >-\n  a\n   b\n  c",
        "x: >+\n  a\n",
    ),
    *(
        "x: |\n\n  a",
        "x: |\n  a\n # b\ny: c",
        "x: |\n # a\ny: b",
        "x: |2\n  a",
        "x: >-1\n a",
        "x: |0\n a",
        "x: | # b\n  a",
    ),
    *(
        "x: |#b\n  a",
        "x: | a\n  b",
        "x: |\ny: a",
        "x:\n|\n a",
        "x:\n  |\n  a",
        "x: |\n    \n  a",
        "x: |\n    \n  # a",
        "x: |\n  ---\n  a",
    ),
    # lists and mappings
    *(
        "x:\n- a\n- b",
        "x:\n  - a\n  -\n  - - b\n    - c",
        "x:\n  - a: b\n    c: d\n  -\n    e: f",
        "x:\n  a:\n    b: c\n  d: e",
    ),
    *(
        "x:\n  a: b\n c: d",
        "x:\n  a: b\n   c: d",
        "x: # a\n  b: c",
        "x:\n# a\n  b: c",
        "x:\n  - a # b\n  - # c\n    d",
        "- a",
    ),
    *(
        "  x: a",
        "x:\n  - |\n    a\n  - >\n    b\n  - 'c'\n  - [d]\n  - {e: f}",
        "x:\n  - a\n    b\n  - c",
        "x:\n    - a\n  - b",
    ),
    # keys
    *(
        "x: a\nx: b",
        "x: {a: 1, 'a': 2}",
        "1: a",
        "true: a",
        "null: a",
        "~: a",
        "'1': a",
        "'': a",
        ": a",
        "? a",
        "? a\n: b",
    ),
    *(
        "?\n  a\n: b",
        "?a: b",
        "x:\n  - ?a",
        "x:\n  ?a",
        "a b: c",
        "a : b",
        "'a' : b",
        '"a":b',
        "'a': b",
        "é: a",
        "x:y: a",
    ),
    *(
        "__proto__: a",
        "x: {__proto__: a}",
        "constructor: a",
        "[a]: b",
        "{a: b}: c",
        "&a b: c",
        "!!str a: b",
        "-a: b",
        "-: a",
    ),
    # flow
    *(
        "x: []",
        "x: {}",
        "x: [a, b]",
        "x: [a, b,]",
        "x: [a,, b]",
        "x: [,]",
        "x: {a: b, c: d}",
        "x: {a: b,}",
        "x: {a}",
        "x: {a: }",
    ),
    *(
        "x: {a:1}",
        'x: {"a":1}',
        'x: {"a" : 1}',
        "x: {a : 1}",
        "x: {a :b}",
        "x: {a:[1]}",
        "x: [a: b]",
        'x: ["a": b]',
        "x: [a:b]",
    ),
    *(
        "x: {a: [b, {c: d}]}",
        "x: [[a], [b]]",
        "x: [a] # b",
        "x: [a]#b",
        "x: [a] b",
        "x: [a",
        "x: [a,\n  b]",
        "x: {a: b,\n  c: d}",
    ),
    *(
        "x: [-]",
        "x: [-a]",
        "x: [- a]",
        "x: {a: -}",
        "x: [? a]",
        "x: {? a : b}",
        "x: [a?]",
        "x: {a: b?}",
        "x: [#a]",
        "x: [a#b]",
    ),
    *(
        "x: [a b, 'c', \"d\"]",
        "x: [1, 0o7, ~, yes, 1.5, '1']",
        "x: [!a b]",
        "x: [*a]",
        "x: [|]",
        "x: {1: a}",
        "x: {'': a}",
    ),
    # documents
    *(
        "...",
        "... # a",
        "--- # a",
        "---a: b",
        "x: a\n...\ny: b",
        "%YAML 1.1",
        "# a",
        "\n\n",
        "x: a\n\n# b\n\ny: c\n\n",
    ),
]

WHOLE = [
    f"---\n{HEAD}---\n",
    f"---\n{HEAD}---",
    f"---\n{HEAD}--- \t\nBody",
    f"--- \n{HEAD}---\nBody",
    f"---\t\n{HEAD}---\nBody",
    f"\ufeff---\n{HEAD}---\nBody",
    f"---\r\n{HEAD}x: |\r\n  a\r\n  b\r\n---\r\nBody",
    f"\n---\n{HEAD}---\n",
    f"---\n{HEAD}",
    f"---\n{HEAD}----\n",
    f"---\n{HEAD}---\n---\nx: y\n---\n",
    f"---\n--- # a document\n{HEAD}---\n",
    f"---\n%YAML 1.1\n--- # a document\n{HEAD}x: yes\n---\n",
    "---\n{name: demo, description: Use when asked}\n---\n",
    "---\n# a comment\n  name: demo\n  description: Use when asked\n---\n",
    "---\n---\n",
    "---\nname: other\ndescription: Use when asked\n---\n",
    "---\nname: demo\n---\n",
    "---\nname: demo\ndescription:\n---\n",
    f"---\n{HEAD}metadata: {{version: 1}}\n---\n",
    f"---\n{HEAD}metadata:\n---\n",
    f"---\n{HEAD}compatibility: ''\n---\n",
    f"---\n{HEAD}license: [MIT]\nallowed-tools: [Read]\n---\n",
    f"---\nname: demo\ndescription: {'😀' * 1024}\n---\n",
    f"---\nname: demo\ndescription: {'😀' * 1025}\n---\n",
]

# What the official SDK reads and we refuse, with our reason.
STRICTER = [
    # libyaml's grammar: a tab at the start of a line or after a hyphen, and `[:` or `[?`
    *(("yaml-syntax", text) for text in ("\t", "x: a\n\t\ny: b", "x: a\n\t# b", "x:\n  -\ta", "x: |\n  \ta")),
    *(("yaml-syntax", text) for text in ("x: [:a]", "x: {a: :b}", "x: [?a]", "x: {?a: b}", "x: {a: ?b}")),
    # characters that YAML forbids
    *(("yaml-syntax", f"x: {text}") for text in ("\x00", "\x01", "\x1b", "\x7f", "\x80", "\ufffe", "\uffff")),
    *(
        ("yaml-syntax", text)
        for text in ("\ufeffx: a", "x:\n\ufeffy: a", 'x: "\\ud83d\\ude00"', 'x: "\\ud83d"')
    ),
    # line ends that only some readers take for one
    *(("yaml-line-break", f"x: a{text}b") for text in ("\r", "\r  ", "\x85", "\u2028", "\u2029")),
    # integers no 64 bits hold, the 33rd level, a second document
    *(
        ("yaml-number", f"x: {text}")
        for text in ("18446744073709551616", "-9223372036854775809", "0x" + "f" * 17)
    ),
    ("yaml-too-deep", "x: " + "[" * 32 + "]" * 32),
    *(("yaml-documents", "--- a: b"), ("yaml-syntax", "... a: b")),
    # sizes
    ("yaml-too-large", "x: [" + "1, " * 10_000 + "]"),
    ("frontmatter-too-large", "# " + "x" * 65_536),
]


def skill_md(text: str) -> bytes:
    """Put more frontmatter behind a good name and description."""
    return f"---\n{HEAD}{text}\n---\n\nBody.\n".encode()


@pytest.mark.requirement("FMT-10")
@pytest.mark.requirement("OPEN-01")
def test_every_spelling_is_read_as_the_official_sdk_reads_it_or_warned_of(ask: Ask) -> None:
    answers = ask([*map(skill_md, SPELLINGS), *(text.encode() for text in WHOLE)])

    assert [problem for answer in answers for problem in disagreements(*answer)] == []
    assert sum("value" in sdk for _, sdk, _ in answers) > 100
    assert sum("error" in sdk for _, sdk, _ in answers) > 100


@pytest.mark.requirement("OPEN-01")
def test_what_only_the_official_sdk_reads_is_refused_for_a_reason(ask: Ask) -> None:
    answers = ask(skill_md(text) for _, text in STRICTER)

    outcomes = [(ours(data), "value" in sdk) for data, sdk, _ in answers]

    assert outcomes == [(reason, True) for reason, _ in STRICTER]


@pytest.mark.requirement("FMT-10")
@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize("seed", [2640, 20260921])
def test_random_frontmatter_is_read_as_the_official_sdk_reads_it_or_warned_of(ask: Ask, seed: int) -> None:
    writer = RandomYaml(random.Random(seed))
    texts = [writer.mapping(0, 0) if turn % 2 else writer.scribble() for turn in range(3_000)]

    answers = ask(map(skill_md, texts))

    assert [problem for answer in answers for problem in disagreements(*answer)] == []
    assert sum("value" in sdk for _, sdk, _ in answers) > 300
    assert sum("error" in sdk and isinstance(ours(data), dict) for data, sdk, _ in answers) > 300


@pytest.mark.requirement("SDK-04")
def test_frontmatter_we_write_is_read_alike_by_everyone(ask: Ask) -> None:
    source = random.Random(2640)
    fields = [random_fields(source) for _ in range(1_000)]

    answers = ask(f"---\n{write_frontmatter(written)}---\n".encode() for written in fields)

    for written, (data, sdk, npm) in zip(fields, answers, strict=True):
        assert all(same_value(read, written) for read in (ours(data), sdk.get("value"), npm.get("value"))), (
            written
        )


def disagreements(data: bytes, sdk: Answer, npm: Answer) -> list[str]:
    """Say where the three readers differ in a way that no finding tells of."""
    read = ours(data)
    found = validate("demo", {"SKILL.md": data})
    is_outside = any(finding.code in ("yaml-subset", "opening-blanks") for finding in found)
    problems: list[str] = []
    if "value" in sdk and not same_value(read, sdk["value"]):
        problems.append(f"the SDK reads {sdk['value']}, we {read}")
    if "value" in sdk and is_outside:
        problems.append("the SDK reads what we warn of")
    if "error" in sdk and not is_outside and not any(finding.is_error for finding in found):
        problems.append(f"the SDK says {sdk['error']!r}, and no finding does")
    if "value" in npm and isinstance(read, dict) and not same_value(read, npm["value"]):
        problems.append(f"yaml reads {npm['value']}, we {read}")
    return [f"{data.decode()!r}: {problem}" for problem in problems]


def ours(data: bytes) -> JsonValue:
    """Return the fields as we read them, or the reason for which we refuse them."""
    try:
        return dict(parse_skill_md(data).frontmatter.fields)
    except FrontmatterError as error:
        return error.reason


class RandomYaml:
    """Writes frontmatter that is often valid YAML, and rarely dull.

    It keeps clear of what STRICTER lists. Nor does it write lines of blanks
    after an indentation number, which the `yaml` package drops against YAML 1.2.
    """

    SCALARS = (
        *(
            "a",
            "a b",
            "?a",
            "-a",
            "1",
            "1.5",
            "0o7",
            "~",
            "yes",
            "null",
            "a#b",
            "a # c",
            "# c",
            "a, b",
            "a]",
            "a?b",
            "http://a:80/b",
        ),
        *(
            "'q'",
            '"q"',
            "'it''s'",
            '"e\\n"',
            "'q' # c",
            "'q'#c",
            "",
            "a: b",
            "a:",
            "é 😀",
            "@",
            "-",
            "? a",
            ":a",
            "*a",
            "&a b",
            "!t b",
        ),
        *(
            "[]",
            "{}",
            "[a]",
            "[a]#c",
            "[a, b,]",
            "[[a], {b: c}]",
            "[a: b]",
            "[-]",
            "[-a]",
            "{a: b}",
            "{a}",
            "{a: }",
            '{"a":1}',
            "{a:1}",
        ),
        *(
            "{a: b?}",
            "[x?y, z]",
            "p\n q",
            "p\n\n  q",
            "'m\n n'",
            '"m\n\n   n"',
            "[a,\n b]",
            "{a: b,\n  c: d}",
            "{a: -}",
        ),
    )
    KEYS = (
        "a",
        "b",
        "c d",
        '"q"',
        "'r'",
        '"s" ',
        "t ",
        "?u",
        "-v",
        "é",
        "1",
        "null",
        "__proto__",
        "? w",
        "x-y",
        "z:w",
        ":k",
        "<<",
    )
    LINES = ("text", "# not a comment", "- x", "a: b", "---", "...", "x  ", "'q", "?", "[")
    PIECES = (
        *(
            "a",
            "b",
            "?",
            "-",
            "- ",
            "? ",
            ": ",
            "'",
            '"',
            "[",
            "]",
            "{",
            "}",
            ", ",
            " ",
            "  ",
            "#",
            " #",
            "|",
            ">-",
            "|+",
        ),
        *(
            "\n",
            "\n ",
            "\n  ",
            "\n    ",
            "\n- ",
            "\n  - ",
            "a: ",
            "c:",
            '"d": ',
            "'e': ",
            "1",
            "~",
            "é",
            "\\",
            "%",
            "@",
            "&",
            "*",
            "!",
        ),
    )

    AVOIDED = re.compile(r"[\[{,:]\s*[?:]|[|>][-+]?[0-9]")

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def scribble(self) -> str:
        while True:
            text = "x: " + "".join(self._random.choices(self.PIECES, k=self._random.randint(1, 12)))
            if not self.AVOIDED.search(text):
                return text

    def mapping(self, indent: int, depth: int) -> str:
        rows: list[str] = []
        for number in range(self._random.randint(1, 3)):
            if self._chance(0.08):
                rows.append(self._random.choice(("", "  ", "# c", " " * indent + "# c")))
            key = f"k{number}" if self._chance(0.7) else self._random.choice(self.KEYS)
            rows.append(" " * indent + key + ":" + self._value(indent, depth))
        return "\n".join(rows)

    def _sequence(self, indent: int, depth: int) -> str:
        return "\n".join(" " * indent + self._item(indent, depth) for _ in range(self._random.randint(1, 3)))

    def _item(self, indent: int, depth: int) -> str:
        turn = self._random.random()
        if turn < 0.45:
            return "- " + self._scalar(indent + 1)
        if turn < 0.55:
            return "- " + self._block(indent)
        if turn < 0.7:
            return "- " + self.mapping(indent + 2, depth + 1).lstrip(" ")
        if turn < 0.8:
            return "- " + self._sequence(indent + 2, depth + 1).lstrip(" ")
        return "-" + self._value(indent, depth + 1)

    def _value(self, indent: int, depth: int) -> str:
        turn = self._random.random()
        if depth > 3 or turn < 0.35:
            return " " + self._scalar(indent + 1)
        if turn < 0.45:
            return " " + self._block(indent)
        if turn < 0.52:
            return "\n" + " " * (indent + self._random.randint(0, 3)) + self._scalar(indent + 2)
        comment = self._random.choice(("", " # c"))
        if turn < 0.75:
            return f"{comment}\n" + self.mapping(indent + self._random.choice((1, 2, 4)), depth + 1)
        return f"{comment}\n" + self._sequence(indent + self._random.choice((0, 2, 4)), depth + 1)

    def _scalar(self, indent: int) -> str:
        return self._random.choice(self.SCALARS).replace("\n", "\n" + " " * indent)

    def _block(self, indent: int) -> str:
        header = self._random.choice(("|", ">", "|-", ">-", "|+", ">+", "| # c", "|#c", "> ", "|1", ">2-"))
        column = indent + self._random.randint(1, 3)
        rows = [header]
        for _ in range(self._random.randint(0, 4)):
            if self._chance(0.2) and not set("12") & set(header):
                rows.append(" " * self._random.randint(0, column + 2))
            else:
                deeper = self._random.choice((0, 0, 0, 1, 2))
                rows.append(" " * (column + deeper) + self._random.choice(self.LINES))
        if self._chance(0.1):
            rows.append(" " * self._random.randint(0, indent) + "# c")
        return "\n".join(rows)

    def _chance(self, part: float) -> bool:
        return self._random.random() < part


def random_fields(source: random.Random) -> dict[str, JsonValue]:
    """Make fields that a skill may have, with every kind of text as key and value."""
    metadata: dict[str, JsonValue] = {
        random_text(source): random_text(source) for _ in range(source.randint(0, 3))
    }
    more = {random_text(source): random_value(source, 3) for _ in range(source.randint(0, 4))}
    return {
        **{key: value for key, value in more.items() if key != "compatibility"},
        "name": "demo",
        "description": random_text(source) + "x",
        "metadata": metadata,
    }


def random_value(source: random.Random, depth: int) -> JsonValue:
    turn = source.randrange(8 if depth else 6)
    if turn < 2:
        return random_text(source)
    if turn < 6:
        number = source.choice([0, -1, 2**53, 2**64 - 1, 0.5, 1e21, 1e-7, source.random()])
        return [None, True, number, source.randint(-1000, 1000)][turn - 2]
    if turn == 6:
        return [random_value(source, depth - 1) for _ in range(source.randint(0, 3))]
    return {random_text(source): random_value(source, depth - 1) for _ in range(source.randint(0, 3))}


def random_text(source: random.Random) -> str:
    tricky = (
        "1e3",
        "0o17",
        "yes",
        "null",
        "~",
        "a: b",
        "- a",
        "#",
        "'",
        '"',
        "\\",
        "\n",
        "\t",
        "\r",
        "---",
        "...",
        "{",
        "[",
        "?",
    )
    unseen = ("\x00", "\x1b", "\x7f", "\x85", "\u2028", "\ufeff", "\uffff", "😀", "é", " ", "x")
    return "".join(source.choices(tricky + unseen, k=source.randint(0, 4)))
