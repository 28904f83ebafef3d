"""Scripts as people write them: they run in the sandbox as they do anywhere."""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import pytest

from escape.worker import SKILL
from escape.world import PYTHON
from skillwire.core.errors import RunnerError
from skillwire.core.yaml12 import JsonValue
from skillwire.runner import Policy, Runner, prepare
from skillwire.runner.interface import ScriptInterface, ScriptRun
from skillwire.runner.outcome import Ending, Outcome
from skillwire.sources import DirectorySource

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner(Policy(pool=1, concurrent=2)) as runner:
        assert runner.availability.is_available, runner.availability.detail
        yield runner


async def ran(
    runner: Runner,
    source: str,
    given: Mapping[str, JsonValue] | None = None,
    *,
    name: str = "main.py",
    files: Mapping[str, bytes] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Outcome:
    path = f"scripts/{name}"
    interface = ScriptInterface(limits=limits or {})
    return await runner.run(
        ScriptRun(SKILL, path, {**(files or {}), path: source.encode()}, given or {}, interface)
    )


@pytest.mark.requirement("EXEC-17")
async def test_a_python_script_writes_a_file(runner: Runner) -> None:
    outcome = await ran(
        runner,
        """
import csv, json, os, sys
from pathlib import Path

rows = json.load(sys.stdin)["rows"]
path = Path(os.environ["OUTPUT_DIR"], "tables", "rows.csv")
path.parent.mkdir()
with path.open("w", newline="") as file:
    csv.writer(file).writerows(rows)
print(f"wrote {len(rows)} rows")
""",
        {"rows": [["a", 1], ["b", 2]]},
    )

    assert (outcome.exit_code, outcome.stdout) == (0, "wrote 2 rows\n")
    assert [(file.path, file.content) for file in outcome.files] == [("tables/rows.csv", b"a,1\r\nb,2\r\n")]


async def test_a_shell_script_uses_pipes(runner: Runner) -> None:
    outcome = await ran(
        runner,
        r"""
set -euo pipefail
text=$(sed -n 's/.*"text": *"\([^"]*\)".*/\1/p')
echo "$text" | tr -cs 'A-Za-z' '\n' | tr 'A-Z' 'a-z' | sort | uniq -c | sort -k1,1nr -k2 \
    | awk '{ print $2 ": " $1 }' | tee "$OUTPUT_DIR/words.txt" | head -n 2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
head -c 3 /dev/zero | od -An -tx1
(cd "$work" && seq 3 >a && grep -c . a)
cat <<'END'
done
END
""",
        {"text": "the cat and the dog and the bird"},
        name="words.sh",
    )

    assert outcome.stderr == ""
    assert outcome.stdout == "the: 3\nand: 2\n 00 00 00\n3\ndone\n"
    assert [file.path for file in outcome.files] == ["words.txt"]


async def test_a_script_uses_much_of_the_standard_library(runner: Runner) -> None:
    outcome = await ran(
        runner,
        """
import asyncio, concurrent.futures, decimal, email.message, hashlib, http.client, multiprocessing, sqlite3
import subprocess, sys, tempfile, urllib.request, xml.etree.ElementTree as tree, zipfile, unittest, ssl

def said(*words, **how):
    return subprocess.run(*words, capture_output=True, text=True, **how).stdout.strip()

def square(number):
    return number * number

async def both():
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    return await asyncio.gather(asyncio.sleep(0, 1), asyncio.to_thread(square, 3)), said

def main():
    print(asyncio.run(both()))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(sum(pool.map(square, range(10))))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, range(5))))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, [4]))
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=queue.put, args=({"a": 1},))
    child.start(); print(queue.get(timeout=10)); child.join()
    counter = multiprocessing.Value("i", 5)
    with counter.get_lock():
        print(counter.value)
    with sqlite3.connect(":memory:") as database:
        print(database.execute("select 6 * 7").fetchone())
    with tempfile.TemporaryDirectory() as folder:
        with sqlite3.connect(folder + "/a.db") as database:
            database.execute("pragma journal_mode=wal"); database.execute("create table t (a)")
        with zipfile.ZipFile(folder + "/a.zip", "w") as archive:
            archive.writestr("a", "b")
    print(decimal.Decimal(1) / 3, tree.fromstring("<a><b/></a>")[0].tag)
    message = email.message.EmailMessage(); message["Subject"] = "x"; print(message.as_string().strip())
    print(said("echo $HOME | tr a-z A-Z", shell=True))
    print(said([sys.executable, "-c", "print(1 + 1)"]))
    print(len(ssl.create_default_context().get_ca_certs()) >= 0)

if __name__ == "__main__":
    main()
""",
        limits={"wall_seconds": 60},
    )

    assert outcome.stderr == ""
    assert outcome.stdout.splitlines() == [
        "([1, 9], b'hi\\n')",
        "285",
        "[0, 1, 4, 9, 16]",
        "[16]",
        "{'a': 1}",
        "5",
        "(42,)",
        "0.3333333333333333333333333333 b",
        "Subject: x",
        "/TMP",
        "2",
        "True",
    ]


async def test_memory_that_many_processes_share_counts_once(runner: Runner) -> None:
    outcome = await ran(
        runner,
        """
import multiprocessing, time
from multiprocessing import shared_memory

def fill(name, barrier):
    block = shared_memory.SharedMemory(name)
    block.buf[:] = bytes(len(block.buf))
    barrier.wait(20)
    time.sleep(0.2)
    block.close()

if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=40 << 20)
    barrier = multiprocessing.Barrier(8)
    children = [multiprocessing.Process(target=fill, args=(block.name, barrier)) for _ in range(8)]
    for child in children: child.start()
    for child in children: child.join()
    print([child.exitcode for child in children])
    block.close(); block.unlink()
""",
        limits={"memory_bytes": 200 << 20},
    )

    assert outcome.stdout == f"{[0] * 8}\n", outcome.verdict
    assert 40 << 20 <= outcome.usage.memory_bytes <= 200 << 20


async def test_a_script_imports_a_module_beside_it_and_reads_a_file_of_its_skill(runner: Runner) -> None:
    outcome = await ran(
        runner,
        """
import os
from helper.words import greet
import constants
print(greet(constants.NAME), open("references/a.txt").read())
print(os.path.relpath(__file__, os.environ["SKILL_DIR"]))
""",
        files={
            "scripts/helper/__init__.py": b"",
            "scripts/helper/words.py": b"def greet(name): return 'hello ' + name\n",
            "scripts/constants.py": b"NAME = 'you'\n",
            "references/a.txt": b"and you",
        },
    )

    assert (outcome.stdout, outcome.stderr) == ("hello you and you\nscripts/main.py\n", "")


async def test_a_node_script_runs_where_there_is_node(runner: Runner) -> None:
    source = """
const fs = require("fs"), path = require("path"), { execSync } = require("child_process");
const given = JSON.parse(fs.readFileSync(0, "utf8"));
const sum = given.numbers.reduce((a, b) => a + b, 0);
fs.writeFileSync(path.join(process.env.OUTPUT_DIR, "sum.json"), JSON.stringify({ sum }));
setTimeout(() => console.log("sum", sum, execSync("echo hi").toString().trim(), process.argv.length), 5);
"""
    if not runner.has_interpreter("scripts/sum.js"):
        with pytest.raises(RunnerError) as caught:
            await ran(runner, source, {"numbers": [1, 2, 3]}, name="sum.js")
        assert caught.value.fix
        return

    outcome = await ran(runner, source, {"numbers": [1, 2, 3]}, name="sum.js")

    assert (outcome.stdout, outcome.stderr) == ("sum 6 hi 2\n", "")
    assert [file.content for file in outcome.files] == [b'{"sum":6}']


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
@pytest.mark.parametrize("name", ["exit.py", "exit.sh"])
async def test_the_exit_status_is_the_scripts(runner: Runner, name: str, code: int) -> None:
    source = f"import sys; sys.exit({code})" if name.endswith("py") else f"exit {code}"

    outcome = await ran(runner, source, name=name)

    assert (outcome.ending, outcome.exit_code, outcome.is_error) == (Ending.EXITED, code, code != 0)


UNCAUGHT = {
    "an error": "def f():\n    raise ValueError('no')\nf()",
    "an error with a cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e",
    "an error while handling one": "try:\n    {}['a']\nexcept KeyError:\n    int('x')",
    "a mistake of syntax": "x = 1\nif x\n    pass\n",
    "an indentation": "if 1:\nx = 2\n",
    "a text as exit status": "raise SystemExit('bye')",
    "nothing as exit status": "raise SystemExit",
    "a large exit status": "raise SystemExit(256 + 7)",
    "a truth as exit status": "raise SystemExit(True)",
    "a deep recursion": "def f(n): return f(n + 1)\nf(0)",
    "an error in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start()\nt.join()"
    ),
    "an error at exit": "import atexit\natexit.register(lambda: 1 / 0)",
    "an excepthook of its own": "import sys\nsys.excepthook = lambda *a: print('mine', a[0])\n1 / 0",
    "a group of errors": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "a failed assertion": "assert 1 == 2, 'sums'",
    "a missing module": "import no_such_module",
    "an interrupt": "raise KeyboardInterrupt",
    "a warning": "import warnings\nwarnings.warn('careful')",
    "its own name": "print(__name__, __file__, __doc__, __package__, __spec__, __builtins__)",
    "a declared encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\udce4'))",
    "output that is not flushed": "import sys\nsys.stdout.write('no newline')",
    "exit without flushing": "import os, sys\nprint('lost')\nsys.stdout.flush()\nprint('gone')\nos._exit(0)",
    "handlers at exit": "import atexit\natexit.register(print, 1)\natexit.register(print, 2)\nprint('x')",
    "both streams": "import sys\nprint('a', file=sys.stderr)\nprint('b')\nprint('c', file=sys.stderr)",
    "names at the top": "a = 1\nprint(sorted(k for k in globals() if not k.startswith('__')))",
    "an object that outlives": "class A:\n    def __del__(self): print('del')\na = A()",
    "generators and closures": "f = [lambda i=i: i for i in range(3)]\nprint([g() for g in f])",
    "typed code": "from __future__ import annotations\nx: Unknown = 1\nprint(__annotations__)",
}


