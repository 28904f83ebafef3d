"""Frontmatter, and a YAML reader for it whose result both sides of the wire agree on.

The grammar is libyaml's; the typing is the YAML 1.2 core schema, so `yes`,
`2026-01-02`, `12:30` and `1_000` stay strings. What has no JSON form, or is
interpreted differently by different readers, is refused: aliases, anchors, tags
and directives, duplicate and non-string keys, `.inf` and `.nan`, integers
beyond 64 bits, and line ends that only some readers recognise.

Values are built straight from libyaml's events. That is faster than PyYAML's
own constructors, and exposes every anchor, tag and line.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, cast

import yaml
from yaml.cyaml import CParser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]  # the bundled stubs omit it

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
NO_FIELDS: Final[Mapping[str, JsonValue]] = {}

MAX_DEPTH = 32
MAX_NODES = 10_000

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
# `key: text`, `  key: text`, `key: "text"` or `key:`, all on one line and of printable characters. A text
# starts with a letter, so it is not a number, and ends in neither a blank nor a colon.
_MAX_SIMPLE = 8192
_SIMPLE_LINE = re.compile(
    r"(  )?([A-Za-z][A-Za-z0-9_-]{0,99}):(?: (?:\"([ !#-\[\]-~]*)\"|([A-Za-z](?:[ -~]*[!-9;-~])?)))?"
)
_MAYBE_NUMBER = frozenset("0123456789+-.")
_MAX_NUMBER_LENGTH = 64
# libyaml ends a line at each of these. YAML 1.2 does so only at the first, and the official SDK at none.
# At the start of a line, libyaml skips a byte order mark yet counts it as indentation; others do neither.
_DISPUTED = re.compile("\r(?!\n)|[\x85\u2028\u2029]|^\ufeff", re.MULTILINE)
# A value that opens with a quote, and the rest of such a value up to its closing quote.
_QUOTED_VALUE = re.compile(r"""^[ ]*(?:-[ ]+)*(?:[\w.-]+:[ \t]+)?(?P<quote>["'])""", re.MULTILINE)
_UP_TO_QUOTE = {
    '"': re.compile(r'(?:[^"\\]++|\\.)*+"', re.DOTALL),
    "'": re.compile(r"(?:[^']++|'')*+'"),
}
_REST_OF_VALUE = re.compile(r"[ \t]*(?:#[^\n]*|:[^\n]*)?\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class Frontmatter:
    """The frontmatter mapping exactly as written, as JSON values.

    Treat `fields` as read-only: entries, listings and comparisons share it.
    """

    fields: Mapping[str, JsonValue]

    @property
    def name(self) -> str:
        """The `name` field; empty when it is missing or not a string."""
        value = self.fields.get("name")
        return value if isinstance(value, str) else ""

    @property
    def description(self) -> str:
        """The `description` field; empty when it is missing or not a string."""
        value = self.fields.get("description")
        return value if isinstance(value, str) else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frontmatter):
            return NotImplemented
        return same_value(dict(self.fields), dict(other.fields))

    def __hash__(self) -> int:
        return hash((self.name, self.description))

    def differences(self, other: "Frontmatter") -> list[str]:
        """Return the top-level fields whose values differ, sorted; a missing field differs from null."""
        keys = sorted(self.fields.keys() | other.fields.keys())
        return [
            key
            for key in keys
            if key not in self.fields
            or key not in other.fields
            or not same_value(self.fields[key], other.fields[key])
        ]


def unknown_fields(raw: Mapping[str, object], known: Collection[str]) -> Mapping[str, JsonValue]:
    """Return the fields of an untrusted object that are not `known`, for a relay to pass on (NEG-19)."""
    found = {key: item for key, item in raw.items() if key not in known}
    return cast("dict[str, JsonValue]", found) if found else NO_FIELDS


def same_value(left: JsonValue, right: JsonValue) -> bool:
    """Compare two frontmatter values as both sides of the wire must (INT-05).

    Numbers are compared as the doubles every JSON reader has, so `1 == 1.0`;
    booleans are not numbers, so `True != 1`; lists compare in order; a mapping
    with a missing key differs from one where the key is null.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        try:
            return float(left) == float(right)
        except OverflowError:  # an untrusted entry may contain an integer that fits in no double
            return left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    return type(left) is type(right) and left == right


class YamlRefusedError(ValueError):
    """The text is not YAML, or not YAML that every reader interprets the same way.

    `line` counts from 0. `reason` is stable: `syntax`, `quote`, `alias`, `tag`,
    `directive`, `duplicate-key`, `non-string-key`, `number`, `too-deep`,
    `too-large`, `documents`, `line-break`.
    """

    def __init__(self, reason: str, message: str, line: int | None) -> None:
        super().__init__(message)
        self.reason = reason
        self.line = line


class Mark(Protocol):
    """A position libyaml reports, counted from 0; `index` counts characters of the text."""

    index: int
    line: int
    column: int


class Event(Protocol):
    """The attributes used of PyYAML's events, which have no type information."""

    anchor: str | None
    tag: str | None
    value: str
    style: str | None
    implicit: tuple[bool, bool]
    flow_style: bool
    explicit: bool
    version: tuple[int, int] | None
    tags: dict[str, str] | None
    start_mark: Mark
    end_mark: Mark


Observer: TypeAlias = Callable[[type[object], Event, int, bool], None]
"""Called with each event's type, the event, its depth, and whether it is a mapping key.

The start and the end of the stream, and an alias, are not reported.
"""


class _OpenCollection:
    """A collection that is being read: a mapping with the key of the next value, or a sequence."""

    __slots__ = ("key", "mapping", "sequence")

    def __init__(self, sequence: "list[JsonValue]", mapping: "dict[str, JsonValue] | None" = None) -> None:
        self.sequence = sequence
        self.mapping = mapping
        self.key: str | None = None


class _Parser(Protocol):
    def get_event(self) -> Event: ...
    def dispose(self) -> None: ...


def parse_yaml(text: str, observer: Observer | None = None) -> JsonValue:
    """Parse one YAML document into JSON values.

    Raises:
        YamlRefusedError: See the class.
    """
    if observer is None and (simple := parse_simple(text)) is not None:
        return simple
    _refuse_disputed_characters(text)
    try:
        parser = cast(_Parser, CParser(text))
        try:
            return _build(text, parser, observer)
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as error:
        mark = cast("Mark | None", error.problem_mark or error.context_mark)
        if mark is not None and (line := _line_of_open_quote(text, mark.line)) is not None:
            message = "a quoted value starts here and has no closing quote"
            raise YamlRefusedError("quote", message, line) from None
        problem = error.problem or "not valid YAML"
        raise YamlRefusedError("syntax", problem, mark.line if mark else None) from None
    except yaml.YAMLError as error:
        position = cast("int | None", getattr(error, "position", None))
        line = text.encode().count(b"\n", 0, position) if position is not None else None
        raise YamlRefusedError("syntax", "it contains a character YAML does not allow", line) from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start)
        raise YamlRefusedError("syntax", "it contains a lone surrogate", line) from None
    except UnicodeDecodeError:
        # libyaml checks every text except the decoded percent-escapes of a tag.
        raise YamlRefusedError("tag", "it uses a tag that is not UTF-8; remove it", None) from None


