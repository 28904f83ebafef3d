"""Archives: a whole skill as one file, packed reproducibly and unpacked with strict checks.

Unpacking returns values and writes nothing; the caller stores them in a private
place (ARC-12). Packing and unpacking share one set of rules for names, so
`unpack` accepts what `pack` writes.
"""

from collections.abc import Collection, Iterator, Mapping

from skillwire.core.archive_tree import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    ExpansionMeter,
    Member,
    MemberKind,
    UnpackBudget,
    UnpackedFile,
    assemble,
)
from skillwire.core.characters import quoted
from skillwire.core.errors import DigestMismatchError, InvalidArchiveError, LimitError
from skillwire.core.manifest import digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.core.tarball import read_tar_gz, write_tar_gz
from skillwire.core.zipball import read_zip, write_zip

__all__ = ["ArchiveFormat", "ArchiveLimits", "UnpackBudget", "UnpackedFile", "pack", "unpack"]


def pack(files: Mapping[str, bytes], format: ArchiveFormat, *, executables: Collection[str] = ()) -> bytes:
    """Pack a skill's files, given by path; `executables` are the paths of executable files.

    The result depends on nothing but the arguments: not on the order of
    `files`, the clock, the user or the system. Compressors differ, though: the
    bytes, and so the digest, are the same only on the same version of Python
    with the same build of zlib.

    Raises:
        InvalidArchiveError: A path is dangerous, two paths are the same,
            `SKILL.md` is missing, or an executable is not among the files.
        LimitError: The files are more than `unpack` accepts by default.
    """
    for path in executables:
        if path not in files:
            raise InvalidArchiveError(
                f"{quoted(path)} is executable, but not among the files", requirement="ARC-04"
            )
    meter = ExpansionMeter(DEFAULT_LIMITS)
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
        DigestMismatchError: The archive does not match `digest`.
        InvalidArchiveError: The archive is damaged, ambiguous, dangerous, or not
            a skill; `violates` is the requirement it breaks.
        LimitError: The archive is larger than `limits`, or than what is left
            of `budget`.
    """
    if len(data) > limits.max_stream_size:
        raise LimitError(f"the archive has more than {limits.max_stream_size} bytes")
    if digest is not None and digest_of(data) != digest:
        raise DigestMismatchError("the archive does not match the listing's digest", uri="")
    if budget is not None:
        budget.require(1)
    meter = ExpansionMeter(limits, budget)
    members = read_tar_gz(data, meter) if format is ArchiveFormat.TAR_GZ else read_zip(data, meter)
    return assemble(members, meter)


def _members(
    files: Mapping[str, bytes], executables: Collection[str], meter: ExpansionMeter
) -> Iterator[Member]:
    for path, content in files.items():
        meter.count_member()
        meter.admit_file(len(content))
        yield Member(MemberKind.FILE, path, content, executable=path in executables)
