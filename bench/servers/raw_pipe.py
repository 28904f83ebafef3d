"""The floor over a pipe: reads a line, writes prepared bytes, does nothing else.

Run as `python -m bench.servers.raw_pipe FILE`, the file holding the answer.
"""

import sys
from pathlib import Path


def main() -> None:
    line = Path(sys.argv[1]).read_bytes() + b"\n"
    out = sys.stdout.buffer
    for _ in sys.stdin.buffer:
        out.write(line)
        out.flush()


if __name__ == "__main__":
    main()
