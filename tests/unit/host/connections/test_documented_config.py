"""What the pages about the configuration say, held against what is read."""

import re
from pathlib import Path

import pytest

import documents
from skillwire.host import Host
from skillwire.host.connect.config import MAX_TIMEOUT_SECONDS, Servers, read_servers
from skillwire.host.connect.config_file import (
    CONFIG_PATHS,
    INPUT_PREFIX,
    MAX_CONFIG_BYTES,
    MAX_LABEL_LENGTH,
    RESERVED_LABELS,
    Variables,
)
from skillwire.host.model.endpoints import (
    DEFAULT_SECONDS,
    HttpEndpoint,
    ShowRule,
    SkillSettings,
    StdioEndpoint,
    Trust,
)
from skillwire.host.model.errors import ConfigError

PAGE = documents.text_of("host/configuration.md", "host/variables.md", "host/skill-settings.md")
ENVIRON = {
    "HOME": "/home/me",
    "BILLING_TOKEN": "s3cret",
    "NOTES_KEY": "s3cret",
    "SKILLWIRE_INPUT_API_KEY": "s3cret",
}


def section(heading: str) -> str:
    [found] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return found


def example(heading: str) -> str:
    """Return the one configuration under a heading."""
    [found] = re.findall(r"```jsonc?\n(.*?)```", section(heading), re.DOTALL)
    return found


def words(text: str) -> set[str]:
    """Return what a text sets in code type, beside its examples."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


def read(heading: str, folder: Path, environ: dict[str, str] = ENVIRON) -> Servers:
    path = folder / ".vscode" / "mcp.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(example(heading), "utf-8")
    (folder / ".env").write_text("MORE=1\n", "utf-8")
    return read_servers(path, environ=environ)


def test_every_configuration_of_the_page_is_read_without_a_fault(tmp_path: Path) -> None:
    headings = [
        heading for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE) if "```json" in section(heading)
    ]

    assert headings == ["A server", "Variables", "Inputs", "Settings for skills"]
    assert len(re.findall(r"```json", PAGE)) == len(headings)
    for heading in headings:
        found = read(heading, tmp_path)
        assert found.refused == () and found.servers
        assert "s3cret" not in repr(found)


def test_the_servers_of_the_page_are_read_as_it_says(tmp_path: Path) -> None:
    files, billing, old = read("A server", tmp_path).servers

    assert files.endpoint == StdioEndpoint(
        "npx", ("-y", "@acme/files", "/home/me/notes"), {"LOG_LEVEL": "warn"}
    )
    assert billing.endpoint == HttpEndpoint("https://billing.example/mcp", {"Authorization": "Bearer s3cret"})
    assert (files.seconds, billing.seconds) == (30.0, 20.0)
    assert [server.is_enabled for server in (files, billing, old)] == [True, True, False]


def test_the_variables_of_the_page_are_filled_in_as_it_says(tmp_path: Path) -> None:
    (notes,) = read("Variables", tmp_path).servers

    assert notes.endpoint == StdioEndpoint(
        "python",
        (f"{tmp_path}/tools/notes.py", "--home", "/home/me"),
        {"NOTES_KEY": "s3cret", "MORE": "1"},
    )
    assert [refused.subject for refused in read("Variables", tmp_path, {}).refused] == ["notes"]


def test_every_variable_of_the_page_has_a_value() -> None:
    environ = {"NAME": "v", "HOME": "/home/me", "SKILLWIRE_INPUT_ID": "v"}
    variables = Variables(Path("/p/shop"), environ, [{"id": "ID"}])
    written = [word for word in words(section("Variables")) if word.startswith("${") and "…" not in word]

    assert len(written) >= 9
    for word in written:
        filled = variables.fill(word, owner="the page", place="its table").text
        assert filled and "$" not in filled


def test_what_the_page_says_only_an_editor_has_is_refused() -> None:
    variables = Variables(Path("/p/shop"), {}, None)
    written = [word for word in words(section("Variables")) if "…" in word]

    assert len(written) == 3
    for word in written:
        with pytest.raises(ConfigError):
            variables.fill(word, owner="the page", place="its text")


def test_the_inputs_of_the_page_are_given_as_it_says(tmp_path: Path) -> None:
    (shop,) = read("Inputs", tmp_path).servers

    assert isinstance(shop.endpoint, HttpEndpoint)
    assert shop.endpoint.url == "https://shop.example/mcp?region=eu"
    assert shop.endpoint.headers == {"Authorization": "Bearer s3cret"}
    (refused,) = read("Inputs", tmp_path, {}).refused
    assert "SKILLWIRE_INPUT_API_KEY" in str(refused)
    assert INPUT_PREFIX in words(section("Inputs"))


def test_the_settings_of_the_page_are_read_as_it_says(tmp_path: Path) -> None:
    team, search = read("Settings for skills", tmp_path).servers

    show = {
        "refunds": ShowRule.PIN,
        "acme/billing/invoices": ShowRule.NAME_ONLY,
        "release": ShowRule.MANUAL,
        "*": ShowRule.NORMAL,
    }
    assert team.skills == SkillSettings(trust=Trust.APPROVED, budget=1500, show=show)
    assert search.skills == SkillSettings(is_on=False)


def test_the_page_names_every_setting() -> None:
    rows = [
        line.split("|")[1:3] for line in section("Settings for skills").splitlines() if line.startswith("|")
    ]

    values: dict[str, set[str]] = {}
    key = ""
    for first, second in rows[2:]:
        key = first.strip(" `") or key
        values.setdefault(key, set()).update(words(second))
    assert values == {
        "enabled": {"true", "false"},
        "trust": set(Trust),
        "budget": set(),
        "show": set(ShowRule),
        "dialect": set(),
    }


def test_the_program_of_the_page_finds_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "${GONE_FOR_GOOD}"}}}', "utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    exec(compile(program, "configuration.md", "exec"), names)

    assert names["path"] == tmp_path / ".mcp.json"
    assert isinstance(names["host"], Host)
    assert "GONE_FOR_GOOD" in capsys.readouterr().out


def test_the_page_names_the_usual_places_in_their_order() -> None:
    places = re.findall(r"^\d\. `(.+)`$", section("Which file is used"), re.MULTILINE)

    assert places == [place.as_posix() for place in CONFIG_PATHS]


@pytest.mark.parametrize(
    "words",
    [
        f"at most {MAX_TIMEOUT_SECONDS * 1000:.0f}",
        f"then it is {DEFAULT_SECONDS:.0f} s",
        f"at most {MAX_LABEL_LENGTH};",
        f"at most {MAX_CONFIG_BYTES // 1024**2} MiB",
    ],
)
def test_the_limits_of_the_page_are_those_that_hold(words: str) -> None:
    assert words in section("A server")


def test_the_labels_that_nobody_can_have_are_on_the_page() -> None:
    assert words(section("A server")) >= RESERVED_LABELS
