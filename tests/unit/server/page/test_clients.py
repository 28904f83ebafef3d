"""What people paste into their clients is what those clients can read."""

import json
import shlex
import tomllib

import pytest

from skillwire.server.page.app import label_of, snippets

URL = "https://skills.example/mcp"
SECRET = "SKILLS_TOKEN"


def texts(*, has_token: bool) -> dict[str, str]:
    return {snippet.key: snippet.text for snippet in snippets(URL, has_token=has_token)}


@pytest.mark.parametrize("has_token", [False, True])
def test_every_snippet_names_the_server_and_a_token_where_one_is_needed(has_token: bool) -> None:
    for key, text in texts(has_token=has_token).items():
        assert URL in text
        assert ("token" in text.lower()) is has_token, key


def test_configurations_are_of_the_form_their_clients_read() -> None:
    plain, guarded = texts(has_token=False), texts(has_token=True)

    assert json.loads(plain["mcp-json"]) == {"mcpServers": {"skills": {"type": "http", "url": URL}}}
    assert json.loads(plain["cursor"]) == {"mcpServers": {"skills": {"url": URL}}}
    assert json.loads(plain["vscode"]) == {"servers": {"skills": {"type": "http", "url": URL}}}
    assert tomllib.loads(plain["codex"]) == {"mcp_servers": {"skills": {"url": URL}}}
    assert tomllib.loads(guarded["codex"])["mcp_servers"]["skills"]["bearer_token_env_var"] == SECRET
    headers = {"Authorization": f"Bearer ${{{SECRET}}}"}
    assert json.loads(guarded["mcp-json"])["mcpServers"]["skills"]["headers"] == headers
    asked = json.loads(guarded["vscode"])
    assert (
        asked["servers"]["skills"]["headers"]["Authorization"]
        == f"Bearer ${{input:{asked['inputs'][0]['id']}}}"
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [("", "skills"), ("Acme support", "acme-support"), ("$(rm -rf ~); x", "rm-rf-x"), ("日本", "skills")],
)
def test_a_server_goes_by_its_name_in_a_form_that_needs_no_quotes(name: str, label: str) -> None:
    assert label_of(name) == label
    assert len(label_of("x" * 500)) <= 40


def test_commands_are_what_a_shell_takes_apart_as_meant() -> None:
    guarded = texts(has_token=True)

    assert shlex.split(guarded["claude"].replace("\\\n", " ")) == [
        *("claude", "mcp", "add", "--transport", "http", "skills", URL),
        *("--header", f"Authorization: Bearer ${SECRET}"),
    ]
    words = shlex.split(guarded["curl"].replace("\\\n", " "))
    assert words[:2] == ["curl", URL]
    assert json.loads(words[-1])["method"] == "skills/list"
