"""What the pages in `docs/operations` show, done as it stands there."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import documents
from folders import write_skill
from programs import skillwire_command, write_program
from serving import Server, environment
from skillwire.server.access.rules import CALLER_KEYS, parse_rules
from skillwire.server.config import parse_config, read_config
from skillwire.server.limits import RESPONSES, HttpConnectionLimits

ROOT = Path(__file__).parents[2]
PAGE = documents.text_of(
    "operations/start.md",
    "operations/proxy.md",
    "operations/access-control.md",
    "operations/large-catalogs.md",
    "operations/monitoring.md",
    "operations/failures.md",
)
[FIRST] = re.findall(r"^## Start a server with tokens\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", FIRST, re.DOTALL | re.MULTILINE)


def test_the_first_part_can_be_followed_to_a_server_that_asks_who_you_are(tmp_path: Path) -> None:
    for path in ("shared/greeting", "acme/billing/refunds", "secret/plan"):
        write_skill(tmp_path / "skills" / path)
    commands = tmp_path / "bin"
    write_program(commands / "skillwire", skillwire_command())
    env = environment(tmp_path, PATH=f"{commands}:{os.environ['PATH']}")
    [make_tokens, start, ask] = [text for language, text in BLOCKS if language == "bash"]
    [rules, options] = [text for language, text in BLOCKS if language == "toml"]

    made = subprocess.run(
        ["bash", "-euc", make_tokens], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    tokens = made.stdout.split()
    (tmp_path / "access.toml").write_text(rules)
    (tmp_path / "serve.toml").write_text(options)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {start.replace(':8000', ':0')}"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    server = Server(process)
    try:
        port = server.wait_for_words(r"at http://127\.0\.0\.1:(\d+)/mcp\n")[1]
        with_token, without = ask.replace(":8000", f":{port}").splitlines()
        shown = subprocess.run(
            ["bash", "-euc", with_token],
            env={**env, "TOKEN": tokens[0]},
            capture_output=True,
            text=True,
            timeout=60,
        )
        refused = subprocess.run(
            ["bash", "-c", without], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        server.wait_for_words(r'"caller":"ci"')
    finally:
        server.release()

    assert made.returncode == 0, made.stderr
    assert len(tokens) == 3 and all(token.startswith("skw_") for token in tokens)
    assert "greeting" in shown.stdout and "refunds" in shown.stdout
    assert "secret" not in shown.stdout
    assert f"# exits with {refused.returncode}" in without, refused.stderr
    assert not any(token in server.words for token in tokens)


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the tables under a heading."""
    [section] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if not line.startswith("---")]


def test_the_page_names_every_key_of_a_rule_and_no_other() -> None:
    first = [cells[0] for cells in rows("Rules")]
    named = {name for cell in first for name in re.findall(r"`([a-z]+)(?: = true)?`", cell)}

    assert named == {*CALLER_KEYS, "anyone", "authenticated", "see", "run", "publish", "manage", "operate"}


def test_the_rules_and_options_of_the_page_and_those_to_start_from_can_be_read() -> None:
    [rules, options] = [text for language, text in BLOCKS if language == "toml"]

    for text in (rules, (ROOT / "deploy" / "access.toml").read_text("utf-8")):
        assert tomllib.loads(text)["rule"]
        parse_rules(text.encode())
    deployed = ROOT / "deploy" / "serve.toml"
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [behind_a_proxy] = [text for text in blocks if "proxy = " in text]
    assert parse_config(options.encode(), deployed).keys() == {"access", "access_log"}
    assert parse_config(behind_a_proxy.encode(), deployed) == read_config(deployed)


def test_the_limits_of_the_page_are_those_of_the_server() -> None:
    limits = HttpConnectionLimits()
    text = " ".join(" ".join(cells) for cells in rows("Limits on connections"))

    for said in (
        f"{limits.head_bytes // 1024} KiB, {limits.header_count}",
        f"{limits.url_bytes // 1024} KiB",
        f"headers of a request {limits.head_seconds:.0f} s",
        f"{limits.silent_seconds:.0f} s, {limits.idle_seconds:.0f} s",
        f"{limits.body_bytes // 1024} KiB",
        f", {limits.body_seconds:.0f} s",
        f"answers {limits.pipelined} ",
        f"is read {limits.unread_seconds:.0f} s",
        f"{limits.waiting_bytes // 1024 // 1024} MiB",
        f"{limits.connections:,}",
        *(f"`{status}`" for status in {status for status, _ in RESPONSES.values()} - {400}),
    ):
        assert said in text, said


def test_every_file_that_the_page_speaks_of_is_there() -> None:
    for name in re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE):
        if "." in name or name == "Containerfile":
            assert (ROOT / "deploy" / name).is_file(), name
