"""JSON: strict parsing of untrusted documents, reading of untrusted objects, and compact output."""

import gc
import json
import math
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar, cast

import orjson

from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.yaml12 import JsonValue, unknown_fields

JsonDict: TypeAlias = dict[str, Any]

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 2_000_000
"""How many values a document may contain: a short text can contain very many."""

_MIN_ALLOWED: Final = 64 * 1024 * 1024
_ALLOWED_FACTOR: Final = 8
# The memory that CPython needs for each kind of value besides its text, in bytes, rounded up.
_OBJECT, _EMPTY_OBJECT, _LIST, _STRING, _ITEM = 200, 80, 72, 60, 16
# At most this much for each byte of JSON, as in `{"":{"":{`; a short document need not be counted.
_MOST_PER_BYTE: Final = 82
_PART: Final = 1024 * 1024
# Possessive quantifiers, and strings may continue after the part: each byte is matched once.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_END: Final = b"\0"


class StrictJsonError(ValueError):
    """A document cannot be used; the message is a predicate, such as `is not JSON`."""


def parse_strictly(data: bytes) -> object:
    """Parse a JSON document.

    Raises:
        StrictJsonError: It is not JSON, repeats a key, contains a lone surrogate
            or a non-finite number, has too many values or levels, or would need
            many times its size in memory.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise StrictJsonError(f"holds more than {MAX_VALUES} values")
    require_little_memory(data)
    try:
        value: object = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise StrictJsonError(f"nests deeper than {MAX_DEPTH} levels") from error
    except StrictJsonError:
        raise
    except ValueError as error:
        raise StrictJsonError("is not JSON") from error
    _require_plain(value)
    return value


def require_little_memory(data: bytes) -> None:
    """Check, before JSON is parsed, that its values need at most a few times its size in memory.

    Values without text, such as millions of empty objects, need thirty times
    as much memory as they have bytes in JSON.

    Raises:
        StrictJsonError: They would need more.
    """
    if len(data) * _MOST_PER_BYTE <= _MIN_ALLOWED:
        return
    allowed = max(_MIN_ALLOWED, _ALLOWED_FACTOR * len(data))
    # Counting text as structure is quick, and sufficient for most documents.
    if len(data) + _cost(data, data.count(b'"')) <= allowed:
        return
    total = len(data)
    for structure, strings in _without_text(data):
        total += _cost(structure, strings)
        if total > allowed:
            raise StrictJsonError(
                f"holds so many values that they would need more than {allowed} bytes of memory"
            )


def _cost(structure: bytes, strings: int) -> int:
    """Return how many bytes of memory the values in JSON need, without their text."""
    empty = structure.count(b"{}")
    return (
        _OBJECT * (structure.count(b"{") - empty)
        + _EMPTY_OBJECT * empty
        + _LIST * structure.count(b"[")
        + _ITEM * structure.count(b",")
        + _STRING * strings
    )


def _without_text(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield parts of JSON without its strings, with the number of strings."""
    start, is_inside = 0, False
    while start < len(body):
        end = min(start + _PART, len(body))
        while body[end - 1 : end] == b"\\" and end < len(body):
            end += 1
        part = (b'"' if is_inside else b"") + body[start:end] + _END
        structure, strings = _STRINGS.subn(b"", part)
        # An unclosed string matches up to and including the end marker.
        is_inside = not structure.endswith(_END)
        yield structure, strings
        start = end


def _require_plain(value: object) -> None:
    """Refuse values that cannot be written as JSON again: deep nesting, lone surrogates, `1e999`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        texts: list[str] = []
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                members = cast("dict[str, object]", item)
                texts += members
                below += members.values()
            elif isinstance(item, list):
                below += cast("list[object]", item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise StrictJsonError("holds a number that is too large")
        try:
            for text in texts:
                if not text.isascii():
                    text.encode()
        except UnicodeEncodeError:
            raise StrictJsonError("contains a lone surrogate") from None
        if not below:
            return
        level = below
    raise StrictJsonError(f"nests deeper than {MAX_DEPTH} levels")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"has the key {quoted(name[:100])} twice in one object")
            seen.add(name)
    return found


def _refuse_constant(text: str) -> object:
    raise StrictJsonError(f"holds {text}, which is not a JSON number")


@contextmanager
def gc_paused() -> Generator[None]:
    """Pause Python's cycle collector while many long-lived objects are created.

    They form no cycles, so collections would only cost time. Afterwards all
    objects are in the oldest generation, as they would be after collections:
    `gc.freeze` and `gc.unfreeze` move them there without a traversal. Nothing
    is moved when the program has frozen objects itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def encode(value: object) -> bytes:
    """Write a JSON value.

    orjson supports neither integers beyond 64 bits nor lone surrogates, and
    untrusted entries may contain both; the standard library writes those.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def present(**members: object) -> JsonDict:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_META_KEY = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RESERVED_LABELS = frozenset({"modelcontextprotocol", "mcp"})


def is_unreserved_key(key: str) -> bool:
    """Return whether a `_meta` key may be used by anyone: it has a prefix that is not reserved for MCP."""
    match = _META_KEY.fullmatch(key)
    if match is None:
        return False
    labels = match[1].lower().split(".")
    # Revisions differ on which label of the prefix counts: the second, or any but the last.
    return not _RESERVED_LABELS & {*labels[:2], *labels[:-1]}


# `Members`: reads an untrusted JSON object member by member.


MAX_TEXT = 4096
"""The maximum length of a text member other than instructions, in characters."""

MAX_ITEMS = 256
"""The maximum number of items of a list inside a skill; a skill's files have a separate limit."""

