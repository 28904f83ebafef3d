"""Attacks through memory and queues that processes share, and on runs that come before, after or beside."""

from collections.abc import Callable, Mapping

from escape.attack import Attack, Judge, Seen, got_all, tells_the_token
from escape.world import World
from skillwire.core.yaml12 import JsonValue

_values: dict[str, Callable[[], int]] = {}
_visits: dict[str, str] = {}


def _segment(world: World) -> Mapping[str, JsonValue]:
    return {"key": world.segment()}


def _messages(world: World) -> Mapping[str, JsonValue]:
    return {"key": world.messages()}


def _semaphore(world: World) -> Mapping[str, JsonValue]:
    key, _values[world.mark] = world.semaphore()
    return {"key": key}


def _changed(world: World, _: Seen) -> str:
    return "" if _values.pop(world.mark)() == 1 else "the semaphore has changed"


def _visitor(world: World) -> Mapping[str, JsonValue]:
    _visits[world.mark] = world.visitor()
    return {}


def _visitor_who_reads(world: World) -> Mapping[str, JsonValue]:
    world.visitor()
    return {}


def _visited(world: World) -> str:
    return f"<{_visits.pop(world.mark)}>"


def _queue(world: World) -> Mapping[str, JsonValue]:
    return {"name": world.queue()}


def _shared_file(world: World) -> Mapping[str, JsonValue]:
    return {"name": world.shared_file()}


ATTACKS = (
    Attack(
        "reads a segment of System V shared memory",
        """
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(GIVEN["key"], 4096, 0)
place = libc.shmat(number, None, 0o10000) if number >= 0 else None
if place and place != 2**64 - 1:
    tell(ctypes.string_at(place))
""",
        tells_the_token,
        _segment,
    ),
    Attack(
        "takes a message from a System V queue",
        """
number = libc.msgget(GIVEN["key"], 0)
buffer = ctypes.create_string_buffer(256)
if number >= 0 and libc.msgrcv(number, buffer, ctypes.c_size_t(200), ctypes.c_long(0), 0o4000) > 0:
    tell(buffer.raw[8:])
""",
        tells_the_token,
        _messages,
    ),
    Attack(
        "changes a System V semaphore",
        """
number = libc.semget(GIVEN["key"], 1, 0)
if number >= 0:
    libc.semctl(number, 0, 16, 5)
""",
        _changed,
        _semaphore,
    ),
    Attack(
        "takes a message from a POSIX queue",
        """
queue = libc.mq_open(GIVEN["name"].encode(), os.O_RDONLY | os.O_NONBLOCK)
buffer = ctypes.create_string_buffer(8192)
if queue >= 0 and libc.mq_receive(queue, buffer, ctypes.c_size_t(8192), None) > 0:
    tell(buffer.value)
""",
        tells_the_token,
        _queue,
    ),
    Attack(
        "watches which programs are used on this machine",
        """
def told(file, seconds):
    deadline = time.monotonic() + seconds
    os.set_blocking(file, False)
    seen = b""
    while time.monotonic() < deadline:
        seen += attempt(os.read, file, 4096) or b""
        time.sleep(0.01)
    return seen

file = libc.inotify_init1(0)
if file >= 0 and libc.inotify_add_watch(file, b"/usr/bin", 0x20) >= 0:
    seen = told(file, 0.4)
    tell("saw <%s>" % "> <".join(part.decode("latin-1") for part in seen.replace(bytes(1), b" ").split()))
""",
        lambda world, seen: "it saw what somebody outside has opened" if _visited(world) in seen.text else "",
        _visitor,
    ),
    Attack(
        "is told when anybody uses a folder",
        """
told = []
signal.signal(signal.SIGIO, lambda *_: told.append(1))
file = os.open("/usr/bin", os.O_RDONLY)
attempt(fcntl.fcntl, file, 1026, 0x80000001)  # F_NOTIFY: whatever is read in there, again and again
deadline = time.monotonic() + 0.4
while time.monotonic() < deadline and not told:
    time.sleep(0.01)
os._exit(0 if told else 1)
""",
        got_all,
        _visitor_who_reads,
    ),
    Attack(
        "reads a file in shared memory",
        "tell(attempt(read, '/dev/shm/' + GIVEN['name']))",
        tells_the_token,
        _shared_file,
    ),
)

LEAVES = """
token = GIVEN["token"]
for folder in ("/tmp", "/dev/shm", "/var/tmp", OUT, "/skill", "/hold", "/work", "/run", "/run/secrets"):
    attempt(lambda: open(folder + "/left-" + GIVEN["name"], "w").write(token))
attempt(lambda: open("/usr/left", "w").write(token))
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(GIVEN["key"], 4096, 0o1666)
place = libc.shmat(number, None, 0) if number >= 0 else None
if place and place != 2**64 - 1:
    ctypes.memmove(place, token.encode(), len(token))
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0left-" + GIVEN["name"])
listener.listen()
listener.settimeout(GIVEN["seconds"])
attempt(lambda: call("add_key", b"user", ("left-" + GIVEN["name"]).encode(), token.encode(), len(token), -4))
if GIVEN["seconds"]:
    child = os.fork()
    if child == 0:
        os.execve("/usr/bin/sleep", ["sleep", str(GIVEN["seconds"] + 1)], {"TOKEN": token})
    attempt(lambda: listener.accept()[0].sendall(token.encode()))
    time.sleep(0.3)
    os.kill(child, 9)
"""
"""Leaves the token wherever it can; with seconds, also stays for a while and tells it to whoever asks."""

FINDS = """
deadline = time.monotonic() + GIVEN["seconds"]
while True:
    for folder in ("/tmp", "/dev/shm", "/var/tmp", OUT, "/skill", "/hold", "/work", "/run", "/run/secrets"):
        tell(attempt(read, folder + "/left-" + GIVEN["name"]))
    tell(attempt(read, "/usr/left"))
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(GIVEN["key"], 4096, 0)
    place = libc.shmat(number, None, 0o10000) if number >= 0 else None
    if place and place != 2**64 - 1:
        tell(ctypes.string_at(place))
        libc.shmctl(number, 0, None)
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1)
        if attempt(lambda: one.connect("\\0left-" + GIVEN["name"]) or True):
            tell(attempt(one.recv, 100))
    found = attempt(call, "keyctl", 10, -4, b"user", ("left-" + GIVEN["name"]).encode(), 0)
    if found is not None:
        buffer = ctypes.create_string_buffer(256)
        attempt(call, "keyctl", 11, found, buffer, 256)
        tell(buffer.value)
    for name in others():
        tell(attempt(read, "/proc/%s/environ" % name))
    if time.monotonic() > deadline:
        break
    time.sleep(0.05)
"""
"""Looks for a token wherever it may have been left."""

BEFORE = Attack("leaves the token for others", LEAVES, tells_the_token)
AFTER = Attack("finds what another has left", FINDS, tells_the_token)


def told_by(token: str) -> Judge:
    return lambda _, seen: "it found the other's token" if token in seen.text else ""
