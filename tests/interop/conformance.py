"""Running the official conformance suite against a server, and reading its results."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from interop.tools import CONFORMANCE, Node
from interop.truth import Json

# The extension's scenarios, and how many checks must have passed at each revision; two look at cache fields
# that 2025-11-25 does not have.
SKILLS: Mapping[str, Mapping[str, int]] = {
    "sep-2640-skills-enumeration": {"2025-11-25": 30, "2026-07-28": 32},
    "sep-2640-skills-directory": {"2025-11-25": 7, "2026-07-28": 7},
    "sep-2640-skills-manifest": {"2025-11-25": 6, "2026-07-28": 6},
}


def conformance(node: Node, url: str, asked: list[str], folder: Path) -> Iterator[tuple[str, Json]]:
    """Run the suite and yield each scenario that ran, with its checks."""
    done = node.run(CONFORMANCE, "server", "--url", url, *asked, "--timeout", "15000", "-o", folder)
    results = sorted(folder.glob("*/checks.json"))
    assert results, done.stdout + done.stderr
    for result in results:
        name = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", result.parent.name)
        assert name, result.parent.name
        yield name[1], json.loads(result.read_text("utf-8"))


def objections(checks: Json, excused: Collection[str] = ()) -> list[str]:
    """Say which checks found a fault or gave a warning."""
    return [
        f"{check['id']}: {check['status']}: {check.get('errorMessage')} {check.get('details')}"
        for check in checks
        if check["status"] not in ("SUCCESS", "INFO", "SKIPPED") and check["id"] not in excused
    ]
