"""The dialects `primitive` and `exec` over real pipes and sockets, in plain JSON-RPC."""

import json
import os
from base64 import b64decode
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from configs import configured
from folders import skill_md, write_files
from programs import http_server, stdio_server
from serving import (
    INITIALIZED,
    LEGACY,
    HttpServer,
    Json,
    StdioServer,
    environment,
    handshake,
    legacy,
    modern,
    next_event,
    wait_until,
)
from skillwire.core.fields import is_name

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "unit" / "wire" / "golden"
SCHEMAS = HERE.parents[1] / "docs" / "schemas" / "wire"
EXTENSION = "io.modelcontextprotocol/skills"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
MOMENT = 1_770_109_200
PICTURE = b"\x89PNG\r\n\x1a\n\xff"
DIALECTS = ("--dialect", "primitive", "--dialect", "exec")

INVOICE = b"""---
name: invoice-fill
description: Fill in invoices. Use when a customer asks for one.
license: MIT
version: 1.2.0
tags: [finance, pdf]
metadata:
  title: Invoice filling
  author: acme
  skillwire/arguments: |
    region! (Region): Whose tax rules apply.
    currency: Three letters.
  skillwire/tools: open_doc
  skillwire/prompts: greet
  skillwire/resources: skill://invoice-fill/references/rules.md
  skillwire/files: |
    references/rules.md (tax-rules): Tax rules by region.
---
# Invoices

Use the [rules](references/rules.md) of {{region}}, in {{currency}}. Leave {{this}} alone.
"""
CHARTS = b"""---
name: chart-maker
description: Draw charts. Use when numbers should be seen.
metadata:
  keywords: plot graph
---
Read references/styles.md, then {{draw}}.
"""
FILES: Mapping[str, bytes] = {
    "invoice-fill/SKILL.md": INVOICE,
    "invoice-fill/references/rules.md": b"# Rules\n",
    "invoice-fill/assets/form.pdf": b"%PDF\xff",
    "chart-maker/SKILL.md": CHARTS,
    "chart-maker/skillwire-files.txt": b"references/styles.md (looks): Colours and fonts.\n",
    "chart-maker/references/styles.md": b"# Styles\n",
    "chart-maker/references/axes.md": b"# Axes\n",
    "chart-maker/references/deep/more.md": b"# More\n",
    "chart-maker/assets/axes.csv": b"x,y\n",
    "chart-maker/assets/logo.png": PICTURE,
    "chart-maker/scripts/plot.py": b"print('plot')\n",
    "acme/billing/refunds/SKILL.md": skill_md("refunds"),
    "acme/support/refunds/SKILL.md": skill_md("refunds", body="Ask support.\n"),
}


@cache
def validator(dialect: str, definition: str) -> Any:
    schema = json.loads((SCHEMAS / f"{dialect}.json").read_text("utf-8"))
    return Draft202012Validator({**schema, "anyOf": [{"$ref": f"#/$defs/{definition}"}]})


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"by-name-{name}.json").read_text("utf-8"))


def without_terms(result: Json) -> Json:
    """Return a result without what only its revision of the protocol adds."""
    return {
        key: value
        for key, value in result.items()
        if key not in ("_meta", "ttlMs", "cacheScope", "resultType")
    }


@dataclass
class Caller:
    """A client of one generation on one transport, which knows the extension or does not."""

    era: str
    knows_extension: bool
    send: Callable[[Json], Json]
    welcome: Json
    numbers: "count[int]" = field(default_factory=lambda: count(100))

    def call(self, method: str, **params: object) -> Json:
        if self.era == "legacy":
            return self.send(legacy(method, next(self.numbers), **params))
        return self.send(declaring(modern(method, next(self.numbers), **params), self.knows_extension))

    def ask(self, method: str, **params: object) -> Json:
        answer = self.call(method, **params)
        assert "result" in answer, answer
        assert ("resultType" in answer["result"]) == (self.era == "modern")
        return answer["result"]

    def refused(self, method: str, **params: object) -> Json:
        answer = self.call(method, **params)
        assert "error" in answer, answer
        return answer["error"]


