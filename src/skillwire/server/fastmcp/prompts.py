"""Skills as prompts of a FastMCP server, behind its middleware, transforms and visibility rules."""

from collections.abc import Sequence
from typing import Any

import mcp_types as types
from fastmcp.prompts import Prompt, PromptResult
from fastmcp.server.providers import Provider
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.shared.exceptions import MCPError

from skillwire.server.dialects.compat import MaySee
from skillwire.server.dialects.prompts import Prompts, SkillPrompt
from skillwire.server.failures import wire_errors
from skillwire.server.fastmcp.files import FileError
from skillwire.server.skills import Skills


class PromptOfSkill(Prompt):
    """A prompt with all of a skill's text."""

    _prompts: Prompts
    _prompt: SkillPrompt

    def __init__(self, prompts: Prompts, prompt: SkillPrompt) -> None:
        super().__init__(name=prompt.name, description=prompt.entry.frontmatter.description)
        self._prompts = prompts
        self._prompt = prompt

    async def render(self, arguments: dict[str, Any] | None = None) -> PromptResult:
        try:
            with wire_errors():
                entry, text = await self._prompts.text_of(self._prompt.entry)
                return PromptResult(text, description=entry.frontmatter.description)
        except MCPError as error:
            raise FileError(error) from error

    def to_mcp_prompt(self, **overrides: Any) -> types.Prompt:
        # It has no arguments and no tags, and FastMCP would say so at length.
        return super().to_mcp_prompt(**overrides).model_copy(update={"arguments": None, "meta": None})


class PromptsProvider(Provider):
    """The prompts of a server's skills, if it serves skills as prompts.

    It comes after the server's own prompts, so that those win where names clash.
    """

    def __init__(self, skills: Skills, may_see: MaySee) -> None:
        super().__init__()
        self._skills = skills
        self._may_see = may_see

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []

    async def _list_prompts(self) -> Sequence[Prompt]:
        prompts = self._skills.prompts
        if prompts is None:
            return []
        with wire_errors():
            return [
                PromptOfSkill(prompts, prompt)
                for prompt in prompts.book.prompts
                if await self._may_see(prompt.entry.uri.published)
            ]

    async def _get_prompt(self, name: str, version: VersionSpec | None = None) -> Prompt | None:
        prompts = self._skills.prompts
        if prompts is None:
            return None
        with wire_errors():
            prompt = prompts.book.by_name.get(name)
            if prompt is None or not await self._may_see(prompt.entry.uri.published):
                return None
            return PromptOfSkill(prompts, prompt)
