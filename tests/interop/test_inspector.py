"""The MCP Inspector's command line against our servers, with its own checks of every skill and file."""

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest

from interop.serving import EVERYWHERE, MOSTLY, PAGE_SIZE, SERVERS, Endpoint
from interop.tools import INSPECTOR, Node
from interop.truth import Json, Truth

Inspect: TypeAlias = Callable[..., list[Json]]
"""Calls a method of a server, with options, and returns the JSON lines that the Inspector prints."""


@pytest.fixture
def inspect(node: Node, env: dict[str, str]) -> Inspect:
    def call(endpoint: Endpoint, era: str, method: str, *options: str) -> list[Json]:
        known = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        asked = ["--protocol-era", era, "--method", method, *options, "--format", "json", "-q"]
        # What stands before the dashes is the server's command, with options of its own.
        done = node.run(INSPECTOR, *endpoint.where, "--", *known, *asked)
        assert done.returncode == 0, (
            f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return call


@pytest.mark.requirement("LIST-08")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("INT-01")
@pytest.mark.parametrize(
    ("server", "transport", "era"),
    [*((*place, "modern") for place in EVERYWHERE), *((server, "http", "legacy") for server in SERVERS)],
)
def test_the_inspector_verifies_every_skill_and_file(
    inspect: Inspect, endpoint: Endpoint, era: str, truth: Truth
) -> None:
    reports = inspect(endpoint, era, "skills/list", "--verify", "--require-digests")

    checked = {
        report["uri"]: {file["uri"]: (file["status"], file["actualDigest"]) for file in report["files"]}
        for report in reports
    }
    assert [(report["outcome"], report["conformance"], report["frontmatter"]) for report in reports] == [
        ("verified", [], [])
    ] * len(truth.entries)
    assert checked == {
        entry["uri"]: {file["uri"]: ("verified", file["digest"]) for file in entry["resources"]}
        for entry in truth.entries
    }


@pytest.mark.requirement("GET-01")
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
def test_the_inspector_gets_one_skill(inspect: Inspect, endpoint: Endpoint, truth: Truth) -> None:
    [answer] = inspect(endpoint, "modern", "skills/get", "--uri", "skill://awkward/SKILL.md")

    [expected] = [entry for entry in truth.entries if entry["uri"] == "skill://awkward/SKILL.md"]
    assert answer["result"]["skill"] == expected


@pytest.mark.requirement("DIR-01")
@pytest.mark.requirement("DIR-02")
@pytest.mark.requirement("DIR-05")
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
def test_the_inspector_reads_a_directory_page_by_page(
    inspect: Inspect, endpoint: Endpoint, truth: Truth
) -> None:
    uri = "skill://awkward/references"
    options = ["--uri", uri]

    [first] = inspect(endpoint, "modern", "resources/directory/read", *options)
    cursor = first["result"].get("nextCursor")
    assert cursor is not None, f"all of {len(first['result']['resources'])} children on one page"
    [second] = inspect(endpoint, "modern", "resources/directory/read", *options, "--cursor", cursor)

    children = [*first["result"]["resources"], *second["result"]["resources"]]
    assert len(first["result"]["resources"]) == PAGE_SIZE
    assert [child["uri"] for child in children] == sorted(truth.directories[uri])
    assert "nextCursor" not in second["result"]


@pytest.mark.requirement("META-01")
@pytest.mark.requirement("NEG-09")
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
def test_the_inspector_lists_resources_and_templates(
    inspect: Inspect, endpoint: Endpoint, server: str, truth: Truth
) -> None:
    [resources] = inspect(endpoint, "legacy", "resources/list")
    [templates] = inspect(endpoint, "legacy", "resources/templates/list")

    own = [] if server == "skillwire" else ["test://static-binary", "test://static-text"]
    listed = sorted(resource["uri"] for resource in resources["result"]["resources"])
    assert listed == [*truth.uris, *own]
    uris = [template["uriTemplate"] for template in templates["result"]["resourceTemplates"]]
    assert "skill://{+path}" in uris
    assert ("test://template/{id}/data" in uris) is (server != "skillwire")


@pytest.mark.requirement("GET-02")
@pytest.mark.requirement("DIR-03")
@pytest.mark.parametrize(
    ("method", "uri"),
    [("skills/get", "skill://gone/SKILL.md"), ("resources/directory/read", "skill://hello-world/SKILL.md")],
)
@pytest.mark.parametrize("server", SERVERS)
def test_the_inspector_passes_on_why_something_is_refused(
    node: Node, url: str, method: str, uri: str
) -> None:
    options = ["--method", method, "--uri", uri, "--format", "json", "-q"]

    done = node.run(INSPECTOR, url, *options)

    assert done.returncode == 1
    assert uri in json.loads(done.stderr)["error"]["message"]
