"""Real coding agents use a skill of a remote server through the bridge, from its listing to its change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from coding_agents.agents import CODEX, CODEX_CODED, CODEX_SEARCHED, GEMINI, OPENCODE, CodingAgent
from coding_agents.isolation import Travel
from coding_agents.journey import CHANGED, FILE, FILES, LONG, SKILL, JourneyReport
from coding_agents.scripted_model import SEARCH, Json

DESCRIPTION = "Pay an order back."
BODY = "Ask for the order number."


@dataclass(frozen=True, slots=True)
class ObservedClient:
    """What `docs/agents/bridge.md` says of an agent."""

    name: str
    version: str
    revision: str
    elicits: bool
    tool: str
    """The name under which its model is shown `load_skill`."""
    place: str
    """Where its model is shown the server's instructions."""
    sign: str = ""
    """What its model is shown of `isError`, besides the text."""


_CODEX = ObservedClient(
    "codex-mcp-client", "0.166.0", "2025-06-18", True, "mcp__skillwire/load_skill", "namespace"
)
# In code, a model gets the whole result.
_CODED = replace(_CODEX, sign='"isError":true')
OBSERVED: Mapping[str, ObservedClient] = {
    CODEX.name: _CODEX,
    CODEX_SEARCHED.name: _CODEX,
    CODEX_CODED.name: _CODED,
    GEMINI.name: ObservedClient(
        "gemini-cli-mcp-client",
        "0.61.0",
        "2025-06-18",
        False,
        "mcp_skillwire_load_skill",
        "user",
        "reported tool error",
    ),
    OPENCODE.name: ObservedClient(
        "opencode", "1.18.33", "2025-11-25", False, "skillwire_load_skill", "system"
    ),
}
LISTING = [CODEX, GEMINI, OPENCODE]
"""The agents that show every tool at once; they go the whole way."""


def listing(agent: CodingAgent) -> object:
    return pytest.param(agent, id=agent.name)


def texts_of(shown: Json, place: str) -> str:
    return "\n".join(text for found, text in shown["texts"] if found == place)


def results_of(report: JourneyReport) -> list[str]:
    return report.last["results"]


def sent(report: JourneyReport) -> list[Json]:
    """Return the results that the bridge sent, in the order of the calls."""
    results = {message["id"]: message["result"] for message in report.answered if "result" in message}
    return [results[message["id"]] for message in report.asked if message.get("method") == "tools/call"]


def wrapper_of(result: str) -> str:
    """Return what Codex puts before a result: how long it took."""
    found = re.match(r"Wall time: [\d.]+ seconds\nOutput:\n", result)
    return found[0] if found else ""


def test_a_journey_has_no_network_but_loopback(report: JourneyReport) -> None:
    assert report.interfaces == ["lo"]


def test_the_agent_is_the_one_that_was_observed(agent: CodingAgent, report: JourneyReport) -> None:
    observed = OBSERVED[agent.name]

    [opening] = [message["params"] for message in report.asked if message.get("method") == "initialize"]

    assert opening["clientInfo"]["name"] == observed.name
    assert opening["clientInfo"]["version"] == observed.version
    assert opening["protocolVersion"] == observed.revision
    assert ("elicitation" in opening["capabilities"]) == observed.elicits


def test_a_refusal_names_the_command_after_which_the_next_call_gets_the_skill(
    agent: CodingAgent, report: JourneyReport
) -> None:
    refused, loaded, read = results_of(report)[:3]
    [command, printed] = report.approved[0]

    assert f"`{command}`" in refused and BODY not in refused
    assert command.startswith(f"skillwire approve {SKILL}") and "approved" in printed
    assert BODY in loaded
    assert FILES[f"refunds/{FILE}"].strip() in read


@pytest.mark.parametrize("agent", [*map(listing, LISTING)])
def test_the_model_is_shown_the_skills_before_it_calls_a_tool(
    agent: CodingAgent, report: JourneyReport
) -> None:
    observed = OBSERVED[agent.name]

    assert report.first["results"] == []
    for shown in (texts_of(report.first, observed.place), report.first["tools"][observed.tool]):
        assert SKILL in shown and DESCRIPTION in shown


def test_a_model_that_searches_for_tools_finds_the_bridge_by_words_of_a_skill(travel: Travel) -> None:
    report = travel(CODEX_SEARCHED)

    searched, found = report.first["tools"], report.last["tools"]

    assert _CODEX.tool not in searched and _CODEX.tool in found
    assert SKILL in searched[SEARCH] and DESCRIPTION in searched[SEARCH]
    assert SKILL in found[_CODEX.tool]


def test_a_model_that_writes_code_is_shown_the_skills_when_it_lists_all_tools(travel: Travel) -> None:
    report = travel(CODEX_CODED)

    assert not any(SKILL in text for place, text in report.first["texts"] if place != "user")
    assert all(SKILL not in description for description in report.first["tools"].values())
    assert DESCRIPTION in results_of(report)[0]


def test_every_result_is_shown_whole(agent: CodingAgent, report: JourneyReport) -> None:
    results = sent(report)

    shown = results_of(report)

    assert len(shown) == len(results)
    for result, seen in zip(results, shown, strict=True):
        for line in result["content"][0]["text"].splitlines():
            assert line in seen or line.replace('"', '\\"') in seen


def test_an_error_is_recognizable_by_its_text_where_the_model_is_shown_no_other_sign(
    agent: CodingAgent, report: JourneyReport
) -> None:
    sign = OBSERVED[agent.name].sign
    refusal = sent(report)[0]
    [text] = [block["text"] for block in refusal["content"]]

    refused = results_of(report)[0]

    assert refusal["isError"] is True
    assert sign in refused if sign else refused.removeprefix(wrapper_of(refused)) == text


@pytest.mark.parametrize("agent", [*map(listing, LISTING)])
def test_a_long_skill_comes_in_pages(agent: CodingAgent, report: JourneyReport) -> None:
    refused, first, second = results_of(report)[4:7]

    assert "skillwire approve" in refused
    assert "Rule 1:" in first and "Rule 1:" not in second
    assert LONG in second


@pytest.mark.parametrize("agent", [*map(listing, LISTING)])
def test_a_skill_that_changes_is_refused_until_it_is_approved_again(
    agent: CodingAgent, report: JourneyReport
) -> None:
    refused, loaded = results_of(report)[7:9]

    assert CHANGED.strip() not in refused and "skillwire approve" in refused
    assert CHANGED.strip() in loaded
    assert [command.split()[2] for command, _ in report.approved] == [SKILL, LONG, SKILL]


@pytest.mark.parametrize("agent", [*map(listing, LISTING)])
def test_a_search_finds_skills_that_are_not_approved(agent: CodingAgent, report: JourneyReport) -> None:
    assert LONG in results_of(report)[3]
