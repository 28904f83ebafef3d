"""What an upstream's skill is called here: below a prefix this side chose, and otherwise as it was.

`skill://acme/refunds/SKILL.md` of the server with the prefix `shop` is
`skill://shop/acme/refunds/SKILL.md`. Where the upstream uses another scheme,
that is a segment of the path too, so that no two skills become one.
"""

from dataclasses import dataclass, replace

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest
from skillwire.core.uri import DEFAULT_SCHEME, SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import NotFoundError

PROVENANCE = "skillwire/upstream"
"""The key in `_meta` under which an entry says where it comes from."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first segment of everything that comes from one upstream."""

    text: str

    @classmethod
    def of(cls, label: str) -> "Prefix":
        """Make the prefix of the server with this label, which may be written in any script."""
        return cls(SkillUri.build(label.casefold()).root.removeprefix(f"{DEFAULT_SCHEME}://"))

    def served(self, uri: str) -> str:
        """Return the URI under which the upstream's canonical `uri` is served."""
        scheme, _, rest = uri.partition("://")
        inside = rest if scheme == DEFAULT_SCHEME else f"{scheme}/{rest}"
        return f"{DEFAULT_SCHEME}://{self.text}/{inside}"

    def upstream(self, uri: str) -> str:
        """Return the upstream's `skill://` URI for something that is served here.

        Raises:
            NotFoundError: It is not below this prefix.
        """
        start = f"{DEFAULT_SCHEME}://{self.text}/"
        if not uri.startswith(start):
            raise NotFoundError(f"nothing is served at {uri}", uri=uri)
        return f"{DEFAULT_SCHEME}://{uri[len(start) :]}"

    def manifest(self, manifest: Manifest) -> Manifest:
        """Return a manifest of all files under the URIs they are served at; digests and sizes stay."""
        files = [replace(file, uri=self.served(file.uri), spelling="") for file in manifest.files]
        return Manifest.of(files)

    def entry(self, entry: SkillEntry, provenance: dict[str, JsonValue]) -> SkillEntry:
        """Return an entry as it is served: renamed, with a word on where it comes from, and nothing else."""
        said = entry.extra.get("_meta")
        meta: dict[str, JsonValue] = {**(said if isinstance(said, dict) else {}), PROVENANCE: provenance}
        return SkillEntry(
            SkillUri(self.served(entry.uri.text)),
            entry.frontmatter,
            None if entry.manifest is None else self.manifest(entry.manifest),
            {**entry.extra, "_meta": meta},
            tuple(self.served(uri) for uri in entry.dynamic_files),
        )
