"""Relations between skills, as their authors declare them in `metadata` under the `skillwire/` prefix.

    metadata:
      skillwire/requires: sql-review, acme/billing/ledger
      skillwire/related: refunds
      skillwire/part-of: billing

A reference is a skill's name, the end of its path, or its URI. The graph is
for people and tools that inspect a catalog: nothing is ever loaded, approved
or fetched because of a relation.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import SKILL_FILE, Finding
from skillwire.core.yaml12 import Frontmatter, JsonValue


class Relation(StrEnum):
    """A kind of relation: a skill requires another, is related to it, or is a part of it."""

    REQUIRES = "requires"
    RELATED = "related"
    PART_OF = "part-of"

    @property
    def key(self) -> str:
        """The key in `metadata`."""
        return f"skillwire/{self.value}"


MAX_REFERENCES: Final = 64
"""How many skills one skill may name for each relation."""
MAX_REFERENCE: Final = 512

_DIRECTED = (Relation.REQUIRES, Relation.PART_OF)
_SEPARATOR = re.compile(r"[\s,]+")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_STEPS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Node:
    """A skill in the graph: its key there, its path, and its frontmatter.

    `path` is that of the published skill, with or without a scheme, as
    `skill://acme/refunds` or `acme/refunds`.
    """

    key: str
    path: str
    frontmatter: Frontmatter

    @classmethod
    def of(cls, entry: SkillEntry) -> "Node":
        """Build the node of an entry, with the URI of its `SKILL.md` as key."""
        return cls(entry.uri.text, entry.uri.root, entry.frontmatter)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A reference that matches no skill, or several, which are then the `candidates`."""

    source: str
    relation: Relation
    reference: str
    candidates: tuple[str, ...] = ()


def relations_in(frontmatter: Frontmatter) -> tuple[Mapping[Relation, tuple[str, ...]], list[Finding]]:
    """Return the references of a skill by relation, and findings about them; never raises."""
    metadata = frontmatter.fields.get("metadata")
    found: dict[Relation, tuple[str, ...]] = {}
    findings: list[Finding] = []
    for relation in Relation if isinstance(metadata, dict) else ():
        value = metadata.get(relation.key) if isinstance(metadata, dict) else None
        if value is None:
            continue
        references = _references(value)
        if references is None or len(references) > MAX_REFERENCES:
            message = f"`{relation.key}` is not a list of at most {MAX_REFERENCES} references to skills"
            findings.append(Finding("relation-invalid", message, fix="name skills, with commas between them"))
        else:
            found[relation] = references
    return found, findings


