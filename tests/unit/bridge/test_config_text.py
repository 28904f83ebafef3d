"""One entry in a file of another program: nothing else differs, and removing it restores every byte."""

import json
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from skillwire.bridge.config_text import JSON, TOML, YAML, TextFormat
from skillwire.host import ConfigError

KEYS = ("servers", "skillwire")
ENTRY = {
    "command": '/home/zoë/"my" \\venv/skillwire',
    "args": ["bridge", "--config", "/a b.json"],
    "on": True,
}
OTHER = {**ENTRY, "args": ["bridge"]}

JSON_TEXTS = {
    "empty": "{}",
    "empty over lines": "{\n}\n",
    "no table": '{"a": [1, {"servers": 2}], "b": "}"}',
    "no table over lines": '{\n    "theme": "dark", // mine\n    "nested": {\n        "x": 1\n    }\n}\n',
    "empty table": '{\n  "servers": {},\n  "z": 1\n}',
    "empty table over lines": '{\n  "servers": {\n  }\n}',
    "table with a comment": '{\n  "servers": { // none yet\n  }\n}\n',
    "tabs": '{\n\t"servers": {\n\t\t"one": {"command": "x", "args": ["{", "}"]}\n\t}\n}\n',
    "comments": '// top\n{ /* { */ "servers": { "one": {}, // last, with a }\n }, }\n',
    "comment after the last": '{"servers": {"one": {} // a note\n}}',
    "block comment at the end": '{\n  "servers": {\n    "one": {} /* a */ // b\n    /* c */\n  }\n}',
    "trailing commas": '{\n  "servers": {\n    "one": {"command": "x",},\n  }, // c\n}\n',
    "windows lines": '{\r\n  "servers": {\r\n    "one": {}\r\n  }\r\n}\r\n',
    "escaped key": '{"serv\\u0065rs": {"one": {}}}',
    "look-alikes": '{"x": {"servers": {"skillwire": 1}}, "servers": {"one": {"skillwire": {}}}}',
}
TOML_TEXTS = {
    "empty": "",
    "a comment without an end": "# mine",
    "blank lines": "\n\n",
    "keys": 'model = "o"\napproval_policy = "never" # why\n',
    "no end": 'model = "o"',
    "other servers": '[servers.one]\ncommand = "x"\nargs = [\n  "[servers.skillwire]", # no\n]\n[tui]\n',
    "windows lines": 'model = "o"\r\n\r\n[servers.one]\r\ncommand = "x"\r\n',
    "windows lines without an end": 'model = "o"\r\n[servers.one]\r\ncommand = "x"',
    "many-line texts": 'a = """\n[servers.skillwire]\n"""\nb = \'\'\'\n[x]\'\'\'\nc = """a"""""\n',
    "dotted keys": 'servers.one.command = "x"\nservers."two".command = "y"\n',
    "inline tables": '[servers]\none = { command = "x", args = ["a"] }\n\n\n',
    "quoted headers": '["servers"."one"]\n"command" = "x"\n[[profile]]\nname = "]"\n[[profile]]\n',
    "dates and numbers": "d = 1979-05-27T07:32:00Z\nn = nan\ni = 0xff\nf = 1e5\n[ a . b ]\n",
}
YAML_TEXTS = {
    "empty": "",
    "comments alone": "# goose\n",
    "no end": "GOOSE_MODEL: x",
    "keys": 'GOOSE_MODEL: "x"  # why\n\n# more\nGOOSE_MODE: auto\n',
    "other servers": "servers:\n  one:\n    args:\n    - -y\n    enabled: true\n  # two:\n\nother: 1\n",
    "last in the file": "a: 1\nservers:\n    one:\n        type: builtin # note\n    two: {a: 1}",
    "flow": "servers: {one: {cmd: x, args: [a, b]}}  # note\nother: 1\n",
    "flow over lines": "servers: {\n  one: {cmd: x},\n  two: {cmd: y}\n}\n",
    "empty flow": "servers: {}\nother: [1, 2]\n",
    "block text": "servers:\n  one:\n    about: |\n      skillwire:\n        x\n\n\nother: >-\n  a\n\n  b\n",
    "null value": "servers:\n  one:\nother:\n",
    "document": "---\nservers:\n  one: 1\n...",
    "document without a table": "---\n  a: 1\n  b: 2\n...\n# end\n",
    "root in braces": "{a: 1}",
    "windows lines": "a: 1\r\nservers:\r\n  one:\r\n    x: 1\r\nb: 2\r\n",
}
CASES = [
    pytest.param(form, text, id=f"{name}: {case}")
    for name, form, texts in (
        ("JSON", JSON, JSON_TEXTS),
        ("TOML", TOML, TOML_TEXTS),
        ("YAML", YAML, YAML_TEXTS),
    )
    for case, text in texts.items()
]


