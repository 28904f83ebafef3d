"""An MCP server whose tools are what a file says: `python strange_tools.py TOOLS.json [--endless]`.

It is written in plain lines, since no SDK would say some of these things. A call
is answered by what comes after the last `_` of the tool's name. With `--endless`
the list of tools has always one page more.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def called(name: str, arguments: Any) -> dict[str, Any]:
    match name.rpartition("_")[2]:
        case "fail":
            return {"isError": True, "content": [{"type": "text", "text": "order 7 is not there"}]}
        case "mute":
            return {"isError": True, "content": []}
        case "large":
            return {"content": [{"type": "text", "text": "x" * 300_000}]}
        case "hidden":
            return {"content": [{"type": "text", "text": "a\u202eb\U000e0041\nc"}]}
        case "structured":
            return {"content": [], "structuredContent": {"total": 3}}
        case "mixed":
            return {
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                    {"type": "resource_link", "uri": "shop://terms", "name": "terms"},
                    {"type": "resource", "resource": {"uri": "shop://a", "text": "inside"}},
                    {"type": "resource", "resource": {"uri": "shop://b", "blob": "AAAA"}},
                ]
            }
        case "die":
            sys.exit(3)
        case "slow":
            time.sleep(60)
        case _:
            pass
    return {"content": [{"type": "text", "text": json.dumps([name, arguments])}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "strange", "version": "1"},
        }
    if method == "tools/list":
        page = int(params.get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if "--endless" in sys.argv else {}
        return {"tools": TOOLS if page == 0 else [], **more}
    if method == "tools/call" and not params["name"].endswith("_wrong"):
        return called(params["name"], params.get("arguments"))
    raise LookupError(method)


TOOLS = json.loads(Path(sys.argv[1]).read_text("utf-8"))

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params") or {})
    except LookupError:
        reply["error"] = {"code": -32601, "message": "no \x1b[31msuch\x1b[0m method"}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
