"""YAML that this project reads and the official TypeScript SDK does not.

That SDK parses frontmatter with a reader of its own, which knows a subset of
YAML. A skill outside the subset is served correctly, but its users there
cannot load it, so publishers are warned. The same pass over libyaml's events
notes the line of every field.
"""

import re
from dataclasses import dataclass, field

import yaml

from skillwire.core.finding import Line
from skillwire.core.yaml12 import Event

_INDENTATION_INDICATOR = re.compile(r"[|>][-+]?[1-9]")


@dataclass(slots=True)
class FrontmatterNotes:
    """An observer of one frontmatter block: where its fields stand, and what the subset lacks.

    `text` is the block, and `first_line` the file's line on which it starts.
    """

    text: str
    first_line: int
    outside: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    _lines: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    _top_key: str = ""
    _flows: list[Event] = field(default_factory=list[Event])
    _rows: list[str] = field(default_factory=list[str])

    def line_of(self, *path: str) -> Line:
        """Return the file's line of a top-level field, or of a key one level below it."""
        return self._lines.get(path)

    def __call__(self, kind: type[object], event: Event, depth: int, is_key: bool) -> None:
        if kind is yaml.ScalarEvent:
            self._note_scalar(event, depth, is_key)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._flows.append(event)
            if kind is yaml.MappingStartEvent and event.flow_style and self._character_at(event) != "{":
                self._add(event, "a mapping without braces inside [ ]")
        else:
            start = self._flows.pop()
            if start.flow_style and start.start_mark.line != event.end_mark.line:
                self._add(start, "a [ ] or { } that spans several lines")

    def _note_scalar(self, event: Event, depth: int, is_key: bool) -> None:
        start, end = event.start_mark, event.end_mark
        if is_key:
            line = self.first_line + start.line
            if depth == 1:
                self._top_key = event.value
                self._lines[(event.value,)] = line
            elif depth == 2:
                self._lines.setdefault((self._top_key, event.value), line)
            if self._row(start.line)[: start.column].rstrip().endswith("?"):
                self._add(event, "a key written with ?")
            if event.value == "__proto__":
                self._add(event, "the key __proto__")
        if event.style in ("'", '"') and start.line != end.line:
            self._add(event, "a quoted value that spans several lines")
        elif event.style in ("|", ">") and _INDENTATION_INDICATOR.match(
            self._row(start.line)[start.column :]
        ):
            self._add(event, "an indentation number after | or >")

    def _add(self, event: Event, what: str) -> None:
        self.outside.append((self.first_line + event.start_mark.line, what))

    def _character_at(self, event: Event) -> str:
        return self._row(event.start_mark.line)[event.start_mark.column :][:1]

    def _row(self, line: int) -> str:
        if not self._rows:
            self._rows = re.split(r"\r\n|\r|\n", self.text)
        return self._rows[line]
