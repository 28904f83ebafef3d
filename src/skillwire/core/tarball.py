"""Reading and writing tar.gz.

`tarfile` parses single headers; iterating over them is done here. Its own
iteration treats a damaged header as the end of the archive, follows negative
sizes backwards, recurses once per extended header, and searches those with an
expression whose time grows with the square of their length.
"""

import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from struct import pack

from skillwire.core.archive_tree import CHUNK, ExpansionMeter, Inflater, Member, MemberKind, UnpackedFile
from skillwire.core.characters import quoted
from skillwire.core.errors import InvalidArchiveError, LimitError

# Enough for a long path or a few extended attributes: skills need no more than this.
MAX_METADATA = 64 * 1024
MAX_RECORDS = 128

_BLOCK = 512
_END = bytes(_BLOCK)
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
    while (header := _read_exactly(stream, _BLOCK)) != _END:
        meter.count_member()
        info = _parse_header(header)
        if header[_TYPE] in _METADATA:
            _collect(overrides, header[_TYPE], _read_metadata(stream, info.size))
        else:
            yield _read_member(stream, meter, header, info, overrides)
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
    trailer = pack("<2L", zlib.crc32(plain), len(plain) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, deflate.compress(plain), deflate.flush(), trailer))


def _parse_header(header: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise _malformed("the archive has a damaged header") from error
    if info.size < 0:
        raise _malformed("a member's size is negative")
    return info


def _read_member(
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


def _malformed(message: str) -> InvalidArchiveError:
    return InvalidArchiveError(message, requirement="ARC-15")
