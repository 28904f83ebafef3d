"""What `docs/catalog.md` shows, done as it stands there, on a real PostgreSQL."""

import os
import re
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import documents
from folders import skill_md, write_files
from programs import skillwire_command, write_program
from serving import HttpServer, environment, listed_uris, modern

PAGE = documents.text_of("catalog.md")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def commands_of(section: str) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A home with the command, and the folder of skills that the page begins with."""
    metadata = 'metadata: {version: "2.1.0"}\n'
    refunds = skill_md("refunds", extra=metadata, body="Give the customer their money back.\n")
    write_files(
        tmp_path,
        {
            "skills/acme/billing/refunds/SKILL.md": refunds,
            "skills/acme/support/triage/SKILL.md": skill_md("triage"),
        },
    )
    write_program(tmp_path / "bin" / "skillwire", skillwire_command())
    return {
        **environment(tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"),
        "XDG_DATA_HOME": str(tmp_path / ".local" / "share"),
    }


def run(command: str, folder: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_from_a_folder_to_a_catalog_that_is_searched_changed_and_kept(
    tmp_path: Path, env: dict[str, str]
) -> None:
    [publish, search] = commands_of("Two commands")
    assert "2 added, 1 immutable version" in run(publish, tmp_path, env)
    assert run(search, tmp_path, env).startswith("acme/billing/refunds")

    for section in ("Publish changes", "History and rollback", "Maintenance"):
        for command in commands_of(section):
            assert run(command, tmp_path, env), command

    restored = run("skillwire catalog restore catalog.tar --catalog sqlite:///other.db", tmp_path, env)
    assert restored
    assert "acme/billing/refunds" in run(
        "skillwire search refunds --catalog sqlite:///other.db", tmp_path, env
    )


@contextmanager
def serving(command: str, folder: Path, env: Mapping[str, str]) -> Generator[HttpServer]:
    """Run a command of the page that serves, on a port that is free."""
    on_free_port = re.sub(r":80\d\d &$", ":0", command)
    assert on_free_port != command, command
    pipe = subprocess.PIPE
    server = HttpServer(
        subprocess.Popen(
            ["bash", "-c", f"exec {on_free_port}"], cwd=folder, env=env, stdout=pipe, stderr=pipe
        ),
        "127.0.0.1",
    )
    try:
        server.wait_for_url()
        yield server
    finally:
        server.release()


def test_from_a_database_to_two_servers_that_answer_alike(
    tmp_path: Path, env: dict[str, str], postgres_url: str
) -> None:
    found = urlsplit(postgres_url)
    host = parse_qs(found.query).get("host", [found.hostname or ""])[0]
    database = {
        "PGHOST": host,
        "PGDATABASE": found.path.lstrip("/"),
        "PGUSER": found.username or "",
        "PGPASSWORD": found.password or "",
    }
    if found.port:
        database["PGPORT"] = str(found.port)
    env |= database
    [publish, *servers] = commands_of("Two servers on one PostgreSQL")
    assert len(servers) == 2
    run(publish, tmp_path, env)

    with ExitStack() as stack:
        replicas = [stack.enter_context(serving(command, tmp_path, env)) for command in servers]
        listings = [listed_uris(replica.call(modern("skills/list"))) for replica in replicas]
        write_files(tmp_path, {"skills/acme/sales/offers/SKILL.md": skill_md("offers")})
        run(publish, tmp_path, env)
        after = [listed_uris(replica.call(modern("skills/list"))) for replica in replicas]

    uris = ["skill://acme/billing/refunds/SKILL.md", "skill://acme/support/triage/SKILL.md"]
    assert listings == [uris] * 2
    assert after == [sorted([*uris, "skill://acme/sales/offers/SKILL.md"])] * 2
    assert "PGPASSWORD" in SECTIONS["Two servers on one PostgreSQL"]
