"""Approvals and content in any order: nothing unapproved, changed or unlisted ever reaches the model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from integration.hosting_machine import Approvals
from integration.hosting_shop import Shop

PROFILE = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def shop(portal: BlockingPortal) -> Iterator[Shop]:
    with portal.wrap_async_context_manager(Shop().running()) as shop:
        yield shop


def test_nothing_reaches_the_model_that_the_user_has_not_agreed_to_whatever_happens(
    portal: BlockingPortal, shop: Shop, tmp_path: Path
) -> None:
    Approvals.outcomes.clear()

    run_state_machine_as_test(lambda: Approvals(portal, shop, tmp_path), settings=PROFILE)

    print(Approvals.outcomes)
