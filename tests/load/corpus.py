"""The folder that is served under load: a steady part nobody touches, and a restless part."""

import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from folders import skill_md, write_files

STEADY, RESTLESS = "steady", "restless"
# Files of the restless part that are only ever replaced in one step: nobody may see half of one.
WHOLE = "whole.md"
CARELESS = "careless.md"


def whole(number: int, salt: int) -> bytes:
    """Return a content that tells whether it is complete, of a length that varies."""
    return b"%d begins %d\n%s\n%d ends\n" % (number, salt, b"x" * (number * 37 % 3000), number)


def is_whole(content: bytes) -> bool:
    words = content.split()
    return len(words) >= 5 and words[1] == b"begins" and words[-1] == b"ends" and words[0] == words[-2]


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write_corpus(root: Path, *, steady: int, restless: int) -> dict[str, bytes]:
    """Make the folder, and return what every file of the steady part holds, by URI."""
    held: dict[str, bytes] = {}
    for number in range(steady):
        name = f"s-{number:04}"
        files: dict[str, bytes] = {
            "SKILL.md": skill_md(name, body="Do this and that.\n" * (number % 40)),
            "references/a.md": whole(number, 0),
            "assets/raw.bin": random.Random(number).randbytes(number * 97 % 20_000),
        }
        write_files(root / STEADY / name, files)
        held |= {f"skill://{STEADY}/{name}/{path}": content for path, content in files.items()}
    for number in range(restless):
        write_restless(root / RESTLESS / f"r-{number:04}", 0)
    return held


def write_restless(folder: Path, number: int) -> None:
    files: dict[str, bytes] = {
        "SKILL.md": skill_md(folder.name, body=f"As of {number}.\n"),
        WHOLE: whole(number, 1),
        f"deep/er/{CARELESS}": whole(number, 2),
    }
    write_files(folder, files)


class Mutator:
    """Changes the restless part all the time, as careful and careless people and programs do."""

    def __init__(self, root: Path, *, pause: float = 0.02, seed: int = 1) -> None:
        self.done: dict[str, int] = {}
        self._root = root / RESTLESS
        self._aside = root.parent / "aside"
        self._aside.mkdir(exist_ok=True)
        self._pause = pause
        self._random = random.Random(seed)
        self._number = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> "Mutator":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End, leaving every file whole; whatever went wrong comes out here."""
        self._stopping.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        kinds: list[Callable[[Path], None]] = [
            *[self.replace, self.overwrite, self.keep_times] * 3,
            self.half_write,
            self.add,
            self.remove,
            self.rename,
            self.move_away_and_back,
            self.touch,
            self.add_file,
        ]
        try:
            while not self._stopping.wait(self._pause):
                self._number += 1
                kind = self._random.choice(kinds)
                kind(self._random.choice(self._folders()))
                self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1
        except BaseException as error:
            self._failure = error

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._root.iterdir() if path.name.startswith("r-"))

    def replace(self, folder: Path) -> None:
        write_files(folder, {".next": whole(self._number, 1)})
        (folder / ".next").replace(folder / WHOLE)

    def overwrite(self, folder: Path) -> None:
        content = whole(self._number, 2)
        with (folder / "deep" / "er" / CARELESS).open("wb", buffering=0) as file:
            file.write(content[: len(content) // 2])
            time.sleep(self._random.choice([0, 0.001, 0.02]))
            file.write(content[len(content) // 2 :])

    def keep_times(self, folder: Path) -> None:
        """Change bytes and keep their number and their time, as some tools that copy do."""
        path = folder / "deep" / "er" / CARELESS
        found = path.stat()
        content = path.read_bytes()
        path.write_bytes(content.replace(b"x", b"y") if b"x" in content else content.replace(b"y", b"x"))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    def half_write(self, folder: Path) -> None:
        """Leave half a `SKILL.md` for longer than it takes to settle, then complete it."""
        content = skill_md(folder.name, body=f"As of {self._number}.\n")
        write_files(folder, {"SKILL.md": content[:20]})
        self._stopping.wait(0.3)
        write_files(folder, {"SKILL.md": content})

    def add(self, folder: Path) -> None:
        write_restless(self._root / f"r-{10_000 + self._random.randrange(20)}", self._number)

    def remove(self, folder: Path) -> None:
        if len(self._folders()) > 5:
            shutil.rmtree(folder)

    def rename(self, folder: Path) -> None:
        """Move a folder under another name, and give the skill that name a moment later."""
        new = self._root / f"r-{20_000 + self._number % 50}"
        if new.exists():
            return
        folder.rename(new)
        write_files(new, {".next": skill_md(new.name)})
        (new / ".next").replace(new / "SKILL.md")

    def move_away_and_back(self, folder: Path) -> None:
        folder.rename(self._aside / folder.name)
        self._stopping.wait(0.05)
        (self._aside / folder.name).rename(folder)

    def touch(self, folder: Path) -> None:
        for _ in range(200):
            os.utime(folder / "SKILL.md")

    def add_file(self, folder: Path) -> None:
        extra = folder / "more" / f"{self._number}.md"
        write_files(folder, {f"more/{extra.name}": whole(self._number, 3)})
        for old in sorted(extra.parent.iterdir())[:-3]:
            old.unlink()
