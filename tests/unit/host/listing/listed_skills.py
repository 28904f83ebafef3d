"""Skills to list, and readers that take a list apart again as strictly as a model could not."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind, SkillId

USER = Origin(OriginKind.LOCAL, "user", "sha256:" + "f" * 64)
_HEADING = re.compile(r"From (.+?)(?: \((.*)\))?:")
_MORE = re.compile(r"- (?:(\d+) more.*|no skills any more)")
_REFERENCE = re.compile(r'("(?:[^"\\]|\\.)*"|\S+?)(?: \(was (.*?)\))?(?:: (.*))?$')


def server(label: str) -> Origin:
    return Origin(OriginKind.SERVER, label, "sha256:" + "a" * 64)


def listed(origin: Origin, path: str, description: str, *, reference: str = "") -> KnownSkill:
    """Make the record of a skill at `path`, called by its last segment unless a reference is given."""
    uri = SkillUri.build(path)
    name = path.rpartition("/")[2]
    own = reference or (f"{origin.label}/{name}" if origin.is_remote else name)
    entry = SkillEntry(uri, Frontmatter({"name": name, "description": description}), None)
    return KnownSkill(SkillId(origin, uri.text), own, entry)


@dataclass
class Heard:
    """One origin as a reader of the list knows it: descriptions by reference, and how many more there are."""

    descriptions: dict[str, str] = field(default_factory=dict[str, str])
    more: int = 0


def read_compact(text: str, heard: dict[str, Heard] | None = None) -> dict[str, Heard]:
    """Read a compact list, or changes to one already heard, line by line; any other line is a failure."""
    known = {} if heard is None else heard
    own: Heard | None = None
    for line in text.splitlines()[1:]:
        if heading := _HEADING.fullmatch(line):
            own = known.setdefault(heading[1], Heard())
            if heading[2] and "replaces" in heading[2]:
                own = known[heading[1]] = Heard()
        elif line.startswith("And "):
            continue
        else:
            assert own is not None and line.startswith("- "), line
            if more := _MORE.fullmatch(line):
                own.more += int(more[1] or 0)
            else:
                _take(own, line.removeprefix("- "))
    return known


def _take(own: Heard, line: str) -> None:
    verb = next((v for v in ("added", "changed", "renamed", "removed") if line.startswith(f"{v} ")), "")
    match = _REFERENCE.match(line.removeprefix(f"{verb} "))
    assert match is not None, line
    reference = unquoted(match[1])
    if verb == "removed":
        del own.descriptions[reference]
        return
    if verb == "renamed":
        del own.descriptions[unquoted(match[2])]
    if verb == "changed":
        assert reference in own.descriptions
    own.descriptions[reference] = match[3] or ""


def unquoted(shown: str) -> str:
    return json.loads(shown) if shown.startswith('"') else shown


def shown_references(text: str, form: str) -> list[str]:
    """Return the references in a list of any form, by parsing it."""
    if not text:
        return []
    match form:
        case "compact":
            return [ref for own in read_compact(text).values() for ref in own.descriptions]
        case "xml":
            return [unquoted(name or "") for _, name, _ in read_xml(text)]
        case "json":
            return [ref for _, ref, _ in read_json(text)]
        case _:
            return [ref for _, ref, _ in read_markdown(text)]


def read_xml(text: str) -> list[tuple[str, str | None, str | None]]:
    """Return origin, name and description of every skill; nothing else may be there."""
    lead, _, block = text.partition("<available_skills>")
    assert "<" not in lead
    root = ElementTree.fromstring("<available_skills>" + block)
    assert {child.tag for child in root} <= {"skill", "more"}
    for skill in root.findall("skill"):
        assert [child.tag for child in skill] in (["name"], ["name", "description"])
        assert not any(len(child) or child.attrib for child in skill)
    assert block.count("<skill ") == len(root.findall("skill"))
    return [
        (skill.attrib["origin"], skill.findtext("name"), skill.findtext("description"))
        for skill in root.findall("skill")
    ]


def read_json(text: str) -> list[tuple[str, str, str]]:
    document: dict[str, Any] = json.loads(text)
    assert document.keys() <= {"usage", "origins", "more"}
    return [
        (own["origin"], skill["skill"], skill.get("description", ""))
        for own in document["origins"]
        for skill in own["skills"]
    ]


def read_markdown(text: str) -> list[tuple[str, str, str]]:
    """Read a Markdown list; every line has to be one of the few kinds there are."""
    found: list[tuple[str, str, str]] = []
    heading = ""
    for number, line in enumerate(text.splitlines()):
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        elif match := re.fullmatch(r"- `([^`]+)`(?:: (.*))?", line):
            assert heading
            assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]<>]", match[2] or ""), line
            found.append((heading, unquoted(match[1]), match[2] or ""))
        else:
            first = "## Available skills" if text.startswith("## ") else line
            assert number == 0 or not line or line.startswith(("- ", "And ")) or number == 2, line
            assert number != 0 or line == first
    return found


def references(skills: Iterable[KnownSkill]) -> list[str]:
    return [skill.reference for skill in skills]


def by_origin(skills: Sequence[KnownSkill]) -> dict[str, list[KnownSkill]]:
    origins: dict[str, list[KnownSkill]] = {}
    for skill in skills:
        origins.setdefault(str(skill.id.origin), []).append(skill)
    return origins
