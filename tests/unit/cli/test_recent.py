"""The table of typed targets: bounded, sealed, and never in the way of a command."""

from pathlib import Path

import pytest

from skillwire.cli.recent import FILE, LONGEST_TARGET, MOST_TARGETS, RecentTargets, TargetKind, TypedTarget


def url(label: str, address: str = "http://127.0.0.1:9/mcp") -> TypedTarget:
    return TypedTarget(TargetKind.URL, label, (address,))


def test_the_newest_targets_are_kept_and_the_oldest_forgotten(tmp_path: Path) -> None:
    recent = RecentTargets(tmp_path)

    for number in range(MOST_TARGETS + 1):
        recent.remember([url(f"server-{number}")])

    assert recent.labelled("server-0") is None
    assert recent.labelled("server-1") == url("server-1")


def test_a_label_means_what_was_typed_last_unless_that_never_answered(tmp_path: Path) -> None:
    recent = RecentTargets(tmp_path)
    recent.remember([url("a", "http://127.0.0.1:9/one")])

    recent.remember([url("a", "http://127.0.0.1:9/typo"), url("b")], failed=["a", "b"])
    first = recent.labelled("a")
    recent.remember([url("a", "http://127.0.0.1:9/two")])

    assert first == url("a", "http://127.0.0.1:9/one")
    assert recent.labelled("a") == url("a", "http://127.0.0.1:9/two")
    assert recent.labelled("b") == url("b")


def test_commands_and_folders_count_only_where_they_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent = RecentTargets(tmp_path / "state")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    command = TypedTarget(TargetKind.COMMAND, "team", ("team", "--serve"), str(here))
    recent.remember([command, TypedTarget(TargetKind.FOLDER, "", ("/skills",), str(here))])

    monkeypatch.chdir(here)
    found = recent.labelled("team"), recent.folders()
    monkeypatch.chdir(there)
    elsewhere = recent.labelled("team"), recent.folders()

    assert found == (command, [Path("/skills")])
    assert elsewhere == (None, [])


@pytest.mark.parametrize("content", [b"", b"{}", b"skillwire-sealed-1 1 0\n{}"])
def test_a_table_that_something_else_wrote_is_empty_and_can_be_used_again(
    tmp_path: Path, content: bytes
) -> None:
    RecentTargets(tmp_path).remember([url("a")])
    (tmp_path / FILE).write_bytes(content)

    recent = RecentTargets(tmp_path)

    assert recent.labelled("a") is None
    recent.remember([url("b")])
    assert recent.labelled("b") == url("b")


def test_what_is_too_long_or_cannot_be_kept_fails_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    RecentTargets(blocked / "state").remember([url("a")])
    RecentTargets(tmp_path).remember([url("a", "http://127.0.0.1:9/" + "x" * LONGEST_TARGET)])

    assert RecentTargets(tmp_path).labelled("a") is None
