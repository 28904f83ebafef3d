"""`skills/execute` over pipes and HTTP, in both protocol generations, with a real sandbox."""

import base64
import json
import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from configs import configured
from folders import skill_md, write_files
from integration.runner.execute_world import (
    MANIFEST,
    WAYS,
    HttpPeer,
    StdioPeer,
    peer,
    processes_with,
    texts,
    write_lab,
)
from serving import wait_until
from skillwire.core.characters import visible
from skillwire.server.messages import MAX_ECHO
from skillwire.server.outputs import RUN

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "skills"
SCHEMA = json.loads((ROOT / "docs/schemas/wire/exec.json").read_text("utf-8"))
CANARY = "canary-7f3e"
GONE_WITHIN = 15.0
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
PRESENTATION = {
    "SKILL.md": skill_md(
        "create-presentation",
        extra="license: Apache-2.0\nmetadata:\n  author: example-org\n  version: '1.0'\n"
        "  skillwire/files: |\n"
        "    scripts/create_pptx.py: Create a new PowerPoint file with specified slides\n"
        "    references/templates.md (slide-templates): Available slide layout templates\n",
    ),
    "scripts/create_pptx.py": (
        "import json, os, sys\nfrom pathlib import Path\n"
        "given = json.load(sys.stdin)\n"
        "name = given['title'].lower().replace(' ', '-') + '.pptx'\n"
        "content = b'PK\\xff' + str(len(given['slides'])).encode()\n"
        "Path(os.environ['OUTPUT_DIR'], name).write_bytes(content)\n"
    ),
    "references/templates.md": "# Slide Templates\n",
}

Json = dict[str, Any]
AnyPeer = StdioPeer | HttpPeer


