"""`read_skill_uri`: exactly the bytes of one file, and nothing else."""

import base64
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.client import Client, ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult

from skillwire.core.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidUriError,
    LimitError,
    NotFoundError,
    SourceError,
)
from skillwire.core.manifest import MAX_TOTAL_SIZE, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.host.calls.exchange import read_skill_uri
from skillwire.host.model.errors import InvalidAnswerError, PeerError
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always

both_generations = pytest.mark.parametrize("mode", MODES)

URI = "skill://acme/refunds/references/guide.md"


def result(*contents: Any, **fields: Any) -> Params:
    """Return what `resources/read` answers with in both generations."""
    return {
        "contents": list(contents),
        "resultType": "complete",
        "ttlMs": 60_000,
        "cacheScope": "public",
        **fields,
    }


def text(content: str, uri: str = URI) -> Params:
    return {"uri": uri, "mimeType": "text/markdown", "text": content}


def blob(content: bytes | str, uri: str = URI) -> Params:
    encoded = content if isinstance(content, str) else base64.b64encode(content).decode()
    return {"uri": uri, "mimeType": "image/png", "blob": encoded}


async def read(answers: Answers, mode: str = "auto", uri: SkillUri | str = URI, **options: Any) -> bytes:
    stranger = Stranger({"resources/read": answers})
    return await stranger.visited(mode, lambda client: read_skill_uri(client, uri, **options))


@both_generations
@pytest.mark.requirement("SDK-03")
@pytest.mark.requirement("READ-01")
async def test_a_file_is_read_with_one_plain_request(mode: str) -> None:
    stranger = Stranger({"resources/read": always(result(text("Grüße\r\n")))}, declares=False)

    content = await stranger.visited(mode, lambda client: read_skill_uri(client, URI))

    assert content == "Grüße\r\n".encode()
    assert stranger.requests == [("resources/read", {"uri": URI})]


@both_generations
@pytest.mark.parametrize("content", [b"", b"\x00", b"\xff\xfe", bytes(range(256)) * 3])
async def test_binary_content_arrives_byte_for_byte(mode: str, content: bytes) -> None:
    assert await read(always(result(blob(content))), mode) == content


@settings(deadline=None, max_examples=50)
@given(content=st.text(max_size=50), mode=st.sampled_from(MODES))
def test_text_arrives_as_its_utf_8_bytes(content: str, mode: str) -> None:
    expected = content.encode()

    async def run() -> None:
        read_back = await read(always(result(text(content))), mode)
        ManifestFile.of(URI, expected).verify(read_back)

    anyio.run(run)


@both_generations
async def test_the_item_may_spell_the_uri_otherwise(mode: str) -> None:
    asked = "skill://acme/refunds/Q&A%20notes.md"
    stranger = Stranger(
        {"resources/read": always(result(text("yes", "skill://acme/refunds/Q%26A%20notes.md")))}
    )

    assert await stranger.visited(mode, lambda client: read_skill_uri(client, asked)) == b"yes"
    assert stranger.requests == [("resources/read", {"uri": asked})]


@both_generations
async def test_a_skill_file_is_asked_for_as_its_publisher_spells_it(mode: str) -> None:
    spelled = "skill://acme/%72efunds/SKILL.md"
    stranger = Stranger({"resources/read": always(result(text("---", "skill://acme/refunds/SKILL.md")))})

    content = await stranger.visited(mode, lambda client: read_skill_uri(client, SkillUri.parse(spelled)))

    assert content == b"---"
    assert stranger.requests == [("resources/read", {"uri": spelled})]


@both_generations
@pytest.mark.parametrize(
    "contents",
    [
        [],
        [text("a", "skill://acme/refunds/references/other.md")],
        [text("a", "skill://acme/refunds/references")],
        [text("a", "")],
        [text("a", "skill://acme/refunds/references/../references/guide.md")],
        [text("a"), text("b")],
        [text("a"), blob(b"a")],
        [text("a"), text("b", "skill://acme/refunds/SKILL.md")],
    ],
    ids=["none", "another file", "its folder", "no uri", "a way around", "twice", "both forms", "one more"],
)
async def test_anything_but_one_item_for_the_uri_is_refused(mode: str, contents: list[Any]) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await read(always(result(*contents)), mode)

    assert caught.value.violates == "INT-10"


@both_generations
@pytest.mark.parametrize(
    "encoded",
    ["aGk", "aGk=\n", "aG k=", "aGk=aGk=", "=", "a===", "aGk*", "aGk–", "-_-_", "ä"],
)
async def test_content_that_is_not_strict_base64_is_refused(mode: str, encoded: str) -> None:
    with pytest.raises(InvalidAnswerError):
        await read(always(result(blob(encoded))), mode)


@both_generations
async def test_text_with_half_a_character_is_refused(mode: str) -> None:
    with pytest.raises(InvalidAnswerError):
        await read(always(result(text("\ud800"))), mode)


