"""Attacks on what the server has about it: its environment, its descriptors, its keys, its terminal."""

import base64
from collections.abc import Mapping
from urllib.parse import quote

from escape.attack import Attack, Judge, Seen, exited, tells_the_token
from escape.world import World
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.outcome import Outcome


def tells_machine_token(kind: str = "") -> Judge:
    """For attacks on what the server has: it is told together with the kind of thing it was in."""

    def judge(world: World, seen: Seen) -> str:
        return (
            f"it told the {kind or 'machine'}'s token" if f"{kind}-{world.machine.token}" in seen.text else ""
        )

    return judge


def tells_secret(world: World, seen: Seen) -> str:
    return "it told the secret" if world.machine.secret in seen.text else ""


def _victim(world: World) -> Mapping[str, JsonValue]:
    return {"pid": world.victim().pid}


def _terminal(world: World) -> Mapping[str, JsonValue]:
    return {"token": world.token}


def _giver(world: World) -> Mapping[str, JsonValue]:
    return {"path": world.giver()}


def _still_tells_all(outcome: Outcome) -> str:
    files = {file.path: file.content for file in outcome.files}
    if outcome.exit_code == 7 and files == {"mine": b"mine"}:
        return ""
    return f"its own report was changed: {outcome.verdict}, {files}"


ENVIRONMENT = (
    Attack("prints its environment", "tell(repr(dict(os.environ)))", tells_machine_token("environment")),
    Attack(
        "reads the environments of all processes",
        """
for name in ("self", "1", str(os.getppid()), *others()):
    tell(attempt(read, "/proc/%s/environ" % name))
""",
        tells_machine_token("environment"),
    ),
    Attack(
        "reads the environment of another process of its user",
        "for name in others(): tell(attempt(read, '/proc/%s/environ' % name))",
        tells_the_token,
        _victim,
    ),
    Attack(
        "reads the command lines of all processes",
        "for name in others(): tell(attempt(read, '/proc/%s/cmdline' % name))",
        tells_the_token,
        _victim,
    ),
    Attack("is started with the server's path of modules", "pass", tells_machine_token("python")),
    Attack("is started with the server's libraries", "pass", tells_machine_token("preload")),
    Attack(
        "is started with the server's shell settings",
        "bash -c true; sh -c 'cat /proc/self/environ'",
        tells_machine_token("bash"),
        suffix=".sh",
    ),
    Attack(
        "declares a secret that it was not granted",
        """
tell(os.environ.get("KEY"))
for folder in ("/run/secrets", "/hold/secrets"):
    for name in attempt(os.listdir, folder) or ():
        tell(attempt(read, folder + "/" + name))
tell(GIVEN.get("KEY"))
""",
        tells_secret,
        control_plant=lambda world: {"KEY": world.machine.secret},
    ),
)

_WRITTEN = """
secret = os.environ.get("KEY") or open("/run/secrets/KEY").read()
import base64, urllib.parse
raw = secret.encode()
"""
SECRETS = (
    Attack("prints a secret that it was granted", _WRITTEN + "tell(secret)", tells_secret, secrets=("KEY",)),
    Attack(
        "prints a secret in usual encodings",
        _WRITTEN + "tell(base64.b64encode(raw)); tell(urllib.parse.quote(secret, safe='')); tell(raw.hex())",
        lambda world, seen: "it told the secret" if any(one in seen.text for one in _encoded(world)) else "",
        secrets=("KEY",),
    ),
    Attack(
        "writes a secret into a file, and to standard error",
        _WRITTEN + "open(OUT + '/a', 'w').write('x' + secret); sys.stderr.write(secret)",
        tells_secret,
        secrets=("KEY",),
    ),
    Attack(
        "names a file after a secret",
        _WRITTEN + "open(OUT + '/' + urllib.parse.quote(secret, safe=''), 'w').write('')",
        lambda world, seen: "it told the secret" if _encoded(world)[1] in seen.text else "",
        secrets=("KEY",),
    ),
    Attack(
        "prints a secret with hidden characters in it",
        _WRITTEN + "tell('\\u200b'.join(secret)); sys.stdout.flush(); tell('\\x1b[0m'.join(secret))",
        lambda world, seen: (
            "it told the secret"
            if world.machine.secret
            in seen.text.replace("\u200b", "").replace("\x1b[0m", "").replace("â\x80\x8b", "")
            else ""
        ),
        secrets=("KEY",),
    ),
)


