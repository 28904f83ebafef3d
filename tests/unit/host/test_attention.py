"""The user's settings for skills: the most exact counts, and none of them approves anything."""

from pathlib import Path

import pytest

from skillwire.errors import SkillError
from skillwire.host.approval.approvals import Question, Reply
from skillwire.host.approval.consent import Consent, PromptLimits
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.attention import Attention, Attentions, SkillSettings, Trust
from skillwire.host.state.audit import AuditLog
from unit.host.known_skills import LOCAL, known, server


def test_a_skill_nobody_set_anything_for_has_ordinary_attention() -> None:
    assert Attentions().of(known()) is Attention.NORMAL
    assert Attentions({"acme": SkillSettings(budget=100)}).of(known()) is Attention.NORMAL


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
    attention = Attentions(show={key: Attention(value) for key, value in show.items()})

    assert attention.of(known()).value == expected


def test_a_local_skill_is_meant_by_its_bare_name_and_by_the_word_for_all_local_ones() -> None:
    assert Attentions(show={"refunds": Attention.PIN}).of(known(origin=LOCAL)) is Attention.PIN
    assert Attentions(show={"local/*": Attention.OFF}).of(known(origin=LOCAL)) is Attention.OFF


def test_a_configuration_speaks_of_its_own_server_only_and_the_program_has_the_last_word() -> None:
    settings = {"acme": SkillSettings(show={"*": Attention.OFF, "refunds": Attention.PIN})}

    attention = Attentions(settings, {"acme/refunds": Attention.MANUAL})

    assert attention.of(known()) is Attention.MANUAL
    assert attention.of(known("other")) is Attention.OFF
    assert attention.of(known(origin=server("beta"))) is Attention.NORMAL
    assert attention.of(known(origin=LOCAL)) is Attention.NORMAL


@pytest.mark.requirement("HOST-05")
def test_what_is_off_is_loaded_by_nobody_and_what_is_manual_only_by_people() -> None:
    attention = Attentions(show={"acme/refunds": Attention.OFF, "acme/notes": Attention.MANUAL})

    refused = [
        (name, by_user, _code(attention, name, by_user=by_user))
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
    attention = Attentions({"acme": SkillSettings(trust=Trust.NEVER)})

    with pytest.raises(SkillError) as caught:
        attention.require_allowed(known(), by_user=True)

    assert (caught.value.refusal, attention.trust(known(origin=LOCAL))) == ("turned-off", Trust.ASK)


def test_the_model_knows_only_of_what_it_could_load() -> None:
    servers = {"never": SkillSettings(trust=Trust.NEVER), "only": SkillSettings(trust=Trust.APPROVED)}
    attention = Attentions(servers, {"acme/off": Attention.OFF, "acme/manual": Attention.MANUAL})

    assert attention.is_for_the_model(known()) and attention.is_for_the_model(known(origin=server("only")))
    assert not any(
        attention.is_for_the_model(skill)
        for skill in (known("off"), known("manual"), known(origin=server("never")))
    )


def test_budgets_are_those_that_were_set() -> None:
    settings = {"acme": SkillSettings(budget=500), "beta": SkillSettings()}

    assert Attentions(settings).budgets == {"acme": 500}


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
        attention=Attentions({"acme": SkillSettings(trust=Trust.APPROVED)}),
    )

    with pytest.raises(SkillError) as caught:
        await consent.require_load(known(), actor="user")
    await consent.require_load(known(origin=server("beta")))

    assert caught.value.refusal == "approval-required"
    assert [question.skill and question.skill.reference for question in asked] == ["beta/refunds"]


def _code(attention: Attentions, name: str, *, by_user: bool) -> str:
    try:
        attention.require_allowed(known(name), by_user=by_user)
    except SkillError as error:
        return error.refusal
    return ""
