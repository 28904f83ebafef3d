"""Who else may be asked about a skill before it is loaded: scanners, registries, signers (ASK-05).

The extension has no word for provenance, and this host trusts no vendor in
particular, so it has only a place to put one. A provider is told whose skill
it is and the digests that its server promises, and nothing of its content.
What it says is about exactly these digests: other content is another question.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from skillwire.core.manifest import Manifest
from skillwire.host.origin import Origin

MAX_WORDS: Final = 500
"""How many characters of a verdict are shown."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a provider is asked about: one skill, with exactly these files.

    `binding` is the digest an approval would be bound to, over every file's
    URI and digest. Of a skill without digests there is neither a manifest nor
    a binding, and only its origin and URI can be judged.
    """

    origin: Origin
    uri: str
    manifest: Manifest | None
    binding: str


@dataclass(frozen=True, slots=True)
class ProvenanceVerdict:
    """What a provider says: words for the user, who decides, or a veto, which nobody overrules here."""

    words: str = ""
    is_veto: bool = False


class ProvenanceProvider(Protocol):
    """Someone who knows something about skills by their digests."""

    async def judge(self, subject: Provenance) -> ProvenanceVerdict | None:
        """Return what is known about exactly this content; None when nothing is.

        It is cancelled when it takes too long. What it raises counts as
        nothing said, and the user is told so.
        """
        ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of asking a provider about the content with this binding.

    `words` are the provider's, cut short; `problem` is the host's own word on
    why there is no verdict. Both are empty when the provider knows nothing.
    """

    binding: str
    words: str = ""
    is_veto: bool = False
    problem: str = ""
