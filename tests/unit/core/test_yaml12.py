"""YAML as both sides of the wire read it: YAML 1.2 core typing, and every disputed text refused."""

import json
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.finding import RULES
from skillwire.core.yaml12 import (
    MAX_DEPTH,
    MAX_NODES,
    Event,
    JsonValue,
    YamlRefusedError,
    parse_simple,
    parse_yaml,
)

properties = settings(deadline=None, max_examples=100)

REASONS = {
    *"syntax quote alias tag directive duplicate-key non-string-key number too-deep".split(),
    *("too-large", "documents", "line-break"),
}

STRINGS = [
    *"yes no on off y n YES tRUE nULL none nil NaN nan Infinity inf".split(),
    *("2026-01-02", "2026-01-02T03:04:05Z", "12:30", "12:30:45", "190:20:30"),
    *("1_000", "0b101", "0o8", "0o", "0x", "0xg", "-0x1F", "+0o7", "0O17", "0X1F", "1,000", "1 000"),
    *". .. ...x + -x -- +. -. .e3 1e 1e+ e3 1.2.3 0.0.0 +.nan 1-".split(),
    *("=", "<<", "a:b", "::x", ":x", "?x", "a#b", "a, b", "a]", "a}", "http://x:80/y?z#w", "١٢", "½"),
    *("null.", "~x", "é", "日本語", "😀", "\u00a0x", "x\ufeffy", "a\tb", "---x", "--- x"),
]

NUMBERS: list[tuple[str, JsonValue]] = [
    *(("0", 0), ("7", 7), ("-7", -7), ("+7", 7), ("010", 10), ("-007", -7), ("-0", 0), ("00", 0)),
    *(("0o17", 15), ("0o0", 0), ("0x1F", 31), ("0xff", 255), ("0xDeadBeef", 3735928559)),
    *(("1.0", 1.0), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("+.5", 0.5), ("-.5", -0.5), ("-0.0", -0.0)),
    *(("1e3", 1000.0), ("1E3", 1000.0), ("1e+3", 1000.0), ("1e-3", 0.001), ("1.e3", 1000.0), (".5e1", 5.0)),
    *(
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0xFFFFFFFFFFFFFFFF", 2**64 - 1),
    ),
    *(("1e308", 1e308), ("-1e308", -1e308), ("1e-999", 0.0), ("9007199254740993", 2**53 + 1)),
]

WORDS: list[tuple[str, JsonValue]] = [
    *(("", None), ("~", None), ("null", None), ("Null", None), ("NULL", None), ("# only a comment", None)),
    *(("true", True), ("True", True), ("TRUE", True), ("false", False), ("False", False), ("FALSE", False)),
]

QUOTED: list[tuple[str, str]] = [
    *(("'1'", "1"), ('"1"', "1"), ("'null'", "null"), ('""', ""), ("''", ""), ("'true'", "true")),
    *(("'it''s'", "it's"), ('"a\\tb\\n"', "a\tb\n"), ('"\\x41\\u00e9\\U0001F600"', "Aé😀")),
    *(('"\\0\\a\\b\\e\\f\\v\\r"', "\0\a\b\x1b\f\v\r"), ('"\\N\\_\\L\\P"', "\x85\xa0\u2028\u2029")),
    *(
        ('"\\/"', "/"),
        ("'a\\nb'", "a\\nb"),
        ("'&x *y !z'", "&x *y !z"),
        ("'a\n\n  b'", "a\nb"),
        ('"a\n  b"', "a b"),
    ),
    *(
        ("|\n  1", "1\n"),
        ("|-\n  1", "1"),
        ("|+\n  1\n", "1\n\n"),
        (">\n  a\n  b\n", "a b\n"),
        (">-\n  1", "1"),
    ),
    *(
        ("|\n  null\n", "null\n"),
        (">-\n  true", "true"),
        ("|\n  a: b\n  - c\n", "a: b\n- c\n"),
        ("|2-\n   x", " x"),
    ),
]


