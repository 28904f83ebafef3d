"""`Members`: a stranger's JSON object, taken apart member by member."""

from collections.abc import Mapping
from typing import TypeVar, cast

from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.yaml12 import JsonValue

MAX_TEXT = 4096
"""The longest text of a member that is no instructions, in characters."""

MAX_ITEMS = 256
"""The most items of a list inside a skill; a skill's files have a limit of their own."""

MAX_FINDINGS = 32
"""The most remarks about one object; a list of nothing but mistakes earns no more."""

Kind = TypeVar("Kind")


class Members:
    """Takes members of an object and turns what is wrong with them into findings.

    A member that is missing, or null, is no mistake unless it is required;
    one that is malformed is left out with a finding. Nothing raises.
    """

    def __init__(
        self, value: Mapping[str, object], findings: list[Finding], *, required: str, optional: str
    ) -> None:
        self.value = value
        self.findings = findings
        self._required = required
        self._optional = optional

    def inside(self, value: Mapping[str, object]) -> "Members":
        """Take apart an object inside this one; its mistakes are mistakes in something optional."""
        return Members(value, self.findings, required=self._optional, optional=self._optional)

    def required_text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        """Return a text that must be there and not be empty; None, with a finding, when it is not."""
        value = self.value.get(name)
        problem = _text_problem(value, most)
        if value == "" or problem:
            self._add(self._required, f"`{name}` {problem or 'is empty'}")
            return None
        return cast(str, value)

    def text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        value = self.value.get(name)
        if value is None:
            return None
        problem = _text_problem(value, most)
        if problem:
            self.malformed(name, problem)
            return None
        return cast(str, value)

    def texts(self, name: str, *, most: int = MAX_TEXT) -> tuple[str, ...]:
        """Return the texts of a list; each that is malformed is left out."""
        found: list[str] = []
        for item in self._items(name, MAX_ITEMS):
            problem = _text_problem(item, most)
            if problem:
                self.malformed(name, f"has an item that {problem}")
            else:
                found.append(cast(str, item))
        return tuple(found)

    def objects(self, name: str, *, most: int = MAX_ITEMS) -> list[Mapping[str, object]]:
        """Return the objects of a list; everything else in it is left out."""
        found: list[Mapping[str, object]] = []
        for item in self._items(name, most):
            if isinstance(item, dict):
                found.append(cast("dict[str, object]", item))
            else:
                self.malformed(name, "has an item that is no object")
        return found

    def flag(self, name: str) -> bool | None:
        return self._of_kind(name, bool, "is neither true nor false")

    def mapping(self, name: str) -> Mapping[str, JsonValue] | None:
        return cast("Mapping[str, JsonValue] | None", self._of_kind(name, dict, "is no object"))

    def rest(self, *known: str) -> Mapping[str, JsonValue]:
        """Return the members this version does not know, so that a relay passes them on (NEG-19)."""
        return {key: cast(JsonValue, item) for key, item in self.value.items() if key not in known}

    def malformed(self, name: str, problem: str, *, code: str = "") -> None:
        """Say that an optional member is left out."""
        self._add(code or self._optional, f"`{name}` {problem}")

    def _of_kind(self, name: str, kind: type[Kind], problem: str) -> Kind | None:
        value = self.value.get(name)
        if value is None or isinstance(value, kind):
            return value
        self.malformed(name, problem)
        return None

    def _items(self, name: str, most: int) -> list[object]:
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.malformed(name, "is no list")
            return []
        items = cast(list[object], value)
        if len(items) > most:
            self.malformed(name, f"has {len(items)} items; only the first {most} are used")
        return items[:most]

    def _add(self, code: str, message: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(code, message, file=""))


def open_object(
    value: object, *, required: str, optional: str, what: str
) -> tuple[Members | None, list[Finding]]:
    """Begin to take apart what should be an object; None, with a finding, when it is none."""
    findings: list[Finding] = []
    if not isinstance(value, dict):
        return None, [Finding(required, f"{what} is no object", file="")]
    members = cast("dict[str, object]", value)
    return Members(members, findings, required=required, optional=optional), findings


def _text_problem(value: object, most: int) -> str:
    """Say what is wrong with a text; empty when nothing is."""
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return "is no text"
    if len(value) > most:
        return f"is longer than {most} characters: {quoted(value[:40])}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return ""
