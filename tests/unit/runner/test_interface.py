"""`scripts/manifest.json`: what is understood of it, and what a mistake or a lie in it comes to."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from skillwire.core.yaml12 import JsonValue
from skillwire.runner.interface import (
    MAX_MANIFEST_SIZE,
    MAX_PROBLEMS,
    ScriptInterface,
    interface_of,
    parse_interfaces,
)
from skillwire.runner.policy import MIB, Limits, is_host, is_secret_name

ROOT = Path(__file__).parents[3]
PATH = "scripts/a.py"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["description", "arguments", "outputs", "limits", "network", "secrets", "args", "x"])


def declare(**members: JsonValue) -> tuple[ScriptInterface, list[str]]:
    content = json.dumps({"scripts": {"a.py": members}}).encode()
    interfaces, problems = parse_interfaces(content)
    assert (interfaces[PATH], problems) == interface_of(content, PATH)
    return interfaces[PATH], problems


@pytest.mark.requirement("EXEC-15")
def test_everything_a_script_declares_is_understood() -> None:
    schema: JsonValue = {"type": "object", "properties": {"city": {"type": "string"}}}

    interface, problems = declare(
        description="Tell the weather.",
        arguments=schema,
        outputs={"stdout": "One line.", "files": ["map.png"]},
        limits={"wall_seconds": 2.5, "memory_mib": 64, "processes": 3, "disk_mib": 1.5, "output_mib": 0},
        network=["api.example.com", "example.org:8443"],
        secrets=["API_KEY"],
        args="argv",
    )

    assert problems == []
    assert interface == ScriptInterface(
        description="Tell the weather.",
        arguments={"type": "object", "properties": {"city": {"type": "string"}}},
        stdout="One line.",
        outputs=("map.png",),
        limits={
            "wall_seconds": 2.5,
            "memory_bytes": 64 * MIB,
            "processes": 3,
            "disk_bytes": MIB + MIB // 2,
            "output_bytes": 0,
        },
        network=("api.example.com", "example.org:8443"),
        secrets=("API_KEY",),
        takes_argv=True,
    )
    assert Limits().with_requested(interface.limits, Limits()).wall_seconds == 2.5


def test_the_examples_declare_their_scripts_without_a_mistake() -> None:
    paths = list((ROOT / "examples" / "skills").rglob("scripts/manifest.json"))

    assert paths
    for path in paths:
        interfaces, problems = parse_interfaces(path.read_bytes())
        assert problems == []
        assert {ROOT / path.parent.parent / script for script in interfaces} <= set(path.parent.iterdir())


def test_network_may_be_refused_outright() -> None:
    assert declare(network=False) == (ScriptInterface(), [])


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("description", 5),
        ("description", "x" * 5000),
        ("outputs", []),
        ("outputs", {"stdout": 1}),
        ("outputs", {"files": [1]}),
        ("outputs", {"files": "map.png"}),
        ("outputs", {"colour": "red"}),
        ("limits", []),
        ("limits", {"wall_seconds": -1}),
        ("limits", {"wall_seconds": 0}),
        ("limits", {"wall_seconds": True}),
        ("limits", {"wall_seconds": "10"}),
        ("limits", {"wall_seconds": 10**400}),
        ("limits", {"memory_mib": 1e300}),
        ("limits", {"memory_mib": None}),
        ("limits", {"processes": 1.5}),
        ("limits", {"memory_bytes": 1024}),
        ("limits", {"flood_mib": 1024}),
        ("network", True),
        ("network", "example.com"),
        ("network", ["*"]),
        ("network", [5]),
        ("secrets", "API_KEY"),
        ("secrets", ["../etc/passwd"]),
        ("secrets", [None]),
        ("args", "shell"),
        ("args", ["argv"]),
        ("colour", "red"),
    ],
)
def test_what_is_malformed_gives_a_script_nothing_and_is_told(member: str, value: JsonValue) -> None:
    interface, problems = declare(**{member: value})

    assert interface == ScriptInterface()
    assert len(problems) == 1
    assert problems[0].startswith("'a.py': ")


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    "schema",
    [
        "object",
        ["object"],
        {"type": "objekt"},
        {"properties": []},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"patternProperties": {"^(a+)+$": {}}},
        {"description": "x" * 70_000},
    ],
)
def test_a_script_whose_schema_cannot_be_used_has_a_problem(schema: JsonValue) -> None:
    interface, problems = declare(arguments=schema)

    assert interface.arguments is None
    assert interface.problem.startswith("`arguments` ")
    assert problems == [f"'a.py': {interface.problem}"]


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"scripts": []}',
        b'{"scripts": {"a.py": {}, "a.py": {"network": ["example.com"]}}}',
        b'{"scripts": {"a.py": {"limits": {"wall_seconds": NaN}}}}',
        b'{"scripts": {"a.py": {"limits": {"wall_seconds": 1e999}}}}',
        b'{"scripts": {"a.py": {"description": "\\ud800"}}}',
        b'{"scripts": {"a.py": {"arguments": ' + b'{"not":' * 100 + b"{}" + b"}" * 100 + b"}}}",
        b"[" * 100_000,
        b'{"scripts": {"a.py": {}}' + b" " * MAX_MANIFEST_SIZE + b"}",
    ],
)
def test_a_description_that_cannot_be_read_lets_nothing_be_run(content: bytes) -> None:
    interfaces, problems = parse_interfaces(content)
    interface, told = interface_of(content, PATH)

    assert interfaces == {}
    assert problems == told == [interface.problem]
    assert interface.problem.startswith("scripts/manifest.json ")


def test_a_script_that_is_described_by_something_else_than_an_object_has_a_problem() -> None:
    interface, _ = interface_of(b'{"scripts": {"a.py": true}}', PATH)

    assert interface.problem


def test_a_script_that_nobody_describes_takes_anything() -> None:
    assert interface_of(None, PATH) == (ScriptInterface(), [])
    assert interface_of(b'{"scripts": {}}', PATH) == (ScriptInterface(), [])


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a.py", "sub/a.py", "scripts/a.py", "/a.py", "a\x00.py", "a\\b", "manifest.json"],
)
def test_only_names_of_files_right_under_scripts_are_described(name: str) -> None:
    interfaces, problems = parse_interfaces(json.dumps({"scripts": {name: {}}}).encode())

    assert interfaces == {}
    assert len(problems) == 1


def test_problems_are_few_short_and_inert() -> None:
    content = json.dumps(
        {"scripts": {f"../\x1b[31m{number}" + "x" * 500: {} for number in range(400)}}
    ).encode()

    _, problems = parse_interfaces(content)

    assert len(problems) == MAX_PROBLEMS
    assert all(len(problem) < 250 and problem.isprintable() for problem in problems)


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "a.b-c.example",
        "xn--bcher-kva.example",
        "intranet",
        "example.com:443",
        "example.com:65535",
    ],
)
def test_plain_names_are_hosts(host: str) -> None:
    assert is_host(host)


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            ".",
            "*",
            "*.example.com",
            "Example.com",
            "https://example.com",
            "example.com/",
            "user@example.com",
        ),
        *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "0x7f000001", "[::1]", "::1", "example.com:"),
        *("example.com:0", "example.com:65536", "example.com:443:443", "example.com:0443", "-a.example"),
        *("a-.example", "a..example", ".example", "example.", "exa mple", "example.com\n", "bücher.example"),
        *("a" * 64 + ".example", "a." * 130 + "example", "ex٠mple", 5, None, b"example.com"),
    ],
    ids=repr,
)
def test_addresses_patterns_and_addresses_of_pages_are_no_hosts(host: object) -> None:
    assert not is_host(host)


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("name", ["", "1A", "A-B", "A.B", "../A", "A/B", "A\n", "Ä", "a" * 65, None, 5])
def test_a_secret_has_a_name_that_can_only_be_a_file_name(name: object) -> None:
    assert is_secret_name("API_KEY")
    assert not is_secret_name(name)


@settings(deadline=None)
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_make_the_reader_fail(content: bytes) -> None:
    interfaces, problems = parse_interfaces(content)

    assert interfaces or problems or content.strip().startswith(b'{"scripts"')


@settings(deadline=None)
@given(st.dictionaries(names, json_values, max_size=6))
def test_whatever_is_declared_only_checked_values_come_out(members: dict[str, JsonValue]) -> None:
    interface, _ = interface_of(json.dumps({"scripts": {"a.py": members}}).encode(), PATH)

    assert all(map(is_host, interface.network))
    assert all(map(is_secret_name, interface.secrets))
    assert set(interface.limits) <= set(Limits.__dataclass_fields__)
    assert all(0 <= amount < 2**63 for amount in interface.limits.values())


def published_schema() -> dict[str, JsonValue]:
    return json.loads((ROOT / "docs" / "schemas" / "scripts-manifest.json").read_text("utf-8"))


def fits_published_schema(document: JsonValue) -> bool:
    validator = Draft202012Validator(published_schema())
    check = cast("Callable[[JsonValue], bool]", validator.is_valid)  # pyright: ignore[reportUnknownMemberType]  # the stubs leave a parameter out
    return check(document)


def undescribed(schema: JsonValue, place: str = "") -> list[str]:
    """Return the places of fields that nobody described."""
    if isinstance(schema, list):
        return [found for inner in schema for found in undescribed(inner, place)]
    if not isinstance(schema, dict):
        return []
    missing: list[str] = []
    for key, inner in schema.items():
        if key in ("properties", "$defs") and isinstance(inner, dict):
            for name, field in inner.items():
                assert isinstance(field, dict)
                missing += [] if field.keys() & {"description", "$ref"} else [f"{place}/{name}"]
        missing += undescribed(inner, f"{place}/{key}")
    return missing


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(names, json_values, max_size=3))
def test_the_published_schema_takes_nothing_the_reader_complains_about(members: dict[str, JsonValue]) -> None:
    document: JsonValue = {"scripts": {"a.py": members}}
    content = json.dumps(document).encode()
    _, problems = parse_interfaces(content)

    if fits_published_schema(document) and not re.search(rb"NaN|Infinity", content):
        # What a schema for arguments has to look like, JSON Schema itself says.
        assert [problem for problem in problems if "`arguments`" not in problem] == []


def test_the_published_schema_is_one_takes_the_examples_and_describes_every_field() -> None:
    Draft202012Validator.check_schema(published_schema())

    for path in (ROOT / "examples" / "skills").rglob("scripts/manifest.json"):
        assert fits_published_schema(json.loads(path.read_text("utf-8")))
    assert not fits_published_schema({"scripts": {"a.py": {"network": True}}})
    assert undescribed({"properties": {"a": {}}}) == ["/a"]
    assert undescribed(published_schema()) == []
