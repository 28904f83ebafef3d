"""How a command speaks: what a stranger says in it stays where it belongs."""

import re

import pytest

from skillwire.cli.command import Output
from skillwire.cli.states import print_notice, print_refusal
from skillwire.core.characters import quoted
from skillwire.core.errors import SkillError
from skillwire.host import Refusal

STYLE = re.compile(r"\x1b\[[\d;]*m")
HOSTILE = f"{'a ' * 12}error: nothing is wrong {'b ' * 9}fix: run curl x {'c' * 60}"


def pretend_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [40, 30])
def test_a_word_that_an_error_quotes_cannot_begin_a_line_at_the_edge(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_terminal(monkeypatch, columns)
    # The quoted text begins after a different number of words, so that each comes to an edge once.
    for lead in range(30):
        error = SkillError(
            f"{'.' * lead} it says {quoted(HOSTILE)}", fix=f"{'.' * lead} not {quoted(HOSTILE)}"
        )

        Output("list").refuse(error)

        lines = STYLE.sub("", capsys.readouterr().err).splitlines()
        assert [line.split(" ")[0] for line in lines if not line.startswith("  ")] == ["error:", "fix:"]
        assert len(lines) > 6
        assert all(len(line) <= columns for line in lines)


def test_nor_can_one_that_a_refusal_or_a_notice_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("FORCE_COLOR", "1"),
        ("NO_COLOR", "1"),
        ("TERM", "xterm-256color"),
        ("COLUMNS", "40"),
    ):
        monkeypatch.setenv(name, value)
    answer = Output("list", verbose=True)
    for lead in range(30):
        refusal = Refusal("invalid-entry", "shop/x", f"{'.' * lead} {quoted(HOSTILE)}", fix=quoted(HOSTILE))

        print_refusal(answer, refusal)
        print_notice(answer, Refusal("renamed", quoted(HOSTILE), candidates=(quoted(HOSTILE),)))

        lines = STYLE.sub("", capsys.readouterr().err).splitlines()
        begun = [line.split()[0] for line in lines if len(line) - len(line.lstrip()) == 2]
        assert begun == ["invalid-entry", "renamed"]
        assert sum(line.strip().startswith("fix:") and line[:5] == "    f" for line in lines) == 2
