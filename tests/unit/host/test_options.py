"""The options of a host: an invalid value is one clear error, when the option is made."""

import inspect
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import skillwire.host
from skillwire.host import (
    ArchivePolicy,
    ConfigError,
    ConnectionLimits,
    Host,
    HostLimits,
    HostPolicy,
    PromptLimits,
    Refusal,
    ServerConfig,
    ShowRule,
    StdioEndpoint,
    Storage,
)
from skillwire.host.connect.config import Servers
from skillwire.host.use.fetch import NO_ARCHIVES


def invalid(kind: Any, **values: Any) -> str:
    """Return the one line with which a value is refused; the error says what to do, too."""
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert caught.value.fix
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_host_has_few_options() -> None:
    assert list(inspect.signature(Host).parameters) == [
        "servers",
        "approve",
        "project",
        "lock",
        "roots",
        "policy",
        "storage",
        "limits",
        "scripts",
        "on_event",
    ]
    assert len(skillwire.host.__all__) <= 50


@pytest.mark.parametrize("name", ["frozen", "wait_seconds", "places", "on_activation"])
def test_an_unknown_option_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: True}
    for kind in (Host, HostLimits if name != "wait_seconds" else HostPolicy, Storage):
        with pytest.raises(TypeError, match=name):
            kind(**options)


@pytest.mark.parametrize("kind", [HostPolicy, HostLimits, Storage])
def test_options_do_not_change(kind: type[HostPolicy] | type[HostLimits] | type[Storage]) -> None:
    made = kind()

    assert made == kind()
    for field in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, None)


def test_by_default_a_host_allows_nothing_that_was_not_asked_for() -> None:
    policy = HostPolicy()

    assert (policy.dynamic, policy.archives, policy.provenance) == ("decline", NO_ARCHIVES, None)
    assert dict(policy.show) == {}


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("dynamic", "always", '"decline" or "ask"'),
        ("dynamic", None, '"decline" or "ask"'),
        ("visible", "aproved", '"all" or "approved"'),
        ("visible", ["all"], '"all" or "approved"'),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(name: str, value: object, choices: str) -> None:
    said = invalid(HostPolicy, **{name: value})

    assert said == f"`HostPolicy.{name}` must be {choices}, not {value!r}"


def test_what_is_shown_is_given_as_words_or_values_and_cannot_change_later() -> None:
    rules: dict[str, Any] = {"acme/*": "pin", "*": ShowRule.OFF}
    policy = HostPolicy(show=rules)
    rules["acme/*"] = "off"

    assert policy.show == {"acme/*": ShowRule.PIN, "*": ShowRule.OFF}
    assert hash(policy) == hash(HostPolicy())


def test_an_unknown_way_to_show_a_skill_names_the_skill() -> None:
    said = invalid(HostPolicy, show={"acme/refunds": "sometimes"})

    assert "HostPolicy.show['acme/refunds']" in said
    assert '"pin"' in said and "'sometimes'" in said


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    [
        (HostPolicy, "archives", True, "ArchivePolicy, not bool"),
        (HostPolicy, "show", ["acme/*"], "Mapping, not list"),
        (HostLimits, "prompts", 3, "PromptLimits, not int"),
        (HostLimits, "connections", PromptLimits(), "ConnectionLimits, not PromptLimits"),
    ],
)
def test_a_value_of_another_class_is_refused(kind: Any, name: str, value: object, wanted: str) -> None:
    assert invalid(kind, **{name: value}) == f"`{kind.__name__}.{name}` must be of type {wanted}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_length", 0),
        ("page_length", True),
        ("page_length", "1000"),
        ("wait_seconds", -1),
        ("wait_seconds", float("nan")),
        ("cache_bytes", -1),
        ("cache_bytes_per_server", None),
    ],
)
def test_a_limit_that_is_no_number_of_this_size_is_refused(name: str, value: object) -> None:
    said = invalid(HostLimits, **{name: value})

    assert said.startswith(f"`HostLimits.{name}` must be a number, ")
    assert said.endswith(f"not {value!r}")


def test_limits_hold_the_limits_of_prompts_and_connections() -> None:
    limits = HostLimits(prompts=PromptLimits(seconds=1), wait_seconds=0)

    assert (limits.prompts.seconds, limits.connections, limits.wait_seconds) == (1, ConnectionLimits(), 0)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("policy", {"frozen": True}, "HostPolicy, not dict"),
        ("policy", {}, "HostPolicy, not dict"),
        ("policy", ArchivePolicy(), "HostPolicy, not ArchivePolicy"),
        ("storage", Path("state"), "Storage, not PosixPath"),
        ("limits", ConnectionLimits(), "HostLimits, not ConnectionLimits"),
    ],
)
def test_a_host_takes_each_group_of_options_as_its_own_class(name: str, value: object, wanted: str) -> None:
    assert invalid(Host, **{name: value}) == f"`{name}` must be of type {wanted}"


def test_the_key_of_the_state_is_not_shown() -> None:
    storage = Storage(Path("state"), Path("cache"), state_key=b"a secret of the embedder")

    assert "secret" not in repr(storage)


async def test_a_host_takes_servers_with_what_was_refused_of_their_configuration(tmp_path: Path) -> None:
    unused = ServerConfig("team", StdioEndpoint("never-started"), is_enabled=False)
    found = Servers((unused,), (Refusal("invalid-config", "shop", "no url"),))
    storage = Storage(tmp_path / "state", tmp_path / "cache")

    async with Host(found, roots=(), storage=storage) as host:
        assert [(problem.code, problem.subject) for problem in host.problems] == [("invalid-config", "shop")]
        assert host.view.servers == ()
