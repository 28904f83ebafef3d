"""Running the official conformance suite against a client, and reading what became of it."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from interop.tools import CONFORMANCE, Node
from interop.truth import Json
from programs import script_command

CLIENTS = Path(__file__).parent / "clients"

# Inside the client's own deadlines, so that a client that hangs says where.
CLIENT_MILLISECONDS = 60_000


@dataclass(frozen=True, slots=True)
class Visit:
    """What the suite found in one scenario, and what the client printed."""

    checks: Json
    words: str

    @property
    def passed(self) -> list[str]:
        """The ids of the checks that the client passed."""
        return [check["id"] for check in self.checks if check["status"] == "SUCCESS"]

    @property
    def refused(self) -> list[str]:
        """The codes of what the client says it refused, in order."""
        return re.findall(r"^refused \[([a-z-]+)\]", self.words, re.MULTILINE)

    @property
    def listed(self) -> list[str]:
        """The references of the skills the client says it has listed; it fails if it says nothing of that."""
        [found] = re.findall(r"^listed:(.*)$", self.words, re.MULTILINE)
        return found.split()


def visit(node: Node, client: str, scenario: str, revision: str, folder: Path) -> Visit:
    """Let one of the clients beside these tests visit the suite's server for a scenario."""
    asked = ["--command", shlex.join(script_command(CLIENTS / client))]
    asked += ["--scenario", scenario, "--spec-version", revision, "--force"]
    asked += ["--timeout", str(CLIENT_MILLISECONDS), "-o", str(folder)]
    done = node.run(CONFORMANCE, "client", *asked)
    found = list(folder.glob(f"{scenario}-*/checks.json"))
    assert len(found) == 1, done.stdout + done.stderr
    assert "TIMED OUT" not in done.stderr, done.stderr
    checks = json.loads(found[0].read_text("utf-8"))
    return Visit(checks, found[0].with_name("stdout.txt").read_text("utf-8"))
