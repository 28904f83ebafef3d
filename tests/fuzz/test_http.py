"""The HTTP surface of a real server, asked for everything and in every way."""

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import schemathesis.checks
import schemathesis.openapi
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from fuzz.hostile import Hostile, hostile_requests
from fuzz.servers import HIDDEN, asking, guarding, serving, targets_of
from fuzz.sessions import Sessions
from fuzz.surface import DESCRIPTION, Answer, require_declared, require_sound
from integration.odd_requests import HttpRequest, Targets
from serving import HttpServer
from skillwire.wire.core import write_cursor

CORPUS = Path(__file__).with_name("corpus")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[HttpServer]:
    with serving(tmp_path_factory.mktemp("surface")) as server:
        yield server


@pytest.fixture(scope="module")
def targets(server: HttpServer) -> Targets:
    return targets_of(server)


def judge(hostile: Hostile, answer: Answer) -> None:
    if answer.status == 0:
        assert not hostile.is_whole, f"no answer to {hostile}"
        return
    path = hostile.request.path.partition("?")[0].partition("#")[0]
    require_sound(answer, path, secrets=[HIDDEN])
    require_declared(answer, hostile.request.method, path)


@asking(250)
@given(data=st.data())
def test_no_request_gets_anything_but_a_declared_answer(
    server: HttpServer, targets: Targets, data: st.DataObject
) -> None:
    hostile = data.draw(hostile_requests(targets))

    judge(hostile, hostile.send(server.port))


@pytest.mark.parametrize("saved", ["requests", "both_paths", "framing"])
def test_no_saved_body_gets_anything_but_a_declared_answer(server: HttpServer, saved: str) -> None:
    bodies = [path.read_bytes() for path in sorted((CORPUS / saved).iterdir())]
    usual = ((b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"accept", b"*/*"))

    for body in bodies:
        headers = (*usual, (b"content-length", b"%d" % len(body)))
        hostile = Hostile(HttpRequest(headers, (body,)))
        judge(hostile, hostile.send(server.port))

    assert bodies


HIDDEN_TARGETS = Targets(
    skills=("skill://hidden/vault/SKILL.md",),
    files=("skill://hidden/vault/SKILL.md", "skill://hidden/vault/references/a.md"),
    directories=("skill://hidden", "skill://hidden/vault", "skill://hidden/vault/references"),
    # The next thing in the listing would be what is hidden.
    cursors=tuple(
        write_cursor(name, "skill://b") for name in ("skills/list", "resources/list", "prompts/list")
    ),
    directory_cursors=(("skill://hidden", write_cursor("resources/directory/read", "skill://hidden/a")),),
)
"""What to ask for in order to see what is hidden."""


@pytest.mark.requirement("SEC-14")
def test_no_request_gets_a_word_of_what_its_sender_may_not_see(tmp_path: Path) -> None:
    with guarding(tmp_path) as (server, secret):
        good = f"Bearer {secret}".encode()
        assert targets_of(server, authorization=good.decode()).skills, "the token is good for something"

        @asking(120)
        @given(
            hostile_requests(HIDDEN_TARGETS),
            st.sampled_from([None, good, good, good[:-1], good.upper(), b"Bearer"]),
        )
        def ask(hostile: Hostile, credential: bytes | None) -> None:
            headers = [header for header in hostile.request.headers if header[0] != b"authorization"]
            if credential is not None:
                headers.append((b"authorization", credential))
            told = replace(hostile, request=replace(hostile.request, headers=tuple(headers)))
            answer = told.send(server.port)

            judge(told, answer)
            if credential != good and answer.status:
                assert answer.status >= 400 or hostile.request.path.startswith(("/healthz", "/readyz")), (
                    answer
                )

        ask()


def test_sessions_live_from_the_handshake_to_their_end_and_no_longer(server: HttpServer) -> None:
    Sessions.server = server

    run_state_machine_as_test(Sessions, settings=asking(15, steps=25))


# It is typed in part only.
_openapi: Any = schemathesis.openapi
_checks: Any = schemathesis.checks
described: Any = _openapi.from_path(DESCRIPTION)


@described.parametrize()
@asking(10)
def test_the_description_of_the_surface_is_true(server: HttpServer, case: Any) -> None:
    if '"subscriptions/listen"' in json.dumps(case.body, default=repr):
        return  # A stream without an end is right, and nothing to wait for.

    response = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=20)

    judged = [
        _checks.not_a_server_error,
        _checks.status_code_conformance,
        _checks.response_headers_conformance,
    ]
    if "content-type" in response.headers:
        judged += [_checks.content_type_conformance, _checks.response_schema_conformance]
    else:
        # The SDK refuses in a few words, and does not say that they are some.
        assert 400 <= response.status_code < 500 or not response.content
    case.validate_response(response, checks=[*judged, _checks.response_headers_conformance])
