"""How each form writes a list: its lines, its sections, and the whole.

A server's text passes through `text` or `reference` and nothing else, so that
it stays inside its line whatever it holds.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from skillwire.core.characters import visible
from skillwire.host.listing.cleaning import json_string, plain_or_quoted
from skillwire.host.listing.forms import ListingForm
from skillwire.host.listing.wording import UNVERIFIED, Place, Wording


@dataclass(frozen=True, slots=True)
class Mark:
    """What a line says has happened to its skill; `was` is the reference it had."""

    verb: str
    was: str = ""


class Writer(Protocol):
    """Writes one form. `text` and `reference` make a clean text harmless; the others put lines together."""

    @property
    def between(self) -> str:
        """What stands between two lines of a section."""
        ...

    def text(self, text: str) -> str: ...
    def reference(self, text: str) -> str: ...
    def line(self, place: Place, reference: str, description: str, mark: Mark | None) -> str: ...
    def more(self, place: Place, words: str, count: int) -> str: ...
    def section(self, place: Place, lines: Sequence[str], more: str) -> str: ...
    def whole(self, wording: Wording, sections: Sequence[str], rest: str) -> str: ...
    def rest(self, words: str, count: int) -> str: ...
    def alone(self, wording: Wording, count: int) -> str: ...


class Compact:
    """`- reference: description` below `From MCP server label (…):`."""

    between = "\n"

    def text(self, text: str) -> str:
        if "<" in text or ">" in text:
            return text.replace("<", "&lt;").replace(">", "&gt;")
        return text

    def reference(self, text: str) -> str:
        return plain_or_quoted(text)

    def line(self, place: Place, reference: str, description: str, mark: Mark | None) -> str:
        tail = f": {description}" if description else ""
        if mark is None:
            return f"- {reference}{tail}"
        was = f" (was {mark.was})" if mark.was else ""
        return f"- {mark.verb} {reference}{was}{tail}"

    def more(self, place: Place, words: str, count: int) -> str:
        return f"- {words}"

    def section(self, place: Place, lines: Sequence[str], more: str) -> str:
        return "\n".join([f"From {place.heading}:", *lines, *_if(more)])

    def whole(self, wording: Wording, sections: Sequence[str], rest: str) -> str:
        return "\n".join([wording.lead, *sections, *_if(rest)])

    def rest(self, words: str, count: int) -> str:
        return f"And {words}"

    def alone(self, wording: Wording, count: int) -> str:
        return wording.alone(count)


_MARKDOWN: Final = re.compile(r"[\\`*\[\]<>&~_]")


class Markdown:
    """``- `reference`: description`` below a heading."""

    between = "\n"

    def text(self, text: str) -> str:
        return _MARKDOWN.sub(_backslashed, text)

    def reference(self, text: str) -> str:
        return f"`{plain_or_quoted(text)}`"

    def line(self, place: Place, reference: str, description: str, mark: Mark | None) -> str:
        tail = f": {description}" if description else ""
        if mark is None:
            return f"- {reference}{tail}"
        was = f" (was {mark.was})" if mark.was else ""
        return f"- {mark.verb} {reference}{was}{tail}"

    def more(self, place: Place, words: str, count: int) -> str:
        return f"- {self.text(words)}"

    def section(self, place: Place, lines: Sequence[str], more: str) -> str:
        return "\n".join([f"### {self.text(place.heading)}", "", *lines, *_if(more), ""])

    def whole(self, wording: Wording, sections: Sequence[str], rest: str) -> str:
        title = "## Changed skills" if wording.is_change else "## Available skills"
        lead = self.text(wording.lead)
        return "\n".join([title, "", lead, "", *sections, *_if(rest)]).rstrip("\n")

    def rest(self, words: str, count: int) -> str:
        return f"And {self.text(words)}"

    def alone(self, wording: Wording, count: int) -> str:
        return self.text(wording.alone(count))


class Xml:
    """`<available_skills>`, one `<skill>` with `<name>` and `<description>` on each line."""

    between = "\n"

    def text(self, text: str) -> str:
        return html.escape(text, quote=False) if _NEEDS_ESCAPES.search(text) else text

    def reference(self, text: str) -> str:
        is_clear = text.isprintable() and visible(text) == text and " ".join(text.split()) == text
        return self.text(text if is_clear and not text.startswith('"') else json_string(text))

    def line(self, place: Place, reference: str, description: str, mark: Mark | None) -> str:
        tag = mark.verb if mark else "skill"
        was = f"<was>{mark.was}</was>" if mark and mark.was else ""
        about = f"<description>{description}</description>" if description else ""
        return f"<{tag} {self._origin(place)}><name>{reference}</name>{was}{about}</{tag}>"

    def more(self, place: Place, words: str, count: int) -> str:
        return f'<more {self._origin(place)} count="{count}">{self.text(words)}</more>'

    def section(self, place: Place, lines: Sequence[str], more: str) -> str:
        replaced = [f"<replaced {self._origin(place)}/>"] if place.is_replaced else []
        return "\n".join([*replaced, *lines, *_if(more)])

    def whole(self, wording: Wording, sections: Sequence[str], rest: str) -> str:
        lead = self.text(f"{wording.lead} What a server says is {UNVERIFIED}.")
        tag = "changed_skills" if wording.is_change else "available_skills"
        return "\n".join([lead, f"<{tag}>", *sections, *_if(rest), f"</{tag}>"])

    def rest(self, words: str, count: int) -> str:
        return f'<more count="{count}">{self.text(words)}</more>'

    def alone(self, wording: Wording, count: int) -> str:
        words = self.text(wording.alone(count))
        return f'<available_skills><more count="{count}">{words}</more></available_skills>'

    def _origin(self, place: Place) -> str:
        return f'origin="{html.escape(place.title)}"'


_NEEDS_ESCAPES: Final = re.compile("[<>&]")


class Json:
    """`{"usage": …, "origins": [{"origin": …, "skills": [{"skill": …, "description": …}]}]}`."""

    between = ",\n"

    def text(self, text: str) -> str:
        return json_string(text)[1:-1]

    def reference(self, text: str) -> str:
        return json_string(text)

    def line(self, place: Place, reference: str, description: str, mark: Mark | None) -> str:
        change = f'"change":"{mark.verb}",' if mark else ""
        was = f',"was":{mark.was}' if mark and mark.was else ""
        about = f',"description":"{description}"' if description else ""
        return f'{{{change}"skill":{reference}{was}{about}}}'

    def more(self, place: Place, words: str, count: int) -> str:
        return f'"more":{json_string(words)}'

    def section(self, place: Place, lines: Sequence[str], more: str) -> str:
        tail = f"],{more}}}" if more else "]}"
        return f'{{"origin":{json_string(place.heading)},"skills":[\n{self.between.join(lines)}\n{tail}'

    def whole(self, wording: Wording, sections: Sequence[str], rest: str) -> str:
        key = "changes" if wording.is_change else "usage"
        tail = f"],{rest}}}" if rest else "]}"
        return f'{{"{key}":{json_string(wording.lead)},"origins":[\n{self.between.join(sections)}\n{tail}'

    def rest(self, words: str, count: int) -> str:
        return f'"more":{json_string(words)}'

    def alone(self, wording: Wording, count: int) -> str:
        return f'{{"origins":[],"more":{json_string(wording.alone(count))}}}'


WRITERS: Final[dict[ListingForm, Writer]] = {
    ListingForm.COMPACT: Compact(),
    ListingForm.XML: Xml(),
    ListingForm.MARKDOWN: Markdown(),
    ListingForm.JSON: Json(),
}


def _backslashed(match: re.Match[str]) -> str:
    text, at = match.string, match.start()
    is_inside_word = 0 < at < len(text) - 1 and text[at - 1].isalnum() and text[at + 1].isalnum()
    return match.group() if match.group() == "_" and is_inside_word else f"\\{match.group()}"


def _if(line: str) -> list[str]:
    return [line] if line else []
