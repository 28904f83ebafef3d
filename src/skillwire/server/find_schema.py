"""What `find_skills` takes and returns, and reading what a client sent it.

Filters are few, because a model has to choose among them: `below` narrows a
catalog to one of the groups that directories show, and `has_scripts` is for
hosts that can run scripts, or cannot. Licenses and compatibility are free text
in the format, so they are found by words like the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skillwire.core.uri import MAX_URI_LENGTH
from skillwire.errors import InvalidUriError, SkillError
from skillwire.server.access.sight import EVERYTHING
from skillwire.server.search import MAX_QUERY, NO_FILTERS, Filters

NAME: Final = "find_skills"
DEFAULT_LIMIT: Final = 10
MAX_LIMIT: Final = 50
MAX_CURSOR: Final = 2 * MAX_URI_LENGTH

TITLE: Final = "Find skills"
DESCRIPTION: Final = (
    "Find Agent Skills of this server by words about a task. "
    "Returns links to the SKILL.md of the skills that fit, best first."
)
INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": MAX_QUERY, "description": "What the task is about."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_LIMIT,
            "default": DEFAULT_LIMIT,
            "description": "How many skills to return at most.",
        },
        "below": {
            "type": "string",
            "maxLength": MAX_URI_LENGTH,
            "description": "Only skills below this path, such as acme/billing.",
        },
        "has_scripts": {
            "type": "boolean",
            "description": "Only skills that come with scripts, or only those that do not.",
        },
        "cursor": {
            "type": "string",
            "maxLength": MAX_CURSOR,
            "description": "The cursor of an earlier answer, to go on with the same search.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}
OUTPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "skills": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "uri": {"type": "string", "description": "The URI of the skill's SKILL.md."},
                    "name": {"type": "string"},
                    "path": {"type": "string", "description": "Where the skill is, with its name."},
                    "snippet": {"type": "string", "description": "Part of the description."},
                },
                "required": ["uri", "name", "path", "snippet"],
            },
        },
        "total": {"type": "integer", "description": "How many skills fit; absent if unknown."},
        "nextCursor": {"type": "string", "description": "There when more skills fit."},
    },
    "required": ["skills"],
}
ANNOTATIONS: Final[Mapping[str, Any]] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}

_KNOWN = frozenset(INPUT_SCHEMA["properties"])


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks for, found to be in order."""

    query: str
    limit: int = DEFAULT_LIMIT
    cursor: str | None = None
    filters: Filters = NO_FILTERS


def parse_question(arguments: Mapping[str, Any]) -> Question:
    """Read the arguments of a call. A null is as good as nothing.

    Raises:
        SkillError: Something is not as the tool's schema says.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.keys() - _KNOWN:
        raise SkillError(f"only these arguments are known: {', '.join(sorted(_KNOWN))}")
    query, limit = given.get("query"), given.get("limit", DEFAULT_LIMIT)
    if not isinstance(query, str) or not query.strip():
        raise SkillError("`query` must be text that says what to look for")
    if len(query) > MAX_QUERY:
        raise SkillError(f"`query` must have at most {MAX_QUERY} characters")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise SkillError(f"`limit` must be a whole number from 1 to {MAX_LIMIT}")
    return Question(query, limit, _cursor(given.get("cursor")), _filters(given))


def _cursor(cursor: object) -> str | None:
    if cursor is not None and not isinstance(cursor, str):
        raise SkillError("`cursor` must be text from an earlier answer")
    return cursor or None


def _filters(given: Mapping[str, Any]) -> Filters:
    below, has_scripts = given.get("below", EVERYTHING), given.get("has_scripts")
    if has_scripts is not None and not isinstance(has_scripts, bool):
        raise SkillError("`has_scripts` must be true or false")
    if not isinstance(below, str) or len(below) > MAX_URI_LENGTH:
        raise SkillError("`below` must be a path, such as acme/billing")
    if not below.strip("/"):
        return Filters(has_scripts=has_scripts)
    try:
        return Filters(below, has_scripts)
    except InvalidUriError as error:
        raise SkillError("`below` cannot be the path of skills", fix=str(error)) from error
