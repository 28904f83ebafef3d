"""Archives: a whole skill as one file, packed reproducibly and unpacked with strict checks.

Unpacking returns values and writes nothing; the caller stores them in a private
place (ARC-12). Packing and unpacking share one set of rules for names, so
`unpack` accepts what `pack` writes.
"""

import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

from skillwire.core.archive_tree import (
    CHUNK,
    DEFAULT_LIMITS,
    ArchiveLimits,
    ExpansionMeter,
    Inflater,
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

# tar.gz. `tarfile` parses single headers; iterating over them is done here. Its own iteration treats a
# damaged header as the end of the archive, follows negative sizes backwards, recurses once per extended
# header, and searches those with an expression whose time grows with the square of their length.


# Enough for a long path or a few extended attributes: skills need no more than this.
MAX_METADATA = 64 * 1024
MAX_RECORDS = 128

_BLOCK = 512
_TAR_END = bytes(_BLOCK)
_TYPE = slice(156, 157)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_METADATA = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KINDS = {
    tarfile.REGTYPE: MemberKind.FILE,
    tarfile.AREGTYPE: MemberKind.FILE,
    tarfile.DIRTYPE: MemberKind.DIRECTORY,
    tarfile.SYMTYPE: MemberKind.SYMBOLIC_LINK,
    tarfile.LNKTYPE: MemberKind.HARD_LINK,
}
_OVERRIDES = frozenset({"path", "linkpath", "size"})
_RECORD_LENGTH = re.compile(rb"([0-9]{1,6}) ")
_SIZE = re.compile("[0-9]{1,19}")
# No name, no time, "unknown" for the system: nothing in it depends on the machine.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"


def read_tar_gz(data: bytes, meter: ExpansionMeter) -> Iterator[Member]:
    """Read the members of a gzipped tar archive, never more of it than `meter` allows.

    Only zeros may follow the end of the archive: some readers would continue
    and unpack what follows, others would not.

    Raises:
        InvalidArchiveError: The archive is damaged, cut short, or means
            different things to different readers.
        LimitError: The archive is too large.
    """
    stream = Inflater(memoryview(data), meter, gzip=True)
    overrides: dict[str, str] = {}
    while (header := _read_exactly(stream, _BLOCK)) != _TAR_END:
        meter.count_member()
        info = _parse_header(header)
        if header[_TYPE] in _METADATA:
            _collect(overrides, header[_TYPE], _read_metadata(stream, info.size))
        else:
            yield _read_tar_member(stream, meter, header, info, overrides)
            overrides = {}
    if overrides:
        raise _malformed("the archive ends where a member should follow")
    while rest := stream.read(CHUNK):
        if rest.count(0) != len(rest):
            raise _malformed("there are bytes after the end of the archive")


def write_tar_gz(files: Iterable[UnpackedFile]) -> bytes:
    """Write `files` in the order given, with nothing in the result but names, bytes and modes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size = len(file.content)
            info.mode = 0o755 if file.executable else 0o644
            archive.addfile(info, io.BytesIO(file.content))
    plain = buffer.getvalue()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    trailer = struct.pack("<2L", zlib.crc32(plain), len(plain) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, deflate.compress(plain), deflate.flush(), trailer))


def _parse_header(header: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise _malformed("the archive has a damaged header") from error
    if info.size < 0:
        raise _malformed("a member's size is negative")
    return info


def _read_tar_member(
    stream: Inflater, meter: ExpansionMeter, header: bytes, info: tarfile.TarInfo, overrides: dict[str, str]
) -> Member:
    name = overrides.get("path", info.name)
    size = int(overrides.get("size", info.size))
    kind = _KINDS.get(header[_TYPE])
    if kind is None:
        message = f"{quoted(name)} is not a file, a directory or a link"
        raise InvalidArchiveError(message, requirement="ARC-08")
    if any(header[_PREFIX]) and header[_MAGIC] != b"ustar\0":
        # Part of the name to some readers, time stamps to others.
        raise _malformed(f"the header of {quoted(name)} is ambiguous")
    if header[_TYPE] == tarfile.AREGTYPE and (name.endswith("/") if "path" in overrides else info.isdir()):
        kind = MemberKind.DIRECTORY
    if kind is MemberKind.DIRECTORY:
        name = name.removesuffix("/")
    name = name.removeprefix("./")
    if kind is MemberKind.FILE:
        meter.admit_file(size)
        content = _read_exactly(stream, size)
        _read_exactly(stream, -size % _BLOCK)
        return Member(kind, name, content, executable=bool(info.mode & 0o111))
    if size:
        raise _malformed(f"{quoted(name)} has content, but is not a file")
    target = overrides.get("linkpath", info.linkname)
    return Member(kind, name, target=target.removeprefix("./") if kind is MemberKind.HARD_LINK else target)


def _read_metadata(stream: Inflater, size: int) -> bytes:
    if size > MAX_METADATA:
        raise LimitError(f"the archive has metadata of more than {MAX_METADATA} bytes")
    body = _read_exactly(stream, size)
    if any(_read_exactly(stream, -size % _BLOCK)):
        # Some readers search for the end of a long name beyond its size.
        raise _malformed("the archive has metadata longer than it claims")
    return body


def _collect(overrides: dict[str, str], type_flag: bytes, body: bytes) -> None:
    """Add the overrides that a metadata member has for the member after it."""
    if type_flag == tarfile.GNUTYPE_LONGNAME:
        found = {"path": _text(body.partition(b"\0")[0])}
    elif type_flag == tarfile.GNUTYPE_LONGLINK:
        found = {"linkpath": _text(body.partition(b"\0")[0])}
    else:
        found = _parse_records(body)
    for keyword in found:
        if keyword.startswith("GNU.sparse."):
            raise InvalidArchiveError("the archive has a sparse file", requirement="ARC-08")
    relevant = found.keys() & _OVERRIDES
    if relevant and type_flag == tarfile.XGLTYPE:
        raise _malformed("the archive gives all its members the same name or size")
    if relevant & overrides.keys():
        raise _malformed("a member's name or size is given twice")
    if not _SIZE.fullmatch(found.get("size", "0")):
        raise _malformed("a member's size is not a number")
    overrides.update((keyword, found[keyword]) for keyword in relevant)


def _parse_records(body: bytes) -> dict[str, str]:
    """Read the records of a pax header, each of the form `length keyword=value`."""
    records: dict[str, str] = {}
    position = count = 0
    while position < len(body):
        start = _RECORD_LENGTH.match(body, position)
        end = position + int(start[1]) if start else 0
        if start is None or not start.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            raise _malformed("the archive has a damaged extended header")
        keyword, equals, value = body[start.end() : end - 1].partition(b"=")
        if not equals:
            raise _malformed("the archive has a damaged extended header")
        records[_text(keyword)] = _text(value)
        position = end
        count += 1
        if count > MAX_RECORDS:
            raise LimitError(
                f"the archive has more than {MAX_RECORDS} extended header records for one member"
            )
    return records


def _read_exactly(stream: Inflater, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise _malformed("the archive stops too early")
    return content


def _text(value: bytes) -> str:
    """Decode a name; what is not UTF-8 becomes surrogates, which no path may contain."""
    return value.decode("utf-8", "surrogateescape")


# zip. A zip file describes each member twice, in its central directory and in a local header, and readers
# differ in which one they use. Here both must agree, and the members must fill the archive from its first
# byte to its last, without gaps or overlaps. `zipfile` is more lenient than that, so it is used for writing
# only.


_ZIP_VERSION = 63
_ZIP_END = Struct("<4s4H2LH")
_CENTRAL = Struct("<4s6H3L5H2L")
_LOCAL = Struct("<4s5H3L2H")
_EXTRA = Struct("<2H")
_MAX_COMMENT = 0xFFFF

_DESCRIPTOR = 1 << 3
_UTF8 = 1 << 11
_EFFORT = 0b110  # compression level: irrelevant for reading
_KNOWN_FLAGS = _EFFORT | _DESCRIPTOR | _UTF8
_UNICODE_PATH = 0x7075
_UNICODE_PATH_HEAD = 5
_NAME_KINDS = {
    0: MemberKind.FILE,
    stat.S_IFREG: MemberKind.FILE,
    stat.S_IFLNK: MemberKind.SYMBOLIC_LINK,
}


@dataclass(frozen=True, slots=True)
class _ZipEntry:
    """One entry of the central directory."""

    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int

    @property
    def name(self) -> str:
        try:
            return self.raw_name.decode("utf-8" if self.flags & _UTF8 else "ascii")
        except UnicodeDecodeError as error:
            shown = quoted(self.raw_name.decode("utf-8", "surrogateescape"))
            message = f"the name {shown} is neither ASCII, nor UTF-8 that is marked as such"
            raise InvalidArchiveError(message) from error


def read_zip(data: bytes, meter: ExpansionMeter) -> Iterator[Member]:
    """Read the members of a zip archive, never more of it than `meter` allows.

    A comment at the end is ignored. Encryption, zip64, several disks and
    methods other than stored and deflated are refused.

    Raises:
        InvalidArchiveError: The archive is damaged, cut short, uses something
            unsupported, or means different things to different readers.
        LimitError: The archive is too large.
    """
    entries, directory = _read_directory(data, meter)
    entries.sort(key=lambda entry: entry.offset)
    starts = [*(entry.offset for entry in entries), directory]
    if starts[0] != 0:
        raise _malformed("there are bytes before the start of the archive")
    for entry, (start, end) in zip(entries, pairwise(starts), strict=True):
        yield _read_zip_member(entry, memoryview(data)[start:end], meter)


def write_zip(files: Iterable[UnpackedFile]) -> bytes:
    """Write `files` in the order given, with nothing in the result but names, bytes and modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in files:
            info = zipfile.ZipInfo(file.path, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
            archive.writestr(info, file.content, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def _read_directory(data: bytes, meter: ExpansionMeter) -> tuple[list[_ZipEntry], int]:
    """Return the entries of the central directory, and its offset."""
    end = data.rfind(b"PK\5\6", max(0, len(data) - _ZIP_END.size - _MAX_COMMENT))
    if end < 0 or end + _ZIP_END.size > len(data):
        raise _malformed("the archive has no central directory")
    _, disk, first_disk, here, count, size, start, comment = _ZIP_END.unpack_from(data, end)
    if count == 0xFFFF or 0xFFFFFFFF in (size, start) or data[max(0, end - 20) : end].startswith(b"PK\6\7"):
        raise _unsupported("the archive uses zip64, which is not supported")
    if disk or first_disk or here != count:
        raise _unsupported("the archive spans several disks")
    if end + _ZIP_END.size + comment != len(data) or start + size != end:
        raise _malformed("the archive's central directory is not where it should be")
    entries: list[_ZipEntry] = []
    position = start
    for _ in range(count):
        meter.count_member()
        entry, position = _read_entry(data, position, end)
        entries.append(entry)
    if position != end:
        raise _malformed("the archive's central directory is not as long as it claims")
    return entries, start


def _read_entry(data: bytes, position: int, end: int) -> tuple[_ZipEntry, int]:
    """Return the entry at `position`, and the offset of the next one."""
    if position + _CENTRAL.size > end or not data.startswith(b"PK\1\2", position):
        raise _malformed("the archive's central directory is damaged")
    (_, _, version, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length, disk,
     _, attributes, offset) = _CENTRAL.unpack_from(data, position)  # fmt: skip
    name_end = position + _CENTRAL.size + name_length
    extra_end = name_end + extra_length
    if extra_end + comment_length > end:
        raise _malformed("the archive's central directory is damaged")
    raw_name = data[position + _CENTRAL.size : name_end]
    _check_extra(data[name_end:extra_end], raw_name)
    if disk or 0xFFFFFFFF in (packed, size, offset):
        raise _unsupported("the archive uses zip64 or several disks, which is not supported")
    # The low byte is the version of the format, 63 for 6.3; the high one is a system.
    if version & 0xFF > _ZIP_VERSION:
        raise _unsupported("the archive needs a newer version of the ZIP format")
    if flags & ~_KNOWN_FLAGS or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _unsupported("the archive is encrypted, or uses an unsupported compression method")
    entry = _ZipEntry(raw_name, flags, method, crc, packed, size, attributes >> 16, offset)
    return entry, extra_end + comment_length


def _read_zip_member(entry: _ZipEntry, piece: memoryview, meter: ExpansionMeter) -> Member:
    """Read the member that `entry` describes from `piece`, which must contain nothing else."""
    name, kind = entry.name, _kind_of(entry)
    packed = _check_local(entry, piece)
    if kind is MemberKind.FILE:
        meter.admit_file(entry.size)
        content = _unpack(entry, packed, meter)
        return Member(kind, name.removeprefix("./"), content, executable=bool(entry.mode & 0o111))
    if entry.size > (meter.limits.max_path_length if kind is MemberKind.SYMBOLIC_LINK else 0):
        raise _malformed(f"{quoted(name)} has content, but is not a file")
    try:
        target = _unpack(entry, packed, meter).decode()
    except UnicodeDecodeError as error:
        message = f"the link {quoted(name)} does not name a path"
        raise InvalidArchiveError(message, requirement="ARC-07") from error
    if kind is MemberKind.DIRECTORY:
        name = name.removesuffix("/")
    return Member(kind, name.removeprefix("./"), target=target)


def _kind_of(entry: _ZipEntry) -> MemberKind:
    file_type = stat.S_IFMT(entry.mode)
    if entry.raw_name.endswith(b"/"):
        kind = MemberKind.DIRECTORY if file_type in (0, stat.S_IFDIR) else None
    else:
        kind = _NAME_KINDS.get(file_type)
    if kind is None:
        message = f"{quoted(entry.name)} is not a file, a directory or a link, or is ambiguous"
        raise InvalidArchiveError(message, requirement="ARC-08")
    return kind


def _check_local(entry: _ZipEntry, piece: memoryview) -> memoryview:
    """Check that the local header agrees with `entry`, and return the packed bytes."""
    if len(piece) < _LOCAL.size or bytes(piece[:4]) != b"PK\3\4":
        raise _malformed("members of the archive overlap, or are damaged")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack_from(piece)
    extra_start = _LOCAL.size + name_length
    start = extra_start + extra_length
    end = start + entry.packed_size
    if end > len(piece):
        raise _malformed("members of the archive overlap, or are damaged")
    promised = (entry.crc, entry.packed_size, entry.size)
    streamed = entry.flags & _DESCRIPTOR
    if (
        bytes(piece[_LOCAL.size : extra_start]) != entry.raw_name
        or (flags ^ entry.flags) & ~_EFFORT
        or method != entry.method
        or ((crc, packed, size) != promised and not (streamed and not (crc or packed or size)))
    ):
        raise _malformed(f"the archive contradicts itself about {quoted(entry.name)}")
    _check_extra(bytes(piece[extra_start:start]), entry.raw_name)
    if bytes(piece[end:]) not in (_descriptors(*promised) if streamed else (b"",)):
        raise _malformed(f"unexpected bytes follow {quoted(entry.name)}")
    return piece[start:end]


def _descriptors(crc: int, packed: int, size: int) -> tuple[bytes, ...]:
    """Return the possible forms of a data descriptor, which follows a file that was written as a stream."""
    short, long = struct.pack("<3L", crc, packed, size), struct.pack("<L2Q", crc, packed, size)
    return short, long, b"PK\7\x08" + short, b"PK\7\x08" + long


def _check_extra(extra: bytes, raw_name: bytes) -> None:
    """Check that no extra field gives the member another name."""
    position = 0
    while position + _EXTRA.size <= len(extra):
        tag, length = _EXTRA.unpack_from(extra, position)
        start, position = position + _EXTRA.size, position + _EXTRA.size + length
        if position > len(extra):
            raise _malformed("the archive has a damaged extra field")
        if tag == _UNICODE_PATH and extra[start + _UNICODE_PATH_HEAD : position] != raw_name:
            raise _malformed("the archive gives a member two names")


def _unpack(entry: _ZipEntry, packed: memoryview, meter: ExpansionMeter) -> bytes:
    if entry.method == zipfile.ZIP_STORED:
        meter.spend(len(packed))
        content, complete = bytes(packed), len(packed) == entry.size
    else:
        stream = Inflater(packed, meter, gzip=False)
        content = stream.read(entry.size)
        complete = len(content) == entry.size and not stream.read(1) and stream.exhausted
    if not complete or zlib.crc32(content) != entry.crc:
        raise _malformed(f"{quoted(entry.name)} does not match its size or checksum in the archive")
    return content


def _malformed(message: str) -> InvalidArchiveError:
    return InvalidArchiveError(message, requirement="ARC-15")


def _unsupported(message: str) -> InvalidArchiveError:
    return InvalidArchiveError(message, requirement="ARC-02")


__all__ = ["ArchiveFormat", "ArchiveLimits", "UnpackBudget", "UnpackedFile", "pack", "unpack"]


# Both formats.


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
