"""Which package may import which, and the public names of each."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skillwire
import skillwire.core
import skillwire.host
import skillwire.runner
import skillwire.server
import skillwire.sources
import skillwire.sources.wellknown

SRC = Path(skillwire.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "lazy": set(),
    "core": {"lazy"},
    "wire": {"core", "lazy"},
    "runner": {"core", "lazy"},
    "search": {"core"},
    "sources": {"core", "lazy", "wire"},
    "catalog": {"core", "lazy", "search", "sources", "wire"},
    "server": {"core", "lazy", "runner", "search", "sources", "wire"},
    "host": {"core", "lazy", "runner", "search", "sources", "wire"},
    "gateway": {"core", "host", "lazy", "runner", "search", "server", "sources", "wire"},
    "bridge": {"core", "host", "lazy", "runner", "search", "server", "wire"},
    "cli": {
        "bridge",
        "catalog",
        "core",
        "gateway",
        "host",
        "lazy",
        "runner",
        "search",
        "server",
        "sources",
        "wire",
    },
    "__init__": {"core", "lazy"},
    "__main__": {"cli"},
}

LAZY = [
    "skillwire.catalog",
    "skillwire.host",
    "skillwire.host.model",
    "skillwire.runner",
    "skillwire.server",
    "skillwire.sources",
]


def is_own(node: ast.AST) -> bool:
    """Return whether a statement imports a module of this project."""
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == "skillwire"
    return isinstance(node, ast.Import) and any(name.name.split(".")[0] == "skillwire" for name in node.names)


def statement_of(tree: ast.Module) -> ast.If:
    """Return the one statement `if TYPE_CHECKING:` of a module."""
    [found] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return found


def imported_names(package: str, statement: ast.If) -> dict[str, set[str]]:
    """Return the names that are imported for type checkers, by their module within the package."""
    found: dict[str, set[str]] = {}
    for node in statement.body:
        assert isinstance(node, ast.ImportFrom) and node.module is not None, ast.unparse(node)
        assert node.module.startswith(f"{package}."), node.module
        assert all(name.asname in (None, name.name) for name in node.names), node.module
        found.setdefault(node.module.removeprefix(f"{package}."), set()).update(
            one.name for one in node.names
        )
    return found


def tabled_names(statement: ast.If) -> dict[str, set[str]]:
    """Return the names in the table for `lazy_names`, by their module within the package."""
    [assignment] = statement.orelse
    assert isinstance(assignment, ast.Assign) and ast.unparse(assignment.targets[0]) == "__getattr__"
    call = assignment.value
    assert isinstance(call, ast.Call) and ast.unparse(call.func) == "lazy_names"
    package, table = call.args
    assert ast.unparse(package) == "__name__"
    return {module: set(names.split()) for module, names in ast.literal_eval(table).items()}


def test_packages_import_only_packages_below_them() -> None:
    for path in SRC.rglob("*.py"):
        package = path.relative_to(SRC).parts[0].removesuffix(".py")
        imported = set(re.findall(r"(?m)^[ \t]*(?:from|import) skillwire\.(\w+)", path.read_text("utf-8")))
        assert imported <= MAY_IMPORT[package] | {package}, path


def test_no_module_imports_its_own_project_inside_a_function() -> None:
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert not any(map(is_own, ast.walk(node))), (path, node.name)


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_package_has_the_same_names_for_type_checkers_and_at_run_time(name: str) -> None:
    package = importlib.import_module(name)
    statement = statement_of(ast.parse(inspect.getsource(package)))

    names = imported_names(name, statement)

    assert tabled_names(statement) == names
    public = {one.name for node in statement.body for one in node.names if one.asname is None}  # pyright: ignore
    assert public <= set(package.__all__)


@pytest.mark.parametrize("name", LAZY)
def test_every_name_of_a_lazy_package_is_the_one_of_its_module(name: str) -> None:
    # In a process of its own, where no other test has imported modules of the package. Each name is imported
    # twice: importing a module sets an attribute of its package, which would hide a name spelled like it.
    statement = statement_of(ast.parse(inspect.getsource(importlib.import_module(name))))
    names = sorted(one for of_module in tabled_names(statement).values() for one in of_module)
    code = (
        "import importlib, inspect, sys\n"
        f"package = importlib.import_module({name!r})\n"
        f"for name in {names!r} * 2:\n"
        f"    exec(f'from {name} import {{name}} as found')\n"
        "    assert not inspect.ismodule(found), name\n"
        "print('imported')"
    )

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert result.stdout == "imported\n", result.stderr


def test_every_package_with_lazy_names_is_checked_here() -> None:
    using = [path for path in SRC.rglob("*.py") if "= lazy_names(" in path.read_text("utf-8")]

    assert sorted(path.relative_to(SRC.parent).as_posix() for path in using) == [
        f"{name.replace('.', '/')}/__init__.py" for name in LAZY
    ]


def test_core_knows_nothing_of_files_networks_or_event_loops() -> None:
    forbidden = r"^[ \t]*(?:from|import) (?:os|pathlib|socket|asyncio|anyio|mcp|subprocess)\b"
    for path in (SRC / "core").rglob("*.py"):
        assert not re.search(forbidden, path.read_text("utf-8"), re.MULTILINE), path


def test_the_public_names_of_the_project_are_pinned() -> None:
    assert sorted(skillwire.__all__) == [
        "Finding",
        "Frontmatter",
        "InvalidSkillError",
        "Manifest",
        "ManifestFile",
        "NotFoundError",
        "Severity",
        "Skill",
        "SkillEntry",
        "SkillError",
        "SkillUri",
        "SourceError",
        "VerificationError",
        "__version__",
        "validate",
    ]


def test_the_public_names_of_core_are_pinned() -> None:
    # It also has every name that the other packages use.
    assert set(skillwire.core.__all__) >= {
        "MAX_FILES",
        "MAX_TOTAL_SIZE",
        "RULES",
        "SKILL_FILE",
        "Finding",
        "Frontmatter",
        "HiddenCharacter",
        "Manifest",
        "ManifestFile",
        "Rule",
        "Severity",
        "Skill",
        "SkillDocument",
        "SkillEntry",
        "SkillFile",
        "SkillUri",
        "canonical_uri",
        "check_entry",
        "digest_of",
        "entry_findings",
        "hidden_characters",
        "media_type_of",
        "parse_entry",
        "parse_skill_md",
        "revealed",
        "same_value",
        "validate",
        "visible",
    }


def test_the_public_names_of_sources_are_pinned() -> None:
    assert sorted(skillwire.sources.__all__) == [
        "Changes",
        "CombinedSource",
        "DirectorySource",
        "DynamicSkill",
        "LiveSource",
        "MemorySource",
        "PackageSource",
        "Report",
        "Snapshot",
        "Source",
    ]


def test_the_public_names_of_server_and_host_are_pinned() -> None:
    assert sorted(skillwire.server.__all__) == [
        "Annotate",
        "DynamicSkill",
        "ListingRules",
        "Skill",
        "Skills",
        "Subject",
        "add_skills",
        "pointer_to",
        "with_format",
    ]
    assert sorted(skillwire.host.__all__) == [
        "Approval",
        "ApprovalError",
        "ArchivePolicy",
        "Ask",
        "ConfigError",
        "ConnectionLimits",
        "Conversation",
        "FileTokenStorage",
        "Grant",
        "Guard",
        "Host",
        "HostEvent",
        "HostLimits",
        "HostPolicy",
        "HttpEndpoint",
        "KnownSkill",
        "ListingForm",
        "LoadedSkill",
        "LocalRoot",
        "Occasion",
        "Origin",
        "PromptLimits",
        "Provenance",
        "ProvenanceProvider",
        "ProvenanceVerdict",
        "Question",
        "Refusal",
        "RefusedError",
        "Reply",
        "ServerConfig",
        "ShowRule",
        "SiteEndpoint",
        "SkillActivated",
        "SkillSettings",
        "StdioEndpoint",
        "Storage",
        "Tool",
        "ToolCall",
        "ToolKind",
        "ToolResult",
        "Toolbox",
        "Trust",
        "Verdict",
        "ask_in_terminal",
        "find_config",
        "get_skill",
        "list_skills",
        "oauth_for",
        "read_servers",
        "text_of_question",
    ]


def test_serving_loads_no_framework_but_the_sdk() -> None:
    code = "import sys, skillwire.server.http.server, skillwire.server.stdio; print('fastmcp' in sys.modules)"

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("module", ["skillwire", "skillwire.cli.app"])
def test_importing_a_package_loads_neither_the_mcp_sdk_nor_an_event_loop(module: str) -> None:
    heavy = {"mcp", "asyncio", "watchfiles", "skillwire.sources"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout.strip() == "[]"


def test_sites_have_public_names_of_their_own() -> None:
    # They need an HTTP library, which a server of folders can do without.
    assert skillwire.sources.wellknown.__all__ == ["WellKnownSource"]


def test_the_public_names_of_the_runner_are_pinned() -> None:
    assert sorted(skillwire.runner.__all__) == [
        "Availability",
        "Ending",
        "Interpreter",
        "LimitHit",
        "Limits",
        "Outcome",
        "OutputFile",
        "Policy",
        "PolicyError",
        "ReadFile",
        "Recorder",
        "RunRecord",
        "RunSlot",
        "Runner",
        "ScriptInterface",
        "ScriptRule",
        "ScriptRun",
        "SecretSource",
        "SkippedOutput",
        "Usage",
        "find_script",
        "interfaces_of",
        "load_policy",
        "parse_policy",
        "prepare",
        "scripts_of",
    ]
