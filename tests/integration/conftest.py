"""What the tests of servers in this process share: the kinds of server, and the generations of client."""

from pathlib import Path

import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

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
