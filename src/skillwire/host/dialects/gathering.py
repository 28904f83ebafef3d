"""What a listing in one piece becomes: each item on its own, and then all of them together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.host.calls.enumeration import Listing, RefusedEntry, shortened
from skillwire.sources.templates import SkillTemplate
from skillwire.wire.dialect import Dialect

# What an entry of the released extension calls its own; nothing else may take these places on a relay.
_RESERVED = frozenset({"uri", "frontmatter", "resources"})


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a listing: a skill, a template, or neither, and then `findings` say why.

    `uri` is the canonical URI of a skill that is not used, where it has one.
    Findings about an item that is used are warnings.
    """

    entry: SkillEntry | None = None
    template: SkillTemplate | None = None
    findings: tuple[Finding, ...] = ()
    uri: str | None = None

    @property
    def home(self) -> str | None:
        """The canonical URI that the item claims for a skill."""
        return self.uri if self.entry is None else self.entry.uri.text


def gathered(items: Iterable[Item], dialect: Dialect) -> Listing:
    """Put a listing together; a URI that is listed twice costs every item with it."""
    every = list(items)
    copies = Counter(item.home for item in every if item.home is not None)
    entries: list[SkillEntry] = []
    refused: list[RefusedEntry] = []
    templates: dict[str, SkillTemplate] = {}
    remarks: list[tuple[str, Finding]] = []
    for position, item in enumerate(every):
        if item.template is not None:
            templates.setdefault(item.template.template.text, item.template)
            continue
        home = item.home
        doubts = [_repeated(home, copies[home])] if home is not None and copies[home] > 1 else []
        if item.entry is None or doubts:
            refused.append(RefusedEntry(position, home, shortened([*item.findings, *doubts])))
            continue
        entries.append(item.entry)
        remarks += [(item.entry.uri.text, finding) for finding in shortened(item.findings)]
    return Listing(
        tuple(entries),
        tuple(refused),
        dialect=dialect,
        templates=tuple(templates.values()),
        remarks=tuple(remarks),
    )


def unused(value: object, findings: Iterable[Finding]) -> Item:
    """Return the item for a stranger's entry that breaks a rule, under the URI it gives itself."""
    url = cast(Mapping[str, object], value).get("url") if isinstance(value, dict) else None
    try:
        uri = SkillUri.parse(url).text if isinstance(url, str) else None
    except InvalidUriError:
        uri = None
    return Item(findings=tuple(findings), uri=uri)


def kept(extra: Mapping[str, JsonValue], *used: str) -> Mapping[str, JsonValue]:
    """Return the unknown fields to pass on (NEG-19), without those that mean something here or in `core`."""
    dropped = _RESERVED.union(used)
    return {name: value for name, value in extra.items() if name not in dropped} if extra else extra


def _repeated(uri: str, copies: int) -> Finding:
    return Finding("duplicate-uri", f"the server lists {uri} {copies} times", file="")
