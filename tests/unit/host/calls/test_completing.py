"""`complete`: values for a variable of a template, few and short, whatever the server sends."""

from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.types import CompleteRequestParams

from skillwire.host.calls.exchange import COMPLETE, MAX_VALUE_LENGTH, MAX_VALUES, complete
from skillwire.host.model.errors import InvalidAnswerError, TooSlowError
from skillwire.wire.index import SkillTemplate, Template
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always

both_generations = pytest.mark.parametrize("mode", MODES)
TEMPLATE = SkillTemplate("", Template.parse("skill://docs/{team}/{product}/SKILL.md"), "By product.")


class Completing(Stranger):
    """A server that declares completion and answers as it is told."""

    def __init__(self, answers: Answers) -> None:
        super().__init__({COMPLETE: answers})

    def server(self) -> Server[Any]:
        server = super().server()
        server.add_request_handler(COMPLETE, CompleteRequestParams, _unused)
        return server


async def _unused(_ctx: Any, _params: CompleteRequestParams) -> Params:
    raise AssertionError("the stranger answers before its server does")


def values(*found: object) -> Params:
    return {"completion": {"values": list(found)}, "resultType": "complete"}


async def asked(client: Client) -> tuple[str, ...]:
    return await complete(client, TEMPLATE, "product", "te")


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("ASK-11")
@both_generations
async def test_a_server_is_asked_how_a_variable_could_go_on(mode: str) -> None:
    stranger = Completing(always(values("tea", "teapot")))

    async with stranger.connected(mode) as client:
        found = await complete(client, TEMPLATE, "product", "te", others={"team": "kitchen"})

    assert found == ("tea", "teapot")
    assert stranger.requests == [
        (
            COMPLETE,
            {
                "ref": {"type": "ref/resource", "uri": TEMPLATE.template.text},
                "argument": {"name": "product", "value": "te"},
                "context": {"arguments": {"team": "kitchen"}},
            },
        )
    ]


@both_generations
async def test_a_server_that_does_not_complete_is_not_asked(mode: str) -> None:
    stranger = Stranger({COMPLETE: always(values("tea"))})

    async with stranger.connected(mode) as client:
        assert await asked(client) == ()
    assert stranger.requests == []


@both_generations
async def test_short_values_are_taken_and_each_once(mode: str) -> None:
    strange = ["", "x" * (MAX_VALUE_LENGTH + 1), "same", "same"]
    rest = [f"v{number}" for number in range(MAX_VALUES - len(strange))]

    assert await Completing(always(values(*strange, *rest))).visited(mode, asked) == ("same", *rest)


async def test_of_too_many_values_the_first_are_taken() -> None:
    many = [f"v{number}" for number in range(MAX_VALUES + 1)]

    assert await Completing(always(values(*many))).visited("legacy", asked) == tuple(many[:MAX_VALUES])


@both_generations
@pytest.mark.parametrize(
    "answer",
    [
        {"resultType": "complete"},
        {"resultType": "complete", "completion": []},
        {"resultType": "complete", "completion": {"values": "tea"}},
        values("tea", 7),
    ],
    ids=range(4),
)
async def test_an_answer_that_is_none_is_an_error(mode: str, answer: Params) -> None:
    with pytest.raises(InvalidAnswerError):
        await Completing(always(answer)).visited(mode, asked)


async def test_waiting_for_values_has_an_end() -> None:
    async def never(_params: Params) -> None:
        await anyio.sleep_forever()

    async def hurried(client: Client) -> tuple[str, ...]:
        return await complete(client, TEMPLATE, "product", "te", max_seconds=0.2)

    with pytest.raises(TooSlowError):
        await Completing(never).visited("auto", hurried)
