"""`scripts/manifest.json`: what a skill says about its scripts. It asks; a policy decides."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from skillwire.core.characters import quoted
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.core.uri import check_segment
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.runner.limitnames import SCRIPT_LIMITS, limit_problem
from skillwire.runner.schema import schema_problem

FOLDER: Final = "scripts/"
MANIFEST_PATH: Final = "scripts/manifest.json"
MAX_MANIFEST_SIZE: Final = 256 * 1024
MAX_SCRIPTS: Final = 512
MAX_PROBLEMS: Final = 32
MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 64

ARGV: Final = "argv"
STDIN: Final = "stdin"

_MEMBERS = frozenset({"description", "arguments", "outputs", "limits", "network", "secrets", "args"})
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label starts with a letter, so that no spelling of an IP address is a host name.
_HOST = re.compile(rf"(?=[^:]{{1,253}}(?::|\Z))(?:{_LABEL}\.)*(?=[a-z]){_LABEL}(?::([1-9][0-9]{{0,4}}))?")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ScriptInterface:
    """What a script declares: what it is for, what it takes and leaves, and what it asks for.

    `arguments` is a JSON Schema, or None where any object will do. `limits`
    has names of `Limits`, `network` hosts (`host` or `host:port`), `secrets` names.
    With a `problem` nobody can tell what it takes, and it cannot be run.
    """

    description: str = ""
    arguments: Mapping[str, JsonValue] | None = None
    stdout: str = ""
    outputs: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    takes_argv: bool = False
    problem: str = ""


def parse_interfaces(content: bytes) -> tuple[dict[str, ScriptInterface], list[str]]:
    """Read what is declared about each script, by path, and say what is wrong with it.

    Nothing raises. What is malformed is left out, so a script gets nothing
    by it; where that is its schema, or all of it, the script has a `problem`.
    """
    remarks = _Remarks()
    try:
        declared = _declared(content, remarks)
    except StrictJsonError as error:
        remarks.add(f"{MANIFEST_PATH} {error}")
        return {}, remarks.sentences
    interfaces: dict[str, ScriptInterface] = {}
    for name, value in list(declared.items())[:MAX_SCRIPTS]:
        if not _is_file_name(name):
            remarks.add(f"{quoted(name)} is not the name of a file in {FOLDER}")
            continue
        interfaces[FOLDER + name] = _interface(value, remarks.about(f"{quoted(name)}: "))
    if len(declared) > MAX_SCRIPTS:
        remarks.add(f"{MANIFEST_PATH} describes more than {MAX_SCRIPTS} scripts")
    return interfaces, remarks.sentences


def interface_of(content: bytes | None, path: str) -> tuple[ScriptInterface, list[str]]:
    """Return what is declared about one script, and what is wrong with it.

    A script that is not described takes any object. Where the description
    as a whole cannot be read, nobody knows whether it is described: it has a `problem`.
    """
    if content is None:
        return ScriptInterface(), []
    remarks = _Remarks()
    try:
        declared = _declared(content, remarks)
    except StrictJsonError as error:
        problem = f"{MANIFEST_PATH} {error}"
        return ScriptInterface(problem=problem), [problem]
    name = path.removeprefix(FOLDER)
    if name not in declared:
        return ScriptInterface(), remarks.sentences
    return _interface(declared[name], remarks.about(f"{quoted(name)}: ")), remarks.sentences


def is_host(text: object) -> bool:
    """Tell whether `text` is a lower-case DNS name, with or without a port: no address, and no pattern."""
    match = _HOST.fullmatch(text) if isinstance(text, str) else None
    return match is not None and int(match[1] or 443) <= 65535


def is_secret_name(text: object) -> bool:
    """Tell whether `text` can be the name of a secret, which is the name of a file in the sandbox."""
    return isinstance(text, str) and _SECRET_NAME.fullmatch(text) is not None


class _Remarks:
    """Collects sentences about what is wrong, up to a number."""

    def __init__(self, prefix: str = "", sentences: list[str] | None = None) -> None:
        self.sentences: list[str] = [] if sentences is None else sentences
        self._prefix = prefix

    def about(self, prefix: str) -> "_Remarks":
        return _Remarks(self._prefix + prefix, self.sentences)

    def add(self, sentence: str) -> None:
        if len(self.sentences) < MAX_PROBLEMS:
            self.sentences.append(self._prefix + sentence)

    def unknown(self, members: Iterable[str], known: frozenset[str]) -> None:
        for name in members:
            if name not in known:
                self.add(f"has a member {quoted(name)} that means nothing here")


def _declared(content: bytes, remarks: _Remarks) -> Mapping[str, object]:
    if len(content) > MAX_MANIFEST_SIZE:
        raise StrictJsonError(f"is larger than {MAX_MANIFEST_SIZE} bytes")
    document = _object(parse_strictly(content))
    scripts = _object(document.get("scripts")) if document is not None else None
    if document is None or scripts is None:
        raise StrictJsonError("has no object `scripts`")
    remarks.about(f"{MANIFEST_PATH} ").unknown(document, frozenset({"scripts", "$schema"}))
    return scripts


def _interface(value: object, remarks: _Remarks) -> ScriptInterface:
    members = _object(value)
    if members is None:
        remarks.add(problem := "it is not described by an object")
        return ScriptInterface(problem=problem)
    remarks.unknown(members, _MEMBERS)
    arguments = members.get("arguments")
    problem = "" if arguments is None else schema_problem(arguments)
    if problem:
        remarks.add(problem := f"`arguments` {problem}")
    outputs = _optional(members, "outputs", _object, "is no object", remarks) or {}
    outputs_remarks = remarks.about("`outputs` ")
    outputs_remarks.unknown(outputs, frozenset({"stdout", "files"}))
    passing = members.get("args")
    if passing not in (None, ARGV, STDIN):
        remarks.add(f'`args` is neither "{ARGV}" nor "{STDIN}"')
    return ScriptInterface(
        description=_optional(members, "description", _text, "is no text, or too long", remarks) or "",
        arguments=None if problem else cast("Mapping[str, JsonValue] | None", arguments),
        stdout=_optional(outputs, "stdout", _text, "is no text, or too long", outputs_remarks) or "",
        outputs=_texts(outputs, "files", lambda text: _text(text) is not None, outputs_remarks),
        limits=_limits(members, remarks),
        network=() if members.get("network") is False else _texts(members, "network", is_host, remarks),
        secrets=_texts(members, "secrets", is_secret_name, remarks),
        takes_argv=passing == ARGV,
        problem=problem,
    )


def _limits(members: Mapping[str, object], remarks: _Remarks) -> dict[str, float]:
    limits: dict[str, float] = {}
    for name, value in (_optional(members, "limits", _object, "is no object", remarks) or {}).items():
        known = SCRIPT_LIMITS.get(name)
        problem = limit_problem(value, known)
        if known is None or problem:
            remarks.add(f"`limits` has {quoted(name)}, which {problem}")
        else:
            limits[known.field] = known.amount(cast(float, value))
    return limits


def _texts(
    members: Mapping[str, object], name: str, is_good: Callable[[object], bool], remarks: _Remarks
) -> tuple[str, ...]:
    """Return the good texts of a list, each once; the others are left out."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        remarks.add(f"`{name}` is no list")
        return ()
    items = cast("list[object]", value)
    if len(items) > MAX_ITEMS:
        remarks.add(f"`{name}` has {len(items)} items; only the first {MAX_ITEMS} are looked at")
    for item in items[:MAX_ITEMS]:
        if not is_good(item):
            shown = quoted(item) if isinstance(item, str) else "an item"
            remarks.add(f"`{name}` has {shown}, which cannot stand there")
    return tuple(dict.fromkeys(cast(str, item) for item in items[:MAX_ITEMS] if is_good(item)))


def _optional(
    members: Mapping[str, object],
    name: str,
    parse: Callable[[object], Value | None],
    problem: str,
    remarks: _Remarks,
) -> Value | None:
    value = members.get(name)
    parsed = None if value is None else parse(value)
    if value is not None and parsed is None:
        remarks.add(f"`{name}` {problem}")
    return parsed


def _object(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_TEXT else None


def _is_file_name(name: str) -> bool:
    if FOLDER + name == MANIFEST_PATH:
        return False
    try:
        check_segment(name)
    except InvalidUriError:
        return False
    return True
