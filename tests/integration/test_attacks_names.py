"""Servers that want to be taken for someone else. The numbers are those of the threat model."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from folders import write_skill
from hostile.catalog import DESCRIPTION
from hostile.hosting import (
    BODY_URI,
    LABEL,
    REFUNDS,
    REPORTS,
    User,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.integrity import MARK
from hostile.naming import OddNames, Twins
from hostile.running import WIRES, hostile
from skillwire.core.characters import visible
from skillwire.core.errors import SkillError
from skillwire.host.host import Host
from skillwire.host.model.errors import UnknownReferenceError
from skillwire.host.registry.local import LocalRoot

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])


@everywhere
@pytest.mark.requirement("NAME-04")
@pytest.mark.requirement("NAME-06")
async def test_a_bare_name_means_the_local_skill_whatever_servers_publish(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 28."""
    write_skill(tmp_path / "skills" / "refunds")
    roots = [LocalRoot(tmp_path / "skills", "user")]
    user = User()
    async with (
        hostile("honest", transport=transport, era=era) as peer,
        hosting(tmp_path, [config(peer)], user=user, roots=roots) as host,
    ):
        view = await host.refresh()
        local, remote = await host.load("refunds"), await host.load(REFUNDS)

        assert [skill.reference for skill in view.skills] == ["refunds", REFUNDS, REPORTS]
        assert not local.origin.is_remote and "Do it." in local.text and "MCP server" not in local.text
        assert remote.origin.is_remote and "Origin: MCP server shop" in remote.text
        assert "name-collision" in [refusal.code for refusal in view.notices]


@pytest.mark.requirement("NAME-04")
@pytest.mark.requirement("NAME-08")
async def test_a_bare_name_never_reaches_a_server_even_if_nothing_local_has_it(tmp_path: Path) -> None:
    """Attack 28."""
    async with visiting("honest", tmp_path) as visit:
        error = await refused(visit.host.load("refunds"))

        assert isinstance(error, UnknownReferenceError)
        assert (error.refusal, error.candidates) == ("unknown-reference", (REFUNDS,))
        assert visit.peer.reads() == []
        assert visit.peer.requests("skills/get") == []


@pytest.mark.requirement("NAME-07")
@pytest.mark.requirement("URI-08")
async def test_two_servers_with_one_uri_are_two_skills_in_whatever_order_they_are_configured(
    tmp_path: Path,
) -> None:
    """Attacks 29 and 31."""
    async with (
        hostile("neighbour", transport="http", era="legacy", body="From one.\n") as one,
        hostile("neighbour", transport="stdio", era="modern", body="From two.\n") as two,
    ):
        seen: list[list[str]] = []
        texts: list[list[str]] = []
        servers = [config(one, "one"), config(two, "two")]
        for order in (servers, servers[::-1]):
            async with hosting(tmp_path, order, user=User()) as host:
                view = await host.refresh()
                seen.append([skill.reference for skill in view.skills])
                loaded = [await host.load(reference) for reference in seen[-1]]
                texts.append([text.text.replace(text.boundary, "") for text in loaded])
        reads = (one.reads(), two.reads())

    assert seen == [["one/refunds", "two/refunds"]] * 2
    assert texts[0] == texts[1]
    assert "From one." in texts[0][0] and "From two." in texts[0][1]
    assert reads == ([BODY_URI], [BODY_URI])


@pytest.mark.requirement("NAME-01")
@pytest.mark.requirement("NAME-03")
@pytest.mark.requirement("NAME-08")
async def test_two_skills_of_one_name_on_one_server_are_both_known_by_their_paths(tmp_path: Path) -> None:
    """Attack 30."""
    async with visiting("same_name_twice", tmp_path, era="legacy") as visit:
        before = visit.references()
        error = await refused(visit.host.load(REFUNDS))
        billing = await visit.host.load(f"{LABEL}/acme/billing/refunds")
        visit.peer.say(reversed=True)
        await visit.host.refresh(force=True)

        assert before == [f"{LABEL}/acme/billing/refunds", f"{LABEL}/acme/support/refunds", REPORTS]
        assert visit.references() == before
        assert isinstance(error, UnknownReferenceError)
        assert (error.refusal, error.candidates) == ("ambiguous-reference", tuple(before[:2]))
        assert "Billing." in billing.text
        assert "renamed" in visit.codes()


