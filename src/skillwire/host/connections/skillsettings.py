"""Reading `skills`, the part of a server's configuration that is ours.

Such files travel with projects. So nothing in here can approve anything, and
what is not understood refuses the server instead of being passed over: a
misspelt `trust` must not become a wider one.
"""

from collections.abc import Iterable
from typing import Final, cast

from skillwire.core.characters import quoted
from skillwire.host.attention import Attention, SkillSettings, Trust
from skillwire.host.failures import ConfigError
from skillwire.wire.dialect import Dialect

_KEYS: Final = ("enabled", "trust", "budget", "show", "dialect")


def settings_of(value: object, *, owner: str) -> SkillSettings:
    """Read the settings of one server; `owner` says in messages whose they are.

    Raises:
        ConfigError: They hold anything that is not known here.
    """
    if isinstance(value, bool):
        return SkillSettings(is_on=value)
    if value == "off":
        return SkillSettings(is_on=False)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{owner} has a `skills` that is not known: {_shown(value)}",
            fix=f'use true, false, "off" or an object with {_listed(_KEYS)}',
        )
    table = cast(dict[str, object], value)
    for key in table:
        if key not in _KEYS:
            raise ConfigError(
                f"{owner} has an unknown {quoted(key)} in `skills`", fix=f"use {_listed(_KEYS)}"
            )
    return SkillSettings(
        is_on=_enabled(table.get("enabled", True), owner),
        trust=_trust(table.get("trust", Trust.ASK.value), owner),
        budget=_budget(table["budget"], owner) if "budget" in table else None,
        show=_show(table.get("show", {}), owner),
        dialect=_dialect(table["dialect"], owner) if "dialect" in table else None,
    )


def _enabled(value: object, owner: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{owner} has a `skills.enabled` that is neither true nor false")
    return value


def _trust(value: object, owner: str) -> Trust:
    if isinstance(value, str) and value in set(Trust):
        return Trust(value)
    raise ConfigError(
        f"{owner} has a `skills.trust` that is not known: {_shown(value)}", fix=f"use {_listed(Trust)}"
    )


def _budget(value: object, owner: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{owner} has a `skills.budget` that is no whole number of tokens above 0")
    return value


def _dialect(value: object, owner: str) -> Dialect:
    spoken = [dialect for dialect in Dialect if dialect not in (Dialect.LOCAL, Dialect.WELL_KNOWN)]
    if isinstance(value, str) and value in spoken:
        return Dialect(value)
    raise ConfigError(
        f"{owner} has a `skills.dialect` that is not known: {_shown(value)}", fix=f"use {_listed(spoken)}"
    )


def _show(value: object, owner: str) -> dict[str, Attention]:
    if not isinstance(value, dict):
        raise ConfigError(f"{owner} has a `skills.show` that is no object")
    found: dict[str, Attention] = {}
    for name, attention in cast(dict[str, object], value).items():
        if not name:
            raise ConfigError(f"{owner} has an empty name in `skills.show`")
        if not isinstance(attention, str) or attention not in set(Attention):
            raise ConfigError(
                f"{owner} has a value in `skills.show` for {quoted(name)} that is not known: "
                f"{_shown(attention)}",
                fix=f"use {_listed(Attention)}",
            )
        found[name] = Attention(attention)
    return found


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else "it is no text"


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