@both_generations
@pytest.mark.parametrize(
    "answer",
    [
        {"contents": 7, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"},
        {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"},
        result(None),
        result({"uri": URI}),
        result({"uri": 7, "text": "a"}),
        result({"uri": URI, "text": 7}),
        {},
    ],
    ids=["no list", "no contents", "null", "no content", "no uri", "no text", "nothing"],
)
async def test_a_result_of_another_shape_is_one_clear_error(mode: str, answer: Params) -> None:
    with pytest.raises(InvalidAnswerError, match="resources/read"):
        await read(always(answer), mode)


@pytest.mark.requirement("NEG-18")
@pytest.mark.parametrize("result_type", ["task", "Complete", ""])
async def test_a_result_of_another_type_is_no_file(result_type: str) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await read(always(result(text("a"), resultType=result_type)))

    assert caught.value.violates == "NEG-18"


ASKING: Params = {
    "resultType": "input_required",
    "inputRequests": {
        "sure": {
            "method": "elicitation/create",
            "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
        }
    },
}


@pytest.mark.requirement("NEG-18")
async def test_a_request_for_input_is_no_file_when_nobody_can_be_asked() -> None:
    with pytest.raises(PeerError):
        await read(always(ASKING))


@pytest.mark.requirement("NEG-18")
async def test_a_request_for_input_goes_to_the_client_and_then_the_file_comes() -> None:
    asked: list[str] = []

    async def agree(_context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    stranger = Stranger(
        {"resources/read": lambda params: result(text("a")) if "inputResponses" in params else ASKING}
    )
    content = await stranger.visited(
        "auto", lambda client: read_skill_uri(client, URI), elicitation_callback=agree
    )

    assert (content, asked) == (b"a", ["Sure?"])


@pytest.mark.requirement("NEG-18")
async def test_a_server_that_never_stops_asking_is_given_up() -> None:
    async def agree(_context: ClientRequestContext, _params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    stranger = Stranger({"resources/read": always(ASKING)})
    with pytest.raises(InvalidAnswerError) as caught:
        await stranger.visited("auto", lambda client: read_skill_uri(client, URI), elicitation_callback=agree)

    assert caught.value.violates == "NEG-18"


@both_generations
@pytest.mark.requirement("READ-09")
@pytest.mark.parametrize("code", [INVALID_PARAMS, -32002])
async def test_a_file_the_server_does_not_have_is_not_found(mode: str, code: int) -> None:
    def unknown(params: Params) -> Params:
        raise MCPError(code, "Resource not found\x1b[2J" * 1000, {"uri": params["uri"]})

    with pytest.raises(NotFoundError) as caught:
        await read(unknown, mode)

    message = str(caught.value)
    assert caught.value.uri == URI
    assert message.isascii() and message.isprintable() and len(message) < 300


@both_generations
@pytest.mark.parametrize("code", [INTERNAL_ERROR, -32601, -32001, 0])
async def test_any_other_error_of_the_server_names_the_method(mode: str, code: int) -> None:
    def failing(_params: Params) -> Params:
        raise MCPError(code, "out of order")

    with pytest.raises(SourceError, match="resources/read") as caught:
        await read(failing, mode)

    assert isinstance(caught.value, PeerError)
    assert caught.value.peer_code == code


@pytest.mark.requirement("LIM-06")
@both_generations
@pytest.mark.parametrize(
    ("item", "size"),
    [(text("abcd"), 4), (text("äö"), 4), (blob(b"abc"), 3), (blob(b"abcd"), 4), (blob(b"abcde"), 5)],
    ids=["text", "two bytes a letter", "no padding", "padding of two", "padding of one"],
)
async def test_a_file_may_be_as_large_as_allowed_and_not_a_byte_more(
    mode: str, item: Params, size: int
) -> None:
    assert len(await read(always(result(item)), mode, max_bytes=size)) == size

    with pytest.raises(LimitError):
        await read(always(result(item)), mode, max_bytes=size - 1)


async def test_content_that_is_too_large_is_not_even_decoded() -> None:
    """It is no base64 at all, and the error is still about its size."""
    with pytest.raises(LimitError):
        await read(always(result(blob("*" * 4000))), max_bytes=100)


async def test_a_file_of_sixteen_mebibytes_is_read() -> None:
    assert len(await read(always(result(blob(bytes(MAX_TOTAL_SIZE)))))) == MAX_TOTAL_SIZE


@both_generations
@pytest.mark.parametrize("uri", ["file:///etc/passwd", "skill://a/../b", "skill://a/b/", "guide.md", ""])
async def test_a_uri_no_file_may_have_is_not_sent(mode: str, uri: str) -> None:
    stranger = Stranger({"resources/read": always(result(text("a", uri)))})

    with pytest.raises(InvalidUriError):
        await stranger.visited(mode, lambda client: read_skill_uri(client, uri))

    assert stranger.requests == []


async def test_a_fresh_read_asks_the_server_although_the_client_keeps_an_answer() -> None:
    versions = iter(["first", "second", "third"])
    stranger = Stranger({"resources/read": lambda _params: result(text(next(versions)))})

    async with stranger.connected("auto") as client:
        read_one = await read_skill_uri(client, URI)
        kept = await read_skill_uri(client, URI)
        fresh = await read_skill_uri(client, URI, fresh=True)
        kept_again = await read_skill_uri(client, URI)

    assert (read_one, kept, fresh, kept_again) == (b"first", b"first", b"second", b"second")
    assert len(stranger.requests) == 2


@pytest.mark.parametrize("fresh", [False, True])
async def test_an_older_server_is_asked_every_time(fresh: bool) -> None:
    versions = iter(["first", "second"])
    stranger = Stranger({"resources/read": lambda _params: result(text(next(versions)))})

    async def twice(client: Client) -> list[bytes]:
        return [await read_skill_uri(client, URI, fresh=fresh) for _ in range(2)]

    assert await stranger.visited("legacy", twice) == [b"first", b"second"]


@both_generations
async def test_a_server_that_does_not_answer_is_given_up(mode: str) -> None:
    async def silent(_params: Params) -> Params:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(SourceError, match="too long"):
        await read(silent, mode, max_seconds=0.05)
