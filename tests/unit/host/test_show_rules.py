"""The user's settings for skills: the most exact counts, and none of them approves anything."""

from pathlib import Path

import pytest

from skillwire.core.errors import SkillError
from skillwire.host.approval.consent import Consent, PromptLimits
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model.approval import Question, Reply
from skillwire.host.model.endpoints import ShowRule, ShowRules, SkillSettings, Trust
from skillwire.host.state.audit import AuditLog
from unit.host.known_skills import LOCAL, known, server


def test_a_skill_nobody_set_anything_for_is_shown_normally() -> None:
    assert ShowRules().of(known()) is ShowRule.NORMAL
    assert ShowRules({"acme": SkillSettings(budget=100)}).of(known()) is ShowRule.NORMAL


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        ({"*": "pin"}, "pin"),
        ({"*": "pin", "acme/*": "manual"}, "manual"),
        ({"acme/*": "manual", "acme/refunds": "off"}, "off"),
        ({"other/*": "off", "refunds": "off", "local/*": "off"}, "normal"),
    ],
)
def test_the_most_exact_setting_counts(show: dict[str, str], expected: str) -> None:
    show_rules = ShowRules(show={key: ShowRule(value) for key, value in show.items()})

    assert show_rules.of(known()).value == expected


def test_a_local_skill_is_meant_by_its_bare_name_and_by_the_word_for_all_local_ones() -> None:
    assert ShowRules(show={"refunds": ShowRule.PIN}).of(known(origin=LOCAL)) is ShowRule.PIN
    assert ShowRules(show={"local/*": ShowRule.OFF}).of(known(origin=LOCAL)) is ShowRule.OFF


def test_a_configuration_speaks_of_its_own_server_only_and_the_program_has_the_last_word() -> None:
    settings = {"acme": SkillSettings(show={"*": ShowRule.OFF, "refunds": ShowRule.PIN})}

    show_rules = ShowRules(settings, {"acme/refunds": ShowRule.MANUAL})

    assert show_rules.of(known()) is ShowRule.MANUAL
    assert show_rules.of(known("other")) is ShowRule.OFF
    assert show_rules.of(known(origin=server("beta"))) is ShowRule.NORMAL
    assert show_rules.of(known(origin=LOCAL)) is ShowRule.NORMAL


@pytest.mark.requirement("HOST-05")
def test_what_is_off_is_loaded_by_nobody_and_what_is_manual_only_by_people() -> None:
    show_rules = ShowRules(show={"acme/refunds": ShowRule.OFF, "acme/notes": ShowRule.MANUAL})

    refused = [
        (name, by_user, _code(show_rules, name, by_user=by_user))
        for name in ("refunds", "notes", "free")
        for by_user in (False, True)
    ]

    assert refused == [
        ("refunds", False, "turned-off"),
        ("refunds", True, "turned-off"),
        ("notes", False, "manual-only"),
        ("notes", True, ""),
        ("free", False, ""),
        ("free", True, ""),
    ]


def test_nothing_is_loaded_from_a_server_that_is_never_trusted_and_local_skills_are_not_touched_by_it() -> (
    None
):
    show_rules = ShowRules({"acme": SkillSettings(trust=Trust.NEVER)})

    with pytest.raises(SkillError) as caught:
        show_rules.require_allowed(known(), by_user=True)

    assert (caught.value.refusal, show_rules.trust(known(origin=LOCAL))) == ("turned-off", Trust.ASK)


def test_the_model_knows_only_of_what_it_could_load() -> None:
    servers = {"never": SkillSettings(trust=Trust.NEVER), "only": SkillSettings(trust=Trust.APPROVED)}
    show_rules = ShowRules(servers, {"acme/off": ShowRule.OFF, "acme/manual": ShowRule.MANUAL})

    assert show_rules.may_model_load(known()) and show_rules.may_model_load(known(origin=server("only")))
    assert not any(
        show_rules.may_model_load(skill)
        for skill in (known("off"), known("manual"), known(origin=server("never")))
    )


def test_budgets_are_those_that_were_set() -> None:
    settings = {"acme": SkillSettings(budget=500), "beta": SkillSettings()}

    assert ShowRules(settings).budgets == {"acme": 500}


@pytest.mark.requirement("APPR-10")
async def test_where_only_the_approved_counts_nobody_is_asked(tmp_path: Path) -> None:
    asked: list[Question] = []

    async def ask(question: Question) -> Reply:
        asked.append(question)
        return Reply.ALWAYS

    consent = Consent(
        ApprovalStore(tmp_path / "state"),
        ProjectLock(),
        AuditLog(tmp_path / "audit.jsonl"),
        ask=ask,
        dynamic="decline",
        granted_by="",
        limits=PromptLimits(),
        show_rules=ShowRules({"acme": SkillSettings(trust=Trust.APPROVED)}),
    )

    with pytest.raises(SkillError) as caught:
        await consent.require_load(known(), actor="user")
    await consent.require_load(known(origin=server("beta")))

    assert caught.value.refusal == "approval-required"
    assert [question.skill and question.skill.reference for question in asked] == ["beta/refunds"]


def _code(show_rules: ShowRules, name: str, *, by_user: bool) -> str:
    try:
        show_rules.require_allowed(known(name), by_user=by_user)
    except SkillError as error:
        return error.refusal
    return ""
