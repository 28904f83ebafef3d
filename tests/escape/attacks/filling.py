"""Attacks on memory: more than there may be, and where nobody counts it."""

from collections.abc import Mapping

from escape.attack import Attack, got_all, stopped_at
from escape.world import World
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.policy import MIB

_SMALL = {"memory_bytes": 48 * MIB, "wall_seconds": 8}
_WANTED = 200

_LARGER = {"memory_bytes": 100 * MIB, "wall_seconds": 8}
_BUFFERS = """
def fill(pairs):
    got, kept = 0, []
    for pair in pairs():
        for one in pair:
            one.setblocking(False)
            stuck = 0
            while stuck < 3:
                sent = attempt(one.send, bytes(1 << 16))
                got += sent or 0
                stuck += not sent
                time.sleep(0 if sent else 0.001)
        kept.append(pair)
    return got, kept

def fill_in_processes(number, pairs, wanted):
    reader, writer = os.pipe()
    for _ in range(number):
        if os.fork() == 0:
            got, kept = fill(pairs)
            os.write(writer, got.to_bytes(8, "little"))
            time.sleep(6)
            os._exit(0)
    got = sum(int.from_bytes(os.read(reader, 8), "little") for _ in range(number))
    os._exit(0 if got >= wanted else 1)

"""

_LOCKS = """
def lock(name):
    # Each lock of a file makes the next one of it slower.
    for number in range(200):
        file = os.open(os.path.join(OUT, "%s-%d" % (name, number)), os.O_RDWR | os.O_CREAT)
        for place in range(0, 500, 2):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)

"""
_WATCHES = """
def watch(queues, numbers):
    reader = os.pipe()[0]
    made = [call("epoll_create1", 0) for _ in range(queues)]
    pipes = [os.pipe()[0] for _ in range(20)]
    event = ctypes.create_string_buffer(16)
    struct.pack_into("=I", event, 0, 1)
    for number in range(160, 160 + numbers):
        for one in pipes:
            os.dup2(one, number)
            for queue in made:
                call("epoll_ctl", queue, 1, number, event)
            os.close(number)
    return made

"""


def _wanted(_: World) -> Mapping[str, JsonValue]:
    return {"mib": _WANTED}


