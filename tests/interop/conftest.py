"""The servers that strangers' tools are pointed at, each started once, when the first test asks for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from interop.serving import Endpoint, Transport, command_of, environment, serving
from interop.tools import Node, find_node
from interop.truth import Truth, make_folder, truth_of

Start: TypeAlias = Callable[[str], str]
"""Starts one of our servers over HTTP, unless it runs already, and returns its URL."""


@pytest.fixture(scope="session")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("server-home"))


@pytest.fixture(scope="session")
def node(env: dict[str, str]) -> Node:
    return find_node(env)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "skills"
    make_folder(folder)
    return folder


@pytest.fixture(scope="session")
def truth(folder: Path) -> Truth:
    return truth_of(folder)


@pytest.fixture(scope="session")
def start(folder: Path, env: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as running:

        @cache
        def url_of(server: str) -> str:
            return running.enter_context(serving(command_of(server, folder, "http"), env))

        yield url_of


@pytest.fixture
def url(server: str, start: Start) -> str:
    """The server a test is parametrized with, over HTTP."""
    return start(server)


@pytest.fixture
def endpoint(server: str, transport: Transport, folder: Path, start: Start) -> Endpoint:
    """The server a test is parametrized with, over the transport it is parametrized with."""
    if transport == "stdio":
        return Endpoint(command=command_of(server, folder, "stdio"))
    return Endpoint(url=start(server))
