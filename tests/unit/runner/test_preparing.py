"""Preparing a run: the script is one of those listed, and every byte is the listing's."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import skill_md
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import (
    INVALID_PARAMS,
    DigestMismatchError,
    InvalidScriptArgumentsError,
    InvalidSkillError,
    LimitError,
    NotFoundError,
    ScriptNotFoundError,
    SizeMismatchError,
)
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Coverage, Manifest, ManifestFile, digest_of
from skillwire.core.uri import SkillUri
from skillwire.runner.interface import ScriptInterface, ScriptRun
from skillwire.runner.preparation import CONCURRENT_READS, find_script, interfaces_of, prepare, scripts_of

URI = SkillUri.build("acme/weather")
SKILL = skill_md("weather")
DECLARED = json.dumps(
    {"scripts": {"tell.py": {"arguments": {"required": ["city"]}, "secrets": ["KEY"]}}}
).encode()
FILES = {
    "SKILL.md": SKILL,
    "scripts/tell.py": b"print(1)\n",
    "scripts/other.sh": b"echo\n",
    "scripts/lib/inner.py": b"",
    "scripts/manifest.json": DECLARED,
    "data/ä b.txt": b"text",
}


class RecordingReader:
    """Files of a skill that can be read by URI, and a note of what was."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {URI.join(path): content for path, content in files.items()}
        self.read_uris: list[str] = []
        self.at_once = self.most_at_once = 0

    async def read(self, uri: str) -> bytes:
        self.read_uris.append(uri)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await anyio.lowlevel.checkpoint()
        self.at_once -= 1
        if uri not in self.files:
            raise NotFoundError("it is gone", uri=uri)
        return self.files[uri]


def entry_of(files: Mapping[str, bytes]) -> SkillEntry:
    lines = [ManifestFile.of(URI.join(path), content) for path, content in files.items()]
    return SkillEntry(URI, parse_skill_md(SKILL).frontmatter, Manifest.of(lines))


def dynamic_entry_of(files: Mapping[str, bytes]) -> SkillEntry:
    others = tuple(URI.join(path) for path in files if path != "SKILL.md")
    return SkillEntry(URI, parse_skill_md(SKILL).frontmatter, None, dynamic_files=others)


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize("make", [entry_of, dynamic_entry_of])
def test_scripts_are_the_files_right_under_scripts(
    make: Callable[[Mapping[str, bytes]], SkillEntry],
) -> None:
    assert sorted(scripts_of(make(FILES))) == ["scripts/other.sh", "scripts/tell.py"]


def test_scripts_of_an_archive_are_known_once_it_is_unpacked() -> None:
    archive = Manifest.of([ManifestFile.of(URI.root + "/weather.zip", b"PK")], Coverage.ARCHIVE)
    packed = SkillEntry(URI, parse_skill_md(SKILL).frontmatter, archive)

    assert scripts_of(packed) == ()
    assert len(scripts_of(replace(packed, unpacked=entry_of(FILES).manifest))) == 2


@pytest.mark.requirement("EXEC-06")
@pytest.mark.parametrize("wanted", ["plot.py", "scripts/plot.py", "plot", "draw"])
def test_a_script_is_found_by_name_path_stem_and_alias(wanted: str) -> None:
    paths = ["scripts/plot.py", "scripts/load.py"]

    assert find_script(paths, wanted, {"scripts/plot.py": ["draw"]}) == "scripts/plot.py"


