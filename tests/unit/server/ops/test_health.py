"""What a supervisor gets to hear."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response

from skillwire.server.listener import ALIVE_PATH, READY_PATH
from skillwire.server.ops.metrics import METRICS_PATH, OPS_PATHS, Health, WorkerMetrics


def ask(
    path: str,
    *,
    method: str = "GET",
    hindrance: str = "",
    catalog: str = "",
    meter: WorkerMetrics | None = None,
) -> Response:
    meter = meter or WorkerMetrics()
    health = Health(meter, lambda: hindrance, lambda: meter.refresh({"skills": 3}), lambda: catalog)
    return health.respond(Request({"type": "http", "method": method, "path": path, "headers": []}))


def test_a_live_server_says_so_even_when_it_is_not_ready() -> None:
    response = ask(ALIVE_PATH, hindrance="starting")

    assert (response.status_code, response.body) == (200, b"ok\n")


def test_a_ready_server_says_so() -> None:
    response = ask(READY_PATH)

    assert (response.status_code, response.body) == (200, b"ok\n")


def test_a_ready_server_of_a_catalog_says_which_revision_it_serves() -> None:
    assert ask(READY_PATH, catalog="catalog revision 7").body == b"ok\ncatalog revision 7\n"
    assert ask(READY_PATH, catalog="catalog revision 7", hindrance="stopping").body == b"stopping\n"


@pytest.mark.parametrize("hindrance", ["starting", "stopping"])
def test_a_server_that_is_not_ready_says_why(hindrance: str) -> None:
    response = ask(READY_PATH, hindrance=hindrance)

    assert (response.status_code, response.body) == (503, f"{hindrance}\n".encode())


def test_metrics_are_fresh_when_they_are_asked_for() -> None:
    response = ask(METRICS_PATH)

    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name: family for family in text_string_to_metric_families(bytes(response.body).decode())}
    assert [sample.value for sample in found["skillwire_skills"].samples] == [3]


@pytest.mark.parametrize("path", sorted(OPS_PATHS))
def test_answers_are_kept_by_nobody_and_given_to_get_and_head_alone(path: str) -> None:
    assert ask(path).headers["cache-control"] == "no-store"
    assert ask(path, method="HEAD").status_code == 200
    refused = ask(path, method="POST")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_another_path_is_not_found() -> None:
    assert ask("/healthz/more").status_code == 404
