"""`skillwire why`: explain the state of a skill or server, or a refusal code, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import skillwire.host
from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    Part,
    Verbose,
    command_output,
    new_app,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    has_local_skill,
    is_address,
    is_waiting,
    resolve_targets,
    run_with_host,
    typed_references,
)
from skillwire.core import RULES, SkillError, visible
from skillwire.host import REFUSALS, Question, Refusal, Reply, default_roots, one_line, wrapped

if TYPE_CHECKING:
    from skillwire.host import Explanation, Host, Step


# Explanations of all refusal codes: the meaning, the requirement behind each, and the remedy.


@dataclass(frozen=True, slots=True)
class CodeExplanation:
    """The explanation of a code. `requirement` is empty where none applies."""

    code: str
    sentence: str
    area: str
    requirement: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "sentence": self.sentence,
            "area": self.area,
            "requirement": self.requirement,
            "remedy": self.remedy,
        }


_COMMAND_LINE = "the command line"
_CATALOGS = "catalogs"
CLI_CODES: Final = {
    "misuse": CodeExplanation(
        "misuse",
        "The command line is invalid.",
        _COMMAND_LINE,
        remedy="see the command's --help",
    ),
    "no-such-folder": CodeExplanation(
        "no-such-folder",
        "A folder named on the command line does not exist, or is not a folder.",
        _COMMAND_LINE,
        remedy="check the path",
    ),
    "no-skill": CodeExplanation(
        "no-skill",
        "There is no skill where one was expected.",
        _COMMAND_LINE,
        "FMT-01",
        "name a folder that holds a SKILL.md, or create one with `skillwire new`",
    ),
    "already-exists": CodeExplanation(
        "already-exists",
        "A file or folder already exists where one would be written.",
        _COMMAND_LINE,
        remedy="choose another name, or move what is there",
    ),
    "cannot-write": CodeExplanation(
        "cannot-write",
        "A file or folder cannot be written.",
        _COMMAND_LINE,
        remedy="check the permissions of the folder, and whether the disk is full",
    ),
    "catalog-unusable": CodeExplanation(
        "catalog-unusable",
        "A catalog cannot be opened, read or changed.",
        _CATALOGS,
        remedy="check its URL, and that its database runs and may be used",
    ),
    "no-catalog": CodeExplanation(
        "no-catalog",
        "There is no catalog at the URL.",
        _CATALOGS,
        remedy="check the URL, or publish something to create it",
    ),
    "catalog-too-new": CodeExplanation(
        "catalog-too-new",
        "The catalog was created or upgraded by a later version of skillwire.",
        _CATALOGS,
        remedy="upgrade skillwire on this machine",
    ),
    "catalog-conflict": CodeExplanation(
        "catalog-conflict",
        "A change does not fit what the catalog has now, and nothing was written.",
        _CATALOGS,
        remedy="compare with `skillwire publish --dry-run` and `skillwire history`, and publish again",
    ),
}
"""The codes that only the command line uses."""


def explain_code(code: str) -> CodeExplanation | None:
    """Return the explanation of a refusal or finding code; None when it is unknown."""
    if code in REFUSALS:
        kind = REFUSALS[code]
        return CodeExplanation(code, kind.sentence, kind.area, kind.requirement, kind.remedy)
    if code in RULES:
        rule = RULES[code]
        remedy = "run `skillwire validate` on the skill's folder, and change what it names"
        area = f"a finding about a skill ({rule.severity.value})"
        return CodeExplanation(code, rule.summary, area, rule.requirement, remedy)
    return CLI_CODES.get(code)


_MARK_WIDTH = 18
_MOST_MEANT = 5
_LONGEST_TEXT = 2_000
_TO_DOCTOR = frozenset(
    "server-unavailable not-signed-in too-slow server-error invalid-answer not-declared message-too-large "
    "flooding invalid-config untrusted-config unsafe-place state-tampered".split()
)
_TO_APPROVE = frozenset("not-approved approval-required approval-denied".split())
_TO_VALIDATE = frozenset("invalid-skill invalid-frontmatter invalid-uri".split())
_OPTIONS = frozenset({"--trust", "--frozen"})
_PLAIN = HostRequest()

app = new_app()


@app.command()
def why(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="A skill, the label of a server, or the code of a refusal.")
    ],
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Explain why a skill is missing, renamed, hidden or refused.

    Shows every check of a load, in order, and recent refusals. Nothing is
    loaded and you are not asked. Explains a server by its label, and every
    refusal code. Exits with 0 when the skill can be loaded or you would be
    asked about it, else with 1.
    """
    with command_output("why", json=json, verbose=verbose) as output:
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        meaning = explain_code(reference)
        # A code needs no server, unless a server or skill has the same name.
        is_chain = meaning is None or _is_known_name(wanted, reference)
        chain = _explained(output, wanted, reference) if is_chain else None
        _report(output, wanted, meaning, chain)


