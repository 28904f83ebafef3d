"""The register and the tests must agree."""

import requirements


def test_every_cited_requirement_is_an_entry_of_the_register() -> None:
    known = set(requirements.register())

    unknown = {name: tests for name, tests in requirements.citations().items() if name not in known}

    assert unknown == {}


def test_every_requirement_is_proven_is_decided_or_waits_for_a_named_reason() -> None:
    cited = requirements.citations()

    forgotten = [
        identifier
        for identifier in requirements.register()
        if identifier not in cited and not requirements.is_explained(identifier)
    ]

    assert forgotten == []


def test_only_entries_without_a_test_wait_and_only_entries_with_one_are_proven_in_part() -> None:
    cited = requirements.citations()

    assert [identifier for identifier in requirements.WAITS if identifier in cited] == []
    assert [identifier for identifier in requirements.PARTS if identifier not in cited] == []
    assert {*requirements.WAITS, *requirements.PARTS} <= {*requirements.register()}


def test_every_conflict_and_ambiguity_is_decided() -> None:
    decided = requirements.decisions()

    rulings = [name for name in requirements.register() if name.startswith(("CONF-", "OPEN-"))]
    assert sorted(decided) == sorted(rulings)
    assert all(decision.strip() for decision in decided.values())
    assert requirements.state_of("OPEN-03", {}, decided) == "decided: URI-10"


def test_the_document_shows_how_every_entry_stands() -> None:
    assert requirements.written_proof() == requirements.proof(), "run python tests/requirements.py --write"
