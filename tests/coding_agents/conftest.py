"""The journeys of all agents, each made once, when the first test asks for it."""

import subprocess
from functools import cache

import pytest

from coding_agents.agents import AGENTS, CodingAgent
from coding_agents.isolation import Travel, find_programs, run_isolated
from coding_agents.journey import JourneyReport


@pytest.fixture(scope="session")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Travel:
    node, bwrap = find_programs()
    agents = {agent.name: agent for agent in AGENTS}

    @cache
    def outcome_of(name: str) -> JourneyReport | Exception:
        try:
            return run_isolated(agents[name], tmp_path_factory.mktemp(name), node, bwrap)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return error

    def travel(agent: CodingAgent) -> JourneyReport:
        outcome = outcome_of(agent.name)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return travel


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request: pytest.FixtureRequest) -> CodingAgent:
    return request.param


@pytest.fixture
def report(agent: CodingAgent, travel: Travel) -> JourneyReport:
    """What one agent's whole journey showed."""
    report = travel(agent)
    for run in report.runs:
        assert (run.code, run.failures) == (0, []), f"{run.failures}\n{run.output}"
    return report
