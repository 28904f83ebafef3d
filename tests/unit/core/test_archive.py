"""Archives: what is packed comes back, and nothing hostile gets through.

Most hostile archives are built by hand here, byte by byte where no library
would write them, and in both formats where both can express the attack.
"""

import gzip
import io
import re
import stat
import tarfile
import tracemalloc
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from random import Random
from struct import pack as pack_struct
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.archive import MAX_METADATA, MAX_RECORDS, pack, unpack
from skillwire.core.archive_tree import MAX_GZIP_MEMBERS, ArchiveLimits, UnpackBudget, UnpackedFile
from skillwire.core.errors import (
    DigestMismatchError,
    InvalidArchiveError,
    InvalidUriError,
    LimitError,
    SkillError,
)
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.core.uri import check_segment

TAR_GZ, ZIP = ArchiveFormat.TAR_GZ, ArchiveFormat.ZIP
MIB = 1024 * 1024
SKILL = b"---\nname: refunds\n---\n"

both_formats = pytest.mark.parametrize("format", [TAR_GZ, ZIP])


# Archives as other tools write them


@dataclass(frozen=True)
class Entry:
    """A member to write, in either format."""

    name: str
    content: bytes = b""
    kind: Literal["file", "directory", "symlink", "hardlink", "fifo", "device"] = "file"
    mode: int = 0o644
    target: str = ""


ROOT = Entry("SKILL.md", SKILL)
TAR_TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}
ZIP_TYPES = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "device": stat.S_IFCHR,
}


def archive(format: ArchiveFormat, *entries: Entry) -> bytes:
    return tar_gz(*entries) if format is TAR_GZ else zipped(*entries)


def tar_gz(*entries: Entry, style: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=style) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type = TAR_TYPES[entry.kind]
            info.mode = entry.mode
            info.size = len(entry.content)
            info.linkname = entry.target
            info.uid, info.gid, info.uname, info.gname, info.mtime = 1000, 1000, "eve", "eve", 1_700_000_000
            tar.addfile(info, io.BytesIO(entry.content))
    return buffer.getvalue()


