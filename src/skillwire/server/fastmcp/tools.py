"""The tool that finds skills, on a FastMCP server, behind its middleware, transforms and visibility rules."""

from collections.abc import Sequence
from typing import Any

import mcp_types as types
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool, ToolResult
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.shared.exceptions import MCPError

from skillwire.server.failures import wire_errors
from skillwire.server.fastmcp.files import FileError
from skillwire.server.find_schema import ANNOTATIONS, DESCRIPTION, INPUT_SCHEMA, NAME, OUTPUT_SCHEMA, TITLE
from skillwire.server.find_tool import FindTool


class FindSkills(Tool):
    """`find_skills` as a tool of FastMCP."""

    _tool: FindTool

    def __init__(self, tool: FindTool) -> None:
        super().__init__(
            name=NAME,
            title=TITLE,
            description=DESCRIPTION,
            parameters=dict(INPUT_SCHEMA),
            output_schema=dict(OUTPUT_SCHEMA),
            annotations=types.ToolAnnotations.model_validate(dict(ANNOTATIONS)),
        )
        self._tool = tool

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            with wire_errors():
                result = await self._tool.run(arguments)
        except MCPError as error:
            raise FileError(error) from error
        return ToolResult.from_mcp_result(types.CallToolResult.model_validate(result))

    def to_mcp_tool(self, **overrides: Any) -> types.Tool:
        # It has no tags, and FastMCP would say so at length.
        return super().to_mcp_tool(**overrides).model_copy(update={"meta": None})


class FindToolProvider(Provider):
    """Comes after the server's own tools, so that those win where names clash."""

    def __init__(self, tool: FindTool) -> None:
        super().__init__()
        self._tool = FindSkills(tool)

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []

    async def _list_tools(self) -> Sequence[Tool]:
        return [self._tool]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:
        return self._tool if name == NAME else None
