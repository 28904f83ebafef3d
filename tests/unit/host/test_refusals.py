"""Refusals: one vocabulary, complete, and the same everywhere."""

import re

import pytest

from requirements import register
from skillwire.core.errors import NotFoundError, SkillError
from skillwire.core.finding import Finding
from skillwire.core.refusals import REFUSALS
from skillwire.host.model.errors import AmbiguousReferenceError, InvalidAnswerError, Refusal


def every_error(kind: type[SkillError] = SkillError) -> list[type[SkillError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in every_error(child))]


def test_every_error_has_a_refusal_of_its_code() -> None:
    ours = [
        kind
        for kind in every_error()
        if kind.__module__.startswith(("skillwire.core.errors", "skillwire.host"))
    ]

    assert len(ours) > 40
    assert {kind.refusal for kind in ours} <= REFUSALS.keys()


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_every_refusal_has_a_sentence_a_requirement_and_a_remedy(code: str) -> None:
    kind = REFUSALS[code]

    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert kind.requirement in register()
    assert re.fullmatch(r"[A-Z].*\.", kind.sentence)
    assert kind.remedy
    assert not kind.remedy.endswith(".")


def test_an_exception_and_its_refusal_say_the_same() -> None:
    error = NotFoundError("nothing is there", uri="skill://x/SKILL.md")

    refusal = Refusal.of(error)

    assert refusal.to_json() == {
        "code": "not-found",
        "sentence": "The server has no such skill or file.",
        "subject": "skill://x/SKILL.md",
        "detail": "nothing is there",
        "requirement": "GET-02",
        "remedy": "check the URI, or refresh the listing",
    }


def test_the_rule_an_answer_breaks_is_named_exactly() -> None:
    error = InvalidAnswerError("another skill", violates="GET-06", fix="tell them")

    refusal = Refusal.of(error, "acme/refunds")

    assert (refusal.requirement, refusal.remedy, refusal.subject) == ("GET-06", "tell them", "acme/refunds")


def test_candidates_come_along_as_data() -> None:
    error = AmbiguousReferenceError("two", reference="a/x", candidates=["a/one/x", "a/two/x"])

    assert Refusal.of(error).to_json()["candidates"] == ["a/one/x", "a/two/x"]


def test_a_refused_entry_names_each_rule_it_breaks() -> None:
    findings = [Finding("resources-invalid", "no list"), Finding("uri-invalid", "bad", fix="mend it")]

    refusal = Refusal.of_findings(findings, "acme/skill://x/SKILL.md")

    assert refusal.code == "invalid-entry"
    assert refusal.detail == "no list [resources-invalid]; bad [uri-invalid]"
    assert refusal.requirement == "LIST-10"
    assert str(refusal).startswith("acme/skill://x/SKILL.md: The skill's entry violates the extension")
