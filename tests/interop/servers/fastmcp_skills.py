"""FastMCP's own way to serve skills: `python fastmcp_skills.py FOLDER LOG [--http] [--plain] [--older]`.

With its extension, or, with `--plain`, as resources only, which is what it does
unless told otherwise. With `--older` it knows nothing of revision 2026-07-28.
Every request is added to LOG. Over HTTP it takes a free port and writes its URL
to standard error.
"""

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.extension import SkillsExtension
from listening import listen_and_run
from watching import watch

FOLDER, LOG, *FLAGS = sys.argv[1:]

mcp = FastMCP("fastmcp-skills", version="1.0.0")

if __name__ == "__main__":
    if "--plain" in FLAGS:
        mcp.add_provider(SkillsDirectoryProvider(roots=Path(FOLDER)))
    else:
        provider = SkillsDirectoryProvider(roots=Path(FOLDER), experimental_skills=True, reload=True)
        mcp.add_provider(provider)
        mcp.add_extension(SkillsExtension(providers=[provider]))
    # There is no public way to see requests of methods that FastMCP does not know.
    watch(mcp._mcp_server, Path(LOG), older="--older" in FLAGS)  # pyright: ignore[reportPrivateUsage]
    if "--http" in FLAGS:
        listen_and_run(mcp.http_app(host_origin_protection=True))
    else:
        mcp.run(show_banner=False)
