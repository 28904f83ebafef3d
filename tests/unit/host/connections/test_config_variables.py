"""Variables and inputs: what they stand for, and where their values must not appear."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.connect.config import Servers, servers_of
from skillwire.host.connect.config_file import MAX_FILLED, Variables, input_variable
from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, StdioEndpoint
from skillwire.host.model.errors import ConfigError

FOLDER = Path("/home/me/shop")
SECRET = "s3cret"
GIVEN = {"SKILLWIRE_INPUT_KEY": SECRET}


def fill(text: str, environ: dict[str, str], inputs: object = None) -> str:
    return Variables(FOLDER, environ, inputs).fill(text, owner="the server 'a'", place="args[0]").text


def fault(text: str, environ: dict[str, str], inputs: object = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        fill(text, environ, inputs)
    return caught.value


def read(entry: object, environ: dict[str, str], inputs: object = None) -> Servers:
    inputs = [{"type": "promptString", "id": "key", "password": True}] if inputs is None else inputs
    return servers_of({"servers": {"a": entry}, "inputs": inputs}, base=FOLDER, environ=environ)


def endpoint_of(entry: object, environ: dict[str, str]) -> Endpoint:
    found = read(entry, environ)
    assert found.refused == ()
    return found.servers[0].endpoint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("${env:A}", "1"),
        ("${env:EMPTY}", ""),
        ("${env:ProgramFiles(x86)}", "C:"),
        ("${env:-x}", "x"),
        ("${input:-x}", "x"),
        ("${workspaceFolder}", "/home/me/shop"),
        ("${workspaceFolderBasename}", "shop"),
        ("${workspaceFolder:-x}", "x"),
        ("${userHome}", "/home/me"),
        ("a${/}b${pathSeparator}c", f"a{os.sep}b{os.sep}c"),
        ("${A}${A}-${env:A}", "11-1"),
        (
            "$A ${} ${A ${env ${ENV:A} ${x.y} ${foo:bar} $${",
            "$A ${} ${A ${env ${ENV:A} ${x.y} ${foo:bar} $${",
        ),
        ("${NESTED}", "${A}"),
    ],
)
def test_a_variable_stands_for_its_value(text: str, value: str) -> None:
    environ = {"A": "1", "EMPTY": "", "HOME": "/home/me", "ProgramFiles(x86)": "C:", "NESTED": "${A}"}

    assert fill(text, environ) == value


def test_a_home_folder_is_found_on_windows_too() -> None:
    assert fill("${userHome}", {"USERPROFILE": "C:\\Users\\me"}) == "C:\\Users\\me"
    assert "HOME" in fault("${userHome}", {}).fix


@pytest.mark.parametrize("text", ["${GONE}", "${env:GONE}"])
def test_a_variable_that_is_not_set_is_named_with_its_place(text: str) -> None:
    error = fault(text, {})

    assert "GONE" in str(error) and "args[0]" in str(error) and "GONE" in error.fix


@pytest.mark.parametrize("text", ["${config:a.b}", "${command:pick}", "${workspaceFolder:other}"])
def test_what_only_an_editor_knows_is_refused(text: str) -> None:
    assert text in str(fault(text, {}))


def test_a_short_file_does_not_become_an_endless_one() -> None:
    large = {"A": "x" * (MAX_FILLED // 4)}

    assert len(fill("${A}" * 4, large)) == MAX_FILLED
    assert str(MAX_FILLED) in str(fault("${A}" * 5, large))


# Inputs


@pytest.mark.parametrize(
    ("identifier", "variable"),
    [
        ("key", "SKILLWIRE_INPUT_KEY"),
        ("api-key", "SKILLWIRE_INPUT_API_KEY"),
        ("Github.Token 2", "SKILLWIRE_INPUT_GITHUB_TOKEN_2"),
        ("schlüssel", "SKILLWIRE_INPUT_SCHL_SSEL"),
        ("ß=\0", "SKILLWIRE_INPUT____"),
    ],
)
def test_an_input_is_given_by_a_variable(identifier: str, variable: str) -> None:
    assert input_variable(identifier) == variable
    assert fill(f"<${{input:{identifier}}}>", {variable: "v"}, [{"id": identifier}]) == "<v>"


@pytest.mark.parametrize(
    ("environ", "value"),
    [({}, "eu"), ({"SKILLWIRE_INPUT_REGION": "us"}, "us"), ({"SKILLWIRE_INPUT_REGION": ""}, "")],
)
def test_an_input_that_is_not_given_has_its_default(environ: dict[str, str], value: str) -> None:
    assert fill("${input:region}", environ, [{"id": "region", "default": "eu"}]) == value


@pytest.mark.parametrize(
    "declaration", [{"id": "key"}, {"id": "key", "default": None}, {"id": "key", "default": 1}]
)
def test_an_input_without_a_value_says_how_to_give_it(declaration: object) -> None:
    assert "SKILLWIRE_INPUT_KEY" in fault("${input:key}", {}, [declaration]).fix


@pytest.mark.parametrize(
    "inputs", [None, "key", {"key": 1}, ["key", None, 1, {}, {"id": 1}], [{"id": "other"}]]
)
def test_an_input_that_is_not_declared_is_refused(inputs: object) -> None:
    assert "declare" in str(fault("${input:key}", GIVEN, inputs))


def test_two_inputs_do_not_share_a_variable() -> None:
    error = fault("${input:a-b}", {"SKILLWIRE_INPUT_A_B": SECRET}, [{"id": "a-b"}, {"id": "a_b"}])

    assert "'a-b'" in str(error) and "'a_b'" in str(error) and "rename" in error.fix


def test_an_input_that_is_declared_twice_has_no_default() -> None:
    twice = [{"id": "key", "default": "1"}, {"id": "key", "default": "2"}]

    assert fill("${input:key}", GIVEN, twice) == SECRET
    fault("${input:key}", {}, twice)


# Secrets

WITH_INPUTS: list[dict[str, Any]] = [
    {"command": "x", "args": ["--key", "${input:key}", "a=${input:key}"]},
    {"command": "x", "env": {"KEY": "${input:key}"}},
    {"url": "https://example.org/mcp?key=${input:key}"},
    {"url": "https://example.org/${input:key}/mcp"},
    {"url": "https://me:${input:key}@example.org/mcp"},
    {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${input:key}"}},
]


@pytest.mark.parametrize("entry", WITH_INPUTS)
def test_an_input_reaches_the_server_and_is_shown_nowhere(entry: dict[str, Any]) -> None:
    found = read(entry, GIVEN)

    (server,) = found.servers
    sent = [*vars(server.endpoint).values()]
    assert any(SECRET in str(value) for value in sent)
    assert SECRET not in repr(found) and SECRET not in str(server)
    assert SECRET not in getattr(server.endpoint, "shown", "")


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize("entry", WITH_INPUTS)
def test_an_input_rotates_without_changing_the_endpoint(entry: dict[str, Any]) -> None:
    before, after = endpoint_of(entry, GIVEN), endpoint_of(entry, {"SKILLWIRE_INPUT_KEY": "another"})

    assert before.fingerprint == after.fingerprint


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "x", "args": ["${input:key}"]}, {"command": "x", "args": ["a${input:key}"]}),
        ({"command": "x", "args": ["${input:key}"]}, {"command": "y", "args": ["${input:key}"]}),
        ({"url": "https://a.example/?k=${input:key}"}, {"url": "https://b.example/?k=${input:key}"}),
        ({"url": "https://a.example/x?k=${input:key}"}, {"url": "https://a.example/y?k=${input:key}"}),
    ],
)
def test_everything_beside_an_input_still_names_the_endpoint(one: object, other: object) -> None:
    assert endpoint_of(one, GIVEN).fingerprint != endpoint_of(other, GIVEN).fingerprint


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize(
    "entry",
    [
        {"command": "${input:key}"},
        {"command": "x", "cwd": "${input:key}"},
        {"command": "x", "envFile": "${input:key}"},
        {"url": "${input:key}"},
        {"url": "https://${input:key}/mcp"},
        {"url": "https://${input:key}.example.org/mcp"},
        {"url": "https://example.org${input:key}"},
        {"url": "https://example.org:${input:key}/mcp"},
        {"url": "${input:key}://example.org/mcp"},
    ],
)
@pytest.mark.parametrize(
    "value", [SECRET, "evil.example", "https://evil.example", "8443", "https", ".evil.example/"]
)
def test_an_input_does_not_decide_which_server_is_meant(entry: dict[str, Any], value: str) -> None:
    found = read(entry, {"SKILLWIRE_INPUT_KEY": value})

    assert found.servers == ()
    assert SECRET not in str(found.refused[0])


def test_an_argument_that_is_shown_otherwise_stays_bound_to_its_endpoint() -> None:
    program = StdioEndpoint("x", ("1", "2"), shown_args=("1", "${input:key}"))
    site = HttpEndpoint("https://a.example/2", shown_url="https://a.example/${input:key}")

    with pytest.raises(ValueError):
        replace(program, args=("1", "2", "3"))
    with pytest.raises(ValueError):
        replace(site, url="https://b.example/2")


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "ftp://me:${env:T}@example.org"},
        {"url": "https://example.org", "headers": {"A": "${env:T}\u00fc"}},
        {"url": "https://example.org/ ${env:T}"},
        {"command": "x", "args": ["${env:T}\0"]},
        {"command": "x", "env": {"A": "${env:T}${GONE}"}},
        {"command": "x", "env": {"A": "${input:key}\0"}},
        {"command": "x", "skills": "on", "env": {"A": "${input:key}"}},
        {"command": "x", "env": {"A": "literal-s3cret", "B": 1.5}},
        {"url": "https://example.org", "headers": {"A": "literal-s3cret\n"}},
    ],
)
def test_secrets_do_not_appear_in_refusals(entry: object) -> None:
    found = read(entry, {"T": SECRET, **GIVEN})

    assert found.servers == ()
    assert SECRET not in repr(found)


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize(
    ("endpoint", "fingerprint"),
    [
        (
            StdioEndpoint("npx", ("-y", "billing")),
            "10d0ae4d904a3e8c8b915379268706ae51a7214fb2bf894eb3a95289edf02e74",
        ),
        (
            StdioEndpoint("program", ("a", "b"), {"T": "x"}, "/folder"),
            "26db526474133d412e1269fb609650f3b8576875a31d1b133ee12a2b563de006",
        ),
        (
            HttpEndpoint("https://example.org/mcp"),
            "dcb3a6797f64b80164c295336091bd14b2eaa2ba896cf932be49cf51c8a77eb4",
        ),
        (
            HttpEndpoint("https://me:pw@example.org:8443/mcp?tenant=2", {"A": "b"}),
            "ac9237341eec523c0fad4bfce6242fa914eb63187afa17bb99e829a83caadbdb",
        ),
    ],
)
def test_fingerprints_are_what_approvals_were_bound_to(endpoint: Endpoint, fingerprint: str) -> None:
    assert endpoint.fingerprint == f"sha256:{fingerprint}"


PIECES = st.sampled_from(
    [
        "${A}",
        "${env:A}",
        "${input:key}",
        "${input:",
        "}",
        "${",
        "$",
        "${GONE}",
        "${GONE:-d}",
        "${/}",
        "a",
        "\0",
        "\ud800",
    ]
)


@given(
    st.lists(PIECES, max_size=6).map("".join),
    st.sampled_from(["command", "args", "env", "cwd", "url", "headers"]),
)
def test_any_text_is_filled_in_or_refused_without_the_secret(text: str, place: str) -> None:
    wrapped: dict[str, Any] = {"args": [text], "env": {"A": text}, "headers": {"A": text}}
    base = (
        {"url": "https://example.org"} if place == "headers" else {"command": "x"} if place != "url" else {}
    )

    found = read({**base, place: wrapped.get(place, text)}, {"A": "1", **GIVEN})

    assert len(found.servers) + len(found.refused) == 1
    assert SECRET not in repr(found)
    assert all(SECRET not in server.origin.fingerprint for server in found.servers)
