"""A shop whose skill has scripts, and hosts that have loaded it."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hostile.hosting import User, hosting
from integration import hosting_shop
from integration.hosting_serve import Line, audit
from integration.hosting_shop import REFUNDS as REFUNDS_URI
from integration.hosting_shop import Catalogue, Shop
from skillwire.host.host import Host
from skillwire.host.use.tools import ToolResult
from skillwire.runner import Policy

EXAMPLES = Path(__file__).parents[3] / "examples" / "skills"
PROFILE = (EXAMPLES / "csv-insights" / "scripts" / "profile.py").read_bytes()
CSV = {"csv": "city,visits\nOslo,120\nBergen,80\n"}
REFUNDS = hosting_shop.REFERENCES[REFUNDS_URI]
LIVE = hosting_shop.REFERENCES[hosting_shop.LIVE]
POLICY = Policy(pool=0)

ECHO = b"import json, sys\nprint('got', json.dumps(json.load(sys.stdin), sort_keys=True))\n"
OTHER = b"print('the other one')\n"
FAIL = b"import sys\nprint('half')\nprint('bad luck', file=sys.stderr)\nsys.exit(3)\n"
SLOW = b"import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '54.321'])\n"
LEAVES = (
    b"import os\nfrom pathlib import Path\nout = Path(os.environ['OUTPUT_DIR'])\n"
    b"(out / 'table.csv').write_text('a,b\\n1,2\\n')\n(out / 'dot.png').write_bytes(b'\\x89PNG\\xff')\n"
)
SECRET = b"import os\nprint(sorted(os.listdir('/run/secrets')))\nprint(open('/run/secrets/TOKEN').read())\n"
NET = b"import os\nprint('proxy' if os.environ.get('HTTPS_PROXY') else 'no way out')\n"
DECLARED = {
    "scripts": {
        "secret.py": {"description": "Needs a secret.", "secrets": ["TOKEN", "KEY"]},
        "net.py": {"description": "Needs a host.", "network": ["api.example"]},
        "slow.py": {"description": "Takes long.", "limits": {"wall_seconds": 20}},
    }
}
SCRIPTS: Mapping[str, bytes] = {
    "scripts/echo.py": ECHO,
    "scripts/other.py": OTHER,
    "scripts/fail.py": FAIL,
    "scripts/slow.py": SLOW,
    "scripts/leaves.py": LEAVES,
    "scripts/secret.py": SECRET,
    "scripts/net.py": NET,
    "scripts/odd.xyz": b"?",
    "scripts/manifest.json": json.dumps(DECLARED).encode(),
}


def catalogue(number: int = 0, **changed: bytes) -> Catalogue:
    """Return what the shop publishes; `echo` is other bytes for that script."""
    files = {**SCRIPTS, **{f"scripts/{name}.py": content for name, content in changed.items()}}
    return {REFUNDS_URI: {"SKILL.md": hosting_shop.skill_md(REFUNDS_URI, number), **files}}


@asynccontextmanager
async def loaded(folder: Path, shop: Shop, user: User | None, **options: Any) -> AsyncGenerator[Host]:
    """Run a host that has loaded the shop's skill, and may run its scripts."""
    async with hosting(folder, [shop.config], user=user, **{"scripts": POLICY, **options}) as host:
        await host.refresh()
        await host.load(REFUNDS)
        yield host


def runs(folder: Path) -> list[Line]:
    return audit(folder, "run")


async def call(host: Host, **arguments: Any) -> ToolResult:
    [tool] = [tool for tool in host.tools() if tool.name == "run_skill_script"]
    return await tool(arguments)
