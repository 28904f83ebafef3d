"""Manifests: every file of a skill with its digest and size, and what they promise."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final

from skillwire.core.yaml12 import JsonValue
from skillwire.errors import DigestMismatchError, SizeMismatchError, UnlistedFileError

MAX_FILES = 512
MAX_TOTAL_SIZE = 16 * 1024 * 1024
MAX_JSON_SIZE = 2**63 - 1
UNKNOWN_SIZE: Final = -1
"""The size of a file whose publisher tells only its digest, as some older dialects do."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Coverage(StrEnum):
    """What of a skill the lines of its manifest promise."""

    FILES = "files"
    """Every file, each with a line of its own."""
    SKILL_FILE = "skill-file"
    """`SKILL.md` alone; nobody promises anything about other files."""
    ARCHIVE = "archive"
    """Everything, in one archive; the `SKILL.md` in it may have a line of its own besides."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One line of a manifest: where the file is, and which bytes it promises.

    `uri` is canonical. `spelling` is the publisher's own, when it came from a
    stranger: some servers know a file by that one spelling only. `extra` keeps
    fields of the wire this version does not know, so that a relay passes them on.
    `size` may be `UNKNOWN_SIZE`, and then only the digest is held against bytes.
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
        """The spelling to use when asking the publisher for this file."""
        return self.spelling or self.uri

    @property
    def known_size(self) -> int | None:
        """The size in bytes, where the publisher tells it."""
        return None if self.size == UNKNOWN_SIZE else self.size

    @property
    def most_bytes(self) -> int:
        """How many bytes the file may have: its size, or as many as a whole skill."""
        return MAX_TOTAL_SIZE if self.size == UNKNOWN_SIZE else self.size

    def verify(self, content: bytes) -> None:
        """Check that `content` is the file this line promises.

        The length is compared first, so a truncated read is named as such
        instead of surfacing as a puzzling digest (SEP-2640, "Resources"). A
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
    """What is promised about one skill, sorted by URI: each file once, or as much as `coverage` says.

    Kept as columns, because a catalog holds many manifests and looks into
    few; `uris` and `files` are made on demand. `base` is the directory all
    files lie in, with a slash, and `references` are their URIs without it.
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
        """Make a manifest of files in any order."""
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
            UnlistedFileError: The manifest has no such file, so it is no part of the skill.
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


def digest_of(content: bytes) -> str:
    """Return the digest of raw bytes as the wire spells it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Tell whether `text` is `sha256:` and 64 lowercase hexadecimal digits, and nothing else."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None
