"""The register of requirements, and which test proves each entry.

`python tests/requirements.py` prints the whole list, and with `--write` puts
it at the end of `docs/requirements.md`. The marker
`@pytest.mark.requirement("URI-10")` ties a test to an entry of the register:
the test fails when that rule is broken. Tests that only `scripts/test proof`
runs, marked with `@pytest.mark.proof`, do not count. What no test proves yet waits
for a reason named here, and what is proven only in part says what is missing.
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
    "marked with it and fails when the rule is broken, is proven in part, or waits for a named reason. "
    "Conflicts and ambiguities are decided; the decision is repeated where no test is marked with it, "
    "because the entries it leads to have tests of their own."
)

# Entries that describe a conflict or an ambiguity, and what was decided about it.
RULINGS = frozenset({"CONF", "OPEN"})

# Why an entry has no test.
WAITS: Mapping[str, str] = {
    "TOOL-05": "there is no `conformance` command; the official suite and our hostile servers run as tests",
    "ASK-18": "short names for servers' skills would let a server take a name that means another one",
    "FMT-12": "there is no later revision of the Agent Skills format yet",
}

# What is missing of an entry whose tests show only a part of it.
PARTS: Mapping[str, str] = {}


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
    if any(ast.unparse(decorator) == "pytest.mark.proof" for decorator in decorators):
        return
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def decisions() -> dict[str, str]:
    """Return what was decided about each conflict and ambiguity, as its row of the register says."""
    text, _, _ = REGISTER.read_text("utf-8").partition(PROOF_HEADING)
    rows = re.findall(r"^\|([A-Z]+-\d+)\|.*\|([^|]+)\|$", text, re.MULTILINE)
    return {identifier: decision for identifier, decision in rows if _group(identifier) in RULINGS}


def is_explained(identifier: str) -> bool:
    """Tell whether an entry may be without a test: it is decided, or waits for a reason."""
    return _group(identifier) in RULINGS or identifier in WAITS


def state_of(identifier: str, cited: Mapping[str, list[str]], decided: Mapping[str, str]) -> str:
    """Return in one line how an entry stands."""
    tests = cited.get(identifier, [])
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    proof = f"by `{tests[0]}`{more}" if tests else ""
    if identifier in decided:
        return f"decided, and proven {proof}" if proof else f"decided: {decided[identifier]}"
    if identifier in PARTS:
        return f"proven in part {proof}; missing: {PARTS[identifier]}"
    return f"proven {proof}" if proof else f"waits: {WAITS.get(identifier)}"


def _group(identifier: str) -> str:
    return identifier.rpartition("-")[0]


def proof() -> str:
    """Return the section of the register that says how each entry stands."""
    cited, decided = citations(), decisions()
    rows = "".join(f"|{identifier}|{state_of(identifier, cited, decided)}|\n" for identifier in register())
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
    """Count what is proven, what is proven in part and what waits, by group."""
    cited = citations()
    groups: dict[str, list[bool]] = {}
    for identifier in register():
        groups.setdefault(_group(identifier), []).append(identifier in cited)
    rules = {group: states for group, states in groups.items() if group not in RULINGS}
    proven = sum(map(sum, rules.values()))
    total = sum(map(len, rules.values()))
    parts = [f"{group} {sum(states)}/{len(states)}" for group, states in rules.items()]
    counts = f"{proven} of {total} proven, {len(PARTS)} of them in part, {total - proven} wait"
    return f"requirements: {counts}\n" + ", ".join(parts)


def main() -> None:
    if "--write" in sys.argv[1:]:
        write_proof()
    cited, decided = citations(), decisions()
    for identifier in register():
        print(f"{identifier:10} {state_of(identifier, cited, decided)}")  # noqa: T201
    print(summary())  # noqa: T201


if __name__ == "__main__":
    main()