@pytest.mark.requirement("FMT-10")
@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize(
    ("written", "value"), [*((text, text) for text in STRINGS), *NUMBERS, *WORDS, *QUOTED], ids=repr
)
def test_a_value_has_the_type_the_core_schema_gives_it(written: str, value: JsonValue) -> None:
    parsed = parse_yaml(f"key: {written}\n")

    assert exactly(parsed) == exactly({"key": value})


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("just text", "just text"),
        ("- 1\n- [a, {b: c}]\n- - d\n", [1, ["a", {"b": "c"}], ["d"]]),
        ('{"a":1,"b":[true,null,""]}', {"a": 1, "b": [True, None, ""]}),
        ("a:\n  b:\n    - c: 1\n      d:\n    -\n", {"a": {"b": [{"c": 1, "d": None}, None]}}),
        ("a:\r\n  - b\r\n  - |\r\n    c\r\n", {"a": ["b", "c\n"]}),
        ("'1': a\n'': b\n'null': c\n<<: {d: e}\n", {"1": "a", "": "b", "null": "c", "<<": {"d": "e"}}),
        ("? a\n: b\n? c\n", {"a": "b", "c": None}),
        ("key with spaces : a\n日本: b\n", {"key with spaces": "a", "日本": "b"}),
        ("--- {a: b}\n...\n# the end\n", {"a": "b"}),
        ("a:\tb\nc: d\t# e\n", {"a": "b", "c": "d"}),
        ("__proto__: a\nconstructor: b\n", {"__proto__": "a", "constructor": "b"}),
    ],
)
def test_a_document_becomes_the_value_json_would_have(written: str, value: JsonValue) -> None:
    parsed = parse_yaml(written)

    assert exactly(parsed) == exactly(value)


REFUSED = [
    *(
        ("number", f"a: 1\nb: {word}", 1)
        for word in (".inf", ".Inf", ".INF", "-.inf", "+.INF", ".nan", ".NaN", ".NAN")
    ),
    *(("number", f"a: {text}", 0) for text in ("1e999", "-1e999", "1" * 400 + ".5")),
    *(("number", f"a: {number}", 0) for number in (2**64, -(2**63) - 1, 10**200)),
    *(("number", f"a: {text}", 0) for text in ("0x10000000000000000", "0o" + "7" * 30, "9" * 60_000)),
    ("number", ".inf: a", 0),
    ("duplicate-key", "a: 1\nb: 2\na: 3", 2),
    ("duplicate-key", "a: 1\n'a': 2", 1),
    ("duplicate-key", "a:\n  b: 1\n  c: 2\n  b: 3", 3),
    ("duplicate-key", "a: [{b: 1, b: 2}]", 0),
    ("duplicate-key", "<<: 1\n<<: 2", 1),
    *(
        ("non-string-key", f"x: y\n{key}: a", 1)
        for key in ("1", "1.5", "true", "False", "null", "~", "0x1F", "1e3")
    ),
    ("non-string-key", "? 1\n: a", 0),
    ("non-string-key", "?\n: a", 0),
    ("non-string-key", "[a]: b", 0),
    ("non-string-key", "{a: b}: c", 0),
    ("non-string-key", "? [a]\n: b", 0),
    ("non-string-key", "? {a: b}\n: c", 0),
    ("non-string-key", "a:\n  2: b", 1),
    ("non-string-key", "a: {true: b}", 0),
    ("alias", "a: &x b", 0),
    ("alias", "a: 1\nb: &x\n  c: d", 1),
    ("alias", "a: &x [b]", 0),
    ("alias", "&x a: b", 0),
    ("alias", "a: 1\nb: *x", 1),
    ("alias", "*x : a", 0),
    *(
        ("tag", f"a: 1\nb: {tag} c", 1)
        for tag in ("!!str", "!x", "!", "!<tag:yaml.org,2002:str>", "!!timestamp")
    ),
    ("tag", "!!map {a: b}", 0),
    ("tag", "a: !!set [b]", 0),
    ("tag", "!!str a: b", 0),
    ("tag", "a: !%ED%A0%80 b", None),
    ("tag", "a: !<%ED%A0%80> b", None),
    ("directive", "%YAML 1.1\n---\na: yes", 0),
    ("directive", "%YAML 1.2\n---\na: b", 0),
    ("directive", "%TAG ! tag:example.com,2000:\n---\na: b", 0),
    ("documents", "a: b\n---\nc: d", 1),
    ("documents", "a: b\n...\n---\nc: d", 2),
    ("documents", "---\n---\n", 1),
    ("line-break", "a: b\nc: d\x85e", 1),
    ("line-break", "a: b\u2028c", 0),
    ("line-break", "a: 'b\u2029c'", 0),
    ("line-break", "a: b\n# c\u2028", 1),
    ("line-break", "a: b\r  c", 0),
    ("line-break", "a: b\r\nc: d\re: f", 1),
    ("line-break", "a: b\r\r\n", 0),
    ("syntax", "\ufeffa: b", 0),
    ("syntax", "a:\n\ufeffb: c", 1),
    ("syntax", "a: é\nb: \x00", 1),
    ("syntax", "é: ééééé\nb: \x01\nc: d\ne: f", 1),
    *(
        ("syntax", f"a: b\nc: {character}", 1)
        for character in "\x01\x07\x08\x0b\x0c\x0e\x1b\x1f\x7f\x80\x9f\ufffe\uffff"
    ),
    ("syntax", "a: b\nc: \ud800", 1),
    ("syntax", 'a: "\\ud83d\\ude00"', 0),
    ("syntax", 'a: "\\udc00"', 0),
    ("syntax", 'a: "\\U00110000"', 0),
    ("syntax", 'a: "\\q"', 0),
    ("syntax", "a: [?b]", 0),
    ("syntax", "a: 1\nb: {?c: d}", 1),
    ("syntax", "a: b: c", 0),
    ("syntax", "a: b\n c: d", 1),
    ("syntax", "a: b\nc", 2),
    ("quote", "a: 'b", 0),
    ("syntax", "a: b\n\tc: d", 1),
    ("syntax", "a:\n\t- b", 1),
    ("syntax", "\ta: b", 0),
    ("syntax", "a: |\n\tb", 1),
    ("syntax", "a: [b", 1),
    ("syntax", "a: b]: c", 0),
    ("syntax", "a: @b", 0),
    ("syntax", "a: `b", 0),
    ("syntax", "a: %b", 0),
    ("syntax", "%FOO bar\n---\na: b", 0),
    ("syntax", "a" * 1100 + ": b", 0),
]