def _line_of_open_quote(text: str, last: int) -> int | None:
    """Return the line of an opening quote that is not closed as the author intended, or None.

    libyaml reports where parsing stopped, at line `last`: the end of the text,
    or what follows the next quote, which it took for the closing one.
    """
    position = 0
    while opening := _QUOTED_VALUE.search(text, position):
        line = text.count("\n", 0, opening.end())
        if line > last:
            return None
        value = _UP_TO_QUOTE[opening["quote"]].match(text, opening.end())
        if value is None:
            return line
        if "\n" in value.group() and not _REST_OF_VALUE.match(text, value.end()):
            return line
        position = value.end()
    return None


def parse_simple(text: str) -> "dict[str, JsonValue] | None":
    """Parse a mapping of one-line texts, with at most one level of such mappings inside; else None.

    Most frontmatter has this form, and parsing it this way takes a fraction of
    the time. A test compares it with the full parser: where this one returns a
    value, both return the same.
    """
    if len(text) > _MAX_SIMPLE or not text.isascii():
        return None
    result: dict[str, JsonValue] = {}
    inner: dict[str, JsonValue] | None = None
    for line in text.split("\n"):
        match = _SIMPLE_LINE.fullmatch(line)
        if match is None:
            if line:
                return None
            continue
        indent, key, quoted, value = match.groups()
        if key in _WORDS or value in _WORDS or (value and (": " in value or " #" in value)):
            return None
        target = inner if indent else result
        if target is None or key in target:
            return None
        if quoted is not None or value is not None:
            target[key] = value if quoted is None else quoted
            inner = inner if indent else None
        elif indent:
            return None
        else:
            result[key] = inner = {}
    return None if any(value == {} for value in result.values()) else result or None


def _refuse_disputed_characters(text: str) -> None:
    if text.isascii() and "\r" not in text:
        return
    found = _DISPUTED.search(text)
    if found is None:
        return
    line = text.count("\n", 0, found.start())
    if found.group() == "\ufeff":
        raise YamlRefusedError("syntax", "a line starts with a byte order mark", line)
    label = f"U+{ord(found.group()):04X}"
    raise YamlRefusedError(
        "line-break", f"{label} ends a line for some YAML readers and not for others", line
    )