def declaring(request: Json, knows_extension: bool) -> Json:
    capabilities: Json = {"extensions": {EXTENSION: {}}} if knows_extension else {}
    if request["method"] == "initialize":
        request["params"]["capabilities"] = capabilities
    else:
        request["params"]["_meta"][CAPABILITIES] = capabilities
    return request


def write_shop(root: Path) -> Path:
    write_files(root, FILES)
    for path in root.rglob("*"):
        os.utime(path, (MOMENT, MOMENT))
    return root


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def callers(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Caller]]:
    """Start two servers on pipes and one on a socket, and talk to them as every kind of client."""
    found: dict[str, Caller] = {}
    env = environment(tmp_path_factory.mktemp("home"))
    with ExitStack() as stack:
        url = stack.enter_context(http_server(shop, *DIALECTS, "--no-watch", env=env))
        for knows in (False, True):
            pipes = stack.enter_context(stdio_server(shop, *DIALECTS, "--no-watch", env=env))
            welcome = pipes.call(declaring(handshake(), knows))
            pipes.send(INITIALIZED)
            found[f"stdio-legacy-{knows}"] = Caller("legacy", knows, pipes.call, welcome)
            fresh = stack.enter_context(stdio_server(shop, *DIALECTS, "--no-watch", env=env))
            discovered = fresh.call(declaring(modern("server/discover", 0), knows))
            found[f"stdio-modern-{knows}"] = Caller("modern", knows, fresh.call, discovered)
            found[f"http-legacy-{knows}"] = http_caller(url, knows)
            discovered = url.call(declaring(modern("server/discover", 0), knows))
            found[f"http-modern-{knows}"] = Caller("modern", knows, url.call, discovered)
        yield found


def http_caller(server: HttpServer, knows: bool) -> Caller:
    """Return a client with a session; each request has a connection of its own, as an idle one is closed."""
    with server.connection() as connection:
        response = connection.post(declaring(handshake(), knows))
        body = response.read().decode()
        if response.headers.get_content_type() == "text/event-stream":
            body = next(line for line in body.splitlines() if line.startswith("data:")).removeprefix("data:")
        headers = {"Mcp_Protocol_Version": LEGACY}
        if response.headers["Mcp-Session-Id"]:
            headers["Mcp_Session_Id"] = response.headers["Mcp-Session-Id"]
        connection.post(INITIALIZED, **headers).read()
    return Caller("legacy", knows, lambda request: server.call(request, **headers), json.loads(body))


KINDS = [f"{transport}-{era}" for transport in ("stdio", "http") for era in ("legacy", "modern")]


@pytest.fixture(params=KINDS)
def caller(request: pytest.FixtureRequest, callers: dict[str, Caller]) -> Caller:
    """Return a client that knows nothing of the extension."""
    return callers[f"{request.param}-False"]


@pytest.fixture(params=KINDS)
def knower(request: pytest.FixtureRequest, callers: dict[str, Caller]) -> Caller:
    """Return a client that says that it knows the extension."""
    return callers[f"{request.param}-True"]


# --- What is declared ---


@pytest.mark.requirement("P2076-01", "EXEC-01", "EXEC-14", "CONF-23")
def test_the_capability_of_both_dialects_is_declared_beside_the_extension(caller: Caller) -> None:
    capabilities = caller.welcome["result"]["capabilities"]

    assert capabilities["skills"]["scripts"] is False
    assert EXTENSION in capabilities["extensions"]
    validator("exec", "capabilities").validate(capabilities)
    validator("primitive", "capabilities").validate(capabilities)


@pytest.mark.requirement("P2076-07", "EXEC-08")
def test_changes_are_promised_only_to_clients_that_can_be_told(callers: dict[str, Caller]) -> None:
    promised = {
        kind: callers[f"{kind}-False"].welcome["result"]["capabilities"]["skills"]["listChanged"]
        for kind in KINDS
    }

    assert promised == {
        "stdio-legacy": True,
        "stdio-modern": False,
        "http-legacy": promised["http-legacy"],
        "http-modern": False,
    }
    told = callers["http-legacy-False"].welcome["result"]["capabilities"]["resources"]["listChanged"]
    assert promised["http-legacy"] is told


