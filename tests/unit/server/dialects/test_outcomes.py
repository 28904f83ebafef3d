"""What a run becomes on the wire, from what the runner says of it."""

from typing import Any

import orjson
import pytest

from shown import require_inert
from skillwire.runner import Ending, LimitHit, Limits, Outcome, OutputFile, SkippedOutput, Usage
from skillwire.server.outputs import (
    MAX_EMBEDDED,
    MAX_NAME,
    MAX_TAIL,
    RUN,
    Caller,
    OutputQuota,
    OutputStore,
    limit_error,
    result_of,
)

ME: Caller = ("me",)
KIB = 1024


def exited(code: int = 0, **more: Any) -> Outcome:
    return Outcome("run-1", Ending.EXITED, exit_code=code, **more)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.requirement("EXEC-05")
def test_a_run_that_said_something_is_a_text_and_an_account() -> None:
    usage = Usage(wall_seconds=0.5, cpu_seconds=0.25, memory_bytes=1000, processes=1, stdout_bytes=3)

    result = result_of(exited(stdout="tea", stderr="hm", usage=usage), OutputStore(), ME)

    assert result["content"] == [text("tea")]
    assert result["isError"] is False
    assert "structuredContent" not in result
    account = result["_meta"][RUN]
    assert (account["runId"], account["ending"], account["exitCode"]) == ("run-1", "exited", 0)
    assert account["usage"]["memory_bytes"] == 1000
    assert account["limits"]["wall_seconds"] == Limits().wall_seconds
    assert "outputTtlMs" not in account


def test_a_run_that_said_nothing_has_no_content() -> None:
    assert result_of(exited(), OutputStore(), ME)["content"] == []


@pytest.mark.requirement("EXEC-16")
def test_a_failed_run_tells_output_verdict_and_the_end_of_standard_error() -> None:
    outcome = exited(3, stdout="half", stderr="x" * MAX_TAIL + "end")

    result = result_of(outcome, OutputStore(), ME)

    assert result["isError"] is True
    assert result["content"][0] == text("half")
    verdict, _, tail = result["content"][1]["text"].partition("\n")
    assert verdict == "exit status 3"
    assert tail == "…" + "x" * (MAX_TAIL - 3) + "end"


@pytest.mark.requirement("EXEC-16")
def test_a_run_that_a_signal_ended_says_which() -> None:
    result = result_of(Outcome("r", Ending.SIGNALLED, signal=11), OutputStore(), ME)

    assert result["content"] == [text("ended by SIGSEGV")]
    assert (result["isError"], result["_meta"][RUN]["signal"]) == (True, 11)


@pytest.mark.requirement("EXEC-05")
def test_output_that_looks_like_content_stays_a_text() -> None:
    pretended = orjson.dumps({"content": [{"type": "image"}], "isError": False, "_meta": {}}).decode()

    result = result_of(exited(stdout=pretended, structured=orjson.loads(pretended)), OutputStore(), ME)

    assert result["content"] == [text(pretended)]
    assert result["structuredContent"] == orjson.loads(pretended)
    assert list(result["_meta"]) == [RUN]


@pytest.mark.requirement("EXEC-17")
def test_small_files_are_embedded_and_large_ones_linked() -> None:
    outcome = exited(
        files=(
            OutputFile("notes.md", "Grün".encode()),
            OutputFile("dot.png", b"\x89PNG\xff"),
            OutputFile("exact.bin", b"\xff" * MAX_EMBEDDED),
            OutputFile("large.csv", b"a" * (MAX_EMBEDDED + 1)),
        )
    )
    store = OutputStore()

    result = result_of(outcome, store, ME)

    remark, notes, dot, exact, large = result["content"]
    assert remark == text("Files can be read for 15 minutes.")
    assert result["_meta"][RUN]["outputTtlMs"] == 900_000
    assert (notes["type"], notes["resource"]["text"], notes["resource"]["mimeType"]) == (
        "resource",
        "Grün",
        "text/markdown",
    )
    assert (dot["resource"]["blob"], dot["resource"]["mimeType"]) == ("iVBOR/8=", "image/png")
    assert exact["type"] == "resource"
    assert [item["resource"]["name"] for item in (notes, dot, exact)] == ["notes.md", "dot.png", "exact.bin"]
    assert {key: large[key] for key in ("type", "name", "mimeType", "size")} == {
        "type": "resource_link",
        "name": "large.csv",
        "mimeType": "text/csv",
        "size": MAX_EMBEDDED + 1,
    }
    uris = [item["resource"]["uri"] for item in (notes, dot, exact)] + [large["uri"]]
    kept = [store.read(uri, ME) for uri in uris]
    assert [file and file.content for file in kept] == [file.content for file in outcome.files]