MAX_FINDINGS = 32
"""The maximum number of findings about one object."""

Kind = TypeVar("Kind")


class Members:
    """Reads members of an object and reports invalid ones as findings.

    A member that is missing, or null, is valid unless it is required; one that
    is malformed is left out with a finding. No method raises.
    """

    def __init__(
        self, value: Mapping[str, object], findings: list[Finding], *, required: str, optional: str
    ) -> None:
        self.value = value
        self.findings = findings
        self._required = required
        self._optional = optional

    def inside(self, value: Mapping[str, object]) -> "Members":
        """Return the members of a nested object; its findings count as those of an optional member."""
        return Members(value, self.findings, required=self._optional, optional=self._optional)

    def required_text(self, name: str, *, most: int = MAX_TEXT, may_be_empty: bool = False) -> str | None:
        """Return a text that is required, and by default not empty; None, with a finding, when it is not."""
        value = self.value.get(name)
        problem = _text_problem(value, most)
        if (value == "" and not may_be_empty) or problem:
            self._add(self._required, f"`{name}` {problem or 'is empty'}")
            return None
        return cast(str, value)

    def text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        value = self.value.get(name)
        if value is None:
            return None
        problem = _text_problem(value, most)
        if problem:
            self.malformed(name, problem)
            return None
        return cast(str, value)

    def texts(self, name: str, *, most: int = MAX_TEXT) -> tuple[str, ...]:
        """Return the texts of a list; each that is malformed is left out."""
        found: list[str] = []
        for item in self._items(name, MAX_ITEMS):
            problem = _text_problem(item, most)
            if problem:
                self.malformed(name, f"has an item that {problem}")
            else:
                found.append(cast(str, item))
        return tuple(found)

    def objects(self, name: str, *, most: int = MAX_ITEMS) -> list[Mapping[str, object]]:
        """Return the objects of a list; everything else in it is left out."""
        found: list[Mapping[str, object]] = []
        for item in self._items(name, most):
            if isinstance(item, dict):
                found.append(cast("dict[str, object]", item))
            else:
                self.malformed(name, "has an item that is not an object")
        return found

    def flag(self, name: str) -> bool | None:
        return self._of_kind(name, bool, "is neither true nor false")

    def mapping(self, name: str) -> Mapping[str, JsonValue] | None:
        return cast("Mapping[str, JsonValue] | None", self._of_kind(name, dict, "is not an object"))

    def rest(self, *known: str) -> Mapping[str, JsonValue]:
        """Return the members this version does not know, so that a relay passes them on (NEG-19)."""
        return unknown_fields(self.value, known)

    def malformed(self, name: str, problem: str, *, code: str = "") -> None:
        """Add a finding about an optional member that is left out."""
        self._add(code or self._optional, f"`{name}` {problem}")

    def _of_kind(self, name: str, kind: type[Kind], problem: str) -> Kind | None:
        value = self.value.get(name)
        if value is None or isinstance(value, kind):
            return value
        self.malformed(name, problem)
        return None

    def _items(self, name: str, most: int) -> list[object]:
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.malformed(name, "is not a list")
            return []
        items = cast(list[object], value)
        if len(items) > most:
            self.malformed(name, f"has {len(items)} items; only the first {most} are used")
        return items[:most]

    def _add(self, code: str, message: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(code, message, file=""))


def open_object(
    value: object, *, required: str, optional: str, what: str
) -> tuple[Members | None, list[Finding]]:
    """Return the members of an object; None, with a finding, when the value is not an object."""
    findings: list[Finding] = []
    if not isinstance(value, dict):
        return None, [Finding(required, f"{what} is not an object", file="")]
    members = cast("dict[str, object]", value)
    return Members(members, findings, required=required, optional=optional), findings


def _text_problem(value: object, most: int) -> str:
    """Return what is wrong with a text; empty when nothing is."""
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return "is not a string"
    if len(value) > most:
        return f"is longer than {most} characters: {quoted(value[:40])}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate"
    return ""
