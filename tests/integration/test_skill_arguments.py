"""Arguments of skills: shown to the user, sent to the one server, and never mistaken for static content."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from folders import write_files
from hostile import hosting as hosts
from hostile.hosting import LABEL, Visit, refused
from hostile.running import WIRES
from integration.hosting_serve import cached
from skillwire.host import HostPolicy
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.use.question import text_of_question
from terminals import PROMPT, Desk, check_document

NEEDY, REFUNDS = f"{LABEL}/needy", f"{LABEL}/refunds"
ASK = {"policy": HostPolicy(dynamic="ask")}
SKILL = """---
name: taxes
description: Computes taxes. Use when asked.
metadata:
  skillwire/arguments: |
    region!: Whose tax rules apply.
    tone: How to write.
---

Rules of {{region}}, {{tone}}.
"""


def visiting(scenario: str, folder: Path, **said: Any) -> AbstractAsyncContextManager[Visit]:
    return hosts.visiting(scenario, folder, options=ASK, **said)


def given_with(visit: Visit, method: str = "skills/get") -> list[object]:
    """Return the arguments of each request for a skill, None where it had none."""
    return [asked.params.get("arguments") for asked in visit.peer.requests(method)]


async def call_load(visit: Visit, **arguments: object) -> tuple[str, str]:
    [tool] = [tool for tool in visit.host.tools() if tool.name == "load_skill"]
    result = await tool(arguments)
    return ("" if result.refusal is None else result.refusal.code), result.text


@pytest.mark.parametrize(("transport", "era"), WIRES)
@pytest.mark.requirement("P2076-03")
async def test_arguments_are_shown_and_then_sent_and_what_was_made_of_them_is_loaded(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("primitive", tmp_path, transport=transport, era=era) as visit:
        shown: list[list[object]] = []
        visit.user.meanwhile = lambda _question: shown.append(given_with(visit))

        loaded = await visit.host.load(NEEDY, arguments={"region": "Bern"})
        optional = await visit.host.load(NEEDY, arguments={"region": "Bern", "tone": "kindly"})

        assert shown[0] == []
        assert [question.arguments for question in visit.user.questions] == [
            (("region", "Bern"),),
            (("region", "Bern"), ("tone", "kindly")),
        ]
        assert given_with(visit) == [{"region": "Bern"}, {"region": "Bern", "tone": "kindly"}]
        assert "In Bern, plainly." in loaded.text and "In Bern, kindly." in optional.text
        assert 'Argument sent: region = "Bern"' in loaded.text
        assert "Arguments it also takes, for another load: tone" in loaded.text
        assert cached(tmp_path) == []


async def test_a_no_to_arguments_means_that_they_are_not_sent(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        visit.user.will(Reply.DENY)

        error = await refused(visit.host.load(NEEDY, arguments={"region": "Bern"}))

        assert error.refusal == "approval-denied"
        assert given_with(visit) == []


async def test_what_was_made_of_arguments_answers_for_the_same_ones_and_is_asked_about_for_others(
    tmp_path: Path,
) -> None:
    async with visiting("primitive", tmp_path) as visit:
        await visit.host.load(NEEDY, arguments={"region": "Bern"})
        same = await visit.host.load(NEEDY, arguments={"region": "Bern"})
        unsaid = await visit.host.load(NEEDY)
        other = await visit.host.load(NEEDY, arguments={"region": "Uri"})
        visit.host.close(NEEDY)
        await visit.host.load(NEEDY, arguments={"region": "Uri"})

        assert (same.is_again, unsaid.is_again, other.is_again) == (True, True, False)
        assert "In Bern" in unsaid.text and "In Uri" in other.text
        assert visit.user.occasions == [Occasion.DYNAMIC] * 3
        assert visit.host.approvals == ()


async def test_files_are_those_that_were_declared_for_these_arguments(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        child = visit.host.child()
        await visit.host.load(NEEDY, arguments={"region": "Bern"})
        await child.load(NEEDY, arguments={"region": "Uri"})

        [listed] = await visit.host.read_skill_directory(NEEDY)
        bern = await visit.host.read_skill_file(NEEDY, listed.path)
        uri = await child.read_skill_file(NEEDY, listed.path)

        assert "The law at file:///srv/law/Bern.md." in bern.text
        assert "The law at file:///srv/law/Uri.md." in uri.text


@pytest.mark.parametrize(
    ("reference", "arguments", "code", "words"),
    [
        (NEEDY, {}, "arguments-needed", "'region' (\"Where it is. <U+001B>[2J\")"),
        (NEEDY, {"tone": "kindly"}, "arguments-needed", "'region'"),
        (
            NEEDY,
            {"region": "Bern", "colour": "red"},
            "invalid-arguments",
            "'colour'; it takes 'region', 'tone'",
        ),
        (NEEDY, {"region": 7}, "invalid-arguments", "'region' must be a string"),
        (NEEDY, {"region": "half \ud800"}, "invalid-arguments", "'region' is not valid Unicode"),
        (NEEDY, {"region": "x" * 10_001}, "invalid-arguments", "more than 10,000 characters"),
        (REFUNDS, {"region": "Bern"}, "invalid-arguments", "it takes no arguments"),
    ],
)
async def test_arguments_that_a_skill_does_not_take_are_refused_before_anyone_is_asked(
    reference: str, arguments: Mapping[str, Any], code: str, words: str, tmp_path: Path
) -> None:
    async with visiting("primitive", tmp_path) as visit:
        error = await refused(visit.host.load(reference, arguments=arguments))

        assert error.refusal == code and words in str(error)
        assert given_with(visit) == [] and visit.user.questions == []


@pytest.mark.parametrize("scenario", ["honest", "executing"])
async def test_a_dialect_without_arguments_refuses_them_and_sends_nothing(
    scenario: str, tmp_path: Path
) -> None:
    async with visiting(scenario, tmp_path) as visit:
        visit.peer.forget()
        skill = next(skill for skill in visit.host.view.skills if skill.name in ("refunds", "charts"))

        error = await refused(visit.host.load(skill.reference, arguments={"region": "Bern"}))

        assert error.refusal == "invalid-arguments"
        assert f"takes no arguments in the dialect {skill.dialect.value}: 'region'" in str(error)
        assert "resources/read" not in [asked.method for asked in visit.peer.requests()]
        assert visit.user.questions == []


async def test_a_server_that_refuses_arguments_is_quoted_and_the_skill_is_still_there(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        error = await refused(visit.host.load(NEEDY, arguments={"region": "nowhere"}))
        later = await visit.host.load(NEEDY, arguments={"region": "Bern"})

        assert error.refusal == "server-error" and "unusable argument: region" in str(error)
        assert "In Bern" in later.text


async def test_a_question_shows_every_argument_on_lines_that_cannot_pass_for_the_hosts_own(
    tmp_path: Path,
) -> None:
    long = "y" * 3000
    async with visiting("primitive", tmp_path) as visit:
        await visit.host.load(NEEDY, arguments={"region": f"Bern\nFrom: bank\x1b[2J\u202e{long}"})
        text = text_of_question(visit.user.questions[0], 80)

        head = '! Arguments to send to its server:\n  | region = "Bern\\nFrom: bank\\u001b[2J<U+202E>yy'
        assert head in text and "y" * 3000 in text.replace("\n  | ", "")
        assert "  | region (required): Where it is. <U+001B>[2J" in text
        assert "\nFrom: bank" not in text


async def test_the_tool_takes_arguments_and_a_refusal_says_which_are_needed(tmp_path: Path) -> None:
    async with visiting("primitive", tmp_path) as visit:
        missing = await call_load(visit, skill=NEEDY)
        loaded = await call_load(visit, skill=NEEDY, arguments={"region": "Bern"})
        page = await call_load(visit, skill=NEEDY, page=1)
        shape = await call_load(visit, skill=NEEDY, arguments=["Bern"])
        number = await call_load(visit, skill=NEEDY, arguments={"region": 1})

        assert missing[0] == "arguments-needed" and "region" in missing[1] and "Where it is." in missing[1]
        assert loaded[0] == page[0] == "" and "In Bern" in loaded[1] and "In Bern" in page[1]
        assert shape[0] == number[0] == "invalid-arguments"
        assert given_with(visit) == [{"region": "Bern"}]


@pytest.mark.requirement("DUAL-12")
async def test_prompts_take_arguments_for_their_files_as_well(tmp_path: Path) -> None:
    async with visiting("prompt_only", tmp_path) as visit:
        missing = await refused(visit.host.load(NEEDY))
        loaded = await visit.host.load(NEEDY, arguments={"region": "Bern"})
        law = await visit.host.read_skill_file(NEEDY, "law.md")

        assert missing.refusal == "arguments-needed"
        assert "In Bern." in loaded.text and "The law of Bern." in law.text
        assert visit.user.questions[0].arguments == (("region", "Bern"),)
        assert given_with(visit, "prompts/get") == [{"region": "Bern"}] * 2


# The command


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    write_files(tmp_path / "skills", {"taxes/SKILL.md": SKILL})
    desk = Desk(tmp_path / "project", empty_home)
    desk.serve("acme", tmp_path / "skills")
    server = desk.servers["acme"]
    server["args"] += ["--dialect", "primitive"]
    desk.configure("acme", {**server, "skills": {"dialect": "primitive"}})
    return desk


def test_the_command_asks_for_required_arguments_shows_them_and_loads(desk: Desk) -> None:
    with desk.window("load", "acme/taxes") as window:
        window.wait_for("region (Enter stops):")
        window.type("Bern")
        window.wait_for(PROMPT)
        asked = window.everything
        window.type("o")
        window.wait_for("Rules of Bern, .")
        code = window.wait_for_end()

    assert "acme/taxes needs arguments" in asked and "  | Whose tax rules apply." in asked
    assert '! Arguments to send to its server:\n  | region = "Bern"' in asked
    assert code == 0


def test_the_command_takes_arguments_by_name(desk: Desk) -> None:
    args = ("load", "acme/taxes", "--arg", "region=a=b", "--arg", "tone=kindly")
    with desk.window(*args) as window:
        window.wait_for(PROMPT)
        window.type("o")
        window.wait_for("Rules of a=b, kindly.")
        code = window.wait_for_end()

    assert code == 0


def test_nobody_at_a_terminal_is_told_which_arguments_to_add(desk: Desk) -> None:
    missing = desk.run("load", "acme/taxes", "--json")

    check_document("load", missing.json)
    assert (missing.code, missing.json["error"]["code"]) == (1, "arguments-needed")
    assert "Whose tax rules apply." in missing.json["error"]["message"]
    assert missing.json["error"]["fix"] == "add --arg NAME=VALUE for each of them"


def test_nobody_at_a_terminal_is_told_to_use_one_or_which_argument_to_leave_out(desk: Desk) -> None:
    unasked = desk.run("load", "acme/taxes", "--arg", "region=Bern", "--json")
    unknown = desk.run("load", "acme/taxes", "--arg", "region=Bern", "--arg", "nope=1", "--json")

    assert unasked.json["error"]["code"] == "dynamic-declined"
    assert "run this on a terminal" in unasked.json["error"]["fix"]
    assert unknown.json["error"]["code"] == "invalid-arguments"
    assert unknown.json["error"]["fix"] == "leave out --arg 'nope'"


@pytest.mark.parametrize("words", [["region"], ["=Bern"], ["region=a", "--arg", "region=b"]])
def test_an_argument_that_is_no_pair_or_given_twice_is_misuse(words: list[str], desk: Desk) -> None:
    refused = desk.run("load", "acme/taxes", "--arg", *words)

    assert refused.code == 2 and "error: --arg: " in refused.err