def _build(text: str, parser: _Parser, observer: Observer | None) -> JsonValue:
    """Turn the event stream into a value, without recursion."""
    stack: list[_OpenCollection] = []
    result: list[JsonValue] = []
    top = _OpenCollection(result)
    nodes = documents = 0
    next_event = parser.get_event
    while True:
        event = next_event()
        kind = cast("type[object]", type(event))
        if kind is yaml.ScalarEvent:
            nodes += 1
            mapping = top.mapping
            is_key = mapping is not None and top.key is None
            if observer is not None:
                observer(kind, event, len(stack), is_key)
            value = _scalar(event)
            if mapping is None:
                top.sequence.append(value)
            elif top.key is None:
                top.key = _checked_key(mapping, value, event, text)
            else:
                mapping[top.key] = value
                top.key = None
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            nodes += 1
            _refuse_decoration(event)
            if observer is not None:
                observer(kind, event, len(stack), False)
            stack.append(top)
            top = _opened(top, event, is_mapping=kind is yaml.MappingStartEvent)
            if len(stack) > MAX_DEPTH:
                raise _refused("too-deep", f"it nests deeper than {MAX_DEPTH} levels", event)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            top = stack.pop()
            if observer is not None:
                observer(kind, event, len(stack), False)
        elif kind is yaml.AliasEvent:
            raise _refused("alias", f"it uses the alias *{event.anchor}; write the value out", event)
        elif kind is yaml.DocumentStartEvent:
            documents += 1
            _check_document(event, documents)
            if observer is not None:
                observer(kind, event, 0, False)
        elif kind is yaml.DocumentEndEvent:
            if observer is not None:
                observer(kind, event, 0, False)
        elif kind is yaml.StreamEndEvent:
            return result[0] if result else None
        else:
            assert kind is yaml.StreamStartEvent, "two copies of PyYAML are loaded"
        if nodes > MAX_NODES:
            raise _refused("too-large", f"it contains more than {MAX_NODES} values", event)


def _opened(parent: _OpenCollection, event: Event, *, is_mapping: bool) -> _OpenCollection:
    """Add a new collection as the next value of `parent`, and return it."""
    opened = _OpenCollection([], {} if is_mapping else None)
    value: JsonValue = opened.sequence if opened.mapping is None else opened.mapping
    if parent.mapping is None:
        parent.sequence.append(value)
    elif parent.key is None:
        raise _refused("non-string-key", "a mapping key is a list or a mapping", event)
    else:
        parent.mapping[parent.key] = value
        parent.key = None
    return opened


def _checked_key(mapping: dict[str, JsonValue], value: JsonValue, event: Event, text: str) -> str:
    if not isinstance(value, str):
        raise _refused("non-string-key", f"the key {event.value!r} is not a string; quote it", event)
    if value in mapping:
        raise _refused("duplicate-key", f"the key {value!r} appears twice", event)
    index = event.start_mark.index
    if text[index - 1 : index] == "?":
        # `[?x]` is the key `x` for libyaml, and the string `?x` in YAML 1.2.
        raise _refused("syntax", "a value inside [ ] or { } starts with ?; quote it", event)
    return value


def _check_document(event: Event, number: int) -> None:
    if number > 1:
        raise _refused("documents", "it contains more than one YAML document", event)
    if event.version is not None or event.tags:
        raise _refused("directive", "it has a % directive; remove it", event)


def _scalar(event: Event) -> JsonValue:
    if event.anchor is not None or event.tag is not None:
        _refuse_decoration(event)
    text = event.value
    if event.style or not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in _MAYBE_NUMBER:
        return _number(text, event)
    return text


def _number(text: str, event: Event) -> JsonValue:
    if _NOT_FINITE.fullmatch(text):
        raise _refused("number", f"{text} has no JSON form; quote it", event)
    if _INT.fullmatch(text):
        base, digits = 10, text
    elif _OCTAL.fullmatch(text):
        base, digits = 8, text[2:]
    elif _HEX.fullmatch(text):
        base, digits = 16, text[2:]
    elif _FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise _refused("number", "a number is too large for JSON; quote it", event)
        return value
    else:
        return text
    if len(digits) > _MAX_NUMBER_LENGTH or not -(2**63) <= (number := int(digits, base)) < 2**64:
        raise _refused("number", "an integer does not fit into 64 bits; quote it", event)
    return number


def _refuse_decoration(event: Event) -> None:
    if event.anchor is not None:
        raise _refused("alias", f"it defines the anchor &{event.anchor}; remove it", event)
    if event.tag is not None:
        raise _refused("tag", f"it uses the tag {event.tag!r}; remove it", event)


def _refused(reason: str, message: str, event: Event) -> YamlRefusedError:
    return YamlRefusedError(reason, message, event.start_mark.line)