class RelationGraph:
    """The relations between the skills of one catalog. Keys are those of the nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._known: dict[str, Node] = {node.key: node for node in nodes}
        self._by_name: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self._known.values():
            self._by_name[node.path.rpartition("/")[2]].append(node)
        self._targets: dict[Relation, dict[str, tuple[str, ...]]] = {relation: {} for relation in Relation}
        self._sources: dict[Relation, defaultdict[str, list[str]]] = {
            relation: defaultdict(list) for relation in Relation
        }
        self.unresolved: list[Unresolved] = []
        for node in self._known.values():
            self._connect(node)

    @classmethod
    def of(cls, entries: Iterable[SkillEntry]) -> "RelationGraph":
        """Build the graph of published skills, by the URIs of their `SKILL.md`."""
        return cls(map(Node.of, entries))

    def targets(self, key: str, relation: Relation) -> tuple[str, ...]:
        """Return the skills that a skill names, in its own order."""
        return self._targets[relation].get(key, ())

    def sources(self, key: str, relation: Relation) -> tuple[str, ...]:
        """Return the skills that name a skill, sorted."""
        return tuple(sorted(self._sources[relation].get(key, ())))

    def reach(self, key: str, relation: Relation) -> tuple[str, ...]:
        """Return all skills reachable from one, directly or through others, nearest first, without itself."""
        found = dict.fromkeys([key])
        waiting = [key]
        for current in waiting:  # It grows during the loop.
            fresh = [target for target in self.targets(current, relation) if target not in found]
            found.update(dict.fromkeys(fresh))
            waiting += fresh
        return tuple(found)[1:]

    def cycles(self, relation: Relation) -> list[tuple[str, ...]]:
        """Return the groups of skills that form cycles, each sorted, and the groups too.

        There are none for `related`, which is mutual.
        """
        return sorted(_cycles(self._targets[relation])) if relation in _DIRECTED else []

    def findings(self) -> dict[str, list[Finding]]:
        """Return the findings about the relations of each skill, by key."""
        found: defaultdict[str, list[Finding]] = defaultdict(list)
        for node in self._known.values():
            found[node.key] += relations_in(node.frontmatter)[1]
        for item in self.unresolved:
            found[item.source].append(_unresolved_finding(item))
        for relation in _DIRECTED:
            for cycle in self.cycles(relation):
                for key in cycle:
                    found[key].append(self._cycle_finding(key, relation, cycle))
        return {key: findings for key, findings in found.items() if findings}

    def _connect(self, node: Node) -> None:
        for relation, references in relations_in(node.frontmatter)[0].items():
            targets: dict[str, None] = {}
            for reference in references:
                candidates = self._matching(reference)
                if len(candidates) == 1:
                    targets[candidates[0]] = None
                else:
                    self.unresolved.append(Unresolved(node.key, relation, reference, tuple(candidates)))
            self._targets[relation][node.key] = tuple(targets)
            for target in targets:
                self._sources[relation][target].append(node.key)

    def _matching(self, reference: str) -> list[str]:
        """Return the skills that a reference matches: by the last segments of the path, or all of them."""
        match = _SCHEME.fullmatch(reference)
        scheme, path = (match[1], match[2]) if match else ("", reference)
        path = path.removesuffix(f"/{SKILL_FILE}")
        fitting = [
            node
            for node in self._by_name.get(path.rpartition("/")[2], ())
            if f"/{node.path}".endswith(f"/{path}") and _has_scheme(node.path, scheme)
        ]
        exact = [node for node in fitting if node.path in (path, reference.removesuffix(f"/{SKILL_FILE}"))]
        return sorted(node.key for node in exact or fitting)

    def _cycle_finding(self, key: str, relation: Relation, cycle: Sequence[str]) -> Finding:
        others = [self._name(other) for other in cycle if other != key]
        way = ", ".join(others[:_STEPS_NAMED]) + (" and others" if len(others) > _STEPS_NAMED else "")
        verb = "requires" if relation is Relation.REQUIRES else "is a part of"
        message = f"the skill {verb} itself" + (f", by way of {way}" if way else "")
        return Finding("relation-cycle", message, fix=f"take one of them out of `{relation.key}`")

    def _name(self, key: str) -> str:
        return quoted(self._known[key].path)


def _references(value: JsonValue) -> tuple[str, ...] | None:
    if not isinstance(value, str):
        return None
    references = tuple(dict.fromkeys(part for part in _SEPARATOR.split(value) if part))
    return references if all(len(reference) <= MAX_REFERENCE for reference in references) else None


def _has_scheme(path: str, scheme: str) -> bool:
    """Return whether a URI of the given scheme can match a path; one without a scheme always can."""
    return not scheme or "://" not in path or path.startswith(f"{scheme}://")


def _unresolved_finding(item: Unresolved) -> Finding:
    named = f"`{item.relation.key}` names {quoted(item.reference)}"
    if item.candidates:
        message = f"{named}, which matches {len(item.candidates)} skills"
        return Finding("relation-unknown", message, fix="write more of its path")
    message = f"{named}, which matches no skill here"
    return Finding("relation-unknown", message, fix="correct it, or check the folder that contains both")


def _cycles(targets: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, ...]]:
    """Yield the strongly connected components with a cycle (Tarjan's algorithm, without recursion)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    is_on_path: set[str] = set()
    for start in targets:
        work = [(start, 0)] if start not in number else []
        while work:
            key, position = work.pop()
            if position == 0:
                number[key] = lowest[key] = len(number)
                path.append(key)
                is_on_path.add(key)
            following = targets.get(key, ())
            if position < len(following):
                work.append((key, position + 1))
                target = following[position]
                if target not in number:
                    work.append((target, 0))
                elif target in is_on_path:
                    lowest[key] = min(lowest[key], number[target])
                continue
            if work:
                above = work[-1][0]
                lowest[above] = min(lowest[above], lowest[key])
            if lowest[key] == number[key]:
                part = path[path.index(key) :] if path[-1] != key else [key]
                del path[len(path) - len(part) :]
                is_on_path.difference_update(part)
                if len(part) > 1 or key in following:
                    yield tuple(sorted(part))
