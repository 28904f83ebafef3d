"""YAML that this project reads and the official TypeScript SDK does not.

That SDK parses frontmatter with a reader of its own, which knows a subset of
YAML. A skill outside the subset is served correctly, but clients that use that
SDK cannot load it, so publishers are warned. `tests/interop` compares the two
readers. The same pass over libyaml's events records the line of every field.
"""

import re
from dataclasses import dataclass, field

import yaml

from skillwire.core.finding import Line
from skillwire.core.yaml12 import Event

_BLOCK_HEADER = re.compile(r"[|>][-+]?(?:[ \t]+#.*)?[ \t]*\r?")
_COMMENT_NEXT = re.compile(r"[^\n]*\n(?:[ ]*\r?\n)*(?P<indent> *)#")
_TAB_INDENT = re.compile(r"\n *\t[ \t]*[^ \t\r\n]")
_LOOSE_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]")


@dataclass(slots=True)
class TypeScriptYamlCheck:
    """An observer of one frontmatter block: the lines of its fields, and what is outside the subset.

    `text` is the block, and `first_line` the file's line on which it starts.
    `has_opening_blanks` means that there are blanks after the `---` before it.
    """

    text: str
    first_line: int
    has_opening_blanks: bool = False
    outside: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    _lines: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    _top_key: str = ""
    _open: list[Event] = field(default_factory=list[Event])

    @classmethod
    def of(cls, data: bytes, text: str, first_line: int) -> "TypeScriptYamlCheck":
        """Prepare to observe the frontmatter `text` of `data`, a whole `SKILL.md`."""
        return cls(text, first_line, _LOOSE_OPENING.match(data) is not None)

    def line_of(self, *path: str) -> Line:
        """Return the file's line of a top-level field, or of a key one level below it."""
        return self._lines.get(path)

    def __call__(self, kind: type[object], event: Event, depth: int, is_key: bool) -> None:
        if kind is yaml.ScalarEvent:
            if is_key:
                self._note_key(event, depth)
            self._note_scalar(event, is_key)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._note_start(event, depth, is_mapping=kind is yaml.MappingStartEvent)
            self._open.append(event)
        elif kind is yaml.DocumentStartEvent or kind is yaml.DocumentEndEvent:
            if event.explicit:
                self._add(event, "a --- or ... that starts or ends a YAML document")
        else:
            self._note_end(self._open.pop(), event)

    def _note_start(self, event: Event, depth: int, *, is_mapping: bool) -> None:
        if not event.flow_style:
            return
        if depth == 0:
            self._add(event, "{ } around all of the fields")
        if is_mapping and self.text[event.start_mark.index] != "{":
            self._add(event, "a mapping without braces inside [ ]")

    def _note_end(self, start: Event, end: Event) -> None:
        if start.flow_style:
            if start.start_mark.line != end.end_mark.line:
                self._add(start, "a [ ] or { } that spans several lines")
            self._note_glued_comment(end)

    def _note_key(self, event: Event, depth: int) -> None:
        line = self.first_line + event.start_mark.line
        if depth == 1:
            self._top_key = event.value
            self._lines[(event.value,)] = line
        elif depth == 2:
            self._lines.setdefault((self._top_key, event.value), line)
        if self._has_question_mark(event):
            self._add(event, "a key written with ?")
        elif event.style and not self._in_flow() and self._character_after(event) != ":":
            self._add(event, "a blank between a quoted key and its colon")
        if event.value == "__proto__":
            self._add(event, "the key __proto__")

    def _has_question_mark(self, event: Event) -> bool:
        if self._before(event).rstrip().endswith("?"):
            return True
        # A key with its ? on an earlier line has no colon after it; every other key has one.
        after = self.text[event.end_mark.index : event.end_mark.index + 1024].lstrip(" \t")
        return not self._in_flow() and (event.style in ("|", ">") or not after.startswith(":"))

    def _note_scalar(self, event: Event, is_key: bool) -> None:
        if event.style in ("'", '"'):
            if event.start_mark.line != event.end_mark.line:
                self._add(event, "a quoted value that spans several lines")
            self._note_glued_comment(event)
        elif event.style in ("|", ">"):
            self._note_block_scalar(event)
        else:
            self._note_plain(event, is_key)

    def _note_block_scalar(self, event: Event) -> None:
        if not _BLOCK_HEADER.fullmatch(self._rest_of_line(event)):
            self._add(event, "an indentation number or a comment right after | or >")
        parent = self._open[-1].start_mark.column if self._open else -1
        if event.start_mark.column <= parent:
            self._add(event, "a | or > that is not indented")
        comment = _COMMENT_NEXT.match(self.text, event.start_mark.index)
        if comment and len(comment["indent"]) > parent and not event.value.strip("\n"):
            self._add(event, "a comment where the text after | or > should be")

    def _note_plain(self, event: Event, is_key: bool) -> None:
        if event.value.startswith("?") and not self._before(event).strip(" \t-"):
            self._add(event, "an unquoted text that starts with ?")
        if self._in_flow() and not is_key and event.value in ("", "-"):
            self._add(event, "an empty value, or only a hyphen, inside [ ] or { }")
        if _TAB_INDENT.search(self.text, event.start_mark.index, event.end_mark.index):
            self._add(event, "a tab that indents the next line of a text")

    def _note_glued_comment(self, event: Event) -> None:
        if self._character_after(event) == "#":
            self._add(event, "a comment without a blank before it")

    def _add(self, event: Event, what: str) -> None:
        self.outside.append((self.first_line + event.start_mark.line, what))

    def _in_flow(self) -> bool:
        return bool(self._open) and self._open[-1].flow_style

    def _before(self, event: Event) -> str:
        """Return the text of the event's line up to the event."""
        index = event.start_mark.index
        return self.text[self.text.rfind("\n", 0, index) + 1 : index]

    def _rest_of_line(self, event: Event) -> str:
        index = event.start_mark.index
        end = self.text.find("\n", index)
        return self.text[index : end if end >= 0 else None]

    def _character_after(self, event: Event) -> str:
        return self.text[event.end_mark.index : event.end_mark.index + 1]
