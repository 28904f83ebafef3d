"""What a label stands for, and what its fingerprint depends on."""

import re
from dataclasses import FrozenInstanceError

import pytest

from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.origin import Origin, OriginKind

PROGRAM = StdioEndpoint("program", ("a", "b"), {"TOKEN": "s3cret"}, "/folder")
SITE = HttpEndpoint("https://example.org/mcp", {"Authorization": "Bearer s3cret"})


@pytest.mark.parametrize("endpoint", [PROGRAM, SITE], ids=["stdio", "http"])
def test_a_fingerprint_is_a_whole_digest(endpoint: Endpoint) -> None:
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", endpoint.fingerprint)


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize(
    "other",
    [
        StdioEndpoint("other", ("a", "b"), {}, "/folder"),
        StdioEndpoint("program", ("a", "c"), {}, "/folder"),
        StdioEndpoint("program", ("b", "a"), {}, "/folder"),
        StdioEndpoint("program", ("a b",), {}, "/folder"),
        StdioEndpoint("program", ("a", "b", ""), {}, "/folder"),
        StdioEndpoint("program", ("a", "b"), {}, "/elsewhere"),
        StdioEndpoint("program", ("a", "b"), {}, None),
        HttpEndpoint("http://program/a"),
    ],
)
def test_another_command_argument_or_folder_is_another_endpoint(other: Endpoint) -> None:
    assert other.fingerprint != PROGRAM.fingerprint


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/mcp",
        "https://example.org/mcp/",
        "https://example.org/MCP",
        "https://example.org:8443/mcp",
        "https://example.com/mcp",
        "https://example.org/mcp?tenant=2",
        "https://example.org.evil.example/mcp",
    ],
)
def test_another_address_is_another_endpoint(url: str) -> None:
    assert HttpEndpoint(url).fingerprint != SITE.fingerprint


@pytest.mark.parametrize(
    "url",
    ["HTTPS://EXAMPLE.ORG/mcp", "https://example.org:443/mcp", "https://me:s3cret@example.org/mcp"],
)
def test_other_spellings_of_an_address_are_the_same_endpoint(url: str) -> None:
    assert HttpEndpoint(url).fingerprint == SITE.fingerprint


def test_secrets_rotate_without_changing_the_endpoint() -> None:
    assert StdioEndpoint("program", ("a", "b"), {"OTHER": "x"}, "/folder").fingerprint == PROGRAM.fingerprint
    assert HttpEndpoint(SITE.url, {"X-Key": "x"}).fingerprint == SITE.fingerprint


@pytest.mark.parametrize(
    "endpoint", [PROGRAM, SITE, HttpEndpoint("https://me:s3cret@example.org/mcp?key=s3cret")]
)
def test_secrets_are_not_shown(endpoint: Endpoint) -> None:
    assert "s3cret" not in repr(endpoint)
    assert "s3cret" not in repr(ServerConfig("a", endpoint))


def test_an_address_is_shown_without_what_could_be_secret() -> None:
    endpoint = HttpEndpoint("https://me:pw@example.org:8443/mcp?key=1")

    assert endpoint.shown == "https://example.org:8443/mcp"


def test_endpoints_do_not_change_with_what_they_were_made_from() -> None:
    env = {"A": "1"}
    endpoint = StdioEndpoint("program", (), env)

    env["A"] = "2"

    assert endpoint.env == {"A": "1"}
    with pytest.raises(TypeError):
        endpoint.env["A"] = "3"  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        endpoint.command = "other"  # type: ignore[misc]


@pytest.mark.requirement("NAME-05")
def test_an_origin_is_the_label_and_the_endpoint() -> None:
    assert ServerConfig("a", SITE).origin == Origin(OriginKind.SERVER, "a", SITE.fingerprint)
