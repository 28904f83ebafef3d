"""The official conformance suite against our servers: the extension's scenarios, and the base protocol's.

Every server scenario of the suite is in the tables here: it must pass, or a
line says why it asks for something that is not there to be served.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from interop.conformance import SKILLS, conformance, objections
from interop.serving import SERVERS
from interop.tools import CONFORMANCE, Node

REVISIONS = ("2025-11-25", "2026-07-28")

# What every server here must pass.
BASE = frozenset(
    {
        "caching",
        "dns-rebinding-protection",
        "ping",
        "resources-list",
        "resources-subscribe",
        "resources-unsubscribe",
        "sep-2164-resource-not-found",
        "server-initialize",
        "server-session-lifecycle",
        "server-stateless",
    }
)

_TOOL = "calls a tool of the suite's own"
_PROMPT = "gets a prompt of the suite's own"
_RESOURCE = "reads a resource of the suite's own"
_INPUT = "drives a tool of the suite's own that asks the user for more"
_TASK = "belongs to the tasks extension"

# What none of them can pass, and why.
ABSENT: Mapping[str, str] = {
    "elicitation-sep1034-defaults": _INPUT,
    "elicitation-sep1330-enums": _INPUT,
    "http-custom-header-server-validation": "calls a tool of the suite's own that asks for headers",
    "json-schema-2020-12": "looks for a tool of the suite's own",
    "logging-set-level": "nothing here sends log messages to clients",
    "prompts-get-embedded-resource": _PROMPT,
    "prompts-get-with-args": _PROMPT,
    "prompts-get-with-image": _PROMPT,
    "server-sse-polling": "calls a tool of the suite's own that closes its stream",
    "tools-call-audio": _TOOL,
    "tools-call-elicitation": _INPUT,
    "tools-call-embedded-resource": _TOOL,
    "tools-call-error": _TOOL,
    "tools-call-image": _TOOL,
    "tools-call-mixed-content": _TOOL,
    "tools-call-sampling": _INPUT,
    "tools-call-with-logging": _TOOL,
    "tools-call-with-progress": _TOOL,
    "input-required-result-basic-elicitation": _INPUT,
    "input-required-result-basic-list-roots": _INPUT,
    "input-required-result-basic-sampling": _INPUT,
    "input-required-result-capability-check": _INPUT,
    "input-required-result-ignore-extra-params": _INPUT,
    "input-required-result-missing-input-response": _INPUT,
    "input-required-result-multi-round": _INPUT,
    "input-required-result-multiple-input-requests": _INPUT,
    "input-required-result-non-tool-request": _INPUT,
    "input-required-result-request-state": _INPUT,
    "input-required-result-result-type": _INPUT,
    "input-required-result-tampered-state": _INPUT,
    "input-required-result-unsupported-methods": _INPUT,
    "input-required-result-validate-input": _INPUT,
    "tasks-capability-negotiation": _TASK,
    "tasks-dispatch-and-envelope": _TASK,
    "tasks-lifecycle": _TASK,
    "tasks-mrtr-composition": _TASK,
    "tasks-mrtr-input": _TASK,
    "tasks-request-headers": _TASK,
    "tasks-request-state-removal": _TASK,
    "tasks-required-task-error": _TASK,
    "tasks-status-notifications": _TASK,
    "tasks-wire-fields": _TASK,
}

# What a server passes that has tools, prompts and resources of its own beside the skills, and why
# `skillwire serve` does not.
OWN: Mapping[str, str] = {
    "completion-complete": "completes an argument of a prompt of the suite's own",
    "http-header-validation": "needs any tool to call",
    "prompts-get-simple": _PROMPT,
    "prompts-list": "lists prompts",
    "resources-read-binary": _RESOURCE,
    "resources-read-text": _RESOURCE,
    "resources-templates-read": _RESOURCE,
    "server-sse-multiple-streams": "lists tools on every stream",
    "tools-call-simple-text": _TOOL,
    "tools-list": "lists tools",
}

# Single checks of those scenarios that a server cannot pass, and why.
_CALLS: Mapping[str, str] = {
    "sep-2575-http-server-no-independent-requests-on-stream": _TOOL,
    "sep-2575-missing-capability-http-400": _TOOL,
    "sep-2575-server-no-log-without-loglevel": _TOOL,
    "sep-2575-server-rejects-undeclared-capability": _TOOL,
}
_SDK: Mapping[str, str] = {
    "sep-2243-server-accepts-whitespace-header-value": "the SDK compares a header with the blanks after it",
    "sep-2575-server-sends-prompts-list-changed-on-subscription": "nothing here changes the prompts",
    "sep-2575-server-sends-tools-list-changed-on-subscription": "nothing here changes the tools",
}
EXCUSED: Mapping[str, Mapping[str, str]] = {
    "skillwire": {
        **_CALLS,
        "sep-2549-prompts-list-caching-hints": "lists prompts",
        "sep-2549-tools-list-caching-hints": "lists tools",
    },
    "mcpserver.py": {**_CALLS, **_SDK},
    "fastmcp_server.py": {**_CALLS, **_SDK, "completion-complete": "FastMCP completes no prompts"},
}


def test_every_scenario_of_the_suite_must_pass_or_has_a_reason_not_to_apply(node: Node) -> None:
    done = node.run(CONFORMANCE, "list")

    listed, _, _ = done.stdout.partition("Client scenarios")
    scenarios = re.findall(r"^  - (\S+) \[", listed, re.MULTILINE)
    assert sorted(scenarios) == sorted([*SKILLS, *BASE, *OWN, *ABSENT])


@pytest.mark.requirement("NEG-01")
@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-04")
@pytest.mark.requirement("NEG-10")
@pytest.mark.requirement("LIST-03")
@pytest.mark.requirement("LIST-04")
@pytest.mark.requirement("LIST-06")
@pytest.mark.requirement("LIST-12")
@pytest.mark.requirement("LIST-14")
@pytest.mark.requirement("GET-01")
@pytest.mark.requirement("GET-07")
@pytest.mark.requirement("DIR-02")
@pytest.mark.requirement("META-01")
@pytest.mark.parametrize("scenario", SKILLS)
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("server", SERVERS)
def test_the_extension_passes_the_conformance_suite(
    node: Node, url: str, revision: str, scenario: str, tmp_path: Path
) -> None:
    asked = ["--scenario", scenario, "--spec-version", revision, "--force"]

    [(_, checks)] = conformance(node, url, asked, tmp_path)

    assert objections(checks) == []
    assert len([check for check in checks if check["status"] == "SUCCESS"]) >= SKILLS[scenario][revision]


@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("READ-09")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("server", SERVERS)
def test_the_base_protocol_passes_the_conformance_suite(
    node: Node, server: str, url: str, revision: str, tmp_path: Path
) -> None:
    wanted = BASE if server == "skillwire" else BASE | OWN.keys()

    ran = dict(conformance(node, url, ["--suite", "all", "--spec-version", revision], tmp_path))

    failed = {scenario: objections(ran[scenario], EXCUSED[server]) for scenario in wanted & ran.keys()}
    assert {scenario: found for scenario, found in failed.items() if found} == {}
    assert ran.keys() >= {"resources-list", "dns-rebinding-protection"}
    # Whatever else a scenario asks for, no message of ours may break the protocol's schema.
    schema = [check for checks in ran.values() for check in checks if check["id"] == "wire-schema-valid"]
    assert objections(schema) == []
    assert len(schema) > 20
