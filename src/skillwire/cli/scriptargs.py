"""What a script is given, as a command line says it: JSON, or where JSON is."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

from skillwire.cli.failures import MisuseError
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.core.yaml12 import JsonValue

MAX_BYTES = 1024 * 1024
STDIN = "-"
_FILE = "@"
_EXAMPLE = """use a JSON object such as --args '{"name": "value"}', --args @FILE, or --args - to read it"""


def read_arguments(text: str | None) -> Mapping[str, JsonValue]:
    """Return the arguments that `--args` means: the JSON itself, `@FILE`, or `-` for standard input.

    Raises:
        MisuseError: It is no JSON object, is too large, or cannot be read.
    """
    if text is None:
        return {}
    if text == STDIN:
        return _parse(_read(sys.stdin.buffer), "what comes from standard input")
    if text.startswith(_FILE):
        return _parse(_content(text.removeprefix(_FILE)), text.removeprefix(_FILE))
    return _parse(os.fsencode(text), "--args")


def _content(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            return _read(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no name of a file"
        raise MisuseError(f"--args: {name} cannot be read: {reason}", fix=_EXAMPLE) from error


def _read(file: BinaryIO) -> bytes:
    return file.read(MAX_BYTES + 1)


def _parse(data: bytes, place: str) -> Mapping[str, JsonValue]:
    if len(data) > MAX_BYTES:
        raise MisuseError(f"{place} has more than {MAX_BYTES:,} bytes", fix="give the script less at once")
    try:
        value = parse_strictly(data)
    except StrictJsonError as error:
        raise MisuseError(f"{place} {error}", fix=_EXAMPLE) from error
    if not isinstance(value, dict):
        raise MisuseError(f"{place} is no JSON object", fix=_EXAMPLE)
    return cast(Mapping[str, JsonValue], value)
