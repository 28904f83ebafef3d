"""The register of requirements, and which test proves each entry.

`python tests/requirements.py` prints the whole list. The marker
`@pytest.mark.requirement("URI-10")` ties a test to an entry of
`docs/requirements.md`; what no test proves yet waits for a reason named here.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
REGISTER = ROOT / "docs" / "requirements.md"

# Entries that describe a decision or a conflict; the rules they lead to are entries of their own.
RULINGS = frozenset({"CONF", "OPEN"})

# Why an entry without a test waits: by its whole ID, or else by its group.
WAITS: Mapping[str, str] = {
    "NEG": "the other side of negotiation comes with the host and the older dialects",
    "META": "an option nobody asked for yet, or the host's side",
    "LIST": "keeping a listing fresh comes with the host",
    "READ": "loading comes with the host",
    "DIR": "what a host makes of a directory comes with the host",
    "CACHE": "the cache comes with the host",
    "NEST": "consent for nested skills comes with the host",
    "HOST": "comes with the host",
    "FS": "local roots come with the host",
    "SEC": "comes with the host and the server's authorization",
    "APPR": "approvals come with the host",
    "SDK": "comes with the older dialects and the gateway",
    "TOOL": "the commands come with the rooms they drive",
    "IDX": "comes with the older dialects",
    "DRAFT": "comes with the older dialects",
    "P2076": "comes with the older dialects",
    "EXEC": "comes with the older dialects and the runner",
    "DUAL": "the prompt surface comes with the older dialects",
    "DISC": "comes with the well-known dialect",
    "ASK": "comes with the room that answers the request",
    "FMT-07": "what reserved metadata keys must not change is the server's and the host's behaviour",
    "FMT-12": "there is no later revision of the Agent Skills format yet",
    "URI-07": "what makes a resource a skill is decided by the host",
    "URI-08": "identity by server label comes with the host",
    "URI-09": "materialised paths come with the host",
    "INT-05": "loading comes with the host",
    "INT-06": "the acting window comes with the host",
    "INT-07": "recovery comes with the host",
    "INT-08": "fetching comes with the host",
    "INT-09": "decisions about trust come with the host",
    "INT-10": "reads over the wire come with the host",
    "LIM-04": "loading dynamic skills comes with the host",
    "LIM-05": "listings of strangers come with the host",
    "LIM-06": "reads over the wire come with the host",
    "LIM-07": "loading dynamic skills comes with the host",
    "NAME-01": "the registry comes with the host",
    "NAME-03": "the registry comes with the host",
    "NAME-04": "the registry comes with the host",
    "NAME-05": "labels come with the host",
    "NAME-06": "the registry comes with the host",
    "NAME-07": "the registry comes with the host",
    "NAME-08": "the registry comes with the host",
    "ARC-12": "where archives are unpacked to comes with the host",
    "ARC-13": "reads from unpacked archives come with the host",
    "ARC-14": "keys of unpacked trees come with the host",
    "ARC-16": "comparing an archive with its entry comes with the host",
    "ARC-17": "serving comes with the server",
    "ARC-18": "the policy comes with the host",
}


def register() -> list[str]:
    """Return the ID of every entry, in the order of the document."""
    return re.findall(r"^\|([A-Z][A-Z0-9]*-\d+)\|", REGISTER.read_text("utf-8"), re.MULTILINE)


def citations() -> dict[str, list[str]]:
    """Map each cited ID to the tests that cite it, as `file::name`."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for identifier in _marks(node.decorator_list):
                    found.setdefault(identifier, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _marks(decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def reason_to_wait(identifier: str) -> str | None:
    """Say why an entry has no test yet; None when there is no good reason."""
    group = identifier.rpartition("-")[0]
    if group in RULINGS:
        return "a ruling; the entries it leads to are tested"
    return WAITS.get(identifier) or WAITS.get(group)


def summary() -> str:
    """Count what is proven and what waits, by group."""
    cited = citations()
    groups: dict[str, list[bool]] = {}
    for identifier in register():
        groups.setdefault(identifier.rpartition("-")[0], []).append(identifier in cited)
    rules = {group: states for group, states in groups.items() if group not in RULINGS}
    proven = sum(map(sum, rules.values()))
    total = sum(map(len, rules.values()))
    parts = [f"{group} {sum(states)}/{len(states)}" for group, states in rules.items()]
    return f"requirements: {proven} of {total} proven, {total - proven} wait\n" + ", ".join(parts)


def main() -> None:
    cited = citations()
    for identifier in register():
        tests = cited.get(identifier, [])
        state = f"proven by {tests[0]}" if tests else f"waits: {reason_to_wait(identifier)}"
        print(f"{identifier:10} {state}")  # noqa: T201
    print(summary())  # noqa: T201


if __name__ == "__main__":
    main()
