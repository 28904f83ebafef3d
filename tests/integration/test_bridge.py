"""The bridge: skills for clients that know tools, prompts and resources only."""

import re
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from folders import skill_md, write_files
from integration.bridge_world import (
    Bridged,
    PageReader,
    Person,
    bridging,
    call,
    declare_urls_only,
    text_of,
)
from integration.hosting_serve import at, put, serving
from skillwire.bridge import consent
from skillwire.bridge import server as bridge_server
from skillwire.bridge.overview import CLIENTS
from skillwire.host import Grant
from skillwire.wire.core import write_cursor

REFUNDS = "billing/refunds"
SKILLS = {
    "refunds/SKILL.md": skill_md("refunds", body="# Refunds\n\nRead the policy.\n"),
    "refunds/references/policy.md": "Thirty days.\n",
    "refunds/assets/logo.png": b"\x89PNG\r\n\x1a\n\0",
    "letters/SKILL.md": skill_md("letters", body="Write letters.\n"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "skills", SKILLS)
    return tmp_path / "skills"


async def approve(bridged: Bridged, reference: str = REFUNDS) -> None:
    await bridged.host.approve(await bridged.host.find(reference), [Grant.LOAD])


@pytest.mark.requirement("APPR-10")
async def test_a_refused_load_names_the_command_and_the_next_call_works_after_it(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client() as client:
            refused = await call(client, "load_skill", skill=REFUNDS)
            before = await call(client, "read_skill_file", skill=REFUNDS, path="references/policy.md")
            await approve(bridged)
            loaded = await call(client, "load_skill", skill=REFUNDS)
            read = await call(client, "read_skill_file", skill=REFUNDS, path="references/policy.md")
            listed = await call(client, "list_skill_files", skill=REFUNDS)

    assert refused.is_error and text_of(refused).startswith("REFUSED: ")
    assert "`skillwire approve billing/refunds`" in text_of(refused)
    assert "approval-required" in text_of(refused) and "Read the policy" not in text_of(refused)
    assert before.is_error and "Thirty days" not in text_of(before)
    assert not loaded.is_error and "Read the policy." in text_of(loaded)
    assert "Thirty days." in text_of(read)
    assert "- references/policy.md (13 bytes)" in text_of(listed)


@pytest.mark.requirement("APPR-02")
async def test_after_a_change_a_load_is_refused_with_the_command_that_shows_it(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with serving(folder, env, watch=True) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client() as client:
            await approve(bridged)
            await call(client, "load_skill", skill=REFUNDS)
            put(folder / "refunds" / "references" / "policy.md", b"Ninety days.\n")
            before = (await bridged.host.find(REFUNDS)).entry.manifest
            await until_changed(bridged, before)
            refused = await call(client, "load_skill", skill=REFUNDS)
            read = await call(client, "read_skill_file", skill=REFUNDS, path="references/policy.md")

    assert refused.is_error and "has changed since the user approved it" in text_of(refused)
    assert "`skillwire diff billing/refunds`" in text_of(refused)
    assert read.is_error and "Ninety" not in text_of(read)


async def until_changed(bridged: Bridged, before: object) -> None:
    """Ask the server until it lists the skill with other files."""
    while (await bridged.host.find(REFUNDS)).entry.manifest == before:
        await anyio.sleep(0.05)
        await bridged.host.refresh(force=True)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.requirement("APPR-01")
async def test_a_client_that_can_ask_its_user_does_and_the_choice_is_what_counts(
    folder: Path, tmp_path: Path, env: dict[str, str], mode: str
) -> None:
    person = Person("always")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            async with bridged.client(person=person, mode=mode) as client:
                loaded = await call(client, "load_skill", skill=REFUNDS)
                again = await call(client, "load_skill", skill=REFUNDS)
            approvals = bridged.host.approvals

    assert "Read the policy." in text_of(loaded) and not again.is_error
    [question] = person.asked
    assert isinstance(question, types.ElicitRequestFormParams)
    lines = question.message.splitlines()
    assert re.search("\nDigest of all files:\n  sha256:[0-9a-f]{64}\n", question.message)
    assert "From: MCP server billing" in question.message and "references/policy.md" in question.message
    assert lines[-2] == "Load billing/refunds from MCP server billing?"
    assert question.requested_schema["properties"]["answer"]["enum"] == ["deny", "once", "always"]
    assert [approval.skill.uri for approval in approvals] == ["skill://refunds/SKILL.md"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("answer", ["decline", "cancel", None, "approve", ""])
@pytest.mark.requirement("APPR-10")
async def test_nothing_but_a_choice_approves_and_no_choice_is_remembered(
    folder: Path, tmp_path: Path, env: dict[str, str], mode: str, answer: str | None
) -> None:
    person = Person(answer, answer, "once")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            async with bridged.client(person=person, mode=mode) as client:
                refused = [await call(client, "load_skill", skill=REFUNDS) for _ in range(2)]
                loaded = await call(client, "load_skill", skill=REFUNDS)
            approvals = bridged.host.approvals

    assert all("`skillwire approve billing/refunds`" in text_of(each) for each in refused)
    assert all(each.is_error for each in refused)
    assert not loaded.is_error
    assert len(person.asked) == 3 and approvals == ()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.requirement("APPR-01")
async def test_a_client_that_only_opens_urls_gets_the_skill_once_a_person_has_answered_on_the_page(
    folder: Path, tmp_path: Path, env: dict[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_urls_only(monkeypatch)
    person = PageReader("always")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            async with bridged.client(person=person, mode=mode) as client:
                version = client.protocol_version
                loaded = await call(client, "load_skill", skill=REFUNDS)
                again = await call(client, "load_skill", skill=REFUNDS)
            used = await person.answer("deny")
            approvals = bridged.host.approvals

    assert (version == "2026-07-28") == (mode != "legacy")
    assert "Read the policy." in text_of(loaded) and not again.is_error
    assert len(person.urls) == 1 and "Load billing/refunds from MCP server billing?" in person.message
    assert person.urls[0] not in person.message and used == 404
    assert [approval.skill.uri for approval in approvals] == ["skill://refunds/SKILL.md"]


@pytest.mark.requirement("APPR-10")
async def test_agreeing_to_open_a_page_approves_nothing_and_a_late_answer_counts_once_and_for_that_alone(
    folder: Path, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_urls_only(monkeypatch)
    monkeypatch.setattr(consent, "RETRY_SECONDS", 0.05)
    person = PageReader(None)
    with serving(folder, env, watch=True) as server:
        async with (
            bridging(tmp_path, at(server)) as bridged,
            bridged.client(person=person, mode="2026-07-28") as client,
        ):
            refused = [await call(client, "load_skill", skill=REFUNDS) for _ in range(5)]
            asked = len(person.urls)
            taken = [await person.answer("always"), await person.answer("always")]
            other = await call(client, "load_skill", skill="billing/letters")
            loaded = await call(client, "load_skill", skill=REFUNDS)
            approvals = bridged.host.approvals
            await bridged.host.revoke(REFUNDS)
            revoked = await call(client, "load_skill", skill=REFUNDS)
            late_denial = await person.answer("deny", page=0)
            put(folder / "refunds" / "references" / "policy.md", b"Ninety days.\n")
            before = (await bridged.host.find(REFUNDS)).entry.manifest
            await until_changed(bridged, before)
            changed = await call(client, "load_skill", skill=REFUNDS)

    assert asked == 3 and {text_of(each) for each in refused} == {text_of(refused[0])}
    assert refused[0].is_error and "`skillwire approve billing/refunds`" in text_of(refused[0])
    assert taken == [200, 404] and late_denial == 200
    assert other.is_error and "Write letters" not in text_of(other)
    assert "Read the policy." in text_of(loaded) and len(approvals) == 1
    assert revoked.is_error and "Read the policy" not in text_of(revoked)
    assert changed.is_error and "Ninety" not in text_of(changed) and len(person.urls) == 5
    assert "denied" not in text_of(changed), "the answer was about other files"


@pytest.mark.parametrize("answer", ["decline", "cancel"])
@pytest.mark.requirement("APPR-10")
async def test_a_client_that_does_not_open_the_page_closes_it_and_that_is_not_remembered(
    folder: Path, tmp_path: Path, env: dict[str, str], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_urls_only(monkeypatch)
    person, later = Person(answer), PageReader("once")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            async with bridged.client(person=person, mode="2026-07-28") as client:
                refused = await call(client, "load_skill", skill=REFUNDS)
            [asked] = person.asked
            assert isinstance(asked, types.ElicitRequestURLParams)
            later.urls.append(asked.url)
            too_late = await later.answer("always")
            async with bridged.client(person=later, mode="2026-07-28") as client:
                loaded = await call(client, "load_skill", skill=REFUNDS)

    assert refused.is_error and "`skillwire approve billing/refunds`" in text_of(refused)
    assert too_late == 404 and not loaded.is_error


async def test_a_client_without_a_person_is_asked_three_times_and_then_only_told_the_command(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    person = Person("cancel")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client(person=person) as client:
            refused = [await call(client, "load_skill", skill=REFUNDS) for _ in range(30)]

    assert len(person.asked) == 3
    assert {text_of(each) for each in refused} == {text_of(refused[0])}


@pytest.mark.requirement("APPR-10")
async def test_claude_code_without_a_person_cancels_and_is_told_the_command(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """Played as it was observed: forms are cancelled at once, and texts are cut at 2,048 bytes."""
    person = Person("cancel")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            await told_of(bridged, "refunds")
            async with bridged.client("claude-code", person=person) as client:
                instructions = (client.instructions or "").encode()[:2048].decode()
                [tool] = [each for each in (await client.list_tools()).tools if each.name == "load_skill"]
                refused = await call(client, "load_skill", skill=REFUNDS)
                await approve(bridged)
                loaded = await call(client, "load_skill", skill=REFUNDS)

    assert REFUNDS in instructions and REFUNDS in (tool.description or "").encode()[:2048].decode()
    assert "`skillwire approve billing/refunds`" in text_of(refused) and len(person.asked) == 1
    assert "Read the policy." in text_of(loaded)


async def test_a_denial_holds_for_the_session(folder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    person = Person("deny")
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client(person=person) as client:
            refused = [await call(client, "load_skill", skill=REFUNDS) for _ in range(2)]

    assert len(person.asked) == 1
    assert all("approval-denied" in text_of(each) for each in refused)


@pytest.mark.parametrize("name", CLIENTS)
async def test_every_result_is_within_what_the_client_shows(
    tmp_path: Path, env: dict[str, str], name: str
) -> None:
    most = CLIENTS[name].result
    deep = "/".join(["a-rather-long-folder-name-of-a-skill"] * 6)
    files: dict[str, str | bytes] = {
        f"{deep}/long/SKILL.md": skill_md("long", body="Ünd so weiter, <b>&amp;\u200b.\n" * 8_000),
        f"{deep}/long/big.md": "x" * 300_000,
    }
    files |= {f"{deep}/long/references/{'very-' * 20}long-name-{number}.md": "x" for number in range(300)}
    write_files(tmp_path / "skills", files)
    reference = f"billing/{deep}/long"
    with serving(tmp_path / "skills", env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client(name) as client:
            [skill] = bridged.host.view.skills
            await approve(bridged, skill.reference)
            pages = [await call(client, "load_skill", skill=skill.reference)]
            count = int(re.findall(r"Page: 1 of (\d+);", text_of(pages[0]))[0])
            numbers = range(2, count + 1)
            pages += [await call(client, "load_skill", skill=skill.reference, page=each) for each in numbers]
            more = [
                await call(client, "read_skill_file", skill=skill.reference, path="big.md"),
                await call(client, "list_skill_files", skill=skill.reference),
                await call(client, "search_skills", query="long"),
                await call(client, "load_skill", skill=f"billing/{'x' * 9_000}"),
            ]

    texts = [text_of(each) for each in (*pages, *more)]
    assert reference.endswith("long") and max(len(text.encode()) for text in texts) <= most
    assert "".join(text.partition("-----\n")[2].rpartition("\n-----")[0] for text in texts[:count]).count(
        "Ünd"
    )


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_gets_the_list_within_what_it_shows_of_instructions_and_descriptions(
    folder: Path, tmp_path: Path, env: dict[str, str], name: str
) -> None:
    files = {f"{word}-it/SKILL.md": skill_md(f"{word}-it", body="x") for word in WORDS}
    write_files(folder, files)
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server), note="A note.") as bridged:
            await told_of(bridged, "refunds")
            async with bridged.client(name) as client:
                instructions = client.instructions or ""
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    limits = CLIENTS[name]
    assert len(instructions.encode()) <= limits.instructions
    assert "cannot see your other tools" in instructions and "A note." in instructions
    assert "\n- billing/letters" in instructions and "search_skills" in instructions
    assert list(tools) == ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    descriptions = {each: tools[each].description or "" for each in tools}
    assert all(len(text.encode()) <= limits.description for text in descriptions.values())
    assert "\n- billing/letters" in descriptions["load_skill"]
    found = set(re.findall("[a-z]+", descriptions["load_skill"] + descriptions["search_skills"]))
    assert found >= set(WORDS[:40]), "a search in tools finds the words of skills"
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())


WORDS = [f"{one}{two}{three}" for one in "bdfg" for two in "aeiou" for three in ("lm", "nk", "rt")]


async def told_of(bridged: Bridged, word: str) -> None:
    """Wait until clients are shown a list with this word."""
    while True:
        async with bridged.client() as client:
            if word in (client.instructions or ""):
                return
        await anyio.sleep(0.05)


async def test_a_prompt_gives_the_person_the_same_bytes_as_loading(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            await told_of(bridged, "refunds")
            async with bridged.client() as client:
                with pytest.raises(MCPError, match="skillwire approve billing/refunds"):
                    await client.get_prompt("billing--refunds")
                await approve(bridged)
                names = [prompt.name for prompt in (await client.list_prompts()).prompts]
                given = await client.get_prompt("billing--refunds")
                loaded = await call(client, "load_skill", skill=REFUNDS)
                with pytest.raises(MCPError, match="there is no prompt"):
                    await client.get_prompt("billing--nothing")

    [message] = given.messages
    assert isinstance(message.content, types.TextContent) and message.role == "user"
    assert message.content.text == text_of(loaded)
    assert sorted(names) == ["billing--letters", "billing--refunds"]


async def test_every_skill_is_a_prompt_in_pages_and_a_cursor_outlives_a_change_of_the_list(
    folder: Path, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "PROMPTS_PER_PAGE", 3)
    monkeypatch.setattr(bridge_server, "REFRESH_SECONDS", 0.2)
    paths = ["alike", "a.b/apply", "a-b/apply", "apply", "browse", "cook"]
    write_files(folder, {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2]) for path in paths})
    with serving(folder, env, watch=True) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            await approve(bridged)
        async with bridging(tmp_path, at(server)) as bridged:
            await told_of(bridged, "refunds")
            async with bridged.client() as client:
                first = await client.list_prompts()
                whole = [first, *await rest_of(client, first)]
                await approve(bridged, "billing/letters")
                write_files(folder, {f"{name}/SKILL.md": skill_md(name) for name in ("0th", "zoom")})
                await told_of(bridged, "zoom")
                later = await rest_of(client, first)
                for cursor in ("", "x", "é", first.next_cursor or "", write_cursor("skills/list", "0")):
                    if cursor != first.next_cursor:
                        with pytest.raises(MCPError) as caught:
                            await client.list_prompts(cursor=cursor)
                        assert caught.value.code == types.INVALID_PARAMS

    pages = [[prompt.name for prompt in page.prompts] for page in whole]
    assert pages[0][0] == "billing--refunds" and [len(page) for page in pages] == [3, 3, 2]
    assert len({name for page in pages for name in page}) == 8
    assert all(name.startswith("billing--a-b--apply-") for name in pages[0][1:]), "two names are alike"
    before = {name for page in pages[1:] for name in page}
    after = {prompt.name for page in later for prompt in page.prompts}
    assert after == before - {"billing--letters"} | {"billing--zoom"}


async def rest_of(client: Client, page: types.ListPromptsResult) -> list[types.ListPromptsResult]:
    """Return the pages of prompts after one."""
    pages: list[types.ListPromptsResult] = []
    while page.next_cursor is not None:
        page = await client.list_prompts(cursor=page.next_cursor)
        pages.append(page)
    return pages


async def test_the_files_of_loaded_skills_are_resources_and_nothing_else_is(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client() as client:
            before = await client.list_resources()
            await approve(bridged)
            loaded = await call(client, "load_skill", skill=REFUNDS)
            uris = [resource.uri for resource in (await client.list_resources()).resources]
            read = await client.read_resource(uris[-1])
            body = await client.read_resource(uris[0])
            for uri in (
                "skillwire://billing/letters/SKILL.md",
                "skillwire://billing/refunds/../letters/SKILL.md",
                "skill://refunds/SKILL.md",
                "file:///etc/passwd",
            ):
                with pytest.raises(MCPError, match="no file of a loaded skill"):
                    await client.read_resource(uri)
            with pytest.raises(MCPError, match="not a text file"):
                await client.read_resource("skillwire://billing/refunds/assets/logo.png")

    assert before.resources == []
    assert uris == [
        "skillwire://billing/refunds/SKILL.md",
        "skillwire://billing/refunds/assets/logo.png",
        "skillwire://billing/refunds/references/policy.md",
    ]
    [content] = read.contents
    assert isinstance(content, types.TextResourceContents) and "Thirty days." in content.text
    [content] = body.contents
    assert isinstance(content, types.TextResourceContents) and content.text == text_of(loaded)


async def test_clients_are_told_when_the_list_changes_and_when_files_become_resources(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    told: list[str] = []

    has_changed = anyio.Event()

    async def note(message: Any) -> None:
        told.append(message.method)
        if message.method == "notifications/prompts/list_changed":
            has_changed.set()

    with serving(folder, env, watch=True) as server:
        async with bridging(tmp_path, at(server)) as bridged:
            await told_of(bridged, "refunds")
            async with bridged.client(message_handler=note) as client:
                await approve(bridged)
                await call(client, "load_skill", skill=REFUNDS)
                write_files(folder, {"added/SKILL.md": skill_md("added")})
                await has_changed.wait()
                tools = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
                prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]

    assert told[0] == "notifications/resources/list_changed"
    assert "notifications/tools/list_changed" in told
    assert "- billing/added" in tools["load_skill"] and "billing--added" in prompts


async def test_a_model_cannot_call_what_is_not_offered(
    folder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with serving(folder, env) as server:
        async with bridging(tmp_path, at(server)) as bridged, bridged.client() as client:
            for tool in ("approve", "run_skill_script", "read_resource", "skillwire"):
                with pytest.raises(MCPError, match="there is no tool"):
                    await client.call_tool(tool, {"skill": REFUNDS})
            odd = await call(client, "load_skill", skill=REFUNDS, approve=True)

    assert odd.is_error and "no argument" in text_of(odd)
