"""The quick starts in `docs/quickstart`, run as they stand there.

That of agent authors is the first example of `test_documented_host.py`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import documents
from programs import skillwire_command, write_program
from serving import Server, environment
from terminals import ENDED_WITHIN, PROMPT, Window

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the pages are for shells")

EXAMPLES = documents.ROOT / "examples"


def blocks(name: str, language: str = "bash") -> list[str]:
    text = documents.text_of(f"quickstart/{name}.md")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class Reader:
    """Somebody who follows a page in an empty folder, in which `skillwire` is this checkout's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        home, programs = folder / "home", folder / "bin"
        for place in (self.folder, home):
            place.mkdir()
        self.folder.joinpath("examples").symlink_to(EXAMPLES)
        for name, words in (("skillwire", skillwire_command()), ("python", [sys.executable])):
            write_program(programs / name, words)
        self.env = environment(home, PATH=f"{programs}:{os.environ['PATH']}")

    def run(self, block: str) -> str:
        """Run the lines of a block one by one, and return what they printed.

        A line ends with 0, or with the code that a comment on it names.
        """
        printed = ""
        for line in block.splitlines():
            done = subprocess.run(
                ["/bin/bash", "-c", line],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ENDED_WITHIN,
            )
            named = re.search(r"# exits with (\d)$", line)
            assert done.returncode == (int(named[1]) if named else 0), f"{line}\n{done.stdout}{done.stderr}"
            printed += done.stdout
        return printed

    def answer(self, block: str, typed: str) -> str:
        """Run a block in a terminal, and type an answer where it asks."""
        window = Window(
            ["/bin/bash", "-c", block],
            cwd=self.folder,
            env={**self.env, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        )
        try:
            window.wait_for(PROMPT)
            window.type(typed)
            assert window.wait_for_end() == 0, window.everything
            return window.everything
        finally:
            window.close()

    @contextmanager
    def serving(self, block: str) -> Generator[str]:
        """Run the one command of a block until the end of the context, and yield the port it got."""
        assert ":8000" in block
        process = subprocess.Popen(
            ["/bin/bash", "-c", f"exec {block.replace(':8000', ':0')}"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        server = Server(process)
        try:
            yield server.wait_for_words(r"at http://127\.0\.0\.1:(\d+)/mcp\n")[1]
        finally:
            server.release()


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_a_publisher_makes_checks_and_serves_a_skill(reader: Reader) -> None:
    make, serve, use = blocks("publisher")

    made = reader.run(make)
    with reader.serving(serve) as port:
        used = reader.run(use.replace("8000", port))

    assert "my-skills/greeting/SKILL.md" in made
    assert f"127.0.0.1-{port}/greeting" in used
    assert "skill://greeting/SKILL.md" in used


def test_a_server_author_publishes_a_skill_from_code(reader: Reader) -> None:
    [program], [use] = blocks("server-author", "python"), blocks("server-author")
    reader.folder.joinpath("server.py").write_text(program)

    used = reader.run(use)

    assert "python/greeting" in used
    assert "skill://greeting/SKILL.md" in used


def test_a_reviewer_inspects_approves_and_locks_a_skill(reader: Reader) -> None:
    inspect, approve, lock = blocks("reviewer")

    inspected = reader.run(inspect)
    approved = reader.answer(approve, "y")
    locked = reader.run(lock)

    assert "team/refunds  not approved" in inspected and "# Refund policy" in inspected
    assert "approved  team/refunds from MCP server team (load)" in approved
    assert re.search(r"same +team/refunds", locked)
    assert "skill://acme/billing/refunds/SKILL.md" in reader.folder.joinpath("skills.lock").read_text("utf-8")


def test_an_operator_runs_a_server_that_requires_a_token(reader: Reader) -> None:
    token, serve, use = blocks("operator")

    reader.run(token)
    with reader.serving(serve) as port:
        used = reader.run(use.replace(":8000", f":{port}"))

    assert "refunds" in used
