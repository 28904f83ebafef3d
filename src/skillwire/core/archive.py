"""Archives: a whole skill as one file, packed reproducibly and unpacked with suspicion.

Unpacking returns values and writes nothing; putting them somewhere private is
the caller's part (ARC-12). Packing and unpacking share one set of rules for
names, so what `pack` makes, `unpack` takes.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

from skillwire.core.archive_limits import DEFAULT_LIMITS, ArchiveLimits, Meter, UnpackBudget
from skillwire.core.archive_tree import Member, MemberKind, UnpackedFile, assemble
from skillwire.core.characters import quoted
from skillwire.core.manifest import digest_of
from skillwire.core.tarball import read_tar_gz, write_tar_gz
from skillwire.core.zipball import read_zip, write_zip
from skillwire.errors import DigestMismatchError, InvalidArchiveError, LimitError

__all__ = ["ArchiveFormat", "ArchiveLimits", "UnpackBudget", "UnpackedFile", "pack", "unpack"]


class ArchiveFormat(StrEnum):
    """An encoding of the same tree of files (ARC-02)."""

    TAR_GZ = "tar.gz"
    ZIP = "zip"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]

    @classmethod
    def of_media_type(cls, media_type: str) -> "ArchiveFormat | None":
        """Return the format of that media type, or None when it is not supported."""
        essence = media_type.partition(";")[0].strip().lower()
        return next((format for format in cls if format.media_type == essence), None)

    @classmethod
    def of_path(cls, path: str) -> "ArchiveFormat | None":
        """Return the format that the end of `path` stands for, or None.

        For places that give no media type; where there is one, believe it.
        """
        name = path.lower()
        return next((format for suffix, format in _SUFFIXES.items() if name.endswith(suffix)), None)

    @classmethod
    def of_content(cls, data: bytes) -> "ArchiveFormat | None":
        """Return the format by the first bytes; no archive of one begins like one of the other."""
        return next((format for start, format in _STARTS.items() if data.startswith(start)), None)


_MEDIA_TYPES = {ArchiveFormat.TAR_GZ: "application/gzip", ArchiveFormat.ZIP: "application/zip"}
_STARTS = {b"\x1f\x8b": ArchiveFormat.TAR_GZ, b"PK": ArchiveFormat.ZIP}
_SUFFIXES = {".tar.gz": ArchiveFormat.TAR_GZ, ".tgz": ArchiveFormat.TAR_GZ, ".zip": ArchiveFormat.ZIP}


def pack(files: Mapping[str, bytes], format: ArchiveFormat, *, executables: Collection[str] = ()) -> bytes:
    """Pack a skill's files, given by path; `executables` are the paths that may be run.

    The result depends on nothing but the arguments: not on the order of
    `files`, the clock, the user or the system. Compressors differ, though: the
    bytes, and so the digest, are the same only on the same version of Python
    with the same build of zlib.

    Raises:
        InvalidArchiveError: A path is dangerous, two paths are alike,
            `SKILL.md` is missing, or an executable is no file.
        LimitError: The files are more than `unpack` accepts by default.
    """
    for path in executables:
        if path not in files:
            raise InvalidArchiveError(f"{quoted(path)} is executable, but no file", requirement="ARC-04")
    meter = Meter(DEFAULT_LIMITS)
    tree = assemble(_members(files, executables, meter), meter)
    return write_tar_gz(tree) if format is ArchiveFormat.TAR_GZ else write_zip(tree)


def unpack(
    data: bytes,
    format: ArchiveFormat,
    *,
    digest: str | None = None,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    budget: UnpackBudget | None = None,
) -> tuple[UnpackedFile, ...]:
    """Return the files of an archive, sorted by path, or none of them.

    The digest is verified before anything is decompressed, and the limits
    while it is: memory never grows much past them, whatever the archive
    claims. Directories are implied by the files in them. A link to a file in
    the archive becomes a copy of that file; any other link is refused.

    Raises:
        DigestMismatchError: The archive is not the one that was promised.
        InvalidArchiveError: The archive is damaged, ambiguous, dangerous, or no
            skill; `violates` tells which requirement it breaks.
        LimitError: The archive is larger than `limits`, or than what is left
            of `budget`.
    """
    if len(data) > limits.max_stream_size:
        raise LimitError(f"the archive has more than {limits.max_stream_size} bytes")
    if digest is not None and digest_of(data) != digest:
        raise DigestMismatchError("the archive does not match the listing's digest", uri="")
    if budget is not None:
        budget.require(1)
    meter = Meter(limits, budget)
    members = read_tar_gz(data, meter) if format is ArchiveFormat.TAR_GZ else read_zip(data, meter)
    return assemble(members, meter)


def _members(files: Mapping[str, bytes], executables: Collection[str], meter: Meter) -> Iterator[Member]:
    for path, content in files.items():
        meter.count_member()
        meter.admit_file(len(content))
        yield Member(MemberKind.FILE, path, content, executable=path in executables)