# --- skills/list ---


@pytest.mark.requirement("NEG-15", "CONF-02", "P2076-01", "P2076-02", "P2076-08", "EXEC-02", "EXEC-09")
def test_a_client_that_knows_no_extension_gets_core_and_legacy_fields(caller: Caller) -> None:
    result = caller.ask("skills/list")

    assert without_terms(result) == golden("list-unaware")
    validator("primitive", "listResult").validate(result)
    validator("exec", "listResult").validate(result)


@pytest.mark.requirement("NEG-15", "NEG-16", "CONF-02")
def test_a_client_that_knows_the_extension_gets_core_entries(knower: Caller) -> None:
    assert without_terms(knower.ask("skills/list")) == golden("list-aware")


@pytest.mark.requirement("NEG-15", "NEG-16")
def test_what_core_says_is_the_same_in_both() -> None:
    aware, unaware = golden("list-aware")["skills"], golden("list-unaware")["skills"]

    assert aware == [{key: item[key] for key in ("uri", "frontmatter", "resources")} for item in unaware]


@pytest.mark.requirement("P2076-11", "CONF-12", "EXEC-02")
def test_names_are_unique_and_by_the_rules_and_lead_back_to_their_skills(caller: Caller) -> None:
    listed = caller.ask("skills/list")["skills"]

    names = [item["name"] for item in listed]
    assert sorted(names) == ["acme-billing-refunds", "acme-support-refunds", "chart-maker", "invoice-fill"]
    assert all(is_name(name) for name in names)
    assert caller.ask("skills/get", name="acme-support-refunds")["instructions"] == "\nAsk support.\n"
    assert caller.ask("skills/read", name="acme-support-refunds")["skill"]["instructions"] == (
        "\nAsk support.\n"
    )
    assert caller.refused("skills/get", name="refunds")["code"] == -32602
    assert caller.refused("skills/read", name="refunds")["code"] == -32002


@pytest.mark.requirement("EXEC-02")
def test_no_listing_carries_a_body(caller: Caller) -> None:
    assert "Colours" not in json.dumps(caller.ask("skills/list"))
    assert "# Invoices" not in json.dumps(caller.ask("skills/list"))


# --- skills/get ---


@pytest.mark.requirement("NEG-14", "CONF-02")
def test_parameters_decide_which_skills_get_is_meant(caller: Caller) -> None:
    uri = "skill://chart-maker/SKILL.md"

    assert caller.ask("skills/get", uri=uri)["skill"]["uri"] == uri
    assert caller.ask("skills/get", name="chart-maker")["instructions"].startswith("Read ")
    assert caller.refused("skills/get", uri=uri, name="chart-maker")["code"] == -32602
    assert caller.refused("skills/get")["code"] == -32602


@pytest.mark.requirement("NEG-14")
def test_parameters_decide_for_a_client_that_knows_the_extension_too(knower: Caller) -> None:
    uri = "skill://chart-maker/SKILL.md"

    assert knower.ask("skills/get", uri=uri)["skill"]["uri"] == uri
    assert "instructions" in knower.ask("skills/get", name="chart-maker")
    assert knower.refused("skills/get", uri=uri, name="chart-maker")["code"] == -32602
    assert knower.refused("skills/get")["code"] == -32602


@pytest.mark.requirement("P2076-03", "P2076-08", "P2076-12", "P2076-13", "CONF-16")
def test_a_skill_is_got_by_name_with_its_arguments_filled_in(caller: Caller) -> None:
    result = caller.ask("skills/get", name="invoice-fill", arguments={"region": "{{currency}}"})

    assert without_terms(result) == golden("get-invoice")
    assert "Use the [rules](references/rules.md) of {{currency}}, in ." in result["instructions"]
    validator("primitive", "getResult").validate(result)


@pytest.mark.requirement("P2076-12", "CONF-16")
def test_instructions_without_declared_arguments_are_the_body_to_the_letter(caller: Caller) -> None:
    result = caller.ask("skills/get", name="chart-maker", arguments={"draw": "x"})

    assert result["instructions"] == CHARTS.decode().partition("\n---\n")[2]


