"""What an attack on the sandbox is, what was seen of it from outside, and how it is judged."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from escape.watching import Watched
from escape.world import World
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.outcome import Outcome
from skillwire.runner.sandbox.seccomp import AARCH64, X86_64

CALLS: Mapping[str, int] = {"x86_64": X86_64}.get(platform.machine(), AARCH64)


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of an attack, with the sandbox or without. `text` is all that it brought out."""

    text: str
    exit_code: int | None
    seconds: float
    watched: Watched
    left: tuple[str, ...] = ()
    hung: bool = False
    names: tuple[str, ...] = ()
    outcome: Outcome | None = None
    error: str = ""


Judge = Callable[[World, Seen], str]
"""Says what the attack has reached; nothing, if it has reached nothing."""

Plant = Callable[[World], Mapping[str, JsonValue]]
"""Puts something outside that is worth reaching, and returns what the script is told about it."""

OutcomeCheck = Callable[[Outcome], str]
"""Says what is wrong with the outcome that the sandbox gave; nothing, if it is right."""


def nothing(_: World) -> Mapping[str, JsonValue]:
    return {}


def accept_any_outcome(_: Outcome) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    `control` says as whom the same script must succeed without a sandbox:
    as an ordinary `"user"`, as `"root"` where only root can do it at all, or
    not, and then `because` says why. `control_plant` gives it a bounded task
    where the attack itself would hurt the machine. `outcome_check` checks the outcome that the sandbox gave.
    With a `schema` its arguments come on the command line.
    """

    name: str
    script: str
    judge: Judge
    plant: Plant = nothing
    control: str = "user"
    because: str = ""
    control_plant: Plant | None = None
    outcome_check: OutcomeCheck = accept_any_outcome
    suffix: str = ".py"
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    is_bare: bool = False
    secrets: tuple[str, ...] = ()
    schema: Mapping[str, JsonValue] | None = None
    seconds: float = 20.0


PRELUDE = """\
import ctypes, errno, fcntl, json, mmap, os, resource, signal, socket, stat, struct, sys, threading, time
GIVEN = json.loads(sys.stdin.buffer.read() or b"{}")
OUT = os.environ.get("OUTPUT_DIR", "/out")
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, b"@MARK@", 0, 0, 0)
os.environ["ESCAPE_MARK"] = "@MARK@"
CALLS = @CALLS@

def call(name, *words):
    number = name if isinstance(name, int) else CALLS[name]
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in words]
    result = libc.syscall(ctypes.c_long(number), *given)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def attempt(action, *given):
    try:
        return action(*given)
    except Exception:
        return None

def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 20)

def tell(what):
    if what:
        sys.stdout.write(what.decode("latin-1") if isinstance(what, bytes) else str(what))
        sys.stdout.write("\\n")

def hold(seconds=0.4):
    time.sleep(seconds)

def mappings(pid):
    for line in open("/proc/%s/maps" % pid):
        place, how = line.split()[:2]
        if how.startswith("rw"):
            yield [int(one, 16) for one in place.split("-")]

def others():
    mine = str(os.getpid())
    return [name for name in os.listdir("/proc") if name.isdigit() and name != mine]

"""


def source_of(attack: Attack, mark: str) -> bytes:
    """Return the script as it is run, with what all attacks share before it."""
    if attack.is_bare:
        return attack.script.encode()
    if attack.suffix == ".sh":
        return f"export ESCAPE_MARK={mark}\n{attack.script}".encode()
    prelude = PRELUDE.replace("@MARK@", mark).replace("@CALLS@", repr(dict(CALLS)))
    return (prelude + attack.script).encode()


# -- Judges that many attacks share. --


def tells_the_token(world: World, seen: Seen) -> str:
    return "it told the token" if world.token in seen.text else ""


def was_heard(world: World, _: Seen) -> str:
    return "somebody outside heard it" if world.heard() else ""


def got_all(_: World, seen: Seen) -> str:
    """For attacks whose script exits with 0 once it has got all that it wanted."""
    return "it got all that it wanted" if seen.exit_code == 0 else ""


def stays(_: World, seen: Seen) -> str:
    return f"it still runs: {', '.join(seen.left)}" if seen.left else ""


def held_descriptor(*words: str) -> Judge:
    """For attacks that want a descriptor whose description, seen from outside, has one of these words."""

    def judge(_: World, seen: Seen) -> str:
        found = [one for one in seen.watched.descriptors if any(word in one for word in words)]
        return f"it held {found[0]}" if found else ""

    return judge


def entered_namespaces(_: World, seen: Seen) -> str:
    found = seen.watched.namespaces
    return f"it was in other namespaces than its parent: {sorted(found)}" if found else ""


def stopped_at(*names: str) -> OutcomeCheck:
    """For runs that must be ended at one of these limits, and must say so."""

    def check(outcome: Outcome) -> str:
        limit = outcome.limit
        if limit is not None and limit.name in names and limit.used >= limit.allowed:
            return ""
        return f"it should have been stopped at {' or '.join(names)}, and it says: {outcome.verdict}"

    return check


def reached(name: str) -> OutcomeCheck:
    """For runs that go on at a limit, which must be named."""

    def check(outcome: Outcome) -> str:
        hits = {hit.name for hit in (*outcome.reached, outcome.limit) if hit is not None}
        return "" if name in hits else f"{name} should be named, but only {sorted(hits)} are"

    return check


def exited(code: int) -> OutcomeCheck:
    """For runs that must end as the script says."""

    def check(outcome: Outcome) -> str:
        return "" if outcome.exit_code == code else f"it should have exited with {code}: {outcome.verdict}"

    return check
