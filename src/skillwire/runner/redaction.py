"""`Redactor`: takes the secrets a script was given out of what it leaves behind.

This is a seat belt, not a wall. It catches the token in an error message, in a
printed header, in a dump of variables or behind an encoding that programs use
every day. A script that means to tell a secret can spell it in endless other
ways; whom that worries does not grant the secret.
"""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, TypeAlias
from urllib.parse import quote, quote_plus

SHORTEST: Final = 4
"""A secret of fewer bytes than this is in every text by chance, so it is not looked for."""

# What `encodeURIComponent`, `encodeURI`, and Python's `quote` and `quote_plus` leave as they are.
_UNQUOTED: Final = ("", "/", "!'()*", ";,/?:@&=+$!'()*#")
# Whatever is this long may have been broken into lines on its way, as base64 usually is.
_WRAPPED: Final = 57
_PREFIX: Final = 16

_Span: TypeAlias = tuple[int, int, str]


class Redactor:
    """Replaces secrets by `[redacted:NAME]`, as they are and in their usual encodings.

    These are base64 in both alphabets, wherever in the encoded data the secret
    begins, percent-encoding, hexadecimal, and the escapes of JSON and Python;
    the long ones also when broken into lines. White space around a secret
    counts as part of it or not. Of base64 the characters at the edges, which
    the secret shares with its neighbours, stay.
    """

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        named = {name: value.strip() for name, value in secrets.items()}
        self.too_short = tuple(name for name, value in named.items() if len(value) < SHORTEST)
        """The names of the secrets that cannot be redacted, because they are too short."""
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
        """Return `data` without secrets. When it was cut short, the beginning of one at its end goes too."""
        if not self._names:
            return data
        lines = _Lines(data)
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

    def _wrapped(self, lines: "_Lines") -> Iterator[_Span]:
        """Find the long secrets that were broken into lines."""
        if self._long_names:
            for start, end, name in self._long_search.spans(lines.joined):
                yield lines.place(start), lines.place(end - 1) + 1, name

    def _tails(self, data: bytes, lines: "_Lines") -> Iterator[_Span]:
        """Find the beginnings of secrets that `data` ends in."""
        for form, name in self._names.items():
            if length := _common(data, form):
                yield len(data) - length, len(data), name
        for form, name in self._long_names.items():
            if length := _common(lines.joined, form):
                yield lines.place(len(lines.joined) - length), len(data), name


class _Search:
    """Finds texts, by one pattern of how they begin: one of whole texts, if they are long, is slow to build.

    `marks` are what secrets were replaced by before. They are found as well, and
    what is inside is not, in case a secret is part of the word "redacted".
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
        """Find every place with one of the texts. They may overlap."""
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


class _Lines:
    """Data as if it were all on one line, and where in the data each byte of that is."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def joined(self) -> bytes:
        return _joined(self._data)

    @cached_property
    def _breaks(self) -> tuple[list[int], list[int]]:
        """Where line ends were taken out, and how many bytes up to there."""
        places: list[int] = []
        removed = [0]
        for match in re.finditer(rb"[\r\n]+", self._data):
            places.append(match.start() - removed[-1])
            removed.append(removed[-1] + len(match.group()))
        return places, removed

    def place(self, index: int) -> int:
        places, removed = self._breaks
        return index + removed[bisect_right(places, index)]


def _common(data: bytes, form: bytes) -> int:
    """Return how long the longest beginning of `form`, but not all of it, is that `data` ends in."""
    end = data[-(len(form) - 1) :]
    start = end.find(form[:_PREFIX])
    while start >= 0:
        if form.startswith(end[start:]):
            return len(end) - start
        start = end.find(form[:_PREFIX], start + 1)
    short = range(min(_PREFIX, len(form)) - 1, SHORTEST - 1, -1)
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
    """Return every spelling of a secret that is looked for."""
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
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_cores(secret: bytes) -> Iterator[bytes]:
    """Yield the part of the encoded secret that is the same whatever stands before and after it."""
    for before, skipped in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(before) + secret)[skipped : (before + len(secret)) * 8 // 6]
        yield encoded
        yield encoded.translate(bytes.maketrans(b"+/", b"-_"))


def _escaped(text: str) -> Iterator[bytes]:
    """Yield how JSON writes a text, with and without what is not ASCII, and Python."""
    narrow = json.dumps(text)[1:-1]
    wide = json.dumps(text, ensure_ascii=False)[1:-1]
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda match: r"\u" + match.group()[2:].upper(), narrow)
    for form in (narrow, wide, upper, ascii(text)[1:-1], repr(text)[1:-1]):
        yield form.encode()
        yield form.replace("/", r"\/").encode()
