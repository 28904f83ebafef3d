"""`skillwire why`: the whole chain behind a skill, a server or a refusal, and what to do about it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.answer import STYLES, Answer, Part, answering
from skillwire.cli.codes import Meaning, meaning_of
from skillwire.cli.failures import ExitCode, MisuseError
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    Lock,
    Wait,
    Wanted,
    places_of,
    with_host,
)
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.core.characters import visible
from skillwire.errors import SkillError
from skillwire.host import Explanation, Host, Question, Refusal, Reply, Step
from skillwire.host.asking import one_line
from skillwire.host.columns import broken

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

    Goes through everything a load would look at, in order, and names what was
    refused lately. Nothing is loaded and nobody is asked. Explains a server
    by its label, and every code that this program refuses with. Exits with 0
    when the skill can be loaded or you would be asked about it, else with 1.
    """
    with answering("why", json=json, verbose=verbose) as answer:
        wanted = Wanted(
            config=config, targets=at or (), lock=lock, frozen=frozen, wait=wait, archives=archives
        )
        meaning = meaning_of(reference)
        # A code needs no server, unless something else here has the same name.
        is_chain = meaning is None or _is_taken(wanted, reference)
        chain = _explained(answer, wanted, reference) if is_chain else None
        _report(answer, reference, meaning, chain)


def _explained(answer: Answer, wanted: Wanted, reference: str) -> Explanation:
    """Return the chain; where the host cannot even be opened, that is the whole of it."""
    found: list[Explanation] = []

    async def work(host: Host) -> None:
        found.append(await host.explain(reference, wait_seconds=wanted.wait))

    try:
        with_host(answer, wanted, work, approve=_nobody)
    except MisuseError:
        raise
    except SkillError as error:
        step = Step("host", False, "no skill can be looked at", Refusal.of(error))
        return Explanation(reference, (step,))
    return found[0]


async def _nobody(question: Question) -> Reply:
    """Stands for the user, who could be asked when a skill is loaded, and is not asked here."""
    raise AssertionError("explaining asks nobody")


def _is_taken(wanted: Wanted, word: str) -> bool:
    """Tell whether a server or a local skill is called so; no server is asked."""
    try:
        places = places_of(wanted)
        if any(server.label == word for server in places.servers):
            return True
        return anyio.run(_is_local, Host(roots=places.roots, project=Path.cwd()), word)
    except SkillError:
        return False


async def _is_local(host: Host, word: str) -> bool:
    async with host:
        return any(skill.reference == word for skill in host.view.skills)


def _report(answer: Answer, reference: str, meaning: Meaning | None, chain: Explanation | None) -> None:
    commands = list(dict.fromkeys(commands_for(chain))) if chain is not None else []
    ok = chain is None or chain.can_be_loaded
    if answer.json:
        answer.document(
            {
                "kind": "code" if chain is None else chain.kind,
                "reference": reference,
                "ok": ok,
                "code": None if meaning is None else meaning.to_json(),
                "steps": [] if chain is None else [step.to_json() for step in chain.steps],
                "commands": commands,
            }
        )
    else:
        if meaning is not None:
            _print_meaning(answer, meaning)
        if chain is not None:
            _print_chain(answer, chain, commands)
    if not ok:
        answer.code = ExitCode.NO


def _print_meaning(answer: Answer, meaning: Meaning) -> None:
    answer.line((meaning.code, "bold"), f"  {meaning.sentence}")
    answer.line(("about:", "bold"), f" {meaning.area}", indent=2)
    if meaning.requirement:
        answer.line(("rule:", "bold"), f" {meaning.requirement}", indent=2)
    answer.line(("to do:", "bold"), f" {meaning.remedy}", indent=2)


def _print_chain(answer: Answer, chain: Explanation, commands: Sequence[str]) -> None:
    answer.line((one_line(chain.reference), "bold"), "  ", verdict_of(chain))
    for step in chain.steps:
        _print_step(answer, step)
    if commands:
        answer.line(("to do:", "bold"))
        for command in commands:
            answer.line(command, indent=2, wrap=False)


def verdict_of(chain: Explanation) -> Part:
    """Say in a few words how it ends."""
    if chain.kind == "server":
        return ("all is well", "green") if chain.can_be_loaded else ("cannot be used", STYLES["error"])
    if not chain.can_be_loaded:
        return "cannot be loaded", STYLES["error"]
    codes = _codes_now(chain)
    if "skill-changed" in codes:
        return "changed since it was approved; you would be asked", STYLES["warning"]
    if codes & _TO_APPROVE:
        return "can be loaded once you approve it", STYLES["warning"]
    return "can be loaded", "green"


def _print_step(answer: Answer, step: Step) -> None:
    mark, style = ("ok", "green") if step.is_well else ("no", STYLES["error"])
    if step.is_well and step.refusal is not None:
        mark, style = "!", STYLES["warning"]
    lead = f"  {mark:<3} {step.what}"
    if answer.width is None:
        answer.line(f"{lead}: {one_line(step.found)}")
        for line in _words(step):
            answer.line(line, indent=6)
        return
    room = max(answer.width - _MARK_WIDTH - 1, _MARK_WIDTH)
    texts = [one_line(step.found), *_words(step)]
    rows = [part for text in texts for part in broken(visible(text[:_LONGEST_TEXT]), room)]
    for position, row in enumerate(rows):
        # Each row has the margin before it: nothing that is found can begin where a step does.
        head = f"{lead:<{_MARK_WIDTH}}" if position == 0 else " " * _MARK_WIDTH
        answer.line((head, style if position == 0 else ""), row.rstrip(), wrap=False)


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


def commands_for(chain: Explanation) -> Iterator[str]:
    """Yield the command lines that help, the most useful first; none with anything odd in it."""
    codes, reference = _codes_now(chain), chain.reference
    if chain.kind == "skill":
        if "not-in-lock" in codes:
            yield from _commands(("diff", "--frozen", reference), ("lock", "--frozen"), ("lock",))
        elif "skill-changed" in codes:
            yield from _commands(("diff", reference), ("approve", reference))
        elif codes & _TO_APPROVE:
            yield from _commands(("show", reference), ("approve", reference))
        elif chain.can_be_loaded:
            yield from _commands(("load", reference))
    if "lock-untrusted" in codes:
        yield from _commands(("lock",), ("lock", "--trust"))
    if "lock-invalid" in codes:
        yield from _commands(("lock",))
    for step in chain.steps:
        if step.refusal is not None and not step.is_well:
            yield from _commands(*(("why", meant) for meant in step.refusal.candidates[:_MOST_MEANT]))
            if step.refusal.code in _TO_VALIDATE and step.what == "hidden":
                yield from _commands(("validate", step.refusal.subject))
    if codes & _TO_DOCTOR:
        yield from _commands(("doctor",))
    if "unknown-reference" in codes:
        yield from _commands(("list",))


def _codes_now(chain: Explanation) -> frozenset[str]:
    """Return the codes that say how things stand; what was refused before may have been settled since."""
    found = [step.refusal.code for step in chain.steps if step.refusal is not None and step.what != "before"]
    return frozenset(found)


def _commands(*lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        command = f"skillwire {shlex.join(line)}"
        is_exact = visible(command) == command and "<U+" not in command
        # What begins with a dash would be taken for an option.
        if is_exact and all(word in _OPTIONS for word in line if word.startswith("-")):
            yield command