def check(form: TextFormat, text: str) -> str:
    """Add, update and remove the entry, and return the text that had it."""
    before: Any = form.parse(text)

    added = form.with_entry(text, KEYS, ENTRY)
    updated = form.with_entry(added, KEYS, OTHER)

    whole = {**before, "servers": {**before.get("servers", {}), "skillwire": ENTRY}}
    assert repr(form.parse(added)) == repr(whole)
    assert repr(form.parse(updated)) == repr({**whole, "servers": {**whole["servers"], "skillwire": OTHER}})
    assert form.with_entry(added, KEYS, ENTRY) == added
    assert form.without_entry(updated, KEYS) == text
    kept = iter(added)
    assert all(character in kept for character in text)
    assert form.without_entry(added, KEYS) == text
    return added


@pytest.mark.parametrize(("form", "text"), CASES)
def test_only_the_entry_differs_and_removing_it_restores_every_byte(form: TextFormat, text: str) -> None:
    added = check(form, text)

    assert ("\r\n" in added) == ("\r\n" in text)
    assert added.count("\r\n") in (0, added.count("\n"))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (JSON, '{"servers": []}'),
        (JSON, "[]"),
        (JSON, '{"a": 1, "a": 2}'),
        (JSON, '{"servers": {"skillwire": {}, "skillwire": {}}}'),
        (JSON, '{"a": '),
        (JSON, "[" * 100_000),
        (TOML, 'servers = { one = { command = "x" } }\n'),
        (TOML, 'servers = "x"\n'),
        (TOML, "[[servers]]\nname = 1\n"),
        (TOML, "a = \n"),
        (TOML, "a = " + "[" * 100_000),
        (YAML, "servers:\nother: 1\nservers: {}\n"),
        (YAML, "base: &b {x: 1}\nservers: *b\n"),
        (YAML, "servers: !!set {a, b}\n"),
        (YAML, "- a\n"),
        (YAML, "a: [\n"),
        (YAML, "a: 1\n---\nb: 2\n"),
    ],
)
def test_a_text_in_which_it_cannot_be_put_alone_is_refused(form: TextFormat, text: str) -> None:
    with pytest.raises(ConfigError):
        form.with_entry(text, KEYS, ENTRY)