@pytest.mark.requirement("EXEC-05", "EXEC-17")
def test_nothing_is_said_about_files_that_are_all_in_the_result_and_their_names_are_safe_to_show() -> None:
    result = result_of(exited(files=(OutputFile("a\u202eb.txt", b"x"),)), OutputStore(), ME)

    [item] = result["content"]
    assert item["type"] == "resource"
    assert "\u202e" not in item["resource"]["name"]


@pytest.mark.requirement("EXEC-17")
def test_a_result_stays_below_what_clients_take_at_once() -> None:
    files = tuple(OutputFile(f"{n}.bin", b"\xff" * (200 * KIB)) for n in range(64))
    long = '"\n' * (500 * KIB)

    for outcome in (
        exited(files=files),
        exited(1, stdout=long, stderr="\n" * 64 * KIB, files=files),
        exited(stdout='"' * 200 * KIB, structured={"a": '"' * 200 * KIB}, files=files),
    ):
        result = result_of(outcome, OutputStore(), ME)

        kinds = [item["type"] for item in result["content"]]
        assert len(orjson.dumps(result)) < 1024 * KIB
        assert kinds.count("resource") + kinds.count("resource_link") >= 64
        assert "resource_link" in kinds


@pytest.mark.requirement("EXEC-12", "EXEC-17")
def test_a_long_text_is_cut_and_linked_as_a_whole() -> None:
    words = "é" * MAX_EMBEDDED
    store = OutputStore()
    mine = OutputFile("stdout.txt", b"mine")

    result = result_of(exited(stdout=words, structured={"a": 1}, files=(mine,)), store, ME)

    head, remark, link, own = result["content"]
    assert head["text"] == "é" * (MAX_EMBEDDED // 2)
    assert remark["text"].startswith("The output is cut here, and linked as a whole.")
    assert (link["type"], link["name"], link["size"]) == ("resource_link", "_stdout.txt", 2 * MAX_EMBEDDED)
    whole = store.read(link["uri"], ME)
    assert whole is not None and whole.content == words.encode()
    assert own["resource"]["text"] == "mine"
    assert "structuredContent" not in result


@pytest.mark.requirement("EXEC-12", "EXEC-17")
def test_what_is_not_returned_and_which_limits_were_reached_is_one_line() -> None:
    outcome = exited(
        skipped=tuple(SkippedOutput(f"link{n}\x1b[2J", "a symbolic link") for n in range(12)),
        reached=(LimitHit("stdout_bytes", 1048576, 2000000),),
        files=(OutputFile("a", b"aaaa"),),
    )

    result = result_of(outcome, OutputStore(OutputQuota(run_bytes=3)), ME)

    [remark] = result["content"]
    assert "\n" not in remark["text"] and "\x1b" not in remark["text"]
    assert remark["text"].count("a symbolic link") == 10
    assert "and 3 more" in remark["text"]
    assert "stdout_bytes" in remark["text"]
    assert result["_meta"][RUN]["reached"] == [{"limit": "stdout_bytes", "allowed": 1048576, "used": 2000000}]
    assert result["isError"] is False


@pytest.mark.requirement("EXEC-16")
def test_a_limit_is_an_error_that_carries_what_was_said_so_far() -> None:
    hit = LimitHit("wall_seconds", 2, 2.0375)
    outcome = Outcome("r", Ending.LIMIT, limit=hit, stdout="a" * MAX_TAIL + "b", stderr="e")

    error = limit_error(outcome, hit, {"name": "lab", "script": "scripts/slow.py"}).error

    assert error.code == -32003
    assert error.data == {
        "name": "lab",
        "script": "scripts/slow.py",
        "reason": "limit",
        "limit": "wall_seconds",
        "allowed": 2,
        "used": 2.038,
        "stdout": "…" + "a" * (MAX_TAIL - 1) + "b",
        "stderr": "e",
        "runId": "r",
    }


def test_the_name_of_a_linked_file_hides_nothing_and_its_uri_still_means_the_file() -> None:
    path = "in\u202evoice\x1b[31m\u200b\U000e0041.csv" + "\u202e" * 300
    store = OutputStore()

    result = result_of(exited(files=(OutputFile(path, b"a" * (MAX_EMBEDDED + 1)),)), store, ME)

    [link] = [item for item in result["content"] if item["type"] == "resource_link"]
    require_inert(link["name"])
    assert link["name"].startswith("in<U+202E>voice<U+001B>[31m<U+200B><U+E0041>.csv<U+202E>")
    assert len(link["name"]) <= MAX_NAME
    kept = store.read(link["uri"], ME)
    assert kept is not None and kept.content == b"a" * (MAX_EMBEDDED + 1)
