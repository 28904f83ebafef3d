"""Archives: what is unpacked stays within its limits, and the standard library finds the same files in it."""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from struct import pack as packed

from fuzz.properties import require_fit
from skillwire.core.archive import pack, unpack
from skillwire.core.archive_tree import ArchiveLimits, UnpackBudget, UnpackedFile
from skillwire.core.errors import InvalidArchiveError, LimitError
from skillwire.core.media import ArchiveFormat
from skillwire.core.uri import SkillUri

_LIMITS = ArchiveLimits(max_files=16, max_total_size=16 * 1024, max_depth=6, max_path_length=200)
_BUDGET = 256 * 1024
_BLOCK = 512
_SKILL = SkillUri.build("tea")


def check(data: bytes) -> None:
    """The first byte tells what the others are: an archive, or what to make one of."""
    kind, rest = data[:1], data[1:]
    match kind:
        case b"z":
            _check(rest, ArchiveFormat.ZIP)
        case b"Z":
            _check(_zip_of(rest), ArchiveFormat.ZIP)
        case b"t":
            _check(_compressed(_with_checksums(rest)), ArchiveFormat.TAR_GZ)
        case _:
            _check(data, ArchiveFormat.of_content(data) or ArchiveFormat.TAR_GZ)


def _check(data: bytes, format: ArchiveFormat) -> None:
    budget = UnpackBudget(_BUDGET)
    try:
        files = unpack(data, format, limits=_LIMITS, budget=budget)
    except (InvalidArchiveError, LimitError) as error:
        require_fit(str(error))
        return
    assert 1 <= len(files) <= _LIMITS.max_files
    assert sum(len(file.content) for file in files) <= _LIMITS.max_total_size
    paths = [file.path for file in files]
    assert paths == sorted(set(paths))
    assert "SKILL.md" in paths
    for path in paths:
        assert _SKILL.relative_path(_SKILL.join(path)) == path
    contents = {file.path: file.content for file in files}
    executables = [file.path for file in files if file.executable]
    for other in ArchiveFormat:
        assert unpack(pack(contents, other, executables=executables), other) == files
    theirs = _as_zipfile(data) if format is ArchiveFormat.ZIP else _as_tarfile(data)
    _compare(files, theirs)


def _compare(files: tuple[UnpackedFile, ...], theirs: Mapping[str, bytes]) -> None:
    """Every plain file another reader finds is one of ours; ours may be more, as links are copies."""
    ours = {file.path: file.content for file in files}
    assert theirs.items() <= ours.items(), (ours, theirs)


def _as_tarfile(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        found: dict[str, bytes] = {}
        for member in archive.getmembers():
            if member.isreg() and (stream := archive.extractfile(member)) is not None:
                found[member.name.removeprefix("./")] = stream.read()
        return found


def _as_zipfile(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {
            member.filename.removeprefix("./"): archive.read(member)
            for member in archive.infolist()
            if not member.is_dir() and not stat.S_ISLNK(member.external_attr >> 16)
        }


def _compressed(stream: bytes) -> bytes:
    return gzip.compress(stream, compresslevel=1, mtime=0)


def _with_checksums(stream: bytes) -> bytes:
    """Put the right checksum into each header of a tar stream, which no mutation would find."""
    blocks = bytearray(stream + bytes(-len(stream) % _BLOCK))
    position = 0
    while position + _BLOCK <= len(blocks):
        header = blocks[position : position + _BLOCK]
        if any(header):
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            blocks[position : position + _BLOCK] = header
        try:
            size = int(bytes(header[124:136]).rstrip(b"\0 ") or b"0", 8)
        except ValueError:
            size = 0
        position += _BLOCK + max(0, -(-size // _BLOCK) * _BLOCK)
    return bytes(blocks)


def _zip_of(data: bytes) -> bytes:
    """Make a zip of members, each told by a byte of oddities, and a name and a content with their lengths."""
    local, central = bytearray(), bytearray()
    count = 0
    for oddities, name, content in _members(data):
        stored = not oddities & 1
        body = content if stored else zlib.compress(content, 1, -15)
        flags = (0x800 if oddities & 2 else 0) | (8 if oddities & 4 else 0) | (1 if oddities & 128 else 0)
        mode = stat.S_IFLNK | 0o777 if oddities & 8 else 0o100755 if oddities & 16 else 0
        extra = packed("<2HB", 0x7075, 1, 1) if oddities & 32 else b""
        crc = zlib.crc32(content) ^ (1 if oddities & 64 else 0)
        sums = packed("<3L", crc, len(body), len(content))
        early = bytes(12) if flags & 8 else sums
        head = packed("<2H", 0 if stored else 8, 0) + b"\x21\0"
        names = packed("<2H", len(name), len(extra))
        offset = len(local)
        local += b"PK\x03\x04\x14\0" + packed("<H", flags) + head + early + names + name + extra + body
        if flags & 8:
            local += b"PK\x07\x08" + sums
        central += b"PK\x01\x02\x14\x03\x14\0" + packed("<H", flags) + head + sums + names
        central += packed("<3H2L", 0, 0, 0, mode << 16, offset) + name + extra
        count += 1
    end = packed("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(central), len(local), 0)
    return bytes(local + central + end)


def _members(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    for _ in range(20):
        if len(data) < 3:
            return
        oddities, name, content = data[0], data[1], data[2]
        yield oddities, data[3 : 3 + name], data[3 + name : 3 + name + content]
        data = data[3 + name + content :]
