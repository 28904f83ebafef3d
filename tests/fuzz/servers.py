"""A real server of everything, for many questions; and what there is to ask it for."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck

from configs import configured
from folders import skill_md, write_files
from integration.both_paths import write_catalog
from integration.odd_requests import Targets
from serving import HttpServer, environment, http_server, modern
from skillwire.server.access.tokens import Token, digest_of, new_secret

FACTOR = int(os.environ.get("SKILLWIRE_FUZZ_FACTOR", "1"))
"""How many times as much to ask as usually; `scripts/fuzz` sets it."""

DIALECTS = ("index-june", "list-march", "primitive", "prompt", "well-known")
HIDDEN = b"xyzzyplugh"
"""A word that stands only in a skill which nobody may see."""

_NO_HURRY = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture)
_MOST_MEMORY = 400 * 1024 * 1024
_RULES = """
[[rule]]
tokens = ["clerk"]
see = ["acme/billing"]
"""


def asking(times: int, *, steps: int = 50) -> hypothesis.settings:
    """Return the settings for so many examples; none is kept, and each run asks for others."""
    return hypothesis.settings(
        max_examples=times * FACTOR,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=_NO_HURRY,
    )


@contextmanager
def serving(folder: Path, *options: str | Path, **more: object) -> Generator[HttpServer]:
    """Serve a catalog with all there is to serve it with, and see that nothing went wrong unseen."""
    write_catalog(folder / "skills")
    (folder / "home").mkdir()
    spoken = [word for name in DIALECTS for word in ("--dialect", name)]
    config = configured(folder, find=True, mirror=True, page_size=3, **more)
    everything = (folder / "skills", "--no-watch", *config, *spoken)
    with http_server(*everything, *options, env=environment(folder / "home")) as server:
        yield server
        assert server.process.poll() is None, server.words
        assert memory_of(server.pid) < _MOST_MEMORY
        assert server.stop() == 0
        assert "Traceback" not in server.words, server.words


@contextmanager
def guarding(folder: Path) -> Generator[tuple[HttpServer, str]]:
    """Serve to holders of tokens, one of which is returned; it is good for a part of the skills."""
    word = HIDDEN.decode()
    hidden = skill_md("vault", body=f"{word}\n", extra=f"license: {word}\n")
    write_files(folder / "skills", {"hidden/vault/SKILL.md": hidden, "hidden/vault/references/a.md": word})
    secret = new_secret("clerk")
    tokens, rules = folder / "tokens", folder / "rules.toml"
    tokens.write_text(f"{Token('clerk', digest_of(secret)).line}\n")
    tokens.chmod(0o600)
    rules.write_text(_RULES)
    with serving(folder, "--token-file", tokens, access=rules) as server:
        yield server, secret


def memory_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return 0  # Other systems keep it elsewhere.
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def targets_of(server: HttpServer, **headers: str) -> Targets:
    """Ask a server what there is to ask for."""
    cursors: list[str] = []
    skills: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        result = server.call(modern("skills/list", **params), **headers)["result"]
        skills += result["skills"]
        if "nextCursor" not in result:
            break
        cursors.append(result["nextCursor"])
        params = {"cursor": result["nextCursor"]}
    files = sorted({line["uri"] for skill in skills for line in skill["resources"]})
    folders = sorted({file.rpartition("/")[0] for file in files})
    more = [
        (folder, result["nextCursor"])
        for folder in folders
        if "nextCursor"
        in (result := server.call(modern("resources/directory/read", uri=folder), **headers)["result"])
    ]
    return Targets(
        tuple(skill["uri"] for skill in skills), tuple(files), tuple(folders), tuple(cursors), tuple(more)
    )
