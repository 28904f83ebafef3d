"""`skills.lock`: the same bytes for the same approvals, and nothing that is not exactly a lock."""

import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approving import FILES, LOAD, WHEN, approval, manifest, mode_of, origin, skill_id
from commands import names_in
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.host.approval.lock import (
    MAX_LOCK_BYTES,
    InvalidLockError,
    LockDifference,
    Pins,
    lock_bytes,
    parse_lock,
    read_lock,
    write_lock,
)
from skillwire.host.model.approval import Approval, Grant
from skillwire.host.model.origin import Origin, OriginKind, SkillId

BOTH = [approval(), approval("billing", grants=frozenset(Grant))]


def refused(content: str | bytes) -> InvalidLockError:
    with pytest.raises(InvalidLockError) as caught:
        parse_lock(content.encode() if isinstance(content, str) else content)
    assert caught.value.refusal == "lock-invalid"
    return caught.value


# what is written


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = write_lock(tmp_path / "skills.lock", BOTH)

    lock = read_lock(tmp_path / "skills.lock")

    assert lock.approvals == (BOTH[1], BOTH[0])
    assert lock.content == content == (tmp_path / "skills.lock").read_bytes()
    assert names_in(tmp_path) == ["skills.lock"]


@pytest.mark.requirement("APPR-10")
def test_a_lock_reads_line_by_line() -> None:
    skill, script = manifest().files

    assert lock_bytes([approval(grants=frozenset({Grant.SCRIPTS, Grant.LOAD}))]).decode() == (
        "# Approved skills, each with every file it has. Written by skillwire; review it as you would code.\n"
        "version = 1\n"
        "\n"
        "[[skill]]\n"
        'label = "acme"\n'
        f'fingerprint = "{origin().fingerprint}"\n'
        'uri = "skill://acme/refunds/SKILL.md"\n'
        'grants = ["load", "scripts"]\n'
        "approved_at = 2026-09-08T12:00:00Z\n"
        'approved_by = "dana"\n'
        "files = [\n"
        f'  {{ uri = "{skill.uri}", digest = "{skill.digest}", size = 7 }},\n'
        f'  {{ uri = "{script.uri}", digest = "{script.digest}", size = 5 }},\n'
        "]\n"
    )


def test_the_order_of_approvals_makes_no_difference() -> None:
    assert lock_bytes(BOTH) == lock_bytes(reversed(BOTH))


def test_an_empty_lock_is_a_lock() -> None:
    assert parse_lock(lock_bytes([])).approvals == ()


def test_a_reader_of_the_file_sees_every_character() -> None:
    content = lock_bytes([approval(by='dana \u202e\u200b\U000e0041\x7f\x1b[2J "q" \\ ñ 名')]).decode()

    assert 'approved_by = "dana \\u202E\\u200B\\U000E0041\\u007F\\u001B[2J \\"q\\" \\\\ ñ 名"\n' in content


def test_times_are_written_in_utc() -> None:
    east = WHEN.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert lock_bytes([replace(approval(), granted_at=east)]) == lock_bytes([approval()])


@pytest.mark.parametrize(
    "approvals",
    [
        [approval(), approval(grants=frozenset(Grant))],
        [approval(of=Origin(OriginKind.LOCAL, "acme", "sha256:folder"))],
        [approval(of=origin("\ud800"))],
        [replace(approval(), granted_at=datetime(2026, 9, 8))],
        [replace(approval(), skill=skill_id("billing"))],
        [approval(files={**FILES, **{f"{'x' * 200}{number}": b"" for number in range(20_000)}})],
    ],
    ids=["twice", "local", "no-character", "no-offset", "other-skill", "too-large"],
)
def test_what_no_lock_can_hold_is_refused_and_the_old_lock_stays(
    tmp_path: Path, approvals: list[Approval]
) -> None:
    old = write_lock(tmp_path / "skills.lock", BOTH)

    with pytest.raises(InvalidLockError):
        write_lock(tmp_path / "skills.lock", approvals)

    assert (tmp_path / "skills.lock").read_bytes() == old
    assert names_in(tmp_path) == ["skills.lock"]


def test_a_lock_keeps_its_permissions_and_a_new_one_has_those_of_any_file(tmp_path: Path) -> None:
    path, plain = tmp_path / "skills.lock", tmp_path / "plain"
    plain.write_text("")
    write_lock(path, BOTH)
    assert mode_of(path) == mode_of(plain)

    path.chmod(0o640)
    write_lock(path, [])
    assert mode_of(path) == 0o640


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "profile").write_bytes(lock_bytes(BOTH))
    (tmp_path / "skills.lock").symlink_to("profile")

    with pytest.raises(InvalidLockError):
        read_lock(tmp_path / "skills.lock")
    with pytest.raises(InvalidLockError):
        write_lock(tmp_path / "skills.lock", [])

    assert (tmp_path / "profile").read_bytes() == lock_bytes(BOTH)
    assert (tmp_path / "skills.lock").is_symlink()