@pytest.mark.requirement("FMT-10")
@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize(("reason", "written", "line"), REFUSED, ids=lambda part: repr(part)[:40])
def test_what_readers_could_take_differently_is_refused_with_its_line(
    reason: str, written: str, line: int | None
) -> None:
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml(written)

    assert (caught.value.reason, caught.value.line) == (reason, line)


def test_every_reason_for_a_refusal_is_shown_above_and_has_a_rule() -> None:
    shown = {reason for reason, *_ in REFUSED} | {"too-deep", "too-large"}

    assert shown == REASONS
    assert {f"yaml-{reason}" for reason in REASONS} <= RULES.keys()


@pytest.mark.requirement("FMT-10")
@pytest.mark.parametrize("shape", ["flow", "block", "mixed"])
def test_thirty_two_levels_are_read_and_one_more_is_refused(shape: str) -> None:
    deepest = parse_yaml(nested(MAX_DEPTH, shape))
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml(nested(MAX_DEPTH + 1, shape))

    assert (MAX_DEPTH, levels(deepest)) == (32, 32)
    assert caught.value.reason == "too-deep"


@pytest.mark.requirement("FMT-10")
def test_ten_thousand_values_are_read_and_one_more_is_refused() -> None:
    fits = "a: [" + "1," * (MAX_NODES - 3) + "]"  # the mapping, its key and the list count too

    read = parse_yaml(fits)
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml(fits.replace("[", "[1,"))

    assert read == {"a": [1] * (MAX_NODES - 3)}
    assert caught.value.reason == "too-large"


@pytest.mark.requirement("FMT-10")
@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        ("".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30)), "alias"),
        ("[" * 60_000, "too-deep"),
        ("- " * 30_000, "too-deep"),
        ("a: " + "{a: " * 15_000, "too-deep"),
        ("? " * 30_000, "non-string-key"),
        ("[" + "[]," * 20_000, "too-large"),
        ("-\n" * 30_000, "too-large"),
        ("a: " + ":" * 60_000, "syntax"),
        ('"' * 60_000, "syntax"),
        ("a: [" + "\n," * 30_000, "syntax"),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_a_bomb_is_refused_before_it_grows(bomb: str, reason: str) -> None:
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml(bomb)

    assert caught.value.reason == reason


def test_an_observer_sees_every_node_with_its_depth_and_place() -> None:
    seen: list[tuple[str, str, int, bool, int]] = []

    def observe(kind: type[object], event: Event, depth: int, is_key: bool) -> None:
        value = event.value if kind is yaml.ScalarEvent else ""
        seen.append((kind.__name__, value, depth, is_key, event.start_mark.index))

    parse_yaml("é: [b]\r\nc: d\n", observe)

    assert seen == [
        ("DocumentStartEvent", "", 0, False, 0),
        ("MappingStartEvent", "", 0, False, 0),
        ("ScalarEvent", "é", 1, True, 0),
        ("SequenceStartEvent", "", 1, False, 3),
        ("ScalarEvent", "b", 2, False, 4),
        ("SequenceEndEvent", "", 1, False, 5),
        ("ScalarEvent", "c", 1, True, 8),
        ("ScalarEvent", "d", 1, False, 11),
        ("MappingEndEvent", "", 0, False, 13),
        ("DocumentEndEvent", "", 0, False, 13),
    ]