def _encoded(world: World) -> tuple[str, str, str]:
    raw = world.machine.secret.encode()
    return base64.b64encode(raw).decode(), quote(world.machine.secret, safe=""), raw.hex()


DESCRIPTORS = (
    Attack(
        "reads all descriptors that it has",
        """
for number in range(3, 1024):
    tell(attempt(os.pread, number, 4096, 0))
""",
        tells_machine_token("descriptor"),
    ),
    Attack(
        "opens the descriptors of all processes anew",
        """
for name in ("self", "1", str(os.getppid()), *others()):
    for number in attempt(os.listdir, "/proc/%s/fd" % name) or ():
        path = "/proc/%s/fd/%s" % (name, number)
        if not (attempt(os.readlink, path) or "pipe:").startswith(("pipe:", "socket:", "anon", "/dev/")):
            tell(attempt(read, path))
""",
        tells_machine_token("descriptor"),
    ),
    Attack(
        "opens a deleted file that another process holds",
        """
for name in others():
    tell(attempt(read, "/proc/%s/fd/33" % name))
""",
        tells_the_token,
        _victim,
    ),
    Attack(
        "is given a descriptor through a socket",
        """
with socket.socket(socket.AF_UNIX) as one:
    one.settimeout(3)
    attempt(one.connect, GIVEN["path"])
    found = attempt(socket.recv_fds, one, 1, 1)
    if found:
        tell(os.pread(found[1][0], 4096, 0))
""",
        tells_the_token,
        _giver,
    ),
    Attack(
        "takes a descriptor out of another process",
        """
for name in others():
    handle = attempt(call, "pidfd_open", int(name), 0)
    for number in (33, 3, 4, 5) if handle is not None else ():
        taken = attempt(call, "pidfd_getfd", handle, number, 0)
        if taken is not None:
            tell(attempt(os.pread, taken, 4096, 0))
""",
        tells_the_token,
        _victim,
    ),
    Attack(
        "writes reports of its own to every descriptor",
        """
open(OUT + "/mine", "w").write("mine")
report = json.dumps({"status": 0, "limit": None, "wall_seconds": 0, "cpu_seconds": 0, "peak": {},
                     "files": [["forged", 4]], "skipped": []}).encode()
frame = len(report).to_bytes(4, "big") + report + b"fake"
for number in (1, 2, *range(3, 4096)):
    attempt(os.write, number, frame)
for name in ("1", *others()):
    for number in range(8):
        place = "/proc/%s/fd/%d" % (name, number)
        attempt(lambda: os.write(os.open(place, os.O_WRONLY | os.O_NONBLOCK), frame))
os._exit(7)
""",
        lambda _, seen: "its report was taken for the sandbox's" if "forged" in seen.names else "",
        control="",
        because="without a sandbox there is no report that could be forged",
        outcome_check=_still_tells_all,
    ),
    Attack(
        "reads the keys of the server",
        """
for ring in (-1, -2, -3, -4, -5):
    found = attempt(call, "keyctl", 10, ring, b"user", b"escape", 0)
    if found is not None:
        buffer = ctypes.create_string_buffer(256)
        if attempt(call, "keyctl", 11, found, buffer, 256):
            tell(buffer.value)
tell(attempt(read, "/proc/keys"))
""",
        tells_machine_token("key"),
    ),
    Attack(
        "writes to the terminal the server was started from",
        """
for path in ("/dev/tty", "/dev/console", "/proc/1/fd/0", "/dev/stdin"):
    file = attempt(os.open, path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    if file is not None:
        attempt(os.write, file, GIVEN["token"].encode())
""",
        tells_the_token,
        _terminal,
    ),
    Attack(
        "types into the terminal the server was started from",
        """
for path in ("/dev/tty", "/dev/console", "/dev/pts/0"):
    file = attempt(os.open, path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    if file is not None:
        for letter in GIVEN["token"]:
            attempt(fcntl.ioctl, file, 0x5412, letter.encode())
        attempt(os.write, file, GIVEN["token"].encode())
for number in (0, 1, 2):
    attempt(fcntl.ioctl, number, 0x5412, b"x")
os._exit(3)
""",
        tells_the_token,
        _terminal,
        outcome_check=exited(3),
    ),
)
