"""FastMCP's default skills providers: `python fastmcp_default.py FOLDER LOG [FLAG…]`.

Every folder in FOLDER with `SkillsDirectoryProvider`; with `--single`, the first
of them with `SkillProvider`. `--reload` looks at the folder again for every
request, `--resources` lists supporting files as well. Every request is added to
LOG. With `--older` it knows nothing of revision 2026-07-28. Over `--http` it takes
a free port and writes its URL to standard error.
"""

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillProvider, SkillsDirectoryProvider
from listening import listen_and_run
from watching import watch

FOLDER, LOG, *FLAGS = sys.argv[1:]

mcp = FastMCP("fastmcp-default", version="1.0.0")


@mcp.resource("docs://readme", mime_type="text/plain")
def readme() -> str:
    return "Not a skill."


if __name__ == "__main__":
    files = "resources" if "--resources" in FLAGS else "template"
    if "--single" in FLAGS:
        mcp.add_provider(SkillProvider(min(Path(FOLDER).iterdir()), supporting_files=files))
    else:
        mcp.add_provider(
            SkillsDirectoryProvider(Path(FOLDER), reload="--reload" in FLAGS, supporting_files=files)
        )
    # There is no public way to see requests of methods that FastMCP does not know.
    watch(mcp._mcp_server, Path(LOG), older="--older" in FLAGS)  # pyright: ignore[reportPrivateUsage]
    if "--http" in FLAGS:
        listen_and_run(mcp.http_app(host_origin_protection=True))
    else:
        mcp.run(show_banner=False)