@everywhere
@pytest.mark.requirement("NAME-05")
async def test_what_a_server_calls_itself_is_nobodys_name(transport: str, era: str, tmp_path: Path) -> None:
    """Attack 32."""
    async with visiting("impostor", tmp_path, transport=transport, era=era, claims="local") as visit:
        loaded = await visit.host.load(REFUNDS)
        head = loaded.text.partition(f"begin {loaded.boundary}")[0]

        assert visit.references() == [REFUNDS, REPORTS]
        assert loaded.origin.label == LABEL and loaded.origin.is_remote
        assert "Origin: MCP server shop" in head
        assert "Local skills" not in head and "local folder" not in head


@pytest.mark.requirement("NAME-06")
async def test_labels_that_look_alike_are_pointed_out(tmp_path: Path) -> None:
    """Attack 33."""
    async with (
        hostile("honest") as one,
        hostile("honest") as two,
        hosting(tmp_path, [config(one, "acme"), config(two, "\u0430cme")], user=User()) as host,
    ):
        view = await host.refresh()

        assert "confusable-label" in [refusal.code for refusal in view.notices]


@pytest.mark.requirement("LIST-05")
@pytest.mark.requirement("LIST-19")
@pytest.mark.requirement("URI-10")
@pytest.mark.requirement("URI-12")
async def test_entries_with_names_or_uris_that_break_the_rules_cost_only_themselves(tmp_path: Path) -> None:
    """Attacks 33, 34, 35, 36 and 37."""
    forms = [*(f"name:{form}" for form in OddNames.names), *(f"uri:{form}" for form in OddNames.uris)]
    wrong: dict[str, object] = {}
    async with visiting("odd_names", tmp_path, transport="http", form=forms[0]) as visit:
        for form in forms:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            if (visit.references(), visit.codes()) != ([REPORTS], ["invalid-entry"]):
                wrong[form] = (visit.references(), visit.codes())
            for refusal in visit.host.view.hidden:
                assert visible(str(refusal)) == str(refusal), form

        assert wrong == {}
        assert visit.peer.reads() == []
        assert visit.peer.requests("skills/get") == []


@pytest.mark.requirement("LIST-05")
async def test_a_path_that_is_not_the_name_is_refused_with_both_of_them_in_the_message(
    tmp_path: Path,
) -> None:
    """Attack 35."""
    async with visiting("odd_names", tmp_path, form="uri:path-is-not-name") as visit:
        [refusal] = visit.host.view.hidden

    assert "payouts" in refusal.detail and "refunds" in refusal.detail


@pytest.mark.requirement("URI-05")
@pytest.mark.requirement("URI-06")
async def test_a_uri_that_looks_like_an_address_is_only_a_name_to_its_own_server(tmp_path: Path) -> None:
    """Attack 36."""
    async with visiting("far_authority", tmp_path, era="modern", host="metadata.invalid") as visit:
        loaded = await visit.host.load(REFUNDS)

        assert visit.peer.reads() == ["http://metadata.invalid/refunds/SKILL.md"]
        assert "Read [the policy]" in loaded.text


@pytest.mark.requirement("CACHE-08")
async def test_files_that_are_one_on_some_systems_are_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    """Attacks 37 and 74."""
    outcome: dict[str, str] = {}
    async with visiting("twins", tmp_path, transport="http", form="case") as visit:
        for form in Twins.twins:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            outcome[form] = (await refused(visit.host.load(REFUNDS))).refusal

        assert outcome == dict.fromkeys(Twins.twins, "unsafe-paths")
        assert visit.peer.reads() == []
        assert visit.user.questions == []


