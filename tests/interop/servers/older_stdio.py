"""A server's older self on a pipe: `python older_stdio.py COMMAND ARG…`.

What comes in the manner of 2026-07-28 is answered as an older server would,
with an unknown method; everything else is between the client and the command.
"""

import json
import subprocess
import sys

MODERN = "io.modelcontextprotocol/protocolVersion"
UNKNOWN = {"code": -32601, "message": "Method not found"}


def main(command: list[str]) -> int:
    # Both write to the same output, each whole lines, and the command says nothing until it is spoken to.
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if MODERN not in message.get("params", {}).get("_meta", {}):
                child.stdin.write(line)
                child.stdin.flush()
            elif "id" in message:
                answer = {"jsonrpc": "2.0", "id": message["id"], "error": UNKNOWN}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
        child.stdin.close()
        return child.wait(timeout=15)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
