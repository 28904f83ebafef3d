"""What a script is given: a JSON object that fits what it declares, or nothing at all."""

import enum
import json
import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import INVALID_PARAMS, InvalidScriptArgumentsError
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.interface import ScriptInterface
from skillwire.runner.preparation import (
    MAX_ARGUMENTS_SIZE,
    MAX_OPTION_SIZE,
    argv_for,
    check_arguments,
    encode,
)

ANY = ScriptInterface()
CITY = ScriptInterface(
    arguments={
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
LOOP: dict[str, JsonValue] = {"$ref": "#"}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = "red"


def nested(levels: int) -> JsonValue:
    value: JsonValue = 0
    for _ in range(levels):
        value = [value]
    return value


def endless() -> dict[str, object]:
    value: dict[str, object] = {}
    value["again"] = value
    return value


def check(value: object, interface: ScriptInterface = ANY) -> object:
    return check_arguments(value, interface, script="scripts/a.py")


def refusal(value: object, interface: ScriptInterface = ANY) -> str:
    with pytest.raises(InvalidScriptArgumentsError) as caught:
        check(value, interface)
    assert caught.value.code == INVALID_PARAMS
    assert caught.value.script == "scripts/a.py"
    message = str(caught.value)
    assert len(message) < 400
    assert message.isprintable()
    return message


@pytest.mark.requirement("EXEC-15")
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_object_reaches_a_script_that_declares_nothing_unchanged(
    value: dict[str, JsonValue],
) -> None:
    checked = check_arguments(value, ANY, script="scripts/a.py")

    assert checked == value
    assert json.loads(encode(checked)) == value


def test_what_was_checked_is_not_what_the_caller_can_still_change() -> None:
    inner: list[JsonValue] = [1]

    checked = check({"list": inner})
    inner.append(2)

    assert checked == {"list": [1]}


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        5,
        [],
        [{"city": "Oslo"}],
        b"{}",
        {"number": math.nan},
        {"number": math.inf},
        {"number": 2**64},
        {"number": 10**5000},
        {"text": "\ud800"},
        {"\udfff": 1},
        {"bytes": b"x"},
        {"set": {1}},
        {"colour": Colour.RED},
        {"deep": nested(64)},
        {"deep": nested(100_000)},
        {"large": "x" * MAX_ARGUMENTS_SIZE},
        {1: "a", "1": "b"},
        endless(),
    ],
)
def test_what_is_no_json_object_of_a_bearable_size_is_refused(value: object) -> None:
    refusal(value)


def test_the_deepest_and_largest_objects_that_are_taken() -> None:
    check({"deep": nested(62)})
    check({"large": "x" * (MAX_ARGUMENTS_SIZE - len('{"large":""}'))})


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({}, "'/city'"),
        ({"city": 5}, "'/city'"),
        ({"city": "x" * 11}, "'/city'"),
        ({"city": "Oslo", "days": 1.5}, "'/days'"),
        ({"city": "Oslo", "days": True}, "'/days'"),
        ({"city": "Oslo", "\x1b[31m": 1}, "'/\\x1b[31m'"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_place_and_not_by_the_value(value: object, pointer: str) -> None:
    message = refusal(value, CITY)

    assert pointer in message
    assert "x" * 11 not in message


def test_what_fits_is_taken() -> None:
    assert check({"city": "Oslo", "days": 3}, CITY) == {"city": "Oslo", "days": 3}


@pytest.mark.requirement("EXEC-15")
def test_a_script_of_which_nobody_can_tell_what_it_takes_is_not_run() -> None:
    broken = ScriptInterface(problem="`arguments` has a malformed `type`")
    made_by_hand = ScriptInterface(arguments={"$ref": "https://example.com/schema.json"})

    assert "malformed `type`" in refusal({}, broken)
    assert "https://example.com/schema.json" in refusal({}, made_by_hand)
    assert "too long" in refusal({}, ScriptInterface(arguments=LOOP))


def options(value: dict[str, JsonValue], *names: str) -> tuple[str, ...]:
    declared = cast("dict[str, JsonValue]", {name: {} for name in names})
    interface = ScriptInterface(arguments={"properties": declared}, takes_argv=True)
    return argv_for(check_arguments(value, interface, script="scripts/a.py"), interface)


@pytest.mark.requirement("EXEC-15")
def test_options_come_one_for_each_value_in_the_order_of_declaration() -> None:
    value: dict[str, JsonValue] = {
        "tag": ["a b", "--evil", ""],
        "dry-run": True,
        "name": "-x; rm -rf / $(id)\n",
        "ratio": 0.5,
        "nothing": None,
        "count": -3,
    }

    assert options(value, "name", "count", "ratio", "dry-run", "nothing", "tag", "unused") == (
        "--name=-x; rm -rf / $(id)\n",
        "--count=-3",
        "--ratio=0.5",
        "--dry-run=true",
        "--tag=a b",
        "--tag=--evil",
        "--tag=",
    )


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"other": 1}, "name"),
        ({"name": {}}, "name"),
        ({"name": [[1]]}, "name"),
        ({"name": [None]}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "x" * MAX_OPTION_SIZE}, "name"),
        ({"name": [1] * 2000}, "name"),
        ({"a=b": 1}, "a=b"),
        ({"-a": 1}, "-a"),
        ({"a b": 1}, "a b"),
        ({"": 1}, ""),
        ({"a\0": 1}, "a\0"),
    ],
)
def test_what_cannot_be_an_option_is_refused(value: dict[str, JsonValue], name: str) -> None:
    with pytest.raises(InvalidScriptArgumentsError):
        options(value, name)


@given(st.text())
def test_a_text_is_always_one_option_and_never_another_one(text: str) -> None:
    if "\0" not in text:
        assert options({"name": text}, "name") == (f"--name={text}",)


@pytest.mark.requirement("EXEC-15")
def test_a_script_that_does_not_ask_for_options_gets_none() -> None:
    assert argv_for({"city": "Oslo"}, CITY) == ()
    assert argv_for({}, ScriptInterface(takes_argv=True)) == ()
