"""What the pages in `docs/adapters` show, run as it stands there, and say, held against the modules."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import documents
import skillwire
import skillwire.host.adapters
from programs import words_of
from serving import environment
from skillwire.host.adapters.tools import MAX_TURNS

ROOT = Path(__file__).parents[2]
FOLDER = documents.DOCS / "adapters"
PAGE = (FOLDER / "overview.md").read_text("utf-8")
QUICK_START = documents.text_of("quickstart/agent-author.md")
SKILLS = ROOT / "examples" / "skills"
ADAPTERS = Path(skillwire.host.adapters.__file__).parent
SHARED = {"__init__", "mount", "tools"}
DEADLINE = 120.0

PRINTED = {
    "pydantic-ai": ["asked: first ", "asked: call send_money (network)", '"code": "network"', " done"],
    "OpenAI Agents SDK": ["asked: first ", "asked: call send_money (network)", '"code": "network"', " done"],
    "LangChain and LangGraph": [
        "tool: Skill: team/refunds",
        '"code": "writing"',
        "ai: Refunded.",
    ],
    "Microsoft agent-framework": ["Skill: team/refunds", '"code": "writing"', "Refunded."],
    "FastMCP client": ["closed 7", "Skill: team/refunds", '"code": "network"'],
    "Anthropic messages": ["Skill: team/refunds", "Approved in part."],
    "OpenAI chat messages": ["Skill: team/refunds", "Approved in part."],
}
"""What each example has to say: the skill was loaded, and a call of its own, where it makes one, refused."""


def rows() -> list[list[str]]:
    lines = re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def examples() -> dict[str, str]:
    """Return the one program of each page that the table links, by the page's title."""
    found: dict[str, str] = {}
    for row in rows():
        [name] = re.findall(r"\]\((.*?)\)", row[0])
        page = (FOLDER / name).read_text("utf-8")
        [found[page.partition("\n")[0].removeprefix("# ")]] = re.findall(
            r"```python\n(.*?)```", page, re.DOTALL
        )
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration of the page about the host, for this checkout's `skillwire`."""
    folder = tmp_path_factory.mktemp("adapters")
    config = json.loads(re.findall(r"```json\n(.*?)```", QUICK_START, re.DOTALL)[0])
    [team] = config["mcpServers"].values()
    assert (team["command"], team["args"]) == ("skillwire", ["serve", "examples/skills"])
    team["command"], *team["args"] = words_of(SKILLS)
    (folder / ".mcp.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("heading", PRINTED)
def test_the_example_of_an_adapter_runs_as_it_stands_there(heading: str, workplace: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", examples()[heading]]

    done = subprocess.run(
        command,
        cwd=workplace,
        env=environment(workplace),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )

    assert (done.returncode, done.stderr) == (0, "")
    position = 0
    for words in PRINTED[heading]:
        assert words in done.stdout[position:], done.stdout
        position = done.stdout.index(words, position)


def test_the_table_has_a_row_for_every_adapter_and_each_row_a_page_with_an_example() -> None:
    modules = {path.stem for path in ADAPTERS.glob("*.py")} - SHARED
    headings = [re.findall(r"\[(.*?)\]\(.*?\)", row[0])[0] for row in rows()]
    linked = {re.findall(r"\]\((.*?)\)", row[0])[0] for row in rows()}

    assert {row[3].strip("`") for row in rows()} == modules
    assert headings == [*examples()] == [*PRINTED]
    assert linked == {path.name for path in FOLDER.glob("*.md")} - {"overview.md"}
    for row, example in zip(rows(), examples().values(), strict=True):
        module = row[3].strip("`")
        assert f"from skillwire.host.adapters.{module} import " in example
        for name in re.findall(r"`(\w+)`", row[4].partition(",")[0]):
            assert re.search(
                rf"^(class|async def|def) {name}\b", (ADAPTERS / f"{module}.py").read_text(), re.M
            )


def test_versions_and_extras_are_those_of_the_project() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    for row in rows():
        [extra] = re.findall(r"^`skillwire\[(.+)\]`$", row[2])
        named = re.findall(r"`([\w-]+)` ([\d.]+)", row[1])
        assert named and all(pinned[package] == version for package, version in named)
        [requirement] = project["optional-dependencies"][extra]
        assert requirement.startswith(named[0][0])


def test_the_number_of_turns_is_that_of_the_loops() -> None:
    assert f"After {MAX_TURNS} turns" in " ".join((FOLDER / "anthropic.md").read_text("utf-8").split())
