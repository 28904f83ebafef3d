"""The JSON of every command, compared with golden files: structure, codes, names, digests, URIs and numbers.

Free text for people (`message`, `fix`, ...) is replaced by `<text>`, and what differs between two runs or two
machines (paths, times, ports, fingerprints, random tokens) by other placeholders. To write the files in
`golden/cli` again, after a change of the output that is intended, run

    PYTHONPATH=tests python tests/integration/test_cli_golden.py
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, cast

import pytest

from folders import skill_md, write_files
from integration.cli_world import World, local_skill
from programs import http_server, skillwire_command
from skillwire import __version__
from skillwire.cli.app import COMMANDS

GOLDEN = Path(__file__).parent / "golden" / "cli"
TEAM = {
    "billing/refunds/SKILL.md": skill_md("refunds", body="Read [the policy](references/policy.md).\n"),
    "billing/refunds/references/policy.md": "Within 30 days.\nNot later.\n",
    "shop/refunds/SKILL.md": skill_md("refunds", extra="allowed-tools: Read Grep\n"),
    "triage/SKILL.md": skill_md("triage", extra="license: MIT\n", body="Sort by urgency.\n"),
    "triage/scripts/count.py": "print(1)\n",
    "triage/assets/logo.png": bytes(range(256)),
}
BROKEN: dict[str, str | bytes] = {
    "bad/SKILL.md": "no frontmatter\n",
    "good/SKILL.md": skill_md("good"),
    "wrong/SKILL.md": skill_md("other"),
}

Json = dict[str, Any]


TEXTS = frozenset(
    {"detail", "fix", "found", "message", "missing", "problem", "reason", "remedy", "sentence", "verdict"}
)
"""Members whose value, where it is a string, is free text for people."""
TEXTS_OF: Mapping[str, frozenset[str]] = {
    "completion": frozenset({"script"}),
    "list": frozenset({"text"}),
    "load": frozenset({"text"}),
    "setup": frozenset({"command", "snippet"}),
}
"""Members that are free text in the documents of one command, and something else in others."""
VARYING = frozenset(
    {
        "actor",
        "approvedBy",
        "boundary",
        "cursor",
        "databaseSize",
        "fingerprint",
        "score",
        "token",
        "tokens",
    }
)
"""Members that differ between two machines or two runs, or say nothing by themselves."""
VARYING_IN: Mapping[str, frozenset[str]] = {
    "lock": frozenset({"digest"}),
    "usage": frozenset({"cpu_seconds", "memory_bytes", "processes", "wall_seconds"}),
}
"""Members that vary below one other member."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
PORT = re.compile(r"(?<=//127\.0\.0\.1:)\d{2,}")


@dataclass(frozen=True, slots=True)
class Run:
    """One command line, by the name of its golden file, and what is done before it."""

    name: str
    words: tuple[str, ...]
    before: Callable[[World], None] | None = None


def run(name: str, words: str, before: Callable[[World], None] | None = None) -> Run:
    return Run(name, tuple(words.split()), before)


def change_policy(world: World) -> None:
    (world.project / "skills.lock").unlink()
    policy = world.root / "skills" / "billing" / "refunds" / "references" / "policy.md"
    policy.write_text("Within 14 days.\nNot later.\nAsk first.\n")


def change_triage(world: World) -> None:
    (world.root / "skills" / "triage" / "scripts" / "count.py").write_text("print(2)\n", "utf-8")


def change_synced(world: World) -> None:
    folder = world.project / ".claude" / "skills" / "team--triage"
    (folder / "SKILL.md").write_text("Something else.\n", "utf-8")


def restore_policy(world: World) -> None:
    write_files(world.root / "skills", TEAM)


def change_lock(world: World) -> None:
    lock = world.project / "skills.lock"
    lock.write_text(lock.read_text("utf-8") + "\n", "utf-8")


def empty_config(world: World) -> None:
    (world.project / "empty.json").write_text('{"mcpServers": {}}', "utf-8")


def break_lock(world: World) -> None:
    (world.project / "skills.lock").write_text("{", "utf-8")


