"""A folder of made-up skills, all of the same shape."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_FRONTMATTER = """---
name: {name}
description: {description}
license: Apache-2.0
metadata:
  version: "1.{number}"
  owner: {team}
---

# Case {number}

Read [the first reference](references/part-0.md), [the second](references/part-1.md) and
[the third](references/part-2.md), then run `scripts/check.py`.

"""
_LINE = "Check every figure against the source, write down where it came from, and say what is missing.\n"


def about_case(number: int, team: str) -> str:
    return f"Handles case {number} of the {team} team. Use when a request mentions case {number}."


@dataclass(frozen=True, slots=True)
class Shape:
    """What is alike in all skills: in how many folders they lie, and what is beside their SKILL.md."""

    teams: int = 100
    references: int = 3
    has_script: bool = True
    describe: Callable[[int, str], str] = about_case


CASES = Shape()


def place_of(number: int, shape: Shape) -> str:
    """Return the path of the folder of a skill."""
    return f"team-{number % shape.teams:02d}/case-{number:06d}"


def generate(root: Path, count: int, shape: Shape = CASES) -> None:
    """Write `count` skills below `root`: SKILL.md of 4 KB, references of 2 KB each, and scripts."""
    for number in range(count):
        folder = root / place_of(number, shape)
        team, name = folder.parent.name, folder.name
        (folder / "references").mkdir(parents=True)
        head = _FRONTMATTER.format(
            name=name, number=number, team=team, description=shape.describe(number, team)
        )
        (folder / "SKILL.md").write_text((head + _LINE * 50)[:4096], "utf-8")
        for part in range(shape.references):
            text = f"# Case {number}, part {part}\n\n" + _LINE * 25
            (folder / "references" / f"part-{part}.md").write_text(text[:2048], "utf-8")
        if shape.has_script:
            (folder / "scripts").mkdir()
            (folder / "scripts" / "check.py").write_text(f"print('case {number} checked')\n" * 8, "utf-8")