LAYOUTS: dict[str, tuple[TextFormat, str, str]] = {
    "JSON, first of several": (
        JSON,
        '{\n  "servers": {\n    "skillwire": {"command": "x"}, // ours\n    "one": {}\n  }\n}\n',
        '{\n  "servers": {\n    // ours\n    "one": {}\n  }\n}\n',
    ),
    "JSON, on one line": (JSON, '{"servers": {"skillwire": {}, "one": {}}}', '{"servers": {"one": {}}}'),
    "JSON, after a comment": (
        JSON,
        '{"servers": {"one": {}, // 1\n "skillwire": {}, "two": {}}}',
        '{"servers": {"one": {}, // 1\n "two": {}}}',
    ),
    "TOML, with tables below it": (
        TOML,
        '[servers.skillwire]\ncommand = "x" # a\n\n[servers.skillwire.tools.x]\nm = "a"\n\n# b\n[tui]\n',
        "\n# b\n[tui]\n",
    ),
    "TOML, in two places": (
        TOML,
        "[servers.skillwire]\na = 1\n[tui]\nb = 1\n[servers.skillwire.env]\nc = 1\n",
        "[tui]\nb = 1\n",
    ),
    "TOML, inline": (TOML, "[servers]\none = {}\nskillwire = {a = 1} # x\n", "[servers]\none = {}\n"),
    "TOML, dotted": (
        TOML,
        "[servers]\nskillwire.a = 1\none.b = 1\nskillwire.c = 2",
        "[servers]\none.b = 1\n",
    ),
    "YAML, first of several": (
        YAML,
        "servers:\n  skillwire:\n    a:\n    - 1\n  # one\n  one: 1\n",
        "servers:\n  # one\n  one: 1\n",
    ),
    "YAML, first in braces": (YAML, "servers: {skillwire: {a: 1}, one: 1}\n", "servers: {one: 1}\n"),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_an_entry_is_removed_wherever_a_person_or_a_client_has_put_it(case: str) -> None:
    form, text, expected = LAYOUTS[case]

    assert form.without_entry(text, KEYS) == expected


UPDATES: dict[str, tuple[TextFormat, str, str]] = {
    "JSON": (
        JSON,
        '{\n"servers": {"skillwire": {\n  "command": "old", // c\n  "env": {}, // d\n }}}',
        '{\n"servers": {"skillwire": {\n  "command": "new", // c\n  "env": {}, // d\n'
        '  "args": [\n    "bridge"\n  ],\n }}}',
    ),
    "TOML": (
        TOML,
        '[servers.skillwire] # a\ncommand = """old""" # b\ndefault = "x"\n',
        '[servers.skillwire] # a\nargs = ["bridge"]\ncommand = "new" # b\ndefault = "x"\n',
    ),
    "YAML": (
        YAML,
        "servers:\n  skillwire:\n    # a\n    command: old # b\n    args:\n    - x\n    - y\n    t: 1\n",
        'servers:\n  skillwire:\n    # a\n    command: "new" # b\n    args: ["bridge"]\n    t: 1\n',
    ),
}


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_keeps_what_the_user_has_added_to_the_entry(case: str) -> None:
    form, text, expected = UPDATES[case]

    assert form.with_entry(text, KEYS, {"command": "new", "args": ["bridge"]}) == expected


# Texts that nobody thought of.


names = st.text("abcx_-.é \"'#/{}[]:,", min_size=1, max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(names, values, max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """Return a table with some values, and perhaps a table of servers among them."""
    members: list[tuple[str, object]] = [*draw(st.dictionaries(names, values, max_size=3)).items()]
    if draw(st.booleans()):
        members.insert(draw(st.integers(0, 3)), ("servers", draw(tables)))
    return dict(members)


gaps = st.lists(
    st.sampled_from(["", "", " ", "\t", "\n", "\n  ", "// }, {\n", '/* " */', "/**/\n\n"]),
    min_size=1,
    max_size=9,
)


def as_jsonc(value: object, gap: Callable[[], str], trailing: bool) -> str:
    """Return JSON with what `gap` returns between any two tokens."""
    items: Sequence[str]
    if isinstance(value, dict):
        found = cast(dict[str, object], value)
        items = [
            f"{json.dumps(key)}{gap()}:{gap()}{as_jsonc(item, gap, trailing)}" for key, item in found.items()
        ]
    elif isinstance(value, list):
        items = [as_jsonc(item, gap, trailing) for item in cast(list[object], value)]
    else:
        return json.dumps(value)
    ends = "{}" if isinstance(value, dict) else "[]"
    comma = f"{gap()}," if trailing and items else ""
    return f"{ends[0]}{gap()}{f'{gap()},{gap()}'.join(items)}{comma}{gap()}{ends[1]}"


def in_turn(parts: Sequence[str]) -> Callable[[], str]:
    """Return a function that returns the parts in turn, for ever."""
    count = iter(range(10**9))
    return lambda: parts[next(count) % len(parts)]


@given(documents(), gaps, st.booleans(), st.sampled_from([None, 1, 4, "\t"]), st.sampled_from(["\n", "\r\n"]))
def test_any_json_gets_one_entry_and_loses_it_again(
    document: dict[str, object], between: list[str], trailing: bool, indent: int | str | None, newline: str
) -> None:
    check(JSON, as_jsonc(document, in_turn(between), trailing).replace("\n", newline))
    check(JSON, json.dumps(document, indent=indent).replace("\n", newline))


@given(
    documents(),
    st.sampled_from([None, False, True]),
    st.integers(2, 5),
    st.sampled_from(["", "\n", "# c\n", "# c"]),
)
def test_any_yaml_gets_one_entry_and_loses_it_again_or_is_refused(
    document: dict[str, object], style: bool | None, indent: int, end: str
) -> None:
    text = (
        yaml.safe_dump(document, default_flow_style=style, indent=indent, allow_unicode=True, sort_keys=False)
        + end
    )
    try:
        added = YAML.with_entry(text, KEYS, ENTRY)
    except ConfigError:
        return
    assert added != text
    check(YAML, text)


keys = st.sampled_from(["a", '"b c"', "'d'", "servers", "one", "skill"])
toml_values = st.sampled_from(
    [
        '"x"',
        "'y # no'",
        '"""\n[servers.skillwire]\n"""',
        "[1, # c\n 2,\n]",
        "{ a = 1 }",
        "1.5",
        "true",
        "{}",
        "'''\n''''",
    ]
)
dotted = st.lists(keys, min_size=1, max_size=3).map(".".join)
statements = st.one_of(
    st.builds("{} = {}".format, dotted, toml_values),
    st.builds("[{}]".format, dotted),
    st.sampled_from(["", "# c", "  "]),
)


@given(st.lists(statements, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_toml_gets_one_entry_and_loses_it_again_or_is_refused(
    lines: list[str], newline: str, has_end: bool
) -> None:
    text = ("\n".join(lines) + ("\n" if has_end else "")).replace("\n", newline)
    try:
        tomllib.loads(text)
        TOML.with_entry(text, KEYS, ENTRY)
    except (tomllib.TOMLDecodeError, ConfigError):
        return
    added = TOML.with_entry(text, KEYS, ENTRY)
    assert TOML.without_entry(added, KEYS) == text


@pytest.mark.parametrize("form", [JSON, TOML, YAML])
def test_an_edit_that_would_change_anything_else_is_refused(form: TextFormat) -> None:
    text = form.with_entry(form.with_entry(form.blank, ("servers", "one"), OTHER), KEYS, ENTRY)
    careless = TextFormat(
        form.parse,
        lambda _, path, value: form.with_value(form.blank, path, value),
        lambda text, path: form.without_value(text, path[:-1]),
        form.blank,
    )

    for edit in (lambda: careless.with_entry(text, KEYS, OTHER), lambda: careless.without_entry(text, KEYS)):
        with pytest.raises(ConfigError):
            edit()
