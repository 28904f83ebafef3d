"""Skills inside a Python package: unpacked or in an archive, the same skills come out."""

import importlib
import importlib.resources
import logging
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.resources.abc import Traversable
from importlib.resources.readers import MultiplexedPath
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import codes, held_back, link, scan, skill_md, uris, write_files, write_skill
from skillwire.core.errors import InvalidSkillError, InvalidUriError, NotFoundError, SourceError
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri
from skillwire.sources import CombinedSource, LiveSource, MemorySource, PackageSource, Snapshot, package

PDF = SkillUri("skill://pdf/SKILL.md")


def pack(archive: Path, files: Mapping[str, str | bytes], *folders: str) -> Traversable:
    """Write an archive of these files below `skills/`, and return that folder in it."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("skills/", "")
        for folder in folders:
            packed.writestr(f"skills/{folder}/", "")
        for path, content in files.items():
            packed.writestr(f"skills/{path}", content)
    return zipfile.Path(archive) / "skills"


def pack_folder(archive: Path, folder: Path) -> Traversable:
    """Pack a folder as it is, empty folders and hidden files included."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"skills/{path.relative_to(folder).as_posix()}")
        packed.writestr("skills/", "")
    return zipfile.Path(archive) / "skills"


async def opened(place: Traversable, **options: Any) -> Snapshot:
    async with PackageSource(place, **options) as source:
        return source.snapshot


# A package, found as Python finds it


