"""Running programs under the filter of system calls, and nothing else of the sandbox."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from skillwire.runner.sandbox.seccomp import AARCH64, X86_64, filter_for

TIMEOUT = 60

TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
NUMBERS: Mapping[str, int] = TABLES.get(platform.machine(), {})

where_there_is_a_filter = pytest.mark.skipif(
    sys.platform != "linux" or not NUMBERS, reason="the filter is for Linux on x86_64 and aarch64"
)

INSTALL = """
import ctypes, os, sys

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

with open(sys.argv[1], "rb") as file:
    raw = file.read()
libc = ctypes.CDLL(None, use_errno=True)
none = ctypes.c_ulong(0)
if raw:
    program = Program(len(raw) // 8, raw)
    for option, first, second in ((38, 1, none), (22, 2, ctypes.byref(program))):
        if libc.prctl(option, ctypes.c_ulong(first), second, none, none) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Installs the filter in a file, unless that is empty, and becomes another program."""

PROBE = """
import ctypes, json, os, sys

libc = ctypes.CDLL(None, use_errno=True)

def call(number, arguments):
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    given = [ctypes.c_char_p(one.encode()) if isinstance(one, str) else ctypes.c_long(one) for one in words]
    return libc.syscall(ctypes.c_long(number), *given)

found = []
for number, arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        failed = call(number, arguments) == -1
        os._exit(ctypes.get_errno() if failed else 0)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(found))
"""
"""Makes system calls, each in a process of its own: zero, the error's number, or minus a signal."""


@dataclass(frozen=True, slots=True)
class Shell:
    """A place to run programs: under the filter, or, for comparison, without it."""

    folder: Path
    is_filtered: bool = True

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        raw = filter_for(platform.machine()) if self.is_filtered else b""
        file = self.folder / "filter"
        file.write_bytes(raw)
        command = [sys.executable, "-I", "-S", "-c", INSTALL, str(file), program, *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )

    def python(self, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "script.py"
        script.write_text(source, "utf-8")
        return self.run(sys.executable, "-I", str(script), *arguments)

    def call(self, calls: Sequence[tuple[int, Sequence[int | str]]]) -> list[int]:
        """Make system calls by their numbers, each in a process of its own, and tell what came of them."""
        done = self.run(sys.executable, "-I", "-S", "-c", PROBE, json.dumps(calls))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
