"""Filling in `${…}`: variables of the environment, places, and the inputs an editor would ask for.

Every form of configuration is read with one set of variables, so that a
server works the same wherever its entry was copied from.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from skillwire.core.characters import quoted
from skillwire.host.failures import ConfigError

INPUT_PREFIX: Final = "SKILLWIRE_INPUT_"
"""How the variable begins that gives an input, because nobody can be asked here."""

MAX_FILLED: Final = 4 * 1024 * 1024
"""How many characters variables and files of variables may add to one configuration."""

_VARIABLE = re.compile(
    r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<kind>env|input|config|command|workspaceFolder):(?P<what>[^}]*)"
    r"|(?P<slash>/))\}"
)


def input_variable(identifier: str) -> str:
    """Name the environment variable that gives an input: `api-key` is given by `SKILLWIRE_INPUT_API_KEY`."""
    return INPUT_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", identifier).upper()


@dataclass(frozen=True, slots=True)
class Filled:
    """A text with its variables filled in.

    `shown` has the name of each input where `text` has its value: inputs are
    often secrets, and appear neither on a screen nor in a fingerprint.
    """

    text: str = field(repr=False)
    shown: str
    has_input: bool = False


class Variables:
    """What `${…}` stands for in one configuration: its project's folder, the environment, its `inputs`."""

    def __init__(self, folder: Path, environ: Mapping[str, str], inputs: object = None) -> None:
        self._folder = folder
        self._environ = environ
        self._left = MAX_FILLED
        self._inputs = _declared(inputs)
        self._givers: defaultdict[str, list[str]] = defaultdict(list)
        for identifier in self._inputs:
            self._givers[input_variable(identifier)].append(identifier)

    def fill(self, text: str, *, owner: str, place: str) -> Filled:
        """Fill in a text; `owner` and `place` say in messages whose text it is.

        Raises:
            ConfigError: A variable has no value here; the message says which, and how to give it one.
        """
        whose = _Place(owner, place)
        value: list[str] = []
        shown: list[str] = []
        has_input = False
        end = 0
        for match in _VARIABLE.finditer(text):
            between = text[end : match.start()]
            found = self._value(match, whose)
            self.spend(len(found), owner=owner)
            is_input = match["kind"] == "input"
            value += (between, found)
            shown += (between, match[0] if is_input else found)
            has_input = has_input or is_input
            end = match.end()
        rest = text[end:]
        return Filled("".join(value) + rest, "".join(shown) + rest, has_input)

    def spend(self, characters: int, *, owner: str) -> None:
        """Count what is added, so that a short file cannot become an endless one.

        Raises:
            ConfigError: It is more than a configuration may become.
        """
        if characters > self._left:
            raise ConfigError(f"{owner} is not read: variables add more than {MAX_FILLED} characters")
        self._left -= characters

    def _value(self, match: re.Match[str], whose: "_Place") -> str:
        if match["slash"]:
            return os.sep
        kind, what = match["kind"], match["what"]
        if kind is None:
            return self._named(match["name"], match["default"], whose)
        if kind == "env":
            return self._variable(what, whose, fix=f"set {quoted(what)}, if only to nothing")
        if kind == "input":
            return self._input(what, whose)
        raise whose.wrong(
            f"needs {quoted(match[0])}, which only an editor knows", fix="write the value itself"
        )

    def _named(self, name: str, default: str | None, whose: "_Place") -> str:
        if default is not None:
            return self._environ.get(name) or default
        if name == "workspaceFolder":
            return str(self._folder)
        if name == "workspaceFolderBasename":
            return self._folder.name
        if name == "pathSeparator":
            return os.sep
        if name == "userHome":
            home = self._environ.get("HOME") or self._environ.get("USERPROFILE")
            return home or self._variable("HOME", whose, fix="set HOME")
        return self._variable(name, whose, fix=f"set {name}, or write ${{{name}:-default}}")

    def _variable(self, name: str, whose: "_Place", *, fix: str) -> str:
        found = self._environ.get(name)
        if found is None:
            shown = name if name.isidentifier() and name.isascii() else quoted(name)
            raise whose.wrong(f"needs the variable {shown}, and it is not set", fix=fix)
        return found

    def _input(self, identifier: str, whose: "_Place") -> str:
        shown = quoted(identifier)
        if identifier not in self._inputs:
            raise whose.wrong(
                f"needs the input {shown}, which the file does not declare", fix="add it to `inputs`"
            )
        variable = input_variable(identifier)
        if len(rivals := self._givers[variable]) > 1:
            names = " and ".join(map(quoted, rivals[:2]))
            raise whose.wrong(
                f"needs the input {shown}, but {variable} would be both {names}",
                fix="rename one of these inputs",
            )
        found = self._environ.get(variable, self._inputs[identifier])
        if found is None:
            raise whose.wrong(f"needs the input {shown}, and nobody is asked here", fix=f"set {variable}")
        return found


@dataclass(frozen=True, slots=True)
class _Place:
    owner: str
    place: str

    def wrong(self, what: str, *, fix: str) -> ConfigError:
        return ConfigError(f"{self.owner} {what} (in {quoted(self.place)})", fix=fix)


def _declared(inputs: object) -> dict[str, str | None]:
    """Return the inputs a file declares, each with its default.

    What is no declaration is passed over: a server that needs it says so. An
    input declared twice has no default, because nobody knows which one counts.
    """
    items = cast(list[object], inputs) if isinstance(inputs, list) else []
    tables = [cast(dict[str, object], item) for item in items if isinstance(item, dict)]
    found = [(table["id"], table.get("default")) for table in tables if isinstance(table.get("id"), str)]
    times = Counter(identifier for identifier, _ in found)
    return {
        cast(str, identifier): default if isinstance(default, str) and times[identifier] == 1 else None
        for identifier, default in found
    }
