"""`Redactor`: removes the secrets of a script from its output.

This protects against accidents, not against intent. It catches a token in an
error message, a printed header, a dump of variables or a common encoding. A
script that wants to reveal a secret can encode it in other ways; to prevent
that, do not grant the secret.
"""

import base64
import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, TypeAlias, cast
from urllib.parse import quote, quote_plus

from skillwire.core import JsonValue, StrictJsonError, parse_strictly, stripped

MIN_SECRET_SIZE: Final = 4
"""Shorter secrets occur in any text by chance, so they are not redacted."""

# Characters that `encodeURIComponent`, `encodeURI`, and Python's `quote` and `quote_plus` do not escape.
_UNQUOTED: Final = ("", "/", "!'()*", ";,/?:@&=+$!'()*#")
# Texts of this length may have been wrapped into lines, as base64 usually is.
_WRAPPED: Final = 57
_PREFIX: Final = 16

_Span: TypeAlias = tuple[int, int, str]


class Redactor:
    """Replaces secrets by `[redacted:NAME]`, both verbatim and in common encodings.

    These are base64 in both alphabets, at any offset in the encoded data,
    percent-encoding, hexadecimal, and the escapes of JSON and Python; long ones
    also when wrapped into lines. A secret is found with and without its
    surrounding white space. The base64 characters at the edges, which also
    encode neighbouring bytes, are left.
    """

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        named = {name: value.strip() for name, value in secrets.items()}
        self.too_short = tuple(name for name, value in named.items() if len(value) < MIN_SECRET_SIZE)
        """The names of the secrets that are too short to be redacted."""
        self._names: dict[bytes, str] = {}
        for name, value in named.items():
            if name not in self.too_short:
                for form in sorted(_forms(secrets[name]) | _forms(value)):
                    self._names.setdefault(form, name)
        self._search = _Search(self._names, marks={_mark(name): name for name in named})
        self._long_names = {
            _joined(form): name for form, name in self._names.items() if len(_joined(form)) >= _WRAPPED
        }
        self._long_search = _Search(self._long_names)

    def redact(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return `data` without secrets; if `is_cut`, also without the beginning of one at its end."""
        if not self._names:
            return data
        lines = _JoinedLines(data)
        spans = [*self._search.spans(data), *self._wrapped(lines)]
        if is_cut:
            spans += self._tails(data, lines)
        if not spans:
            return data
        parts: list[bytes] = []
        position = 0
        for start, end, name in _merged(spans):
            parts += (data[position:start], _mark(name))
            position = end
        return b"".join((*parts, data[position:]))

    def redact_text(self, text: str, *, is_cut: bool = False) -> str:
        """Return `text` without secrets, like `redact`."""
        if not self._names:
            return text
        return self.redact(text.encode("utf-8", "replace"), is_cut=is_cut).decode("utf-8", "replace")

    def _wrapped(self, lines: "_JoinedLines") -> Iterator[_Span]:
        """Yield the long secrets that were wrapped into lines."""
        if self._long_names:
            for start, end, name in self._long_search.spans(lines.joined):
                yield lines.offset(start), lines.offset(end - 1) + 1, name

    def _tails(self, data: bytes, lines: "_JoinedLines") -> Iterator[_Span]:
        """Yield the beginnings of secrets at the end of `data`."""
        for form, name in self._names.items():
            if length := _common(data, form):
                yield len(data) - length, len(data), name
        for form, name in self._long_names.items():
            if length := _common(lines.joined, form):
                yield lines.offset(len(lines.joined) - length), len(data), name


class _Search:
    """Searches for texts with one pattern of their prefixes: a pattern of long texts is slow to build.

    `marks` are earlier replacements. They are found as well, and nothing inside
    them is, in case a secret is part of the word "redacted".
    """

    def __init__(self, names: Mapping[bytes, str], marks: Mapping[bytes, str] | None = None) -> None:
        self._marks = marks or {}
        self._names = {**names, **self._marks}
        longest_first = sorted(self._names, key=len, reverse=True)
        beginnings = dict.fromkeys(form[:_PREFIX] for form in (*self._marks, *longest_first))
        self._candidates = {
            beginning: [form for form in longest_first if beginning.startswith(form[:_PREFIX])]
            for beginning in beginnings
        }
        ordered = sorted(beginnings, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered)))

    def spans(self, data: bytes) -> Iterator[_Span]:
        """Yield every span of one of the texts; spans may overlap."""
        position = 0
        while self._names and (match := self._pattern.search(data, position)):
            start = match.start()
            position = start + 1
            for form in self._candidates[match.group()]:
                if data.startswith(form, start):
                    if form in self._marks:
                        position = start + len(form)
                    yield start, start + len(form), self._names[form]
                    break


class _JoinedLines:
    """Data without line ends, and the offset of each of its bytes in the original data."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def joined(self) -> bytes:
        return _joined(self._data)

    @cached_property
    def _breaks(self) -> tuple[list[int], list[int]]:
        """The positions where line ends were removed, and how many bytes were removed up to there."""
        places: list[int] = []
        removed = [0]
        for match in re.finditer(rb"[\r\n]+", self._data):
            places.append(match.start() - removed[-1])
            removed.append(removed[-1] + len(match.group()))
        return places, removed

    def offset(self, index: int) -> int:
        places, removed = self._breaks
        return index + removed[bisect_right(places, index)]


def _common(data: bytes, form: bytes) -> int:
    """Return the length of the longest proper prefix of `form` that `data` ends with."""
    end = data[-(len(form) - 1) :]
    start = end.find(form[:_PREFIX])
    while start >= 0:
        if form.startswith(end[start:]):
            return len(end) - start
        start = end.find(form[:_PREFIX], start + 1)
    short = range(min(_PREFIX, len(form)) - 1, MIN_SECRET_SIZE - 1, -1)
    return next((length for length in short if end.endswith(form[:length])), 0)


def _merged(spans: list[_Span]) -> Iterator[_Span]:
    spans.sort(key=lambda span: span[0])
    start, end, name = spans[0]
    for next_start, next_end, next_name in spans[1:]:
        if next_start < end:
            end = max(end, next_end)
        else:
            yield start, end, name
            start, end, name = next_start, next_end, next_name
    yield start, end, name


def _mark(name: str) -> bytes:
    return f"[redacted:{name}]".encode("utf-8", "replace")


def _joined(data: bytes) -> bytes:
    return data.translate(None, b"\r\n")


def _forms(secret: bytes) -> set[bytes]:
    """Return every encoding of a secret that is searched for."""
    hexed = secret.hex()
    forms = {secret, hexed.encode(), hexed.upper().encode(), repr(secret)[2:-1].encode()}
    forms.update(_base64_cores(secret))
    texts = {"".join(f"%{byte:02X}" for byte in secret)}
    for unquoted in _UNQUOTED:
        texts |= {quote(secret, safe=unquoted), quote_plus(secret, safe=unquoted)}
    forms.update(text.encode() for text in texts)
    forms.update(re.sub(rb"%..", lambda match: match.group().lower(), text.encode()) for text in texts)
    try:
        forms.update(_escaped(secret.decode()))
    except UnicodeDecodeError:
        pass
    return {form for form in forms if len(form) >= MIN_SECRET_SIZE}


def _base64_cores(secret: bytes) -> Iterator[bytes]:
    """Yield the part of the encoded secret that does not depend on the bytes before and after it."""
    for before, skipped in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(before) + secret)[skipped : (before + len(secret)) * 8 // 6]
        yield encoded
        yield encoded.translate(bytes.maketrans(b"+/", b"-_"))


def _escaped(text: str) -> Iterator[bytes]:
    """Yield the escaped forms of a text in JSON, with and without non-ASCII characters, and in Python."""
    narrow = json.dumps(text)[1:-1]
    wide = json.dumps(text, ensure_ascii=False)[1:-1]
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda match: r"\u" + match.group()[2:].upper(), narrow)
    for form in (narrow, wide, upper, ascii(text)[1:-1], repr(text)[1:-1]):
        yield form.encode()
        yield form.replace("/", r"\/").encode()


