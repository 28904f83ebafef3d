"""The floor over a pipe: reads a line, writes prepared bytes, does nothing else.

Run as `python -m bench.servers.raw_pipe FILE`, the file holding the answer, or
with a folder: then it opens and hashes the file that each line asks for.
"""

import sys
from pathlib import Path

from bench.floors import read_hash_answer


def main() -> None:
    place, out = Path(sys.argv[1]), sys.stdout.buffer
    if place.is_dir():
        for line in sys.stdin.buffer:
            out.write(read_hash_answer(sys.argv[1], line) + b"\n")
            out.flush()
        return
    answer = place.read_bytes() + b"\n"
    for _ in sys.stdin.buffer:
        out.write(answer)
        out.flush()


if __name__ == "__main__":
    main()