@pytest.fixture
def in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a package with two skills that is imported from an archive, and give its name."""
    archive, name = tmp_path / "lib.zip", "packed_for_a_test"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{name}/__init__.py", "")
        packed.writestr(f"{name}/skills/pdf/SKILL.md", skill_md("pdf"))
        packed.writestr(f"{name}/skills/pdf/references/a.md", "from the archive")
        packed.writestr(f"{name}/skills/team/xls/SKILL.md", skill_md("xls"))
        packed.writestr(f"{name}/other/SKILL.md", skill_md("other"))
    monkeypatch.setattr(sys, "path", [str(archive), *sys.path])
    yield name
    sys.modules.pop(name, None)


@pytest.mark.requirement("SDK-06")
async def test_skills_of_a_package_in_an_archive_on_the_path_are_listed_got_and_read(
    in_an_archive: str, tmp_path: Path
) -> None:
    package_files = importlib.resources.files(importlib.import_module(in_an_archive))

    async with PackageSource(package_files / "skills") as source:
        (tmp_path / "lib.zip").unlink()  # All was read when it was entered.
        listed = [entry async for entry in source.list_skills()]

        assert [entry.uri.text for entry in listed] == [PDF.text, "skill://team/xls/SKILL.md"]
        assert await source.get_skill(PDF) == listed[0]
        assert await source.read_file("skill://pdf/references/%61.md") == b"from the archive"
        assert await source.read_file(PDF.text) == skill_md("pdf")
        assert source.place_of(PDF) == f"{tmp_path}/lib.zip/{in_an_archive}/skills/pdf"
        assert source.place_of(SkillUri.build("gone")) == f"{tmp_path}/lib.zip/{in_an_archive}/skills"
        assert source.modified_at(PDF) is None
        assert isinstance(source, LiveSource)
        for uri in ("skill://other/SKILL.md", "skill://pdf/b.md", "skill://pdf/../x", "skill://pdf"):
            with pytest.raises(NotFoundError):
                await source.read_file(uri)


@pytest.mark.requirement("SDK-06")
async def test_skills_of_an_unpacked_package_are_served_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "unpacked_for_a_test"
    write_files(folder, {"__init__.py": ""})
    write_skill(folder / "skills" / "pdf", {"a.md": "old"})
    (folder / "skills" / "pdf" / "empty").mkdir()
    os.utime(folder / "skills" / "pdf" / "SKILL.md", ns=(1, 1_700_000_000_000_000_000))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package_files = importlib.resources.files(importlib.import_module("unpacked_for_a_test"))

    async with PackageSource(package_files / "skills", prefix="acme") as source:
        uri = SkillUri("skill://acme/pdf/SKILL.md")
        before = source.snapshot
        assert before == scan(folder / "skills", prefix="acme")
        assert source.place_of(uri) == str(folder / "skills" / "pdf")
        assert source.modified_at(uri) == 1_700_000_000.0
        write_files(folder, {"skills/pdf/a.md": "new!"})
        assert await source.read_file("skill://acme/pdf/a.md") == b"new!"
        assert await source.wait_for_change(before.revision) is source.snapshot
    sys.modules.pop("unpacked_for_a_test")


async def test_a_namespace_package_spread_over_folders_is_read_as_one(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "pdf", {"a.md": "x"})
    write_skill(tmp_path / "two" / "xls")
    link(tmp_path / "one" / "linked", tmp_path / "two")
    link(tmp_path / "one" / "dangling", "nowhere")

    snapshot = await opened(MultiplexedPath(tmp_path / "one", tmp_path / "two"))

    assert uris(snapshot) == [PDF.text, "skill://xls/SKILL.md"]
    assert codes(snapshot) == {"linked": ["linked-folder"]}


@pytest.mark.parametrize("kind", ["a link", "a FIFO"])
async def test_nothing_but_plain_files_is_taken_from_a_spread_package(tmp_path: Path, kind: str) -> None:
    write_skill(tmp_path / "one" / "pdf")
    write_files(tmp_path, {"two/unrelated": "", "secret": "outside"})
    if kind == "a link":
        link(tmp_path / "one" / "pdf" / "odd", tmp_path / "secret")
    else:
        os.mkfifo(tmp_path / "one" / "pdf" / "odd")

    snapshot = await opened(MultiplexedPath(tmp_path / "one", tmp_path / "two"))

    assert held_back(snapshot) == {"pdf": ["link" if kind == "a link" else "special-file"]}


# Archives under the rules of folders


names = st.sampled_from(["a", "b", "my notes", "é", "node_modules", ".hidden", "A", "skill.md", "x.md"])
places = st.lists(names, min_size=1, max_size=4).map("/".join)
contents = st.sampled_from([b"", b"x", skill_md("a"), skill_md("b"), skill_md("c")])
trees = st.dictionaries(places | places.map(lambda place: f"{place}/SKILL.md"), contents, max_size=8)


@given(files=trees, empty=st.sets(places, max_size=3))
@settings(deadline=None, max_examples=60)
def test_an_archive_of_a_folder_is_published_as_the_folder_is(
    files: dict[str, bytes], empty: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "skills")
        root.mkdir()
        for path, content in files.items():
            if not any(there.is_file() for there in (root / path).parents) and not (root / path).exists():
                write_files(root, {path: content})
        for path in empty:
            if not any(there.is_file() for there in (root / path / "below").parents):
                (root / path).mkdir(parents=True, exist_ok=True)
        place = pack_folder(Path(temporary, "lib.zip"), root)

        snapshot = read_all(PackageSource(place, prefix="acme"))

        assert snapshot == scan(root, prefix="acme")


def read_all(source: PackageSource) -> Snapshot:
    """Open a source, check every file against its digest, and return the snapshot."""

    async def open_and_read_all() -> Snapshot:
        async with source:
            for entry in source.snapshot.entries:
                assert entry.manifest is not None
                for file in entry.manifest.files:
                    file.verify(await source.read_file(file.uri))
            return source.snapshot

    return anyio.run(open_and_read_all)


async def test_folders_are_found_though_the_archive_names_only_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as packed:
        packed.writestr("deep/skills/team/pdf/SKILL.md", skill_md("pdf"))
        packed.writestr("deep/skills/team/pdf//twice.md", "x")

    for place, prefix in (
        (zipfile.Path(tmp_path / "lib.zip"), "deep/skills/"),
        (zipfile.Path(tmp_path / "lib.zip") / "deep" / "skills", ""),
    ):
        snapshot = await opened(place)
        assert uris(snapshot) == [f"skill://{prefix}team/pdf/SKILL.md"]
        assert len(snapshot.entries[0].manifest or ()) == 2


async def test_a_skill_at_the_root_of_the_place_bears_its_name(tmp_path: Path) -> None:
    snapshot = await opened(pack(tmp_path / "lib.zip", {"SKILL.md": skill_md("skills"), "a.md": ""}))

    assert uris(snapshot) == ["skill://skills/SKILL.md"]
    assert snapshot.reports == ()


async def test_a_file_named_almost_like_a_skills_is_remarked_upon(tmp_path: Path) -> None:
    near = {"a/skill.md": "x", "Skill.md": "x", "b/SKILL.md/c": "x", "pdf/SKILL.md": skill_md("pdf")}

    snapshot = await opened(pack(tmp_path / "lib.zip", near))

    assert uris(snapshot) == [PDF.text]
    assert held_back(snapshot) == {"": ["skill-file-case"], "a": ["skill-file-case"]}


async def test_a_link_in_an_archive_sets_its_skill_aside(tmp_path: Path) -> None:
    for place in ("pdf/odd.md", "outside"):
        with zipfile.ZipFile(tmp_path / "lib.zip", "w") as packed:
            packed.writestr("skills/pdf/SKILL.md", skill_md("pdf"))
            odd = zipfile.ZipInfo(f"skills/{place}")
            odd.external_attr = (stat.S_IFLNK | 0o777) << 16
            packed.writestr(odd, "/etc/hostname")

        snapshot = await opened(zipfile.Path(tmp_path / "lib.zip") / "skills")

        assert held_back(snapshot) == ({"pdf": ["link"]} if place == "pdf/odd.md" else {})


async def test_a_name_that_is_a_file_and_a_folder_sets_its_skill_aside(tmp_path: Path) -> None:
    place = pack(tmp_path / "lib.zip", {"pdf/SKILL.md": skill_md("pdf"), "pdf/a": "", "pdf/a/b": ""})

    assert held_back(await opened(place)) == {"pdf": ["path-twins"]}


async def test_names_that_lead_out_of_the_place_lead_nowhere(tmp_path: Path) -> None:
    place = pack(
        tmp_path / "lib.zip",
        {"pdf/SKILL.md": skill_md("pdf"), "../up/SKILL.md": skill_md("up"), "pdf/../../x.md": "x"},
    )

    snapshot = await opened(place)

    assert uris(snapshot) == [PDF.text]
    assert len(snapshot.entries[0].manifest or ()) == 1


async def test_what_lies_too_deep_is_not_looked_at(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 65)
    place = pack(
        tmp_path / "lib.zip",
        {f"{deep}/pdf/SKILL.md": skill_md("pdf"), f"s/{deep}/x": "", "s/SKILL.md": skill_md("s")},
    )

    snapshot = await opened(place)

    assert {len(place.split("/")): codes for place, codes in held_back(snapshot).items()} == {
        1: ["unreadable"],
        65: ["unreadable"],
    }


@pytest.mark.requirement("LIM-03")
@pytest.mark.parametrize("over", ["files", "bytes", "one file"])
async def test_a_skill_beyond_the_limits_is_not_served_and_that_is_said(tmp_path: Path, over: str) -> None:
    big: dict[str, bytes] = {
        "files": {f"{number}.md": b"" for number in range(MAX_FILES)},
        "bytes": {"a.bin": bytes(MAX_TOTAL_SIZE // 2), "b.bin": bytes(MAX_TOTAL_SIZE // 2)},
        "one file": {"a.bin": bytes(MAX_TOTAL_SIZE + 1)},
    }[over]
    files = {f"big/{path}": content for path, content in big.items()}
    inner = {"big/inner/SKILL.md": skill_md("inner"), "big/inner/a.md": b"x"}
    place = pack(tmp_path / "lib.zip", {"big/SKILL.md": skill_md("big"), **files, **inner})

    async with PackageSource(place) as source:
        assert uris(source.snapshot) == ["skill://big/inner/SKILL.md"]
        assert held_back(source.snapshot) == {"big": ["too-many-files" if over == "files" else "too-large"]}
        assert await source.read_file("skill://big/inner/a.md") == b"x"


async def test_a_package_with_too_much_in_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = pack(tmp_path / "lib.zip", {f"{name}/SKILL.md": skill_md(name) for name in "abc"})
    monkeypatch.setattr(package, "MAX_PACKAGE_BYTES", 2 * len(skill_md("a")))

    with pytest.raises(SourceError):
        await opened(place)


# Trouble


async def test_one_damaged_file_costs_its_skill_and_no_other(tmp_path: Path) -> None:
    place = pack(
        tmp_path / "lib.zip",
        {"bad/SKILL.md": skill_md("bad"), "bad/a.md": b"unmistakable" * 9, "pdf/SKILL.md": skill_md("pdf")},
    )
    with zipfile.ZipFile(tmp_path / "lib.zip") as packed:
        start = packed.getinfo("skills/bad/a.md").header_offset
    content = bytearray((tmp_path / "lib.zip").read_bytes())
    content[start + 50] ^= 0xFF
    (tmp_path / "lib.zip").write_bytes(content)

    snapshot = await opened(place)

    assert uris(snapshot) == [PDF.text]
    assert held_back(snapshot) == {"bad": ["unreadable"]}
    assert str(tmp_path) not in str(snapshot.reports)


@pytest.mark.parametrize("path", ["missing", "skills/pdf/SKILL.md"])
async def test_what_is_no_folder_is_refused(tmp_path: Path, path: str) -> None:
    pack(tmp_path / "lib.zip", {"pdf/SKILL.md": skill_md("pdf")})
    source = PackageSource(zipfile.Path(tmp_path / "lib.zip", path))

    with pytest.raises(SourceError) as caught:
        async with source:
            raise AssertionError("it must not open")

    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(SourceError):
        _ = source.snapshot


class Odd:
    """A stranger's `Traversable`, held in memory, parts of which cannot be read."""

    def __init__(self, name: str, members: "Mapping[str, Odd | bytes] | None" = None) -> None:
        self.name = name
        self._members = members

    def iterdir(self) -> "Iterator[Any]":
        if self._members is None:
            raise PermissionError(13, "no", "/private/place")
        return iter([m if isinstance(m, Odd) else Leaf(n, m) for n, m in self._members.items()])

    def is_dir(self) -> bool:
        return True

    def is_file(self) -> bool:
        return False


