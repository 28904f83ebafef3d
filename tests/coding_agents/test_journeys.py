"""Real coding agents use a skill of a remote server through the bridge, from its listing to its change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from coding_agents.agents import CODEX, CODEX_CODED, CODEX_SEARCHED, GEMINI, OPENCODE, CodingAgent
from coding_agents.isolation import Travel
from coding_agents.journey import (
    CHANGED,
    END,
    FILE,
    FILES,
    LONG,
    REFUSED_AGAIN,
    SKILL,
    JourneyReport,
    RunReport,
)
from coding_agents.scripted_model import SEARCH, Json

DESCRIPTION = "Pay an order back."
BODY = "Ask for the order number."


@dataclass(frozen=True, slots=True)
class ObservedClient:
    """What `docs/bridge.md` says of an agent."""

    name: str
    version: str
    revision: str
    tool: str
    """The name under which its model is shown `load_skill`."""
    place: str
    """Where its model is shown the server's instructions."""
    sign: str = ""
    """What its model is shown of `isError`, besides the text."""
    elicitation: str = ""
    """What it answers when the bridge asks its user, if it says that it can be asked."""


_CODEX = ObservedClient(
    "codex-mcp-client",
    "0.166.0",
    "2025-06-18",
    "mcp__skillwire/load_skill",
    "namespace",
    elicitation="decline",
)
# In code, a model gets the whole result.
_CODED = replace(_CODEX, sign='"isError":true')
_GEMINI = ObservedClient(
    "gemini-cli-mcp-client", "0.61.0", "2025-06-18", "mcp_skillwire_load_skill", "user", "reported tool error"
)
_OPENCODE = ObservedClient("opencode", "1.18.33", "2025-11-25", "skillwire_load_skill", "system")
OBSERVED: Mapping[str, ObservedClient] = {
    CODEX.name: _CODEX,
    CODEX_SEARCHED.name: _CODEX,
    CODEX_CODED.name: _CODED,
    GEMINI.name: _GEMINI,
    OPENCODE.name: _OPENCODE,
}
LISTING = [pytest.param(agent, id=agent.name) for agent in (CODEX, GEMINI, OPENCODE)]
"""The agents that show every tool at once; they go the whole way."""


def texts_of(shown: Json, place: str) -> str:
    return "\n".join(text for found, text in shown["texts"] if found == place)


def results_of(run: RunReport) -> list[str]:
    return run.last["results"]


def sent(run: RunReport) -> list[Json]:
    """Return the results that the bridge sent, in the order of the calls."""
    results = {message["id"]: message["result"] for message in run.answered if "result" in message}
    return [results[message["id"]] for message in run.asked if message.get("method") == "tools/call"]


def is_shown(line: str, text: str) -> bool:
    """Return whether a line is in a text, as it is or within JSON."""
    return line in text or line.replace('"', '\\"') in text or line.replace('"', '\\\\\\"') in text


def without_wrapper(result: str) -> str:
    """Return a result without what Codex puts before it: how long it took."""
    return re.sub(r"\AWall time: [\d.]+ seconds\nOutput:\n", "", result)


def test_a_journey_has_no_network_but_loopback(report: JourneyReport) -> None:
    assert report.interfaces == ["lo"]


def test_the_agent_is_the_one_that_was_observed(agent: CodingAgent, report: JourneyReport) -> None:
    observed = OBSERVED[agent.name]

    asked = report.runs[0].asked

    [opening] = [message["params"] for message in asked if message.get("method") == "initialize"]
    replies = [message["result"] for message in asked if "action" in message.get("result", {})]

    assert opening["clientInfo"]["name"] == observed.name
    assert opening["clientInfo"]["version"] == observed.version
    assert opening["protocolVersion"] == observed.revision
    assert ("elicitation" in opening["capabilities"]) == bool(observed.elicitation)
    assert {reply["action"] for reply in replies} == {observed.elicitation} - {""}


def test_a_refusal_names_the_command_after_which_the_next_call_gets_the_skill(report: JourneyReport) -> None:
    refused, loaded, read = results_of(report.runs[0])[:3]
    [command, printed] = report.approved[0]

    assert f"`{command}`" in refused and BODY not in refused
    assert command.startswith(f"skillwire approve {SKILL}") and "approved" in printed
    assert BODY in loaded
    assert FILES[f"refunds/{FILE}"].strip() in read
    assert END in report.runs[0].output


