"""Whether the tools of these tests can tell: they accept the official server, and object to one that lies."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.conformance import SKILLS, conformance, objections
from interop.serving import Endpoint, command_of, serving
from interop.tools import INSPECTOR, Node
from interop.truth import Truth
from interop.walking import differences, unrefused, walk


@pytest.fixture(scope="module")
def official(node: Node, folder: Path) -> Iterator[str]:
    """The official server, telling the truth."""
    with serving(command_of("official.mjs", folder, "http", node=node.path), node.env) as url:
        yield url


@pytest.fixture(scope="module")
def liar(node: Node, folder: Path) -> Iterator[str]:
    """The official server, with one digest that is not the file's."""
    with serving((*command_of("official.mjs", folder, "http", node=node.path), "--lie"), node.env) as url:
        yield url


@pytest.fixture(scope="module")
def shouter(node: Node, folder: Path) -> Iterator[str]:
    """The official server, with digests in capitals."""
    with serving((*command_of("official.mjs", folder, "http", node=node.path), "--shout"), node.env) as url:
        yield url


@pytest.mark.parametrize("scenario", SKILLS)
def test_the_conformance_suite_passes_the_official_server(
    node: Node, official: str, scenario: str, tmp_path: Path
) -> None:
    asked = ["--scenario", scenario, "--spec-version", "2026-07-28", "--force"]

    [(_, checks)] = conformance(node, official, asked, tmp_path)

    passed = [check for check in checks if check["status"] == "SUCCESS"]
    assert objections(checks) == []
    assert len(passed) == SKILLS[scenario]["2026-07-28"]


def test_the_conformance_suite_objects_to_digests_in_capitals(
    node: Node, shouter: str, tmp_path: Path
) -> None:
    asked = ["--scenario", "sep-2640-skills-enumeration", "--spec-version", "2026-07-28", "--force"]

    [(_, checks)] = conformance(node, shouter, asked, tmp_path)

    [found] = objections(checks)
    assert found.startswith("sep-2640-resources-digest-format: FAILURE")


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_walk_through_the_official_server_finds_what_is_in_the_folder(
    node: Node, official: str, era: str, truth: Truth, env: dict[str, str]
) -> None:
    report = walk(node, Endpoint(url=official), era, env)

    assert differences(report, truth, era) == []
    assert unrefused(report, with_uri=False) == []


def test_the_walk_through_the_official_server_works_over_stdio(
    node: Node, folder: Path, truth: Truth, env: dict[str, str]
) -> None:
    endpoint = Endpoint(command=command_of("official.mjs", folder, "stdio", node=node.path))

    report = walk(node, endpoint, "modern", env)

    assert differences(report, truth, "modern") == []


def test_the_walk_ends_at_a_wrong_digest(node: Node, liar: str) -> None:
    done = node.run("client.mjs", json.dumps({"era": "modern", "url": liar, "refused": []}))

    assert done.returncode == 1
    assert "SkillVerificationError" in done.stderr


def test_the_inspector_accepts_the_official_server_and_objects_to_a_wrong_digest(
    node: Node, official: str, liar: str
) -> None:
    verify = ["--method", "skills/list", "--verify", "--require-digests"]

    accepted = node.run(INSPECTOR, official, *verify)
    refused = node.run(INSPECTOR, liar, *verify)

    assert (accepted.returncode, refused.returncode) == (0, 7)
