"""The official conformance suite with our host as the client: the extension, the base protocol, signing in.

Every client scenario of the suite is in the tables here: it must pass, or a
line says why it asks for something that a host of skills does not do.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from interop.conformance import objections
from interop.conformance_clients import visit
from interop.tools import CONFORMANCE, Node

REVISIONS = ("2025-11-25", "2026-07-28")
NEWEST = REVISIONS[-1]
HOST = "conformance_host.py"
CARELESS = "careless.py"

# The extension's scenarios: the check that must pass, and what the host must say that it refused.
PREFETCH = ("sep-2640-client-no-prefetch", "sep-2640-host-no-prefetch")
SKILLS: Mapping[str, tuple[str, str]] = {
    "sep-2640-client-verify-digest": ("sep-2640-host-verify-digest", "digest-mismatch"),
    "sep-2640-client-verify-size": ("sep-2640-host-size-mismatch-failure", "size-mismatch"),
    "sep-2640-client-verify-frontmatter": ("sep-2640-host-frontmatter-comparison", "frontmatter-mismatch"),
}

# The base protocol's: the revision at which they run, and how many checks must have passed.
BASE: Mapping[str, tuple[str, int]] = {
    "initialize": ("2025-11-25", 1),
    "request-metadata": (NEWEST, 5),
    # Both headers of a read; the other checks are about requests that a host does not make.
    "http-standard-headers": (NEWEST, 2),
}

# Signing in: what the host must say that it refused, if the scenario is one in which nobody may be signed in.
UNREACHED = "server-unavailable"
SIGNING_IN: Mapping[str, str] = {
    "auth/2025-03-26-oauth-endpoint-fallback": "",
    "auth/2025-03-26-oauth-metadata-backcompat": "",
    "auth/authorization-server-migration": "server-error",
    "auth/basic-cimd": "",
    "auth/iss-normalized": UNREACHED,
    "auth/iss-not-advertised": "",
    "auth/iss-supported": "",
    "auth/iss-supported-missing": UNREACHED,
    "auth/iss-unexpected": UNREACHED,
    "auth/iss-wrong-issuer": UNREACHED,
    "auth/metadata-default": "",
    "auth/metadata-issuer-mismatch": UNREACHED,
    "auth/metadata-var1": "",
    "auth/metadata-var2": "",
    "auth/metadata-var3": "",
    "auth/offline-access-not-supported": "",
    "auth/offline-access-scope": "",
    "auth/pre-registration": "",
    "auth/resource-mismatch": UNREACHED,
    "auth/scope-from-scopes-supported": "",
    "auth/scope-from-www-authenticate": "",
    "auth/scope-omitted-when-undefined": "",
    "auth/scope-retry-limit": UNREACHED,
    "auth/token-endpoint-auth-basic": "",
    "auth/token-endpoint-auth-none": "",
    "auth/token-endpoint-auth-post": "",
}

# Single checks of those scenarios that a host cannot pass, and why.
EXCUSED: Mapping[str, str] = {
    "cimd-client-id-used": "a library has no page of its own on the web that would say who it is",
}

_TOOL = "calls a tool, and a host of skills calls none"
_TOOLS = "lists tools, and a host of skills does not"
_MACHINE = "signs a machine in with secrets of its own, and our sign-in is a person's, in a browser"

ABSENT: Mapping[str, str] = {
    "tools_call": _TOOL,
    "elicitation-sep1034-client-defaults": _TOOL,
    "sse-retry": _TOOL,
    "sep-2322-client-request-state": _TOOL,
    "http-custom-headers": _TOOL,
    "http-invalid-tool-headers": _TOOLS,
    "json-schema-ref-no-deref": _TOOLS,
    "json-schema-2020-12-preservation": _TOOLS,
    "auth/scope-step-up": "needs more rights for a tool than for anything else, and a host calls none",
    "auth/client-credentials-basic": _MACHINE,
    "auth/client-credentials-jwt": _MACHINE,
    "auth/enterprise-managed-authorization": _MACHINE,
    "auth/wif-jwt-bearer": _MACHINE,
    "auth/dpop": "belongs to an extension that the SDK's sign-in does not know",
    "auth/dpop-nonce": "belongs to an extension that the SDK's sign-in does not know",
}


def test_every_client_scenario_of_the_suite_must_pass_or_has_a_reason_not_to_apply(node: Node) -> None:
    done = node.run(CONFORMANCE, "list")

    _, _, listed = done.stdout.partition("Client scenarios")
    listed, _, _ = listed.partition("Authorization server scenarios")
    scenarios = re.findall(r"^  - (\S+) \[", listed, re.MULTILINE)
    assert sorted(scenarios) == sorted([PREFETCH[0], *SKILLS, *BASE, *SIGNING_IN, *ABSENT])


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("INT-08")
@pytest.mark.requirement("LIST-17")
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_host_lists_without_reading_any_file(node: Node, revision: str, tmp_path: Path) -> None:
    scenario, check = PREFETCH

    seen = visit(node, HOST, scenario, revision, tmp_path)

    assert objections(seen.checks) == []
    assert check in seen.passed
    assert seen.listed == ["suite/pdf-processing"]
    assert seen.refused == []


@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-03")
@pytest.mark.requirement("INT-05")
@pytest.mark.parametrize("scenario", SKILLS)
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_host_refuses_a_skill_that_is_not_what_was_listed(
    node: Node, scenario: str, revision: str, tmp_path: Path
) -> None:
    check, refusal = SKILLS[scenario]

    seen = visit(node, HOST, scenario, revision, tmp_path)

    assert objections(seen.checks) == []
    assert check in seen.passed
    # The suite is content when a client gives up, for whatever reason; the host must know the reason.
    assert seen.listed == ["suite/pdf-processing"]
    assert seen.refused == [refusal, "not-loaded"]


@pytest.mark.parametrize("scenario", [PREFETCH[0], *SKILLS])
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_suite_objects_to_a_client_that_checks_nothing(
    node: Node, scenario: str, revision: str, tmp_path: Path
) -> None:
    check = dict([PREFETCH, *((name, pair[0]) for name, pair in SKILLS.items())])[scenario]

    seen = visit(node, CARELESS, scenario, revision, tmp_path)

    [found] = objections(seen.checks)
    assert found.startswith(f"{check}: FAILURE: client ")


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-05")
@pytest.mark.parametrize("scenario", BASE)
def test_the_host_speaks_the_base_protocol_to_a_server_without_skills(
    node: Node, scenario: str, tmp_path: Path
) -> None:
    revision, passed = BASE[scenario]

    seen = visit(node, HOST, scenario, revision, tmp_path)

    assert objections(seen.checks) == []
    assert len(seen.passed) >= passed
    assert seen.listed == []


@pytest.mark.parametrize("scenario", SIGNING_IN)
def test_the_host_signs_in_the_way_the_suite_demands(node: Node, scenario: str, tmp_path: Path) -> None:
    revision = "2025-03-26" if "2025-03-26" in scenario else NEWEST

    seen = visit(node, HOST, scenario, revision, tmp_path)

    assert objections(seen.checks, EXCUSED) == []
    assert seen.passed
    assert seen.refused == ([SIGNING_IN[scenario]] if SIGNING_IN[scenario] else [])