@pytest.mark.requirement("P2076-06", "P2076-13")
def test_every_file_is_readable_under_its_core_uri(caller: Caller) -> None:
    files = caller.ask("skills/get", name="chart-maker")["files"]

    core = caller.ask("skills/get", uri="skill://chart-maker/SKILL.md")["skill"]["resources"]
    assert {file["uri"] for file in files} == {line["uri"] for line in core} - {
        "skill://chart-maker/SKILL.md"
    }
    for file in files:
        [content] = caller.ask("resources/read", uri=file["uri"])["contents"]
        assert content["mimeType"] == file["mimeType"]
        read = content["text"].encode() if "text" in content else b64decode(content["blob"])
        assert read == FILES[f"chart-maker/{file['name']}"]


@pytest.mark.requirement("P2076-04", "CONF-17")
@pytest.mark.parametrize(
    "params",
    [
        {"name": "nobody"},
        {"name": "x" * 5000},
        {"name": 5},
        {"name": None},
        {"name": "invoice-fill"},
        {"name": "invoice-fill", "arguments": {"currency": "EUR"}},
        {"name": "invoice-fill", "arguments": {"region": 1}},
        {"name": "invoice-fill", "arguments": ["eu"]},
        {"name": "invoice-fill", "arguments": {"region": "x" * 70_000}},
        {"name": "chart-maker", "arguments": {str(number): "" for number in range(65)}},
    ],
)
def test_unknown_names_and_unusable_arguments_are_invalid_params(
    caller: Caller, params: dict[str, object]
) -> None:
    error = caller.refused("skills/get", **params)

    assert error["code"] == -32602
    assert len(json.dumps(error)) < 1000
    validator("primitive", "error").validate(error)


# --- skills/read and skills/read_reference ---


@pytest.mark.requirement("EXEC-03", "EXEC-14", "EXEC-20", "CONF-16")
def test_a_whole_skill_is_read_by_name(caller: Caller) -> None:
    result = caller.ask("skills/read", name="chart-maker")

    assert without_terms(result) == golden("read-charts")
    assert "scripts" not in result["skill"]
    validator("exec", "readResult").validate(result)


@pytest.mark.requirement("EXEC-03", "EXEC-20")
def test_metadata_and_descriptions_come_from_the_frontmatter(caller: Caller) -> None:
    skill = caller.ask("skills/read", name="invoice-fill")["skill"]

    assert skill["metadata"] == {
        "license": "MIT",
        "version": "1.2.0",
        "title": "Invoice filling",
        "author": "acme",
    }
    assert skill["references"][0]["description"] == "Tax rules by region."
    assert skill["assets"][0]["description"] == "form.pdf"


@pytest.mark.requirement("EXEC-04", "EXEC-06")
@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ("styles.md", "references/styles.md"),
        ("references/styles.md", "references/styles.md"),
        ("styles", "references/styles.md"),
        ("looks", "references/styles.md"),
        ("axes.md", "references/axes.md"),
        ("axes.csv", "assets/axes.csv"),
        ("references/deep/more.md", "references/deep/more.md"),
    ],
)
def test_a_reference_is_found_by_name_path_stem_or_alias(caller: Caller, reference: str, path: str) -> None:
    result = caller.ask("skills/read_reference", name="chart-maker", reference=reference)

    assert result["content"]["uri"] == f"skill://chart-maker/{path}"
    assert result["content"]["text"].encode() == FILES[f"chart-maker/{path}"]
    validator("exec", "readReferenceResult").validate(result)


@pytest.mark.requirement("EXEC-04")
def test_an_asset_that_is_no_text_travels_as_a_blob(caller: Caller) -> None:
    result = caller.ask("skills/read_reference", name="chart-maker", reference="logo")

    assert result["content"] == {
        "uri": "skill://chart-maker/assets/logo.png",
        "mimeType": "image/png",
        "blob": "iVBORw0KGgr/",
    }
    validator("exec", "readReferenceResult").validate(result)


