"""A process that runs scripts as a server would: it owns a `Runner` and does what it is told on a pipe.

Started by root it can become another user, after it has loaded all that it needs.
"""

import ctypes
import json
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import anyio
import anyio.to_thread

from skillwire.core.errors import SkillError
from skillwire.runner import Policy, Runner, ScriptRule
from skillwire.runner.interface import ScriptInterface, ScriptRun
from skillwire.runner.outcome import Outcome

SKILL = "skill://escape/SKILL.md"
KEEPER = "scripts/keeper.py"
"""The one script that is granted a secret."""

Answer = list[Outcome | str]
_PR_SET_DUMPABLE = 4


def send(stream: BinaryIO, value: object) -> None:
    content = pickle.dumps(value)
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Return what was sent; None when the other side is gone."""
    head = stream.read(8)
    return pickle.loads(stream.read(int.from_bytes(head, "big"))) if len(head) == 8 else None


def policy(secret: str) -> Policy:
    rule = ScriptRule(skill=SKILL, script=KEEPER, secrets={"KEY": secret.encode})
    return Policy(rules=(rule,), concurrent=4, queue=8)


async def run_all(runner: Runner, runs: Sequence[ScriptRun]) -> Answer:
    """Run scripts at the same time, and return what became of each."""
    found: dict[int, Outcome | str] = {}

    async def one(place: int, run: ScriptRun) -> None:
        try:
            found[place] = await runner.run(run)
        except SkillError as error:
            found[place] = f"{type(error).__name__}: {error}"

    async with anyio.create_task_group() as tasks:
        for place, run in enumerate(runs):
            tasks.start_soon(one, place, run)
    return [found[place] for place in range(len(runs))]


async def warm_up() -> None:
    """Run a script, so that everything is loaded that another user may not be able to read."""
    async with Runner(policy("secret")) as runner:
        script = b"print('{\"a\": 1}'); open('/out/a', 'w').write(open('/run/secrets/KEY').read())"
        interface = ScriptInterface(secrets=("KEY",))
        await run_all(runner, [ScriptRun(SKILL, KEEPER, {KEEPER: script}, {}, interface)] * 2)
        await run_all(runner, [ScriptRun(SKILL, "scripts/none", {"scripts/none": b""})])


async def serve(secret: str, incoming: BinaryIO, outgoing: BinaryIO) -> None:
    async with Runner(policy(secret)) as runner:
        send(outgoing, runner.availability.detail if not runner.availability.is_available else "")
        while (runs := await anyio.to_thread.run_sync(receive, incoming)) is not None:
            send(outgoing, await run_all(runner, runs))


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.setsid()
    os.open(settings["terminal"], os.O_RDWR)  # It becomes this session's terminal.
    if settings["uid"]:
        anyio.run(warm_up)
        become(settings["uid"])
    for number in settings["descriptors"]:
        os.set_inheritable(number, True)
    os.environ.update(settings["environment"])
    anyio.run(serve, settings["secret"], sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
