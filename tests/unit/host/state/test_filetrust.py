"""Trusted files: the user's word is for exactly the bytes that were seen, and kept outside the project."""

import os
from pathlib import Path

import pytest

from skillwire.core.manifest import digest_of
from skillwire.host.state.trust import FILES_FILE, MAX_FILES, FileTrust

SEEN, OTHER = digest_of(b"{}"), digest_of(b"{} ")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "project" / ".mcp.json"
    path.parent.mkdir()
    path.write_bytes(b"{}")
    return path


def test_nothing_is_trusted_before_the_user_says_so_and_looking_makes_nothing(
    state: Path, config: Path
) -> None:
    trust = FileTrust(state)

    assert not trust.is_trusted(config, SEEN) and not trust.is_known(config)
    assert not state.exists()


def test_trust_outlives_the_program_and_ends_with_the_first_other_byte(state: Path, config: Path) -> None:
    FileTrust(state).trust(config, SEEN)

    again = FileTrust(state)
    assert again.is_trusted(config, SEEN) and again.is_known(config)
    assert not again.is_trusted(config, OTHER)
    assert not again.is_trusted(config.with_name("other.json"), SEEN)


def test_what_is_no_longer_trusted_is_forgotten(state: Path, config: Path) -> None:
    FileTrust(state).trust(config, SEEN)

    forgotten = [FileTrust(state).distrust(config) for _ in range(2)]

    assert forgotten == [True, False] and not FileTrust(state).is_known(config)


def test_a_link_to_a_trusted_file_is_that_file_and_no_other(
    state: Path, config: Path, tmp_path: Path
) -> None:
    FileTrust(state).trust(config, SEEN)
    link = tmp_path / "link.json"
    link.symlink_to(config)

    assert FileTrust(state).is_trusted(link, SEEN)
    assert not FileTrust(state).is_trusted(tmp_path / "copy.json", SEEN)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"version": 2, "files": []}',
        b'{"version": 1, "files": [["relative", "sha256:' + b"0" * 64 + b'"]]}',
        b'{"version": 1, "files": [["/a"]]}',
        b'{"version": 1, "files": [["/a", "md5:0"]]}',
    ],
)
def test_a_file_of_trust_that_someone_else_wrote_says_nothing(
    state: Path, config: Path, content: bytes
) -> None:
    FileTrust(state).trust(config, SEEN)
    (state / FILES_FILE).write_bytes(content)
    trust = FileTrust(state)

    assert not trust.is_trusted(config, SEEN)
    assert trust.tampering is not None and trust.tampering.code == "state-tampered"


def test_what_was_trusted_longest_ago_is_forgotten_first(state: Path, tmp_path: Path) -> None:
    trust = FileTrust(state)
    paths = [tmp_path / f"{number}.json" for number in range(MAX_FILES + 1)]

    for path in paths[:2]:
        trust.trust(path, SEEN)
    trust.trust(paths[0], SEEN)  # Seen again, so it is the newer one.
    for path in paths[2:]:
        trust.trust(path, SEEN)

    assert not trust.is_trusted(paths[1], SEEN) and trust.is_trusted(paths[0], SEEN)


def test_a_path_that_is_not_text_can_be_trusted(state: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))

    FileTrust(state).trust(path, SEEN)

    assert FileTrust(state).is_trusted(path, SEEN)
