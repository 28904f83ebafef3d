"""`skillwire serve --config`: a real server that reads its file at the start and on SIGHUP."""

import os
from collections.abc import Generator
from pathlib import Path
from signal import SIGHUP, SIGKILL

import pytest

from folders import write_skill
from integration.access_world import token_line, token_of
from serving import HttpServer, environment, http_server, listed_uris, modern, wait_until

SOON = 30.0
OPEN, PLAN = "skill://acme/open/SKILL.md", "skill://secret/plan/SKILL.md"
RULES = '[[rule]]\ntokens = ["reader"]\nsee = ["{}"]\n'
FIRST = 'token_file = "tokens"\naccess = "acme.toml"\nworkers = {}\n'


class Served:
    """A running server, and the folder of its configuration."""

    def __init__(self, server: HttpServer, folder: Path, workers: int) -> None:
        self.server = server
        self.config = folder / "serve.toml"
        self.first = FIRST.format(workers)
        self.tries = 4 * workers

    def status(self, name: str) -> int:
        with self.server.connection() as connection:
            response = connection.post(modern("skills/list"), authorization=f"Bearer {token_of(name)}")
            response.read()
            return response.status

    def statuses(self, name: str) -> set[int]:
        return {self.status(name) for _ in range(self.tries)}

    def listed(self) -> set[str]:
        """Return what the workers list together; each connection may reach another one."""
        bearer = f"Bearer {token_of('reader')}"
        answers = [self.server.call(modern("skills/list"), authorization=bearer) for _ in range(self.tries)]
        return {uri for answer in answers for uri in listed_uris(answer)}

    def reload(self, text: str) -> None:
        self.config.write_text(text)
        self.server.send_signal(SIGHUP)


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Served]:
    write_skill(tmp_path / "skills" / "acme" / "open")
    write_skill(tmp_path / "skills" / "secret" / "plan")
    for name, reader in (("tokens", "reader"), ("others", "other")):
        (tmp_path / name).write_text(token_line(reader, token_of(reader)))
        (tmp_path / name).chmod(0o600)
    for place in ("acme", "secret"):
        (tmp_path / f"{place}.toml").write_text(RULES.format(place))
    config = tmp_path / "serve.toml"
    config.write_text(FIRST.format(request.param))
    with http_server(
        tmp_path / "skills", "--config", config, env=environment(tmp_path / "home"), ready=False
    ) as server:
        server.wait_for_url()
        found = Served(server, tmp_path, request.param)
        wait_until(lambda: found.listed() == {OPEN}, SOON, "all workers answer")
        yield found


@pytest.mark.requirement("SEC-14")
def test_a_hangup_applies_what_can_change_and_names_what_needs_a_restart(served: Served) -> None:
    served.reload(served.first.replace("acme.toml", "secret.toml") + "page_size = 3\n")

    served.server.wait_for_words("restart the server to apply: page_size\n", SOON)
    wait_until(lambda: served.listed() == {PLAN}, SOON, "other rules")

    served.reload(served.first.replace('"tokens"', '"others"'))

    wait_until(lambda: served.statuses("reader") == {401}, SOON, "other tokens")
    assert served.statuses("other") == {200}

    served.reload(served.first.replace('"tokens"', '"others"') + 'rate = "0.001/1"\n')

    wait_until(lambda: served.statuses("other") == {429}, SOON, "a rate")
    assert served.server.stop() == 0


BROKEN = {
    "rate = ": r"ERROR: .*serve\.toml: not TOML: ",
    'acces = "secret.toml"': r'ERROR: .*serve\.toml, line 1: unknown key "acces"; did you mean "access"\? ',
    'token_file = "gone"': r"ERROR: .* 'gone' cannot be read: ",
    'token_file = "tokens"\naccess = "serve.toml"': r"ERROR: ",
}


def test_a_broken_file_changes_nothing_and_is_one_error(served: Served) -> None:
    for count, (text, words) in enumerate(BROKEN.items(), 1):
        served.reload(text)

        served.server.wait_for_words(rf"{words}.*; the previous settings stay in effect\n", SOON)
        kept = r"(?:.*?; the previous settings stay in effect\n)"
        served.server.wait_for_words(rf"(?s){kept}{{{count}}}", SOON)
        assert served.listed() == {OPEN}
        assert served.statuses("reader") == {200}
    served.reload(served.first.replace("acme.toml", "secret.toml"))
    wait_until(lambda: served.listed() == {PLAN}, SOON, "the next version is read")
    assert served.server.words.count("the previous settings stay in effect") == len(BROKEN)
    assert "Traceback" not in served.server.words


@pytest.mark.parametrize("served", [2], indirect=True)
def test_a_worker_that_replaces_another_has_the_options_of_the_last_reload(served: Served) -> None:
    served.reload(served.first.replace("acme.toml", "secret.toml"))
    wait_until(lambda: served.listed() == {PLAN}, SOON, "other rules")
    children = Path(f"/proc/{served.server.pid}/task/{served.server.pid}/children")
    # The tracker of resources is a child, too.
    workers = {
        int(pid)
        for pid in children.read_text().split()
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    for pid in workers:
        os.kill(pid, SIGKILL)
    wait_until(lambda: not workers & set(map(int, children.read_text().split())), SOON, "they are gone")

    assert len(workers) == 2
    assert served.listed() == {PLAN}
