"""`Rules`: what a caller may see and do, as the operator wrote it down. Rules only ever allow something."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillwire.core.characters import quoted
from skillwire.errors import InvalidUriError
from skillwire.runner.tomltable import Table, TableError
from skillwire.server.access.caller import Caller
from skillwire.server.access.files import read_guarded
from skillwire.server.access.settings import AccessError
from skillwire.server.access.sight import ALL, NOTHING, Sight, merged, place

MAX_SIZE: Final = 256 * 1024
MOST_RULES: Final = 1000
MOST_VALUES: Final = 1000
LONGEST_VALUE: Final = 512

WHO: Final = ("tokens", "subjects", "groups", "scopes", "clients", "issuers")


@dataclass(frozen=True, slots=True)
class Rule:
    """What some callers may see. Each kind that is named has to match, by any of its values.

    Where none is named, it is for all who showed a credential, and with
    `is_for_anyone` for those without one, too.
    """

    sight: Sight
    is_for_anyone: bool = False
    tokens: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    issuers: frozenset[str] = frozenset()

    def matches(self, caller: Caller) -> bool:
        """Tell whether a caller is meant."""
        if self.is_for_anyone:
            return True
        return not caller.is_anonymous and all(
            (
                not self.tokens or caller.token in self.tokens,
                not self.subjects or caller.subject in self.subjects,
                not self.clients or caller.client in self.clients,
                not self.issuers or caller.issuer in self.issuers,
                not self.groups or not self.groups.isdisjoint(caller.groups),
                not self.scopes or not self.scopes.isdisjoint(caller.scopes),
            )
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a server."""

    rules: tuple[Rule, ...] = ()

    def sight(self, caller: Caller) -> Sight:
        """Return all that the rules for a caller allow together."""
        found = NOTHING
        for rule in self.rules:
            if rule.matches(caller):
                found |= rule.sight
        return found


FOR_ANYONE: Final = Rules((Rule(ALL, is_for_anyone=True),))
FOR_CALLERS: Final = Rules((Rule(ALL),))
"""Everything, for all who showed a credential."""


def read_rules(path: Path) -> Rules:
    """Read a file of rules that nobody else can write.

    Raises:
        AccessError: It cannot be read, others can write it, or it says something that is not understood.
    """
    return parse_rules(read_guarded(path, most=MAX_SIZE, what="file of rules"))


def parse_rules(content: bytes) -> Rules:
    """Read rules in TOML.

    Raises:
        AccessError: It is no TOML, or something in it is malformed or unknown; the message names the key.
    """
    if len(content) > MAX_SIZE:
        raise AccessError(f"the rules are larger than {MAX_SIZE} bytes")
    try:
        table = Table("", tomllib.loads(content.decode()))
        tables = table.tables("rule")
        table.finish()
        if len(tables) > MOST_RULES:
            raise TableError(f"there are more than {MOST_RULES} rules")
        return Rules(tuple(_rule(one) for one in tables))
    except UnicodeDecodeError:
        raise AccessError("the rules are not UTF-8 text") from None
    except RecursionError:
        raise AccessError("the rules nest too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise AccessError(f"the rules are not TOML: {quoted(str(error))}") from None
    except TableError as error:
        raise AccessError(f"in the rules, {error}", fix=error.fix) from None


def _rule(table: Table) -> Rule:
    who = {kind: _values(table, kind) for kind in WHO}
    is_for_anyone, is_for_callers = table.flag("anyone"), table.flag("authenticated")
    sight = Sight(merged(_places(table, "see")), merged(_places(table, "run")), table.flag("operate"))
    table.finish()
    named = [kind for kind in WHO if who[kind]]
    if is_for_anyone and (named or is_for_callers):
        other = named[0] if named else "authenticated"
        raise TableError(f"{table.key('anyone')} is true and {table.key(other)} is given: choose one")
    if not (is_for_anyone or is_for_callers or named):
        raise TableError(
            f"{table.name} says not for whom it is",
            fix=f"give one of {', '.join(WHO)}, or authenticated = true, or anyone = true",
        )
    if sight == NOTHING:
        raise TableError(
            f"{table.name} allows nothing", fix='give see = ["*"], or fewer places, or run, or operate'
        )
    return Rule(sight, is_for_anyone, **who)


def _values(table: Table, kind: str) -> frozenset[str]:
    values = _texts(table, kind)
    if "" in values:
        raise TableError(f"{table.key(kind)} has an empty text in it")
    return frozenset(values)


def _places(table: Table, name: str) -> list[str]:
    found: list[str] = []
    for text in _texts(table, name):
        try:
            found.append(place(text))
        except InvalidUriError:
            raise TableError(
                f"{table.key(name)} has {quoted(text)} in it, which is no place",
                fix='write the path of a folder of skills, such as "acme/billing", or "*" for everything',
            ) from None
    return found


def _texts(table: Table, name: str) -> tuple[str, ...]:
    values = table.texts(name, is_filled=True)
    if len(values) > MOST_VALUES or any(len(value) > LONGEST_VALUE for value in values):
        raise TableError(
            f"{table.key(name)} has more than {MOST_VALUES} texts, or one of over {LONGEST_VALUE} characters"
        )
    return values
