"""Servers for tests of the registry: in memory, with a listing of their own, counting what they are asked."""

from collections.abc import Callable, Iterable

import anyio

from skillwire.core.entry import SkillEntry, parse_entry
from skillwire.core.errors import NotFoundError, SkillError
from skillwire.core.manifest import digest_of
from skillwire.core.uri import SkillUri
from skillwire.host.calls.listing import Listing, RefusedEntry
from skillwire.host.model.errors import NotDeclaredError
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind, SkillId


def origin_of(label: str) -> Origin:
    return Origin(OriginKind.SERVER, label, digest_of(label.encode()))


def entry_at(root: str, *, body: bytes = b"text", description: str = "Use when asked.") -> SkillEntry:
    """Return the entry of a skill with one file, whose folder is at `root`."""
    name = root.rpartition("/")[2]
    return parse_entry(
        {
            "uri": f"{root}/SKILL.md",
            "frontmatter": {"name": name, "description": description},
            "resources": [{"uri": f"{root}/SKILL.md", "digest": digest_of(body), "size": len(body)}],
        }
    )


def record(label: str, root: str, reference: str = "") -> KnownSkill:
    """Return the record of a server's skill, by default under a reference that nothing else has."""
    entry = entry_at(root)
    return KnownSkill(SkillId(origin_of(label), entry.uri.text), reference or f"{label}/{root}", entry)


class MemoryRemote:
    """A server that holds its skills in memory, and notes every request.

    `failure` is raised by whatever is asked next, `gate` holds listings up
    until it is set, and `problem` makes them partial.
    """

    def __init__(self, label: str, *roots: str, unlisted: Iterable[str] = ()) -> None:
        self.origin = origin_of(label)
        self.epoch = 1
        self.instructions = ""
        self.speaks_of_skills = True
        self.listed = {root: entry_at(root) for root in roots}
        self.unlisted = {root: entry_at(root) for root in unlisted}
        self.refused: tuple[RefusedEntry, ...] = ()
        self.ttl_ms: int | None = 60_000
        self.problem: SkillError | None = None
        self.failure: Exception | None = None
        self.gate: anyio.Event | None = None
        self.requests: list[str] = []
        self.connects: list[bool] = []
        self.on_list: Callable[[], None] = lambda: None

    @property
    def listings(self) -> int:
        return self.requests.count("list")

    async def connect(self, *, at_once: bool = False) -> None:
        self.connects.append(at_once)
        if self.failure is not None:
            raise self.failure

    async def list_skills(self) -> Listing:
        if not self.speaks_of_skills:
            raise NotDeclaredError("no dialect of skills", violates="NEG-05")
        self.requests.append("list")
        if self.gate is not None:
            await self.gate.wait()
        self.on_list()
        return Listing(tuple(self.listed.values()), self.refused, self.ttl_ms, problem=self.problem)

    async def get_skill(self, uri: SkillUri | str) -> SkillEntry:
        text = uri if isinstance(uri, str) else uri.published
        self.requests.append(f"get {text}")
        if self.failure is not None:
            raise self.failure
        found = {**self.unlisted, **self.listed}.get(text.removesuffix("/SKILL.md"))
        if found is None:
            raise NotFoundError("nothing is served there", uri=text)
        return found