def test_a_skill_that_changes_is_refused_until_it_is_approved_again(report: JourneyReport) -> None:
    *before, refused, loaded = results_of(report.runs[0])
    [command, _] = report.approved[-1]

    assert not any(CHANGED.strip() in result for result in before)
    assert f"`{command}`" in refused and REFUSED_AGAIN in refused and BODY not in refused
    assert BODY in loaded and CHANGED.strip() in loaded


def test_with_the_configuration_of_setup_what_was_approved_is_loaded_without_a_question(
    agent: CodingAgent, report: JourneyReport
) -> None:
    [loaded] = results_of(report.runs[1])

    assert CHANGED.strip() in loaded
    assert len(report.approved) == (3 if agent.finding == "listed" else 2)


@pytest.mark.parametrize("agent", LISTING)
def test_the_model_is_shown_the_skills_before_it_calls_a_tool(
    agent: CodingAgent, report: JourneyReport
) -> None:
    observed = OBSERVED[agent.name]
    first = report.runs[1].first

    assert first["results"] == []
    for shown in (texts_of(first, observed.place), first["tools"][observed.tool]):
        assert SKILL in shown and DESCRIPTION in shown


@pytest.mark.parametrize("agent", LISTING)
def test_the_instructions_are_shown_whole_before_the_model_calls_a_tool(
    agent: CodingAgent, report: JourneyReport
) -> None:
    run = report.runs[0]
    opening = run.answered[0]["result"]

    shown = texts_of(run.first, OBSERVED[agent.name].place)

    assert opening["serverInfo"]["name"] == "skillwire"
    assert [line for line in opening["instructions"].splitlines() if line not in shown] == []


@pytest.mark.parametrize("agent", LISTING[1:])
def test_the_model_is_shown_skills_that_become_known_after_the_start(
    agent: CodingAgent, report: JourneyReport
) -> None:
    shown = report.runs[0].last["tools"][OBSERVED[agent.name].tool]

    assert SKILL in shown and DESCRIPTION in shown


def test_a_model_that_searches_for_tools_finds_the_bridge_by_words_of_a_skill(travel: Travel) -> None:
    run = travel(CODEX_SEARCHED).runs[1]

    searched, found = run.first["tools"], run.last["tools"]

    assert _CODEX.tool not in searched and _CODEX.tool in found
    assert SKILL in searched[SEARCH] and DESCRIPTION in searched[SEARCH]
    assert SKILL in found[_CODEX.tool]


def test_a_model_that_writes_code_is_shown_the_skills_when_it_lists_all_tools(travel: Travel) -> None:
    run = travel(CODEX_CODED).runs[1]

    assert not any(SKILL in text for place, text in run.first["texts"] if place != "user")
    assert all(SKILL not in description for description in run.first["tools"].values())
    assert DESCRIPTION in results_of(run)[0]


def test_every_result_is_shown_whole(report: JourneyReport) -> None:
    run = report.runs[0]

    for result, shown in zip(sent(run), results_of(run), strict=True):
        lines = result["content"][0]["text"].splitlines()
        assert [line for line in lines if not is_shown(line, shown)] == []


def test_an_error_is_recognizable_by_its_text_where_the_model_is_shown_no_other_sign(
    agent: CodingAgent, report: JourneyReport
) -> None:
    sign = OBSERVED[agent.name].sign
    refusal = sent(report.runs[0])[0]
    [text] = [block["text"] for block in refusal["content"]]

    refused = results_of(report.runs[0])[0]

    assert refusal["isError"] is True
    assert text.startswith("REFUSED: ")
    assert sign in refused if sign else without_wrapper(refused) == text


@pytest.mark.parametrize("agent", LISTING[1:])
def test_a_person_uses_a_skill_as_a_prompt(agent: CodingAgent, report: JourneyReport) -> None:
    shown = texts_of(report.runs[2].first, "user")

    assert BODY in shown and CHANGED.strip() in shown


@pytest.mark.parametrize("agent", LISTING)
def test_a_long_skill_comes_in_pages(agent: CodingAgent, report: JourneyReport) -> None:
    found, refused, first, second = results_of(report.runs[0])[3:7]

    assert LONG in found
    assert f"skillwire approve {LONG}" in refused
    assert "Rule 1:" in first and "Rule 1:" not in second
    assert LONG in second
