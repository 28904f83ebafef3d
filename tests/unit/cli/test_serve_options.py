"""The command line of `skillwire serve` is made from its options."""

import inspect

import pytest
import typer

from skillwire.cli.serve import EPILOG, KEYS, app, serve, typed_values
from skillwire.server.options import OPTIONS

MOST_PARAMETERS = 17
OWN = {"config", "print_config", "json", "verbose"}


def test_every_option_is_typed_or_a_key_of_the_file() -> None:
    typed = {name for name, option in OPTIONS.items() if option.on_command_line}
    parameters = inspect.signature(serve).parameters

    assert typed | OWN == parameters.keys()
    assert typed | set(KEYS) == OPTIONS.keys()
    assert len(parameters) <= MOST_PARAMETERS


def test_what_is_typed_is_spelled_and_explained_as_in_the_model() -> None:
    for parameter in typer.main.get_command(app).params:
        if parameter.name in OWN or parameter.param_type_name == "argument":
            continue
        option = OPTIONS[parameter.name or ""]
        assert parameter.opts == [f"--{option.name.replace('_', '-')}"]
        assert getattr(parameter, "help", "") == option.help
        assert parameter.metavar == (option.metavar or None)


@pytest.mark.parametrize("name", KEYS)
def test_help_names_the_keys_that_cannot_be_typed(name: str) -> None:
    assert name in EPILOG


def test_only_what_was_typed_counts() -> None:
    parameters: dict[str, object] = {"folders": [], "http": None, "dialect": ["prompt"], "watch": False}

    assert typed_values({**parameters, "json": True}) == {"dialect": ("prompt",), "watch": False}
