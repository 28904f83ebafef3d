"""Arguments of a skill: those it declares, and a check of those to be sent to its server."""

import json
from collections.abc import Iterable, Mapping
from typing import Final, cast

from skillwire.core import SkillArgument, quoted, visible
from skillwire.host.model.errors import ArgumentsNeededError, InvalidArgumentsError
from skillwire.host.model.origin import KnownSkill
from skillwire.wire.by_name import parse_item

ARGUMENTS: Final = "arguments"
"""The key in an entry's `extra` that holds the declared arguments."""

MAX_CHARACTERS: Final = 10_000
"""The maximum total length of names and values: the user is shown every character that is sent."""

_MOST_NAMED = 20
_MOST_ROWS = 64
_LONGEST_NAME = 100
_LONGEST_DESCRIPTION = 200


def declared_arguments(skill: KnownSkill) -> tuple[SkillArgument, ...]:
    """Return the arguments a skill declares; none if its dialect does not support arguments."""
    if not skill.takes_arguments:
        return ()
    item, _ = parse_item({"name": skill.name or "-", ARGUMENTS: skill.entry.extra.get(ARGUMENTS, [])})
    return () if item is None else item.arguments


def checked_arguments(skill: KnownSkill, given: Mapping[str, object] | None) -> dict[str, str]:
    """Return the arguments to send for a skill.

    Raises:
        InvalidArgumentsError: The skill does not take them, or they are not strings or too long.
        ArgumentsNeededError: A required one is missing.
    """
    declared = {argument.name: argument for argument in declared_arguments(skill)}
    values = dict(given or {})
    if unknown := [name for name in values if name not in declared]:
        raise InvalidArgumentsError(_unknown_words(skill, unknown, declared), reference=skill.reference)
    for name, value in values.items():
        if not isinstance(value, str):
            raise _invalid(skill, f"the argument {quoted(name)} must be a string")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _invalid(skill, f"the argument {quoted(name)} is not valid Unicode")
    texts = cast("dict[str, str]", values)
    if sum(len(name) + len(value) for name, value in texts.items()) > MAX_CHARACTERS:
        raise _invalid(skill, f"the arguments have more than {MAX_CHARACTERS:,} characters together")
    missing = [argument for argument in declared.values() if argument.required and argument.name not in texts]
    if missing:
        raise ArgumentsNeededError(
            f"{skill.reference} needs arguments: {'; '.join(map(_described, missing[:_MOST_NAMED]))}",
            reference=skill.reference,
            arguments=missing,
        )
    return texts


def argument_rows(skill: KnownSkill) -> list[str]:
    """Return one line for each argument a skill declares, with its description, not escaped."""
    rows: list[str] = []
    for argument in declared_arguments(skill)[:_MOST_ROWS]:
        mark = " (required)" if argument.required else ""
        words = argument.description or argument.title
        rows.append(f"{argument.name}{mark}: {words}" if words else f"{argument.name}{mark}")
    return rows


def format_argument_lines(arguments: Mapping[str, str]) -> list[str]:
    """Format the arguments to be sent, one line each, with hidden characters escaped."""
    return [
        f"{visible(name)} = {visible(json.dumps(value, ensure_ascii=False))}"
        for name, value in arguments.items()
    ]


def _unknown_words(skill: KnownSkill, unknown: Iterable[str], declared: Iterable[str]) -> str:
    names = _named(unknown)
    if skill.takes_arguments:
        takes = f"takes {_named(declared)}" if declared else "takes no arguments"
        return f"{skill.reference} has no argument {names}; it {takes}"
    if not skill.is_remote:
        return f"a local skill takes no arguments: {names}"
    return f"{skill.reference} takes no arguments in the dialect {skill.dialect.value}: {names}"


def _invalid(skill: KnownSkill, message: str) -> InvalidArgumentsError:
    return InvalidArgumentsError(message, reference=skill.reference)


def _named(names: Iterable[str]) -> str:
    return ", ".join(quoted(name[:_LONGEST_NAME]) for name in list(names)[:_MOST_NAMED])


def _described(argument: SkillArgument) -> str:
    """Return an argument's name with its description, quoted and shortened."""
    name = quoted(argument.name[:_LONGEST_NAME])
    words = argument.description or argument.title
    if not words:
        return name
    return f"{name} ({json.dumps(visible(words[:_LONGEST_DESCRIPTION]), ensure_ascii=False)})"