def zipped(*entries: Entry, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for entry in entries:
            info = zipfile.ZipInfo(entry.name)
            info.create_system = 3
            info.external_attr = (ZIP_TYPES[entry.kind] | entry.mode) << 16
            file.writestr(info, entry.target.encode() or entry.content, method)
    return buffer.getvalue()


# Archives no tool would write


def tar_member(info: tarfile.TarInfo, content: bytes = b"", *, body: bytes | None = None) -> bytes:
    """One header and its data; `body` is what really follows, when that differs."""
    info.size = len(content)
    data = content if body is None else body
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def tar_header(name: str, type_flag: bytes = tarfile.REGTYPE, *, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = type_flag, size
    return info.tobuf(tarfile.GNU_FORMAT)


def patched_header(header: bytes, start: int, value: bytes) -> bytes:
    """A tar header with other bytes at `start`, and a checksum to match."""
    changed = header[:start] + value + header[start + len(value) :]
    blank = changed[:148] + b" " * 8 + changed[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def pax(records: bytes, type_flag: bytes = tarfile.XHDTYPE) -> bytes:
    return tar_header("pax", type_flag, size=len(records)) + records + bytes(-len(records) % 512)


def record(keyword: str, value: str) -> bytes:
    rest = f" {keyword}={value}\n".encode()
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest


def raw_tar(*pieces: bytes, end: bytes = bytes(1024)) -> bytes:
    """A gzipped tar of these pieces, after a `SKILL.md`."""
    return gzip.compress(tar_member(tarfile.TarInfo("SKILL.md"), SKILL) + b"".join(pieces) + end, mtime=0)


@dataclass(frozen=True)
class RawEntry:
    """A zip member, every field of which may lie."""

    name: bytes
    content: bytes = b""
    method: int = zipfile.ZIP_STORED
    packed: bytes | None = None
    size: int | None = None
    crc: int | None = None
    flags: int = 0
    mode: int = 0
    disk: int = 0
    extra: bytes = b""
    comment: bytes = b""
    packed_size: int | None = None
    offset: int | None = None
    local_name: bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_numbers: tuple[int, int, int] | None = None
    local_extra: bytes = b""
    after: bytes = b""

    @property
    def data(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return self.content if self.method == zipfile.ZIP_STORED else deflated(self.content)

    @property
    def numbers(self) -> tuple[int, int, int]:
        crc = zlib.crc32(self.content) if self.crc is None else self.crc
        packed_size = len(self.data) if self.packed_size is None else self.packed_size
        return crc, packed_size, len(self.content) if self.size is None else self.size

    def local(self) -> bytes:
        name = self.name if self.local_name is None else self.local_name
        flags = self.flags if self.local_flags is None else self.local_flags
        method = self.method if self.local_method is None else self.local_method
        numbers = self.numbers if self.local_numbers is None else self.local_numbers
        lengths = len(name), len(self.local_extra)
        header = pack_struct("<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 33, *numbers, *lengths)
        return header + name + self.local_extra + self.data + self.after

    def central(self, offset: int) -> bytes:
        lengths = len(self.name), len(self.extra), len(self.comment)
        where = offset if self.offset is None else self.offset
        head = pack_struct("<4s6H3L", b"PK\1\2", 0x0314, 20, self.flags, self.method, 0, 33, *self.numbers)
        tail = pack_struct("<5H2L", *lengths, self.disk, 0, self.mode << 16, where)
        return head + tail + self.name + self.extra + self.comment


RAW_ROOT = RawEntry(b"SKILL.md", SKILL)


def raw_zip(
    *entries: RawEntry,
    front: bytes = b"",
    before_end: bytes = b"",
    end: dict[str, int] | None = None,
    tail: bytes = b"",
) -> bytes:
    body, directory = front, b""
    for entry in entries:
        directory += entry.central(len(body))
        body += entry.local()
    numbers = {"disk": 0, "first_disk": 0, "here": len(entries), "count": len(entries)}
    numbers |= {"size": len(directory), "start": len(body), "comment": 0}
    numbers |= end or {}
    return body + directory + before_end + pack_struct("<4s4H2LH", b"PK\5\6", *numbers.values()) + tail


def deflated(content: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(content) + stream.flush()


def deflated_zeros(size: int) -> bytes:
    """A deflate stream of `size` zeros, made of one block over and over."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = stream.compress(bytes(MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
    return block * (size // MIB) + b"\3\0"


def as_dict(files: Iterable[UnpackedFile]) -> dict[str, bytes]:
    return {file.path: file.content for file in files}


def refusal_of(data: bytes, format: ArchiveFormat) -> str:
    """Unpack what must not be unpacked, and return the requirement it violates."""
    with pytest.raises(InvalidArchiveError) as caught:
        unpack(data, format)
    return caught.value.violates


# Formats


@pytest.mark.requirement("ARC-02")
def test_formats_are_found_by_media_type_whatever_its_case_and_parameters() -> None:
    found = {
        text: ArchiveFormat.of_media_type(text)
        for text in ["application/gzip", "Application/ZIP; a=b", "application/zip ", "text/plain", ""]
    }

    assert found == {
        "application/gzip": TAR_GZ,
        "Application/ZIP; a=b": ZIP,
        "application/zip ": ZIP,
        "text/plain": None,
        "": None,
    }


@pytest.mark.requirement("ARC-02")
def test_formats_are_found_by_suffix_where_no_media_type_is_given() -> None:
    found = [ArchiveFormat.of_path(path) for path in ["a/b.tar.gz", "b.TGZ", "b.zip", "b.tar", "zip", "b.gz"]]

    assert found == [TAR_GZ, TAR_GZ, ZIP, None, None, None]


def test_a_format_knows_its_media_type() -> None:
    assert [format.media_type for format in ArchiveFormat] == ["application/gzip", "application/zip"]


# Packing


@both_formats
@pytest.mark.requirement("ARC-04")
def test_what_was_packed_comes_back_sorted_by_path(format: ArchiveFormat) -> None:
    files = {
        "scripts/run.sh": b"#!/bin/sh\n",
        "SKILL.md": SKILL,
        "references/größe.md": b"",
        "a" * 200: b"\0" * 999,
    }

    unpacked = unpack(pack(files, format, executables={"scripts/run.sh"}), format)

    assert unpacked == tuple(
        UnpackedFile(path, files[path], path == "scripts/run.sh") for path in sorted(files)
    )


@pytest.mark.requirement("TOOL-02")
def test_a_packed_tar_tells_nothing_about_the_machine_it_was_made_on() -> None:
    data = pack({"SKILL.md": SKILL, "run.sh": b""}, TAR_GZ, executables=["run.sh"])

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [(m.name, m.mode, m.uid, m.gid, m.uname, m.gname, m.mtime) for m in tar]
    assert data[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
    assert members == [("SKILL.md", 0o644, 0, 0, "", "", 0), ("run.sh", 0o755, 0, 0, "", "", 0)]


@pytest.mark.requirement("TOOL-02")
def test_a_packed_zip_tells_nothing_about_the_machine_it_was_made_on() -> None:
    data = pack({"SKILL.md": SKILL, "run.sh": b""}, ZIP, executables=["run.sh"])

    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(i.filename, i.external_attr >> 16, i.create_system, i.date_time) for i in file.infolist()]
        damaged = file.testzip()
    assert damaged is None
    assert members == [
        ("SKILL.md", stat.S_IFREG | 0o644, 3, (1980, 1, 1, 0, 0, 0)),
        ("run.sh", stat.S_IFREG | 0o755, 3, (1980, 1, 1, 0, 0, 0)),
    ]


@both_formats
@pytest.mark.parametrize(
    ("path", "requirement"),
    [("../x", "ARC-06"), ("c:x", "ARC-06"), ("skill.MD", "ARC-09"), ("SKILL.md/x", "ARC-09")],
)
def test_a_path_that_unpacking_would_refuse_cannot_be_packed(
    format: ArchiveFormat, path: str, requirement: str
) -> None:
    with pytest.raises(InvalidArchiveError) as caught:
        pack({"SKILL.md": SKILL, path: b""}, format)

    assert caught.value.violates == requirement


@both_formats
@pytest.mark.requirement("ARC-03")
def test_files_without_a_skill_at_their_root_cannot_be_packed(format: ArchiveFormat) -> None:
    with pytest.raises(InvalidArchiveError) as caught:
        pack({"refunds/SKILL.md": SKILL}, format)

    assert caught.value.violates == "ARC-03"


def test_an_executable_that_is_no_file_cannot_be_packed() -> None:
    with pytest.raises(InvalidArchiveError):
        pack({"SKILL.md": SKILL}, ZIP, executables=["run.sh"])


@both_formats
@pytest.mark.parametrize(
    "files",
    [
        {f"{number}.md": b"" for number in range(MAX_FILES)},
        {"big": bytes(MAX_TOTAL_SIZE)},
        {"/".join("a" * 17): b""},
        {"/".join(["a" * 250] * 5): b""},
        {"ä" * 128: b""},
    ],
    ids=["files", "size", "depth", "path", "segment"],
)
@pytest.mark.requirement("ARC-11")
def test_more_than_unpacking_accepts_cannot_be_packed(format: ArchiveFormat, files: dict[str, bytes]) -> None:
    with pytest.raises(LimitError):
        pack({"SKILL.md": SKILL, **files}, format)


# Archives from elsewhere


@pytest.mark.requirement("ARC-01")
def test_zip_and_tar_of_the_same_files_give_equal_trees() -> None:
    entries = [
        ROOT,
        Entry("scripts/", kind="directory", mode=0o755),
        Entry("scripts/run.sh", b"#!", mode=0o755),
        Entry("réf.md", b"r"),
        Entry("scripts/again.md", kind="symlink", target="../SKILL.md"),
    ]

    trees = {unpack(archive(format, *entries), format) for format in ArchiveFormat}

    assert trees == {
        (
            UnpackedFile("SKILL.md", SKILL),
            UnpackedFile("réf.md", b"r"),
            UnpackedFile("scripts/again.md", SKILL),
            UnpackedFile("scripts/run.sh", b"#!", executable=True),
        )
    }


@both_formats
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_may_start_with_one_dot_and_slash(format: ArchiveFormat) -> None:
    data = archive(
        format,
        Entry("./", kind="directory"),
        Entry("./SKILL.md", SKILL),
        Entry("./docs/", kind="directory"),
        Entry("./docs/", kind="directory"),
        Entry("./docs/a.md", b"a"),
    )

    assert as_dict(unpack(data, format)) == {"SKILL.md": SKILL, "docs/a.md": b"a"}


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_usual_style_of_tar_is_read(style: int) -> None:
    long = "/".join(["deep" * 10] * 4)
    data = tar_gz(
        Entry("./SKILL.md", SKILL),
        Entry(long, b"x"),
        Entry("./b", kind="hardlink", target="./SKILL.md"),
        style=style,
    )

    assert as_dict(unpack(data, TAR_GZ)) == {"SKILL.md": SKILL, "b": SKILL, long: b"x"}


def test_long_names_and_links_of_gnu_tar_are_read() -> None:
    long = "é" * 120
    data = tar_gz(ROOT, Entry(long, b"x"), Entry("l", kind="symlink", target=long), style=tarfile.GNU_FORMAT)

    assert as_dict(unpack(data, TAR_GZ)) == {"SKILL.md": SKILL, long: b"x", "l": b"x"}


def test_a_comment_for_the_whole_tar_is_ignored_as_git_archive_writes_one() -> None:
    data = raw_tar(pax(record("comment", "0123abcd"), tarfile.XGLTYPE))

    assert as_dict(unpack(data, TAR_GZ)) == {"SKILL.md": SKILL}


def test_extended_headers_rename_and_resize_the_member_they_precede() -> None:
    renamed = pax(record("path", "docs/") + record("mtime", "1.5")) + tar_header("x", tarfile.DIRTYPE)
    resized = pax(record("size", "3")) + tar_header("a") + b"abc" + bytes(509)

    unpacked = unpack(raw_tar(renamed, resized), TAR_GZ)

    assert as_dict(unpacked) == {"SKILL.md": SKILL, "a": b"abc"}


def test_an_old_tar_marks_a_directory_by_its_name_alone() -> None:
    short = tar_header("old/", tarfile.AREGTYPE)
    long = pax(record("path", "older/")) + tar_header("x", tarfile.AREGTYPE)
    file = pax(record("path", "file")) + tar_header("x/", tarfile.AREGTYPE)

    unpacked = unpack(raw_tar(short, long, file), TAR_GZ)

    assert as_dict(unpacked) == {"SKILL.md": SKILL, "file": b""}


def test_gzip_members_may_follow_each_other_and_zeros_the_last() -> None:
    plain = gzip.decompress(tar_gz(ROOT))

    data = gzip.compress(plain[:700]) + bytes(20_000) + gzip.compress(plain[700:]) + bytes(40_000)

    assert as_dict(unpack(data, TAR_GZ)) == {"SKILL.md": SKILL}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_stored_and_deflated_zip_members_are_read(method: int) -> None:
    data = zipped(ROOT, Entry("empty"), Entry("big", b"0123456789" * 9999), method=method)

    assert as_dict(unpack(data, ZIP)) == {"SKILL.md": SKILL, "big": b"0123456789" * 9999, "empty": b""}


def test_a_zip_written_as_a_stream_is_read() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, offset: int, whence: int = 0, /) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("SKILL.md", SKILL)
        file.writestr("docs/", b"")

    assert as_dict(unpack(pipe.getvalue(), ZIP)) == {"SKILL.md": SKILL}


def test_the_numbers_after_a_streamed_zip_member_have_four_spellings() -> None:
    numbers = zlib.crc32(SKILL), len(SKILL), len(SKILL)
    short, long = pack_struct("<3L", *numbers), pack_struct("<L2Q", *numbers)
    spellings = [short, long, b"PK\7\x08" + short, b"PK\7\x08" + long]

    trees = [
        as_dict(unpack(raw_zip(replace(RAW_ROOT, flags=8, local_numbers=(0, 0, 0), after=after)), ZIP))
        for after in spellings
    ]

    assert trees == [{"SKILL.md": SKILL}] * 4


def test_comments_and_harmless_extra_fields_of_a_zip_are_ignored() -> None:
    unicode_path = pack_struct("<2HBL", 0x7075, 5 + 8, 1, zlib.crc32(b"SKILL.md")) + b"SKILL.md"
    entry = replace(RAW_ROOT, extra=unicode_path + b"\0\0", local_extra=b"UT\1\0x", comment=b"hello")

    data = raw_zip(entry, end={"comment": 5}, tail=b"howdy")

    assert as_dict(unpack(data, ZIP)) == {"SKILL.md": SKILL}


@both_formats
@pytest.mark.requirement("ARC-10")
def test_owners_and_special_modes_do_not_survive(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("run", b"#!", mode=0o7755), Entry("data", b"d", mode=0o7644))

    unpacked = unpack(data, format)

    assert unpacked[1:] == (UnpackedFile("data", b"d", False), UnpackedFile("run", b"#!", True))
    assert {field.name for field in fields(UnpackedFile)} == {"path", "content", "executable"}


# Layout and names


@both_formats
@pytest.mark.requirement("ARC-03")
def test_a_wrapper_directory_is_refused_and_named(format: ArchiveFormat) -> None:
    data = archive(format, Entry("refunds/SKILL.md", SKILL), Entry("refunds/a.md"))

    with pytest.raises(InvalidArchiveError, match="'refunds'") as caught:
        unpack(data, format)

    assert caught.value.violates == "ARC-03"


@both_formats
@pytest.mark.parametrize("names", [[], ["README.md"], ["skill.md"], ["docs/README.md"]], ids=str)
@pytest.mark.requirement("ARC-03")
def test_an_archive_without_a_skill_is_refused(format: ArchiveFormat, names: list[str]) -> None:
    assert refusal_of(archive(format, *map(Entry, names)), format) == "ARC-03"


@both_formats
@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "a/../b", "..", "/etc/passwd", "//server/share", "C:/evil", "c:evil", "..\\evil"),
        *("a//b", "././b", ".", "%2e%2e/evil", "a\x1b[2Jb"),
    ],
)
@pytest.mark.requirement("ARC-06")
def test_a_dangerous_name_is_refused(format: ArchiveFormat, name: str) -> None:
    assert refusal_of(archive(format, ROOT, Entry(name)), format) == "ARC-06"


@both_formats
@pytest.mark.parametrize("name", ["../", "/", "a/../", "a//", "/a/", "C:/"])
@pytest.mark.requirement("ARC-06")
def test_a_dangerous_directory_is_refused(format: ArchiveFormat, name: str) -> None:
    if format is TAR_GZ:
        data = raw_tar(pax(record("path", name)) + tar_header("x", tarfile.DIRTYPE))
    else:
        data = raw_zip(RAW_ROOT, RawEntry(name.encode()))

    assert refusal_of(data, format) == "ARC-06"


LATIN_1 = tarfile.TarInfo("r\udce9f.md").tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
ODD_NAMES = {
    **{
        f"extended header: {name!r}": raw_tar(pax(record("path", name)) + tar_header("harmless"))
        for name in ("../evil", "/evil", "a\0b", "a/", "")
    },
    "long name of GNU tar": raw_tar(
        tar_header("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=8) + b"../evil\0" + bytes(504),
        tar_header("harmless"),
    ),
    "tar, Latin-1": raw_tar(LATIN_1),
    "tar, no text": raw_tar(pax(b"20 path=" + b"\xff" * 11 + b"\n"), tar_header("x")),
    "zip, Latin-1": raw_zip(RAW_ROOT, RawEntry(b"r\xe9f.md", flags=0x800)),
    "zip, half a pair": raw_zip(RAW_ROOT, RawEntry(b"r\xed\xa0\x80f.md", flags=0x800)),
    "zip, not marked as Unicode": raw_zip(RAW_ROOT, RawEntry("réf.md".encode())),
    "zip, with a NUL": raw_zip(RAW_ROOT, RawEntry(b"a.md\0.exe")),
}


@pytest.mark.parametrize("data", ODD_NAMES.values(), ids=ODD_NAMES.keys())
@pytest.mark.requirement("ARC-06")
def test_a_dangerous_name_is_refused_wherever_and_however_it_is_written(data: bytes) -> None:
    assert refusal_of(data, ZIP if data.startswith(b"PK") else TAR_GZ) == "ARC-06"


@both_formats
def test_messages_quote_names_so_that_a_terminal_obeys_none_of_them(format: ArchiveFormat) -> None:
    with pytest.raises(InvalidArchiveError) as caught:
        unpack(archive(format, ROOT, Entry("\x1b]0;owned\x07\u202e" + "x" * 300)), format)

    assert re.fullmatch(r"[ -~]{1,240}", str(caught.value))


@both_formats
@pytest.mark.parametrize(
    "names",
    [
        ["Docs.md", "docs.md"],
        ["Skill.md"],
        ["a", "a"],
        ["straße", "STRASSE"],
        ["é.md", unicodedata.normalize("NFD", "é.md")],
        ["ﬁle", "file"],
        ["ΑΣ", "ας"],
        ["Docs/a.md", "docs/b.md"],
        ["é/a.md", unicodedata.normalize("NFD", "É") + "/b.md"],
        ["a", "a/b"],
        ["a/b", "a"],
        ["A", "a/b"],
    ],
    ids=ascii,
)
@pytest.mark.requirement("ARC-09")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_some_file_system_takes_for_one_are_refused(
    format: ArchiveFormat, names: list[str]
) -> None:
    assert refusal_of(archive(format, ROOT, *map(Entry, names)), format) == "ARC-09"


@both_formats
@pytest.mark.requirement("ARC-09")
def test_a_file_and_a_directory_of_one_name_are_refused(format: ArchiveFormat) -> None:
    assert refusal_of(archive(format, ROOT, Entry("a"), Entry("a/", kind="directory")), format) == "ARC-09"


# Links and other kinds


@both_formats
@pytest.mark.requirement("ARC-07")
def test_a_link_to_a_file_in_the_archive_becomes_a_copy_of_it(format: ArchiveFormat) -> None:
    data = archive(
        format,
        Entry("bin/second", kind="symlink", target="./first"),
        Entry("bin/first", kind="symlink", target="../scripts/../scripts/run"),
        Entry("scripts/run", b"#!", mode=0o755),
        Entry("long", kind="symlink", target="./" * 508 + "SKILL.md"),
        ROOT,
    )

    assert unpack(data, format)[1:] == (
        UnpackedFile("bin/first", b"#!", executable=True),
        UnpackedFile("bin/second", b"#!", executable=True),
        UnpackedFile("long", SKILL),
        UnpackedFile("scripts/run", b"#!", executable=True),
    )


@pytest.mark.requirement("ARC-07")
def test_a_hard_link_to_a_hard_link_is_a_copy_too() -> None:
    links = [Entry("a", kind="hardlink", target="SKILL.md"), Entry("b", kind="hardlink", target="a")]

    assert as_dict(unpack(tar_gz(ROOT, *links), TAR_GZ)) == dict.fromkeys(["SKILL.md", "a", "b"], SKILL)


@both_formats
@pytest.mark.parametrize(
    "target",
    [
        "",
        "/etc/passwd",
        "/docs/a.md",
        "../docs//a.md",
        "../../etc/passwd",
        "../../SKILL.md",
        "C:/Windows",
        "C:a.md",
        "..\\SKILL.md",
        "\\\\server\\share",
        "//server/share",
        "missing.md",
        "missing/../a.md",
        "a.md/../a.md",
        "../docs",
        ".",
        "..",
        "link",
        "../other",
        "a.md/",
        "x" * 1025,
    ],
)
@pytest.mark.requirement("ARC-07")
def test_a_symbolic_link_to_anything_else_is_refused(format: ArchiveFormat, target: str) -> None:
    data = archive(
        format,
        ROOT,
        Entry("docs/a.md"),
        Entry("docs/C:a.md"),
        Entry("docs/link", kind="symlink", target=target),
        Entry("other", kind="symlink", target="docs/link"),
    )

    assert refusal_of(data, format) in ("ARC-07", "ARC-15")


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../SKILL.md", "docs/../SKILL.md", "C:a", "a\\b", "missing", "docs", "link", "soft"],
)
@pytest.mark.requirement("ARC-07")
def test_a_hard_link_to_anything_but_a_file_in_the_archive_is_refused(target: str) -> None:
    data = tar_gz(
        ROOT,
        Entry("docs/a.md"),
        Entry("soft", kind="symlink", target="SKILL.md"),
        Entry("link", kind="hardlink", target=target),
    )

    assert refusal_of(data, TAR_GZ) == "ARC-07"


@pytest.mark.requirement("ARC-07")
def test_a_link_target_hidden_in_an_extended_header_is_refused() -> None:
    hidden = pax(record("linkpath", "../../evil")) + tar_header("link", tarfile.SYMTYPE)
    long = tar_header("././@LongLink", tarfile.GNUTYPE_LONGLINK, size=8) + b"../evil\0" + bytes(504)

    assert refusal_of(raw_tar(hidden), TAR_GZ) == "ARC-07"
    assert refusal_of(raw_tar(long, tar_header("link", tarfile.LNKTYPE)), TAR_GZ) == "ARC-07"


@both_formats
@pytest.mark.requirement("ARC-07")
def test_a_link_through_too_many_links_is_refused(format: ArchiveFormat) -> None:
    chain = [Entry(f"{number}", kind="symlink", target=f"{number + 1}") for number in range(9)]

    accepted = unpack(archive(format, ROOT, *chain[1:], Entry("9", b"end")), format)

    assert as_dict(accepted)["1"] == b"end"
    assert refusal_of(archive(format, ROOT, *chain, Entry("9", b"end")), format) == "ARC-07"


@pytest.mark.requirement("ARC-07")
def test_a_zip_link_whose_target_is_not_text_is_refused() -> None:
    link = RawEntry(b"link", b"\xff\xfe", mode=stat.S_IFLNK | 0o777)

    assert refusal_of(raw_zip(RAW_ROOT, link), ZIP) == "ARC-07"


@both_formats
@pytest.mark.requirement("ARC-09")
def test_nothing_can_be_written_through_a_link(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("docs", kind="symlink", target="."), Entry("docs/evil"))

    assert refusal_of(data, format) == "ARC-09"


@both_formats
@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.requirement("ARC-08")
def test_a_special_file_is_refused(format: ArchiveFormat, kind: Literal["fifo", "device"]) -> None:
    assert refusal_of(archive(format, ROOT, Entry("special", kind=kind)), format) == "ARC-08"


@pytest.mark.parametrize("type_flag", [b"4", b"7", b"S", b"D", b"M", b"V", b"X", b"A", b"9", b"?"])
@pytest.mark.requirement("ARC-08")
def test_a_tar_member_of_any_other_type_is_refused(type_flag: bytes) -> None:
    assert refusal_of(raw_tar(tar_header("odd", type_flag)), TAR_GZ) == "ARC-08"


@pytest.mark.requirement("ARC-08")
def test_a_sparse_tar_member_is_refused_in_every_version() -> None:
    old = tar_member(tarfile.TarInfo("a"), b"x" * 512)
    versions = [
        [patched_header(tar_header("a", tarfile.GNUTYPE_SPARSE), 483, b"00000000010\0")],
        [pax(record("GNU.sparse.size", "99999999") + record("GNU.sparse.numblocks", "0")), old],
        [pax(record("GNU.sparse.map", "0,1") + record("GNU.sparse.name", "b")), old],
        [pax(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0")), old],
        [pax(record("GNU.sparse.major", "1"), tarfile.XGLTYPE), old],
    ]

    assert [refusal_of(raw_tar(*pieces), TAR_GZ) for pieces in versions] == ["ARC-08"] * 5


@pytest.mark.parametrize(
    "entry",
    [
        RawEntry(b"socket", mode=stat.S_IFSOCK | 0o644),
        RawEntry(b"block", mode=stat.S_IFBLK | 0o644),
        RawEntry(b"odd", mode=0x3000),
        RawEntry(b"directory", mode=stat.S_IFDIR | 0o755),
        RawEntry(b"file/", mode=stat.S_IFREG | 0o644),
        RawEntry(b"link/", b"SKILL.md", mode=stat.S_IFLNK | 0o777),
    ],
    ids=lambda entry: ascii(entry.name),
)
@pytest.mark.requirement("ARC-08")
def test_a_zip_member_of_another_or_a_doubtful_kind_is_refused(entry: RawEntry) -> None:
    assert refusal_of(raw_zip(RAW_ROOT, entry), ZIP) == "ARC-08"


@pytest.mark.requirement("ARC-15")
def test_content_in_a_member_that_is_no_file_is_refused() -> None:
    tars = [
        raw_tar(tar_header("odd", type_flag, size=512) + bytes(512))
        for type_flag in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
    ]
    tars.append(raw_tar(pax(record("size", "512")), tar_header("odd", tarfile.DIRTYPE), bytes(512)))
    zips = [raw_zip(RAW_ROOT, RawEntry(b"docs/", b"content", method=method)) for method in (0, 8)]

    refusals = [refusal_of(data, TAR_GZ) for data in tars] + [refusal_of(data, ZIP) for data in zips]

    assert refusals == ["ARC-15"] * 6


# Digest


@both_formats
@pytest.mark.requirement("ARC-05")
def test_the_digest_is_verified_before_anything_is_decompressed(format: ArchiveFormat) -> None:
    data = archive(format, ROOT)
    flipped = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    budget = UnpackBudget(1000 * MIB)

    with pytest.raises(DigestMismatchError):
        unpack(flipped, format, digest=digest_of(data), budget=budget)

    assert budget.remaining == 1000 * MIB
    assert as_dict(unpack(data, format, digest=digest_of(data))) == {"SKILL.md": SKILL}


@both_formats
@pytest.mark.parametrize("digest", ["", "sha256:", "md5:d41d8cd98f00b204e9800998ecf8427e"])
@pytest.mark.requirement("ARC-05")
def test_a_digest_that_is_none_matches_nothing(format: ArchiveFormat, digest: str) -> None:
    with pytest.raises(DigestMismatchError):
        unpack(archive(format, ROOT), format, digest=digest)


# Limits


@both_formats
@pytest.mark.requirement("ARC-11")
def test_limits_are_met_to_the_last_file_and_byte(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("a", b"12345"), Entry("b/c", b"67890"))
    exact = ArchiveLimits(3, len(SKILL) + 10, max_depth=2, max_path_length=8, max_segment_length=8)

    unpacked = unpack(data, format, limits=exact)

    assert len(unpacked) == 3
    for tight in [
        replace(exact, max_files=2),
        replace(exact, max_total_size=len(SKILL) + 9),
        replace(exact, max_depth=1),
        replace(exact, max_path_length=7),
        replace(exact, max_segment_length=7),
    ]:
        with pytest.raises(LimitError):
            unpack(data, format, limits=tight)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_an_archive_that_is_itself_too_large_is_not_even_opened(format: ArchiveFormat) -> None:
    limits = ArchiveLimits()

    with pytest.raises(LimitError):
        unpack(bytes(limits.max_stream_size + 1), format, digest="sha256:other", limits=limits)
    with pytest.raises(DigestMismatchError):
        unpack(bytes(limits.max_stream_size), format, digest="sha256:other", limits=limits)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_too_many_directories_are_refused(format: ArchiveFormat) -> None:
    limits = ArchiveLimits(max_files=5)
    directories = [Entry(f"{number}/", kind="directory") for number in range(40)]

    accepted = unpack(archive(format, ROOT, *directories[:39]), format, limits=limits)

    assert len(accepted) == 1
    with pytest.raises(LimitError):
        unpack(archive(format, ROOT, *directories), format, limits=limits)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_copies_made_of_links_count_as_files(format: ArchiveFormat) -> None:
    links = [Entry(f"{number}", kind="symlink", target="big") for number in range(3)]
    data = archive(format, ROOT, Entry("big", bytes(100_000)), *links)
    exact = ArchiveLimits(max_files=5, max_total_size=400_000 + len(SKILL))

    assert len(unpack(data, format, limits=exact)) == 5
    for tight in [replace(exact, max_files=4), replace(exact, max_total_size=400_000)]:
        with pytest.raises(LimitError):
            unpack(data, format, limits=tight)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_the_fifth_archive_of_45_mib_exceeds_its_servers_budget(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("big", bytes(45 * MIB)))
    limits = ArchiveLimits(max_total_size=64 * MIB)
    budget = UnpackBudget()

    for _ in range(4):
        unpack(data, format, limits=limits, budget=budget)

    assert 19 * MIB < budget.remaining <= 20 * MIB
    with pytest.raises(LimitError):
        unpack(data, format, limits=limits, budget=budget)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_a_budget_can_be_spent_to_the_last_byte(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("big", bytes(100_000)))
    cost = len(gzip.decompress(data)) if format is TAR_GZ else len(SKILL) + 100_000
    exact, tight = UnpackBudget(cost), UnpackBudget(cost - 1)

    unpacked = unpack(data, format, budget=exact)

    assert len(unpacked) == 2
    assert exact.remaining == 0
    with pytest.raises(LimitError):
        unpack(data, format, budget=tight)


@both_formats
@pytest.mark.requirement("ARC-11")
def test_a_file_larger_than_what_is_left_of_the_budget_is_not_even_decompressed(
    format: ArchiveFormat,
) -> None:
    budget = UnpackBudget(50_000)

    with pytest.raises(LimitError):
        unpack(archive(format, ROOT, Entry("big", bytes(100_000))), format, budget=budget)

    assert budget.remaining > 45_000


@both_formats
@pytest.mark.requirement("ARC-11")
def test_copies_made_of_links_spend_the_budget(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("big", bytes(100_000)), Entry("l", kind="symlink", target="big"))
    budget = UnpackBudget(250_000)

    unpack(data, format, budget=budget)

    assert budget.remaining <= 50_000


@pytest.mark.requirement("ARC-11")
def test_a_hostile_archive_spends_the_budget_too() -> None:
    data = gzip.compress(bytes(512) + b"\1" * 100_000)
    budget = UnpackBudget(30_000)

    with pytest.raises(InvalidArchiveError):
        unpack(data, TAR_GZ, budget=budget)
    with pytest.raises(LimitError):
        unpack(gzip.compress(bytes(100_000)), TAR_GZ, budget=budget)

    assert budget.remaining == 0


def bombs() -> dict[str, tuple[bytes, ArchiveFormat]]:
    """Archives of about a megabyte that would unpack to more than a gibibyte."""
    zeros = deflated_zeros(1100 * MIB)
    gzip_header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"

    def tar(*pieces: bytes) -> bytes:
        return (
            gzip.compress(tar_member(tarfile.TarInfo("SKILL.md"), SKILL) + b"".join(pieces))
            + gzip_header
            + zeros
        )

    lying = replace(RawEntry(b"big", method=8, packed=zeros), size=10, crc=0)
    honest = replace(lying, size=1100 * MIB)
    return {
        "tar, honest": (tar(tar_header("big", size=1100 * MIB)), TAR_GZ),
        "tar, zeros after a member": (tar(tar_header("big", size=15 * MIB)), TAR_GZ),
        "tar, after the end": (tar(bytes(1024)), TAR_GZ),
        "tar, extended header": (tar(tar_header("x", tarfile.XHDTYPE, size=1100 * MIB)), TAR_GZ),
        "tar, global header": (tar(tar_header("x", tarfile.XGLTYPE, size=1100 * MIB)), TAR_GZ),
        "tar, long name": (tar(tar_header("x", tarfile.GNUTYPE_LONGNAME, size=1100 * MIB)), TAR_GZ),
        "zip, honest": (raw_zip(RAW_ROOT, honest), ZIP),
        "zip, lying": (raw_zip(RAW_ROOT, lying), ZIP),
        "zip, lying up to the limit": (raw_zip(RAW_ROOT, replace(lying, size=15 * MIB)), ZIP),
        "zip, link": (raw_zip(RAW_ROOT, replace(lying, mode=stat.S_IFLNK)), ZIP),
    }


@pytest.mark.parametrize(("data", "format"), bombs().values(), ids=bombs().keys())
@pytest.mark.requirement("ARC-11")
@pytest.mark.requirement("ARC-15")
def test_a_bomb_is_refused_without_the_memory_it_asks_for(data: bytes, format: ArchiveFormat) -> None:
    assert len(data) < 4 * MIB
    tracemalloc.start()
    try:
        with pytest.raises((LimitError, InvalidArchiveError)):
            unpack(data, format)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 3 * MAX_TOTAL_SIZE


@pytest.mark.requirement("ARC-15")
def test_members_of_a_zip_that_share_their_bytes_are_refused() -> None:
    kernel = RawEntry(b"kernel", bytes(50_000), method=8)
    quote = b"\0" + pack_struct("<2H", len(head := kernel.local()[:36]), len(head) ^ 0xFFFF) + head
    outer = RawEntry(b"outer", head + kernel.content, method=8, packed=quote + kernel.data)
    start = len(RAW_ROOT.local()) + 30 + len(b"outer") + len(quote) - len(head)
    inner = replace(kernel, offset=start)
    body = RAW_ROOT.local() + outer.local()
    directory = RAW_ROOT.central(0) + outer.central(len(RAW_ROOT.local())) + inner.central(0)
    data = body + directory + pack_struct("<4s4H2LH", b"PK\5\6", 0, 0, 3, 3, len(directory), len(body), 0)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert len(file.infolist()) == 3

    assert refusal_of(data, ZIP) == "ARC-15"


@pytest.mark.requirement("ARC-15")
def test_two_names_for_the_same_bytes_of_a_zip_are_refused() -> None:
    twin = replace(RAW_ROOT, name=b"twin.md", local_name=b"SKILL.md", offset=0)

    assert refusal_of(raw_zip(RAW_ROOT, twin), ZIP) == "ARC-15"


ONE_FILE = ArchiveLimits(max_files=1, max_total_size=len(SKILL))
PLAIN = gzip.decompress(raw_tar())
COMMENT = "x" * (MAX_METADATA - 15)
EXACT_AND_TOO_MUCH = {
    "stream": [gzip.compress(PLAIN.ljust(ONE_FILE.max_stream_size + more, b"\0")) for more in (0, 1)],
    "gzip members": [tar_gz(ROOT) + gzip.compress(b"") * (MAX_GZIP_MEMBERS - less) for less in (1, 0)],
    "metadata": [raw_tar(pax(record("comment", COMMENT + more))) for more in ("", "x")],
    "records": [raw_tar(pax(b"5 a=\n" * (MAX_RECORDS + more))) for more in (0, 1)],
}


@pytest.mark.parametrize(("exact", "larger"), EXACT_AND_TOO_MUCH.values(), ids=EXACT_AND_TOO_MUCH.keys())
@pytest.mark.requirement("ARC-11")
def test_a_tar_may_reach_each_of_its_limits_and_not_exceed_it(exact: bytes, larger: bytes) -> None:
    assert len(unpack(exact, TAR_GZ, limits=ONE_FILE)) == 1
    with pytest.raises(LimitError):
        unpack(larger, TAR_GZ, limits=ONE_FILE)


@pytest.mark.parametrize(
    "headers", [pax(record("comment", COMMENT)) * 400, pax(b"") * 5000], ids=["long", "many"]
)
@pytest.mark.requirement("ARC-11")
def test_metadata_without_end_is_refused(headers: bytes) -> None:
    with pytest.raises(LimitError):
        unpack(raw_tar(headers), TAR_GZ)


# Damage and ambiguity


@both_formats
@pytest.mark.parametrize("data", [b"", b"PK", b"\x1f\x8b", b"\0" * 600, b"not an archive" * 99])
@pytest.mark.requirement("ARC-15")
def test_what_is_no_archive_is_refused(format: ArchiveFormat, data: bytes) -> None:
    assert refusal_of(data, format) == "ARC-15"


@both_formats
@pytest.mark.requirement("ARC-02")
def test_an_archive_of_the_other_format_is_refused(format: ArchiveFormat) -> None:
    other = ZIP if format is TAR_GZ else TAR_GZ

    assert refusal_of(archive(other, ROOT), format) == "ARC-15"


@both_formats
@pytest.mark.requirement("ARC-15")
def test_an_archive_cut_short_anywhere_is_refused(format: ArchiveFormat) -> None:
    data = archive(format, ROOT, Entry("docs/a.md", bytes(range(256))))

    refusals = {refusal_of(data[:length], format) for length in range(len(data))}

    assert refusals == {"ARC-15"}


@pytest.mark.requirement("ARC-15")
def test_a_tar_cut_short_before_it_was_compressed_is_refused() -> None:
    plain = gzip.decompress(tar_gz(ROOT, Entry("a", b"x" * 700)))
    ends = [0, 100, 512, 600, 1024, 1100, 1536, 2048, 2200, 2559, 2560]

    refusals = {refusal_of(gzip.compress(plain[:end]), TAR_GZ) for end in ends}

    assert refusals == {"ARC-15"}
    assert len(unpack(gzip.compress(plain[: 2560 + 512]), TAR_GZ)) == 2


@both_formats
@pytest.mark.requirement("ARC-15")
def test_something_after_the_archive_is_refused(format: ArchiveFormat) -> None:
    assert refusal_of(archive(format, ROOT) + b"garbage", format) == "ARC-15"


@pytest.mark.requirement("ARC-15")
def test_something_after_the_end_of_a_tar_is_refused() -> None:
    hidden = raw_tar(end=bytes(1024) + tar_member(tarfile.TarInfo("hidden"), b"x") + bytes(1024))

    assert refusal_of(hidden, TAR_GZ) == "ARC-15"


@pytest.mark.requirement("ARC-15")
def test_a_damaged_checksum_of_the_gzip_stream_is_refused() -> None:
    data = bytearray(tar_gz(ROOT))
    data[-6] ^= 1

    assert refusal_of(bytes(data), TAR_GZ) == "ARC-15"


DAMAGED_TARS = {
    "no header": [b"x" * 512],
    "binary size below zero": [patched_header(tar_header("a"), 124, b"\xff" * 12)],
    "octal size below zero": [patched_header(tar_header("a"), 124, b"-0000000777\0")],
    "size that is no number": [patched_header(tar_header("a"), 124, b"zzzzzzzzzzz\0")],
    "extended header of a size below zero": [
        patched_header(tar_header("a", tarfile.XHDTYPE), 124, b"\xff" * 12)
    ],
    "time stamps or name": [patched_header(tar_header("a"), 345, b"15276300565")],
    "size past the end": [tar_header("a", size=5000), bytes(512)],
    "size too small": [tar_header("a", size=1), b"x" * 1024],
    "name for nothing": [pax(record("path", "b"))],
    "long name for nothing": [
        tar_header("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=2),
        b"b\0" + bytes(510),
    ],
    "long name past its size": [
        tar_header("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1),
        b"bc" + bytes(510),
        tar_header("a"),
    ],
    "two names": [pax(record("path", "b")), pax(record("path", "c")), tar_header("a")],
    "extended size below zero": [pax(record("size", "-1")), tar_header("a")],
    "extended size with exponent": [pax(record("size", "1e3")), tar_header("a")],
    "extended size of many digits": [pax(record("size", "9" * 5000)), tar_header("a")],
    "one name for all": [pax(record("path", "b"), tarfile.XGLTYPE), tar_header("a")],
    "one target for all": [pax(record("linkpath", "b"), tarfile.XGLTYPE), tar_header("a")],
    "one size for all": [pax(record("size", "1"), tarfile.XGLTYPE), tar_header("a")],
    "record without length": [pax(b"path=b\n"), tar_header("a")],
    "record without end": [pax(b"9 path=b\n"[:-1] + b"x"), tar_header("a")],
    "record past the end": [pax(b"99 path=b\n"), tar_header("a")],
    "record of no length": [pax(b"0 path=b\n"), tar_header("a")],
    "record and a rest": [pax(b"8 pathb\n\n"), tar_header("a")],
    "record without value": [pax(b"8 pathb\n"), tar_header("a")],
    "digits only": [pax(b"9" * 60_000), tar_header("a")],
}


@pytest.mark.parametrize("pieces", DAMAGED_TARS.values(), ids=DAMAGED_TARS.keys())
@pytest.mark.requirement("ARC-15")
def test_a_damaged_or_ambiguous_tar_is_refused(pieces: list[bytes]) -> None:
    end = b"" if pieces[0][:1] == b"x" else bytes(1024)

    assert refusal_of(raw_tar(*pieces, end=end), TAR_GZ) == "ARC-15"


@pytest.mark.requirement("ARC-11")
def test_a_tar_member_larger_than_any_disk_is_refused() -> None:
    huge = patched_header(tar_header("a"), 124, b"\x80" + b"\xff" * 11)

    with pytest.raises(LimitError):
        unpack(raw_tar(huge), TAR_GZ)


@pytest.mark.requirement("ARC-15")
def test_a_long_chain_of_extended_headers_is_read_without_recursion() -> None:
    chain = [pax(record("comment", "x"))] * 3000

    assert as_dict(unpack(raw_tar(*chain, tar_header("a")), TAR_GZ)) == {"SKILL.md": SKILL, "a": b""}


DAMAGED_ZIPS = {
    "script in front": raw_zip(RAW_ROOT, front=b"#!/bin/sh\n"),
    "script in front, offsets adjusted": raw_zip(replace(RAW_ROOT, offset=10), front=b"#!/bin/sh\n"),
    "something in front of nothing": raw_zip(front=b"front"),
    "gap before the directory": raw_zip(replace(RAW_ROOT, after=b"gap")),
    "gap between members": raw_zip(replace(RAW_ROOT, after=b"gap"), RawEntry(b"a")),
    "gap before the end": raw_zip(RAW_ROOT, before_end=b"gap"),
    "gap inside the directory": raw_zip(
        RAW_ROOT, before_end=b"gap", end={"size": len(RAW_ROOT.central(0)) + 3}
    ),
    "tail without a comment": raw_zip(RAW_ROOT, tail=b"tail"),
    "comment past the end": raw_zip(RAW_ROOT, end={"comment": 9}),
    "directory elsewhere": raw_zip(RAW_ROOT, end={"start": 1}),
    "directory too short": raw_zip(RAW_ROOT, end={"size": 1}),
    "fewer lines than promised": raw_zip(RAW_ROOT, end={"here": 2, "count": 2}),
    "more lines than promised": raw_zip(RAW_ROOT, RawEntry(b"a"), end={"here": 1, "count": 1}),
    "member past the directory": raw_zip(RAW_ROOT, RawEntry(b"a", offset=5_000)),
    "no line": raw_zip(RAW_ROOT).replace(b"PK\1\2", b"PK\1\3"),
    "no member": raw_zip(RAW_ROOT).replace(b"PK\3\4", b"PK\3\5"),
    "half a line": raw_zip(RAW_ROOT)[:-60] + raw_zip(RAW_ROOT)[-22:],
    "line past the end": raw_zip(
        replace(RAW_ROOT, comment=b"hello"), end={"size": len(RAW_ROOT.central(0))}
    ).replace(b"hello", b""),
    "other name": raw_zip(replace(RAW_ROOT, local_name=b"skill.MD")),
    "longer name": raw_zip(replace(RAW_ROOT, local_name=b"SKILL.mdx")),
    "name in another encoding": raw_zip(replace(RAW_ROOT, local_flags=0x800)),
    "encrypted beside the file": raw_zip(replace(RAW_ROOT, local_flags=1)),
    "other method beside the file": raw_zip(replace(RAW_ROOT, local_method=8)),
    "no numbers beside the file": raw_zip(replace(RAW_ROOT, local_numbers=(0, 0, 0))),
    "other size beside the file": raw_zip(
        replace(RAW_ROOT, local_numbers=(zlib.crc32(SKILL), len(SKILL), 1))
    ),
    "zip64 beside the file": raw_zip(
        replace(RAW_ROOT, local_numbers=(zlib.crc32(SKILL), 0xFFFFFFFF, 0xFFFFFFFF))
    ),
    "stream without numbers after it": raw_zip(replace(RAW_ROOT, flags=8, local_numbers=(0, 0, 0))),
    "stream with other numbers after it": raw_zip(
        replace(RAW_ROOT, flags=8, local_numbers=(0, 0, 0), after=bytes(12))
    ),
    "stream with other numbers before it": raw_zip(
        replace(RAW_ROOT, flags=8, local_numbers=(1, 0, 0), after=bytes(12))
    ),
    "other unicode name": raw_zip(replace(RAW_ROOT, extra=b"up\x0a\0\1\0\0\0\0other")),
    "other unicode name beside the file": raw_zip(replace(RAW_ROOT, local_extra=b"up\x0a\0\1\0\0\0\0other")),
    "damaged extra field": raw_zip(replace(RAW_ROOT, extra=b"UT\xff\0x")),
    "damaged extra field beside the file": raw_zip(replace(RAW_ROOT, local_extra=b"UT\xff\0x")),
    "stored with another checksum": raw_zip(RawEntry(b"SKILL.md", SKILL, crc=1)),
    "deflated with another checksum": raw_zip(RawEntry(b"SKILL.md", SKILL, crc=1, method=8)),
    "stored with another size": raw_zip(RawEntry(b"SKILL.md", SKILL, size=5)),
    "deflated with a smaller size": raw_zip(
        RawEntry(b"SKILL.md", SKILL, size=5, method=8, crc=zlib.crc32(SKILL[:5]))
    ),
    "deflated with a larger size": raw_zip(RawEntry(b"SKILL.md", SKILL, size=len(SKILL) + 1, method=8)),
    "something after the deflate stream": raw_zip(
        RawEntry(b"SKILL.md", SKILL, packed=deflated(SKILL) + b"rest", method=8)
    ),
    "deflate stream cut short": raw_zip(RawEntry(b"SKILL.md", SKILL, packed=deflated(SKILL)[:-3], method=8)),
    "no deflate stream": raw_zip(RawEntry(b"SKILL.md", SKILL, packed=b"\xff" * 30, method=8)),
    "packed size past the end": raw_zip(RawEntry(b"SKILL.md", SKILL, packed_size=5000)),
}


@pytest.mark.parametrize("data", DAMAGED_ZIPS.values(), ids=DAMAGED_ZIPS.keys())
@pytest.mark.requirement("ARC-15")
def test_a_damaged_or_ambiguous_zip_is_refused(data: bytes) -> None:
    assert refusal_of(data, ZIP) == "ARC-15"


ZIP64_END = pack_struct("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 0, 0)
ZIP64_LOCATOR = pack_struct("<4sLQL", b"PK\6\7", 0, 0, 1)


UNSUPPORTED_ZIPS = {
    "encrypted": raw_zip(replace(RAW_ROOT, flags=1)),
    "strongly encrypted": raw_zip(replace(RAW_ROOT, flags=0x41)),
    "patch": raw_zip(replace(RAW_ROOT, flags=0x20)),
    "masked": raw_zip(replace(RAW_ROOT, flags=0x2000)),
    "bzip2": raw_zip(replace(RAW_ROOT, method=12)),
    "lzma": raw_zip(replace(RAW_ROOT, method=14)),
    "aes": raw_zip(replace(RAW_ROOT, method=99)),
    "newer version": re.sub(rb"(PK\x01\x02..).", b"\\g<1>@", raw_zip(RAW_ROOT), flags=re.DOTALL),
    "member on another disk": raw_zip(replace(RAW_ROOT, disk=1)),
    "zip64 size": raw_zip(replace(RAW_ROOT, size=0xFFFFFFFF)),
    "zip64 packed size": raw_zip(replace(RAW_ROOT, packed_size=0xFFFFFFFF)),
    "zip64 offset": raw_zip(replace(RAW_ROOT, offset=0xFFFFFFFF)),
    "another disk": raw_zip(RAW_ROOT, end={"disk": 1}),
    "directory on another disk": raw_zip(RAW_ROOT, end={"first_disk": 1}),
    "lines on another disk": raw_zip(RAW_ROOT, end={"here": 0}),
    "zip64 count": raw_zip(RAW_ROOT, end={"count": 0xFFFF, "here": 0xFFFF}),
    "zip64 directory size": raw_zip(RAW_ROOT, end={"size": 0xFFFFFFFF}),
    "zip64 directory start": raw_zip(RAW_ROOT, end={"start": 0xFFFFFFFF}),
    "zip64 locator": raw_zip(RAW_ROOT, before_end=ZIP64_END + ZIP64_LOCATOR),
}


@pytest.mark.parametrize("data", UNSUPPORTED_ZIPS.values(), ids=UNSUPPORTED_ZIPS.keys())
@pytest.mark.requirement("ARC-02")
def test_encryption_other_compression_zip64_several_disks_and_newer_versions_are_refused(data: bytes) -> None:
    assert refusal_of(data, ZIP) == "ARC-02"


# Properties


def is_legal(segment: str) -> bool:
    try:
        check_segment(segment)
    except InvalidUriError:
        return False
    return len(segment.encode()) <= 255 and segment[1:2] != ":"


def without_lookalikes(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Leave out each file whose path, or a directory of it, resembles one before it."""
    kept: dict[str, bytes] = {}
    seen: dict[str, tuple[str, bool]] = {}
    for path, content in {"SKILL.md": SKILL, **files}.items():
        parts = path.split("/")
        claims = [("/".join(parts[:n]), n < len(parts)) for n in range(1, len(parts) + 1)]
        keys = [unicodedata.normalize("NFKD", claim[0].casefold()).casefold() for claim in claims]
        keys = [unicodedata.normalize("NFKD", key) for key in keys]
        if all(
            seen.get(key, claim) == claim and (key not in seen or claim[1])
            for key, claim in zip(keys, claims, strict=True)
        ):
            seen.update(zip(keys, claims, strict=True))
            kept[path] = content
    return kept


characters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/\\:")
segments = st.text(characters, min_size=1, max_size=12).filter(is_legal)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
skills = st.dictionaries(paths, st.binary(max_size=600), max_size=6).map(without_lookalikes)
formats = st.sampled_from(ArchiveFormat)
edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from("=+-"), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[float, str, int]]) -> bytes:
    """Set, insert or delete a byte, here and there."""
    changed = bytearray(data)
    for where, what, byte in changes:
        position = int(where * len(changed))
        changed[position : position + (what != "+")] = b"" if what == "-" else bytes([byte])
    return bytes(changed)


def survives(data: bytes, format: ArchiveFormat) -> None:
    """Unpack, and let nothing but our own refusals pass."""
    budget = UnpackBudget(4 * MIB)
    try:
        unpacked = unpack(data, format, budget=budget)
    except SkillError as error:
        assert isinstance(error, InvalidArchiveError | LimitError)
    else:
        assert all(is_legal(segment) for file in unpacked for segment in file.path.split("/"))


@given(skills, formats, st.data())
@settings(max_examples=80, deadline=None)
@pytest.mark.requirement("ARC-04")
def test_any_legal_files_survive_packing(
    files: dict[str, bytes], format: ArchiveFormat, data: st.DataObject
) -> None:
    executables = data.draw(st.sets(st.sampled_from(sorted(files))))

    unpacked = unpack(pack(files, format, executables=executables), format)

    assert unpacked == tuple(UnpackedFile(path, files[path], path in executables) for path in sorted(files))


@given(skills, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_packing_ignores_the_order_of_files(files: dict[str, bytes], random: Random) -> None:
    items = list(files.items())
    random.shuffle(items)

    assert [pack(files, format) for format in ArchiveFormat] == [
        pack(dict(items), format) for format in ArchiveFormat
    ]


@given(st.binary(max_size=3000), formats)
@settings(max_examples=200, deadline=None)
@pytest.mark.requirement("ARC-15")
def test_arbitrary_bytes_only_ever_raise_our_own_errors(data: bytes, format: ArchiveFormat) -> None:
    survives(data, format)


@given(st.binary(max_size=3000))
@settings(max_examples=200, deadline=None)
@pytest.mark.requirement("ARC-15")
def test_arbitrary_bytes_in_a_valid_gzip_stream_only_ever_raise_our_own_errors(data: bytes) -> None:
    survives(gzip.compress(data), TAR_GZ)


MIXED = [
    ROOT,
    Entry("docs/", kind="directory"),
    Entry("docs/réf.md", b"reference" * 99),
    Entry("x" * 150, b"x"),
    Entry("link", kind="symlink", target="docs/réf.md"),
]
MIXED_TAR = tar_gz(*MIXED, Entry("hard", kind="hardlink", target="SKILL.md"))
MIXED_ZIP = zipped(*MIXED)


@given(edits, formats)
@settings(max_examples=400, deadline=None)
@pytest.mark.requirement("ARC-15")
def test_a_damaged_archive_only_ever_raises_our_own_errors(
    changes: list[tuple[float, str, int]], format: ArchiveFormat
) -> None:
    survives(edited(MIXED_TAR if format is TAR_GZ else MIXED_ZIP, changes), format)


@given(edits, st.booleans())
@settings(max_examples=400, deadline=None)
@pytest.mark.requirement("ARC-15")
def test_a_damaged_tar_in_a_valid_gzip_stream_only_ever_raises_our_own_errors(
    changes: list[tuple[float, str, int]], mend: bool
) -> None:
    plain = edited(gzip.decompress(MIXED_TAR)[:6000], changes)
    blocks = [plain[start : start + 512] for start in range(0, len(plain), 512)]
    if mend:
        blocks = [patched_header(block, 0, b"") if b"ustar" in block[250:270] else block for block in blocks]

    survives(gzip.compress(b"".join(blocks)), TAR_GZ)
