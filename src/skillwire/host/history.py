"""What was refused lately, from the audit log: for explaining it afterwards."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import orjson

from skillwire.core.characters import visible
from skillwire.host.refusals import REFUSALS, Refusal
from skillwire.host.state.audit import MAX_BYTES
from skillwire.host.state.vault import read_private

logger = logging.getLogger(__name__)

MOST: Final = 5
"""How many different refusals are remembered of one skill or server."""

_LONGEST_WORD = 100
_MARKS = (b'"refusal"', b'"gate"', b'"load"')


@dataclass(frozen=True, slots=True)
class PastRefusal:
    """One refusal of the past: when, during what, and which."""

    time: str
    during: str
    refusal: Refusal

    def __str__(self) -> str:
        return f"refused on {self.time} during {self.during}"


def past_refusals(log: Path, is_about: Callable[[str], bool]) -> list[PastRefusal]:
    """Return what was refused of something since it was last loaded, the newest of each kind first.

    `is_about` tells whether the reference of an event means it. A log that
    cannot be read, or holds anything odd, is as good as none.
    """
    found: dict[str, PastRefusal] = {}
    for path in (log, log.with_name(f"{log.name}.1")):
        for event in _newest_first(path):
            if event.get("event") == "load" and is_about(_word(event, "reference")):
                return list(found.values())
            past = _refusal_in(event, is_about)
            if past is not None:
                found.setdefault(past.refusal.code, past)
            if len(found) == MOST:
                return list(found.values())
    return list(found.values())


def _newest_first(path: Path) -> Iterator[dict[str, object]]:
    try:
        # A log may be a little larger than it is meant to be, when a disk was in trouble.
        content = read_private(path, most=2 * MAX_BYTES + MAX_BYTES // 2) or b""
    except OSError as error:
        logger.info("the audit log cannot be read: %s", error)
        return
    for line in reversed(content.splitlines()):
        if not any(mark in line for mark in _MARKS):
            continue
        try:
            event: object = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield cast(dict[str, object], event)


def _refusal_in(event: dict[str, object], is_about: Callable[[str], bool]) -> PastRefusal | None:
    code = _word(event, "code")
    if code not in REFUSALS:
        return None
    if event.get("event") == "refusal":
        about, during = [_word(event, "reference")], _word(event, "during")
    elif event.get("event") == "gate" and event.get("verdict") != "allow":
        skills = event.get("skills")
        names = cast(list[object], skills) if isinstance(skills, list) else []
        about = [name for name in names if isinstance(name, str)]
        during = f"a call of the tool {_word(event, 'tool')}"
    else:
        return None
    meant = next((name for name in about if is_about(name)), None)
    return None if meant is None else PastRefusal(_word(event, "time"), during, Refusal(code, meant))


def _word(event: dict[str, object], name: str) -> str:
    value = event.get(name)
    longest = 512 if name == "reference" else _LONGEST_WORD
    return visible(value[:longest]) if isinstance(value, str) else ""
