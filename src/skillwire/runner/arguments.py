"""What a script is given: checked against what it declares, and written for it."""

import json
import re
from collections.abc import Mapping
from typing import Final, cast

import orjson

from skillwire.core.characters import quoted
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidScriptArgumentsError
from skillwire.runner.interface import ScriptInterface
from skillwire.runner.schema import schema_problem
from skillwire.runner.validating import CostlyCheckError, first_failure

MAX_ARGUMENTS_SIZE: Final = 1024 * 1024
MAX_OPTION_SIZE: Final = 100 * 1024
"""The most bytes of one option; the kernel takes no longer ones than 128 KiB."""
MAX_OPTIONS: Final = 1024

_OPTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_arguments(value: object, interface: ScriptInterface, *, script: str) -> Mapping[str, JsonValue]:
    """Return what a script is given, as plain values nobody else holds.

    This may take seconds for the largest of arguments: an event loop has a thread do it.

    Raises:
        InvalidScriptArgumentsError: It is no JSON object, is too large, is
            not what the script declares to take, or nobody can tell.
    """
    if interface.problem:
        raise _refused(f"nobody can tell what it takes: {interface.problem}", script)
    if not isinstance(value, dict):
        raise _refused("the arguments are no JSON object", script)
    arguments = _plain(cast("dict[str, JsonValue]", value), script)
    schema = interface.arguments
    if schema is not None:
        problem = schema_problem(schema)
        if problem:
            raise _refused(f"nobody can tell what it takes: `arguments` {problem}", script)
        try:
            failure = first_failure(schema, arguments)
        except CostlyCheckError:
            raise _refused("checking them against what it declares takes too long", script) from None
        if failure is not None:
            place = quoted(failure.pointer) if failure.pointer else "the object"
            raise _refused(f"{place} {failure.problem}", script)
    argv_for(arguments, interface, script=script)
    return arguments


def argv_for(
    arguments: Mapping[str, JsonValue], interface: ScriptInterface, *, script: str = ""
) -> tuple[str, ...]:
    """Return the arguments as options, for a script that asks for that: `--name=value`, in declared order.

    A list becomes one option for each item, and null none. Nothing is ever
    split, joined or left to a shell. For other scripts there are none.

    Raises:
        InvalidScriptArgumentsError: One is not declared, or cannot be an option.
    """
    if not interface.takes_argv:
        return ()
    properties = (interface.arguments or {}).get("properties")
    declared = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in declared:
            raise _refused(f"{quoted('/' + name)} is not declared, so it cannot become an option", script)
    options: list[str] = []
    for name in declared:
        value = arguments.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if values and not _OPTION_NAME.fullmatch(name):
            raise _refused(f"{quoted('/' + name)} has a name that no option can have", script)
        options += [_option(name, item, script) for item in values]
        if len(options) > MAX_OPTIONS:
            raise _refused(f"they become more than {MAX_OPTIONS} options", script)
    return tuple(options)


def encode(arguments: Mapping[str, JsonValue]) -> bytes:
    """Write the arguments as the JSON object a script reads from its standard input."""
    return orjson.dumps(arguments)


def _plain(value: dict[str, JsonValue], script: str) -> dict[str, JsonValue]:
    """Write the arguments and read them again: what is left then, every reader of JSON understands alike."""
    try:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if len(content) > MAX_ARGUMENTS_SIZE:
            raise StrictJsonError(f"has {len(content)} bytes; {MAX_ARGUMENTS_SIZE} are taken")
        arguments = parse_strictly(content)
        encode(cast("dict[str, JsonValue]", arguments))
    except StrictJsonError as error:
        raise _refused(f"the object with the arguments {error}", script) from None
    except (TypeError, ValueError, RecursionError):
        raise _refused(
            "the object with the arguments holds something that JSON cannot carry", script
        ) from None
    return cast("dict[str, JsonValue]", arguments)


def _option(name: str, value: JsonValue, script: str) -> str:
    if isinstance(value, dict | list | None):
        raise _refused(f"{quoted('/' + name)} holds something that cannot be an option", script)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if "\0" in text:
        raise _refused(f"{quoted('/' + name)} holds a NUL, which no option can", script)
    option = f"--{name}={text}"
    if len(option.encode()) > MAX_OPTION_SIZE:
        raise _refused(
            f"{quoted('/' + name)} is longer than the {MAX_OPTION_SIZE} bytes of an option", script
        )
    return option


def _refused(problem: str, script: str) -> InvalidScriptArgumentsError:
    subject = f"{quoted(script)} was not run" if script else "the script was not run"
    return InvalidScriptArgumentsError(f"{subject}: {problem}", script=script)
