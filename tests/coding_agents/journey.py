"""One agent's journey with the bridge: a program that takes the agent's name and an empty folder.

It is meant for a network namespace that has only loopback, and prints a
`JourneyReport`. The agent, its model and a remote server of skills run side by side;
between two answers of the model, a user approves what was refused with the
command that the refusal names, and the server's skill is changed.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import serving
from coding_agents.agents import AGENTS, PROMPT, CodingAgent
from coding_agents.scripted_model import CODE, SEARCH, Json, ModelServer, ScriptStep, Shown, scripted_model

BRIDGE = ("skillwire", "bridge")
SETUP = ("skillwire", "setup")

LABEL = "team"
SKILL = f"{LABEL}/refunds"
LONG = f"{LABEL}/manual"
WORDS = "pay an order back"
"""What a model that searches for tools searches for: words of the skill, not of the tool."""
FILE = "references/limits.md"
# The manual is longer than any agent shows of one result, in bytes and in lines.
FILES: Mapping[str, str] = {
    "refunds/SKILL.md": "---\nname: refunds\ndescription: Pay an order back.\n---\n"
    "Ask for the order number.\n",
    f"refunds/{FILE}": "At most 50 euros without a manager.\n",
    "manual/SKILL.md": "---\nname: manual\ndescription: All there is to know.\n---\n"
    + "".join(f"Rule {number}: keep it.\n" for number in range(1, 3001)),
}
REFUSED_AGAIN = "has changed"
CHANGED = "Ask for the order number and for the receipt.\n"

AGENT_ENDS_WITHIN = 150.0
COMMAND_ENDS_WITHIN = 60.0
KEPT = 4000
END = "The journey is over."
_COMMAND = re.compile(r"`(skillwire approve [^`]+)`")


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of the agent: how it ended, what its model was shown, what it and the bridge said."""

    code: int
    output: str
    first: Json
    """What the model was shown first: texts, each with its place, and tools."""
    last: Json
    """What it was shown last, with the results of all calls."""
    asked: list[Json]
    """What the agent sent to the bridge."""
    answered: list[Json]
    """What the bridge sent to the agent."""
    others: list[str]
    """The paths of what the agent asked the model for besides."""
    failures: list[str]


@dataclass(frozen=True, slots=True)
class JourneyReport:
    """What a journey showed."""

    interfaces: list[str]
    """The network interfaces there were."""
    runs: list[RunReport]
    approved: list[list[str]]
    """What each refusal named as the command that approves it, and what that command then printed."""
    seconds: float

    @classmethod
    def from_json(cls, text: str) -> "JourneyReport":
        """Return the report that a journey printed."""
        found: Json = json.loads(text)
        runs = [RunReport(**run) for run in found.pop("runs")]
        return cls(runs=runs, **found)


