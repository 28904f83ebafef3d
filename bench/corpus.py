"""A folder of made-up skills, all of the same shape."""

from pathlib import Path

_FRONTMATTER = """---
name: {name}
description: Handles case {number} of the {team} team. Use when a request mentions case {number}.
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


def generate(root: Path, count: int) -> None:
    """Write `count` skills below `root`: SKILL.md of 4 KB, three references of 2 KB, one script."""
    for number in range(count):
        team = f"team-{number % 100:02d}"
        name = f"case-{number:06d}"
        folder = root / team / name
        (folder / "references").mkdir(parents=True)
        (folder / "scripts").mkdir()
        head = _FRONTMATTER.format(name=name, number=number, team=team)
        (folder / "SKILL.md").write_text((head + _LINE * 50)[:4096], "utf-8")
        for part in range(3):
            text = f"# Case {number}, part {part}\n\n" + _LINE * 25
            (folder / "references" / f"part-{part}.md").write_text(text[:2048], "utf-8")
        (folder / "scripts" / "check.py").write_text(f"print('case {number} checked')\n" * 8, "utf-8")
