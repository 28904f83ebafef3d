"""The register of requirements, and which test proves each entry.

`python tests/requirements.py` prints the whole list, and with `--write` puts
it at the end of `docs/requirements.md`. The marker
`@pytest.mark.requirement("URI-10")` ties a test to an entry of the register;
what no test proves yet waits for a reason named here.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
REGISTER = ROOT / "docs" / "requirements.md"

PROOF_HEADING = "## 22. How each entry stands"
PROOF_WORDS = (
    "Written by `python tests/requirements.py --write`. An entry is proven by at least one test that is "
    "marked with it, or waits for a named reason."
)

# Entries that describe a decision or a conflict; the rules they lead to are entries of their own.
RULINGS = frozenset({"CONF", "OPEN"})

# Why an entry without a test waits: by its whole ID, or else by its group.
WAITS: Mapping[str, str] = {
    "TOOL": "the commands come with the rooms they drive",
    "ASK-18": "short names for servers' skills would let a server take a name that means another one",
    "FMT-12": "there is no later revision of the Agent Skills format yet",
}


def register() -> list[str]:
    """Return the ID of every entry, in the order of the document."""
    text, _, _ = REGISTER.read_text("utf-8").partition(PROOF_HEADING)
    return re.findall(r"^\|([A-Z][A-Z0-9]*-\d+)\|", text, re.MULTILINE)


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


def state_of(identifier: str, cited: Mapping[str, list[str]]) -> str:
    """Say in one line how an entry stands."""
    if tests := cited.get(identifier, []):
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        return f"proven by `{tests[0]}`{more}"
    return f"waits: {reason_to_wait(identifier)}"


def proof() -> str:
    """Return the section of the register that says how each entry stands."""
    cited = citations()
    rows = "".join(f"|{identifier}|{state_of(identifier, cited)}|\n" for identifier in register())
    return f"{PROOF_HEADING}\n\n{PROOF_WORDS}\n\n|Entry|State|\n|---|---|\n{rows}"


def written_proof() -> str:
    """Return that section as it stands in the document; empty when there is none."""
    _, heading, rest = REGISTER.read_text("utf-8").partition(PROOF_HEADING)
    return heading + rest


def write_proof() -> None:
    """Bring the section in the document up to date."""
    text, _, _ = REGISTER.read_text("utf-8").partition(PROOF_HEADING)
    REGISTER.write_text(f"{text.rstrip()}\n\n{proof()}", "utf-8")


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
    if "--write" in sys.argv[1:]:
        write_proof()
    cited = citations()
    for identifier in register():
        print(f"{identifier:10} {state_of(identifier, cited)}")  # noqa: T201
    print(summary())  # noqa: T201


if __name__ == "__main__":
    main()
