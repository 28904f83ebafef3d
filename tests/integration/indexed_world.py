"""What a server of resources serves, changed by tests while it runs, and how hosts reach it."""

import json
import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import script_command
from skillwire.core.dialects import Dialect
from skillwire.core.manifest import digest_of
from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, ServerConfig, SkillSettings, StdioEndpoint
from skillwire.wire.index import INDEX_URI

PROGRAM = Path(__file__).with_name("index_peer.py")
LABEL = "shop"
WIRES = (("stdio", "legacy"), ("stdio", "modern"), ("http", "legacy"), ("http", "modern"))
STOPPED_WITHIN = 20.0

Json = dict[str, Any]


def skill_text(name: str, body: str = "Do it.", *, extra: str = "") -> str:
    return f"---\nname: {name}\ndescription: Does {name}. Use when asked.\n{extra}---\n{body}\n"


def told(name: str) -> Json:
    """Return what an index says about `skill_text(name)`."""
    return {"name": name, "description": f"Does {name}. Use when asked."}


def digest(text: str) -> str:
    return digest_of(text.encode())


def june(uri: str, text: str, **fields: Any) -> Json:
    name = uri.split("/")[-2]
    return {"url": uri, "digest": digest(text), "frontmatter": told(name), **fields}


@dataclass(frozen=True)
class World:
    """One server, as it is configured and as it runs. `resources` may be changed before `publish`."""

    folder: Path
    endpoint: Endpoint
    era: str
    resources: dict[str, Any] = field(default_factory=dict[str, Any])

    def publish(self, index: object = None, **fields: Any) -> None:
        """Serve `resources` and an index from now on; an index that is None is not there."""
        served: Mapping[str, Any] = self.resources
        if index is not None:
            served = {**served, INDEX_URI: index if isinstance(index, str) else json.dumps(index)}
        path = world_file(self.folder)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"resources": served, **fields}), "utf-8")
        draft.replace(path)

    def server(self, *, dialect: Dialect | None = None, seconds: float = 20.0) -> ServerConfig:
        return ServerConfig(LABEL, self.endpoint, seconds=seconds, skills=SkillSettings(dialect=dialect))

    def asked(self, method: str = "resources/read") -> list[str]:
        """Return the URIs that a method was called with since the log was begun."""
        lines = [json.loads(line) for line in log_file(self.folder).read_text("utf-8").splitlines()]
        return [line["uri"] for line in lines if line["method"] == method]

    def methods(self) -> set[str]:
        return {json.loads(line)["method"] for line in log_file(self.folder).read_text("utf-8").splitlines()}

    def forget(self) -> None:
        """Begin the log anew."""
        log_file(self.folder).write_text("")


def world_file(folder: Path) -> Path:
    return folder / "world.json"


def log_file(folder: Path) -> Path:
    return folder / "log.jsonl"


@contextmanager
def world(
    folder: Path,
    transport: str,
    era: str,
    *,
    env: Mapping[str, str],
    declares: bool = True,
    program: Path = PROGRAM,
) -> Generator[World]:
    """Make a server; one at a URL runs until the block ends. What it declares, it declares at its start."""
    folder.mkdir(parents=True, exist_ok=True)
    world_file(folder).write_text(json.dumps({"resources": {}, "declares": declares}))
    log_file(folder).write_text("")
    command = script_command(program, world_file(folder), log_file(folder), era)
    if transport == "stdio":
        yield World(folder, StdioEndpoint(command[0], tuple(command[1:]), dict(env)), era)
        return
    process = subprocess.Popen([*command, "--http"], stdout=subprocess.PIPE, env={**os.environ, **env})
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        assert url, "the server did not start"
        yield World(folder, HttpEndpoint(url), era)
    finally:
        process.kill()
        process.wait(STOPPED_WITHIN)
        process.stdout.close()
