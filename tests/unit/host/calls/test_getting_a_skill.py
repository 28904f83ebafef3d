"""`get_skill`: the entry that was asked for, or an error that says why not."""

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from skillwire.core.entry import SkillEntry, parse_entry
from skillwire.core.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidEntryError,
    InvalidUriError,
    NotFoundError,
    SkillError,
    SourceError,
)
from skillwire.core.uri import SkillUri
from skillwire.host import get_skill
from skillwire.host.model.errors import InvalidAnswerError, NotDeclaredError, PeerError
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always, entry

both_generations = pytest.mark.parametrize("mode", MODES)

URI = "skill://acme/refunds/SKILL.md"


async def got(answers: Answers, mode: str = "auto", uri: SkillUri | str = URI) -> SkillEntry:
    return await Stranger({"skills/get": answers}).visited(mode, lambda client: get_skill(client, uri))


@both_generations
@pytest.mark.requirement("SDK-03")
async def test_getting_a_skill_is_one_request(mode: str) -> None:
    stranger = Stranger({"skills/get": always({"skill": entry(), "ttlMs": 0, "cacheScope": "private"})})

    found = await stranger.visited(mode, lambda client: get_skill(client, URI))

    assert found == parse_entry(entry())
    assert stranger.requests == [("skills/get", {"uri": URI})]


@both_generations
async def test_a_dynamic_skill_is_got_like_any_other(mode: str) -> None:
    found = await got(always({"skill": {**entry(), "resources": "dynamic"}}), mode)

    assert found.is_dynamic


@pytest.mark.requirement("GET-07")
async def test_an_older_server_says_nothing_about_keeping_an_entry() -> None:
    assert await got(always({"skill": entry()}), "legacy") == parse_entry(entry())


@both_generations
async def test_a_skill_is_asked_for_as_its_publisher_spells_it(mode: str) -> None:
    spelled = "skill://acme/%72efunds/SKILL.md"
    stranger = Stranger({"skills/get": always({"skill": entry()})})

    found = await stranger.visited(mode, lambda client: get_skill(client, SkillUri.parse(spelled)))

    assert stranger.requests == [("skills/get", {"uri": spelled})]
    assert found.uri == SkillUri(URI)


@both_generations
@pytest.mark.requirement("GET-06")
@pytest.mark.parametrize(
    "other",
    [
        entry("chargebacks"),
        {**entry(), "uri": "skill://ACME/refunds/SKILL.md", "resources": "dynamic"},
        {**entry(), "uri": "other://acme/refunds/SKILL.md", "resources": "dynamic"},
        {**entry(), "uri": "skill://acme/deeper/refunds/SKILL.md", "resources": "dynamic"},
    ],
    ids=["another skill", "another first segment", "another scheme", "another path"],
)
async def test_an_entry_for_another_uri_is_a_failure(mode: str, other: Any) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await got(always({"skill": other}), mode)

    assert caught.value.violates == "GET-06"


@both_generations
@pytest.mark.requirement("LIST-10")
@pytest.mark.requirement("LIST-11")
@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "skill",
        {},
        {**entry(), "resources": None},
        {**entry(), "resources": []},
        {**entry(), "resources": entry()["resources"] * 2},
        {**entry(), "frontmatter": {"name": "chargebacks", "description": "Another name."}},
    ],
    ids=repr,
)
async def test_an_entry_that_breaks_a_rule_is_not_used(mode: str, broken: Any) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        await got(always({"skill": broken}), mode)

    assert str(caught.value)


@pytest.mark.requirement("LIST-11")
async def test_an_error_about_a_strangers_entry_is_short() -> None:
    metadata = {f"key{number}": number for number in range(1000)}
    wordy = {**entry(), "frontmatter": {"name": "n" * 100_000, "description": "d", "metadata": metadata}}

    with pytest.raises(InvalidEntryError) as caught:
        await got(always({"skill": wordy}))

    assert len(str(caught.value)) < 6000


