"""`find_skills`: any arguments find skills, page after page, or get one clear remark."""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from jsonschema import Draft202012Validator

from fuzz.lasting import portal
from fuzz.properties import json_of, require_fit
from skillwire.core.errors import SkillError
from skillwire.core.skill import Skill
from skillwire.server.find_tool import INPUT_SCHEMA, FindRequest, parse_find_request
from skillwire.server.search import ServerSearch
from skillwire.sources import MemorySource, Snapshot

_SCHEMA: Any = Draft202012Validator(INPUT_SCHEMA)


@cache
def _world() -> tuple[ServerSearch, Snapshot]:
    """Make everything once, in the process that asks."""
    described = {
        "tea": "Use when brewing green tea or черный чай, 100% of the time.",
        "acme/billing/refunds": 'Use when a customer wants money back; near AND not "far".',
        "acme/billing/invoices": "Use for invoices, über-long ones and 日本語 ones.",
        "acme/shipping": "Use to send parcels * OR letters.",
    }
    skills = [
        Skill(path.rpartition("/")[2], path=path, description=text, body="Do it.\n")
        for path, text in described.items()
    ]
    return ServerSearch(), MemorySource(skills).snapshot


def check(data: bytes) -> None:
    value, is_json = json_of(data)
    if not is_json or not isinstance(value, dict):
        return
    arguments = cast("Mapping[str, Any]", value)
    try:
        question = parse_find_request(arguments)
    except SkillError as error:
        require_fit(str(error))
        return
    assert _SCHEMA.is_valid({name: item for name, item in arguments.items() if item is not None})
    portal().call(_check_answers, question)


async def _check_answers(question: FindRequest) -> None:
    """Follow a search from page to page: each skill comes once, and all of them do."""
    search, snapshot = _world()
    found: list[str] = []
    cursor = question.cursor
    while True:
        try:
            page = await search.find(
                snapshot, question.query, limit=question.limit, cursor=cursor, filters=question.filters
            )
        except SkillError as error:
            require_fit(str(error))
            assert cursor == question.cursor, "a cursor of ours is refused"
            return
        assert len(page.matches) <= question.limit
        assert page.total is None or page.total <= len(snapshot.entries)
        for match in page.matches:
            assert question.filters.include(match.entry)
            assert not match.snippet or match.snippet.isprintable()
            found.append(match.entry.uri.text)
        if page.cursor is None:
            break
        assert page.matches, "a page without skills goes on"
        cursor = page.cursor
    assert len(set(found)) == len(found)
    assert question.cursor is not None or page.total in (None, len(found))
