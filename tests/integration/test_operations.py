"""What an operator sees of a server that works: numbers, lines and spans; the SDK and processes are real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp.server.lowlevel import Server
from prometheus_client.parser import text_string_to_metric_families

from folders import write_skill
from serving import LEGACY, MODERN, Json, environment, legacy, modern
from skillwire.server import add_skills
from skillwire.server.http.observe import ObservedApp, note_method
from skillwire.server.ops.accesslog import AccessLog
from skillwire.server.ops.metrics import WorkerMetrics, exposition

WITHIN = 60
WRITER = """
import sys
from pathlib import Path
from skillwire.server.ops.metrics import METHOD_NUMBERS, WorkerMetrics

meter = WorkerMetrics.open(Path(sys.argv[1]), int(sys.argv[2]))
meter.streams = 7
meter.refresh({"skills": 3})
for line in sys.stdin:
    for _ in range(int(line)):
        meter.count(METHOD_NUMBERS["skills/list"], "ok", 0.001, 10)
    print("counted", flush=True)
"""
TRACED = """
import anyio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from skillwire.server.http.observe import is_tracing

assert not is_tracing()
provider = TracerProvider()
one_line = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=one_line)))
trace.set_tracer_provider(provider)
assert is_tracing()
sys.path.insert(0, sys.argv[1])
from test_operations import ask_with_spans
anyio.run(ask_with_spans, sys.argv[2])
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
URI = "skill://hello/SKILL.md"


def values(text: bytes) -> dict[tuple[str, ...], float]:
    """Return every sample: its name and the values of its labels, and its number."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@contextmanager
def writer(path: Path, slot: int, env: dict[str, str]) -> Generator["subprocess.Popen[str]"]:
    """Run a process that counts as often as it is told to."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WRITER, str(path), str(slot)]
    process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.wait(WITHIN)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def count(process: "subprocess.Popen[str]", times: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{times}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "counted\n"


def test_counts_of_all_workers_are_one_sum_and_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    env = environment(tmp_path)
    listed = ("skillwire_requests_total", "skills/list", "ok")
    with WorkerMetrics.create(3) as path:
        reader = WorkerMetrics.open(path, 2)
        with writer(path, 0, env) as first, writer(path, 1, env) as second:
            count(first, 1000)
            count(second, 234)
            together = values(exposition(reader))

            os.kill(first.pid, signal.SIGKILL)
            assert first.wait(WITHIN) == -signal.SIGKILL
            after = values(exposition(reader))
            count(second, 1)
            successor = WorkerMetrics.open(path, 0)
            replaced = values(exposition(reader))
        successor.count(0, "ok", 0.001, 10)
        at_last = values(exposition(reader))

    assert together[listed] == after[listed] == 1234
    assert together["skillwire_response_bytes_total",] == 12340
    assert [together["skillwire_streams", str(slot)] for slot in range(3)] == [7, 7, 0]
    assert replaced[listed] == 1235
    assert replaced["skillwire_streams", "0"] == 0
    assert at_last["skillwire_response_bytes_total",] == 12360
    assert at_last["skillwire_request_seconds_count", "list"] == 1235


@asynccontextmanager
async def observed(folder: Path, **options: Any) -> AsyncGenerator[tuple[httpx2.AsyncClient, WorkerMetrics]]:
    """Serve a folder as the SDK does, observed, to a client in this process."""
    server: Server[Any] = Server("demo")
    add_skills(server, folder, watch=False)
    server.middleware.append(note_method)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    meter = WorkerMetrics()
    transport = httpx2.ASGITransport(ObservedApp(app, meter, path="/mcp", **options))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield client, meter


async def post(client: httpx2.AsyncClient, message: Json, **headers: str) -> httpx2.Response:
    """Post a message with the headers its revision asks for."""
    every = {"accept": "application/json, text/event-stream"}
    if "_meta" in message["params"]:
        every |= {"mcp-protocol-version": MODERN, "mcp-method": message["method"]}
        if "uri" in message["params"]:
            every["mcp-name"] = message["params"]["uri"]
    else:
        every["mcp-protocol-version"] = LEGACY
    every |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/mcp", json=message, headers=every)


async def test_requests_of_both_generations_are_counted_by_method_and_outcome(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "hello")
    gone = "skill://gone/SKILL.md"

    async with observed(tmp_path / "skills") as (client, meter):
        for request in (modern, legacy):
            await post(client, request("skills/list"))
            await post(client, request("resources/read", uri=URI))
            await post(client, request("resources/read", uri=gone))
            await post(client, request("made/up"))
        await client.get("/nothing")

        found = values(exposition(meter))

    requests = {
        labels[1:]: number for labels, number in found.items() if labels[0].endswith("requests_total")
    }
    assert requests == {
        ("skills/list", "ok"): 2,
        ("resources/read", "ok"): 2,
        # The newer generation gives a wrong URI a status of its own, the older one does not.
        ("resources/read", "invalid"): 1,
        ("resources/read", "error"): 1,
        ("other", "invalid"): 1,
        ("other", "error"): 1,
        ("page", "invalid"): 1,
    }


async def ask_with_spans(folder: str) -> None:
    """Ask once with each generation, observed with spans and a log."""
    with AccessLog(lambda line: os.write(2, line), on_drop=lambda count: None).open() as log:
        async with observed(Path(folder), spans=True, log=log) as (client, _):
            above = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            await post(client, modern("resources/read", uri=URI), **above, x_request_id="one")
            await post(client, legacy("skills/list"), **above, x_request_id="two")
            await client.get("/nothing", headers={"x-request-id": "three"})


def test_each_request_has_a_span_around_that_of_the_sdk_and_the_log_names_its_trace(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "hello")
    here = Path(__file__).parent
    env = environment(tmp_path)
    env["PYTHONPATH"] += os.pathsep + str(here.parent)

    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(here), str(tmp_path / "skills")],
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=WITHIN,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    spans = [json.loads(line) for line in done.stdout.splitlines()]
    lines = {line["id"]: line for line in map(json.loads, done.stderr.splitlines())}
    by_id = {span["context"]["span_id"]: span for span in spans}
    above = {span["name"]: by_id.get(span["parent_id"]) for span in spans if span["name"] != "page"}
    assert [span["name"] for span in spans] == ["resources/read", "/mcp", "skills/list", "/mcp", "page"]
    for name in ("resources/read", "skills/list"):
        parent = above[name]
        assert parent is not None
        assert parent["parent_id"] == f"0x{PARENT}"
        assert parent["attributes"]["mcp.method.name"] == name
        assert parent["attributes"]["http.response.status_code"] == 200
    assert {span["context"]["trace_id"] for span in spans[:4]} == {f"0x{TRACE}"}
    assert (lines["one"]["trace_id"], lines["two"]["trace_id"]) == (TRACE, TRACE)
    assert f"0x{lines['three']['trace_id']}" == spans[4]["context"]["trace_id"]
    assert spans[4]["attributes"]["http.response.status_code"] == 404