# Convert a script's output to text that is safe to show, and to JSON if it is one JSON object.


MAX_STRUCTURED: Final = 1024 * 1024
"""The most bytes of standard output that are parsed as JSON."""

_LONGEST_STRING: Final = 64 * 1024
"""The longest title, link or image for a terminal that is removed with its escape sequence."""

# ECMA-48: control sequences, control strings, and the short escapes, each in both spellings. A title or
# link (OSC) has one line. Strings end at their terminator, or where a terminal would abort them.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    rf"|(?:\x1b\]|\x9d)[^\x07\x18\x1a\x1b\x80-\x9f\n\r]{{0,{_LONGEST_STRING}}}"
    r"(?:[\x07\x18\x1a\x9c]|\x1b\\|(?=[\x1b\x80-\x9f]))"
    rf"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x18\x1a\x1b\x80-\x9f]{{0,{_LONGEST_STRING}}}"
    r"(?:[\x18\x1a\x9c]|\x1b\\|(?=[\x1b\x80-\x9f]))"
    r"|\x1b[ -/]*[0-~]?"
)


def shown_text(raw: bytes, *, total: int, keep: int, redactor: Redactor | None = None) -> str:
    """Return the beginning of a script's output, as text without hidden characters.

    `raw` is the captured part, `total` the number of bytes in all, and `keep`
    how many are shown. Bytes that are not UTF-8 become U+FFFD. If output was
    cut, a last line reports it. With a redactor, secrets are removed before
    and after: removing hidden characters could join the parts of one.
    Without one, `raw` may be shorter than what was captured.
    """
    is_cut = total > (keep if redactor is None else len(raw))
    safe = raw if redactor is None else redactor.redact(raw, is_cut=is_cut)
    is_cut = is_cut or len(safe) > keep
    # Without `final`, a character that was cut in half is not replaced by U+FFFD.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = without_escapes(decoder.decode(safe[:keep], final=not is_cut))
    if redactor is not None:
        text = redactor.redact_text(text, is_cut=is_cut)
    if not is_cut:
        return text
    kept = keep if redactor is None or len(safe) > keep else min(keep, len(raw))
    return f"{text}\n[truncated: {kept} of {max(total, len(safe))} bytes]"


