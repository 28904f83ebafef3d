"""Names of a package that are imported when they are first used (PEP 562).

A package lists its names once for type checkers and once in a table for
`lazy_names`; a test compares the two. Importing one module of such a package
does not import the others.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`. `modules` maps each module to its names, separated by spaces."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def get_name(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get_name
