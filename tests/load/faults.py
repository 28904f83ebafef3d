"""A server that things happen to: what it serves, what it says meanwhile, and when it is well again."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import write_skill
from load.corpus import digest_of
from serving import HttpServer, Json, modern, wait_until, words_of
from talking import content_of

# How long it may take until a change, or the end of a fault, shows on a machine with other work.
SOON = 15.0
_IS_STRICT = bool(os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL"))


def need(is_there: bool, what: str) -> None:
    """Skip a test for want of something; where nothing may be missing, fail instead."""
    if not is_there and _IS_STRICT and sys.platform == "linux":
        pytest.fail(f"missing here: {what}")
    if not is_there:
        pytest.skip(f"missing here: {what}")


def without_privileges() -> list[str]:
    """Return what to put before a command, so that even root may not read what permissions forbid."""
    if os.geteuid() != 0:
        return []
    need(shutil.which("setpriv") is not None, "setpriv, from util-linux")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all", "--"]


def with_limits(**limits: int) -> list[str]:
    """Return what to put before a command, so that the kernel gives it no more of something than this."""
    need(shutil.which("unshare") is not None, "unshare, from util-linux")
    settings = " && ".join(f"echo {value} > /proc/sys/user/{name}" for name, value in limits.items())
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{settings} && exec "$@"', "sh"]
    tried = subprocess.run([*command, "true"], capture_output=True, timeout=30, check=False)
    need(tried.returncode == 0, f"a user namespace with limits ({tried.stderr.decode().strip()})")
    return command


@contextmanager
def full_disk(folder: Path, *, kilobytes: int) -> Generator[None]:
    """Mount a disk of a few kilobytes at `folder`."""
    need(os.geteuid() == 0, "the right to mount a disk")
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    tried = subprocess.run(mount, capture_output=True, timeout=30, check=False)
    need(tried.returncode == 0, f"the right to mount a disk ({tried.stderr.decode().strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], timeout=30, check=True)


class Ward:
    """A server and the folder it serves; it holds one skill, `well`, that no fault may reach."""

    def __init__(self, server: HttpServer, root: Path) -> None:
        self.server = server
        self.root = root
        self._said = 0

    def ask(self, method: str, **params: str) -> Json:
        return self.server.call(modern(method, **params))

    def listed(self) -> dict[str, Json]:
        """Return the entries of the first page by URI."""
        return {entry["uri"]: entry for entry in self.ask("skills/list")["result"]["skills"]}

    def publishes(self, path: str) -> bool:
        return f"skill://{path}/SKILL.md" in self.listed()

    def read(self, uri: str) -> bytes | int:
        """Return a file's bytes, or the code of the refusal.

        They must be what the entry before promised, or the one right after.
        """
        before = self._promised(uri)
        answer = self.ask("resources/read", uri=uri)
        if "error" in answer:
            return answer["error"]["code"]
        content = content_of(answer["result"]["contents"][0])
        promised = before | self._promised(uri)
        assert digest_of(content) in promised, f"{uri} is not what any entry promises"
        return content

    def _promised(self, uri: str) -> set[str]:
        lines = [line for entry in self.listed().values() for line in entry["resources"]]
        return {line["digest"] for line in lines if line["uri"] == uri}

    def is_serving(self) -> bool:
        return self.read("skill://well/a.md") == b"well"

    def until(self, condition: Callable[[], bool], what: str, within: float = SOON) -> float:
        return wait_until(condition, within, f"{what}; it said:\n{self.server.words[-2000:]}")

    def said(self, pattern: str = "") -> list[str]:
        """Return the lines said since `hush` that have the pattern in them."""
        lines = self.server.words[self._said :].splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def hush(self) -> None:
        """Forget what was said so far."""
        self._said = len(self.server.words)


@contextmanager
def ward(
    folder: Path,
    *options: str,
    env: Mapping[str, str],
    before: Sequence[str] = (),
) -> Generator[Ward]:
    """Serve a new folder at `folder`, with a command before the server's own."""
    root = folder / "skills"
    write_skill(root / "well", {"a.md": "well"})

    process = subprocess.Popen(
        [*before, *words_of(root, "--http", "127.0.0.1:0", *options)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    server = HttpServer(process, "127.0.0.1")
    try:
        server.wait_for_url()
        sick = Ward(server, root)
        _wait_for_the_watch(sick)
        sick.hush()
        yield sick
    finally:
        server.release()


def _wait_for_the_watch(sick: Ward) -> None:
    """Wait until changes are noticed, however that is done."""
    write_skill(sick.root / "first")
    sick.until(lambda: sick.publishes("first"), "the first change is noticed")
    shutil.rmtree(sick.root / "first")
    sick.until(lambda: not sick.publishes("first"), "the second change is noticed")


def pause(seconds: float) -> None:
    """Let time go by, in which something must not happen."""
    time.sleep(seconds)
