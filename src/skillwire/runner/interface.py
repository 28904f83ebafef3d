"""`scripts/manifest.json`: what a skill declares about its scripts. It only requests; a policy grants."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from skillwire.core import (
    InvalidUriError,
    JsonValue,
    StrictJsonError,
    check_segment,
    digest_of,
    parse_strictly,
    quoted,
)
from skillwire.runner.policy import FOLDER, SCRIPT_LIMITS, is_host, is_secret_name, limit_problem
from skillwire.runner.schema import schema_problem

MANIFEST_PATH: Final = "scripts/manifest.json"
MAX_MANIFEST_SIZE: Final = 256 * 1024
MAX_SCRIPTS: Final = 512
MAX_PROBLEMS: Final = 32
MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 64

ARGV: Final = "argv"
STDIN: Final = "stdin"

_MEMBERS = frozenset({"description", "arguments", "outputs", "limits", "network", "secrets", "args"})
# The last label starts with a letter, so that no spelling of an IP address is a host name.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ScriptInterface:
    """The declarations of a script: description, arguments, outputs and requested limits, hosts and secrets.

    `arguments` is a JSON Schema, or None where any object is accepted. `limits`
    has names of `Limits`, `network` hosts (`host` or `host:port`), `secrets` names.
    With a `problem` the declaration is invalid, and the script cannot be run.
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
    """Return the declaration of each script, by path, and the problems found.

    Never raises. A malformed member is left out and so grants nothing; if the
    schema or the whole declaration is malformed, the script has a `problem`.
    """
    remarks = _Problems()
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
    """Return the declaration of one script, and the problems found.

    A script that is not declared accepts any object. If the file cannot be
    read as a whole, the script has a `problem`.
    """
    if content is None:
        return ScriptInterface(), []
    remarks = _Problems()
    try:
        declared = _declared(content, remarks)
    except StrictJsonError as error:
        problem = f"{MANIFEST_PATH} {error}"
        return ScriptInterface(problem=problem), [problem]
    name = path.removeprefix(FOLDER)
    if name not in declared:
        return ScriptInterface(), remarks.sentences
    return _interface(declared[name], remarks.about(f"{quoted(name)}: ")), remarks.sentences


class _Problems:
    """Collects descriptions of problems, up to a limit."""

    def __init__(self, prefix: str = "", sentences: list[str] | None = None) -> None:
        self.sentences: list[str] = [] if sentences is None else sentences
        self._prefix = prefix

    def about(self, prefix: str) -> "_Problems":
        return _Problems(self._prefix + prefix, self.sentences)

    def add(self, sentence: str) -> None:
        if len(self.sentences) < MAX_PROBLEMS:
            self.sentences.append(self._prefix + sentence)

    def unknown(self, members: Iterable[str], known: frozenset[str]) -> None:
        for name in members:
            if name not in known:
                self.add(f"has an unknown member {quoted(name)}")


def _declared(content: bytes, remarks: _Problems) -> Mapping[str, object]:
    if len(content) > MAX_MANIFEST_SIZE:
        raise StrictJsonError(f"is larger than {MAX_MANIFEST_SIZE} bytes")
    document = _object(parse_strictly(content))
    scripts = _object(document.get("scripts")) if document is not None else None
    if document is None or scripts is None:
        raise StrictJsonError("has no object `scripts`")
    remarks.about(f"{MANIFEST_PATH} ").unknown(document, frozenset({"scripts", "$schema"}))
    return scripts


def _interface(value: object, remarks: _Problems) -> ScriptInterface:
    members = _object(value)
    if members is None:
        remarks.add(problem := "its declaration is not an object")
        return ScriptInterface(problem=problem)
    remarks.unknown(members, _MEMBERS)
    arguments = members.get("arguments")
    problem = "" if arguments is None else schema_problem(arguments)
    if problem:
        remarks.add(problem := f"`arguments` {problem}")
    outputs = _optional(members, "outputs", _object, "is not an object", remarks) or {}
    outputs_remarks = remarks.about("`outputs` ")
    outputs_remarks.unknown(outputs, frozenset({"stdout", "files"}))
    passing = members.get("args")
    if passing not in (None, ARGV, STDIN):
        remarks.add(f'`args` is neither "{ARGV}" nor "{STDIN}"')
    return ScriptInterface(
        description=_optional(members, "description", _text, "is not a string, or too long", remarks) or "",
        arguments=None if problem else cast("Mapping[str, JsonValue] | None", arguments),
        stdout=_optional(outputs, "stdout", _text, "is not a string, or too long", outputs_remarks) or "",
        outputs=_texts(outputs, "files", lambda text: _text(text) is not None, outputs_remarks),
        limits=_limits(members, remarks),
        network=() if members.get("network") is False else _texts(members, "network", is_host, remarks),
        secrets=_texts(members, "secrets", is_secret_name, remarks),
        takes_argv=passing == ARGV,
        problem=problem,
    )


def _limits(members: Mapping[str, object], remarks: _Problems) -> dict[str, float]:
    limits: dict[str, float] = {}
    for name, value in (_optional(members, "limits", _object, "is not an object", remarks) or {}).items():
        known = SCRIPT_LIMITS.get(name)
        problem = limit_problem(value, known)
        if known is None or problem:
            remarks.add(f"`limits` has {quoted(name)}, which {problem}")
        else:
            limits[known.field] = known.amount(cast(float, value))
    return limits


def _texts(
    members: Mapping[str, object], name: str, is_good: Callable[[object], bool], remarks: _Problems
) -> tuple[str, ...]:
    """Return the valid strings of a list, without duplicates; the others are left out."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        remarks.add(f"`{name}` is not a list")
        return ()
    items = cast("list[object]", value)
    if len(items) > MAX_ITEMS:
        remarks.add(f"`{name}` has {len(items)} items; only the first {MAX_ITEMS} are used")
    for item in items[:MAX_ITEMS]:
        if not is_good(item):
            shown = quoted(item) if isinstance(item, str) else "an item"
            remarks.add(f"`{name}` has {shown}, which is not valid there")
    return tuple(dict.fromkeys(cast(str, item) for item in items[:MAX_ITEMS] if is_good(item)))


def _optional(
    members: Mapping[str, object],
    name: str,
    parse: Callable[[object], Value | None],
    problem: str,
    remarks: _Problems,
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


# `ScriptRun`: the checked input of one run of a script.


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script to be run once: its origin, all files of its skill, and its arguments.

    `skill` is the URI of the skill's `SKILL.md`, `script` a path inside the
    skill, and `files` holds the checked bytes by path; the script is one of
    them. `origin` is the label of the server the skill comes from, empty for
    this program's own skills. `approval` identifies the approval, for the audit. Created by `prepare`.
    """

    skill: str
    script: str
    files: Mapping[str, bytes]
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    interface: ScriptInterface = field(default_factory=ScriptInterface)
    origin: str = ""
    approval: str = ""

    @property
    def digest(self) -> str:
        """The digest of the script's bytes."""
        return digest_of(self.files[self.script])
