"""Rules of access: understood to the last key, and never allowing more than they say."""

import tomllib
from collections.abc import Sequence

from fuzz.properties import require_fit
from skillwire.core.uri import SkillUri
from skillwire.server.access.rules import Rules, parse_rules
from skillwire.server.access.settings import ANONYMOUS, AccessError, Caller
from skillwire.server.visibility import ALL, EVERYTHING, Visibility, merge_prefixes, parse_prefix

_CALLERS = (
    ANONYMOUS,
    Caller("tea", token="tea", groups=frozenset({"g"}), scopes=frozenset({"s"})),
    Caller("ann", subject="ann", client="c", issuer="https://i.example"),
    Caller("nobody", token="nobody"),
)
_SKILLS = tuple(map(SkillUri.build, ("tea", "acme/billing/refunds", "acme", "acme-2/x")))


def check(data: bytes) -> None:
    try:
        rules = parse_rules(data)
    except AccessError as error:
        require_fit(str(error))
        assert not error.fix or error.fix.isprintable()
        return
    assert parse_rules(data) == rules
    assert len(tomllib.loads(data.decode()).get("rule", "")) == len(rules.rules)
    for caller in _CALLERS:
        visibility = rules.visibility_of(caller)
        _check_visibility(visibility)
        _check_against_each(rules, caller, visibility)
    if not any(rule.is_for_anyone for rule in rules.rules):
        assert rules.visibility_of(ANONYMOUS) == Visibility()


def _check_visibility(visibility: Visibility) -> None:
    for places in (visibility.prefixes, visibility.runnable):
        assert places == merge_prefixes(places)
        assert EVERYTHING not in places or len(places) == 1
        for one in places:
            assert one == EVERYTHING or parse_prefix(one) == one
    assert visibility | visibility == visibility
    assert visibility | ALL == ALL
    for skill in _SKILLS:
        assert visibility.includes(skill) or not visibility.may_run(skill)


def _check_against_each(rules: Rules, caller: Caller, visibility: Visibility) -> None:
    """What is visible is visible by some rule, and whatever a rule shows is visible."""
    for skill in _SKILLS:
        shown = [
            rule for rule in rules.rules if rule.matches(caller) and _covers(rule.visibility.prefixes, skill)
        ]
        assert visibility.includes(skill) == bool(shown)
    operating = [rule for rule in rules.rules if rule.matches(caller) and rule.visibility.can_operate]
    assert visibility.can_operate == bool(operating)


def _covers(places: Sequence[str], skill: SkillUri) -> bool:
    """Tell whether a skill lies at one of the places or below it, segment by segment."""
    segments = skill.root.split("/")
    return any(one == EVERYTHING or segments[: one.count("/") + 1] == one.split("/") for one in places)
