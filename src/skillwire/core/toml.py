"""`Table`: read a table of a TOML file key by key, and refuse unknown keys."""

import tomllib
from collections.abc import Mapping
from typing import cast

from skillwire.core.characters import quoted


class TableError(ValueError):
    """A key is malformed or unknown; the message names it, and `fix` the remedy."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class Table:
    """A table that records which keys were read, so that `finish` can refuse the others."""

    def __init__(self, name: str, rows: Mapping[str, object]) -> None:
        self.name = name
        self._rows = rows
        self._taken: set[str] = set()

    def key(self, name: str) -> str:
        """Return the full key for a message."""
        shown = (
            name if name.replace("_", "").isalnum() and name.isascii() and len(name) < 65 else quoted(name)
        )
        return f"{self.name}.{shown}" if self.name else shown

    def rest(self) -> Mapping[str, object]:
        """Return all keys and values, for a table whose keys are names."""
        self._taken.update(self._rows)
        return self._rows

    def finish(self) -> None:
        for name in self._rows:
            if name not in self._taken:
                known = ", ".join(sorted(self._taken))
                raise TableError(f"{self.key(name)} is unknown", fix=f"known here: {known}")

    def table(self, name: str) -> "Table":
        """Return a nested table; an empty one when it is missing."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise TableError(f"{self.key(name)} is not a table")
        return Table(self.key(name), cast("dict[str, object]", value or {}))

    def tables(self, name: str) -> "list[Table]":
        """Return the tables of `[[name]]`."""
        items = self.value(name)
        if items is None:
            return []
        if not isinstance(items, list):
            raise TableError(f"{self.key(name)} is not a list of tables; write [[{name}]]")
        found: list[Table] = []
        for number, item in enumerate(cast("list[object]", items), 1):
            if not isinstance(item, dict):
                raise TableError(f"{self.key(name)} is not a list of tables; write [[{name}]]")
            found.append(Table(f"{self.key(name)}[{number}]", cast("dict[str, object]", item)))
        return found

    def text(self, name: str, default: str | None = None) -> str:
        value = self.value(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not (value or default is not None):
            raise TableError(
                f"{self.key(name)} is {'missing' if value is None else 'not a string, or empty'}"
            )
        return value

    def texts(self, name: str, *, is_filled: bool = False) -> tuple[str, ...]:
        """Return a list of strings. With `is_filled`, a list that is given must not be empty."""
        value = self.value(name)
        items = cast("list[object]", value) if isinstance(value, list) else None
        if value is None:
            return ()
        if items is None or not all(isinstance(item, str) for item in items):
            raise TableError(f"{self.key(name)} is not a list of strings")
        if is_filled and not items:
            raise TableError(f"{self.key(name)} is empty", fix="leave it out, or add an item")
        return tuple(cast("list[str]", items))

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise TableError(f"{self.key(name)} is neither true nor false")
        return bool(value)

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise TableError(f"{self.key(name)} is not a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise TableError(f"{self.key(name)} is not a number from {least:g} to {most:g}")
        return value

    def value(self, name: str) -> object:
        """Return the value of a key as it is; None when it is missing."""
        self._taken.add(name)
        return self._rows.get(name)


class InvalidTomlError(ValueError):
    """A file is not TOML."""


def parse_toml(content: bytes, *, what: str) -> Table:
    """Return the top table of a TOML file; `what` names the file in messages.

    Raises:
        InvalidTomlError: It is not TOML.
    """
    try:
        return Table("", tomllib.loads(content.decode()))
    except UnicodeDecodeError:
        raise InvalidTomlError(f"{what} is not UTF-8 text") from None
    except RecursionError:
        raise InvalidTomlError(f"{what} nests too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidTomlError(f"{what} is not TOML: {quoted(str(error))}") from None