class Journey:
    """The folders, the user and the server's owner of one journey."""

    def __init__(self, agent: CodingAgent, folder: Path) -> None:
        self._agent = agent
        self._folder = folder
        self._skills = folder / "skills"
        self._project = folder / "project"
        self._home = folder / "home"
        self._config = folder / "mcp.json"
        self._model: ModelServer | None = None
        self._approved: list[list[str]] = []

    def run(self) -> JourneyReport:
        """Run the agent on the first day, when it meets the skills and one changes, and on the next.

        On the first day, what the agent and the bridge say to each other is recorded; on the next, the
        configuration is what `skillwire setup` writes. A last run is for the prompt that a skill also is.
        """
        start = time.monotonic()
        for name, text in FILES.items():
            self._write_skill(name, text)
        for path in (self._project, self._folder / "tmp"):
            path.mkdir()
        with serving.http_server(self._skills, env=serving.environment(self._folder / "server")) as server:
            self._config.write_text(json.dumps({"mcpServers": {LABEL: {"type": "http", "url": server.url}}}))
            runs = [
                self._run_with(self._first_steps(), self._recorded_bridge()),
                self._run_with(self._second_steps(), ()),
            ]
            if self._agent.prompting:
                runs.append(self._run_with((), (), self._agent.prompting))
        return JourneyReport(
            interfaces=[name for _, name in socket.if_nameindex()],
            runs=runs,
            approved=self._approved,
            seconds=round(time.monotonic() - start, 1),
        )

    def _first_steps(self) -> Sequence[ScriptStep]:
        load = {"skill": SKILL}
        start = (
            ScriptStep("load_skill", load),
            ScriptStep("load_skill", load, first=self._approve),
            ScriptStep("read_skill_file", {**load, "path": FILE}),
        )
        end = (
            ScriptStep("load_skill", load, first=self._change, until=REFUSED_AGAIN),
            ScriptStep("load_skill", load, first=self._approve),
        )
        long = (
            ScriptStep("search_skills", {"query": "manual"}),
            ScriptStep("load_skill", {"skill": LONG}),
            ScriptStep("load_skill", {"skill": LONG}, first=self._approve),
            ScriptStep("load_skill", {"skill": LONG, "page": 2}),
        )
        match self._agent.finding:
            case "listed":
                return (*start, *long, *end)
            case "searched":
                return (ScriptStep(SEARCH, {"query": "load skill"}), *start, *end)
            case "coded":
                return (*map(_in_code, (*start, *end)),)

    def _second_steps(self) -> Sequence[ScriptStep]:
        load = ScriptStep("load_skill", {"skill": SKILL})
        match self._agent.finding:
            case "listed":
                return (load,)
            case "searched":
                return (ScriptStep(SEARCH, {"query": WORDS}), load)
            case "coded":
                return (_in_code(load),)

    def _recorded_bridge(self) -> list[str]:
        """Return a command that runs the bridge, and keeps what goes in and out."""
        bridge = shlex.join([*BRIDGE, "--config", str(self._config)])
        asked, answered = (shlex.quote(str(self._folder / name)) for name in ("asked", "answered"))
        return ["sh", "-c", f"tee {asked} | {bridge} | tee {answered}"]

    def _run_with(
        self, steps: Sequence[ScriptStep], bridge: Sequence[str], prompt: Sequence[str] = (PROMPT,)
    ) -> RunReport:
        """Run the agent with this command for the bridge; without one, `skillwire setup` adds it."""
        for name in ("asked", "answered"):
            (self._folder / name).unlink(missing_ok=True)
        with scripted_model(self._agent.api(), [*steps, ScriptStep(text=END)]) as model:
            self._model = model
            self._agent.configure(self._home, model.url, bridge)
            if not bridge:
                self._command(*SETUP, self._agent.client, "--yes", "--config", str(self._config))
            code, output = self._run_agent(model, prompt)
        shown = model.shown or [Shown((), {}, ())]
        return RunReport(
            code,
            output,
            asdict(shown[0]),
            asdict(shown[-1]),
            self._messages("asked"),
            self._messages("answered"),
            model.others,
            model.failures,
        )

    def _run_agent(self, model: ModelServer, prompt: Sequence[str]) -> tuple[int, str]:
        process = subprocess.Popen(
            self._agent.command(shutil.which("node") or "node", prompt),
            cwd=self._project,
            env={**self._environment(), **self._agent.environment(model.url)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=AGENT_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            model.failures.append(f"the agent did not end within {AGENT_ENDS_WITHIN} s")
        return process.returncode, output.decode(errors="replace")[-KEPT:]

    def _messages(self, name: str) -> list[Json]:
        path = self._folder / name
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []

    def _approve(self) -> None:
        """Do what the last refusal says, as a user would in a terminal: review the skill, then approve it."""
        assert self._model is not None
        found = _COMMAND.search(self._model.shown[-1].results[-1])
        assert found, "the last result names no command that approves"
        words = shlex.split(found[1])
        review = ["show" if word == "approve" else word for word in words]
        binding: str = json.loads(self._command(*review, "--json"))["binding"]
        self._approved.append([found[1], self._command(*words, "--yes", "--digest", binding)])

    def _change(self) -> None:
        self._write_skill("refunds/SKILL.md", FILES["refunds/SKILL.md"] + CHANGED)

    def _command(self, *words: str) -> str:
        done = subprocess.run(
            words,
            cwd=self._project,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=COMMAND_ENDS_WITHIN,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
        return done.stdout

    def _write_skill(self, name: str, text: str) -> None:
        path = self._skills / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)

    def _environment(self) -> dict[str, str]:
        """Return what a user's terminal has: nothing from here but the programs."""
        paths = [sysconfig.get_path("scripts"), os.environ["PATH"]]
        return {
            "HOME": str(self._home),
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join(paths),
            "TERM": "xterm-256color",
            "TMPDIR": str(self._folder / "tmp"),
        }


def _in_code(step: ScriptStep) -> ScriptStep:
    """Return the step that calls a tool from code, which finds it in the list of all tools."""
    if not step.tool:
        return step
    find = f"const found = ALL_TOOLS.find((tool) => tool.name.endsWith({json.dumps(step.tool)}));"
    call = f"text(await tools[found.name]({json.dumps(dict(step.arguments))}));"
    return ScriptStep(CODE, {"code": f"{find}\ntext(found.description);\n{call}"}, "", step.first, step.until)


def main(name: str, folder: str) -> None:
    [agent] = [agent for agent in AGENTS if agent.name == name]
    journey = Journey(agent, Path(folder))
    sys.stdout.write(json.dumps(asdict(journey.run())))


if __name__ == "__main__":
    main(*sys.argv[1:])
