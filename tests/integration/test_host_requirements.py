"""What reviewers of the extension asked of hosts: journeys of a host with real servers, and its user."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from folders import skill_md, write_files, write_skill
from hostile.hosting import DEADLINE, LABEL, REFUNDS, REPORTS, User, config, hosting, refused, visiting
from hostile.running import hostile
from hostile.telling import WithMeta
from integration.hosting_serve import over_stdio
from integration.indexed_world import WIRES
from programs import script_command, skillwire_command, words_of
from serving import environment
from skillwire.core.dialects import Dialect
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.connect.connection import Connection
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Provenance, ProvenanceVerdict, SkillActivated, binding_of
from skillwire.host.model.endpoints import ServerConfig, SkillSettings, StdioEndpoint, Trust
from skillwire.host.model.errors import ConfigError
from skillwire.host.registry.local import LocalRoot
from skillwire.host.use.question import text_of_question

TEMPLATES = Path(__file__).with_name("template_server.py")
SKILL_METHODS = {"skills/list", "skills/get", "resources/read"}
RUN_WITHIN = 90

every_wire = pytest.mark.parametrize(("transport", "era"), WIRES)


class Scanner:
    """A provenance provider that knows verdicts by the name of a skill, and notes what it was asked."""

    def __init__(self, **verdicts: ProvenanceVerdict | Exception) -> None:
        self.verdicts = verdicts
        self.asked: list[Provenance] = []

    async def check(self, subject: Provenance) -> ProvenanceVerdict | None:
        self.asked.append(subject)
        found = self.verdicts.get(subject.uri.split("/")[-2])
        if isinstance(found, Exception):
            raise found
        return found


def references(host: Host) -> list[str]:
    return [skill.reference for skill in host.view.skills]


def codes(host: Host) -> list[str]:
    return [refusal.code for refusal in (*host.view.hidden, *host.view.notices)]


# Nested skills


@pytest.mark.requirement("ASK-02")
@every_wire
async def test_a_host_that_wants_no_nested_skills_says_what_it_skipped(
    transport: str, era: str, tmp_path: Path
) -> None:
    options = {"policy": HostPolicy(top_level_only=True)}
    async with visiting("nested", tmp_path, transport=transport, era=era, options=options) as visit:
        error = await refused(visit.host.load(f"{LABEL}/skill://acme/refunds/inner"))
        outer = await visit.host.load(REFUNDS)
        inside = await visit.host.read_skill_file(REFUNDS, "inner/notes.md")

        assert visit.references() == [REFUNDS, REPORTS]
        [skipped] = visit.host.view.hidden
        assert (skipped.code, skipped.subject) == (
            "nested-skill",
            f"{LABEL}/skill://acme/refunds/inner/SKILL.md",
        )
        assert error.refusal == "nested-skill"
        assert "Outer." in outer.text and "Inner notes." in inside.text
        assert f"{LABEL}/inner" not in visit.host.listing()


# What a server says besides


@pytest.mark.requirement("ASK-04")
@every_wire
async def test_the_meta_of_an_entry_is_kept_as_it_came(transport: str, era: str, tmp_path: Path) -> None:
    async with visiting("with_meta", tmp_path, transport=transport, era=era) as visit:
        [skill] = visit.host.view.skills
        found = await visit.host.find(f"{LABEL}/skill://acme/refunds/SKILL.md")
        loaded = await visit.host.load(REFUNDS)

    assert skill.entry.extra["_meta"] == found.entry.extra["_meta"] == WithMeta.meta
    assert "com.example" not in loaded.text


@pytest.mark.requirement("ASK-04")
async def test_the_meta_of_an_entry_survives_a_gateway(tmp_path: Path, env: dict[str, str]) -> None:
    async with hostile("with_meta") as peer:
        command, *args = peer.command
        entry = {"command": command, "args": args, "env": dict(peer.environment)}
        upstream = tmp_path / "mcp.json"
        upstream.write_text(json.dumps({"mcpServers": {"shop": entry}}))
        program, *words = words_of("--stdio", "--upstream", upstream)
        hub = ServerConfig("hub", StdioEndpoint(program, tuple(words), env), seconds=30)
        async with hosting(tmp_path, [hub], user=User(), limits=HostLimits(wait_seconds=DEADLINE)) as host:
            [skill] = host.view.skills
            meta = skill.entry.extra["_meta"]

    assert isinstance(meta, dict)
    assert {key: meta[key] for key in WithMeta.meta} == WithMeta.meta
    assert meta.keys() - WithMeta.meta.keys() == {"skillwire/upstream"}


# Provenance


@pytest.mark.requirement("ASK-05")
@every_wire
async def test_a_veto_refuses_a_load_before_anyone_is_asked_and_anything_is_fetched(
    transport: str, era: str, tmp_path: Path
) -> None:
    scanner = Scanner(refunds=ProvenanceVerdict("known to be bad", is_veto=True))
    options = {"policy": HostPolicy(provenance=scanner)}
    async with visiting("honest", tmp_path, transport=transport, era=era, options=options) as visit:
        [skill] = [skill for skill in visit.host.view.skills if skill.reference == REFUNDS]
        error = await refused(visit.host.load(REFUNDS))
        why = str(await visit.host.explain(REFUNDS))

        assert error.refusal == "vetoed"
        assert "known to be bad" in str(error) and "known to be bad" in why
        assert (visit.user.questions, visit.peer.reads()) == ([], [])
        assert visit.host.loaded == ()
        assert skill.entry.manifest is not None
        assert scanner.asked == [
            Provenance(skill.id.origin, skill.id.uri, skill.entry.manifest, binding_of(skill.entry.manifest))
        ]


@pytest.mark.requirement("ASK-05")
async def test_what_a_provider_says_stands_in_the_question_and_changes_nothing_else(tmp_path: Path) -> None:
    scanner = Scanner(
        refunds=ProvenanceVerdict("scanned,\n| From: local\x1b[2J"), reports=OSError("no network")
    )
    async with visiting("honest", tmp_path, options={"policy": HostPolicy(provenance=scanner)}) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.load(REPORTS)
        first, second = map(text_of_question, visit.user.questions)
        judgement = await visit.host.check_provenance(visit.host.loaded[0].skill)

    assert "The provenance check says:\n  | scanned, | From: local<U+001B>[2J" in first
    assert "! Provenance: no verdict: the check failed (OSError)" in second
    assert judgement is not None and judgement.words.startswith("scanned,")


@pytest.mark.requirement("ASK-05")
async def test_a_verdict_is_about_one_content_so_a_changed_skill_is_judged_anew(tmp_path: Path) -> None:
    scanner = Scanner()
    async with visiting("honest", tmp_path, options={"policy": HostPolicy(provenance=scanner)}) as visit:
        await visit.host.load(REFUNDS)
        visit.host.close(REFUNDS)
        await visit.host.load(REFUNDS)
        once = len(scanner.asked)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        scanner.verdicts["refunds"] = ProvenanceVerdict("not this one", is_veto=True)
        error = await refused(visit.host.load(REFUNDS))

    assert (once, len(scanner.asked)) == (1, 2)
    assert error.refusal == "vetoed"


@pytest.mark.requirement("ASK-05")
async def test_where_the_answer_is_no_anyway_no_provider_hears_of_it(tmp_path: Path) -> None:
    scanner = Scanner()
    async with (
        hostile("honest") as peer,
        hosting(tmp_path, [config(peer)], user=None, policy=HostPolicy(provenance=scanner)) as host,
    ):
        error = await refused(host.load(REFUNDS))

    assert error.refusal == "approval-required"
    assert scanner.asked == []


# Names


@pytest.mark.requirement("ASK-07")
async def test_a_server_whose_skill_is_called_nearly_like_anothers_is_noticed(tmp_path: Path) -> None:
    roots = [LocalRoot(tmp_path / "skills", "user")]
    write_skill(tmp_path / "skills" / "refund")
    async with hostile("honest") as one, hostile("neighbour", path="acme/refund5") as other:
        servers = [config(one), config(other, "mall")]
        async with hosting(tmp_path, servers, user=User(), roots=roots) as host:
            await host.refresh()
            found = {
                notice.subject: notice.candidates
                for notice in host.view.notices
                if notice.code == "similar-name"
            }

    assert found == {
        "refund, refund5": ("refund", "mall/refund5"),
        "refund, refunds": ("refund", REFUNDS),
        "refund5, refunds": ("mall/refund5", REFUNDS),
    }


# What a skill needs

NEEDS = (
    "metadata:\n  skillwire/dependencies: |\n    pandas (>=2.2): Reads the tables.\n    make\n"
    "  skillwire/scopes: |\n    tickets:read: Looks up tickets.\n"
)


def run(*args: str | Path, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = skillwire_command(*args)
    return subprocess.run(words, cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=RUN_WITHIN)


@pytest.mark.requirement("ASK-14")
async def test_what_a_skill_needs_is_shown_when_it_is_approved(root: Path, tmp_path: Path) -> None:
    write_files(root, {"tables/SKILL.md": skill_md("tables", extra=NEEDS)})
    user = User()
    async with hosting(tmp_path, [over_stdio(root, environment(tmp_path))], user=user) as host:
        await host.load("desk/tables")

    text = text_of_question(user.questions[0])
    assert (
        "It says it needs (nothing is installed):\n  | pandas (>=2.2): Reads the tables.\n  | make\n" in text
    )
    assert "! Scopes it says it needs (none is granted):\n  | tickets:read: Looks up tickets." in text


@pytest.mark.requirement("ASK-14")
def test_what_a_skill_needs_is_shown_before_it_is_loaded(root: Path, tmp_path: Path) -> None:
    write_files(root, {"tables/SKILL.md": skill_md("tables", extra=NEEDS)})
    env = environment(tmp_path)

    text = run("show", "tables", "--at", root, cwd=tmp_path, env=env)
    data = run("show", "tables", "--at", root, "--json", cwd=tmp_path, env=env)

    assert "It says it needs" in text.stdout and "pandas (>=2.2)" in text.stdout
    document = json.loads(data.stdout)
    assert document["needs"] == {
        "dependencies": [
            {"name": "pandas", "version": ">=2.2", "description": "Reads the tables."},
            {"name": "make"},
        ],
        "scopes": [{"name": "tickets:read", "description": "Looks up tickets."}],
    }
    assert document["missing"] is None


@pytest.mark.requirement("ASK-15")
@every_wire
async def test_tools_and_prompts_that_a_skill_needs_and_its_server_lacks_are_named(
    transport: str, era: str, tmp_path: Path
) -> None:
    options = {"policy": HostPolicy(dynamic="ask")}
    async with visiting("primitive", tmp_path, transport=transport, era=era, options=options) as visit:
        skill = await visit.host.find(REFUNDS)
        reports = await visit.host.find(REPORTS)
        found = await visit.host.missing_dependencies(skill)
        nothing = await visit.host.missing_dependencies(reports)
        why = await visit.host.explain(REFUNDS)

    assert found is not None and nothing is None
    assert found.code == "missing-dependency"
    assert found.detail == "its server does not list the tool 'refund', the prompt 'bye'"
    assert [step.refusal.code for step in why.steps if step.what == "needs" and step.refusal] == [
        "missing-dependency"
    ]
    assert why.can_be_loaded


@pytest.mark.requirement("ASK-15")
async def test_the_command_line_warns_of_what_is_missing_too(tmp_path: Path) -> None:
    async with hostile("primitive") as peer:
        command, *args = peer.command
        entry = {"command": command, "args": args, "env": dict(peer.environment)}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {LABEL: entry}}))
        words = ("show", REFUNDS, "--config", tmp_path / "mcp.json")
        env = environment(tmp_path)
        text = await anyio.to_thread.run_sync(lambda: run(*words, cwd=tmp_path, env=env))
        data = await anyio.to_thread.run_sync(lambda: run(*words, "--json", cwd=tmp_path, env=env))

    assert "missing-dependency" in text.stderr and "the tool 'refund'" in text.stderr
    assert json.loads(data.stdout)["missing"]["code"] == "missing-dependency"
    assert text.returncode == data.returncode == 0


# Whom a host asks


@pytest.mark.requirement("ASK-20")
@pytest.mark.requirement("HOST-13")
async def test_a_skill_is_asked_for_at_its_own_server_and_nowhere_else(tmp_path: Path) -> None:
    async with hostile("honest") as one, hostile("honest") as two, hostile("honest") as three:
        peers = {"one": one, "two": two, "three": three}
        servers = [config(peer, label) for label, peer in peers.items()]
        async with hosting(tmp_path, servers, user=User()) as host:
            await host.refresh()
            for peer in peers.values():
                peer.forget()
            await host.load("two/refunds")
            await host.read_skill_file("two/refunds", "references/policy.md")
            await refused(host.load("skill://acme/refunds/SKILL.md"))
            await refused(host.load("refunds"))
            await refused(host.load("two/skill://acme/nothing"))
            seen = {
                label: {asked.method for asked in peer.requests()} & SKILL_METHODS
                for label, peer in peers.items()
            }

    assert seen == {"one": set(), "two": {"resources/read", "skills/get"}, "three": set()}


# Consent as a hard rule, and without anyone there


@pytest.mark.requirement("ASK-26")
async def test_strict_and_unattended_hosts_load_what_was_approved_and_nothing_else(tmp_path: Path) -> None:
    lock = tmp_path / "skills.lock"
    async with hostile("honest") as peer:
        async with hosting(tmp_path / "desk", [config(peer)], user=User(), lock=lock) as host:
            await host.load(REFUNDS)
            await host.write_lock()
        strict = ServerConfig(
            LABEL, config(peer).endpoint, seconds=20, skills=SkillSettings(trust=Trust.APPROVED)
        )
        user = User()
        async with hosting(tmp_path / "desk", [strict], user=user) as host:
            attended = (await host.load(REFUNDS)).reference, (await refused(host.load(REPORTS))).refusal
        async with hosting(
            tmp_path / "ci", [config(peer)], user=None, lock=lock, policy=HostPolicy(frozen=True)
        ) as host:
            unattended = (await host.load(REFUNDS)).reference, (await refused(host.load(REPORTS))).refusal
        async with hosting(tmp_path / "bare", [config(peer)], user=None) as host:
            nobody = (await refused(host.load(REFUNDS))).refusal

    assert attended == (REFUNDS, "approval-required")
    assert unattended == (REFUNDS, "not-in-lock")
    assert nobody == "approval-required"
    assert user.questions == []


@pytest.mark.requirement("ASK-27")
@every_wire
async def test_a_model_knows_nothing_of_a_skill_before_the_user_has_approved_it(
    transport: str, era: str, tmp_path: Path
) -> None:
    options = {"policy": HostPolicy(visible="approved")}
    async with visiting("honest", tmp_path, transport=transport, era=era, options=options) as visit:
        host, tools = visit.host, {tool.name: tool for tool in visit.host.tools()}
        before = host.listing()
        unseen = [
            (await tools["load_skill"]({"skill": reference})).text
            for reference in (REFUNDS, f"{LABEL}/refudns", f"{LABEL}/skill://acme/refunds")
        ]
        searched = (await tools["search_skills"]({"query": "refunds"})).text
        people = await host.search("refunds", everything=True)
        asked = list(visit.user.questions)
        await host.approve(await host.find(REFUNDS))
        change = await host.listing_changes()
        loaded = await tools["load_skill"]({"skill": REFUNDS})
        by_hand = await host.load(REPORTS, actor="user")
        later = await host.listing_changes()
        await host.revoke(REFUNDS)
        gone = await host.listing_changes()
        known = visit.references()

    assert before == ""
    for text in unseen:
        refusal = json.loads(text)["refused"]
        assert refusal["code"] == "unknown-reference" and "candidates" not in refusal
        assert "similar" not in refusal["detail"] and "origin" not in refusal["detail"]
    assert "No skill matches" in searched
    assert [match.skill.reference for match in people.matches] == [REFUNDS]
    assert asked == []
    assert known == [REFUNDS, REPORTS]
    assert REFUNDS in change and REPORTS not in change
    assert not loaded.is_error
    assert by_hand.reference == REPORTS and visit.user.occasions == [Occasion.FIRST]
    assert REPORTS in later and REFUNDS in gone


@pytest.mark.requirement("ASK-27")
def test_a_misspelt_policy_is_refused_and_does_not_become_a_wider_one() -> None:
    with pytest.raises(ConfigError):
        Host(policy=HostPolicy(visible="aproved"))  # pyright: ignore[reportArgumentType] # what an untyped program may pass


@pytest.mark.requirement("ASK-27")
async def test_local_skills_are_the_users_own_and_visible_at_once(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "notes")
    roots = [LocalRoot(tmp_path / "skills", "user")]
    async with hosting(tmp_path, [], user=None, roots=roots, policy=HostPolicy(visible="approved")) as host:
        listing = host.listing()
        loaded = await host.load("notes")

    assert "notes" in listing and loaded.reference == "notes"


# Changes


@pytest.mark.requirement("ASK-33")
@pytest.mark.requirement("HOST-19")
@every_wire
@pytest.mark.parametrize(
    ("scenario", "dialect"),
    [("tells_of_its_index", Dialect.INDEX_JUNE), ("tells_of_its_prompts", Dialect.PROMPT)],
)
async def test_what_a_dialect_tells_of_changes_is_heard(
    scenario: str, dialect: Dialect, transport: str, era: str
) -> None:
    heard = anyio.Event()
    with anyio.fail_after(DEADLINE):
        async with hostile(scenario, transport=transport, era=era) as peer:
            async with Connection(config(peer), on_change=lambda: heard.set()) as connection:
                listing = await connection.list_skills()
                if era == "modern":
                    await subscribed(peer, dialect)
                elif dialect is Dialect.INDEX_JUNE:
                    await peer.seen("resources/subscribe")
                while not heard.is_set():
                    peer.announce(version=2)
                    with anyio.move_on_after(1):
                        await heard.wait()
                after = await connection.list_skills()

    assert listing.dialect is dialect
    if dialect is Dialect.INDEX_JUNE:
        assert [entry.name for entry in listing.entries] == ["refunds"]
        assert [entry.name for entry in after.entries] == ["refunds", "late"]


async def subscribed(peer: Any, dialect: Dialect) -> None:
    """Wait until a host listens for what is particular to a dialect."""
    wanted = "promptsListChanged" if dialect is Dialect.PROMPT else "resourceSubscriptions"

    def is_listening() -> bool:
        return any(wanted in asked.params["notifications"] for asked in peer.requests("subscriptions/listen"))

    while not is_listening():  # noqa: ASYNC110 - what another process has seen is looked up
        await anyio.sleep(0.05)


@pytest.mark.requirement("ASK-33")
@pytest.mark.requirement("HOST-19")
async def test_a_change_of_our_own_index_reaches_the_host(root: Path, env: dict[str, str]) -> None:
    write_skill(root / "tea")
    program, *words = words_of(root, "--stdio", "--dialect", "index-june")
    settings = SkillSettings(dialect=Dialect.INDEX_JUNE)
    server = ServerConfig("desk", StdioEndpoint(program, tuple(words), env), seconds=30, skills=settings)
    heard = anyio.Event()
    with anyio.fail_after(DEADLINE):
        async with Connection(server, on_change=lambda: heard.set()) as connection:
            before = await connection.list_skills()
            while not heard.is_set():
                write_skill(root / f"late-{anyio.current_time():.0f}".replace(".", "-"))
                with anyio.move_on_after(3):
                    await heard.wait()
            after = await connection.list_skills()

    assert before.dialect is after.dialect is Dialect.INDEX_JUNE
    assert len(after.entries) > len(before.entries) == 1


@pytest.mark.requirement("ASK-34")
async def test_what_vanished_is_told_by_the_view_the_chain_and_the_change(tmp_path: Path) -> None:
    async with visiting("neighbour", tmp_path) as visit:
        listing = visit.host.listing()
        visit.peer.say(path="acme/returns")
        view = await visit.host.refresh(force=True)
        change = await visit.host.listing_changes()
        why = await visit.host.explain(REFUNDS)
        visit.peer.say(path="acme/refunds")
        back = await visit.host.refresh(force=True)

    [notice] = view.notices
    assert notice.to_json() == {
        "code": "vanished",
        "sentence": "The skill was listed before, and its origin does not list it any more.",
        "subject": REFUNDS,
        "detail": "it was 'skill://acme/refunds/SKILL.md'",
        "requirement": "ASK-34",
        "remedy": "go on without it, or ask its maintainer",
    }
    assert REFUNDS in listing and REFUNDS in change
    assert "vanished" in [step.refusal.code for step in why.steps if step.refusal]
    assert [notice.subject for notice in back.notices] == [f"{LABEL}/returns"]


# The order of a list


@pytest.mark.requirement("ASK-35")
async def test_what_a_server_says_matters_more_comes_first_where_that_is_wanted(tmp_path: Path) -> None:
    orders: list[list[str]] = []
    async with hostile("executing") as peer:
        for by_priority in (False, True):
            async with hosting(
                tmp_path, [config(peer)], user=User(), policy=HostPolicy(by_priority=by_priority)
            ) as host:
                await host.refresh()
                text = host.listing()
                orders.append(sorted(references(host), key=text.index))

    plain, by_priority = orders
    assert plain == sorted(plain)
    assert by_priority[0] == f"{LABEL}/charts"
    assert sorted(by_priority) == plain


# Events


@pytest.mark.requirement("ASK-37")
@every_wire
async def test_a_load_is_an_event_here_and_no_message_to_anyone(
    transport: str, era: str, tmp_path: Path
) -> None:
    events: list[SkillActivated] = []
    options = {"on_event": events.append}
    async with visiting("honest", tmp_path, transport=transport, era=era, options=options) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.load(REFUNDS)
        await visit.host.child().load(REPORTS)
        windows = visit.host.loaded
        methods = {asked.method for asked in visit.peer.requests()}

    assert [event.reference for event in events] == [REFUNDS, REPORTS]
    manifest = windows[0].skill.entry.manifest
    assert manifest is not None
    assert events[0] == SkillActivated(
        windows[0].skill.id.origin,
        "skill://acme/refunds/SKILL.md",
        REFUNDS,
        binding_of(manifest),
        windows[0].opened_at,
    )
    assert not {method for method in methods if "activate" in method}
    assert {method for method in methods if method.startswith("skills/")} <= {"skills/list", "skills/get"}


@pytest.mark.requirement("ASK-37")
async def test_a_listener_that_fails_costs_nobody_a_skill(tmp_path: Path) -> None:
    def fails(event: SkillActivated) -> None:
        raise OSError("the disk is full")

    async with visiting("honest", tmp_path, options={"on_event": fails}) as visit:
        loaded = await visit.host.load(REFUNDS)

    assert loaded.reference == REFUNDS


# Templates


def template_server(env: Mapping[str, str]) -> ServerConfig:
    program, *words = script_command(TEMPLATES)
    endpoint = StdioEndpoint(program, tuple(words), dict(env))
    return ServerConfig("docs", endpoint, seconds=30, skills=SkillSettings(dialect=Dialect.INDEX_APRIL))


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("ASK-11")
async def test_a_person_completes_a_template_and_loads_what_it_expands_to(
    tmp_path: Path, env: dict[str, str]
) -> None:
    user = User()
    async with hosting(tmp_path, [template_server(env)], user=user, policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        [known] = host.view.templates
        values = await host.complete("docs", known.template.text, "product", "tea")
        uri = known.template.expand({"product": values[1]})
        loaded = await host.load(f"docs/{uri.text}", actor="user")
        wrong = [
            await refused(host.complete("nobody", known.template.text, "product", "")),
            await refused(host.complete("docs", "skill://other/{x}/SKILL.md", "x", "")),
            await refused(host.complete("docs", known.template.text, "price", "")),
        ]

    assert (known.origin.label, known.template.variables) == ("docs", ("product",))
    assert values == ("teapot", "teacup")
    assert "Sell it." in loaded.text
    assert user.occasions == [Occasion.DYNAMIC]
    assert {error.refusal for error in wrong} == {"unknown-reference"}


@pytest.mark.requirement("DRAFT-05")
def test_templates_are_listed_under_their_server_and_shown_by_what_they_expand_to(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program, *words = script_command(TEMPLATES)
    entry = {"command": program, "args": words, "env": env, "skills": {"dialect": "index-april"}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"docs": entry}}))

    text = run("list", "--config", path, cwd=tmp_path, env=env)
    data = run("list", "--config", path, "--json", cwd=tmp_path, env=env)
    shown = run("show", "docs/skill://docs/teacup", "--config", path, "--json", cwd=tmp_path, env=env)

    [line] = [line for line in text.stdout.splitlines() if "template" in line]
    assert "docs/skill://docs/{product}/SKILL.md" in line
    assert "\x1b" not in text.stdout
    assert json.loads(data.stdout)["templates"] == [
        {
            "label": "docs",
            "name": "",
            "template": "skill://docs/{product}/SKILL.md",
            "variables": ["product"],
            "description": "One skill for each \x1b[31mproduct.",
        }
    ]
    assert json.loads(shown.stdout)["name"] == "teacup"