class Leaf:
    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self._content = content

    def is_dir(self) -> bool:
        if self.name == "untold":
            raise PermissionError(13, "no", "/private/place")
        return False

    def is_file(self) -> bool:
        return True

    def open(self, mode: str) -> IO[bytes]:
        assert mode == "rb"
        return BytesIO(self._content)


async def test_folders_that_cannot_be_listed_are_reported_where_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree: Any = Odd(
        "skills",
        {
            "pdf": Odd("pdf", {"SKILL.md": skill_md("pdf"), "a.md": b"x"}),
            "xls": Odd("xls", {"SKILL.md": skill_md("xls"), "closed": Odd("closed")}),
            "doc": Odd("doc", {"SKILL.md": skill_md("doc"), "untold": b"x"}),
            "closed": Odd("closed"),
        },
    )

    with caplog.at_level(logging.INFO):
        async with PackageSource(tree) as source:
            assert await source.read_file("skill://pdf/a.md") == b"x"

    assert uris(source.snapshot) == [PDF.text]
    unreadable = ["unreadable"]
    assert held_back(source.snapshot) == {"closed": unreadable, "doc": unreadable, "xls": unreadable}
    assert "/private/place" not in str(source.snapshot.reports)
    assert "/private/place" in caplog.text


async def test_a_place_that_cannot_be_listed_at_all_is_a_source_error() -> None:
    closed: Any = Odd("skills")

    with pytest.raises(SourceError) as caught:
        await opened(closed)

    assert "/private/place" not in str(caught.value)


