"""A user's yes: what it covers, what ends it, and what a user is asked.

An approval is bound to the origin and to every URI and digest its server
promised at the moment it was given. Anything else is another skill, and needs another yes.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Coverage, Manifest
from skillwire.host.approval.provenance import Judgement
from skillwire.host.approval.terms import RunTerms
from skillwire.host.origin import SkillId
from skillwire.host.registry.known import KnownSkill


class Grant(StrEnum):
    """What a user can agree to, each on its own."""

    LOAD = "load"
    """The skill's text may enter the model's context."""
    SCRIPTS = "scripts"
    """The skill's own scripts, byte for byte, may be run."""
    ALLOWED_TOOLS = "allowed-tools"
    """The tools its frontmatter asks for may be used without further questions."""


@dataclass(frozen=True, slots=True)
class Approval:
    """What a user agreed to, for one skill of one origin with exactly these files.

    The manifest is not optional, on purpose: content without digests cannot
    be approved for later.
    """

    skill: SkillId
    manifest: Manifest
    grants: frozenset[Grant]
    granted_at: datetime
    granted_by: str = ""

    def covers(self, skill: SkillId, entry: SkillEntry, grant: Grant = Grant.LOAD) -> bool:
        """Tell whether the user agreed to `grant` for exactly this content from exactly this origin."""
        return grant in self.grants and skill == self.skill and self.is_for(entry)

    def is_for(self, entry: SkillEntry) -> bool:
        """Tell whether an entry lists the same files with the same digests.

        Sizes are left out, as the extension does: they follow from the bytes,
        and a listing that lies about one fails when the file is read.
        """
        return entry.manifest is not None and binding_of(entry.manifest) == binding_of(self.manifest)

    def is_ended_by(self, entry: SkillEntry) -> bool:
        """Tell whether an entry shows that the skill is no longer what was approved.

        A skill that a server offers both ways is known by its archive or by
        its `SKILL.md` alone, as this host's policy on archives says. Under the
        other policy an approval covers nothing, and is not proven wrong either
        as long as the `SKILL.md` is the same.
        """
        if self.is_for(entry):
            return False
        if entry.manifest is None or Coverage.FILES in (self.manifest.coverage, entry.manifest.coverage):
            return True
        if self.manifest.coverage is entry.manifest.coverage:
            return True
        before, after = self.manifest.find(self.skill.uri), entry.manifest.find(self.skill.uri)
        return before is None or after is None or before.digest != after.digest


def binding_of(manifest: Manifest) -> str:
    """Return the full digest (`sha256:…`) of every file's URI and digest: what an approval is bound to."""
    # Other coverage of the same lines is another promise: one file of many is less than the only one.
    head = "" if manifest.coverage is Coverage.FILES else f"{manifest.coverage}\n"
    lines = head + "".join(
        f"{uri}\0{digest}\n" for uri, digest in zip(manifest.uris, manifest.digests, strict=True)
    )
    return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Change:
    """How a skill differs from what was approved: the URIs of its files, sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Manifest, after: Manifest) -> "Change":
        old = dict(zip(before.uris, before.digests, strict=True))
        new = dict(zip(after.uris, after.digests, strict=True))
        return cls(
            tuple(sorted(new.keys() - old.keys())),
            tuple(sorted(old.keys() - new.keys())),
            tuple(sorted(uri for uri in old.keys() & new.keys() if old[uri] != new[uri])),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.modified)


class Occasion(StrEnum):
    """Why a user is asked."""

    FIRST = "first"
    """The skill was never approved."""
    CHANGED = "changed"
    """It was approved, and is no longer the same."""
    DYNAMIC = "dynamic"
    """It has no digests, so every load is asked about."""
    SCRIPTS = "scripts"
    """A script of the skill would be run."""
    ALLOWED_TOOLS = "allowed-tools"
    """The skill asks for tools."""
    UNVERIFIED = "unverified"
    """Files of the skill that have no digest would be read."""
    CROSS_ORIGIN = "cross-origin"
    """A read would go to another server than the skill's."""
    CALL = "call"
    """The model wants to call a tool while it acts on the skill."""


class Standing(StrEnum):
    """How the user's word stands for a skill as it is now."""

    LOCAL = "local"
    """It is the user's own, and needs none."""
    LOCKED = "locked"
    """Pinned by the project's lock."""
    APPROVED = "approved"
    """Approved on this machine."""
    ONCE = "once"
    """Approved while this host runs."""
    CHANGED = "changed"
    """Something else of it was approved."""
    NEW = "new"
    """Not approved: never, or no longer, with the files it had then."""
    DYNAMIC = "dynamic"
    """It has no digests, so nothing can be approved beforehand."""


class Reply(StrEnum):
    """What a user answers."""

    DENY = "deny"
    ONCE = "once"
    """Yes, while this host runs, and for this content only."""
    ALWAYS = "always"
    """Yes, and remember it for this content; where nothing may be remembered, the same as once."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a user is asked, with everything needed to ask well.

    All text that comes from a server (names, descriptions, URIs of files) is
    to be shown escaped, below the origin, which is the host's own word. The
    entry shown is the entry that will be loaded. `change` says what differs
    from the content approved before, and `previous` holds its manifest.
    `judgement` is what a provenance check said of exactly this content.
    `servers` are the labels that a read across origins would connect, the
    reader's first. `call` describes the tool call in question, in words.
    `terms` say how a script would be run, where exactly one run is in question.
    """

    occasion: Occasion
    skill: KnownSkill | None
    change: Change | None = None
    previous: Manifest | None = None
    servers: tuple[str, ...] = ()
    uri: str = ""
    call: str = ""
    script: str = ""
    script_digest: str = ""
    script_content: bytes = field(default=b"", repr=False)
    tools: tuple[str, ...] = ()
    judgement: Judgement | None = None
    terms: RunTerms | None = None

    @property
    def may_be_remembered(self) -> bool:
        """Whether a reply of `ALWAYS` outlives this one decision."""
        if self.occasion is Occasion.SCRIPTS and not self.script_digest:
            return False
        if self.terms is not None and self.terms.is_for_one_run:
            return False
        return self.occasion in _REMEMBERED and self.skill is not None and not self.skill.entry.is_dynamic


Ask: TypeAlias = Callable[[Question], Awaitable[Reply]]

_REMEMBERED = frozenset({Occasion.FIRST, Occasion.CHANGED, Occasion.SCRIPTS, Occasion.ALLOWED_TOOLS})


def now() -> datetime:
    """Return the time for an approval: whole seconds, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)
