"""A skill's file as a resource of FastMCP, and what reading it gives."""

import logging
from typing import Any, Final

import mcp_types as types
from fastmcp.exceptions import FastMCPError
from fastmcp.resources import Resource, ResourceContent, ResourceResult, ResourceTemplate
from mcp.shared.exceptions import MCPError
from pydantic import Field

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import canonical_uri
from skillwire.errors import NotFoundError
from skillwire.server.answers import FileContent, Terms
from skillwire.server.failures import wire_errors
from skillwire.server.skills import Skills
from skillwire.sources import Snapshot
from skillwire.wire.core import (
    READ_DIRECTORY,
    CacheScope,
)

MANY_TYPES: Final = "application/octet-stream"


class FileResource(Resource):
    """A file of a skill, named like the skill so that rules about names cover it as a whole."""

    # FastMCP would take the first segment for a host name, and write some of them differently.
    uri: str = Field(default=...)  # pyright: ignore[reportIncompatibleVariableOverride]
    _skills: Skills
    _file: FileContent | None

    def __init__(self, skills: Skills, *, file: FileContent | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._skills = skills
        self._file = file

    async def read(self) -> ResourceResult:
        try:
            with wire_errors():
                return await self._read_file()
        except MCPError as error:
            raise FileError(error) from error

    async def _read_file(self) -> ResourceResult:
        answers = self._skills.answers
        try:
            return FileResult(self._file or await answers.read(self.uri), answers.terms)
        except NotFoundError as error:
            if answers.is_directory(self.uri):
                message = f"{self.uri} is a directory; use {READ_DIRECTORY}"
                raise NotFoundError(message, uri=self.uri) from error
            raise


class FileError(MCPError, FastMCPError):
    """Why a file was not read. FastMCP sends it as it is, and does not log a trace of its own."""

    def __init__(self, error: MCPError) -> None:
        super().__init__(error.code, error.message, error.data)
        self.log_level = logging.DEBUG


class FileResult(ResourceResult):
    """A file's content, and for how long and for whom it may be kept."""

    ttl_ms: int = 0
    cache_scope: CacheScope = "private"

    def __init__(self, file: FileContent, terms: Terms) -> None:
        content: str | bytes = file.content
        try:
            content = file.content.decode("utf-8")
        except UnicodeDecodeError:
            pass  # Then it travels as base64.
        super().__init__([ResourceContent(content, mime_type=file.media_type)])
        self.ttl_ms = terms.ttl_ms if file.digest else 0
        self.cache_scope = "private" if file.is_private else terms.cache_scope

    def to_mcp_result(self, uri: Any) -> types.ReadResourceResult:
        terms = {"ttl_ms": self.ttl_ms, "cache_scope": self.cache_scope}
        return super().to_mcp_result(uri).model_copy(update=terms)


class FilesTemplate(ResourceTemplate):
    """Says how the URIs of skills' files are made. It is for people; nothing is looked up by it."""

    def to_mcp_template(self, **overrides: Any) -> types.ResourceTemplate:
        made = super().to_mcp_template(**overrides)
        # Files of a skill share no media type, which FastMCP cannot say.
        return made.model_copy(update={"mime_type": None}) if self.mime_type == MANY_TYPES else made


def located(snapshot: Snapshot, uri: str) -> tuple[SkillEntry, str]:
    """Find the skill that has a file, and the spelling of the file's URI that is published.

    Raises:
        NotFoundError: No listed skill has such a file.
    """
    entry, line = snapshot.locate(uri)
    canonical = canonical_uri(uri)
    if canonical == entry.uri.text:
        return entry, entry.uri.published
    return entry, canonical if line is None else line.published