def structured_from(raw: bytes, *, redactor: Redactor | None = None) -> dict[str, JsonValue] | None:
    """Return a script's whole standard output as a JSON object; None when it is not one.

    It is not accepted when it repeats a key, is too long or too deep, or holds
    numbers or characters that not every JSON parser supports. Its strings are
    made safe to show; if that makes two keys equal, it is not accepted either.
    """
    if len(raw) > MAX_STRUCTURED or not raw.lstrip().startswith(b"{"):
        return None
    try:
        value = parse_strictly(raw if redactor is None else redactor.redact(raw))
        return cast("dict[str, JsonValue]", _made_safe(value, redactor))
    except (StrictJsonError, _UnsafeValueError):
        return None


def without_escapes(text: str) -> str:
    """Return `text` without escape sequences and hidden characters."""
    return stripped(_ESCAPES.sub("", text))


class _UnsafeValueError(Exception):
    """A JSON value that not every JSON parser supports."""


def _made_safe(value: object, redactor: Redactor | None) -> JsonValue:
    if isinstance(value, str):
        text = without_escapes(value)
        return text if redactor is None else redactor.redact_text(text)
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        safe = {
            cast(str, _made_safe(name, redactor)): _made_safe(item, redactor)
            for name, item in members.items()
        }
        if len(safe) < len(members):
            raise _UnsafeValueError
        return safe
    if isinstance(value, list):
        return [_made_safe(item, redactor) for item in cast("list[object]", value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise _UnsafeValueError
    return cast(JsonValue, value)
