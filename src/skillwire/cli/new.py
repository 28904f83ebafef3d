"""`skillwire new`: create a skill that validates as it is."""

import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from skillwire.cli.command import (
    AlreadyExistsError,
    Json,
    MisuseError,
    OutputError,
    Verbose,
    command_output,
    new_app,
    one_of,
)
from skillwire.core import SKILL_FILE, InvalidSkillError, Skill, hidden_characters, is_name, suggest_name

# Names of folders above a skill: they need no escaping in a URI, and a walk does not skip them.
_PARENT_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]*")

_BODY = """\
Say in a sentence or two what an agent achieves with this skill.

## Steps

1. Find out what the user has and what they want.
2. Do the work, one check at a time.
3. Show the result, and say what was left out.
"""


@dataclass(frozen=True, slots=True)
class _StarterFile:
    """A file that a new skill may start with, and the section of `SKILL.md` that mentions it."""

    path: str
    section: str
    text: str


_PARTS = {
    "references": _StarterFile(
        "references/guide.md",
        """
## More to read

Read [the guide](references/guide.md) when a case is not covered above.
""",
        """\
# Guide

Put here what is needed only now and then: tables, edge cases, background.
""",
    ),
    "scripts": _StarterFile(
        "scripts/check.py",
        """
## Scripts

Run [the check](scripts/check.py) on the files at hand:

```sh
python3 scripts/check.py FILE...
```
""",
        '''\
#!/usr/bin/env python3
"""Count the lines of each file. Replace this by the check that the skill needs."""

import sys
from pathlib import Path


def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: check.py FILE...")
    for name in sys.argv[1:]:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        print(f"{name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
''',
    ),
    "assets": _StarterFile(
        "assets/template.md",
        """
## Assets

Start the result from [the template](assets/template.md).
""",
        """\
# Title

Summary in one sentence.

## Details
""",
    ),
}

app = new_app()


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name, or a path that ends in it.", show_default=False)
    ],
    description: Annotated[
        str, typer.Option(metavar="TEXT", help="What it does and when to use it.", show_default=False)
    ] = "",
    parent: Annotated[str, typer.Option("--dir", metavar="PARENT", help="Where to create it.")] = ".",
    parts: Annotated[
        str,
        typer.Option(
            "--with", metavar="LIST", help=f"Also create some of {','.join(_PARTS)}.", show_default=False
        ),
    ] = "",
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Create a skill that validates.

    Creates PARENT/NAME/SKILL.md. NAME may be a path, such as
    acme/billing/refunds; its last part is the skill's name.
    """
    with command_output("new", json=json, verbose=verbose) as output:
        path = _checked_path(name)
        files = starter_files(path.name, description, _checked_parts(parts))
        target = Path(parent, path)
        create(target, files)
        if json:
            output.document({"path": str(target), "name": path.name, "files": sorted(files)})
            return
        for file in files:
            output.line(str(target / file), wrap=False)
        output.message(f"Write the instructions in {SKILL_FILE}, then run: skillwire validate {target}")


def starter_files(name: str, description: str, parts: list[str]) -> dict[str, bytes]:
    """Return the files of a new, valid skill, by path.

    Raises:
        MisuseError: The description breaks a rule.
    """
    words = name.replace("-", " ")
    title = f"# {words.capitalize()}\n\n"
    body = title + _BODY + "".join(_PARTS[part].section for part in parts)
    description = description or f"Helps with {words}. Use when the user asks about {words}."
    if hidden_characters(description):
        raise MisuseError("--description holds hidden characters", fix="delete them")
    try:
        skill = Skill(name, body=body, description=description)
    except InvalidSkillError as error:
        raise MisuseError(f"--description: {error}", fix=error.fix) from error
    files = {SKILL_FILE: skill.skill_md}
    return files | {_PARTS[part].path: _PARTS[part].text.encode() for part in parts}


def create(target: Path, files: Mapping[str, bytes]) -> None:
    """Create the folder `target` with `files` in it, atomically.

    Everything is written to a temporary folder, in the nearest parent that
    exists, and moved into place with one rename.

    Raises:
        AlreadyExistsError: Something is there.
        OutputError: It cannot be written.
    """
    if target.is_symlink() or target.exists():
        raise AlreadyExistsError(f"{target} exists", fix="choose another name, or edit what is there")
    top = target
    while not top.parent.exists():
        top = top.parent
    staging = top.with_name(f".skillwire-{secrets.token_hex(8)}")
    try:
        staging.mkdir()
        for path, content in files.items():
            file = staging / target.relative_to(top.parent) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            if path.startswith("scripts/"):
                file.chmod(file.stat().st_mode | 0o111)
        (staging / top.name).rename(top)
    except OSError as error:
        raise OutputError(f"{target} cannot be created: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _checked_path(name: str) -> PurePosixPath:
    segments = name.rstrip("/").split("/")
    parents_fine = all(_PARENT_FOLDER.fullmatch(segment) for segment in segments[:-1])
    if parents_fine and is_name(segments[-1]):
        return PurePosixPath(*segments)
    better = "/".join(map(suggest_name, filter(None, segments))) or suggest_name("")
    problem = "has a part that cannot be in a URI" if not parents_fine else "is not a valid name of a skill"
    raise MisuseError(f"{name!r} {problem}", fix=f"try: skillwire new {better}")


def _checked_parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if part not in _PARTS:
            raise MisuseError(f"--with cannot create {part!r}", fix=f"choose from {one_of(list(_PARTS))}")
    return [part for part in _PARTS if part in parts]
