"""Attacks on the disk, and on whoever reads the output: far too much of everything."""

from escape.attack import Attack, got_all, reached, stopped_at
from skillwire.runner.outcome import Outcome
from skillwire.runner.policy import MIB

_DISK = {"disk_bytes": 8 * MIB, "disk_files": 500}


def _most_output(outcome: Outcome) -> str:
    kept = len(outcome.stdout) + len(outcome.stderr)
    limits = outcome.limits
    return (
        "" if kept <= limits.stdout_bytes + limits.stderr_bytes + 200 else f"{kept} bytes of text were kept"
    )


DISK = (
    Attack(
        "fills every folder that it can write to",
        """
total = 0
piece = bytes(1 << 20)
for folder in (GIVEN["folder"], "/tmp", "/out", "/dev/shm", "/skill", "/run/secrets", "/work", "/hold",
               "/dev", "/run", "/", "/var/tmp", "/usr", "/skill/scripts", "/proc/self/root"):
    for number in range(100):
        try:
            with open("%s/fill%d" % (folder, number), "wb", buffering=0) as file:
                total += file.write(piece)
        except OSError:
            break
        if total >= 64 << 20:
            os._exit(0)
os._exit(1)
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
        outcome_check=reached("disk_bytes"),
    ),
    Attack(
        "makes files without end",
        """
for number in range(2000):
    open("%s/%d" % (GIVEN["folder"] if os.path.isdir(GIVEN["folder"]) else "/tmp", number), "w").close()
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
        outcome_check=reached("disk_files"),
    ),
    Attack(
        "makes folders, links and names without end",
        """
base = GIVEN["folder"] if os.path.isdir(GIVEN["folder"]) else "/tmp"
made = 0
for number in range(400):
    made += attempt(lambda: os.mkdir("%s/d%d" % (base, number)) or True) or 0
    made += attempt(lambda: os.symlink("x" * 200, "%s/s%d" % (base, number)) or True) or 0
    link = ("%s/s0" % base, "%s/h%d" % (base, number))
    made += attempt(lambda: os.link(*link, follow_symlinks=False) or True) or 0
os._exit(0 if made >= 1000 else 1)
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
        outcome_check=reached("disk_files"),
    ),
    Attack(
        "reserves a large file",
        """
base = GIVEN["folder"] if os.path.isdir(GIVEN["folder"]) else "/tmp"
with open(base + "/large", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 100 << 20)
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
    ),
    Attack(
        "makes a file with a hole of a terabyte",
        """
base = GIVEN["folder"] if os.path.isdir(GIVEN["folder"]) else "/tmp"
with open(base + "/hole", "wb") as file:
    file.truncate(1 << 40)
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
    ),
    Attack(
        "keeps deleted files open",
        """
base = GIVEN["folder"] if os.path.isdir(GIVEN["folder"]) else "/tmp"
kept = []
for number in range(40):
    file = open("%s/gone%d" % (base, number), "wb", buffering=0)
    os.unlink("%s/gone%d" % (base, number))
    kept.append(file)
    try:
        file.write(bytes(1 << 20))
    except OSError:
        time.sleep(0.2)
        raise
""",
        got_all,
        lambda world: {"folder": world.place()},
        limits=_DISK,
        outcome_check=reached("disk_bytes"),
    ),
    Attack(
        "opens files without end",
        "kept = [open('/usr/bin/env', 'rb') for _ in range(300)]",
        got_all,
        limits={"open_files": 64},
    ),
    Attack(
        "writes to standard output without end",
        "for _ in range(GIVEN['mib']): os.write(1, b'x' * (1 << 20))",
        got_all,
        lambda _: {"mib": 1 << 20},
        control_plant=lambda _: {"mib": 20},
        outcome_check=stopped_at("flood_bytes"),
    ),
    Attack(
        "writes to standard error without end",
        "for _ in range(GIVEN['mib']): os.write(2, b'x\\n' * (1 << 19))",
        got_all,
        lambda _: {"mib": 1 << 20},
        control_plant=lambda _: {"mib": 20},
        outcome_check=stopped_at("flood_bytes"),
    ),
    Attack(
        "writes a little more than is kept",
        "os.write(1, b'x' * (2 << 20)); os.write(2, b'y' * (1 << 20))",
        lambda _, seen: "all of it was kept" if len(seen.text) > 3 << 20 else "",
        outcome_check=lambda outcome: _most_output(outcome) or reached("stdout_bytes")(outcome),
    ),
)