@pytest.mark.requirement("EXEC-06", "EXEC-07")
def test_a_reference_that_may_mean_several_files_is_an_error_that_names_them(caller: Caller) -> None:
    error = caller.refused("skills/read_reference", name="chart-maker", reference="axes")

    assert error["code"] == -32004
    assert error["data"] == {
        "name": "chart-maker",
        "reference": "axes",
        "candidates": ["assets/axes.csv", "references/axes.md"],
    }


@pytest.mark.requirement("EXEC-07", "EXEC-10", "CONF-17")
@pytest.mark.parametrize(
    "name", ["nobody", "../chart-maker", "chart-maker/../x", "", "CHART-MAKER", "\x1b[31m"]
)
def test_a_name_of_no_skill_is_not_found_and_named(caller: Caller, name: str) -> None:
    for method, more in (("skills/read", {}), ("skills/read_reference", {"reference": "styles.md"})):
        error = caller.refused(method, name=name, **more)
        assert (error["code"], error["data"]) == (-32002, {"name": name.replace("\x1b", "<U+001B>")})
        assert "\x1b" not in error["message"]
        validator("exec", "error").validate(error)


@pytest.mark.requirement("EXEC-07", "EXEC-10")
@pytest.mark.parametrize(
    "reference",
    [
        "nothing",
        "../invoice-fill/references/rules.md",
        "references/../SKILL.md",
        "references/../../invoice-fill/SKILL.md",
        "/etc/passwd",
        "SKILL.md",
        "scripts/plot.py",
        "plot.py",
        "skillwire-files.txt",
        "skill://chart-maker/references/styles.md",
        "references%2Fstyles.md",
        "references",
        "",
        "file:///etc/passwd",
    ],
)
def test_a_reference_the_skill_does_not_have_is_not_found_and_named(caller: Caller, reference: str) -> None:
    error = caller.refused("skills/read_reference", name="chart-maker", reference=reference)

    assert (error["code"], error["data"]) == (-32004, {"name": "chart-maker", "reference": reference})


@pytest.mark.requirement("EXEC-10")
def test_parameters_of_the_wrong_kind_are_invalid(caller: Caller) -> None:
    assert caller.refused("skills/read")["code"] == -32602
    assert caller.refused("skills/read", name=["chart-maker"])["code"] == -32602
    assert caller.refused("skills/read_reference", name="chart-maker")["code"] == -32602
    assert caller.refused("skills/read_reference", name="chart-maker", reference=7)["code"] == -32602


@pytest.mark.requirement("EXEC-14", "CONF-23")
def test_nothing_is_executed(caller: Caller) -> None:
    assert caller.refused("skills/execute", name="chart-maker", script="plot.py")["code"] == -32601


@pytest.mark.requirement("EXEC-07")
def test_a_reference_that_went_away_is_not_found_and_no_path_is_told(tmp_path: Path) -> None:
    root = write_shop(tmp_path / "skills")
    with stdio_server(root, *DIALECTS, "--no-watch", env=environment(tmp_path)) as server:
        reference = root / "chart-maker" / "references" / "styles.md"
        reference.unlink()
        reference.mkdir()
        request = modern("skills/read_reference", name="chart-maker", reference="styles.md")
        error = server.call(request)["error"]

    assert error["code"] == -32004
    assert error["data"] == {"name": "chart-maker", "reference": "styles.md"}
    assert str(tmp_path) not in json.dumps(error)


# --- Pages and changes ---


@pytest.mark.requirement("P2076-02", "EXEC-02", "NEG-15")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_listing_by_name_comes_in_pages(shop: Path, tmp_path: Path, era: str) -> None:
    with stdio_server(
        shop, *DIALECTS, *configured(tmp_path, page_size=3), env=environment(tmp_path)
    ) as server:
        caller = Caller(era, False, server.call, {})
        if era == "legacy":
            server.call(handshake())
            server.send(INITIALIZED)
        first = caller.ask("skills/list")
        second = caller.ask("skills/list", cursor=first["nextCursor"])
        wrong = caller.refused("skills/list", cursor="nonsense")

    assert [*first["skills"], *second["skills"]] == golden("list-unaware")["skills"]
    assert len(first["skills"]) == 3
    assert "nextCursor" not in second
    assert wrong["code"] == -32602
    if era == "modern":
        assert {key: first[key] for key in ("resultType", "ttlMs", "cacheScope")} == {
            "resultType": "complete",
            "ttlMs": 60_000,
            "cacheScope": "public",
        }


