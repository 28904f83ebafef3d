"""An operator's policy: it is understood to the last key, or nothing of it counts."""

from fuzz.properties import require_fit
from skillwire.core.manifest import is_digest
from skillwire.core.uri import SkillUri
from skillwire.runner.policy import SCRIPT_LIMITS, PolicyError, is_host, parse_policy


def check(data: bytes) -> None:
    try:
        policy = parse_policy(data)
    except PolicyError as error:
        require_fit(str(error))
        assert not error.fix or error.fix.isprintable()
        return
    assert parse_policy(data) == policy
    assert policy.uid > 0
    assert policy.concurrent >= 1
    for limit in SCRIPT_LIMITS.values():
        assert 0 <= getattr(policy.limits, limit.field) <= getattr(policy.most, limit.field)
    for rule in policy.rules:
        assert SkillUri.parse(rule.skill).text == rule.skill
        assert rule.script.startswith("scripts/")
        assert rule.script.count("/") == 1
        assert not rule.digest or is_digest(rule.digest)
        assert all(map(is_host, rule.network))
    for interpreter in policy.interpreters.values():
        assert interpreter is None or interpreter.path.is_absolute()