# In this order: later runs see what earlier ones approved, wrote and cached.
RUNS = [
    run("validate", "validate ../skills"),
    run("validate-broken", "validate ../broken --publish"),
    run("validate-missing", "validate ../nowhere ../skills"),
    run("new", "new acme/stock --with references,scripts"),
    run("new-existing", "new acme/stock"),
    run("new-invalid-name", "new Not-A-Name"),
    run("manifest", "manifest ../skills --prefix acme"),
    run("manifest-broken", "manifest ../broken"),
    run("manifest-missing", "manifest ../nowhere"),
    run("pack", "pack ../skills/triage"),
    run("pack-zip", "pack ../skills/triage --format zip -o triage.zip"),
    run("pack-existing", "pack ../skills/triage"),
    run("pack-broken", "pack ../broken/bad"),
    run("publish", "publish ../skills/triage ../skills/billing --static site"),
    run("publish-again", "publish ../skills/triage --static site --prune"),
    run("publish-duplicate", "publish ../skills --static site"),
    run("publish-catalog-dry-run", "publish ../skills --dry-run"),
    run("publish-catalog", "publish ../skills --note first"),
    run("publish-catalog-again", "publish ../skills"),
    run("publish-catalog-changed", "publish ../skills --version 1.0.0", change_triage),
    run("publish-catalog-conflict", "publish ../skills --prefix acme", restore_policy),
    run("publish-catalog-broken", "publish ../broken"),
    run("publish-catalog-invalid-url", "publish ../skills --catalog skills.db"),
    run("history", "history"),
    run("history-skill", "history triage"),
    run("history-version", "history v1.0.0/triage"),
    run("history-unknown", "history nothing"),
    run("history-no-catalog", "history --catalog sqlite:///nowhere.db"),
    run("rollback", "rollback triage@1"),
    run("rollback-again", "rollback triage@1"),
    run("rollback-unknown", "rollback triage@9"),
    run("rollback-no-revision", "rollback triage"),
    run("unpublish", "unpublish triage billing/refunds"),
    run("unpublish-again", "unpublish triage"),
    run("unpublish-version", "unpublish v1.0.0/triage"),
    run("history-removed", "history triage"),
    run("rollback-removed", "rollback billing/refunds@1"),
    run("rollback-ambiguous", "rollback refunds@1"),
    run("catalog-stats", "catalog stats"),
    run("catalog-verify", "catalog verify"),
    run("catalog-gc", "catalog gc"),
    run("catalog-backup", "catalog backup catalog.tar"),
    run("catalog-backup-existing", "catalog backup catalog.tar"),
    run("catalog-restore", "catalog restore catalog.tar --catalog sqlite:///restored.db"),
    run("catalog-restore-existing", "catalog restore catalog.tar"),
    run("catalog-sync-add", "catalog sync --add team --from ../skills/billing --every 10m --prefix team"),
    run("catalog-sync-run", "catalog sync --run"),
    run("catalog-sync-remove", "catalog sync --remove team"),
    run("catalog-sync-unknown", "catalog sync --remove team"),
    run("catalog-sync-no-location", "catalog sync --add team"),
    run("catalog-unknown-action", "catalog melt"),
    run("search-catalog", "search refunds --catalog sqlite:///restored.db"),
    run("search-catalog-page", "search refunds --catalog default --limit 1"),
    run("search-catalog-and-target", "search refunds team --catalog default"),
    run("token-new", "token new ci --file tokens --group staff --scope read"),
    run("token-list", "token list --file tokens"),
    run("token-existing", "token new ci --file tokens"),
    run("token-revoke", "token revoke ci --file tokens"),
    run("token-revoke-unknown", "token revoke ci --file tokens"),
    run("add", "add more http://127.0.0.1:9/mcp --config other.json"),
    run("add-command", "add tool --config other.json -- tool --stdio"),
    run("add-existing", "add more http://127.0.0.1:9/mcp --config other.json"),
    run("add-no-server", "add more"),
    run("trust-declined", "trust ../other"),
    run("trust", "trust ../other --yes"),
    run("trust-forget", "trust ../other --forget"),
    run("trust-missing", "trust ../nowhere"),
    run("setup-list", "setup"),
    run("setup-other", "setup other ../skills"),
    run("setup-declined", "setup codex"),
    run("setup", "setup codex --config other.json more --yes"),
    run("setup-again", "setup codex --config other.json more --yes"),
    run("setup-update", "setup codex --yes"),
    run("setup-remove", "setup codex --remove --yes"),
    run("setup-unknown-target", "setup codex nowhere"),
    run("list", "list"),
    run("list-prompt", "list team --prompt xml --budget 200"),
    run("list-folder", "list ../skills"),
    run("list-unknown", "list nowhere"),
    run("list-unknown-option", "list --nonsense"),
    run("search", "search refunds"),
    run("search-page", "search refunds team --limit 1"),
    run("search-nothing", "search zeppelin"),
    run("show", "show team/triage"),
    run("show-second", "show team/billing/refunds"),
    run("show-file", "show team/billing/refunds references/policy.md"),
    run("show-local", "show notes --body"),
    run("show-unknown", "show team/nothing"),
    run("show-ambiguous", "show team/refunds"),
    run("show-unknown-file", "show triage nothing.md --at ../skills"),
    run("load-not-approved", "load team/triage"),
    run("load-unknown", "load nothing --at ../skills"),
    run("load-local", "load notes"),
    run("why-not-approved", "why team/triage"),
    run("why-unknown", "why team/nothing"),
    run("why-server", "why team"),
    run("why-server-down", "why down"),
    run("why-code", "why approval-required"),
    run("approve-wrong-digest", "approve team/triage --yes --digest sha256:" + "0" * 64),
    run("approve-no-digest", "approve team/triage --yes"),
    run("approve-unknown", "approve nothing --at ../skills"),
    run("run-not-approved", "run team/triage count.py"),
    run("approve", "approve team/triage --yes --digest {binding}"),
    run("approve-grants", "approve team/triage --grant load --grant scripts --yes --digest {binding}"),
    run("approve-review-unasked", "approve team/triage --review --yes --digest {binding}"),
    run("approve-second", "approve team/billing/refunds --yes --digest {binding}"),
    run("load-second", "load team/billing/refunds"),
    run("show-approved", "show team/triage"),
    run("load", "load team/triage"),
    run("load-page-missing", "load team/triage --page 9"),
    run("why-approved", "why team/triage"),
    run("run-list", "run team/triage"),
    run("run", "run team/triage count.py"),
    run("run-unknown-script", "run team/triage nothing.py"),
    run("run-unknown", "run nothing count.py --at ../skills"),
    run("diff-same", "diff team/triage"),
    run("diff-never-approved", "diff team/shop/refunds"),
    run("diff-unknown", "diff nothing --at ../skills"),
    run("lock-missing", "lock"),
    run("lock-write", "lock --write"),
    run("lock", "lock"),
    run("lock-frozen", "lock --frozen --at team"),
    run("lock-frozen-partial", "lock --frozen --partial --at team"),
    run("sync-nowhere", "sync"),
    run("sync-check", "sync --to claude --check"),
    run("sync", "sync team --to claude --to ../folder"),
    run("lock-changed", "lock", change_lock),
    run("lock-trust-declined", "lock --trust"),
    run("lock-invalid", "lock", break_lock),
    run("diff-changed", "diff team/billing/refunds", change_policy),
    run("load-changed", "load team/billing/refunds"),
    run("sync-changed", "sync"),
    run("sync-refused", "sync --dry-run", change_synced),
    run("cache-list", "cache list", restore_policy),
    run("cache-gc", "cache gc"),
    run("cache-clear-declined", "cache clear"),
    run("cache-clear", "cache clear --yes"),
    run("cache-unknown-action", "cache melt"),
    run("revoke", "revoke team/triage"),
    run("revoke-again", "revoke team/triage"),
    run("revoke-unknown", "revoke nothing --at ../skills"),
    run("doctor-offline", "doctor --offline"),
    run("doctor", "doctor"),
    run("doctor-ok", "doctor --config empty.json", empty_config),
    run("completion", "completion bash"),
    run("completion-unknown-shell", "completion tcsh"),
    run("bridge-elsewhere", "bridge --http 0.0.0.0:8000"),
    run("serve-missing", "serve ../nowhere"),
    run("serve-unknown-dialect", "serve ../skills --dialect nothing"),
    run("serve-no-catalog", "serve --catalog sqlite:///nowhere.db"),
    run("serve-catalog-and-folder", "serve ../skills --catalog default"),
]