@pytest.mark.requirement("P2076-07", "EXEC-08")
@pytest.mark.parametrize("dialect", ["primitive", "exec"])
def test_a_client_on_pipes_is_told_when_a_skill_is_added(tmp_path: Path, dialect: str) -> None:
    root = write_shop(tmp_path / "skills")
    with stdio_server(root, "--dialect", dialect, env=environment(tmp_path)) as server:
        welcome = server.call(handshake())
        server.send(INITIALIZED)
        assert welcome["result"]["capabilities"]["skills"]["listChanged"] is True

        write_files(root, {"green-tea/SKILL.md": skill_md("green-tea")})
        message = told(server)
        names = [item["name"] for item in server.call(legacy("skills/list", 7))["result"]["skills"]]

    assert "id" not in message
    validator(dialect, "listChanged").validate(message)
    assert "green-tea" in names


def told(server: StdioServer) -> Json:
    """Return the notification about skills, and let all others that come with it pass."""
    found: list[Json] = []
    while len(found) < 2:  # The other one is about resources.
        found.append(server.receive())
    [message] = [one for one in found if one["method"] == "notifications/skills/list_changed"]
    return message


@pytest.mark.requirement("P2076-07", "EXEC-08")
def test_a_client_on_a_stream_is_told_when_a_skill_is_added(tmp_path: Path) -> None:
    root = write_shop(tmp_path / "skills")
    with http_server(root, *DIALECTS, env=environment(tmp_path)) as server, ExitStack() as stack:
        connection = stack.enter_context(server.connection())
        welcome = connection.post(handshake())
        welcome.read()
        session = {"Mcp_Session_Id": welcome.headers["Mcp-Session-Id"], "Mcp_Protocol_Version": LEGACY}
        connection.post(INITIALIZED, **session).read()
        stream = stack.enter_context(server.connection()).get(**session)

        write_files(root, {"green-tea/SKILL.md": skill_md("green-tea")})
        methods: list[str] = []
        while len(methods) < 2:
            event = next_event(stream)
            assert event is not None
            methods.append(event["method"])

    assert "notifications/skills/list_changed" in methods


@pytest.mark.requirement("P2076-08", "NEG-15")
def test_fields_follow_the_folder(tmp_path: Path) -> None:
    root = write_shop(tmp_path / "skills")
    with stdio_server(root, *DIALECTS, env=environment(tmp_path)) as server:
        caller = Caller("modern", False, server.call, {})
        assert "title" not in titles(caller)["chart-maker"]

        extra = "metadata:\n  title: Charts\n  skillwire/arguments: 'draw!'\n"
        write_files(root, {"chart-maker/SKILL.md": skill_md("chart-maker", body="{{draw}}", extra=extra)})
        wait_until(lambda: titles(caller)["chart-maker"].get("title") == "Charts", 20, "the new title")
        result = caller.ask("skills/get", name="chart-maker", arguments={"draw": "circles"})

    assert result["instructions"] == "\ncircles"


def titles(caller: Caller) -> dict[str, Json]:
    return {item["name"]: item for item in caller.ask("skills/list")["skills"]}


@pytest.mark.requirement("P2076-05", "ASK-15")
def test_what_a_skill_needs_and_the_server_has_not_is_said_once(shop: Path, tmp_path: Path) -> None:
    with stdio_server(shop, *DIALECTS, "--no-watch", env=environment(tmp_path)) as server:
        server.call(handshake())
        server.send(INITIALIZED)
        for number in (1, 2):
            server.call(legacy("skills/list", number))
        server.wait_for_words("no prompt 'greet'")
        words = server.words

    assert words.count("skill://invoice-fill/SKILL.md: the server has no tool 'open_doc'") == 1
    assert words.count("skill://invoice-fill/SKILL.md: the server has no prompt 'greet'") == 1
    assert "no resource" not in words