# Among other sources, and at an exact path


async def test_a_package_is_read_once_and_may_be_entered_again(tmp_path: Path) -> None:
    source = PackageSource(pack(tmp_path / "lib.zip", {"pdf/SKILL.md": skill_md("pdf")}))
    async with source:
        first = source.snapshot
    (tmp_path / "lib.zip").unlink()

    async with CombinedSource([source]) as alone, CombinedSource([source, MemorySource()]) as catalog:
        assert source.snapshot is first
        assert alone.snapshot.entries is catalog.snapshot.entries is first.entries
        assert await catalog.read_file(PDF.text) == skill_md("pdf")


@pytest.mark.parametrize("packed", [True, False])
async def test_a_package_may_hold_one_skill_at_an_exact_path(tmp_path: Path, packed: bool) -> None:
    files = {"SKILL.md": skill_md("refunds"), "a.md": "x", "inner/SKILL.md": skill_md("inner")}
    write_files(tmp_path / "skills", files)
    place: Traversable = pack(tmp_path / "lib.zip", files) if packed else tmp_path / "skills"

    async with PackageSource(place, at="acme/refunds", scheme="docs") as source:
        assert uris(source.snapshot) == [
            "docs://acme/refunds/SKILL.md",
            "docs://acme/refunds/inner/SKILL.md",
        ]
        assert await source.read_file("docs://acme/refunds/a.md") == b"x"
    with pytest.raises(InvalidSkillError) as caught:
        await opened(place, at="acme/other")
    assert str(tmp_path) not in str(caught.value)


bad_words: list[Callable[[Traversable], PackageSource]] = [
    lambda place: PackageSource(place, prefix="a/../b"),
    lambda place: PackageSource(place, at="a//b"),
    lambda place: PackageSource(place, scheme="file"),
]


@pytest.mark.parametrize("make", bad_words)
@pytest.mark.parametrize("packed", [True, False])
def test_words_that_cannot_be_part_of_a_uri_are_refused_at_once(
    tmp_path: Path, packed: bool, make: Callable[[Traversable], PackageSource]
) -> None:
    with pytest.raises(InvalidUriError):
        make(pack(tmp_path / "lib.zip", {}) if packed else tmp_path)