@pytest.mark.requirement("EXEC-06")
def test_what_may_be_several_scripts_is_none_and_they_are_named() -> None:
    with pytest.raises(ScriptNotFoundError) as caught:
        find_script(["scripts/plot.py", "scripts/plot.sh"], "plot")

    assert caught.value.candidates == ("scripts/plot.py", "scripts/plot.sh")
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("EXEC-15")
@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    "wanted",
    [
        *(
            None,
            5,
            ["tell.py"],
            b"tell.py",
            "",
            ".",
            "..",
            "SKILL.md",
            "manifest.json",
            "scripts/manifest.json",
        ),
        *("../scripts/tell.py", "scripts/../scripts/tell.py", "/scripts/tell.py", "scripts//tell.py"),
        *("lib/inner.py", "scripts/lib/inner.py", "inner", "tell.py\0", "tell.py ", "TELL.PY", "tell.py;id"),
        *(
            "skill://acme/weather/scripts/tell.py",
            "scripts%2Ftell.py",
            "scripts\\tell.py",
            "/bin/sh",
            "x" * 10**6,
        ),
    ],
    ids=lambda wanted: repr(wanted)[:30],
)
async def test_whatever_is_not_listed_is_not_found_and_nothing_is_read(wanted: object) -> None:
    reader = RecordingReader(FILES)

    with pytest.raises(ScriptNotFoundError) as caught:
        await prepare(entry_of(FILES), wanted, {"city": "Oslo"}, reader.read)

    assert reader.read_uris == []
    assert len(str(caught.value)) < 300
    assert len(caught.value.script) <= 256


@given(st.text(max_size=40))
def test_only_scripts_of_the_skill_are_ever_found(wanted: str) -> None:
    paths = scripts_of(entry_of(FILES))

    try:
        assert find_script(paths, wanted) in paths
    except ScriptNotFoundError as error:
        assert set(error.candidates) <= set(paths)


@pytest.mark.requirement("EXEC-15")
async def test_a_run_has_every_file_of_the_skill_and_what_the_script_declares() -> None:
    reader = RecordingReader(FILES)

    run = await prepare(
        entry_of(FILES), "tell", {"city": "Oslo"}, reader.read, origin="acme", approval="once"
    )

    assert run == ScriptRun(
        skill=URI.text,
        script="scripts/tell.py",
        files=FILES,
        arguments={"city": "Oslo"},
        interface=ScriptInterface(arguments={"required": ["city"]}, secrets=("KEY",)),
        origin="acme",
        approval="once",
    )
    assert run.digest == digest_of(FILES["scripts/tell.py"])
    assert sorted(reader.read_uris) == sorted(URI.join(path) for path in FILES)


async def test_a_script_may_go_by_an_alias() -> None:
    aliases = {"scripts/other.sh": ["else"]}

    run = await prepare(entry_of(FILES), "else", {}, RecordingReader(FILES).read, aliases=aliases)

    assert run.script == "scripts/other.sh"
    assert run.interface == ScriptInterface()


@pytest.mark.requirement("EXEC-15")
@pytest.mark.requirement("INT-02")
@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize(("change", "error"), [(b"!", SizeMismatchError), (b"", DigestMismatchError)])
async def test_no_run_is_made_of_bytes_that_differ_from_the_listing_anywhere(
    path: str, change: bytes, error: type[Exception]
) -> None:
    content = FILES[path]
    other = content + change if change else bytes(len(content))
    reader = RecordingReader({**FILES, path: other})
    if other == content:
        return  # An empty file has no other bytes of its length.

    with pytest.raises(error):
        await prepare(entry_of(FILES), "tell", {"city": "Oslo"}, reader.read)


async def test_a_skill_without_digests_is_taken_as_it_is() -> None:
    run = await prepare(dynamic_entry_of(FILES), "tell", {"city": "Oslo"}, RecordingReader(FILES).read)

    assert run.files == FILES