MEMORY = (
    Attack(
        "fills its memory",
        """
kept = []
for _ in range(GIVEN["mib"]):
    kept.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.002)
""",
        got_all,
        _wanted,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the memory of many processes, a little each",
        """
ready, tell_ready = os.pipe()
for _ in range(GIVEN["mib"] // 10):
    if os.fork() == 0:
        kept = bytearray(b"x") * (10 << 20)
        os.write(tell_ready, b"r")
        time.sleep(6)
        os._exit(0)
    time.sleep(0.01)
for _ in range(GIVEN["mib"] // 10):
    os.read(ready, 1)
os._exit(0)
""",
        got_all,
        _wanted,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills memory that is shared, and lets go of it",
        """
kept = []
for _ in range(GIVEN["mib"] // 10):
    one = mmap.mmap(-1, 10 << 20)
    for place in range(0, 10 << 20, 4096):
        one[place] = 1
    one.madvise(mmap.MADV_DONTNEED)
    kept.append(one)
    time.sleep(0.02)
assert all(one[0] == 1 for one in kept)
""",
        got_all,
        _wanted,
        limits=_SMALL,
    ),
    Attack(
        "fills shared memory through /dev/zero",
        """
kept = []
file = os.open("/dev/zero", os.O_RDWR)
for _ in range(GIVEN["mib"] // 10):
    one = mmap.mmap(file, 10 << 20)
    for place in range(0, 10 << 20, 4096):
        one[place] = 1
    one.madvise(mmap.MADV_DONTNEED)
    kept.append(one)
    time.sleep(0.02)
assert all(one[0] == 1 for one in kept)
""",
        got_all,
        _wanted,
        limits=_SMALL,
    ),
    Attack(
        "fills memory in a thread whose process looks dead",
        """
def fill():
    time.sleep(0.05)
    kept = []
    for _ in range(GIVEN["mib"]):
        kept.append(bytearray(b"x") * (1 << 20))
        time.sleep(0.002)
    os._exit(0)

threading.Thread(target=fill).start()
libc.syscall(ctypes.c_long(CALLS["exit"]), ctypes.c_long(0))  # Only the first thread ends.
""",
        got_all,
        _wanted,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the buffers of sockets",
        _BUFFERS
        + """
def pairs():
    for _ in range(110):
        yield socket.socketpair()

fill_in_processes(8, pairs, GIVEN["mib"] << 20)
""",
        got_all,
        _wanted,
        limits=_LARGER,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the buffers of connections to itself",
        _BUFFERS
        + """
def pairs():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    for _ in range(50):
        one = socket.socket()
        one.connect(listener.getsockname())
        yield one, listener.accept()[0]

fill_in_processes(1, pairs, GIVEN["mib"] << 20)
""",
        got_all,
        _wanted,
        limits=_LARGER,
    ),
    Attack(
        "has its processes named so that their memory looks small",
        """
libc.prctl(15, b") 0 0\\nRssAnon:", 0, 0, 0)
kept = []
for _ in range(GIVEN["mib"]):
    kept.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.002)
""",
        got_all,
        _wanted,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the kernel's memory with rules about itself",
        """
words = ctypes.create_string_buffer(struct.pack("=QQ", 0, 3))
rule = ctypes.create_string_buffer(16)
kept = []
for _ in range(2):
    kept.append(call("landlock_create_ruleset", words, 16, 0))
    for port in range(65536):
        struct.pack_into("=QQ", rule, 0, 1, port)
        call("landlock_add_rule", kept[-1], 2, rule, 0)
""",
        got_all,
        control="",
        because="not every kernel has Landlock with rules for ports",
    ),
    Attack(
        "locks its memory",
        "kept = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "place = ctypes.addressof(ctypes.c_char.from_buffer(kept))\n"
        "os._exit(0 if libc.mlock(ctypes.c_void_p(place), ctypes.c_size_t(1 << 20)) == 0 else 1)",
        got_all,
    ),
    Attack(
        "fills the kernel's memory with locks on parts of files",
        _LOCKS
        + """
ready, tell_ready = os.pipe()
for number in range(6):
    if os.fork() == 0:
        lock(str(number))
        os.write(tell_ready, b"r")
        time.sleep(20)
        os._exit(0)
for _ in range(6):
    os.read(ready, 1)
hold(1)
os._exit(0)
""",
        got_all,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the kernel's memory with locks in a thread whose process looks dead",
        _LOCKS
        + """
def fill():
    time.sleep(0.05)
    lock("a")
    hold(1)
    os._exit(0)

threading.Thread(target=fill).start()
libc.syscall(ctypes.c_long(CALLS["exit"]), ctypes.c_long(0))  # Only the first thread ends.
""",
        got_all,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "locks parts of files in a way that no process shows",
        """
file = os.open(os.path.join(OUT, "locked"), os.O_RDWR | os.O_CREAT)
words = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
one, other = socket.socketpair()
fcntl.fcntl(file, 37, words)  # F_OFD_SETLK
socket.send_fds(one, [b"x"], [file])
os.close(file)
""",
        got_all,
    ),
    Attack(
        "fills the kernel's memory with small mappings in many processes",
        """
libc.mmap.restype = ctypes.c_void_p
ready, tell_ready = os.pipe()
pages = 60000
for _ in range(4):
    if os.fork() == 0:
        place = libc.mmap(None, ctypes.c_size_t(pages << 12), 3, 0x22, -1, ctypes.c_long(0))
        for number in range(0, pages, 2):
            libc.mprotect(ctypes.c_void_p(place + (number << 12)), ctypes.c_size_t(4096), 1)
        os.write(tell_ready, b"r")
        time.sleep(6)
        os._exit(0)
for _ in range(4):
    os.read(ready, 1)
hold(1)
os._exit(0)
""",
        got_all,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the kernel's memory with descriptors that it waits for",
        _WATCHES + "kept = watch(100, 90)\nhold(1)\nos._exit(0)",
        got_all,
        limits={**_SMALL, "wall_seconds": 10},
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "fills the kernel's memory with texts about itself",
        _WATCHES
        + """
(queue,) = watch(1, 90)
kept = []
for _ in range(200):
    kept.append(os.open("/proc/self/fdinfo/%d" % queue, os.O_RDONLY))
    os.read(kept[-1], 1)
hold(1)
os._exit(0)
""",
        got_all,
        limits=_SMALL,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "makes a pipe larger than it is counted with",
        "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)  # F_SETPIPE_SZ",
        got_all,
    ),
    Attack(
        "fills pipes in many processes",
        """
ready, tell_ready = os.pipe()
for _ in range(10):
    if os.fork() == 0:
        kept = [os.pipe() for _ in range(110)]
        for _, writer in kept:
            os.set_blocking(writer, False)
            while attempt(os.write, writer, bytes(4096)):
                pass
        os.write(tell_ready, b"r")
        time.sleep(6)
        os._exit(0)
for _ in range(10):
    os.read(ready, 1)
hold(1)
os._exit(0)
""",
        got_all,
        limits=_LARGER,
        outcome_check=stopped_at("memory_bytes"),
    ),
    Attack(
        "hides what it holds from those who count",
        "os._exit(0 if libc.prctl(4, 0, 0, 0, 0) == 0 else 1)",
        got_all,
    ),
    Attack(
        "fills the kernel's memory with timers",
        """
timer = ctypes.c_void_p()
made = 0
while made < 5000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
    made += 1
os._exit(0 if made == 5000 else 1)
""",
        got_all,
    ),
)
