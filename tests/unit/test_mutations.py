"""The table of mutations must fit the source and the register, or `scripts/mutate` would test nothing."""

from collections import Counter

import pytest

import mutate
import requirements

MUTATIONS = mutate.mutations()


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    repeated = [name for name, count in Counter(one.name for one in MUTATIONS).items() if count > 1]

    assert len(MUTATIONS) >= 60
    assert repeated == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_to_replace_is_there_once_and_the_result_is_other_python(mutation: mutate.Mutation) -> None:
    before = (mutate.SOURCE / "skillwire" / mutation.file).read_text("utf-8")

    assert mutate.mutated(mutation, mutate.SOURCE) != before


def test_each_breaks_entries_of_the_register_that_have_tests() -> None:
    known, cited = set(requirements.register()), requirements.citations()

    broken = {mutation.name: set(mutation.breaks) for mutation in MUTATIONS}
    assert {name: found - known for name, found in broken.items() if not found or found - known} == {}
    assert {name: found - cited.keys() for name, found in broken.items() if found - cited.keys()} == {}
    assert all(mutation.what.endswith(".") for mutation in MUTATIONS)


def test_tests_are_run_tier_by_tier_and_each_once() -> None:
    cited = {
        "A-01": ["tests/interop/test_a.py::test_x", "tests/unit/test_b.py::test_y"],
        "A-02": ["tests/unit/test_b.py::test_y", "tests/integration/test_c.py::test_z"],
    }
    mutation = mutate.Mutation("one", "core/uri.py", "a", "b", ("A-01", "A-02"), "It breaks.")

    assert mutate.tests_for(mutation, cited) == [
        ["tests/unit/test_b.py::test_y"],
        ["tests/integration/test_c.py::test_z"],
        ["tests/interop/test_a.py::test_x"],
    ]


def test_an_edit_that_does_not_fit_is_refused() -> None:
    twice = mutate.Mutation("twice", "core/uri.py", "import", "export", ("URI-10",), "It breaks.")

    with pytest.raises(ValueError, match=r"twice: .* has the old text"):
        mutate.mutated(twice, mutate.SOURCE)
