"""Attacks over the network, and on local sockets: somebody outside listens, and must hear nothing."""

import socket
from collections.abc import Mapping

from escape.attack import Attack, Seen, tells_the_token, was_heard
from escape.world import World
from skillwire.core.yaml12 import JsonValue

_LOCAL = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}


def _port(world: World) -> Mapping[str, JsonValue]:
    return {"port": world.tcp()}


def _everywhere(world: World) -> Mapping[str, JsonValue]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # Nothing is sent; the kernel only picks an address.
        address = one.getsockname()[0]
    return {"port": world.tcp(host="0.0.0.0"), "address": address}


def _six(world: World) -> Mapping[str, JsonValue]:
    return {"port": world.tcp(socket.AF_INET6, "::1")}


def _udp(world: World) -> Mapping[str, JsonValue]:
    return {"port": world.udp(), "token": world.token}


def _path(world: World) -> Mapping[str, JsonValue]:
    return {"path": world.unix()}


def _abstract(world: World) -> Mapping[str, JsonValue]:
    return {"name": world.unix(is_abstract=True)}


def _chatter(world: World) -> Mapping[str, JsonValue]:
    return {"port": world.chatter()}


def _strange_family(_: World, seen: Seen) -> str:
    strange = seen.watched.families - _LOCAL - {0}
    return f"it held sockets of the families {sorted(strange)}" if strange else ""


def _listed_port(world: World, seen: Seen) -> str:
    return "it saw who listens on this machine" if f"<{world.mark}>" in seen.text else ""


def _sought(world: World) -> Mapping[str, JsonValue]:
    return {"port": world.tcp(), "found": f"<{world.mark}>"}


_CONNECT = """
def connect(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as one:
        one.settimeout(2)
        one.connect(address)
        one.sendall(b"hello")

"""

ATTACKS = (
    Attack(
        "connects to a server on this machine",
        _CONNECT + "attempt(connect, socket.AF_INET, ('127.0.0.1', GIVEN['port']))",
        was_heard,
        _port,
    ),
    Attack(
        "connects to a server on this machine over IPv6",
        _CONNECT + "attempt(connect, socket.AF_INET6, ('::1', GIVEN['port']))",
        was_heard,
        _six,
    ),
    Attack(
        "connects to the address that this machine has in its network",
        _CONNECT + "attempt(connect, socket.AF_INET, (GIVEN['address'], GIVEN['port']))",
        was_heard,
        _everywhere,
    ),
    Attack(
        "connects by other spellings of loopback",
        _CONNECT
        + """
for host in ("localhost", "0.0.0.0", "127.1.2.3", "127.1", "0", "2130706433", "0x7f000001"):
    attempt(connect, socket.AF_INET, (host, GIVEN["port"]))
attempt(connect, socket.AF_INET6, ("::ffff:127.0.0.1", GIVEN["port"]))
""",
        was_heard,
        _port,
    ),
    Attack(
        "sends a datagram",
        """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    for host in ("127.0.0.1", "255.255.255.255"):
        attempt(one.sendto, GIVEN["token"].encode(), (host, GIVEN["port"]))
""",
        was_heard,
        _udp,
    ),
    Attack(
        "sends a datagram from a raw socket",
        """
data = GIVEN["token"].encode()
head = struct.pack("!HHHH", 9, GIVEN["port"], 8 + len(data), 0)
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as one:
    one.sendto(head + data, ("127.0.0.1", 0))
""",
        was_heard,
        _udp,
        control="root",
    ),
    Attack(
        "listens to what others say on the loopback interface",
        """
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as one:
    one.bind(("lo", 0))
    one.settimeout(0.3)
    for _ in range(200):
        packet = attempt(one.recv, 4096) or b""
        if GIVEN["port"].to_bytes(2, "big") in packet:
            tell(packet)
            break
""",
        tells_the_token,
        _chatter,
        control="root",
    ),
    Attack(
        "connects to a socket that is a file",
        _CONNECT
        + """
for base in ("", "/proc/1/root", "/proc/self/root"):
    attempt(connect, socket.AF_UNIX, base + GIVEN["path"])
""",
        was_heard,
        _path,
    ),
    Attack(
        "connects to a socket that is only a name",
        _CONNECT + "attempt(connect, socket.AF_UNIX, '\\0' + GIVEN['name'])",
        was_heard,
        _abstract,
    ),
    Attack(
        "looks up who listens on this machine",
        """
wanted = ":%04X " % GIVEN["port"]
for name in ("net/tcp", "net/tcp6", "1/net/tcp", "thread-self/net/tcp"):
    if wanted in (attempt(read, "/proc/" + name) or b"").decode():
        tell(GIVEN["found"])
""",
        _listed_port,
        _sought,
    ),
    Attack(
        "asks the kernel who listens on this machine",
        """
with socket.socket(16, socket.SOCK_RAW, 4) as one:  # NETLINK_SOCK_DIAG
    one.settimeout(2)
    request = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 1 << 10) + bytes(48)
    one.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
    answer = one.recv(1 << 18)
    if GIVEN["port"].to_bytes(2, "big") in answer:
        tell(GIVEN["found"])
""",
        _listed_port,
        _sought,
    ),
    Attack(
        "takes sockets of seldom families",
        """
kept = []
for family in (*range(3, 10), *range(11, 46)):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        kept.append(attempt(lambda: socket.socket(family, kind, 0)))
for family, protocol in ((socket.AF_INET, 132), (socket.AF_INET, 262), (socket.AF_INET6, 58)):
    kept.append(attempt(lambda: socket.socket(family, socket.SOCK_RAW, protocol)))
if any(kept):
    hold()
""",
        _strange_family,
    ),
)
