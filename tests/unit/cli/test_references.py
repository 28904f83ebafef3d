"""Which words may be offered to a shell, and what becomes of a file that something else wrote."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approving import entry, skill_id
from skillwire.cli.recent import MOST_PROJECTS, remember_references
from skillwire.cli.references import MAX_REFERENCES, file_for, is_shell_safe, known_labels, known_references
from skillwire.host import KnownSkill, Storage


def known(reference: str) -> KnownSkill:
    return KnownSkill(skill_id(), reference, entry())


def test_ordinary_references_are_harmless() -> None:
    for reference in ("notes", "team/refunds", "team/skill://acme/b", "büro/übung", "a.b_c-d/e@1+2"):
        assert is_shell_safe(reference), reference


@given(st.text(alphabet="ab $`;&|<>(){}[]*?!#~'\"\\\n\t\x00\x1b\u202e\u200b=,^-", min_size=1))
def test_nothing_a_shell_would_obey_is_harmless(word: str) -> None:
    assert not is_shell_safe(word) or (set(word) <= set("ab-") and not word.startswith("-"))


def test_references_come_back_by_folder_and_by_how_they_begin(tmp_path: Path) -> None:
    places = Storage()
    skills = [known(word) for word in ("team/a", "team/b", "other/a", "notes", "rm -rf ~")]

    remember_references(skills, project=tmp_path, places=places)

    assert known_references(tmp_path) == ["notes", "other/a", "team/a", "team/b"]
    assert known_references(tmp_path, "team/") == ["team/a", "team/b"]
    assert known_labels(tmp_path) == ["other", "team"]
    assert known_references(tmp_path.parent) == []


def test_there_is_a_limit_to_what_is_kept(tmp_path: Path) -> None:
    remember_references((known(f"team/{number}") for number in range(MAX_REFERENCES + 10)), project=tmp_path)
    for number in range(MOST_PROJECTS + 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        remember_references([known("notes")], project=folder)

    kept = list(file_for(tmp_path).parent.iterdir())
    assert len(kept) == MOST_PROJECTS


def test_a_link_or_a_pipe_in_its_place_is_no_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    path = file_for(tmp_path)
    path.parent.mkdir(parents=True)

    path.symlink_to(secret)

    assert known_references(tmp_path) == []


def test_a_state_that_cannot_be_written_costs_a_command_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))

    remember_references([known("notes")], project=tmp_path)

    assert known_references(tmp_path) == []
