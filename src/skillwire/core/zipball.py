"""Reading and writing zip.

A zip file describes each member twice, in its central directory and in a local
header, and readers differ in which one they use. Here both must agree, and the
members must fill the archive from its first byte to its last, without gaps or
overlaps. `zipfile` is more lenient than that, so it is used for writing only.
"""

import io
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct, pack

from skillwire.core.archive_tree import ExpansionMeter, Inflater, Member, MemberKind, UnpackedFile
from skillwire.core.characters import quoted
from skillwire.core.errors import InvalidArchiveError

_END = Struct("<4s4H2LH")
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
        yield _read_member(entry, memoryview(data)[start:end], meter)


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
    end = data.rfind(b"PK\5\6", max(0, len(data) - _END.size - _MAX_COMMENT))
    if end < 0 or end + _END.size > len(data):
        raise _malformed("the archive has no central directory")
    _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(data, end)
    if count == 0xFFFF or 0xFFFFFFFF in (size, start) or data[max(0, end - 20) : end].startswith(b"PK\6\7"):
        raise _unsupported("the archive uses zip64, which is not supported")
    if disk or first_disk or here != count:
        raise _unsupported("the archive spans several disks")
    if end + _END.size + comment != len(data) or start + size != end:
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
    (_, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length, disk, _,
     attributes, offset) = _CENTRAL.unpack_from(data, position)  # fmt: skip
    name_end = position + _CENTRAL.size + name_length
    extra_end = name_end + extra_length
    if extra_end + comment_length > end:
        raise _malformed("the archive's central directory is damaged")
    raw_name = data[position + _CENTRAL.size : name_end]
    _check_extra(data[name_end:extra_end], raw_name)
    if disk or 0xFFFFFFFF in (packed, size, offset):
        raise _unsupported("the archive uses zip64 or several disks, which is not supported")
    if flags & ~_KNOWN_FLAGS or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _unsupported("the archive is encrypted, or uses an unsupported compression method")
    entry = _ZipEntry(raw_name, flags, method, crc, packed, size, attributes >> 16, offset)
    return entry, extra_end + comment_length


def _read_member(entry: _ZipEntry, piece: memoryview, meter: ExpansionMeter) -> Member:
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
    short, long = pack("<3L", crc, packed, size), pack("<L2Q", crc, packed, size)
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
