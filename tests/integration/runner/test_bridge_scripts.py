"""Scripts through the bridge: offered where they are allowed, and run after a grant of their own."""

import shlex
from pathlib import Path
from typing import Any

from folders import write_files
from integration.cli_world import World
from integration.runner.cli_scripts import FILES
from integration.runner.running import needs_sandbox
from integration.test_bridge_process import answer_to, bridge, call, configured, open_session, text_in
from serving import legacy

pytestmark = needs_sandbox


def test_a_script_is_run_in_the_sandbox_once_the_user_has_granted_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_files(tmp_path / "skills", FILES)
    config = configured(world)
    run: dict[str, Any] = {"skill": "team/lab", "script": "scripts/hello.py", "arguments": {}}

    with bridge(world, "--scripts", "--config", config) as server:
        open_session(server)
        tools = {tool["name"]: tool for tool in answer_to(server, legacy("tools/list", 1))["result"]["tools"]}
        refused = text_in(call(server, "load_skill", skill="team/lab"))
        binding = world.run("show", "team/lab", "--config", config, "--json").json["binding"]
        sure = ("--config", config, "--yes", "--digest", binding)
        world.run("approve", "team/lab", *sure)
        loaded = call(server, "load_skill", skill="team/lab")
        ungranted = text_in(call(server, "run_skill_script", **run))
        [command] = [part for part in ungranted.split("`") if part.startswith("skillwire approve")]
        granted = world.run(*shlex.split(command)[1:], *sure[2:])
        ran = call(server, "run_skill_script", **run)

    assert tools["run_skill_script"]["annotations"]["readOnlyHint"] is False
    assert "REFUSED" in refused and loaded["result"]["isError"] is False
    assert "REFUSED" in ungranted and "--grant scripts" in command
    assert granted.code == 0, granted.err
    assert not ran["result"].get("isError") and "hello nobody" in text_in(ran)