@both_generations
async def test_a_skill_the_server_does_not_serve_is_not_found(mode: str) -> None:
    def unknown(params: Params) -> Params:
        raise MCPError(INVALID_PARAMS, "\x1b]0;no such skill\x07" * 1000, {"uri": params["uri"]})

    with pytest.raises(NotFoundError) as caught:
        await got(unknown, mode)

    message = str(caught.value)
    assert caught.value.uri == URI
    assert "no such skill" in message and message.isascii() and message.isprintable() and len(message) < 300


@both_generations
@pytest.mark.parametrize("code", [INTERNAL_ERROR, -32601, -32002, -32000, 0])
async def test_any_other_error_of_the_server_names_the_method(mode: str, code: int) -> None:
    def failing(_params: Params) -> Params:
        raise MCPError(code, "out of order")

    with pytest.raises(SourceError, match="skills/get") as caught:
        await got(failing, mode)

    assert isinstance(caught.value, PeerError)
    assert caught.value.peer_code == code


@both_generations
@pytest.mark.requirement("NEG-05")
async def test_a_server_that_declared_nothing_is_not_asked_for_a_skill(mode: str) -> None:
    stranger = Stranger({"skills/get": always({"skill": entry()})}, declares=False)

    with pytest.raises(NotDeclaredError):
        await stranger.visited(mode, lambda client: get_skill(client, URI))

    assert stranger.requests == []


@both_generations
@pytest.mark.parametrize(
    "uri", ["skill://acme/refunds", "skill://acme/refunds/../SKILL.md", "file:///SKILL.md", "SKILL.md", ""]
)
async def test_a_uri_no_skill_may_have_is_not_sent(mode: str, uri: str) -> None:
    stranger = Stranger({"skills/get": always({"skill": entry()})})

    with pytest.raises(InvalidUriError):
        await stranger.visited(mode, lambda client: get_skill(client, uri))

    assert stranger.requests == []


@both_generations
@pytest.mark.requirement("NEG-17")
@pytest.mark.requirement("NEG-18")
async def test_only_a_complete_result_is_an_entry(mode: str) -> None:
    assert await got(always({"skill": entry(), "resultType": "complete"}), mode) == parse_entry(entry())
    assert await got(always({"skill": entry()}), mode) == parse_entry(entry())

    with pytest.raises(InvalidAnswerError) as caught:
        await got(always({"skill": entry(), "resultType": "input_required"}), mode)

    assert caught.value.violates == "NEG-18"


@both_generations
@pytest.mark.requirement("SDK-03")
async def test_a_result_without_a_skill_is_one_clear_error(mode: str) -> None:
    with pytest.raises(InvalidAnswerError, match="`skill`"):
        await got(always({"skills": [entry()]}), mode)


@both_generations
async def test_a_server_that_does_not_answer_is_given_up(mode: str) -> None:
    async def silent(_params: Params) -> Params:
        await anyio.sleep_forever()
        raise AssertionError

    stranger = Stranger({"skills/get": silent})

    with pytest.raises(SourceError, match="too long"):
        await stranger.visited(mode, lambda client: get_skill(client, URI, max_seconds=0.05))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
skills = st.fixed_dictionaries(
    {},
    optional={
        "uri": st.just(URI) | json_values,
        "frontmatter": st.just(entry()["frontmatter"]) | json_values,
        "resources": st.just(entry()["resources"]) | json_values,
    },
)
results = st.fixed_dictionaries(
    {}, optional={"skill": skills | json_values, "resultType": st.just("complete") | json_values}
)


@pytest.mark.requirement("GET-06")
@settings(deadline=None, max_examples=100)
@given(result=results, mode=st.sampled_from(MODES))
def test_any_answer_is_the_skill_asked_for_or_one_of_our_own_errors(result: Params, mode: str) -> None:
    async def run() -> None:
        try:
            found = await got(always(result), mode)
        except SkillError as error:
            assert str(error)
        else:
            assert found == parse_entry(result["skill"])
            assert found.uri == SkillUri(URI)

    anyio.run(run)
