"""Skills that come as one archive: what an entry says about it, and which URI a skill gets that has none.

The URI of such a skill is a name inside its server's origin. Nothing is ever
read there: all files come out of the archive (ARC-13).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from skillwire.core.archive import ArchiveFormat
from skillwire.core.finding import Finding
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri, segment_of
from skillwire.host.promises import MEDIA_TYPE

_SUFFIXES: Final = (".tar.gz", ".tgz", ".zip")


def packed(
    uri: SkillUri,
    url: str,
    digest: str,
    format: ArchiveFormat,
    *,
    size: int = UNKNOWN_SIZE,
    skill_digest: str | None = None,
) -> Manifest:
    """Return the manifest of the skill at `uri` in the archive at `url`, which is at another place.

    `skill_digest` is what the publisher promises about the `SKILL.md` inside (ARC-16).
    """
    place = canonical_uri(url)
    lines = [ManifestFile(place, digest, size, "" if place == url else url, {MEDIA_TYPE: format.media_type})]
    if skill_digest is not None:
        lines.append(ManifestFile(uri.text, skill_digest, UNKNOWN_SIZE))
    return Manifest.of(lines, Coverage.ARCHIVE)


class Homes:
    """The URIs of skills that come in archives alone; they follow from everything an index lists.

    An archive is mostly named after its skill, which then gets the path that
    the archive has without its suffix (DRAFT-08). Where no archive of the skill
    has its name, or another skill has that path too, the skill gets a path
    below its first archive's own, which no other archive can have.
    """

    def __init__(self, alone: Iterable[tuple[Sequence[str], str]], listed: Iterable[str]) -> None:
        """Take the archives of each such skill with its name, and the canonical URIs of all other skills."""
        homes = [_beside(urls, name) for urls, name in alone]
        self._claims = Counter([*listed, *(home for home in homes if home is not None)])

    def home_of(self, urls: Sequence[str], name: str) -> SkillUri:
        """Return the URI of the skill `name` in the archives at `urls`.

        Raises:
            InvalidUriError: It would be too long.
        """
        beside = _beside(urls, name)
        if beside is not None and self._claims[beside] <= 1:
            return SkillUri.parse(beside)
        return SkillUri.parse(f"{canonical_uri(urls[0])}/{name}/{SKILL_FILE}")


def _beside(urls: Sequence[str], name: str) -> str | None:
    """Return the URI of a skill in the place of its archive, if one is named after it."""
    for uri in map(canonical_uri, urls):
        suffix = next((suffix for suffix in _SUFFIXES if uri.lower().endswith(suffix)), "")
        root = uri[: len(uri) - len(suffix)]
        if suffix and segment_of(root) == name:
            return f"{root}/{SKILL_FILE}"
    return None


def archives_off(formats: Iterable[ArchiveFormat]) -> Finding:
    """Say that a skill comes in archives alone, and that policy lets none of them be unpacked."""
    names = " or ".join(formats)
    return Finding(
        "archives-off",
        f"the skill comes only as an archive ({names}), which this host does not unpack",
        file="",
        fix="allow archives for this host or server, on the command line with --archives",
    )


def archive_unsupported(message: str) -> Finding:
    """Say that none of a skill's archives can be unpacked by anyone here."""
    return Finding(
        "archive-unsupported",
        message,
        file="",
        fix=f"ask the server's author for {' or '.join(ArchiveFormat)}",
    )
