"""What the adapters of all frameworks promise, in real agents with scripted models and a real server."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from interop import (
    test_adapter_agent_framework,
    test_adapter_langchain,
    test_adapter_openai_agents,
    test_adapter_pydantic_ai,
)
from interop.adapting import (
    FILE_TOOL,
    ORIGIN,
    POLICY,
    POLICY_PATH,
    REFUNDS,
    SHOWN,
    TRIAGE,
    UNKNOWN,
    Call,
    Reply,
    refusal_in,
    shop,
)
from skillwire.host import Occasion

Answers: TypeAlias = Callable[..., Awaitable[list[str]]]

ADAPTERS: dict[str, Answers] = {
    "agent-framework": test_adapter_agent_framework.answers,
    "langchain": test_adapter_langchain.answers,
    "openai-agents": test_adapter_openai_agents.answers,
    "pydantic-ai": test_adapter_pydantic_ai.answers,
}
LOAD: Call = ("load_skill", {"skill": REFUNDS})
READ: Call = ("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
WRITE: Call = (FILE_TOOL, {"text": "hello"})

pytestmark = pytest.mark.filterwarnings("ignore::agent_framework._feature_stage.ExperimentalWarning")


@pytest.fixture(params=ADAPTERS.values(), ids=list(ADAPTERS))
def answers(request: pytest.FixtureRequest) -> Answers:
    return request.param


@pytest.mark.requirement("HOST-06")
@pytest.mark.requirement("SEC-02")
async def test_a_skill_is_loaded_after_the_users_yes_and_its_file_read(
    tmp_path: Path, answers: Answers
) -> None:
    async with shop(tmp_path, Reply.ONCE) as opened:
        loaded, policy = await answers(opened, [LOAD], [READ])
        [window] = opened.host.loaded

    assert opened.user.occasions == [Occasion.FIRST]
    assert ORIGIN in loaded and SHOWN in loaded and window.boundary in loaded
    assert POLICY in policy


async def test_a_no_of_the_user_is_a_refusal_the_model_sees_and_the_run_goes_on(
    tmp_path: Path, answers: Answers
) -> None:
    async with shop(tmp_path, Reply.DENY) as opened:
        [loaded, found] = await answers(opened, [LOAD], [("search_skills", {"query": "desk"})])
        assert opened.host.loaded == ()

    assert refusal_in(loaded)["code"] == "approval-denied"
    assert TRIAGE in found


async def test_what_cannot_be_had_is_refused_with_a_remedy(tmp_path: Path, answers: Answers) -> None:
    calls: list[Call] = [("load_skill", {"skill": UNKNOWN}), ("load_skill", {"nothing": 1}), READ]

    async with shop(tmp_path) as opened:
        codes = [refusal_in(result)["code"] for result in await answers(opened, calls)]

    assert codes == ["unknown-reference", "invalid-arguments", "not-loaded"]


@pytest.mark.requirement("SEC-06")
async def test_an_own_tool_is_free_before_and_asked_about_while_a_servers_skill_is_loaded(
    tmp_path: Path, answers: Answers
) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY, Reply.ONCE) as opened:
        _, _, denied, allowed = await answers(opened, [WRITE], [LOAD], [WRITE], [WRITE])

    assert opened.user.occasions == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]
    assert opened.notebook.lines == ["hello", "hello"]
    assert (refusal_in(denied)["code"], allowed) == ("writing", "written: hello")


async def test_calls_of_one_turn_run_side_by_side_and_questions_come_one_at_a_time(
    tmp_path: Path, answers: Answers
) -> None:
    calls: list[Call] = [LOAD, ("load_skill", {"skill": TRIAGE}), ("search_skills", {"query": "desk"})]

    async with shop(tmp_path) as opened:
        results = await answers(opened, calls, [WRITE, WRITE])
        assert len(opened.host.loaded) == 2

    assert opened.user.occasions == [Occasion.FIRST] * 2 + [Occasion.CALL] * 2
    assert opened.notebook.lines == ["hello", "hello"]
    assert SHOWN in results[0] and results[3:] == ["written: hello"] * 2