# Text that JSON allows bare inside a string and YAML allows too.
plain_text = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters=[*map(chr, range(0x7F, 0xA0)), "\u2028", "\u2029", "\ufffe", "\uffff"],
    ),
    max_size=20,
)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(plain_text, children, max_size=4),
    max_leaves=15,
)


@pytest.mark.requirement("FMT-10")
@properties
@given(st.dictionaries(plain_text, json_values, max_size=5), st.sampled_from([None, 2]))
def test_json_text_is_read_as_json(value: dict[str, JsonValue], indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=False, indent=indent)

    assert exactly(parse_yaml(written)) == exactly(value)


PIECES = [
    *"a ? : [ ] { } , # | >".split(),
    *("b: ", "- ", "? ", ": ", "'", '"', " ", "  ", "\t"),
    *"&a *a ! !!str % --- ... @ `".split(),
    *("\n", "\n  ", "\r", "\r\n", "%YAML 1.1", "\\", "\\u"),
    *("1", ".inf", "0x", "~", "true", "\x85", "\u2028", "\ufeff", "\ud800", "\0", "😀", "<<", "!%ED%A0%80 "),
]


@properties
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join) | st.text())
@example("!<%FF> a")
@example("\ufeff")
@example("a: !<!%C3%28> b")
def test_any_text_gives_a_json_value_or_a_refusal(text: str) -> None:
    try:
        value = parse_yaml(text)
    except YamlRefusedError as refusal:
        assert refusal.reason in REASONS
        assert refusal.line is None or 0 <= refusal.line <= text.count("\n") + 1
    else:
        json.dumps(value, allow_nan=False)
        assert levels(value) <= MAX_DEPTH


def exactly(value: JsonValue) -> str:
    """Spell a value so that `1`, `1.0` and `True` differ."""
    return json.dumps(value)


def nested(depth: int, shape: str) -> str:
    if shape == "flow":
        return "[" * depth + "]" * depth
    if shape == "block":
        return "".join(f"{' ' * level}k:\n" for level in range(depth))
    pairs, rest = divmod(depth - 1, 2)
    return "a: " + "[{b: " * pairs + "[" * rest + "x" + "]" * rest + "}]" * pairs


def levels(value: JsonValue) -> int:
    """Count the collections on the way to the deepest value."""
    return 1 + max(map(levels, children(value)), default=0) if isinstance(value, dict | list) else 0


def children(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


# The fast way for simple frontmatter


def ignore(_kind: type[object], _event: Event, _depth: int, _is_key: bool) -> None:
    pass


def fully_parsed(text: str) -> "JsonValue | str":
    """Read with the full reader, which any observer asks for; or say why it refuses."""
    try:
        return parse_yaml(text, ignore)
    except YamlRefusedError as error:
        return f"refused: {error.reason}"


keys = st.sampled_from(["a", "b", "name", "null", "yes", "x-1", "True"]) | st.text("ab-_1:#", max_size=4)
values = st.sampled_from(
    [
        *("", " text", " two words", ' "quoted: # text"', " true", " Null", " y", " 1", " |"),
        *(" a: b", " a #b", " a:", " a "),
    ]
) | st.text(alphabet=" abz:#\"'-[]{}!&*%@`?,|>~.\\\t", max_size=6)
lines = st.builds("{}{}:{}".format, st.sampled_from(["", "", "  ", "   "]), keys, values) | st.sampled_from(
    ["", "# note", "---", "...", "- item", "  ", "text"]
)


@given(text=st.lists(lines, max_size=6).map("\n".join))
@settings(deadline=None, max_examples=2000)
def test_where_the_fast_reader_answers_the_full_one_answers_the_same(text: str) -> None:
    fast = parse_simple(text)

    assert fast is None or fast == fully_parsed(text)


def test_the_fast_reader_takes_what_most_skills_have() -> None:
    text = 'name: refunds\ndescription: Use when asked.\nmetadata:\n  version: "2.1"\n  owner: billing\n'

    assert parse_simple(text) == {
        "name": "refunds",
        "description": "Use when asked.",
        "metadata": {"version": "2.1", "owner": "billing"},
    }


def test_the_fast_reader_leaves_long_texts_to_the_full_one() -> None:
    text = "".join(f"key-{number}: text\n" for number in range(6000))

    assert parse_simple(text) is None
    assert fully_parsed(text) == "refused: too-large"