@pytest.fixture(scope="module", params=WAYS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[AnyPeer]:
    """A client of a server that runs scripts; both are used by all tests of this module."""
    home = tmp_path_factory.mktemp("home")
    lab = write_lab(tmp_path_factory.mktemp("skills"))
    with peer(request.param, lab, EXAMPLES, "--scripts", home=home, more={"SECRET_TOKEN": CANARY}) as client:
        yield client


def run(client: AnyPeer, script: object, arguments: object = None, *, skill: str = "lab") -> Json:
    """Run a script, and return its result, which is as the schema says."""
    more = {} if arguments is None else {"arguments": arguments}
    answer = client.ask("skills/execute", name=skill, script=script, **more)
    assert "result" in answer, answer
    check("executeResult", answer["result"])
    return answer["result"]


def refused(client: AnyPeer, **params: object) -> Json:
    answer = client.ask("skills/execute", **params)
    assert "error" in answer, answer
    check("error", answer["error"])
    return answer["error"]


def check(part: str, value: Json) -> None:
    jsonschema.validate(value, {**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{part}"}]})


def audit_lines(client: AnyPeer) -> list[Json]:
    return [json.loads(line) for line in re.findall(r"^INFO: (\{.*\})$", client.server.words, re.MULTILINE)]


@pytest.mark.requirement("EXEC-01", "EXEC-05", "EXEC-06")
@pytest.mark.parametrize("script", ["echo.py", "scripts/echo.py", "echo"])
def test_a_script_is_given_arguments_and_what_it_says_comes_back(client: AnyPeer, script: str) -> None:
    result = run(client, script, {"n": 7, "tee": "grün"})

    assert result["content"] == [{"type": "text", "text": 'echo {"n": 7, "tee": "gr\\u00fcn"}\n'}]
    assert result["isError"] is False
    account = result["_meta"][RUN]
    assert (account["ending"], account["exitCode"]) == ("exited", 0)
    assert account["limits"]["wall_seconds"] == 30
    assert 0 < account["usage"]["wall_seconds"] < 30
    assert client.hello["result"]["capabilities"]["skills"]["scripts"] is True


@pytest.mark.requirement("EXEC-05", "EXEC-15")
def test_a_script_without_arguments_is_given_an_empty_object(client: AnyPeer) -> None:
    assert texts(run(client, "echo.py")) == ["echo {}\n"]


@pytest.mark.requirement("EXEC-06")
def test_a_script_is_found_by_an_alias_of_its_author(client: AnyPeer) -> None:
    assert texts(run(client, "first-line", {"b": "x"})) == ['{"B":"X"}\n']


@pytest.mark.requirement("EXEC-03", "EXEC-14", "EXEC-20")
def test_a_skill_lists_the_scripts_that_can_be_run_and_what_they_take(client: AnyPeer) -> None:
    result = client.ask("skills/read", name="lab")["result"]
    check("readResult", result)
    scripts = result["skill"]["scripts"]
    by_name = {script["name"]: script for script in scripts}

    annotations = {"audience": ["assistant"], "priority": 0.3}

    assert "old.rb" not in by_name and "manifest.json" not in by_name
    assert by_name["echo.py"] == {
        "name": "echo.py",
        "description": "Says what it is given.",
        "path": "scripts/echo.py",
        "inputSchema": MANIFEST["scripts"]["echo.py"]["arguments"],
        "annotations": annotations,
    }
    assert by_name["pipe.sh"]["description"] == "Shows the first line in capitals."
    assert by_name["env.py"] == {
        "name": "env.py",
        "description": "env.py",
        "path": "scripts/env.py",
        "annotations": annotations,
    }
    assert "scripts" not in client.ask("skills/read", name="plain")["result"]["skill"]


@pytest.mark.requirement("EXEC-16")
def test_a_script_that_fails_is_a_result_with_what_it_said(client: AnyPeer) -> None:
    failed, crashed = run(client, "fail.py"), run(client, "crash.py")

    assert failed["isError"] is True
    assert texts(failed) == ["half\n", "exit status 3\nbad luck\n"]
    assert failed["_meta"][RUN]["exitCode"] == 3
    assert crashed["isError"] is True
    assert texts(crashed)[0].startswith("ended by SIGSEGV")


@pytest.mark.requirement("EXEC-12", "EXEC-16")
def test_a_script_that_takes_too_long_is_an_error_that_names_the_limit(client: AnyPeer) -> None:
    start = time.monotonic()
    error = refused(client, name="lab", script="slow.py")

    assert time.monotonic() - start < 20
    assert error["code"] == -32003
    data = error["data"]
    assert (data["reason"], data["limit"], data["allowed"]) == ("limit", "wall_seconds", 1)
    assert data["used"] >= 1
    assert (data["name"], data["script"], data["stdout"]) == ("lab", "scripts/slow.py", "begun\n")


@pytest.mark.requirement("EXEC-12", "EXEC-16")
def test_a_script_that_wants_too_much_memory_is_an_error_that_names_the_limit(client: AnyPeer) -> None:
    error = refused(client, name="lab", script="hog.py")

    assert error["code"] == -32003
    assert (error["data"]["reason"], error["data"]["limit"]) == ("limit", "memory_bytes")
    assert error["data"]["allowed"] == 64 * 1024 * 1024


@pytest.mark.requirement("EXEC-15", "EXEC-16")
def test_a_script_that_nothing_here_interprets_is_not_run(client: AnyPeer) -> None:
    error = refused(client, name="lab", script="old.rb")

    assert error["code"] == -32003
    assert error["data"] == {"name": "lab", "script": "scripts/old.rb", "reason": "not_run"}


@pytest.mark.requirement("EXEC-07", "EXEC-10", "EXEC-15")
@pytest.mark.parametrize(
    "script",
    [
        "../x",
        "scripts/../SKILL.md",
        "scripts/../scripts/echo.py",
        "./scripts/echo.py",
        "scripts//echo.py",
        "/skill/scripts/echo.py",
        "/bin/sh",
        "SKILL.md",
        "references/a.md",
        "scripts/manifest.json",
        "scripts%2Fecho.py",
        "echo.py\x00",
        "echo.py;id",
        "",
        "x" * 5000,
    ],
)
def test_only_what_is_listed_as_a_script_is_run(client: AnyPeer, script: str) -> None:
    error = refused(client, name="lab", script=script)

    assert error["code"] == -32602
    assert error["data"] == {"name": "lab", "script": visible(script, most=MAX_ECHO), "candidates": []}


@pytest.mark.requirement("EXEC-06", "EXEC-07", "EXEC-10")
def test_what_is_unclear_or_of_the_wrong_kind_is_refused(client: AnyPeer) -> None:
    ambiguous = refused(client, name="lab", script="twin")
    listed = refused(client, name="lab", script=["echo.py"])
    missing = refused(client, name="lab")
    nobody = refused(client, name="gone", script="echo.py")
    unnamed = refused(client, name=["lab"], script="echo.py")
    other = refused(client, name="plain", script="echo.py")

    assert ambiguous["data"]["candidates"] == ["scripts/twin.py", "scripts/twin.sh"]
    codes = [error["code"] for error in (ambiguous, listed, missing, nobody, unnamed, other)]
    assert codes == [-32602, -32602, -32602, -32002, -32602, -32602]
    assert nobody["data"] == {"name": "gone"}


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize("arguments", [[], "{}", 1, True, {"n": "seven"}])
def test_arguments_that_a_script_does_not_take_never_reach_it(client: AnyPeer, arguments: object) -> None:
    before = len(audit_lines(client))

    error = refused(client, name="lab", script="echo.py", arguments=arguments)

    assert error["code"] == -32602
    assert error["data"] == {"name": "lab", "script": "echo.py"}
    assert len(audit_lines(client)) == before


@pytest.mark.requirement("EXEC-15")
def test_arguments_are_never_words_of_a_command(client: AnyPeer) -> None:
    value = "$(id) `id` ; id & | > /out/x \n--help\x00'\""

    [said] = texts(run(client, "argv.py", {"--help": value, "-c": "import os", "$(id)": [value]}))
    echoed = texts(run(client, "echo.py", {"v": value}))[0]

    assert said.startswith("[] ")
    assert json.loads(echoed.removeprefix("echo ")) == {"v": value}


@pytest.mark.requirement("EXEC-10")
def test_what_could_steer_a_terminal_is_taken_out_of_what_a_script_says(client: AnyPeer) -> None:
    [said] = texts(run(client, "ansi.py"))

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert "red" in said and said.endswith("end")


@pytest.mark.requirement("EXEC-11")
def test_a_script_sees_nothing_of_the_servers_environment(client: AnyPeer) -> None:
    result = run(client, "env.py")

    assert CANARY not in json.dumps(result)
    assert set(result["structuredContent"]) <= {
        *("PATH", "HOME", "TMPDIR", "LANG", "SKILL_DIR", "OUTPUT_DIR", "PWD", "LC_CTYPE"),
    }
    assert result["structuredContent"]["SKILL_DIR"] == "/skill"


@pytest.mark.requirement("EXEC-05", "EXEC-10")
def test_what_a_script_says_is_never_taken_for_content(client: AnyPeer) -> None:
    result = run(client, "content.py")

    assert [item["type"] for item in result["content"]] == ["text"]
    assert result["isError"] is False
    assert result["structuredContent"] == {"content": [{"type": "image"}], "isError": True}


@pytest.mark.requirement("EXEC-12", "EXEC-17")
def test_a_script_writes_nothing_outside_its_own_folders(client: AnyPeer) -> None:
    [said] = texts(run(client, "escape.py"))

    assert said.split("\n")[:-1] == [
        f"denied {path}" for path in ("/usr/x", "/x", "/etc/x", "../x", "/dev/x", "/proc/x")
    ]


@pytest.mark.requirement("EXEC-12", "EXEC-16")
def test_a_script_that_is_not_wanted_any_more_is_gone(client: AnyPeer) -> None:
    seconds = f"{600 + time.time() % 10:.6f}"
    client.start(41, "skills/execute", name="lab", script="long.py", arguments={"seconds": seconds})
    wait_until(lambda: bool(processes_with(seconds)), GONE_WITHIN, "the script to run")
    before = len(audit_lines(client))

    client.cancel(41)
    wait_until(lambda: not processes_with(seconds), GONE_WITHIN, "the script to end")

    wait_until(lambda: len(audit_lines(client)) > before, GONE_WITHIN, "a line about it")
    line = audit_lines(client)[-1]
    assert (line["script"], line["outcome"]) == ("scripts/long.py", "cancelled")
    assert texts(run(client, "echo.py")) == ["echo {}\n"]


@pytest.mark.requirement("EXEC-05")
def test_progress_is_told_every_second_and_at_the_end(client: AnyPeer) -> None:
    client.start(42, "skills/execute", name="lab", script="long.py", arguments={"seconds": "2.5"})
    answer = client.wait_for(42)

    assert answer["result"]["isError"] is False
    told = [message["params"] for message in client.told if message["method"] == "notifications/progress"]
    mine = [params for params in told if params["progressToken"] == 42]
    values = [params["progress"] for params in mine]
    assert 3 <= len(values) <= 5
    assert values == sorted(set(values))
    assert {params["total"] for params in mine} == {30}
    assert [params.get("message") for params in mine] == [None] * (len(mine) - 1) + ["exit status 0"]


@pytest.mark.requirement("EXEC-12")
def test_others_are_answered_while_a_script_runs(client: AnyPeer) -> None:
    seconds = f"4.{time.time_ns() % 1000:03}"
    client.start(43, "skills/execute", name="lab", script="long.py", arguments={"seconds": seconds})
    wait_until(lambda: bool(processes_with(seconds)), GONE_WITHIN, "the script to run")

    listed = client.ask("skills/list")
    read = client.ask("resources/read", uri="skill://lab/references/a.md")
    other = run(client, "echo.py", {"n": 1})

    assert processes_with(seconds), "it still runs"
    assert len(listed["result"]["skills"]) > 2
    assert read["result"]["contents"][0]["text"] == "a\n"
    assert texts(other) == ['echo {"n": 1}\n']
    assert client.wait_for(43)["result"]["isError"] is False


@pytest.mark.requirement("EXEC-13")
def test_one_line_stays_of_a_run_and_no_value_is_in_it(client: AnyPeer) -> None:
    def lines() -> list[dict[str, Any]]:
        # A line of an earlier run of another script may still be on its way.
        return [line for line in audit_lines(client) if line["script"] == "scripts/echo.py"]

    before = len(lines())

    run(client, "echo.py", {"password": "hunter2-value"})
    wait_until(lambda: len(lines()) > before, 30, "a line about it")

    [line] = lines()[before:]
    assert (line["skill"], line["script"], line["outcome"]) == (
        "skill://lab/SKILL.md",
        "scripts/echo.py",
        "exited",
    )
    assert line["script_digest"].startswith("sha256:") and line["arguments_digest"].startswith("sha256:")
    assert "hunter2-value" not in client.server.words
    assert "echo {" not in client.server.words


@pytest.mark.requirement("EXEC-05")
@pytest.mark.parametrize("way", WAYS)
def test_the_examples_of_the_document_are_answered_as_it_shows_them(way: str, tmp_path: Path) -> None:
    """Only the URI of an output differs: one that nobody can read would be of no use."""
    write_files(tmp_path / "skills" / "create-presentation", PRESENTATION)
    arguments = {
        "title": "Q4 Sales Review",
        "slides": [
            {"type": "title", "title": "Q4 Sales Review", "subtitle": "January 2026"},
            {"type": "content", "heading": "Key Metrics", "bullets": ["Revenue: $4.2M", "Growth: 23%"]},
        ],
    }
    with peer(way, tmp_path / "skills", "--scripts", home=tmp_path) as client:
        ran = run(client, "create_pptx", arguments, skill="create-presentation")
        skill = client.ask("skills/read", name="create-presentation")["result"]["skill"]
        read = client.ask("skills/read_reference", name="create-presentation", reference="slide-templates")
        nobody = refused(client, name="nonexistent-skill", script="create_pptx")

    [item] = ran["content"]
    assert ran["isError"] is False
    assert (item["type"], item["resource"]["name"]) == ("resource", "q4-sales-review.pptx")
    assert item["resource"]["mimeType"] == PPTX
    assert item["resource"]["uri"].endswith("/q4-sales-review.pptx")
    assert base64.b64decode(item["resource"]["blob"]) == b"PK\xff2"
    assert [{key: script[key] for key in ("name", "description", "path")} for script in skill["scripts"]] == [
        {
            "name": "create_pptx.py",
            "description": "Create a new PowerPoint file with specified slides",
            "path": "scripts/create_pptx.py",
        }
    ]
    assert skill["metadata"] == {"author": "example-org", "version": "1.0", "license": "Apache-2.0"}
    assert read["result"]["content"] == {
        "uri": "skill://create-presentation/references/templates.md",
        "mimeType": "text/markdown",
        "text": "# Slide Templates\n",
    }
    assert (nobody["code"], nobody["data"]) == (-32002, {"name": "nonexistent-skill"})


@pytest.mark.requirement("EXEC-05", "EXEC-15")
def test_the_scripts_of_the_examples_run(client: AnyPeer) -> None:
    profile = run(client, "profile.py", {"csv": "city,visits\nOslo,120\nRome,80\n"}, skill="csv-insights")
    lint = run(client, "lint_sql", {"sql": "DELETE FROM users;"}, skill="sql-review")
    wrong = refused(client, name="csv-insights", script="profile.py", arguments={"csv": 1})

    assert profile["isError"] is False
    assert profile["structuredContent"]["rows"] == 2
    assert [column["name"] for column in profile["structuredContent"]["columns"]] == ["city", "visits"]
    assert profile["_meta"][RUN]["limits"]["wall_seconds"] == 10
    assert profile["_meta"][RUN]["limits"]["memory_bytes"] == 256 * 1024 * 1024
    assert lint["isError"] is False
    assert lint["structuredContent"]
    assert wrong["code"] == -32602


@pytest.mark.requirement("EXEC-14")
@pytest.mark.parametrize("way", WAYS)
def test_without_being_told_to_a_server_runs_nothing(way: str, tmp_path: Path) -> None:
    lab = write_lab(tmp_path / "skills")
    with peer(way, lab, "--dialect", "exec", home=tmp_path) as client:
        error = refused(client, name="lab", script="echo.py")
        read = client.ask("skills/read", name="lab")["result"]["skill"]

    assert error["code"] == -32601
    assert client.hello["result"]["capabilities"]["skills"]["scripts"] is False
    assert "scripts" not in read


@pytest.mark.requirement("EXEC-12", "EXEC-14", "EXEC-16")
@pytest.mark.parametrize("way", WAYS)
def test_without_a_sandbox_nothing_is_run_and_everybody_is_told_why(way: str, tmp_path: Path) -> None:
    lab = write_lab(tmp_path / "skills")
    policy = tmp_path / "policy.toml"
    policy.write_text('bubblewrap = "/nonexistent/bwrap"\n')
    policy.chmod(0o600)
    with peer(way, lab, "--scripts", *configured(tmp_path, script_policy=policy), home=tmp_path) as client:
        error = refused(client, name="lab", script="echo.py")
        read = client.ask("skills/read", name="lab")["result"]["skill"]
        listed = client.ask("skills/list")["result"]["skills"]

    assert error["code"] == -32003
    assert error["data"]["reason"] == "sandbox_unavailable"
    assert (error["data"]["backend"], error["data"]["cause"]) == ("bwrap", "bubblewrap_missing")
    assert error["data"]["detail"] and error["data"]["fix"]
    assert client.hello["result"]["capabilities"]["skills"]["scripts"] is False
    assert "scripts" not in read
    assert len(listed) == 2
    warnings = re.findall(r"^WARNING: (.*)$", client.server.words, re.MULTILINE)
    assert len([line for line in warnings if "scripts are not run" in line]) == 1


@pytest.mark.requirement("EXEC-12", "EXEC-16")
def test_a_server_that_is_stopped_leaves_no_script_behind(tmp_path: Path) -> None:
    lab = write_lab(tmp_path / "skills")
    seconds = f"{700 + time.time() % 10:.6f}"
    with peer("http-legacy", lab, "--scripts", home=tmp_path) as client:
        client.start(1, "skills/execute", name="lab", script="long.py", arguments={"seconds": seconds})
        wait_until(lambda: bool(processes_with(seconds)), GONE_WITHIN, "the script to run")

        client.server.process.kill()
        client.server.wait()

        wait_until(lambda: not processes_with(seconds), GONE_WITHIN, "the script to end")


@pytest.mark.requirement("EXEC-12")
def test_a_client_that_leaves_takes_its_script_with_it(tmp_path: Path) -> None:
    lab = write_lab(tmp_path / "skills")
    seconds = f"{800 + time.time() % 10:.6f}"
    with peer("stdio-modern", lab, "--scripts", home=tmp_path) as client:
        assert isinstance(client, StdioPeer)
        client.start(1, "skills/execute", name="lab", script="long.py", arguments={"seconds": seconds})
        wait_until(lambda: bool(processes_with(seconds)), GONE_WITHIN, "the script to run")

        client.server.process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]

        wait_until(lambda: not processes_with(seconds), 2 * GONE_WITHIN, "the script to end")
        assert client.server.wait() == 0


@pytest.mark.requirement("EXEC-10", "EXEC-15")
def test_a_skill_that_changes_is_run_as_it_is_now(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    write_files(folder, {"a/SKILL.md": skill_md("a"), "a/scripts/say.py": "print('one')\n"})
    with peer("stdio-modern", folder, "--scripts", "--no-watch", home=tmp_path) as client:
        before = run(client, "say.py", skill="a")
        (folder / "a/scripts/say.py").write_text("print('other')\n")
        os.utime(folder / "a/scripts/say.py", (1, 1))

        after = run(client, "say.py", skill="a")

    assert (texts(before), texts(after)) == (["one\n"], ["other\n"])
