"""The floor of a start over HTTP: a lowlevel server of the MCP SDK with one handler, on the given port."""

import sys

import uvicorn

from bench.servers.bare_sdk import new_server


def main() -> None:
    uvicorn.run(new_server().streamable_http_app(), port=int(sys.argv[1]), log_config=None, access_log=False)


if __name__ == "__main__":
    main()
