"""What the tests of servers share: kinds of server, generations of client, a folder, an environment."""

from pathlib import Path

import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from serving import environment
from talking import MODES, AnyServer


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[Server, MCPServer], ids=["lowlevel", "mcpserver"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    return request.param("demo")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    folder.mkdir()
    return folder


@pytest.fixture
def env(empty_home: Path) -> dict[str, str]:
    """The environment of a server in a process of its own."""
    return environment(empty_home)
