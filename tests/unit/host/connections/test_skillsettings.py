"""The settings for skills: each can only take away, and none is passed over."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.connect.config import settings_of
from skillwire.host.model.endpoints import ShowRule, SkillSettings, Trust
from skillwire.host.model.errors import ConfigError


def fault(value: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings_of(value, owner="the server 'a'")
    assert str(caught.value).startswith("the server 'a' ")
    return caught.value


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (True, SkillSettings()),
        ({}, SkillSettings()),
        (False, SkillSettings(is_on=False)),
        ("off", SkillSettings(is_on=False)),
        ({"enabled": True}, SkillSettings()),
        ({"enabled": False, "budget": 1}, SkillSettings(is_on=False, budget=1)),
        ({"trust": "ask"}, SkillSettings(trust=Trust.ASK)),
        ({"trust": "approved"}, SkillSettings(trust=Trust.APPROVED)),
        ({"trust": "never"}, SkillSettings(trust=Trust.NEVER)),
        ({"budget": 1500}, SkillSettings(budget=1500)),
        (
            {"show": {"*": "off", "a": "pin", "b": "normal", "x/c": "name-only", "skill://d": "manual"}},
            SkillSettings(
                show={
                    "*": ShowRule.OFF,
                    "a": ShowRule.PIN,
                    "b": ShowRule.NORMAL,
                    "x/c": ShowRule.NAME_ONLY,
                    "skill://d": ShowRule.MANUAL,
                }
            ),
        ),
    ],
)
def test_settings_are_read(value: object, settings: SkillSettings) -> None:
    assert settings_of(value, owner="the server 'a'") == settings


@pytest.mark.parametrize("value", [None, 0, 1, 1.0, "on", "true", "OFF", "", [], ["off"]])
def test_what_is_no_setting_is_refused(value: object) -> None:
    assert '"off"' in fault(value).fix


@pytest.mark.parametrize(
    "key", ["trsut", "Trust", "approve", "approved", "autoApprove", "alwaysAllow", "budgets", ""]
)
def test_an_unknown_key_is_named(key: str) -> None:
    error = fault({"trust": "never", key: True})

    assert repr(key) in str(error) and "trust" in error.fix


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    "trust", ["always", "all", "yes", "trusted", "Never", "ASK", " ask", "", True, None, 1, ["ask"]]
)
def test_no_trust_but_the_known_ones_is_taken(trust: object) -> None:
    assert fault({"trust": trust}).fix == "use ask, approved or never"


@pytest.mark.parametrize("budget", [0, -1, 1.0, 1500.5, "1500", True, None, [1]])
def test_a_budget_that_is_no_number_of_tokens_is_refused(budget: object) -> None:
    assert "skills.budget" in str(fault({"budget": budget}))


@pytest.mark.parametrize("enabled", ["false", 0, 1, None])
def test_enabled_is_true_or_false(enabled: object) -> None:
    assert "skills.enabled" in str(fault({"enabled": enabled}))


@pytest.mark.parametrize(
    "show",
    [
        None,
        "pin",
        ["a"],
        {"a": "Pin"},
        {"a": None},
        {"a": True},
        {"a": ["pin"]},
        {"": "pin"},
        {"a": "always"},
    ],
)
def test_a_show_rule_that_is_not_known_is_refused(show: object) -> None:
    assert "skills.show" in str(fault({"show": show}))


def test_a_hostile_name_is_quoted() -> None:
    words = str(fault({"show": {"\x1b[2J\n\u202e": "x" * 10_000}}))

    assert words.isascii() and words.isprintable() and len(words) < 400


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from(["ask", "approved", "never", "off", "pin", "x"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["enabled", "trust", "budget", "show", "*", "a"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    )
)
def test_anything_is_read_or_one_clear_error(value: Any) -> None:
    try:
        settings = settings_of(value, owner="the server 'a'")
    except ConfigError:
        return
    assert settings.trust in Trust
    assert settings.budget is None or settings.budget > 0