async def test_where_only_the_skill_file_is_promised_it_is_held_to_it() -> None:
    line = ManifestFile.of(URI.text, SKILL)
    entry = replace(dynamic_entry_of(FILES), manifest=Manifest.of([line], Coverage.SKILL_FILE))

    assert (await prepare(entry, "tell", {"city": "Oslo"}, RecordingReader(FILES).read)).files == FILES
    with pytest.raises(DigestMismatchError):
        await prepare(entry, "tell", {}, RecordingReader({**FILES, "SKILL.md": bytes(len(SKILL))}).read)


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize("arguments", [None, [], "x", {}, {"town": "Oslo"}])
async def test_arguments_that_do_not_fit_make_no_run(arguments: object) -> None:
    with pytest.raises(InvalidScriptArgumentsError) as caught:
        await prepare(entry_of(FILES), "tell.py", arguments, RecordingReader(FILES).read)

    assert caught.value.script == "scripts/tell.py"


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(
    "declared", [b"{", b'{"scripts": {"tell.py": {"arguments": {"type": 5}}}}', b"[" * 99_999]
)
async def test_a_script_whose_description_is_broken_is_not_run(declared: bytes) -> None:
    files = {**FILES, "scripts/manifest.json": declared}

    with pytest.raises(InvalidScriptArgumentsError):
        await prepare(entry_of(files), "tell.py", {"city": "Oslo"}, RecordingReader(files).read)


async def test_a_skill_with_too_many_files_is_refused_before_any_is_read() -> None:
    files = {**FILES, **{f"data/{number}": b"" for number in range(MAX_FILES)}}

    for entry in (entry_of(files), dynamic_entry_of(files)):
        reader = RecordingReader(files)
        with pytest.raises(LimitError):
            await prepare(entry, "tell", {"city": "Oslo"}, reader.read)
        assert reader.read_uris == []


async def test_a_skill_that_is_too_large_is_refused_as_soon_as_that_is_known() -> None:
    third = bytes(MAX_TOTAL_SIZE // 3)
    files = {**FILES, **{f"data/{number}": third for number in range(40)}}
    reader, unread = RecordingReader(files), RecordingReader(files)

    with pytest.raises(LimitError):
        await prepare(entry_of(files), "tell", {"city": "Oslo"}, unread.read)
    with pytest.raises(LimitError):
        await prepare(dynamic_entry_of(files), "tell", {"city": "Oslo"}, reader.read)

    assert unread.read_uris == []
    assert len(reader.read_uris) < len(files)


async def test_files_are_read_a_few_at_a_time() -> None:
    files = {**FILES, **{f"data/{number}": b"" for number in range(100)}}
    reader = RecordingReader(files)

    await prepare(entry_of(files), "tell", {"city": "Oslo"}, reader.read)

    assert 1 < reader.most_at_once <= CONCURRENT_READS


async def test_a_failure_to_read_reaches_the_caller_as_it_is() -> None:
    async def read(uri: str) -> bytes:
        raise ConnectionResetError(uri)

    with pytest.raises(ConnectionResetError):
        await prepare(entry_of(FILES), "tell", {}, read)


async def test_a_file_that_is_gone_makes_no_run() -> None:
    with pytest.raises(NotFoundError):
        await prepare(entry_of(FILES), "tell", {}, RecordingReader({"SKILL.md": SKILL}).read)


async def test_a_file_in_the_place_of_a_folder_makes_no_run() -> None:
    files = {**FILES, "data": b""}

    with pytest.raises(InvalidSkillError):
        await prepare(entry_of(files), "tell", {"city": "Oslo"}, RecordingReader(files).read)


async def test_what_is_declared_can_be_known_without_reading_the_rest() -> None:
    reader = RecordingReader(FILES)

    interfaces = await interfaces_of(entry_of(FILES), reader.read)

    assert interfaces["scripts/tell.py"].secrets == ("KEY",)
    assert reader.read_uris == [URI.join("scripts/manifest.json")]


async def test_where_nothing_is_declared_nothing_is_known() -> None:
    files = {"SKILL.md": SKILL, "scripts/tell.py": b""}

    assert await interfaces_of(entry_of(files), RecordingReader(files).read) == {}
    assert await interfaces_of(dynamic_entry_of(FILES), RecordingReader({}).read) == {}


async def test_what_is_declared_is_held_to_the_listing_too() -> None:
    reader = RecordingReader({**FILES, "scripts/manifest.json": b'{"scripts": {}}'})

    with pytest.raises(SizeMismatchError):
        await interfaces_of(entry_of(FILES), reader.read)
