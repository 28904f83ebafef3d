"""The register and the tests must agree."""

import requirements


def test_every_cited_requirement_is_an_entry_of_the_register() -> None:
    known = set(requirements.register())

    unknown = {name: tests for name, tests in requirements.citations().items() if name not in known}

    assert unknown == {}


def test_every_requirement_is_proven_or_waits_for_a_named_reason() -> None:
    cited = requirements.citations()

    forgotten = [
        identifier
        for identifier in requirements.register()
        if identifier not in cited and requirements.reason_to_wait(identifier) is None
    ]

    assert forgotten == []


def test_no_single_entry_both_waits_and_is_proven() -> None:
    cited = requirements.citations()

    both = [identifier for identifier in requirements.WAITS if identifier in cited]

    assert both == []


def test_the_document_shows_how_every_entry_stands() -> None:
    assert requirements.written_proof() == requirements.proof(), "run python tests/requirements.py --write"
