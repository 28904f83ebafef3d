"""A skill with scripts that behave in every way a command line should cope with."""

import json

from folders import skill_md

HELLO = """\
import json, sys
given = json.load(sys.stdin)
print('hello', given.get('name', 'nobody'))
"""
FAILS = """\
import sys
print('so far')
print('no such column', file=sys.stderr)
sys.exit(3)
"""
SLEEPS = """\
import time
print('begun', flush=True)
time.sleep(60)
"""
PAINTS = """\
import sys
print('\\x1b[31mred\\x1b[0m \\x1b]0;owned\\x07title \\u202egpj.exe')
print('\\x1b[2Jerror: all is lost', file=sys.stderr)
"""
LEAVES = """\
import os
out = os.environ['OUTPUT_DIR']
os.makedirs(out + '/charts')
good = ['report.md', 'charts/one.svg']
for name in good + ['.bashrc', 'a:b', 'CON', 'a\\\\b', 'x\\x1b[31m', 'Report.md']:
    with open(f'{out}/{name}', 'w') as file:
        file.write('#!/bin/sh\\n')
os.chmod(out + '/report.md', 0o777)
os.symlink('/etc/passwd', out + '/passwd')
print('done')
"""
FORKS = """\
import json, subprocess, sys, time
token = json.load(sys.stdin)['token']
words = [sys.executable, '-c', 'import time; time.sleep(300)', token]
for _ in range(3):
    subprocess.Popen(words, start_new_session=True)
time.sleep(300)
"""
MANIFEST = {
    "scripts": {
        "hello.py": {
            "description": "Say hello.",
            "arguments": {
                "type": "object",
                "properties": {"name": {"type": "string", "description": "Whom to greet."}},
                "additionalProperties": False,
            },
            "limits": {"wall_seconds": 7},
        },
        "sleeps.py": {"limits": {"wall_seconds": 1}},
        "forks.py": {"limits": {"wall_seconds": 200}},
    }
}
FILES = {
    "lab/SKILL.md": skill_md("lab"),
    "lab/scripts/manifest.json": json.dumps(MANIFEST),
    "lab/scripts/hello.py": HELLO,
    "lab/scripts/fails.py": FAILS,
    "lab/scripts/sleeps.py": SLEEPS,
    "lab/scripts/paints.py": PAINTS,
    "lab/scripts/leaves.py": LEAVES,
    "lab/scripts/forks.py": FORKS,
    "plain/SKILL.md": skill_md("plain"),
}
"""Two skills by path: one with scripts, and one without."""