def new_world(root: Path) -> World:
    """Return a user with a skill of their own and servers that answer, are off, down and misconfigured."""
    world = World(root)
    local_skill(world, "notes")
    write_files(root / "skills", TEAM)
    write_files(root / "broken", BROKEN)
    write_files(root / "other", {".agents/skills/memo/SKILL.md": skill_md("memo")})
    world.configure(
        team=world.server("team", root / "skills"),
        down={"url": "http://127.0.0.1:9/mcp"},
        wrong={"command": "none", "args": ["${NOWHERE_SET}"]},
        off={"command": "none", "disabled": True},
    )
    return world


def arguments(words: tuple[str, ...], documents: Mapping[str, Json]) -> list[str]:
    """Return the words of a command with `--json`, and with the digest that `show` printed for its skill."""
    shown = (document["document"] for name, document in documents.items() if name.startswith("show"))
    bindings = {document["reference"]: document["binding"] for document in shown if "binding" in document}
    filled = [bindings[words[1]] if word == "{binding}" else word for word in words]
    end = filled.index("--") if "--" in filled else len(filled)
    return [*filled[:end], "--json", *filled[end:]]


class Normalizer:
    """Replaces what varies in the documents of one world, and free text, by placeholders."""

    def __init__(self, root: Path, command: str) -> None:
        self._root = str(root)
        self._texts = TEXTS | TEXTS_OF.get(command, frozenset())

    def of(self, value: Any, name: str = "", parent: str = "") -> Any:
        """Return the value of the member `name` of `parent` with placeholders."""
        if isinstance(value, dict):
            members = cast(Json, value)
            return {key: self.of(inner, key, name) for key, inner in members.items() if self._is_kept(inner)}
        if isinstance(value, list):
            items = cast(list[Any], value)
            return [self.of(item, name, parent) for item in items if self._is_kept(item)]
        if value is None or value == "":
            return value
        if name in VARYING or name in VARYING_IN.get(parent, ()):
            return f"<{name}>"
        return self._text(value, name) if isinstance(value, str) else value

    def _text(self, value: str, name: str) -> str:
        if name in self._texts:
            return "<text>"
        value = value.replace(self._root, "<root>").replace(__version__, "<version>")
        return PORT.sub("<port>", TIME.sub("<time>", value))

    @staticmethod
    def _is_kept(value: Any) -> bool:
        """Return whether it is not a check of the sandbox, which depends on what the machine has."""
        return not (isinstance(value, dict) and value.get("area") == "sandbox")  # pyright: ignore[reportUnknownMemberType]