def test_a_missing_lock_a_folder_and_a_pipe_are_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "gone", tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidLockError) as caught:
            read_lock(path)
        assert str(tmp_path) not in str(caught.value)


def test_a_lock_in_a_folder_that_is_gone_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidLockError):
        write_lock(tmp_path / "gone" / "skills.lock", [])


# what is read

GOOD = lock_bytes([approval()]).decode()


@pytest.mark.requirement("APPR-10")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version = 1", ""),
        ("version = 1", "version = 2"),
        ("version = 1", "version = true"),
        ("version = 1", 'version = "1"'),
        ("version = 1", "version = 1\nfrozen = false"),
        ("version = 1", 'version = 1\nskill = "all"\n[other]'),
        ('label = "acme"\n', ""),
        ('label = "acme"', 'label = ""'),
        ('label = "acme"', 'label = ["acme"]'),
        ('label = "acme"', 'label = "acme"\ntrusted = true'),
        ('uri = "skill://acme/refunds/SKILL.md"\n', 'uri = "skill://acme/%72efunds/SKILL.md"\n'),
        ('uri = "skill://acme/refunds/SKILL.md"\n', 'uri = "skill://acme/refunds"\n'),
        ('uri = "skill://acme/refunds/SKILL.md"\n', 'uri = "file:///etc/SKILL.md"\n'),
        ('uri = "skill://acme/refunds/SKILL.md"\n', 'uri = "skill://acme/other/SKILL.md"\n'),
        ('grants = ["load"]', 'grants = ["everything"]'),
        ('grants = ["load"]', 'grants = "load"'),
        ('grants = ["load"]', "grants = [1]"),
        ('grants = ["load"]', 'grants = ["load", "load"]'),
        ("2026-09-08T12:00:00Z", "2026-09-08T12:00:00"),
        ("2026-09-08T12:00:00Z", '"2026-09-08T12:00:00Z"'),
        ("2026-09-08T12:00:00Z", "2026-09-08"),
        ('approved_by = "dana"', "approved_by = 7"),
        ("digest = ", "hash = "),
        ("sha256:", "sha1:"),
        ("size = 7", "size = -7"),
        ("size = 7", "size = true"),
        ("size = 7", "size = 7.0"),
        ("size = 7", "size = 99999999999999999999"),
        ("size = 7", "size = 7, executable = true"),
        ("refunds/scripts/run.sh", "refunds/SKILL.md"),
        ("refunds/scripts/run.sh", "other/run.sh"),
        ("refunds/scripts/run.sh", "refunds/../other/run.sh"),
        ("files = [", "files = [7,"),
        ("[[skill]]", "[skill]"),
        ("[[skill]]", "[[skill"),
    ],
)
def test_a_lock_that_is_wrong_anywhere_is_refused_as_a_whole(old: str, new: str) -> None:
    assert old in GOOD

    assert len(str(refused(GOOD.replace(old, new)))) < 400


def test_every_line_of_a_file_list_counts() -> None:
    without = "".join(
        line for line in GOOD.splitlines(keepends=True) if 'refunds/SKILL.md", digest' not in line
    )

    assert "does not list" in str(refused(without))


def test_a_skill_that_is_there_twice_is_refused() -> None:
    table = GOOD[GOOD.index("[[skill]]") :]

    assert "skill 2" in str(refused(GOOD + table.replace('["load"]', '["load", "scripts"]')))


def test_other_bytes_than_toml_are_refused() -> None:
    for content in (b"\xff\xfe", b"\0" * 10, b"{}", GOOD.encode("utf-16"), b"version = 1\x1b[2J"):
        assert "\x1b" not in str(refused(content))


def test_a_lock_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    content = b"# " + b"x" * MAX_LOCK_BYTES

    refused(content)
    (tmp_path / "skills.lock").write_bytes(content)
    with pytest.raises(InvalidLockError):
        read_lock(tmp_path / "skills.lock")


