"""What the pages in `docs/reviewing` show, played from the first command to the last."""

import difflib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

import documents
from programs import skillwire_command, write_program
from serving import environment
from skillwire.cli import lock, states
from skillwire.cli.lock import PinState
from skillwire.host import Grant, Host, Storage
from terminals import ENDED_WITHIN, PROMPT, Window

ROOT = Path(__file__).parents[2]
PAGE = documents.text_of(
    "reviewing/inspect.md",
    "reviewing/approve.md",
    "reviewing/lock.md",
    "reviewing/changes.md",
    "reviewing/ci.md",
    "reviewing/audit.md",
)
SKILLS = ROOT / "examples" / "skills"
AWAY_FROM_TERMINALS = ("Compare servers with the lock", "Load with a frozen lock")
MORE = "q stops:"
"""How a review ends a screenful, and a file."""


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences: its language, its text, and the heading it is under."""

    language: str
    text: str
    heading: str

    @property
    def code(self) -> int:
        """The exit code that the page names, in a comment at the end of a line."""
        found = re.findall(r"# exits with (\d)$", self.text, re.MULTILINE)
        return int(found[-1]) if found else 0

    @property
    def answers(self) -> list[str]:
        """What somebody typed where something was asked."""
        return re.findall(rf"{re.escape(PROMPT)} (.+)$", self.text, re.MULTILINE)


def blocks() -> Iterator[Block]:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```", part, re.DOTALL | re.MULTILINE):
            yield Block(language, text, heading)


def section(heading: str) -> str:
    [found] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return found


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its head."""
    lines = re.findall(r"^\|(.*)\|$", section(heading), re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def require_shown(shown: str, printed: str) -> None:
    """Check that what the page shows was printed, line by line and in this order.

    `…` stands for anything, and how wide a gap is does not matter.
    """
    left = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in shown.splitlines():
        words = " ".join(line.split())
        if words not in ("", "…"):
            pattern = ".*".join(re.escape(part) for part in words.split("…"))
            assert any(re.fullmatch(pattern, found) for found in left), f"{line!r} is not in:\n{printed}"


class Reviewer:
    """Somebody who follows the page, in a folder with nothing but what it begins with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.lock = self.folder / "skills.lock"
        self._home, self._runner = folder / "home", folder / "runner"
        self._colleague = Storage(folder / "colleague" / "state", folder / "colleague" / "cache")
        for place in (self.folder, self._home, self._runner):
            place.mkdir()
        shutil.copytree(SKILLS, self.folder / "skills")

    def run(self, block: Block, expected: Block | None) -> str:
        """Run a block as the page means it, and return what was printed where a person sees it."""
        answers = expected.answers if expected is not None else []
        if block.heading in AWAY_FROM_TERMINALS or " | " in block.text:
            assert not answers, "nobody can answer there"
            return self._run(block)
        return self._run_in_terminal(block, answers)

    def _run_in_terminal(self, block: Block, answers: Sequence[str]) -> str:
        env = {**environment(self._home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        window = Window(["/bin/bash", "-c", block.text], cwd=self.folder, env=env)
        try:
            for number, answer in enumerate(answers, start=1):
                self._read_on(window, number)
                window.type(answer)
            code = window.wait_for_end()
            assert code == block.code, f"{block.text}\n{window.everything}"
            return window.everything
        finally:
            window.close()

    def _read_on(self, window: Window, number: int) -> None:
        """Press Enter at the end of each screenful and file, until the next question stands there."""
        read = 0
        while window.everything.count(PROMPT) < number:
            window.wait_for_any([PROMPT, MORE], times=[number, read + 1])
            if window.everything.count(MORE) > read:
                read += 1
                window.type("")

    def _run(self, block: Block) -> str:
        """Run a block without a terminal; in CI, also on a machine where nothing was decided before."""
        home = self._runner if block.heading in AWAY_FROM_TERMINALS else self._home
        done = subprocess.run(
            ["/bin/bash", "-c", block.text],
            cwd=self.folder,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ENDED_WITHIN,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == block.code, f"{block.text}\n{printed}"
        return printed

    async def receive_pull_request(self) -> str:
        """Let a colleague approve more, elsewhere, and return how the lock differs then."""
        before = self.lock.read_text("utf-8")
        policy = self.folder / "skills" / "acme" / "billing" / "refunds" / "references" / "policy.md"
        with policy.open("a", encoding="utf-8") as file:
            file.write("\nRefunds of more than 500 EUR are approved by the team lead.\n")
        config = self.folder / ".mcp.json"
        async with Host.from_config(config, storage=self._colleague, roots=(), lock=self.lock) as host:
            await host.trust_lock(before.encode())
            await host.approve(await host.find("team/refunds"))
            await host.approve(await host.find("team/csv-insights"), [Grant.LOAD, Grant.SCRIPTS])
            await host.write_lock()
        after = self.lock.read_text("utf-8")
        return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True)))


@pytest.fixture
def reviewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reviewer:
    """A reviewer for whom `skillwire` is this checkout's."""
    programs = tmp_path / "bin"
    for name, words in (("skillwire", skillwire_command()), ("python3", [sys.executable])):
        write_program(programs / name, words)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    here = Reviewer(tmp_path)
    monkeypatch.chdir(here.folder)
    return here


@pytest.mark.skipif(sys.platform == "win32", reason="the page is for shells")
@pytest.mark.requirement("APPR-02", "APPR-10", "SEC-12", "SEC-13", "INT-09")
def test_the_page_can_be_followed_from_its_first_command_to_its_last(reviewer: Reviewer) -> None:
    found = [*blocks()]

    for block, after in zip(found, [*found[1:], None], strict=True):
        expected = after if after is not None and after.language == "text" else None
        if block.language == "json":
            assert json.loads(block.text)
            (reviewer.folder / ".mcp.json").write_text(block.text)
        elif block.language == "diff":
            require_shown(block.text, anyio.run(reviewer.receive_pull_request))
        elif block.language == "bash":
            printed = reviewer.run(block, expected)
            require_shown(expected.text if expected is not None else "", printed)


def test_every_example_is_of_a_kind_that_is_played() -> None:
    languages = [block.language for block in blocks()]

    assert set(languages) == {"json", "bash", "text", "diff"}
    assert languages.count("json") == languages.count("diff") == 1
    # Each answer follows its command, so none of them is passed over.
    assert all(before == "bash" for before, after in pairwise(languages) if after == "text")


def test_the_states_of_the_page_are_those_that_commands_print() -> None:
    documented = [row[0].strip("`") for row in rows("List skills")]

    *standings, offline, off = documented
    assert standings == [words for words, _ in states.STATE_WORDS.values()]
    assert (offline, off) == ("offline, approved …", "off")
    for words in (*states._SHOW_RULE_TEXTS.values(), "not listed"):  # pyright: ignore[reportPrivateUsage]
        assert f"`{words}`" in section("List skills")


def test_the_words_of_a_frozen_check_are_those_of_the_page() -> None:
    checked = lock._CHECKED  # pyright: ignore[reportPrivateUsage]

    *pins, unanswered = [(row[0].strip("`"), row[2][0]) for row in rows("Compare servers with the lock")]
    assert pins == [(checked[state][0], "0" if state is PinState.SAME else "1") for state in PinState]
    assert unanswered == (lock.UNANSWERED, "1")
