"""Attacks with what a caller gives to a script: values that are commands, options, paths or far too much."""

import json
from collections.abc import Mapping
from pathlib import Path

from escape.attack import Attack, OutcomeCheck, Seen, exited
from escape.world import PYTHON, World
from skillwire.core.yaml12 import JsonValue

_ODD = (
    "--help",
    "-c",
    "; touch /tmp/x",
    "$(touch /tmp/x)",
    "`id`",
    "a\nb",
    "\u0000",
    "../../etc/passwd",
    "%s%n",
    "\x1b[2J",
    "'\"\\",
    "\ud7ff\U0001f600",
)
_KEYS = ("__proto__", "constructor", "--option", "", "a=b", "LD_PRELOAD")


def odd_arguments(_: World) -> Mapping[str, JsonValue]:
    values: dict[str, JsonValue] = {str(place): value for place, value in enumerate(_ODD)}
    return {
        **values,
        **dict.fromkeys(_KEYS, "x"),
        "list": [*_ODD, {"deep": list(_ODD)}, 1e308, -0.0, None, True],
    }


def _same(_: World, seen: Seen) -> str:
    if seen.outcome is None:
        return ""
    given = next((file.content for file in seen.outcome.files if file.path == "given"), b"null")
    return "" if json.loads(given) == odd_arguments(_) else "it was given something else than was sent"


def _commands(world: World) -> Mapping[str, JsonValue]:
    path = f"{world.place()}/{world.mark}"
    return {"value": f"x; touch {path}", "more": f"$(touch {path})", "last": f"`touch {path}`\ntouch {path}"}


def _touched(world: World, seen: Seen) -> str:
    is_there = list(world.folder.rglob(world.mark)) or world.mark in "".join(seen.names)
    return "a value was run as a command" if is_there else ""


def _lists(*expected: str) -> OutcomeCheck:
    def check(outcome: object) -> str:
        lines = str(getattr(outcome, "stdout", "")).splitlines()
        return "" if lines == list(expected) else f"it was called with {lines}"

    return check


def _large(_: World) -> Mapping[str, JsonValue]:
    return {"text": "x" * 900_000}


def _deep(_: World) -> Mapping[str, JsonValue]:
    value: JsonValue = 1
    for _level in range(60):
        value = [value]
    return {"deep": value}


ATTACKS = (
    Attack(
        "is given values that look like options and commands",
        "import shutil, sys, os\n"
        "open(os.environ['OUTPUT_DIR'] + '/given', 'wb').write(sys.stdin.buffer.read())\n"
        "print(len(sys.argv))\n",
        _same,
        odd_arguments,
        control="",
        because="a process that reads its input gets it unchanged, too",
        is_bare=True,
        outcome_check=_lists("1"),
    ),
    Attack(
        "is given commands as values, and is a shell",
        'given=$(cat)\nprintf "%s" "$given" >/dev/null\nfor one in "$@"; do eval "$one"; done\n'
        'for one in $CALLED_WITH; do :; done\nls "$OUTPUT_DIR"\n',
        _touched,
        _commands,
        control="",
        because="its control is a test of its own, in which a careless server joins a command line",
        suffix=".sh",
        outcome_check=exited(0),
    ),
    Attack(
        "asks for its arguments on the command line",
        "import sys\nfor one in sys.argv[1:]: print(ascii(one))\n",
        _touched,
        lambda world: {"a": "--help", "b": f"; touch {world.mark}", "c": "x\ny"},
        control="",
        because="its control is a test of its own, in which a careless server joins a command line",
        is_bare=True,
        schema={"type": "object", "properties": {name: {"type": "string"} for name in "abc"}},
        outcome_check=lambda outcome: (
            ""
            if all(line.startswith("'--") for line in outcome.stdout.splitlines())
            else f"a value became an argument of its own: {outcome.stdout}"
        ),
    ),
    Attack(
        "does not read the much that it is given",
        "import os\nos._exit(5)",
        lambda _, seen: seen.error,
        _large,
        control="",
        because="a process need not read its input",
        is_bare=True,
        outcome_check=exited(5),
    ),
    Attack(
        "waits for ever with its input unread",
        "import time\ntime.sleep(1000)",
        lambda _, seen: seen.error,
        _large,
        control="",
        because="a process need not read its input",
        is_bare=True,
        limits={"wall_seconds": 0.5},
    ),
    Attack(
        "is given a very deep value",
        "import json, sys\nvalue = json.load(sys.stdin)['deep']\n"
        "for _ in range(60): value = value[0]\nprint(value)",
        lambda _, seen: seen.error,
        _deep,
        control="",
        because="a process gets what it is given",
        is_bare=True,
        outcome_check=_lists("1"),
    ),
    Attack(
        "names another interpreter in its first line",
        "#!/bin/sh\n''''exec /usr/bin/touch \"$OUTPUT_DIR/shell\" # '''\nprint('python')\n",
        lambda _, seen: "its first line was obeyed" if "shell" in seen.names else "",
        control="",
        because="the kernel would obey it; nobody asks the kernel here",
        is_bare=True,
        outcome_check=_lists("python"),
    ),
    Attack(
        "brings modules with the names of the library's",
        "import json, sys\nprint(json.__file__)\n",
        lambda world, seen: "the init took its module" if seen.error else "",
        files={
            "scripts/json.py": b"x = 1\n",
            "scripts/sitecustomize.py": b"raise SystemExit(9)\n",
            "scripts/os.py": b"raise SystemExit(9)\n",
            "sitecustomize.py": b"raise SystemExit(9)\n",
        },
        control="",
        because="a script may have modules of its own",
        is_bare=True,
    ),
)


def careless(value: str, script: Path) -> str:
    """Return the command line that a careless server would make."""
    return f"{PYTHON} {script} --value {value}"