@pytest.mark.requirement("CACHE-08")
@pytest.mark.requirement("URI-09")
async def test_names_a_server_chose_are_never_names_on_this_machines_disk(tmp_path: Path) -> None:
    """Attack 74."""
    async with visiting("twins", tmp_path, transport="http", era="legacy", form="device") as visit:
        for form in Twins.names:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            loaded = await visit.host.load(REFUNDS)
            for path in Twins.names[form]:
                content = await visit.host.read_skill_bytes(REFUNDS, f"skill://acme/refunds/{path}")
                assert content == f"{MARK} {path}".encode()
            assert len(loaded.files) == len(Twins.names[form])
            visit.host.close(REFUNDS)

        cached = paths_in(storage_in(tmp_path).cache)
        assert len(cached) > len(Twins.names)
        assert [
            path for path in cached if not re.fullmatch(r"[0-9a-f]{64}(/[0-9a-f]{2}(/[0-9a-f]{64})?)?", path)
        ] == [path for path in cached if path.endswith(".json")]


def paths_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


@pytest.mark.requirement("READ-06")
@pytest.mark.requirement("HOST-14")
async def test_every_file_is_read_under_the_path_it_is_listed_by(tmp_path: Path) -> None:
    """Attack 64."""
    names = {
        "%23%20one.md": b"one",
        "two%3F.md": b"two",
        "100%25.md": b"three",
        "a%20b.md": b"four",
        "C:/five.md": b"five",
        "six.md%20": b"six",
    }
    files = {name: data.decode() for name, data in names.items()}
    async with visiting("says", tmp_path, files=files) as visit:
        loaded = await visit.host.load(REFUNDS)
        outcome = {file.path: await read_or_refused(visit.host, file.path) for file in loaded.files}

        assert {path: data.decode() for path, data in outcome.items()} == {
            unquote(name): text for name, text in files.items()
        }


async def read_or_refused(host: Host, path: str) -> bytes:
    try:
        return await host.read_skill_bytes(REFUNDS, path)
    except SkillError as error:
        return error.refusal.encode()


@pytest.mark.requirement("HOST-12")
@pytest.mark.requirement("HOST-11")
@pytest.mark.requirement("URI-07")
async def test_a_skill_named_in_instructions_is_confirmed_and_approved_like_any_other(
    tmp_path: Path,
) -> None:
    """Attack 69."""
    async with visiting("named_in_instructions", tmp_path, era="legacy") as visit:
        reference = f"{LABEL}/skill://acme/refunds"
        known = {skill.reference: skill.is_listed for skill in visit.host.view.skills}
        asked = [request.uri for request in visit.peer.requests("skills/get")]
        loaded = await visit.host.load(reference)

        assert known == {REPORTS: True, reference: False}
        assert asked == [BODY_URI, "skill://acme/nothing/SKILL.md"]
        assert len(visit.user.questions) == 1
        assert visit.peer.reads() == [BODY_URI]
        assert MARK not in loaded.text


@pytest.mark.requirement("HOST-11")
@pytest.mark.requirement("LIST-02")
async def test_a_skill_a_server_does_not_list_is_loaded_by_its_uri_after_the_same_questions(
    tmp_path: Path,
) -> None:
    async with visiting("unlisted", tmp_path, transport="http", era="modern") as visit:
        nothing = visit.references()
        loaded = await visit.host.load(f"{LABEL}/{BODY_URI}")
        unknown = await refused(visit.host.load(f"{LABEL}/skill://acme/nothing/SKILL.md"))

        assert nothing == []
        assert DESCRIPTION not in loaded.text and "Read [the policy]" in loaded.text
        assert len(visit.user.questions) == 1
        assert unknown.refusal in ("not-found", "unknown-reference")


@everywhere
@pytest.mark.requirement("NEG-05")
@pytest.mark.requirement("NEG-09")
async def test_a_server_that_declares_no_skills_is_never_asked_about_any(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("undeclared", tmp_path, transport=transport, era=era) as visit:
        error = await refused(visit.host.load(f"{LABEL}/{BODY_URI}"))
        resource = await visit.host.read_resource(LABEL, BODY_URI)

        assert visit.references() == []
        assert error.refusal in ("not-declared", "unknown-reference")
        assert not [asked for asked in visit.peer.requests() if asked.method.startswith("skills/")]
        assert "no skill" in resource.text