def _explained(output: Output, wanted: HostRequest, reference: str) -> Explanation:
    """Return the explanation; if the host cannot be opened, that is its only step."""
    found: list[Explanation] = []

    async def work(host: Host) -> None:
        wait = 0 if is_waiting(host, reference) else wanted.wait  # It has had that time already.
        found.append(await host.explain(reference, wait_seconds=wait))

    try:
        run_with_host(output, wanted, work, approve=_never_ask, must_answer=False)
    except MisuseError:
        raise
    except SkillError as error:
        step = skillwire.host.Step("host", False, "the host cannot be opened", Refusal.of(error))
        return skillwire.host.Explanation(reference, (step,))
    return found[0]


async def _never_ask(question: Question) -> Reply:
    """Raise: an explanation never asks the user."""
    raise AssertionError("an explanation never asks")


def _is_known_name(wanted: HostRequest, word: str) -> bool:
    """Return whether a server or a local skill has this name, without contacting a server."""
    try:
        places = resolve_targets(wanted)
        if any(server.label == word for server in places.servers):
            return True
        return has_local_skill(default_roots(Path.cwd()) if places.roots is None else places.roots, word)
    except SkillError:
        return False


def _report(
    output: Output, wanted: HostRequest, meaning: CodeExplanation | None, chain: Explanation | None
) -> None:
    commands = list(dict.fromkeys(commands_for(chain, wanted))) if chain is not None else []
    ok = chain is None or chain.can_be_loaded
    if output.json:
        output.document(
            {
                "kind": "code" if chain is None else chain.kind,
                "reference": visible(wanted.reference, most=_LONGEST_TEXT),
                "ok": ok,
                "code": None if meaning is None else meaning.to_json(),
                "steps": [] if chain is None else [step.to_json() for step in chain.steps],
                "commands": commands,
            }
        )
    else:
        if meaning is not None:
            _print_meaning(output, meaning)
        if chain is not None:
            _print_chain(output, chain, commands)
    if not ok:
        output.code = ExitCode.NO


def _print_meaning(output: Output, meaning: CodeExplanation) -> None:
    output.line((meaning.code, "bold"), f"  {meaning.sentence}")
    output.line(("about:", "bold"), f" {meaning.area}", indent=2)
    if meaning.requirement:
        output.line(("rule:", "bold"), f" {meaning.requirement}", indent=2)
    output.line(("to do:", "bold"), f" {meaning.remedy}", indent=2)


def _print_chain(output: Output, chain: Explanation, commands: Sequence[str]) -> None:
    output.line((one_line(chain.reference), "bold"), "  ", verdict_of(chain))
    for step in chain.steps:
        _print_step(output, step)
    if commands:
        output.line(("to do:", "bold"))
        for command in commands:
            output.line(command, indent=2, wrap=False)


def verdict_of(chain: Explanation) -> Part:
    """Return the result of an explanation in a few words, and its style."""
    if chain.kind == "server":
        return ("can be used", "green") if chain.can_be_loaded else ("cannot be used", STYLES["error"])
    if not chain.can_be_loaded:
        return "cannot be loaded", STYLES["error"]
    codes = _codes_now(chain)
    if "skill-changed" in codes:
        return "changed since it was approved; you would be asked", STYLES["warning"]
    if codes & _TO_APPROVE:
        return "can be loaded once you approve it", STYLES["warning"]
    return "can be loaded", "green"


