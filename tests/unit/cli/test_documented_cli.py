"""`docs/cli.md` is written by the program: `python tests/unit/cli/test_documented_cli.py` writes it anew.

The links between all pages are checked here, too.
"""

import io
import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import orjson
import pytest

from skillwire.cli.app import COMMANDS, load_command, run

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "cli.md"
SCHEMAS = DOCS / "schemas" / "cli"
LINKED = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
WIDTH = 110

INTRODUCTION = """# Commands

This page is generated from the `--help` of each command. [Inspect skills](reviewing/inspect.md) shows how the
commands work together, and [The configuration file](host/configuration.md) describes the configuration.

- Exit codes: 0 is success, 1 is failure or a negative result, 2 is misuse, 130 is interrupted.
- Data goes to standard output, messages to standard error. Output that does not go to a terminal is plain
  text, and in lists each item is one line.
- `--json` prints one document to standard output, whose `schema` names its format and version. When the
  command fails it has an `error` instead, with `code`, `message` and `fix`. The schemas are linked below.
- A REF is the reference of a skill as `skillwire list` shows it, `team/refunds` or `notes`;
  [References](host/references.md) has all forms.
- A TARGET is a URL, a folder, or a label of the configuration. References that were printed for a typed
  target work in later commands, too; see [Targets typed before](host/configuration.md#targets-typed-before).
- Text from a server is escaped before it is printed.
"""


def help_of(*names: str) -> str:
    """Return what a command says of itself, at eighty columns."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run([*names, "--help"])
    assert code == 0, names
    return printed.getvalue()


def section_of(name: str) -> str:
    schema = f"What `--json` prints: [schemas/cli/{name}.json](schemas/cli/{name}.json)\n"
    inner = getattr(load_command(name), "commands", {})
    parts = [f"### {name} {one}\n\n{_text_of(name, one)}" for one in inner]
    return "\n".join([f"## {name}\n\n{_text_of(name)}", schema, *parts])


def _text_of(*names: str) -> str:
    usage, _, rest = help_of(*names).partition("\n\n")
    prose, mark, options = re.split(r"^(?=Arguments:|Options:)()", rest, maxsplit=1, flags=re.MULTILINE)
    assert mark == "" and usage.startswith("Usage: ")
    paragraphs = "\n\n".join(_wrapped(part) for part in prose.strip("\n").split("\n\n"))
    return f"{paragraphs}\n\n```text\n{usage}\n\n{options.rstrip()}\n```\n"


def _wrapped(paragraph: str) -> str:
    words = " ".join(paragraph.split())
    return "\n".join(textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False))


def page() -> str:
    rows = "\n".join(f"| [`{name}`](#{name}) | {summary} |" for name, summary in COMMANDS.items())
    table = f"| Command | What it does |\n| --- | --- |\n{rows}\n"
    return "\n".join([INTRODUCTION, table, *map(section_of, COMMANDS)])


def test_arguments_are_named_as_a_user_would_name_them() -> None:
    usages = {name: help_of(name).partition("\n")[0] for name in COMMANDS}

    assert usages["serve"] == "Usage: skillwire serve [OPTIONS] [DIR]..."
    assert usages["show"] == "Usage: skillwire show [OPTIONS] REF [PATH]"
    assert usages["search"] == "Usage: skillwire search [OPTIONS] QUERY [TARGET]... [-- COMMAND ARG...]"
    assert not [name for name in COMMANDS if re.search(r"<list|[{}]|<str>|<path>", help_of(name))]


@pytest.mark.parametrize("name", ["CHANGELOG.md", "README.md", *(f"docs/{linked}" for linked in LINKED)])
def test_every_option_that_a_page_gives_to_serve_is_one(name: str) -> None:
    text = (DOCS.parent / name).read_text("utf-8")
    options = set(re.findall(r"--[a-z-]+", help_of("serve").partition("Options:")[2]))

    typed = re.findall(r"\bserve\b[^\n`|;]*", text)

    assert {option for line in typed for option in re.findall(r"(?<= )--[a-z-]+", line)} <= options


def test_the_page_says_what_every_command_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert PAGE.read_text("utf-8") == page(), f"python {Path(__file__).name} writes it anew"


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    found = {path.stem: orjson.loads(path.read_bytes()) for path in SCHEMAS.glob("*.json")}

    assert found.keys() == COMMANDS.keys()
    for name, schema in found.items():
        assert f"skillwire/{name}/1" in orjson.dumps(schema).decode()


def anchors(page: Path) -> set[str]:
    """Return what can be linked to on a page, as it is made of its headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.casefold()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        if "://" not in target:
            yield (page.parent / name if name else page), anchor


@pytest.mark.parametrize("name", LINKED)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    for target, anchor in links(DOCS / name):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), (target.name, anchor)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    PAGE.write_text(page(), "utf-8")
