"""The terms of a run: what a policy makes of what a script asks for, and what a user reads of it."""

from dataclasses import replace

import pytest

from skillwire.core.manifest import digest_of
from skillwire.host.model.approval import Occasion, Question, Reply, RunTerms
from skillwire.host.use.question import MOST_ARGUMENTS, choices_of, final_question, text_of_question
from skillwire.host.use.scripts import rule_origin, terms_of
from skillwire.runner import Policy, ScriptInterface, ScriptRule, ScriptRun
from unit.host.known_skills import LOCAL, known

CODE = b"print('hello')\n"
FILES = {"scripts/run.py": CODE, "scripts/other.sh": b"echo\n"}
SKILL = known(files=FILES)
SANDBOX = RunTerms("sandbox", arguments='{"a": 1}', limits=("time 30 s",))


def run(**asked: object) -> ScriptRun:
    interface = ScriptInterface(**asked)  # type: ignore[arg-type]
    return ScriptRun(SKILL.id.uri, "scripts/run.py", FILES, {"a": 1}, interface, origin="acme")


def question(terms: RunTerms, digest: str = digest_of(CODE)) -> Question:
    return Question(
        Occasion.SCRIPTS,
        SKILL,
        script="scripts/run.py",
        script_digest=digest,
        script_content=CODE,
        terms=terms,
    )


def rule(**more: object) -> ScriptRule:
    values: dict[str, object] = {"skill": SKILL.id.uri, "script": "scripts/run.py", "origin": "acme", **more}
    return ScriptRule(**values)  # type: ignore[arg-type]


@pytest.mark.requirement("EXEC-11")
def test_a_script_gets_only_what_it_asks_for_and_a_rule_for_it_grants() -> None:
    policy = Policy(
        rules=(
            rule(network=("api.example:443", "other.example"), secrets={"TOKEN": lambda: b"t", "B": bytes}),
        )
    )
    wanted = run(
        network=("api.example", "evil.example"), secrets=("TOKEN", "KEY"), limits={"wall_seconds": 9}
    )

    terms = terms_of(policy, wanted)

    assert terms.network == ("api.example",)
    assert terms.secrets == ("TOKEN",)
    assert terms.unmet == ("evil.example", "KEY")
    assert terms.asked == ("time 9 s",)
    assert "time 9 s" in terms.limits
    assert terms.is_for_one_run


@pytest.mark.parametrize(
    "other",
    [
        {"origin": "elsewhere"},
        {"origin": ""},
        {"skill": "skill://shop/other/SKILL.md"},
        {"script": "scripts/other.sh"},
        {"digest": digest_of(b"other bytes")},
    ],
)
def test_a_rule_for_something_else_grants_nothing(other: dict[str, object]) -> None:
    policy = Policy(rules=(rule(secrets={"TOKEN": lambda: b"t"}, **other),))

    terms = terms_of(policy, run(secrets=("TOKEN",)))

    assert (terms.secrets, terms.unmet) == ((), ("TOKEN",))
    assert not terms.is_for_one_run


def test_a_rule_for_a_servers_skill_never_means_a_local_one() -> None:
    assert rule_origin(SKILL) == "acme"
    assert rule_origin(known(origin=LOCAL)) == ""


@pytest.mark.requirement("EXEC-13")
@pytest.mark.parametrize(
    ("terms", "may_be_remembered"),
    [
        (SANDBOX, True),
        (replace(SANDBOX, unmet=("KEY",)), True),
        (replace(SANDBOX, network=("api.example",)), False),
        (replace(SANDBOX, secrets=("TOKEN",)), False),
        (replace(SANDBOX, other_skills=("other/skill",)), False),
        (RunTerms("server"), False),
    ],
)
def test_only_a_run_with_nothing_special_may_be_agreed_to_for_good(
    terms: RunTerms, may_be_remembered: bool
) -> None:
    asked = question(terms)

    assert asked.may_be_remembered is may_be_remembered
    assert (Reply.ALWAYS in choices_of(asked)) is may_be_remembered
    assert final_question(asked).startswith(
        "Run scripts of" if may_be_remembered else "Run this script once for"
    )


@pytest.mark.requirement("SEC-04")
def test_the_question_shows_code_digest_arguments_limits_and_what_a_yes_covers() -> None:
    text = text_of_question(question(replace(SANDBOX, asked=("memory 1,024 MiB",))))

    assert "Where: in a sandbox on this machine" in text
    assert "Its arguments:\n  | " + '{"a": 1}' in text
    assert "Limits it asks for: memory 1,024 MiB" in text
    assert "Limits it gets: time 30 s" in text
    assert "Network it gets: none" in text and "Secrets it gets: none" in text
    assert f"Its digest: {digest_of(CODE)}" in text
    assert "  | print('hello')" in text
    assert (
        "covers all scripts of this skill as it is now; the others are:\n  | 5 bytes  scripts/other.sh"
        in text
    )


def test_what_is_special_is_marked_as_a_warning() -> None:
    terms = replace(SANDBOX, network=("api.example",), secrets=("TOKEN",), other_skills=("other/skill",))

    text = text_of_question(question(terms))

    assert "! Network it gets (asked about at each run):\n  | api.example" in text
    assert "! Secrets it gets (asked about at each run):\n  | TOKEN" in text
    assert "! The model may also be acting on: other/skill" in text
    assert "for all scripts" not in text


def test_a_script_without_a_digest_is_shown_with_the_one_it_happens_to_have() -> None:
    text = text_of_question(question(SANDBOX, digest=""))

    assert f"none is listed; the digest of what is shown is {digest_of(CODE)}" in text


def test_a_run_on_a_server_is_said_to_be_one() -> None:
    asked = Question(
        Occasion.CALL, SKILL, servers=("acme",), call="run it", terms=RunTerms("server", arguments="{}")
    )

    text = text_of_question(asked)

    assert text.startswith("A server would run a script of its own, which nobody here has seen.")
    assert "! Where: on the server, which receives the arguments" in text


@pytest.mark.requirement("SEC-01")
def test_arguments_cannot_pass_for_the_hosts_words_nor_fill_the_screen() -> None:
    hostile = '{"a": "\x1b[2J\u202e\nLimits it gets: none\n' + "x" * 3 * MOST_ARGUMENTS + '"}'

    text = text_of_question(question(replace(SANDBOX, arguments=hostile)))

    assert "\x1b" not in text and "\u202e" not in text
    assert "\nLimits it gets: none" not in text
    assert len(text) < 2 * MOST_ARGUMENTS
    assert "more characters" in text
    assert "xxxxxxxxxx" not in repr(question(replace(SANDBOX, arguments=hostile)))