@pytest.mark.parametrize("source", UNCAUGHT.values(), ids=UNCAUGHT.keys())
async def test_a_script_ends_and_speaks_as_under_an_ordinary_interpreter(
    source: str, runner: Runner, tmp_path: Path
) -> None:
    content = source.encode("utf-8", "surrogateescape")
    path = tmp_path / "scripts" / "main.py"
    path.parent.mkdir()
    path.write_bytes(content)
    given = tmp_path / "given"
    given.write_bytes(b"{}")
    with anyio.fail_after(30), given.open("rb") as stdin:
        plain = await anyio.run_process(
            [PYTHON, "-B", str(path)],
            stdin=stdin,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            check=False,
        )

    outcome = await runner.run(ScriptRun(SKILL, "scripts/main.py", {"scripts/main.py": content}))

    assert _settled(outcome.stdout) == _settled(_moved(plain.stdout, tmp_path))
    assert _settled(outcome.stderr) == _settled(_moved(plain.stderr, tmp_path))
    assert (outcome.exit_code if outcome.signal is None else -outcome.signal) == plain.returncode


def _moved(text: bytes, folder: Path) -> str:
    """Return what an ordinary interpreter said, as if the script had lain where it does in the sandbox."""
    return text.decode("utf-8", "replace").replace(str(folder), "/skill")


