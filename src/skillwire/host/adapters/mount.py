"""Loaded skills as a tree of paths, for agents whose model works with files.

Nothing is written to disk. A path consists of a label, a scheme, and the rest
of a URI, so it identifies one resource of one server:
`acme/skill/shop/refunds/references/policy.md`. Only files of loaded skills are
included, and each is fetched and verified when it is read.
"""

from skillwire.core import InvalidUriError, canonical_uri, files_with_digests, quoted
from skillwire.host.conversation import Conversation
from skillwire.host.model import Activation, NotLoadedError


class Mount:
    """The files of the skills one conversation has loaded, by path."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def list(self) -> tuple[str, ...]:
        """Return the paths of all files of loaded skills that have digests, sorted; nothing is fetched."""
        return tuple(
            sorted(
                mount_path(window.skill.id.origin.label, uri)
                for window in self._conversation.loaded
                if (files := files_with_digests(window.skill.entry)) is not None
                for uri in files.uris
            )
        )

    async def read(self, path: str) -> bytes:
        """Return a file's bytes, fetched if necessary and verified against the loaded entry.

        Raises:
            NotLoadedError: The path is not in a loaded skill.
            SkillError: The skill has no such file, it changed, or it cannot be fetched.
        """
        label, uri = parse_mount_path(path)
        window = self._window(label, uri)
        return await self._conversation.read_skill_bytes(window.skill.reference, uri)

    def _window(self, label: str, uri: str) -> Activation:
        around = [
            window
            for window in self._conversation.loaded
            if window.skill.id.origin.label == label and window.skill.entry.uri.contains(uri)
        ]
        if not around:
            raise NotLoadedError(f"{quoted(uri)} of {quoted(label)} is in no loaded skill", reference=label)
        return max(around, key=lambda window: len(window.skill.id.uri))


def mount_path(label: str, uri: str) -> str:
    """Return the path of the resource with the canonical URI `uri` of the server `label`."""
    scheme, _, rest = uri.partition("://")
    return f"{label}/{scheme}/{rest}"


def parse_mount_path(path: str) -> tuple[str, str]:
    """Return the label and the URI of a path.

    Raises:
        NotLoadedError: It is not a valid path.
    """
    label, _, inside = path.strip("/").partition("/")
    scheme, _, rest = inside.partition("/")
    try:
        return label, canonical_uri(f"{scheme}://{rest}")
    except InvalidUriError as error:
        raise NotLoadedError(f"{quoted(path)} is in no loaded skill", reference=label[:200]) from error