def serve(world: World) -> Json:
    """Return the document of a server over HTTP, which prints it when it listens."""
    with http_server(world.root / "skills", "--json", "--no-watch", env=world.env) as server:
        return printed_by(server.process)


def bridge(world: World) -> Json:
    """Return the document of a bridge over HTTP."""
    words = skillwire_command("bridge", "--http", "127.0.0.1:0", "--json")
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=world.project, env=world.env, stdout=pipe, stderr=pipe) as process:
        try:
            return printed_by(process)
        finally:
            process.terminate()


def printed_by(process: "subprocess.Popen[bytes]") -> Json:
    """Return the one document that a program prints, while it runs."""
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] not in (b"}\n", b""):
        lines.append(process.stdout.readline())
    return json.loads(b"".join(lines))


def recorded(root: Path) -> dict[str, Json]:
    """Run everything in a new world below `root`, and return what came of it by the names of golden files."""
    world = new_world(root)
    raw: dict[str, Json] = {"serve": {"document": serve(world)}, "bridge": {"document": bridge(world)}}
    for step in RUNS:
        if step.before is not None:
            step.before(world)
        ended = world.run(*arguments(step.words, raw))
        raw[step.name] = {"arguments": step.words, "exitCode": ended.code, "document": ended.json}
    return {
        name: {**document, "document": Normalizer(root, command_of(document)).of(document["document"])}
        for name, document in raw.items()
    }


def command_of(recording: Json) -> str:
    return recording["document"]["schema"].split("/")[1]


def as_text(recording: Json) -> str:
    return json.dumps(recording, indent=1, ensure_ascii=False) + "\n"


def golden() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in GOLDEN.glob("*.json")}


def test_the_json_of_every_command_is_that_of_the_golden_files(tmp_path: Path) -> None:
    expected = golden()
    found = {name: as_text(recording) for name, recording in recorded(tmp_path.resolve()).items()}

    differences = [
        line
        for name in sorted(expected.keys() | found.keys())
        for line in unified_diff(
            expected.get(name, "").splitlines(),
            found.get(name, "").splitlines(),
            f"golden/cli/{name}.json",
            f"{name} now",
            lineterm="",
        )
    ]
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_golden_files_hold_a_success_and_a_failure_of_every_command(command: str) -> None:
    recordings = [json.loads(text) for text in golden().values()]
    codes = {bool(found.get("exitCode", 0)) for found in recordings if command_of(found) == command}

    assert codes == {True, False}


def main() -> None:
    """Write the golden files from the code as it is."""
    for path in GOLDEN.glob("*.json"):
        path.unlink()
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        for name, recording in recorded(Path(home).resolve()).items():
            (GOLDEN / f"{name}.json").write_text(as_text(recording), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