def _settled(text: str) -> str:
    """Return what was said without what differs from run to run: addresses, and how deep is too deep."""
    return re.sub(r"0x[0-9a-f]{8,}|repeated \d+ more", "…", text)


async def test_a_script_that_is_no_text_is_a_mistake_of_syntax_in_it(runner: Runner) -> None:
    outcome = await runner.run(ScriptRun(SKILL, "scripts/a.py", {"scripts/a.py": b"x = '\xff'\n"}))

    assert outcome.exit_code == 1
    assert "SyntaxError" in outcome.stderr
    assert "/skill/scripts/a.py" in outcome.stderr


async def test_a_script_that_ends_itself_by_a_signal_says_which(runner: Runner) -> None:
    python = await ran(runner, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    shell = await ran(runner, "kill -USR1 $$", name="a.sh")
    crash = await ran(runner, "import ctypes; ctypes.string_at(0)")

    assert [(one.ending, one.signal, one.exit_code) for one in (python, shell, crash)] == [
        (Ending.SIGNALLED, 15, None),
        (Ending.SIGNALLED, 10, None),
        (Ending.SIGNALLED, 11, None),
    ]
    assert python.verdict == "ended by SIGTERM"


async def test_a_large_output_arrives_whole(runner: Runner) -> None:
    outcome = await ran(
        runner,
        """
import hashlib, os
data = bytes(range(256)) * 40000
open("/out/data.bin", "wb").write(data)
print(hashlib.sha256(data).hexdigest())
""",
    )

    (file,) = outcome.files
    assert hashlib.sha256(file.content).hexdigest() == outcome.stdout.strip()


async def test_a_script_without_an_interpreter_is_refused_and_not_guessed(runner: Runner) -> None:
    for name in ("a.rb", "a", "a.PY", "a.py.txt", "py"):
        with pytest.raises(RunnerError) as caught:
            await ran(runner, "#!/usr/bin/python3\nprint(1)", name=name)
        assert ".py" in caught.value.fix


EXAMPLE_RUNS: dict[str, tuple[str, dict[str, JsonValue]]] = {
    "csv-insights": ("profile.py", {"csv": "name,age\nann,30\nbob,40\n"}),
    "sql-review": ("lint_sql.py", {"sql": "SELECT * FROM users"}),
}


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize("name", EXAMPLE_RUNS)
async def test_the_scripts_of_the_example_skills_run(name: str, runner: Runner) -> None:
    script, given = EXAMPLE_RUNS[name]
    async with DirectorySource(EXAMPLES) as source:
        entries = [entry async for entry in source.list_skills()]
        (entry,) = [one for one in entries if f"/{name}/" in f"/{one.uri.text.removeprefix('skill://')}"]

        run = await prepare(entry, script, given, source.read_file)
        outcome = await runner.run(run)

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout or outcome.files


@pytest.mark.requirement("EXEC-12")
async def test_the_environment_is_this_and_nothing_else(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "x")

    python = await ran(runner, "import os; print(sorted(os.environ))")
    shell = await ran(runner, "env | cut -d= -f1 | sort | tr '\\n' ' '", name="a.sh")

    wanted = ["HOME", "LANG", "OUTPUT_DIR", "PATH", "SKILL_DIR", "TMPDIR"]
    assert python.stdout == f"{wanted}\n"
    assert set(shell.stdout.split()) - {"_", "PWD", "SHLVL", "OLDPWD"} == set(wanted)
    assert "TOKEN" in os.environ
