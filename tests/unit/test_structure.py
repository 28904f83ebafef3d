"""The structure of the source tree in figures: a figure may fall; it rises only in a commit that says why."""

import ast
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import skillwire

SRC = Path(skillwire.__file__).parent

LAYERS: dict[str, list[set[str]]] = {
    "host": [
        {"model"},
        {"state"},
        {"approval"},
        {"calls"},
        {"dialects"},
        {"connect"},
        {"registry"},
        {"use"},
        {"listing"},
        {"conversation", "host", "options"},
        {"adapters"},
    ],
    "server": [
        {"early", "messages", "limits", "listener", "visibility", "meta", "browse", "hosts"},
        {"listed"},
        {"answers", "archives", "changes", "outputs"},
        {"dialects"},
        {"index_updates", "search", "find_tool", "skills", "parameters", "methods"},
        {"wellknown", "attach", "fastmcp"},
        {"ops", "access"},
        {"options", "config"},
        {"fast", "handshake", "standalone", "stdio"},
        {"page"},
        {"http"},
    ],
}
"""Folders and modules inside a package, from the bottom: each imports its own layer and those before it."""

AT_MOST: dict[str, float] = {
    "modules": 273,
    "own imports per module": 4.5,
    "longest import chain": 21,
    "class names defined twice": 2,
    "modules that end in -ing": 4,
    "docstrings that begin with Tell, Say or Look": 0,
    "keywords of Host": 9,
    "options of serve": 17,
}


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed module, with the modules of this project that it imports."""

    tree: ast.Module
    is_package: bool
    imports: frozenset[str]


@cache
def modules() -> dict[str, Module]:
    paths = {_name_of(path): path for path in sorted(SRC.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in paths.items()}
    return {
        name: Module(
            tree, paths[name].name == "__init__.py", frozenset(_imports(tree, trees.keys()) - {name})
        )
        for name, tree in trees.items()
    }


def _name_of(path: Path) -> str:
    parts = ["skillwire", *path.relative_to(SRC).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, known: Set[str]) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found & known)


def _longest_chain() -> int:
    depths: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            return 0
        if name not in depths:
            depths[name] = 1 + max(
                (depth(other, (*above, name)) for other in modules()[name].imports), default=0
            )
        return depths[name]

    return max(depth(name, ()) for name in modules())


def _nodes() -> Iterator[ast.AST]:
    for module in modules().values():
        yield from ast.walk(module.tree)


def _repeated_classes() -> dict[str, int]:
    names = Counter(node.name.lstrip("_") for node in _nodes() if isinstance(node, ast.ClassDef))
    return {name: count for name, count in names.items() if count > 1}


def _first_words() -> Iterator[str]:
    for node in _nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield (ast.get_docstring(node) or "").partition(" ")[0]


def _function(name: str, module: str) -> ast.FunctionDef:
    tree = modules()[module].tree
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[0]


@cache
def figures() -> dict[str, float]:
    subjects = [name for name, module in modules().items() if not module.is_package]
    serve = _function("serve", "skillwire.cli.serve").args
    return {
        "modules": len(subjects),
        "own imports per module": round(sum(len(m.imports) for m in modules().values()) / len(modules()), 1),
        "longest import chain": _longest_chain(),
        "class names defined twice": len(_repeated_classes()),
        "modules that end in -ing": sum(name.endswith("ing") for name in subjects),
        "docstrings that begin with Tell, Say or Look": sum(
            word in {"Tell", "Say", "Look"} for word in _first_words()
        ),
        "keywords of Host": len(_function("__init__", "skillwire.host.host").args.kwonlyargs),
        "options of serve": len(serve.args) + len(serve.kwonlyargs),
    }


@pytest.mark.parametrize("name", AT_MOST)
def test_no_figure_of_the_structure_rises(name: str) -> None:
    assert figures()[name] <= AT_MOST[name]


@pytest.mark.parametrize("package", LAYERS)
def test_a_layer_of_a_package_imports_only_layers_below_it(package: str) -> None:
    level = {name: number for number, layer in enumerate(LAYERS[package]) for name in layer}
    prefix = f"skillwire.{package}."
    for name, module in modules().items():
        if not name.startswith(prefix):
            continue
        own = name.removeprefix(prefix).partition(".")[0]
        for other in module.imports:
            if other.startswith(prefix):
                theirs = other.removeprefix(prefix).partition(".")[0]
                assert level[theirs] <= level[own], f"{name} imports {other}"


def test_no_two_folders_import_each_other() -> None:
    packages = {name for name, module in modules().items() if module.is_package}
    edges: set[tuple[str, str]] = set()
    for name, module in modules().items():
        for other in module.imports:
            here, there = _siblings(name, other)
            if here in packages or there in packages:
                edges.add((here, there))

    assert not {edge for edge in edges if edge[0] != edge[1] and edge[::-1] in edges}


def _siblings(name: str, other: str) -> tuple[str, str]:
    """Return the two folders or modules side by side that contain `name` and `other`."""
    one, two = name.split("."), other.split(".")
    common = 0
    while common < min(len(one), len(two)) and one[common] == two[common]:
        common += 1
    if common == min(len(one), len(two)):  # One contains the other.
        return name, name
    return ".".join(one[: common + 1]), ".".join(two[: common + 1])
