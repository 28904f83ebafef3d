"""Windows: when they open, what they hold, and who closes them."""

import pytest

from skillwire.core.errors import LimitError
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.host.model.approval import Activation, DynamicFiles, Windows
from unit.host.known_skills import document, known


def opened(name: str = "refunds") -> Activation:
    return Activation(known(name), document(name), DynamicFiles())


@pytest.mark.requirement("INT-06")
def test_a_window_holds_its_entry_until_it_is_closed() -> None:
    windows, window = Windows(), opened()

    windows.open(window)

    assert windows.find(window.skill.id) is window
    assert windows.by_reference("acme/refunds") is window
    assert windows.close(window.skill.id)
    assert not windows.close(window.skill.id)
    assert windows.all() == ()


def test_loading_again_replaces_the_window_of_the_same_skill() -> None:
    windows, first, second = Windows(), opened(), opened()

    windows.open(first)
    windows.open(second)

    assert windows.all() == (second,)


def test_a_sub_agent_starts_with_the_windows_of_its_parent_and_hands_its_own_back() -> None:
    parent = Windows()
    parent.open(opened("refunds"))
    child = Windows(parent.all())
    child.open(opened("returns"))

    assert [window.skill.reference for window in child.all()] == ["acme/refunds", "acme/returns"]
    assert len(parent) == 1
    child.close(parent.all()[0].skill.id)
    assert len(parent) == 1
    parent.adopt(child)
    assert [window.skill.reference for window in parent.all()] == ["acme/refunds", "acme/returns"]


@pytest.mark.requirement("LIM-04")
@pytest.mark.requirement("LIM-07")
def test_what_a_dynamic_skill_costs_is_counted_and_ends() -> None:
    files = DynamicFiles()
    files.add("skill://x/a", b"x" * (MAX_TOTAL_SIZE - 1))
    files.require_capacity("skill://x/b")
    files.add("skill://x/b", b"y")

    with pytest.raises(LimitError):
        files.require_capacity("skill://x/c")
    files.require_capacity("skill://x/a")
    assert files.remaining_bytes == 0

    many = DynamicFiles()
    for number in range(MAX_FILES):
        many.require_capacity(f"skill://x/{number}")
        many.add(f"skill://x/{number}", b"")
    with pytest.raises(LimitError):
        many.require_capacity("skill://x/one-more")