def _print_step(output: Output, step: Step) -> None:
    mark, style = ("ok", "green") if step.ok else ("no", STYLES["error"])
    if step.ok and step.refusal is not None:
        mark, style = "!", STYLES["warning"]
    lead = f"  {mark:<3} {step.what}"
    if output.width is None:
        output.line(f"{lead}: {one_line(step.found)}")
        for line in _words(step):
            output.line(line, indent=6)
        return
    room = max(output.width - _MARK_WIDTH - 1, _MARK_WIDTH)
    texts = [one_line(step.found), *_words(step)]
    rows = [part for text in texts for part in wrapped(visible(text[:_LONGEST_TEXT]), room)]
    for position, row in enumerate(rows):
        # Each row starts with the margin, so that no quoted text can pass for a step.
        head = f"{lead:<{_MARK_WIDTH}}" if position == 0 else " " * _MARK_WIDTH
        output.line((head, style if position == 0 else ""), row.rstrip(), wrap=False)


def _words(step: Step) -> Iterator[str]:
    refusal = step.refusal
    if refusal is None:
        return
    yield f"{refusal.sentence} [{refusal.code}, {refusal.requirement}]"
    if refusal.detail and one_line(refusal.detail) != one_line(step.found):
        yield one_line(refusal.detail)
    yield f"to do: {refusal.remedy}"
    if refusal.candidates:
        more = len(refusal.candidates) - _MOST_MEANT
        rest = f" and {more:,} more" if more > 0 else ""
        yield f"did you mean: {', '.join(refusal.candidates[:_MOST_MEANT])}{rest}"


def commands_for(chain: Explanation, wanted: HostRequest = _PLAIN) -> Iterator[str]:
    """Yield command lines that help, the most useful first; none with hidden or ambiguous characters.

    Each has the options of `wanted` that it takes, so that it uses the same servers and folders.
    """
    for words in _useful_commands(chain):
        command, *rest = words
        if command == "doctor" and _is_typed(wanted):
            continue  # It checks only the configuration.
        options = wanted.options
        if command in ("validate", "trust"):
            options = ()
        elif command == "list":
            rest += wanted.targets
            options = replace(wanted, targets=()).options
        elif command == "doctor":
            options = replace(wanted, targets=(), archives=False).options
        line = f"skillwire {shlex.join((command, *rest, *options))}"
        is_exact = visible(line) == line and "<U+" not in line
        # A word that starts with a dash would be parsed as an option.
        if is_exact and all(word in _OPTIONS for word in words if word.startswith("-")):
            yield line


def _is_typed(wanted: HostRequest) -> bool:
    """Return whether the servers were named on this or an earlier command line."""
    try:
        return any(not server.is_label_given for server in resolve_targets(wanted).servers)
    except SkillError:
        return False


def _useful_commands(chain: Explanation) -> Iterator[tuple[str, ...]]:
    codes, reference = _codes_now(chain), chain.reference
    if chain.kind == "skill":
        if "not-in-lock" in codes:
            yield from (("diff", "--frozen", reference), ("lock", "--frozen"), ("lock",))
        elif "skill-changed" in codes:
            yield from (("diff", reference), ("approve", reference))
        elif codes & _TO_APPROVE:
            yield from (("show", reference), ("approve", reference))
        elif chain.can_be_loaded:
            yield ("load", reference)
    if "lock-untrusted" in codes:
        yield from (("lock",), ("lock", "--trust"))
    if "lock-invalid" in codes:
        yield ("lock",)
    for step in chain.steps:
        if step.refusal is not None and not step.ok:
            yield from (("why", meant) for meant in step.refusal.candidates[:_MOST_MEANT])
            if step.refusal.code in _TO_VALIDATE and step.what == "hidden":
                yield ("validate", step.refusal.subject)
    if "untrusted-config" in codes:
        yield ("trust",)
    if codes & _TO_DOCTOR:
        yield ("doctor",)
    if "unknown-reference" in codes:
        yield from (("why", meant) for meant in typed_references(reference))
        yield ("list", reference) if is_address(reference) else ("list",)


def _codes_now(chain: Explanation) -> frozenset[str]:
    """Return the codes of the current state, without earlier refusals, which may be resolved by now."""
    found = [step.refusal.code for step in chain.steps if step.refusal is not None and step.what != "before"]
    return frozenset(found)
