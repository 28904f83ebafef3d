"""A host in front of servers that know skills by name: every wire, and what is sent over it."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from folders import skill_md
from hostile import hosting as hosts
from hostile.byname import NOTES, POLICY_URI
from hostile.catalog import LOGO
from hostile.hosting import LABEL, User, Visit, config, refused
from hostile.running import WIRES, hostile
from integration.hosting_serve import cached, over_stdio, written
from programs import http_server
from skillwire.core.dialects import Dialect
from skillwire.host import HostPolicy
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, SkillSettings, StdioEndpoint

every_wire = pytest.mark.parametrize(("transport", "era"), WIRES)
REFUNDS, CHARTS, PLAIN = (f"{LABEL}/{name}" for name in ("refunds", "charts", "plain"))
HANDSHAKE = frozenset(
    {"initialize", "notifications/initialized", "server/discover", "subscriptions/listen", "ping"}
)


ASK = {"policy": HostPolicy(dynamic="ask")}
"""None of these dialects has digests, so nothing loads unless the user wants to be asked each time."""


def visiting(scenario: str, folder: Path, **said: Any) -> AbstractAsyncContextManager[Visit]:
    return hosts.visiting(scenario, folder, options=ASK, **said)


def sent(visit: Visit) -> list[tuple[str, str]]:
    """Return what the host asked for, in order: the method, and the name or URI in it."""
    return [
        (asked.method, str(asked.params.get("reference") or asked.params.get("name") or asked.uri))
        for asked in visit.peer.requests()
        if asked.method not in HANDSHAKE
    ]


async def files_of(host: Host, reference: str) -> list[str]:
    """Return the paths that the tool for the model lists."""
    [tool] = [tool for tool in host.tools() if tool.name == "list_skill_files"]
    result = await tool({"skill": reference})
    assert not result.is_error, result.text
    return [line.split()[1] for line in result.text.splitlines()[1:]]


async def becomes_stale(visit: Visit) -> None:
    with anyio.fail_after(15):
        while visit.host.view.servers[0].state != "stale":  # noqa: ASYNC110 - the view is looked at
            await anyio.sleep(0.05)


# SEP-2076


@every_wire
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("P2076-02")
@pytest.mark.requirement("P2076-09")
@pytest.mark.requirement("P2076-10")
@pytest.mark.requirement("P2076-13")
@pytest.mark.requirement("CONF-12")
@pytest.mark.requirement("CONF-16")
async def test_a_skill_by_name_is_listed_asked_about_loaded_and_its_declared_files_are_read(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("primitive", tmp_path, transport=transport, era=era, page=2) as visit:
        listed = [
            (skill.reference, skill.dialect, skill.entry.is_dynamic) for skill in visit.host.view.skills
        ]
        before = sent(visit)
        loaded = await visit.host.load(REFUNDS)
        at_load = sent(visit)[len(before) :]
        paths = await files_of(visit.host, REFUNDS)
        policy = await visit.host.read_skill_file(REFUNDS, "references/policy.md")
        notes = await visit.host.read_skill_file(REFUNDS, "files/Notes-all")
        again = await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        visit.user.will(Reply.DENY)
        denied = await refused(visit.host.load(REFUNDS))

        assert listed == [
            (f"{LABEL}/{name}", Dialect.PRIMITIVE, True) for name in ("needy", "refunds", "reports")
        ]
        assert before == [("skills/list", ""), ("skills/list", "")]
        assert at_load == [("skills/get", "refunds")]
        assert f"MCP server {LABEL}" in loaded.text and "no listing to verify it against" in loaded.text
        assert "Steps of refunds, version 1." in loaded.text and "description:" not in loaded.text
        assert paths == ["references/policy.md", "files/Notes-all"]
        assert "Refund within 30 days." in policy.text and "Notes." in notes.text
        assert again.is_again
        assert denied.refusal == "approval-denied"
        assert visit.user.occasions == [Occasion.DYNAMIC, Occasion.DYNAMIC]
        assert visit.peer.reads() == [POLICY_URI, NOTES]
        assert {method for method, _ in sent(visit)} == {"skills/list", "skills/get", "resources/read"}
        assert all("arguments" not in asked.params for asked in visit.peer.requests("skills/get"))


@every_wire
@pytest.mark.requirement("P2076-07")
@pytest.mark.requirement("EXEC-08")
@pytest.mark.parametrize("scenario", ["primitive", "executing"])
async def test_an_announced_change_of_skills_by_name_is_looked_at_when_someone_asks(
    scenario: str, transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting(scenario, tmp_path, transport=transport, era=era) as visit:
        if era == "modern":
            await visit.peer.seen("subscriptions/listen")
        visit.peer.forget()
        visit.peer.announce(version=2)
        await becomes_stale(visit)
        untouched = sent(visit)
        await visit.host.refresh()
        references = visit.references()

        assert untouched == []
        assert f"{LABEL}/late" in references
        assert sent(visit) == [("skills/list", "")]


@pytest.mark.parametrize(
    ("scenario", "reference"), [("primitive", REFUNDS), ("executing", CHARTS), ("prompt_only", PLAIN)]
)
async def test_after_an_announced_change_the_user_is_asked_before_a_skill_is_fetched(
    scenario: str, reference: str, tmp_path: Path
) -> None:
    async with visiting(scenario, tmp_path, era="legacy") as visit:
        visit.peer.forget()
        visit.peer.announce(version=2)
        await becomes_stale(visit)
        before: list[tuple[str, str]] = []
        visit.user.meanwhile = lambda _question: before.extend(sent(visit))
        visit.user.will(Reply.DENY)

        denied = await refused(visit.host.load(reference))
        asked = sent(visit)

    assert denied.refusal == "approval-denied"
    assert before == asked
    assert {method.rpartition("/")[2] for method, _ in asked} == {"list"}


async def test_nothing_of_a_skill_by_name_is_kept_so_each_load_brings_what_is_there_now(
    tmp_path: Path,
) -> None:
    async with visiting("primitive", tmp_path) as visit:
        first = await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        visit.peer.say(version=2)
        second = await visit.host.load(REFUNDS)

        assert "version 1." in first.text and "version 2." in second.text
        assert visit.user.occasions == [Occasion.DYNAMIC, Occasion.DYNAMIC]
        assert cached(tmp_path) == []


@pytest.mark.parametrize("path", ["references/other.md", "SKILL.md.bak", "files/notes-all"])
async def test_a_file_that_was_not_declared_is_not_asked_for(path: str, tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        await visit.host.load(REFUNDS)

        error = await refused(visit.host.read_skill_file(REFUNDS, path))

        assert error.refusal == "not-found"
        assert visit.peer.reads() == []


async def test_a_skill_that_needs_arguments_says_which_and_nothing_is_sent(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        before = sent(visit)

        error = await refused(visit.host.load(f"{LABEL}/needy"))

        assert error.refusal == "arguments-needed"
        assert "'region'" in str(error) and "tone" not in str(error)
        assert sent(visit) == before and visit.user.questions == []


@pytest.mark.requirement("CONF-17")
async def test_a_skill_by_name_that_is_gone_is_not_found(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path, gone="refunds") as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "not-found"
        assert f"{LABEL}/needy" in visit.references()


@pytest.mark.requirement("CONF-12")
async def test_two_skills_of_one_name_are_both_refused_and_cost_the_others_nothing(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path, form="twins") as visit:
        hidden = [refusal.subject for refusal in visit.host.view.hidden]

        assert visit.references() == [f"{LABEL}/needy", REFUNDS]
        assert hidden == [f"{LABEL}/skill://acme/reports/SKILL.md"] * 2


@every_wire
@pytest.mark.requirement("NEG-11")
async def test_without_the_capability_no_method_of_skills_is_sent(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("primitive", tmp_path, transport=transport, era=era, form="undeclared") as visit:
        assert visit.references() == []
        assert not [method for method, _ in sent(visit) if method.startswith(("skills/", "prompts/"))]


@pytest.mark.requirement("NEG-11")
@pytest.mark.parametrize("dialect", [Dialect.PRIMITIVE, Dialect.EXEC])
async def test_not_even_a_pinned_dialect_is_sent_to_a_server_that_did_not_declare_it(
    dialect: Dialect, tmp_path: Path
) -> None:
    async with pinned("primitive", dialect, tmp_path, form="undeclared") as visit:
        assert visit.references() == []
        assert sent(visit) == []


@asynccontextmanager
async def pinned(
    scenario: str, dialect: Dialect | None, folder: Path, **control: Any
) -> AsyncGenerator[Visit]:
    """Visit a server for which the user said which dialect it speaks, or none."""
    user = User()
    async with hostile(scenario, **control) as peer:
        server = replace(config(peer), skills=SkillSettings(dialect=dialect))
        async with hosts.hosting(folder, [server], user=user, **ASK) as host:
            await host.refresh()
            yield Visit(host, peer, user)


# The skills page


@every_wire
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("EXEC-18")
@pytest.mark.requirement("EXEC-19")
@pytest.mark.requirement("CONF-16")
@pytest.mark.requirement("CONF-23")
async def test_metadata_at_the_start_the_skill_on_activation_and_references_on_demand(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("executing", tmp_path, transport=transport, era=era) as visit:
        [skill] = visit.host.view.skills
        loaded = await visit.host.load(CHARTS)
        styles = await visit.host.read_skill_file(CHARTS, "references/styles.md")
        logo = await visit.host.read_skill_bytes(CHARTS, "assets/logo.png")
        so_far = sent(visit)
        script = await refused(visit.host.read_skill_file(CHARTS, "scripts/plot.py"))
        run = await refused(visit.host.request_scripts(CHARTS, "scripts/plot.py"))
        paths = await files_of(visit.host, CHARTS)

        assert (skill.reference, skill.dialect, skill.entry.is_dynamic) == (CHARTS, Dialect.EXEC, True)
        assert so_far == [
            ("skills/list", ""),
            ("skills/read", "charts"),
            ("skills/read_reference", "styles.md"),
            ("skills/read_reference", "logo.png"),
        ]
        assert "# Charts 1" in loaded.text and "Blue." in styles.text and logo == LOGO
        assert paths == ["references/styles.md", "references/lost.md", "assets/logo.png", "scripts/plot.py"]
        assert (script.refusal, run.refusal) == ("not-declared", "not-declared")
        assert visit.user.occasions == [Occasion.DYNAMIC]
        assert {method for method, _ in sent(visit)} == {
            "skills/list",
            "skills/read",
            "skills/read_reference",
        }


@pytest.mark.requirement("EXEC-18")
async def test_a_server_without_scripts_is_heard_in_the_same_dialect(tmp_path: Path) -> None:
    async with visiting("executing", tmp_path, form="loud") as visit:
        [skill] = visit.host.view.skills

        assert skill.dialect is Dialect.EXEC
        assert "# Charts 1" in (await visit.host.load(CHARTS)).text


@pytest.mark.requirement("CONF-17")
async def test_the_codes_of_the_skills_page_mean_not_found(tmp_path: Path) -> None:
    async with visiting("executing", tmp_path) as visit:
        await visit.host.load(CHARTS)
        reference = await refused(visit.host.read_skill_file(CHARTS, "references/lost.md"))
        outside = await refused(visit.host.read_skill_file(CHARTS, "../../etc/passwd"))
        visit.host.close(CHARTS)
        visit.peer.say(gone=True)
        skill = await refused(visit.host.load(CHARTS))

        assert (reference.refusal, skill.refusal, outside.refusal) == (
            "not-found",
            "not-found",
            "unlisted-file",
        )


@every_wire
@pytest.mark.requirement("NEG-12")
async def test_a_server_that_does_not_say_which_of_the_two_it_is_is_found_out_at_the_first_load(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("executing", tmp_path, transport=transport, era=era, form="silent") as visit:
        before = visit.host.view.skills[0].dialect
        loaded = await visit.host.load(CHARTS)
        styles = await visit.host.read_skill_file(CHARTS, "references/styles.md")
        await visit.host.refresh(force=True)
        after = visit.host.view.skills[0].dialect
        at_load = [line for line in sent(visit) if line[0] != "skills/list"]

        assert (before, after) == (Dialect.PRIMITIVE, Dialect.EXEC)
        assert "# Charts 1" in loaded.text and "Blue." in styles.text
        assert at_load == [
            ("skills/get", "charts"),
            ("skills/read", "charts"),
            ("skills/read_reference", "styles.md"),
        ]


async def test_a_pinned_dialect_that_is_the_wrong_one_says_which_to_pin(tmp_path: Path) -> None:
    async with pinned("executing", Dialect.PRIMITIVE, tmp_path / "one") as visit:
        primitive = await refused(visit.host.load(CHARTS))
        asked = [method for method, _ in sent(visit)]
    async with pinned("primitive", Dialect.EXEC, tmp_path / "two") as visit:
        execution = await refused(visit.host.load(REFUNDS))

    assert "skills/read" not in asked
    assert '"dialect": "exec"' in primitive.fix
    assert '"dialect": "primitive"' in execution.fix


# Prompts


@every_wire
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("DUAL-12")
@pytest.mark.requirement("DUAL-04")
async def test_prompts_are_skills_when_the_server_declared_skills_and_nothing_else_works(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with pinned("prompt_only", None, tmp_path, transport=transport, era=era) as visit:
        listed = [
            (skill.reference, skill.dialect, skill.entry.is_dynamic) for skill in visit.host.view.skills
        ]
        before = {method for method, _ in sent(visit)}
        code = await visit.host.load(f"{LABEL}/start-code-mode")
        files = await files_of(visit.host, f"{LABEL}/start-code-mode")
        reference = await visit.host.read_skill_file(f"{LABEL}/start-code-mode", "references/a.md")
        missing = await refused(visit.host.read_skill_file(f"{LABEL}/start-code-mode", "references/b.md"))
        tools = await visit.host.request_allowed_tools(f"{LABEL}/start-code-mode")
        plain = await visit.host.load(f"{LABEL}/plain")
        two = await refused(visit.host.load(f"{LABEL}/two"))
        link = await refused(visit.host.load(f"{LABEL}/link"))

        names = ("link", "needy", "plain", "start-code-mode", "two")
        assert listed == [(f"{LABEL}/{name}", Dialect.PROMPT, True) for name in names]
        assert "prompts/list" in before and "prompts/get" not in before
        assert f"MCP server {LABEL}" in code.text and "no listing to verify it against" in code.text
        assert (
            "Use code." in code.text and "About a" not in code.text and "allowed-tools: Bash" not in code.text
        )
        assert files == ["references/a.md"] and "About a, 1." in reference.text
        assert tools == ()
        assert missing.refusal == "not-found"
        assert "See skill://elsewhere/SKILL.md" in plain.text
        assert (two.refusal, link.refusal) == ("invalid-answer", "invalid-answer")
        assert visit.host.view.hidden == ()
        assert {method for method, _ in sent(visit)} - before == {"prompts/get"}
        assert set(visit.user.occasions) == {Occasion.DYNAMIC}


@pytest.mark.requirement("DUAL-12")
async def test_the_prompts_of_an_ordinary_server_are_no_skills_unless_the_user_says_so(
    tmp_path: Path,
) -> None:
    async with visiting("prompt_only", tmp_path / "one", form="ordinary") as visit:
        assert (visit.references(), sent(visit)) == ([], [])
    async with pinned("prompt_only", Dialect.PROMPT, tmp_path / "two", form="ordinary") as visit:
        assert f"{LABEL}/plain" in visit.references()
        assert {method for method, _ in sent(visit)} == {"prompts/list"}


# Our own server


SHOP: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md("refunds", body="Read [the policy](references/policy.md).\n"),
    "refunds/references/policy.md": b"Refund within 30 days.\n",
    "acme/report/SKILL.md": skill_md("report", body="Report on acme.\n"),
    "acme/report/references/form.md": "A form.\n",
    "west/report/SKILL.md": skill_md("report", body="Report on the west.\n"),
}


def pin(server: ServerConfig, dialect: str) -> ServerConfig:
    return replace(server, skills=SkillSettings(dialect=Dialect(dialect)))


@asynccontextmanager
async def at_our_server(
    dialect: str, transport: str, tmp_path: Path, env: dict[str, str]
) -> AsyncGenerator[Host]:
    folder = written(tmp_path / "shop", SHOP)
    if transport == "http":
        with http_server(folder, "--dialect", dialect, "--no-watch", env=env) as server:
            there = ServerConfig(LABEL, HttpEndpoint(server.url), seconds=30)
            async with hosts.hosting(tmp_path, [pin(there, dialect)], user=User(), **ASK) as host:
                await host.refresh()
                yield host
        return
    there = over_stdio(folder, env, LABEL)
    assert isinstance(there.endpoint, StdioEndpoint)
    endpoint = replace(there.endpoint, args=(*there.endpoint.args, "--dialect", dialect))
    there = pin(replace(there, endpoint=endpoint), dialect)
    async with hosts.hosting(tmp_path, [there], user=User(), **ASK) as host:
        await host.refresh()
        yield host


@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("CONF-12")
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("dialect", ["primitive", "exec", "prompt"])
async def test_our_own_server_is_read_in_each_dialect_by_name(
    dialect: str, transport: str, tmp_path: Path, env: dict[str, str]
) -> None:
    async with at_our_server(dialect, transport, tmp_path, env) as host:
        listed = [(skill.reference, skill.dialect) for skill in host.view.skills]
        loaded = await host.load(f"{LABEL}/refunds")
        policy = await host.read_skill_file(f"{LABEL}/refunds", "references/policy.md")
        report = await host.load(f"{LABEL}/acme-report")
        form = await host.read_skill_file(f"{LABEL}/acme-report", "references/form.md")
        files = await files_of(host, f"{LABEL}/acme-report")

    names = ("acme-report", "refunds", "west-report")
    assert listed == [(f"{LABEL}/{name}", Dialect(dialect)) for name in names]
    assert "[the policy](references/policy.md)" in loaded.text
    assert "Refund within 30 days." in policy.text
    assert "Report on acme." in report.text and "A form." in form.text
    assert files == ["references/form.md"]
