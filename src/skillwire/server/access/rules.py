"""`Rules`: what callers may see and do, read from the rules file. Rules only ever allow something."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillwire.core import InvalidUriError, quoted
from skillwire.core.toml import InvalidTomlError, Table, TableError, parse_toml
from skillwire.server.access.settings import AccessError, Caller, read_owner_writable
from skillwire.server.visibility import ALL, NOTHING, Visibility, merge_prefixes, parse_prefix

MAX_SIZE: Final = 256 * 1024
MAX_RULES: Final = 1000
MAX_VALUES: Final = 1000
MAX_VALUE_LENGTH: Final = 512

CALLER_KEYS: Final = ("tokens", "subjects", "groups", "scopes", "clients", "issuers")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What some callers may see and do. Each key that is given has to match, by any of its values.

    Without keys, the rule applies to all authenticated callers, and with
    `is_for_anyone` also to anonymous ones.
    """

    visibility: Visibility
    is_for_anyone: bool = False
    tokens: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    issuers: frozenset[str] = frozenset()

    def matches(self, caller: Caller) -> bool:
        """Return whether the rule applies to a caller."""
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

    rules: tuple[AccessRule, ...] = ()

    def visibility_of(self, caller: Caller) -> Visibility:
        """Return the union of what the matching rules allow a caller."""
        found = NOTHING
        for rule in self.rules:
            if rule.matches(caller):
                found |= rule.visibility
        return found


FOR_ANYONE: Final = Rules((AccessRule(ALL, is_for_anyone=True),))
FOR_CALLERS: Final = Rules((AccessRule(ALL),))
"""Everything, for all authenticated callers."""


def read_rules(path: Path) -> Rules:
    """Read a rules file that only its owner can write.

    Raises:
        AccessError: The file cannot be read, others can write it, or it is malformed.
    """
    return parse_rules(read_owner_writable(path, most=MAX_SIZE, what="rules file"))


def parse_rules(content: bytes) -> Rules:
    """Parse rules in TOML.

    Raises:
        AccessError: It is not TOML, or a key is malformed or unknown; the message names the key.
    """
    if len(content) > MAX_SIZE:
        raise AccessError(f"the rules are larger than {MAX_SIZE} bytes")
    try:
        table = parse_toml(content, what="the rules file")
        tables = table.tables("rule")
        table.finish()
        if len(tables) > MAX_RULES:
            raise TableError(f"there are more than {MAX_RULES} rules")
        return Rules(tuple(_rule(one) for one in tables))
    except InvalidTomlError as error:
        raise AccessError(str(error)) from None
    except TableError as error:
        raise AccessError(f"in the rules, {error}", fix=error.fix) from None


def _rule(table: Table) -> AccessRule:
    who = {kind: _values(table, kind) for kind in CALLER_KEYS}
    is_for_anyone, is_for_callers = table.flag("anyone"), table.flag("authenticated")
    see, run, manage = (_prefixes(table, key) for key in ("see", "run", "manage"))
    publish = [*_prefixes(table, "publish"), *manage]
    visibility = Visibility(
        # Whoever may change a skill may also see it.
        merge_prefixes([*see, *publish]),
        merge_prefixes(run),
        table.flag("operate"),
        merge_prefixes(publish),
        merge_prefixes(manage),
    )
    table.finish()
    named = [kind for kind in CALLER_KEYS if who[kind]]
    if is_for_anyone and (named or is_for_callers):
        other = named[0] if named else "authenticated"
        raise TableError(f"{table.key('anyone')} is true and {table.key(other)} is given: choose one")
    if is_for_anyone and publish:
        raise TableError(
            f"{table.name} lets anyone publish, also callers without a credential",
            fix="write authenticated = true instead of anyone = true, or name the publishers",
        )
    if not (is_for_anyone or is_for_callers or named):
        raise TableError(
            f"{table.name} does not name any callers",
            fix=f"give one of {', '.join(CALLER_KEYS)}, or authenticated = true, or anyone = true",
        )
    if visibility == NOTHING:
        raise TableError(
            f"{table.name} allows nothing",
            fix='give see = ["*"], or paths of folders, or run, publish, manage or operate',
        )
    return AccessRule(visibility, is_for_anyone, **who)


def _values(table: Table, kind: str) -> frozenset[str]:
    values = _texts(table, kind)
    if "" in values:
        raise TableError(f"{table.key(kind)} contains an empty string")
    return frozenset(values)


def _prefixes(table: Table, name: str) -> list[str]:
    found: list[str] = []
    for text in _texts(table, name):
        try:
            found.append(parse_prefix(text))
        except InvalidUriError:
            raise TableError(
                f"{table.key(name)} contains {quoted(text)}, which is not a path of skills",
                fix='write the path of a folder of skills, such as "acme/billing", or "*" for everything',
            ) from None
    return found


def _texts(table: Table, name: str) -> tuple[str, ...]:
    values = table.texts(name, is_filled=True)
    if len(values) > MAX_VALUES or any(len(value) > MAX_VALUE_LENGTH for value in values):
        raise TableError(
            f"{table.key(name)} has more than {MAX_VALUES} values, "
            f"or one longer than {MAX_VALUE_LENGTH} characters"
        )
    return values
