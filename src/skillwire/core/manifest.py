"""Manifests: every file of a skill with its digest and size."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final, TypeVar

from skillwire.core.errors import DigestMismatchError, SizeMismatchError, UnlistedFileError
from skillwire.core.finding import Finding
from skillwire.core.yaml12 import JsonValue

MAX_FILES = 512
MAX_TOTAL_SIZE = 16 * 1024 * 1024
MAX_JSON_SIZE = 2**63 - 1
UNKNOWN_SIZE: Final = -1
"""The size of a file whose publisher gives only its digest, as in some older dialects."""

Key = TypeVar("Key", bound=Hashable)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Coverage(StrEnum):
    """Which files of a skill the digests of its manifest cover."""

    FILES = "files"
    """Every file, each with a line of its own."""
    SKILL_FILE = "skill-file"
    """`SKILL.md` alone; other files have no digests."""
    ARCHIVE = "archive"
    """All files, in one archive; the `SKILL.md` in it may also have a line of its own."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One line of a manifest: the URI of a file, and the digest and size of its bytes.

    `uri` is canonical. `spelling` is the publisher's own, when it was received
    from one: some servers accept only that spelling. `extra` keeps fields of
    the wire this version does not know, so that a relay passes them on. `size`
    may be `UNKNOWN_SIZE`, and then only the digest is compared.
    """

    uri: str
    digest: str
    size: int
    spelling: str = field(default="", compare=False)
    extra: Mapping[str, JsonValue] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, uri: str, content: bytes) -> "ManifestFile":
        """Describe `content` as the file at `uri`."""
        return cls(uri, digest_of(content), len(content))

    @property
    def published(self) -> str:
        """The spelling to use in requests to the publisher of this file."""
        return self.spelling or self.uri

    @property
    def known_size(self) -> int | None:
        """The size in bytes, or None where the publisher does not give it."""
        return None if self.size == UNKNOWN_SIZE else self.size

    @property
    def max_bytes(self) -> int:
        """The maximum size to accept: the file's size, or the limit of a whole skill."""
        return MAX_TOTAL_SIZE if self.size == UNKNOWN_SIZE else self.size

    def verify(self, content: bytes) -> None:
        """Check that `content` has this line's size and digest.

        The length is compared first, so a truncated read is named as such
        instead of surfacing as a digest mismatch (SEP-2640, "Resources"). A
        match means consistency with the listing, and nothing more.

        Raises:
            SizeMismatchError: The length differs.
            DigestMismatchError: The bytes differ.
        """
        if self.size != UNKNOWN_SIZE and len(content) != self.size:
            raise SizeMismatchError(
                f"{self.uri} has {len(content)} bytes where the listing says {self.size}", uri=self.uri
            )
        if digest_of(content) != self.digest:
            raise DigestMismatchError(f"{self.uri} does not match the listing's digest", uri=self.uri)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one skill with their digests, sorted by URI; `coverage` says which files are included.

    Stored as columns, because a catalog holds many manifests and accesses
    few; `uris` and `files` are computed on demand. `base` is the directory of
    all files, with a slash, and `references` are their URIs without it.
    """

    base: str
    references: tuple[str, ...]
    digests: tuple[str, ...]
    sizes: tuple[int, ...]
    spellings: tuple[str, ...] = field(default=(), compare=False)
    extras: tuple[Mapping[str, JsonValue] | None, ...] = field(default=(), compare=False)
    coverage: Coverage = Coverage.FILES

    @classmethod
    def of(cls, files: Iterable[ManifestFile], coverage: Coverage = Coverage.FILES) -> "Manifest":
        """Build a manifest of files in any order."""
        lines = sorted(files, key=attrgetter("uri"))
        base = _common_directory(lines[0].uri, lines[-1].uri) if lines else ""
        return cls(
            base,
            tuple(line.uri[len(base) :] for line in lines),
            tuple(line.digest for line in lines),
            tuple(line.size for line in lines),
            tuple(line.spelling for line in lines) if any(line.spelling for line in lines) else (),
            tuple(line.extra for line in lines) if any(line.extra for line in lines) else (),
            coverage,
        )

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple([self.base + reference for reference in self.references])

    @property
    def files(self) -> tuple[ManifestFile, ...]:
        return tuple(map(self._line, range(len(self.references))))

    @property
    def total_size(self) -> int:
        """The size of all files together, as far as sizes are known."""
        return sum(self.sizes) if UNKNOWN_SIZE not in self.sizes else sum(max(size, 0) for size in self.sizes)

    @property
    def digests_by_uri(self) -> dict[str, str]:
        return dict(zip(self.uris, self.digests, strict=True))

    def __len__(self) -> int:
        return len(self.references)

    def find(self, uri: str) -> ManifestFile | None:
        """Return the line for the canonical `uri`, or None when the skill has no such file."""
        if not uri.startswith(self.base):
            return None
        reference = uri[len(self.base) :]
        position = bisect_left(self.references, reference)
        if position < len(self.references) and self.references[position] == reference:
            return self._line(position)
        return None

    def require(self, uri: str) -> ManifestFile:
        """Return the line for the canonical `uri`.

        Raises:
            UnlistedFileError: The manifest has no such file, so it is not part of the skill.
        """
        found = self.find(uri)
        if found is None:
            raise UnlistedFileError(f"{uri} is not listed in the skill's manifest", uri=uri)
        return found

    def _line(self, position: int) -> ManifestFile:
        spelling = self.spellings[position] if self.spellings else ""
        extra = self.extras[position] if self.extras else None
        uri = self.base + self.references[position]
        return ManifestFile(uri, self.digests[position], self.sizes[position], spelling, extra)


def _common_directory(first: str, last: str) -> str:
    """Return the innermost directory of two URIs, with a slash: for sorted ones, of all in between too."""
    end = first.rfind("/") + 1
    while not last.startswith(first[:end]):
        end = first.rfind("/", 0, end - 1) + 1
    return first[:end]


def differing(
    before: Mapping[Key, object], after: Mapping[Key, object]
) -> tuple[tuple[Key, ...], tuple[Key, ...], tuple[Key, ...]]:
    """Return the keys that only `after` has, only `before` has, and whose values differ, each in order."""
    return (
        tuple(key for key in after if key not in before),
        tuple(key for key in before if key not in after),
        tuple(
            key
            for key, value in after.items()
            if key in before and before[key] is not value and before[key] != value
        ),
    )


def digest_of(content: bytes) -> str:
    """Return the digest of raw bytes in wire format."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Return whether `text` is `sha256:` and 64 lowercase hexadecimal digits, and nothing else."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def size_findings(count: int, total: int) -> list[Finding]:
    """Check a number of files and their summed size against both limits."""
    findings: list[Finding] = []
    if count > MAX_FILES:
        message = f"the skill has {count} files; hosts need not accept more than {MAX_FILES}"
        findings.append(
            Finding("too-many-files", message, file="", fix="move or pack files that are not instructions")
        )
    if total > MAX_TOTAL_SIZE:
        message = (
            f"the skill's files add up to {total} bytes; hosts need not accept more than {MAX_TOTAL_SIZE}"
        )
        findings.append(Finding("too-large", message, file="", fix="keep large data outside the skill"))
    return findings