@pytest.mark.parametrize(
    "bomb",
    [
        "a." * 20_000 + "a = 1",
        "[" + "a." * 20_000 + "a]",
        '"a".' * 20_000 + "a = 1",
        "'a' . " * 20_000 + "a = 1",
        "x = { " + "a." * 20_000 + "a = 1 }",
        'x = { y = """\n""", ' + '"a".' * 20_000 + "a = 1 }",
        'x = "\\"" # "\n' + "a." * 20_000 + "a = 1",
    ],
    ids=["bare", "table", "quoted", "spaced", "inline", "several-lines", "after-comment"],
)
def test_a_key_of_very_many_parts_never_reaches_the_parser(bomb: str) -> None:
    assert re.search(r"parts|multi-line", str(refused("version = 1\n" + bomb)))


@pytest.mark.parametrize(
    "bomb",
    [
        "a = " + "[" * 100_000,
        "a = " + "{ a = " * 100_000,
        '\\"' * 50_000,
        '"' + '\\"' * 50_000,
        "a = " + "9" * 10**6,
    ],
    ids=["lists", "tables", "quotes", "string", "number"],
)
def test_a_lock_that_is_made_to_exhaust_the_parser_is_refused_soon(bomb: str) -> None:
    started = time.process_time()

    refused("version = 1\n" + bomb)

    assert time.process_time() - started < 10


def test_dots_in_strings_and_comments_are_no_keys() -> None:
    dots = "." * 100

    lock = parse_lock(GOOD.replace('"dana"', f'"{dots}" # {dots}').encode())

    assert lock.approvals[0].granted_by == dots


# what is made of it


@pytest.mark.requirement("APPR-10")
def test_a_pin_is_found_by_label_endpoint_and_uri_together() -> None:
    pins = Pins(parse_lock(lock_bytes(BOTH)))

    assert pins.find(skill_id()) == approval()
    assert pins.find(skill_id(of=origin("umbrella"))) is None
    assert pins.find(skill_id(of=origin(endpoint="https://elsewhere.example/mcp"))) is None
    assert pins.find(skill_id("reports")) is None
    assert pins.find(SkillId(Origin(OriginKind.LOCAL, "acme", origin().fingerprint), skill_id().uri)) is None
    assert len(pins) == 2
    assert Pins(None).find(skill_id()) is None


def test_a_difference_names_what_was_added_removed_and_changed() -> None:
    before = parse_lock(lock_bytes([approval(), approval("billing"), approval("same")]))
    changed = approval(grants=LOAD | {Grant.SCRIPTS})
    after = parse_lock(lock_bytes([changed, approval("reports"), approval("same")]))

    assert LockDifference.between(before, after) == LockDifference(
        (approval("reports"),), (approval("billing"),), ((approval(), changed),)
    )
    assert LockDifference.between(None, before).added == before.approvals
    assert LockDifference.between(before, before).is_empty


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
PATHS = st.lists(st.text("abc.-_~", min_size=1, max_size=5), min_size=1, max_size=3).map("/".join)
DIGESTS = st.binary(min_size=1, max_size=4)
SIZES = st.integers(0, 2**63 - 1)


@st.composite
def approvals(draw: st.DrawFn) -> Approval:
    name = draw(st.sampled_from(["refunds", "billing", "a-b"]))
    where = origin(draw(TEXT.filter(bool)), draw(TEXT))
    root = f"skill://acme/{name}/"
    paths = {"SKILL.md", *draw(st.sets(PATHS.filter(lambda path: not {".", ".."} & set(path.split("/")))))}
    files = [replace(ManifestFile.of(root + path, draw(DIGESTS)), size=draw(SIZES)) for path in sorted(paths)]
    when = draw(st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC)))
    grants = draw(st.frozensets(st.sampled_from(Grant)))
    return Approval(skill_id(name, of=where), Manifest.of(files), grants, when, draw(TEXT))


@settings(max_examples=60, deadline=None)
@given(st.lists(approvals(), max_size=4, unique_by=lambda approval: approval.skill), st.randoms())
def test_any_approvals_survive_the_way_through_a_lock(given_ones: list[Approval], chance: Random) -> None:
    content = lock_bytes(given_ones)
    shuffled = list(given_ones)
    chance.shuffle(shuffled)

    lock = parse_lock(content)

    assert {found.skill: found for found in lock.approvals} == {one.skill: one for one in given_ones}
    assert lock_bytes(lock.approvals) == lock_bytes(shuffled) == content


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | TEXT.map(str.encode), st.integers(0, len(GOOD)))
def test_whatever_is_written_into_a_lock_gives_a_lock_or_one_clear_error(noise: bytes, position: int) -> None:
    try:
        parse_lock(GOOD[:position].encode() + noise + GOOD[position:].encode())
    except InvalidLockError as error:
        assert str(error).isprintable()
